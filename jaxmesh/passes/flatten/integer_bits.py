"""Primitives on the bits of integers that TTIR has no op for, composed of those it has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.index_arithmetic import width
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_WORD = np.dtype(np.uint32)


@RULES.add("shift_right_arithmetic")
def _shift_right_arithmetic(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    x, by = xs
    shape, dtype = b.result(eqn)
    if dtype.kind == "u":
        # What counts is the type of the bits, not of the numbers.
        signed = np.dtype(f"i{dtype.itemsize}")
        return b.cast(_shift(b, b.cast(x, signed), b.cast(by, signed), shape), dtype)
    return _shift(b, x, by, shape)


def _shift(b: Builder, x: Value, by: Value, shape: tuple[int, ...]) -> Value:
    """Shifts a negative number by shifting its complement, so that ones enter from the left."""
    dtype = b.dtype(x)
    negative = b.op("lt", [x, b.full((), 0, dtype)], b.shape(x), np.bool_)
    bits = b.op("where", [negative, b.same("bitwise_not", [x]), x], b.shape(x), dtype)
    moved = b.op("logical_right_shift", [bits, by], shape, dtype)
    return b.op("where", [negative, b.same("bitwise_not", [moved]), moved], shape, dtype)


# --- counting bits ---------------------------------------------------------------------------------------------------


def _as_word(b: Builder, eqn: Eqn, x: Value, bits: int = 0) -> Value:
    """Returns the bits, or those of whole bytes, as an unsigned word with leading zeros."""
    dtype = b.dtype(x)
    if dtype.itemsize > 4:
        raise missing(eqn, f"TTIR's ops on bits are composed for words of up to 32 bits, not for {dtype}")
    return b.cast(b.cast(x, f"uint{bits or 8 * dtype.itemsize}"), _WORD)


def _ones(b: Builder, x: Value) -> Value:
    """Counts the bits that are set: in pairs, in fours, in eights, which a product adds up."""
    odd = b.with_number("bitwise_and", b.with_number("logical_right_shift", x, 1), 0x55555555)
    x = b.same("subtract", [x, odd])
    low, high = (b.with_number("bitwise_and", v, 0x33333333) for v in (x, b.with_number("logical_right_shift", x, 2)))
    x = b.same("add", [low, high])
    x = b.with_number("bitwise_and", b.same("add", [x, b.with_number("logical_right_shift", x, 4)]), 0x0F0F0F0F)
    return b.with_number("logical_right_shift", b.with_number("multiply", x, 0x01010101), 24)


@RULES.add("population_count")
def _population_count(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    # XLA counts those of the byte that holds a number of 4 bits.
    return b.cast(_ones(b, _as_word(b, eqn, xs[0])), b.result(eqn)[1])


@RULES.add("clz")
def _clz(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    bits = width(b.dtype(xs[0]))
    x = _as_word(b, eqn, xs[0], bits)
    for by in (1, 2, 4, 8, 16):
        if by < bits:
            # Every bit below the highest one is set, too.
            x = b.same("bitwise_or", [x, b.with_number("logical_right_shift", x, by)])
    zeros = b.op("subtract", [b.full((), bits, _WORD), _ones(b, x)], b.shape(x), _WORD)
    return b.cast(zeros, b.result(eqn)[1])


# --- wide products ---------------------------------------------------------------------------------------------------


@RULES.add("mulhi")
def _mulhi(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    shape, dtype = b.result(eqn)
    x, y = (b.op("add", [v, b.full(shape, 0, dtype)], shape, dtype) if b.shape(v) != shape else v for v in xs)
    if dtype.itemsize < 4:
        wide = np.dtype(f"{dtype.kind}4")
        joint = b.same("multiply", [b.cast(x, wide), b.cast(y, wide)])
        return b.cast(b.with_number("logical_right_shift", b.cast(joint, _WORD), 8 * dtype.itemsize), dtype)
    high = _upper(b, _as_word(b, eqn, x), _as_word(b, eqn, y))
    if dtype.kind == "u":
        return b.cast(high, dtype)
    # A negative number is its bits less 2^32.
    out = b.cast(high, dtype)
    for one, other in ((x, y), (y, x)):
        negative = b.op("lt", [one, b.full((), 0, dtype)], shape, np.bool_)
        out = b.same("subtract", [out, b.op("where", [negative, other, b.full((), 0, dtype)], shape, dtype)])
    return out


def _upper(b: Builder, x: Value, y: Value) -> Value:
    """Returns the upper word of a product of words, by halves of 16 bits."""
    (x_low, x_high), (y_low, y_high) = ((_low(b, v), _high(b, v)) for v in (x, y))
    low = b.same("multiply", [x_low, y_low])
    first = b.same("add", [b.same("multiply", [x_high, y_low]), _high(b, low)])
    second = b.same("add", [b.same("multiply", [x_low, y_high]), _low(b, first)])
    top = b.same("add", [b.same("multiply", [x_high, y_high]), _high(b, first)])
    return b.same("add", [top, _high(b, second)])


def _low(b: Builder, x: Value) -> Value:
    return b.with_number("bitwise_and", x, 0xFFFF)


def _high(b: Builder, x: Value) -> Value:
    return b.with_number("logical_right_shift", x, 16)
