"""Ops of TTNN that create tensors; on the devices every device creates the same."""

from __future__ import annotations

from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.forms import CREATED, FLOATS, WIDE, forms
from jaxmesh.dialects.ttnn.op import TtnnOps, ttir_meaning

OPS = TtnnOps()
_SHAPE = "shape: shape"

for _name in ("zeros", "ones"):
    OPS.define(_name, respelled=_SHAPE, handles=(0, 1), accepts=CREATED)
OPS.define("full", respelled=_SHAPE, handles=(0, 1), accepts=CREATED)
OPS.define("empty", like="zeros", respelled=_SHAPE, traits=[Trait.DECOMPOSED], handles=(1, 1), accepts=CREATED)

OPS.define("constant", handles=(0, 1), accepts=CREATED)

OPS.define(
    "arange",
    omit=["arange_dimension"],
    meaning=lambda call: ttir_meaning(call, arange_dimension=0),
    handles=(0, 1),
    accepts=forms(WIDE, "either", gives="asked"),
)
OPS.define("rand", respelled="size: shape", handles=(1, 1), accepts=forms(FLOATS, "either", gives="asked"))
