"""The bits of numbers: casts that keep them, counts, shifts, wide products.

TTIR lacks a cast that keeps the bits, so a float is put together from sign, exponent and mantissa, all steps exact.
Subnormal numbers may be zero, as on devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.dialects.ttir.elementwise import upper_half
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.untyped import DType, jnp, lax
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Function, Params, decomposed
from jaxmesh.passes.flatten.index_arithmetic import is_float, is_integer, width

RULES: Rules[Rule] = Rules()

_FLOAT = np.dtype(np.float32)


@RULES.add("bitcast_convert_type")
def _bitcast(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value | Sequence[Value]:
    (x,), dtype = xs, b.result(eqn)[1]
    old = b.dtype(x)
    if old == dtype:
        return x
    if is_integer(old) and is_integer(dtype):
        if width(old) == width(dtype):
            return b.cast(x, dtype)
        if max(width(old), width(dtype)) <= 32:
            return b.composed(_split_words if width(old) > width(dtype) else _join, [x], {"new_dtype": dtype})
    has_words = old.itemsize == dtype.itemsize and 8 * old.itemsize in (16, 32)
    if is_float(old) and is_integer(dtype) and has_words:
        (words,) = b.composed(to_bits, [x], {})
        bits = b.cast(b.cast(words, f"uint{8 * old.itemsize}"), dtype)
        b.floats[bits] = x
        return bits
    if not (is_integer(old) and is_float(dtype) and has_words):
        raise missing(eqn, f"TTIR casts numbers, not bits, and {old} to {dtype} cannot be put together from casts")
    known = _known_float(b, x, dtype)
    return known if known is not None else _float(b, b.cast(x, f"uint{8 * old.itemsize}"), dtype)


def _split_words(params: Params, x: jax.Array) -> jax.Array:
    """Returns the integers packed in each one, lowest bits first, along a new last dim."""
    new, bits = params["new_dtype"], width(params["new_dtype"])
    words = x.astype(f"uint{width(x.dtype)}").astype(jnp.uint32)
    parts = [words >> jnp.uint32(bits * i) if i else words for i in range(width(x.dtype) // bits)]
    return jnp.stack([(p & ((1 << bits) - 1)).astype(f"uint{bits}").astype(new) for p in parts], -1)


def _join(params: Params, x: jax.Array) -> jax.Array:
    """Returns integers joined from the integers along the last dim, lowest bits first."""
    bits, new = width(x.dtype), params["new_dtype"]
    words = x.astype(f"uint{bits}").astype(jnp.uint32)
    parts = [words[..., i] << jnp.uint32(bits * i) if i else words[..., i] for i in range(x.shape[-1])]
    return functools.reduce(lax.bitwise_or, parts).astype(f"uint{width(new)}").astype(new)


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
            return b.composed(cut, [part], {"bits": cleared})[0]
    return None


def _float(b: Builder, x: Value, dtype: DType) -> Value:
    info = jnp.finfo(dtype)
    mantissa, bias = int(info.nmant), int(info.maxexp) - 1
    fraction = _in_one_to_two(b, x, mantissa, bias)
    if fraction is not None:
        return b.cast(b.with_number("add", fraction, 1), dtype)
    return b.composed(from_bits, [x], {"dtype": dtype})[0]


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
    return b.with_number("multiply", b.cast(first, _FLOAT), 2.0**-mantissa)


_LEAST, _MOST = _FLOAT.type(2.0**-126), np.finfo(np.float32).max
# Two to the power of -125 up to 126: a guess that is one off is still a normal number's.
_EDGE = 125
_SCALES = [2.0**-e for e in range(-_EDGE, _EDGE + 2)]


def _look_up(index: jax.Array, numbers: Sequence[float]) -> jax.Array:
    """Returns float32 numbers looked up by an index in range; a computed power of two may be inexact."""
    return jnp.take(np.array(numbers, _FLOAT)[:, None], index, axis=0, mode="clip")[..., 0]


# --- a float as a power of two and a number from 1 to 2 --------------------------------------------------------------


class _Split(NamedTuple):
    """A float of at least 2^-126 as a power of two and a number from 1 to 2, but for a guess that is one off.

    Attributes:
      index: the guessed exponent, from -125 on, as the index of its scale.
      scale: two to the power of the negated exponent.
      scaled: the float times the scale.
      is_big: True where the guess was too small.
      is_small: True where the guess was too large.
    """

    index: Any
    scale: jax.Array
    scaled: jax.Array
    is_big: jax.Array
    is_small: jax.Array

    def fix(self, x: jax.Array, factor: float) -> jax.Array:
        """Returns `x` times `factor` where the guess was too small, divided by it where it was too large."""
        return jnp.where(self.is_big, x * factor, jnp.where(self.is_small, x * (1 / factor), x))


def _split(size: jax.Array) -> _Split:
    """Splits a size, clamped to normal numbers; guesses its exponent by its logarithm."""
    clamped = lax.clamp(_LEAST, size, _MOST)
    exponent = jnp.floor(jnp.log(clamped) * (1 / math.log(2)))
    exponent = lax.clamp(_FLOAT.type(-_EDGE), exponent, _FLOAT.type(_EDGE + 1))
    index = exponent.astype(jnp.int32) + _EDGE
    scale = _look_up(index, _SCALES)
    scaled = clamped * scale
    return _Split(index, scale, scaled, scaled >= 2, scaled < 1)


# --- bits ------------------------------------------------------------------------------------------------------------


def cut(params: Params, x: jax.Array) -> jax.Array:
    """Clears the last bits of the mantissas of 32-bit floats, as many as the parameter `bits`."""
    size, kept = abs(x), 2.0 ** (23 - params["bits"])
    split = _split(size)
    near_one = split.fix(split.scaled, 0.5) * kept
    back = split.fix(jnp.floor(near_one) * (1 / kept), 2.0) / split.scale
    normal = jnp.where(size < _LEAST, x * 0, jnp.where(x < 0, -back, back))
    return jnp.where(size <= _MOST, normal, x)


def to_bits(params: Params, x: jax.Array) -> jax.Array:
    """Returns the bits of floats of 32 or 16 bits, as uint32; every NaN has the usual bits."""
    info, x = jnp.finfo(x.dtype), x.astype(_FLOAT)
    mantissa, bias, least = int(info.nmant), int(info.maxexp) - 1, int(info.minexp)
    size = abs(jnp.where(x != x, 1, x))
    split = _split(size)
    behind = split.fix(split.scaled, 0.5) - 1
    exponent = split.index + split.is_big.astype(jnp.int32) - split.is_small.astype(jnp.int32) + (bias - _EDGE)
    normal = exponent.astype(jnp.uint32) * (1 << mantissa) + (behind * 2.0**mantissa).astype(jnp.uint32)
    # In two steps: the power itself may be too large.
    tiny = size * 2.0**-least * 2.0**mantissa
    below = jnp.minimum(tiny, 2.0**mantissa).astype(jnp.uint32)
    infinite = ((1 << (int(info.bits) - 1 - mantissa)) - 1) << mantissa
    bits = jnp.where(size < 2.0**least, below, normal)
    bits = jnp.where(size == np.inf, jnp.uint32(infinite), bits)
    bits = jnp.where(x != x, jnp.uint32(infinite | 1 << (mantissa - 1)), bits)
    # The reciprocal of a zero has its sign.
    negative = jnp.where(x == 0, x**-1 < 0, x < 0)
    return jnp.where(negative, bits + jnp.uint32(1 << (int(info.bits) - 1)), bits)


def from_bits(params: Params, x: jax.Array) -> jax.Array:
    """Returns the floats of the type `dtype` with the bits of unsigned integers."""
    dtype, word = params["dtype"], x.astype(jnp.uint32)
    info = jnp.finfo(dtype)
    mantissa, bias = int(info.nmant), int(info.maxexp) - 1
    # Integers of fewer than 32 bits are computed in 32, where TTIR's ops on bits work.
    exponent = word >> mantissa & (1 << int(info.bits) - 1 - mantissa) - 1
    fraction = (word & (1 << mantissa) - 1).astype(_FLOAT) * 2.0**-mantissa
    sign, exponent = word >> int(info.bits) - 1, exponent.astype(jnp.int32)
    power = _look_up(exponent, [*(2.0 ** (max(e, 1) - bias) for e in range(2 * bias + 1)), np.inf])
    size = (jnp.where(exponent != 0, _FLOAT.type(1), _FLOAT.type(0)) + fraction) * power
    size = jnp.where((exponent == 2 * bias + 1) & (fraction != 0), jnp.nan, size)
    return jnp.where(sign != 0, -size, size).astype(dtype)


@decomposed(RULES, "shift_right_arithmetic")
def _shift_right_arithmetic(params: Params, x: jax.Array, by: jax.Array) -> jax.Array:
    """Returns shifted numbers; a negative number is shifted as its complement, so that ones enter."""
    dtype = x.dtype
    # The type of the bits counts, not the type of the numbers; 4 bits are computed in a byte.
    x = x.astype(f"int{width(dtype)}")
    x, by = (v.astype(f"i{dtype.itemsize}") for v in jnp.broadcast_arrays(x, by))
    negative = x < 0
    moved = lax.shift_right_logical(jnp.where(negative, ~x, x), by)
    return jnp.where(negative, ~moved, moved).astype(dtype)


def _on_words(*names: str) -> Callable[[Function], Function]:
    """Adds a function of integers of up to 32 bits as the rule of each name."""

    def enter(function: Function) -> Function:
        @RULES.add(*names)
        def rule(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
            dtype = b.dtype(xs[0])
            if dtype.itemsize > np.dtype(np.uint32).itemsize:
                raise missing(eqn, f"TTIR's ops on bits are composed for words of up to 32 bits, not for {dtype}")
            return b.composed(function, xs, eqn.params)

        return function

    return enter


# --- counting bits ---------------------------------------------------------------------------------------------------


def _as_word(x: jax.Array, bits: int = 0) -> jax.Array:
    """Returns the bits, or the bits of whole bytes, as an unsigned word with leading zeros."""
    return x.astype(f"uint{bits or 8 * x.dtype.itemsize}").astype(jnp.uint32)


def _ones(x: jax.Array) -> jax.Array:
    """Counts the bits that are set: in pairs, in fours, in eights, which a product adds up."""
    x = x - (x >> 1 & 0x55555555)
    x = (x & 0x33333333) + (x >> 2 & 0x33333333)
    return (x + (x >> 4) & 0x0F0F0F0F) * 0x01010101 >> 24


@_on_words("population_count")
def _population_count(params: Params, x: jax.Array) -> jax.Array:
    # XLA counts the bits of the byte that holds a number of 4 bits.
    return _ones(_as_word(x)).astype(x.dtype)


@_on_words("clz")
def _clz(params: Params, x: jax.Array) -> jax.Array:
    bits = width(x.dtype)
    word = _as_word(x, bits)
    for by in (1, 2, 4, 8, 16):
        if by < bits:
            # Every bit below the highest one is set, too.
            word = word | word >> by
    return (bits - _ones(word)).astype(x.dtype)


# --- wide products ---------------------------------------------------------------------------------------------------


@_on_words("mulhi")
def _mulhi(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    dtype = x.dtype
    if dtype.itemsize < 4:
        wide = x.astype(f"{dtype.kind}4") * y.astype(f"{dtype.kind}4")
        return (wide.astype(jnp.uint32) >> 8 * dtype.itemsize).astype(dtype)
    return upper_half(x, y)
