"""The operations of TTIR: one definition each, in the file of its family."""

from jaxmesh.dialects.op import OpDef
from jaxmesh.dialects.ttir import (
    attention,
    collectives,
    convolutions,
    creation,
    elementwise,
    indexing,
    linear,
    norms,
    pooling,
    reductions,
    rows,
    shapes,
)

OPS: dict[str, OpDef] = {
    **attention.OPS, **collectives.OPS, **convolutions.OPS, **creation.OPS, **elementwise.OPS, **indexing.OPS,
    **linear.OPS, **norms.OPS, **pooling.OPS, **reductions.OPS, **rows.OPS, **shapes.OPS,
}  # fmt: skip
"""By name, without the dialect."""
