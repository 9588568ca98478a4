"""All rows of TTNN."""

from jaxmesh.ops import (
    ttnn_collectives as ttnn_collectives,
    ttnn_creation as ttnn_creation,
    ttnn_elementwise as ttnn_elementwise,
    ttnn_images as ttnn_images,
    ttnn_indexing as ttnn_indexing,
    ttnn_linear as ttnn_linear,
    ttnn_neural as ttnn_neural,
    ttnn_reductions as ttnn_reductions,
    ttnn_shapes as ttnn_shapes,
)
