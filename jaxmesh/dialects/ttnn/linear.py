"""Products of TTNN."""

from __future__ import annotations

from jaxmesh.dialects.ttir import linear as _linear
from jaxmesh.dialects.ttnn.op import COMPUTE, DTYPE, MEMORY, attribute, by_place, none, operand, ttnn

_ = _linear
"""The rows these are like must be there first."""

_A, _B = operand("input_tensor_a", 0), operand("input_tensor_b", 1)
_BIAS = operand("bias", 2, keyword=True, default=None)
_TURNED = (
    attribute("transpose_a", keyword=True, default=False),
    attribute("transpose_b", keyword=True, default=False),
)
_HOW = (MEMORY, DTYPE, none("program_config"), none("activation"), COMPUTE)

ttnn("matmul", python=[_A, _B, *_TURNED, *_HOW], cpp=by_place(_A, _B, *_TURNED, *_HOW))
ttnn("linear", python=[_A, _B, _BIAS, *_TURNED, *_HOW], cpp=by_place(_A, _B, _BIAS, *_TURNED, *_HOW))
