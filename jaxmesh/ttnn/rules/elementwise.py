"""Rules of elementwise functions: element types, numbers beside tensors, mixed types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from jaxmesh.dialects.ttnn.forms import (
    BF16,
    BLOCKS,
    F32,
    I8,
    I32,
    NOT_I8,
    REALS,
    U8,
    U16,
    U32,
    WHOLE,
    WORDS,
)
from jaxmesh.ttnn.rules.definitions import accepted, by_definition
from jaxmesh.ttnn.rules.given import ROWS, TILE, Form, Given, Result, Rule, checked, like

# --- one operand -----------------------------------------------------------------------------------------------------


def _unary(types: frozenset[str]) -> Rule:
    def rule(given: Given) -> list[Result]:
        x = given.tensors()[0]
        given.on_devices(x)
        # The library looks for INT8 in one function alone.
        given.types(x, types if given.callee == "ttnn.logical_not" else types | {I8})
        return [Result(x.dtype, x.layout, F32 if x.dtype == I8 else None)]

    return rule


def _bits(given: Given) -> list[Result]:
    x = given.tensors()[0]
    given.on_devices(x)
    given.types(x, REALS | WORDS | {I8})
    return [Result(x.dtype, x.layout, I32 if x.dtype in REALS else None)]


_BY_TYPES: Mapping[Rule, str] = {
    _unary(NOT_I8): "abs relu relu6",
    _bits: "bitwise_not",
    _unary(NOT_I8 - {I32}): "leaky_relu",
}
"""Functions that accept more than a program uses. Of others the definition says the types."""


# --- two operands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """The operands that a function of two operands accepts.

    Attributes:
      types: the element types of operands that are alike.
      mixes: the pairs of groups that may be mixed: `floats`, `numbers` (a float with a word), `shorts`.
      gives: the result's element type by that of the operands, where they differ.
      numbers: by element type what a number beside a tensor must be: `any`; `whole`, of the type's range; a `float`; a
        `positive` integer; a `power`, whole and not negative; or `none`. `any` for types that are missing.
      with_float: the result's element type of a whole tensor and a float, also a whole one.
    """

    types: frozenset[str]
    mixes: frozenset[str] = frozenset({"floats"})
    gives: Mapping[str, str] | None = None
    numbers: Mapping[str, str] | None = None
    with_float: Mapping[str, str] | None = None


_WHOLE_WORDS = {I32: "whole", U32: "whole"}
_RANGES = {I32: (-(2**31), 2**31), U32: (0, 2**32)}
_ADDS = Pair(accepted("add"), numbers=_WHOLE_WORDS)
_MULTIPLIES = Pair(accepted("multiply"), frozenset({"floats", "numbers"}), with_float={I32: F32, U32: F32})
_DIVIDES = Pair(
    REALS | {I32}, frozenset({"floats", "numbers"}), {I32: F32, U32: F32}, {U32: "float", U16: "none"}, {U32: F32}
)
_COMPARES = Pair(accepted("eq") | {U8}, frozenset({"floats", "shorts"}), {U8: U16}, _WHOLE_WORDS)
_SHIFTS = Pair(accepted("logical_right_shift"), frozenset(), numbers=_WHOLE_WORDS)
_ORDERS = Pair(accepted("maximum"), frozenset(), numbers={I8: "any"})
_REMAINS = Pair(accepted("remainder"), frozenset(), numbers={U32: "positive", I8: "any"}, with_float={I32: F32})
_BITS = Pair(accepted("bitwise_and"), frozenset())
_POWERS = Pair(REALS, frozenset(), numbers={I32: "power", U32: "power", U16: "power"})
_PAIRS: Mapping[str, Pair] = {
    **dict.fromkeys(("add", "subtract", "logical_and", "logical_or", "logical_xor"), _ADDS),
    "multiply": _MULTIPLIES,
    "divide": _DIVIDES,
    **dict.fromkeys(("eq", "ne", "ge", "gt", "le", "lt"), _COMPARES),
    **dict.fromkeys(("maximum", "minimum"), _ORDERS),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "logical_left_shift"), _BITS),
    "logical_right_shift": _SHIFTS,
    "remainder": _REMAINS,
    "pow": _POWERS,
}


def _binary(pair: Pair) -> Rule:
    def rule(given: Given) -> list[Result]:
        a, b = list(given.values.values())[:2]
        given.on_devices(a, b)
        if not isinstance(a, Form) or not isinstance(b, Form):
            results = _with_number(given, pair, a, b)
        else:
            results = [_of_tensors(given, pair, a, b)]
        if (dtype := given["dtype"]) is not None:
            whole = pair is _DIVIDES and any(f.dtype == I32 for f in given.tensors())
            real = "For integer division, supported output dtype is FLOAT32"
            kinds = {F32, I32} if given["rounding_mode"] in _ROUNDING else {F32}
            given.require(not whole or dtype in kinds, "of integers gives FLOAT32", real)
            results = [Result(dtype, r.layout, r.computed or r.dtype) for r in results]
        _check_rounding(given, pair, results[0].dtype)
        return checked(given, results)

    return rule


_ROUNDING = frozenset({"floor", "trunc"})


def _check_rounding(given: Given, pair: Pair, dtype: str) -> None:
    mode = given["rounding_mode"]
    operands = list(given.values.values())[:2]
    whole = all(x.dtype == I32 if isinstance(x, Form) else type(x) is int for x in operands)
    given.require(
        mode is None or mode in _ROUNDING or whole,
        f"rounds by 'floor' or 'trunc', not by {mode!r}",
        "Incorrect rounding mode (expected None, 'trunc', or 'floor')",
    )
    fast = given["fast_and_approximate_mode"]
    if pair is _ADDS and fast is False and given.callee not in _LOGICAL:
        given.require(
            dtype == BF16,
            "without fast_and_approximate_mode gives BFLOAT16 only",
            "only supported for a BFLOAT16 output",
        )
    if pair is _DIVIDES and fast and all(x.dtype == I32 for x in given.tensors()):
        given.require(
            given["rounding_mode"] is not None,
            "of integers takes no fast_and_approximate_mode",
            "Integer Division does not support fast_and_approximate_mode=true",
        )


_LOGICAL = frozenset({"ttnn.logical_and", "ttnn.logical_or", "ttnn.logical_xor"})


def _of_tensors(given: Given, pair: Pair, a: Form, b: Form) -> Result:
    layout = ROWS if a.layout == b.layout == ROWS else TILE
    _broadcast(given, a.shape, b.shape)
    if a.dtype == b.dtype:
        given.types(a, pair.types, "operands")
        dtype = (pair.gives or {}).get(a.dtype, a.dtype)
        if a.dtype == I32 and given["rounding_mode"] in _ROUNDING:
            dtype = I32
        return Result(dtype, layout, dtype)
    dtype = _mixed(pair, a.dtype, b.dtype)
    if dtype is None:
        given.refuse(
            f"does not mix {a.dtype} and {b.dtype}; ttnn.typecast one of them",
            "unsupported data type combination",
        )
    return Result(dtype, layout, dtype)


def _mixed(pair: Pair, a: str, b: str) -> str | None:
    """Returns the result's element type of operands of different types; None if they cannot be mixed."""
    if "floats" in pair.mixes and {a, b} <= REALS:
        return a
    if "numbers" in pair.mixes and (a in REALS and b in WORDS):
        return a
    if "numbers" in pair.mixes and (a in WORDS and b in REALS):
        return BF16 if b in BLOCKS else b
    if "shorts" in pair.mixes and {a, b} == {U16, U8}:
        return U16
    return None


