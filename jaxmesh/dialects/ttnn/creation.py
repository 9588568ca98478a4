"""Ops of TTNN that make tensors; on the devices every device makes the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxmesh.dialects.op import ROWS, Attribute, Call
from jaxmesh.dialects.ttir import creation as _creation
from jaxmesh.dialects.ttir.helpers import attr, need
from jaxmesh.dialects.ttnn.op import DEVICE, DTYPE, LAYOUT, MEMORY, Param, attribute, by_place, placed, ttnn

_ = _creation
"""The rows these are like must be there first."""

_SHAPE = Attribute("shape", "ints", required=True, form="shape")
_BY_SHAPE = attribute("shape", form="shape", keyword=True)
_MADE = (DTYPE, LAYOUT, DEVICE, MEMORY)


def _filled(name: str, attributes: Sequence[Attribute] = (), params: Sequence[Param] = ()) -> None:
    python = [_BY_SHAPE, *params, *_MADE]
    ttnn(name, attributes=[_SHAPE, *attributes], python=python, cpp=by_place(*python), on_device=True)


_filled("zeros")
_filled("ones")
_filled("full", [need("fill_value", "number")], [attribute("fill_value", keyword=True)])

_EMPTY = by_place(_BY_SHAPE, *_MADE)
ttnn(
    "empty",
    like="zeros",
    attributes=[_SHAPE],
    python=_EMPTY,
    cpp=_EMPTY,
    on_device=True,
)

# On the host the last two are not written at all, because the real constructor tells its forms apart by their number.
_NUMBERS = (
    attribute("buffer", "value", form="array"),
    Param("shape", "shape"),
    placed(DTYPE),
    placed(LAYOUT),
    replace(placed(DEVICE), on_host=False),
)
ttnn(
    "constant",
    callee="ttnn.Tensor",
    cpp_callee="ttnn.constant",
    python=[*_NUMBERS, replace(MEMORY, on_host=False)],
    cpp=[
        attribute("buffer", "value", form="array"),
        Param("shape", "shape", form="shape"),
        placed(DTYPE),
        placed(LAYOUT),
        placed(DEVICE),
        placed(MEMORY),
    ],
    on_device=True,
)

_RANGE = (attribute("start", default=None), attribute("end", default=None), attribute("step", default=1))


def _arange(call: Call) -> Any:
    return ROWS["arange"].meaning(replace(call, attributes={**call.attributes, "arange_dimension": 0}))


ttnn(
    "arange",
    operands=0,
    attributes=[need(name, "int", form="si64") for name in ("start", "end", "step")],
    meaning=_arange,
    python=[*_RANGE, DTYPE, DEVICE, LAYOUT, MEMORY],
    cpp=[*_RANGE, *by_place(DTYPE, DEVICE, MEMORY, LAYOUT)],
    on_device=True,
)

_BETWEEN = (
    attribute("low", form="float", keyword=True, default=0.0),
    attribute("high", form="float", keyword=True, default=1.0),
    attribute("seed", keyword=True, default=0),
)
_SIZE = attribute("shape", "size", form="shape")
ttnn(
    "rand",
    attributes=[
        Attribute("size", "ints", required=True, form="shape"),
        attr("low", "float", 0.0),
        attr("high", "float", 1.0),
        attr("seed", "int", 0, form="ui32"),
    ],
    python=[_SIZE, DEVICE, DTYPE, LAYOUT, *_BETWEEN, MEMORY],
    cpp=by_place(_SIZE, DEVICE, DTYPE, LAYOUT, *_BETWEEN, MEMORY),
    on_device=True,
)
