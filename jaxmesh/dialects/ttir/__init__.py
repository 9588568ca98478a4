"""The operations of TTIR: one definition each, in the file of its family."""

from jaxmesh.dialects.op import OpDef
from jaxmesh.dialects.ttir import collectives, elementwise, images, indexing, neural, reductions, shapes

OPS: dict[str, OpDef] = {
    **neural.OPS, **collectives.OPS, **images.OPS, **elementwise.OPS, **indexing.OPS, **reductions.OPS, **shapes.OPS,
}  # fmt: skip
"""By name, without the dialect."""
