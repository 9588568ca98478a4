"""What the compute and communication operations of TTIR mean, one row an op."""

from jaxmesh.dialects.ttir import (
    attention as attention,
    collectives as collectives,
    convolutions as convolutions,
    creation as creation,
    elementwise as elementwise,
    indexing as indexing,
    linear as linear,
    norms as norms,
    pooling as pooling,
    reductions as reductions,
    shapes as shapes,
)
