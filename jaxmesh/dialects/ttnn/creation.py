"""Ops of TTNN that create tensors; on the devices every device creates the same."""

from __future__ import annotations

from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.forms import CREATED, FLOATS, WIDE, forms
from jaxmesh.dialects.ttnn.op import TtnnOp, define, ttir_meaning

OPS: dict[str, TtnnOp] = {}
_SHAPE = "shape: shape"

for _name in ("zeros", "ones"):
    define(OPS, _name, respelled=_SHAPE, handles=(0, 1), accepts=CREATED)
define(OPS, "full", respelled=_SHAPE, handles=(0, 1), accepts=CREATED)
define(OPS, "empty", like="zeros", respelled=_SHAPE, traits=[Trait.DECOMPOSED], handles=(1, 1), accepts=CREATED)

define(OPS, "constant", handles=(0, 1), accepts=CREATED)

define(
    OPS,
    "arange",
    omit=["arange_dimension"],
    meaning=lambda call: ttir_meaning(call, arange_dimension=0),
    handles=(0, 1),
    accepts=forms(WIDE, "either", gives="asked"),
)
define(OPS, "rand", respelled="size: shape", handles=(1, 1), accepts=forms(FLOATS, "either", gives="asked"))
