"""All rows of TTNN."""

from jaxmesh.dialects.ttnn import (
    collectives as collectives,
    creation as creation,
    elementwise as elementwise,
    images as images,
    indexing as indexing,
    linear as linear,
    neural as neural,
    reductions as reductions,
    shapes as shapes,
)
