"""Ops of TTNN that create tensors; on the devices every device creates the same."""

from __future__ import annotations

from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.forms import CREATED, FLOATS, WIDE, forms
from jaxmesh.dialects.ttnn.op import TtnnOps, ttir_meaning

OPS = TtnnOps()
for _name in ("zeros", "ones"):
    OPS.define(_name, accepts=CREATED)
OPS.define("full", accepts=CREATED)
OPS.define("empty", like="zeros", traits=[Trait.DECOMPOSED], accepts=CREATED)

OPS.define("constant", accepts=CREATED)

OPS.define(
    "arange", meaning=lambda call: ttir_meaning(call, arange_dimension=0), accepts=forms(WIDE, "either", gives="asked")
)
OPS.define("rand", accepts=forms(FLOATS, "either", gives="asked"))
