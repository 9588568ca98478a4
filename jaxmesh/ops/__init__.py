"""What the compute and communication operations of TTIR mean, one row an op."""

from jaxmesh.ops import (
    collectives as collectives,
    creation as creation,
    elementwise as elementwise,
    indexing as indexing,
    linear as linear,
    norms as norms,
    reductions as reductions,
    shapes as shapes,
)
