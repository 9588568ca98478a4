"""Numbers from their bits.

TTIR has no cast that keeps the bits, so a float is put together from sign, exponent and mantissa, all steps exact.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.float_bits import cut, to_bits
from jaxmesh.passes.flatten.index_arithmetic import INDEX, compare, is_float, is_integer, select, width
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_FLOAT = np.dtype(np.float32)
_jnp: Any = jax.numpy


@RULES.add("bitcast_convert_type")
def _bitcast(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    (x,), (shape, kind) = xs, b.result(eqn)
    old = b.dtype(x)
    if old == kind:
        return x
    if is_integer(old) and is_integer(kind):
        if width(old) == width(kind):
            return b.cast(x, kind)
        if max(width(old), width(kind)) <= 32:
            return (_split if width(old) > width(kind) else _join)(b, x, shape, kind)
    if is_float(old) and is_integer(kind) and old.itemsize == kind.itemsize and 8 * old.itemsize in (16, 32):
        made = b.cast(b.cast(to_bits(b, x), f"uint{8 * old.itemsize}"), kind)
        b.floats[made] = x
        return made
    if not is_integer(old) or not is_float(kind) or old.itemsize != kind.itemsize or 8 * old.itemsize not in (16, 32):
        raise missing(eqn, f"TTIR casts numbers, not bits, and {old} to {kind} cannot be put together from casts")
    known = _known_float(b, x, kind)
    return known if known is not None else _float(b, b.cast(x, f"uint{8 * old.itemsize}"), kind)


def _split(b: Builder, x: Value, shape: Sequence[int], kind: np.dtype[np.generic]) -> Value:
    """Returns the integers packed in each one, lowest bits first, along a new last dim."""
    bits = width(kind)
    words = b.cast(b.cast(x, f"uint{width(b.dtype(x))}"), np.uint32)
    shifted = (b.with_number("logical_right_shift", words, bits * i) if i else words for i in range(shape[-1]))
    parts = [b.with_number("bitwise_and", v, (1 << bits) - 1) for v in shifted]
    rows = [b.reshape(b.cast(b.cast(p, f"uint{bits}"), kind), (*shape[:-1], 1)) for p in parts]
    return b.concat(rows, len(shape) - 1)


def _join(b: Builder, x: Value, shape: Sequence[int], kind: np.dtype[np.generic]) -> Value:
    """Packs the integers along the last dim into one, lowest bits first."""
    bits, whole = width(b.dtype(x)), b.shape(x)
    words = b.cast(b.cast(x, f"uint{bits}"), np.uint32)
    begins = [0] * len(shape)
    parts = [b.reshape(b.slice(words, [*begins, i], [*shape, i + 1]), shape) for i in range(whole[-1])]
    moved = [b.with_number("logical_left_shift", p, bits * i) for i, p in enumerate(parts) if i]
    made = functools.reduce(lambda low, high: b.same("bitwise_or", [low, high]), moved, parts[0])
    return b.cast(b.cast(made, f"uint{width(kind)}"), kind)


def _known_float(b: Builder, x: Value, kind: np.dtype[np.generic]) -> Value | None:
    """Returns the float with these bits, possibly with its last bits cleared; None if it is not known."""
    whole = b.floats.get(x)
    if whole is not None and b.dtype(whole) == kind:
        return whole
    joint = b.maker(x, "bitwise_and")
    if joint is None or kind != _FLOAT:
        return None
    for operand, mask in (tuple(joint.used), tuple(joint.used)[::-1]):
        part, number = b.floats.get(operand), b.fill(mask)
        if part is None or number is None:
            continue
        cleared = (~int(number) & 0xFFFFFFFF).bit_length()
        if int(number) & 0xFFFFFFFF == 0xFFFFFFFF >> cleared << cleared and 0 < cleared < 23 and b.dtype(part) == kind:
            return cut(b, part, cleared)
    return None


def _float(b: Builder, x: Value, kind: np.dtype[np.generic]) -> Value:
    info = _jnp.finfo(kind)
    width, mantissa, bias = int(info.bits), int(info.nmant), int(info.maxexp) - 1
    fraction = _in_one_to_two(b, x, mantissa, bias)
    if fraction is not None:
        return b.cast(b.with_number("add", fraction, 1), kind)
    # What is shorter than a word is computed in one, where TTIR's ops on bits work.
    word = b.cast(x, np.uint32)
    fraction = _fraction(b, b.with_number("bitwise_and", word, (1 << mantissa) - 1), mantissa)
    exponents = (1 << (width - 1 - mantissa)) - 1
    exponent = b.cast(
        b.with_number("bitwise_and", b.with_number("logical_right_shift", word, mantissa), exponents), INDEX
    )
    normal = compare(b, "ne", exponent, b.full((), 0, INDEX))
    one = select(b, normal, b.full(b.shape(x), 1, _FLOAT), b.full((), 0, _FLOAT))
    made = b.same("multiply", [b.same("add", [one, fraction]), _power(b, exponent, exponents, bias)])
    special = b.same("logical_and", [
        compare(b, "eq", exponent, b.full((), exponents, INDEX)),
        compare(b, "ne", fraction, b.full((), 0, _FLOAT)),
    ])  # fmt: skip
    made = select(b, special, b.full((), np.nan, _FLOAT), made)
    negative = compare(b, "ne", b.with_number("logical_right_shift", word, width - 1), b.full((), 0, np.uint32))
    return b.cast(select(b, negative, b.same("neg", [made]), made), kind)


def _in_one_to_two(b: Builder, x: Value, mantissa: int, bias: int) -> Value | None:
    """Returns the fraction of a float of the exponent of 1 and shifted bits, as random numbers have it; else None."""
    joint = b.maker(x, "bitwise_or")
    if joint is None:
        return None
    first, second = joint.used
    if b.fill(first) is not None:
        first, second = second, first
    shift = b.maker(first, "logical_right_shift")
    if b.fill(second) != bias << mantissa or shift is None:
        return None
    _, by = shift.used
    if b.fill(by) != 8 * b.dtype(x).itemsize - mantissa:
        return None
    return _fraction(b, first, mantissa)


def _fraction(b: Builder, x: Value, mantissa: int) -> Value:
    return b.with_number("multiply", b.cast(x, _FLOAT), 2.0**-mantissa)


def _power(b: Builder, exponent: Value, last: int, bias: int) -> Value:
    """Looks up two to the power of an exponent field; a computed power may be inexact."""
    table = np.array([2.0 ** (max(e, 1) - bias) for e in range(last)] + [np.inf], _FLOAT)[:, None]
    shape = b.shape(exponent)
    flat = exponent if shape else b.reshape(exponent, (1,))
    found = b.op("embedding", [flat, b.constant(table)], (*b.shape(flat), 1), _FLOAT)
    return b.reshape(found, shape)