def _broadcast(given: Given, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for m, n in zip(reversed(a), reversed(b), strict=False):
        given.require(
            m == n or 1 in (m, n),
            f"broadcasts dims of size 1 only, but the shapes are {list(a)} and {list(b)}",
            "Broadcasting rule violation",
        )


def _with_number(given: Given, pair: Pair, a: Any, b: Any) -> list[Result]:
    x: Form = a if isinstance(a, Form) else b
    number = b if isinstance(a, Form) else a
    extra: frozenset[str] = frozenset(pair.numbers or {}) if isinstance(a, Form) else frozenset()
    if pair is _DIVIDES and isinstance(number, float):
        extra |= {U32}
    wanted = (pair.numbers or {}).get(x.dtype, "any")
    if pair is _REMAINS and given["dtype"] is not None:
        # With a type for the result another path is taken, which has the types of two tensors.
        extra, wanted = frozenset[str](), "integral" if wanted == "positive" else wanted
    allowed = pair.types | extra
    allowed -= {d for d, rule in (pair.numbers or {}).items() if rule == "none"}
    given.types(x, allowed, "the tensor beside a number")
    whole, real = float(number).is_integer(), isinstance(number, float)
    if not real and not -(2**31) <= number < 2**32:
        # An integer of more than 32 bits goes as a float of 32 bits.
        number, real = float(np.float32(number)), True
    low, end = _RANGES.get(x.dtype, (-inf, inf))
    good = {
        "any": True,
        # An integer is taken modulo the range of the type.
        "whole": whole and (not real or low <= number < end),
        "integral": whole,
        "float": real,
        "positive": not real and number > 0,
        "power": whole and number >= 0,
    }[wanted]
    if not isinstance(a, Form) and pair in (_DIVIDES, _POWERS):
        good = x.dtype in pair.types or (pair is _DIVIDES and real)
    if pair is _POWERS and x.dtype in WHOLE:
        good = good and (x.is_tile or number < 2)
    if pair is _BITS:
        good = good and not real and number < 2**31
    given.require(good, f"does not take the number {number} beside {x.dtype}", "scalar does not fit the element type")
    dtype = (pair.gives or {}).get(x.dtype, x.dtype)
    if x.dtype == I32 and not real and given["rounding_mode"] in _ROUNDING:
        dtype = I32
    if real:
        dtype = (pair.with_float or {}).get(x.dtype, dtype)
    return [Result(dtype, x.layout, dtype)]


# --- others ----------------------------------------------------------------------------------------------------------


def _where(given: Given) -> list[Result]:
    condition, first, second = list(given.values.values())[:3]
    tensors = [x for x in (first, second) if isinstance(x, Form)]
    numbers = [x for x in (first, second) if not isinstance(x, Form)]
    given.on_devices(condition, *tensors)
    for x in tensors:
        _broadcast(given, condition.shape, x.shape)
    if len(tensors) == 2:
        _broadcast(given, first.shape, second.shape)
        given.require(
            not condition.is_empty, "takes three tensors with elements only", "Broadcasting rule violation at dimension"
        )
        given.tiles(condition)
        return [Result(first.dtype, TILE, first.dtype)]
    if not tensors:
        given.types(condition, REALS | WORDS, "the condition beside numbers")
        dtype = condition.dtype if condition.dtype in REALS else F32
        return [Result(dtype, condition.layout, dtype)]
    (value,) = tensors
    given.types(value, REALS | WORDS, "the value beside a number")
    low, end = _RANGES.get(value.dtype, (-inf, inf))
    number = float(np.float32(numbers[0]))
    given.require(
        (number.is_integer() and low <= number < end) or value.dtype in REALS,
        f"does not take {numbers[0]} beside {value.dtype}",
        "scalar does not fit",
    )
    if condition.dtype != value.dtype:
        mixed = condition.dtype not in REALS and value.dtype in REALS
        given.require(mixed, "takes a condition of the value's element type", "Mixed dtype is not supported")
    layout = ROWS if condition.layout == value.layout == ROWS else TILE
    return [Result(value.dtype, layout, value.dtype)]


def _clamp(given: Given) -> list[Result]:
    x, *bounds = list(given.values.values())[:3]
    given.on_devices(x, *bounds)
    tensors: list[Form] = [b for b in bounds if isinstance(b, Form)]
    given.require(
        any(b is not None for b in bounds), "takes one bound at least", "Only one of 'min' or 'max' can be None"
    )
    if tensors:
        given.types(x, REALS | WORDS)
        rows = not any(f.is_tile for f in (x, *tensors))
        given.require(
            not rows or len(tensors) > 1, "takes one bound of TILE layout", "Ternary operation requires Tile layout"
        )
        for bound in tensors:
            _broadcast(given, x.shape, bound.shape)
            given.require(bound.dtype == x.dtype, "takes bounds of the operand's element type", "unsupported data type")
        return [Result(x.dtype, ROWS if all(f.layout == ROWS for f in (x, *tensors)) else TILE)]
    given.types(x, REALS | {I32, I8})
    numbers = [b for b in bounds if b is not None]
    kinds = {isinstance(b, float) for b in numbers}
    given.require(len(kinds) == 1, "takes bounds of one type", "std::get: wrong index")
    return like(x, F32 if x.dtype == I32 and True in kinds else x.dtype)


def _typecast(given: Given) -> list[Result]:
    x, dtype = given.tensors()[0], given["dtype"]
    return checked(given, [Result(dtype, x.layout)])


UNARY: Mapping[str, Rule] = {
    **{f"ttnn.{name}": _unary(accepted(name)) for name in by_definition(1)},
    **{f"ttnn.{name}": rule for rule, names in _BY_TYPES.items() for name in names.split()},
}
PAIRS: Mapping[str, Rule] = {
    **{f"ttnn.{name}": _binary(Pair(accepted(name), frozenset())) for name in by_definition(2) if name != "gelu_bw"},
    **{f"ttnn.{name}": _binary(pair) for name, pair in _PAIRS.items()},
}
RULES: Mapping[str, Rule] = {
    **UNARY,
    **PAIRS,
    "ttnn.where": _where,
    "ttnn.clamp": _clamp,
    "ttnn.typecast": _typecast,
}
