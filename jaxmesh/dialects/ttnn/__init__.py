"""The operations of TTNN: one definition each, in the file of its family."""

from jaxmesh.dialects.ttnn import collectives, elementwise, images, neural, reductions, shapes
from jaxmesh.dialects.ttnn.op import TtnnOp

OPS: dict[str, TtnnOp] = {
    **collectives.OPS, **elementwise.OPS, **images.OPS, **neural.OPS, **reductions.OPS, **shapes.OPS,
}  # fmt: skip
"""By name, without the dialect: the operations with a function of `jaxmesh.ttnn`. `memory.py` has the others."""
