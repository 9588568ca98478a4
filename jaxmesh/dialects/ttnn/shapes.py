"""Ops of TTNN that move elements without computing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxmesh.dialects import ttir
from jaxmesh.dialects.op import Call, Trait, expect, need
from jaxmesh.dialects.ttnn.data_types import ANY, NARROW, NUMBERS, WIDE
from jaxmesh.dialects.ttnn.forms import MODULAR, MOVED, Forms, Occurrence, forms
from jaxmesh.dialects.ttnn.op import (
    DTYPE,
    MEMORY,
    TtnnOp,
    attribute,
    define,
    operand,
    operands,
    positional,
    text,
    ttir_meaning,
)

OPS: dict[str, TtnnOp] = {}
_X = operand("input_tensor")
(_MEMORY,) = positional(MEMORY)

define(
    OPS,
    "reshape",
    traits=[Trait.ON_HOST, Trait.RETURNS_OPERAND],
    python=[_X, attribute("shape"), MEMORY],
    cpp=[_X, attribute("shape", form="vector"), _MEMORY],
    takes=forms(NUMBERS, "either", casts=MODULAR),
)


def _permute(call: Call) -> Any:
    # The API counts dims from the end, too; TTIR does not.
    rank, order = call.operands[0].ndim, call["permutation"]
    return ttir_meaning(call, permutation=tuple(d + rank if -rank <= d < 0 else d for d in order))


define(
    OPS,
    "permute",
    options=["pad_value"],
    meaning=_permute,
    traits=[Trait.RETURNS_OPERAND],
    python=[_X, attribute("dims", "permutation"), MEMORY, text("pad_value", "0.0", keyword=True, default=0.0)],
    cpp=[_X, attribute("dims", "permutation", form="int64s"), _MEMORY, text("pad_value", "0.0f")],
    takes=MOVED,
)
define(OPS, "transpose", python=[_X, attribute("dim1", "dim0"), attribute("dim2", "dim1"), MEMORY], takes=MOVED)


def _narrow_in_rows(op: Occurrence) -> Forms:
    return forms(ANY, "rows" if op.stored() in NARROW else "either", casts=MODULAR)


def _repeat(op: Occurrence) -> Forms:
    """Elements of 8 bits in rows, of two to four dims."""
    narrow = op.stored() in NARROW
    types = WIDE if narrow and not 1 < len(op.attributes["repeat_dims"]) < 5 else ANY
    return forms(types, "rows" if narrow else "either", casts=MODULAR)


def _repeated(call: Call) -> Any:
    """Repeats a tensor; counts before those of its dims make new dims."""
    (x,), counts = call.operands, call["repeat_dims"]
    wide = x.reshape((1,) * (len(counts) - x.ndim) + x.shape)
    return ttir_meaning(replace(call, operands=(wide,)), repeat_dimensions=counts)


_COUNTS = attribute("repeat_dims", form="shape")
define(
    OPS,
    "repeat",
    attributes=[need("repeat_dims", "ints", form="shape")],
    meaning=_repeated,
    traits=[Trait.RETURNS_OPERAND],
    python=[_X, _COUNTS, MEMORY],
    cpp=[_X, _COUNTS],
    takes=_repeat,
)
define(OPS, "repeat_interleave", python=[_X, attribute("repeats"), attribute("dim"), MEMORY], takes=_narrow_in_rows)
define(
    OPS,
    "concat",
    traits=[Trait.RETURNS_OPERAND],
    python=[operands("tensors"), attribute("dim"), MEMORY],
    takes=_narrow_in_rows,
)

_SLICE = (
    replace(attribute("slice_start", "begins"), also=("starts",)),
    replace(attribute("slice_end", "ends"), also=("ends",)),
    replace(attribute("slice_step", "step", default=None), also=("steps",)),
)
define(
    OPS,
    "slice_static",
    callee="ttnn.slice",
    traits=[Trait.RETURNS_OPERAND],
    python=[_X, *_SLICE, MEMORY],
    cpp=[_X, *(replace(p, form="span") for p in _SLICE), _MEMORY],
    takes=_narrow_in_rows,
)


def _pad(op: Occurrence) -> Forms:
    """Tiles are padded at the end only."""
    in_front = any(op.attributes["padding"][::2])
    return forms(WIDE, "rows" if in_front else "either", casts=MODULAR)


_PADDED = (_X, attribute("padding", form="pairs"), attribute("value"))
_MULTICORE = attribute("use_multicore", keyword=True, default=True)
define(
    OPS,
    "pad",
    attributes=[*ttir.OPS["pad"].attributes, expect("use_multicore", "bool", True)],
    traits=[Trait.RETURNS_OPERAND],
    python=[*_PADDED, _MULTICORE, MEMORY],
    cpp=positional(*_PADDED, _MULTICORE, MEMORY),
    takes=_pad,
)
define(
    OPS,
    "assign",
    operands=1,
    meaning=lambda call: call.operands[0],
    traits=[Trait.MOVES, Trait.DECOMPOSED],
    python=[_X, DTYPE, MEMORY],
    cpp=positional(_X, MEMORY, DTYPE),
    takes=forms(ANY - {"INT8"}, casts=MODULAR),
)
