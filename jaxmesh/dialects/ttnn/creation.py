"""Ops of TTNN that create tensors; on the devices every device creates the same."""

from __future__ import annotations

from dataclasses import replace

from jaxmesh.dialects.op import Trait, need
from jaxmesh.dialects.ttnn.forms import CREATED, FLOATS, WIDE, forms
from jaxmesh.dialects.ttnn.op import (
    DEVICE,
    DTYPE,
    LAYOUT,
    MEMORY,
    Param,
    TtnnOp,
    attribute,
    define,
    positional,
    ttir_meaning,
)

OPS: dict[str, TtnnOp] = {}
_SHAPE = need("shape", "ints", form="shape")
_BY_SHAPE = attribute("shape", form="shape", keyword=True)
_OPTIONS = (DTYPE, LAYOUT, DEVICE, MEMORY)

for _name in ("zeros", "ones"):
    define(OPS, _name, respelled=[_SHAPE], python=[_BY_SHAPE, *_OPTIONS], handles=(0, 1), accepts=CREATED)
define(
    OPS,
    "full",
    respelled=[_SHAPE],
    python=[_BY_SHAPE, attribute("fill_value", keyword=True), *_OPTIONS],
    handles=(0, 1),
    accepts=CREATED,
)
define(
    OPS,
    "empty",
    like="zeros",
    respelled=[_SHAPE],
    traits=[Trait.DECOMPOSED],
    python=positional(_BY_SHAPE, *_OPTIONS),
    handles=(1, 1),
    accepts=CREATED,
)

_BUFFER = attribute("data", "value", form="array")
# On the host the last two are not printed at all, because the real constructor tells its forms apart by their number.
_NUMBERS = (_BUFFER, Param("shape", "shape"), replace(DTYPE, name="data_type"), LAYOUT, replace(DEVICE, on_host=False))
define(
    OPS,
    "constant",
    callee="ttnn.Tensor",
    cpp_callee="ttnn.constant",
    python=[*positional(*_NUMBERS), replace(MEMORY, on_host=False)],
    cpp=positional(_BUFFER, Param("shape", "shape", form="shape"), *_OPTIONS),
    handles=(0, 1),
    accepts=CREATED,
)

_RANGE = (attribute("start", default=None), attribute("end", default=None), attribute("step", default=1))
define(
    OPS,
    "arange",
    omit=["arange_dimension"],
    meaning=lambda call: ttir_meaning(call, arange_dimension=0),
    python=[*_RANGE, DTYPE, DEVICE, LAYOUT, replace(MEMORY, on_host=False)],
    cpp=positional(*_RANGE, DTYPE, DEVICE, MEMORY, LAYOUT),
    handles=(0, 1),
    accepts=forms(WIDE, "either", gives="asked"),
)
define(
    OPS,
    "rand",
    respelled=[need("size", "ints", form="shape")],
    python=[
        attribute("shape", "size", form="shape"),
        DEVICE,
        DTYPE,
        LAYOUT,
        attribute("low", form="float", keyword=True, default=0.0),
        attribute("high", form="float", keyword=True, default=1.0),
        attribute("seed", keyword=True, default=0),
        MEMORY,
    ],
    handles=(1, 1),
    accepts=forms(FLOATS, "either", gives="asked"),
)
