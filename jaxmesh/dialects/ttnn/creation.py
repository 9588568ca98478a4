"""Ops of TTNN that create tensors; on the devices every device creates the same."""

from __future__ import annotations

from dataclasses import replace

from jaxmesh.dialects.op import Trait, need
from jaxmesh.dialects.ttnn.data_types import FLOATS, WIDE
from jaxmesh.dialects.ttnn.forms import CREATED, forms
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
    define(OPS, _name, forms=[_SHAPE], python=[_BY_SHAPE, *_OPTIONS], on_device=True, takes=CREATED)
define(
    OPS,
    "full",
    forms=[_SHAPE],
    python=[_BY_SHAPE, attribute("fill_value", keyword=True), *_OPTIONS],
    on_device=True,
    takes=CREATED,
)
define(
    OPS,
    "empty",
    like="zeros",
    forms=[_SHAPE],
    traits=[Trait.DECOMPOSED, Trait.NEEDS_DEVICE],
    python=positional(_BY_SHAPE, *_OPTIONS),
    on_device=True,
    takes=CREATED,
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
    on_device=True,
    takes=CREATED,
)

_RANGE = (attribute("start", default=None), attribute("end", default=None), attribute("step", default=1))
define(
    OPS,
    "arange",
    omit=["arange_dimension"],
    meaning=lambda call: ttir_meaning(call, arange_dimension=0),
    python=[*_RANGE, DTYPE, DEVICE, LAYOUT, replace(MEMORY, on_host=False)],
    cpp=positional(*_RANGE, DTYPE, DEVICE, MEMORY, LAYOUT),
    on_device=True,
    takes=forms(WIDE, "either", gives="asked"),
)
define(
    OPS,
    "rand",
    traits=[Trait.NEEDS_DEVICE],
    forms=[need("size", "ints", form="shape")],
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
    on_device=True,
    takes=forms(FLOATS, "either", gives="asked"),
)
