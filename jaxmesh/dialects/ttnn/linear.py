"""Products of TTNN."""

from __future__ import annotations

from jaxmesh.dialects.ttnn.data_types import FLOATS
from jaxmesh.dialects.ttnn.forms import PRODUCT, Forms, Takes
from jaxmesh.dialects.ttnn.op import COMPUTE, DTYPE, MEMORY, TtnnOp, attribute, define, operand, unset

OPS: dict[str, TtnnOp] = {}
_A, _B = operand("input_tensor_a", 0), operand("input_tensor_b", 1)
_BIAS = operand("bias", 2, keyword=True, default=None)
_OPTIONS = (
    attribute("transpose_a", keyword=True, default=False),
    attribute("transpose_b", keyword=True, default=False),
    MEMORY,
    DTYPE,
    unset("program_config"),
    unset("activation"),
    COMPUTE,
)

_HOW = ("compute_config", "matmul_program_config", "activation")
_FORMS = Forms((Takes(FLOATS),), (PRODUCT,))

define(OPS, "matmul", options=_HOW, python=[_A, _B, *_OPTIONS], accepts=_FORMS)
define(OPS, "linear", options=_HOW, python=[_A, _B, _BIAS, *_OPTIONS], accepts=_FORMS)
