"""Ops of TTNN that move elements without computing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxmesh.dialects.op import ROWS, Attribute, Call
from jaxmesh.dialects.ttir import shapes as _shapes
from jaxmesh.dialects.ttir.helpers import need
from jaxmesh.dialects.ttnn.op import DTYPE, MEMORY, Param, attribute, by_place, operand, operands, placed, text, ttnn

_ = _shapes
"""The rows these are like must be there first."""

_X = operand("input_tensor")


def _moved(name: str, python: Param, cpp: Param) -> None:
    ttnn(name, python=[_X, python, MEMORY], cpp=[_X, cpp, placed(MEMORY)])


_moved("reshape", attribute("shape"), attribute("shape", form="vector"))

_PAD_VALUE = text("pad_value", "0.0", keyword=True, default=0.0)


def _permute(call: Call) -> Any:
    # The API counts dims from the end, too; TTIR does not.
    rank, order = call.operands[0].ndim, call["permutation"]
    front = tuple(d + rank if -rank <= d < 0 else d for d in order)
    return ROWS["permute"].meaning(replace(call, attributes={**call.attributes, "permutation": front}))


ttnn(
    "permute",
    operands=1,
    meaning=_permute,
    attributes=[need("permutation", "ints", form="i64s")],
    python=[_X, attribute("dims", "permutation"), MEMORY, _PAD_VALUE],
    cpp=[_X, attribute("dims", "permutation", form="int64s"), placed(MEMORY), text("pad_value", "0.0f")],
)

_SWAPPED = (attribute("dim1", "dim0"), attribute("dim2", "dim1"))
ttnn("transpose", python=[_X, *_SWAPPED, MEMORY], cpp=[_X, *_SWAPPED, placed(MEMORY)])


def _repeat(call: Call) -> Any:
    counts = {**call.attributes, "repeat_dimensions": call["repeat_dims"]}
    return ROWS["repeat"].meaning(replace(call, attributes=counts))


ttnn(
    "repeat",
    operands=1,
    attributes=[Attribute("repeat_dims", "ints", required=True, form="shape")],
    meaning=_repeat,
    python=[_X, attribute("repeat_dims", form="shape"), MEMORY],
    cpp=[_X, attribute("repeat_dims", form="shape")],
)

_TIMES = (attribute("repeats"), attribute("dim"))
ttnn("repeat_interleave", python=[_X, *_TIMES, MEMORY], cpp=[_X, *_TIMES, placed(MEMORY)])

_JOINED = (operands("tensors"), attribute("dim"))
ttnn("concat", python=[*_JOINED, MEMORY], cpp=[*_JOINED, placed(MEMORY)])

_SLICE = (
    attribute("slice_start", "begins"),
    attribute("slice_end", "ends"),
    attribute("slice_step", "step", default=None),
)
ttnn(
    "slice_static",
    callee="ttnn.slice",
    python=[_X, *_SLICE, MEMORY],
    cpp=[_X, *(replace(p, form="span") for p in _SLICE), placed(MEMORY)],
)

_MULTICORE = text("use_multicore", "True", keyword=True, default=True)
ttnn(
    "pad",
    python=[_X, attribute("padding", form="pairs"), attribute("value"), _MULTICORE, MEMORY],
    cpp=[_X, attribute("padding", form="pairs"), attribute("value"), text("use_multicore", "true"), placed(MEMORY)],
)


def _assign(call: Call) -> Any:
    (x,) = call.operands
    return x


ttnn(
    "assign",
    operands=1,
    meaning=_assign,
    python=[_X, DTYPE, MEMORY],
    cpp=[_X, *by_place(MEMORY, DTYPE)],
)
