"""The bits of floats by arithmetic: TTIR has no cast that keeps them. Subnormal numbers may be zero, as on devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.passes.flatten.builder import Builder
from jaxmesh.passes.flatten.index_arithmetic import INDEX, compare, select

_jnp: Any = jax.numpy
_FLOAT = np.dtype(np.float32)
_WORD = np.dtype(np.uint32)
_LEAST, _MOST = 2.0**-126, float(np.finfo(np.float32).max)
# Two to the power of -125 up to 126: a guess that is one off is still a normal number's.
_EDGE = 125


@dataclass(frozen=True, slots=True)
class _Split:
    """A float of at least 2^-126 as a power of two and a number from 1 to 2: `size * scale * fix`."""

    scale: Value
    exponent: Value
    is_big: Value
    is_small: Value


def _test(b: Builder, name: str, x: Value, number: float) -> Value:
    return compare(b, name, x, b.full((), number, b.dtype(x)))


def _split(b: Builder, size: Value) -> _Split:
    """Guesses the exponent by a logarithm, which is off by one at the most, and returns the correction, too."""
    clamped = b.same("clamp_scalar", [size], min=_LEAST, max=_MOST)
    guess = b.same("floor", [b.with_number("multiply", b.same("log", [clamped]), 1 / np.log(2))])
    guess = b.cast(b.same("clamp_scalar", [guess], min=-_EDGE, max=_EDGE + 1), INDEX)
    table = np.array([2.0**-e for e in range(-_EDGE, _EDGE + 2)], _FLOAT)[:, None]
    places = b.with_number("add", guess, _EDGE)
    flat = places if b.shape(places) else b.reshape(places, (1,))
    scale = b.op("embedding", [flat, b.constant(table)], (*b.shape(flat), 1), _FLOAT)
    scale = b.reshape(scale, b.shape(size))
    made = b.same("multiply", [clamped, scale])
    return _Split(scale, guess, _test(b, "ge", made, 2), _test(b, "lt", made, 1))


def _fix(b: Builder, split: _Split, x: Value, factor: float) -> Value:
    """Multiplies by `factor` where the guessed exponent was too small, and divides by it where it was too large."""
    less = select(b, split.is_small, b.with_number("multiply", x, 1 / factor), x)
    return select(b, split.is_big, b.with_number("multiply", x, factor), less)


def cut(b: Builder, x: Value, bits: int) -> Value:
    """Clears the last bits of the mantissas of 32-bit floats."""
    size = b.same("abs", [x])
    split = _split(b, size)
    kept = 2.0 ** (23 - bits)
    near_one = b.with_number("multiply", _fix(b, split, b.same("multiply", [x, split.scale]), 0.5), kept)
    whole = b.with_number("multiply", b.same("trunc", [near_one]), 1 / kept)
    back = b.same("div", [_fix(b, split, whole, 2.0), split.scale])
    normal = select(b, _test(b, "lt", size, _LEAST), b.with_number("multiply", x, 0), back)
    return select(b, _test(b, "le", size, _MOST), normal, x)


def to_bits(b: Builder, x: Value) -> Value:
    """Returns the bits of floats of 32 or 16 bits, as uint32; every NaN has the usual bits."""
    info = _jnp.finfo(b.dtype(x))
    mantissa, bias, least = int(info.nmant), int(info.maxexp) - 1, int(info.minexp)
    x = b.cast(x, _FLOAT)
    is_nan = compare(b, "ne", x, x)
    size = b.same("abs", [select(b, is_nan, b.full((), 1, _FLOAT), x)])
    split = _split(b, size)
    clamped = b.same("clamp_scalar", [size], min=_LEAST, max=_MOST)
    behind = b.with_number("subtract", _fix(b, split, b.same("multiply", [clamped, split.scale]), 0.5), 1)
    one = [b.cast(v, INDEX) for v in (split.is_big, split.is_small)]
    exponent = b.same("subtract", [b.same("add", [split.exponent, one[0]]), one[1]])
    field = b.with_number("multiply", b.cast(b.with_number("add", exponent, bias), _WORD), 1 << mantissa)
    normal = b.same("add", [field, b.cast(b.with_number("multiply", behind, 2.0**mantissa), _WORD)])
    # In two steps: the power itself may be too large.
    tiny = b.with_number("multiply", b.with_number("multiply", size, 2.0**-least), 2.0**mantissa)
    below = b.cast(b.same("minimum", [tiny, b.full((), 2.0**mantissa, _FLOAT)]), _WORD)
    made = select(b, _test(b, "lt", size, 2.0**least), below, normal)
    infinite = ((1 << (int(info.bits) - 1 - mantissa)) - 1) << mantissa
    made = select(b, _test(b, "eq", size, np.inf), b.full((), infinite, _WORD), made)
    made = select(b, is_nan, b.full((), infinite | 1 << (mantissa - 1), _WORD), made)
    return _make_signed(b, x, made, 1 << (int(info.bits) - 1))


def _make_signed(b: Builder, x: Value, made: Value, sign: int) -> Value:
    """Adds the bit of the sign; the reciprocal of a zero has its sign."""
    over = b.same("reciprocal", [x])
    below = (_test(b, "lt", v, 0) for v in (over, x))
    negative = select(b, _test(b, "eq", x, 0), *below)
    return select(b, negative, b.with_number("add", made, sign), made)
