"""The bits of floats by arithmetic: TTIR lacks a cast that keeps them. Subnormal numbers may be zero, as on devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.passes.flatten.builder import Builder
from jaxmesh.passes.flatten.decompositions import Params

_jnp: Any = jax.numpy
_lax: Any = jax.lax
_FLOAT: Any = np.dtype(np.float32)
_LEAST, _MOST = _FLOAT.type(2.0**-126), np.finfo(np.float32).max
# Two to the power of -125 up to 126: a guess that is one off is still a normal number's.
_EDGE = 125
_SCALES = [2.0**-e for e in range(-_EDGE, _EDGE + 2)]


def look_up(b: Builder, index: Value, numbers: Sequence[float]) -> Value:
    """Returns float32 numbers looked up by an index in range; a computed power of two may be inexact."""
    flat = index if b.shape(index) else b.reshape(index, (1,))
    table = b.constant(np.array(numbers, _FLOAT)[:, None])
    return b.reshape(b.op("embedding", [flat, table], (*b.shape(flat), 1), _FLOAT), b.shape(index))


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
    scale: Any
    scaled: Any
    is_big: Any
    is_small: Any

    def fix(self, x: Any, factor: float) -> Any:
        """Returns `x` times `factor` where the guess was too small, divided by it where it was too large."""
        return _jnp.where(self.is_big, x * factor, _jnp.where(self.is_small, x * (1 / factor), x))


def _split_of(clamped: Any, index: Any, scale: Any) -> _Split:
    scaled = clamped * scale
    return _Split(index, scale, scaled, scaled >= 2, scaled < 1)


def _split(b: Builder, size: Value) -> list[Value]:
    """Returns the operands of `_split_of`."""
    clamped, index = b.composed(_guess, [size], {})
    return [clamped, index, look_up(b, index, _SCALES)]


def _guess(params: Params, size: Any) -> Any:
    """Returns the size as a normal number and, by its logarithm, its exponent, which is one off at the most."""
    clamped = _lax.clamp(_LEAST, size, _MOST)
    exponent = _jnp.floor(_jnp.log(clamped) * (1 / math.log(2)))
    exponent = _lax.clamp(_FLOAT.type(-_EDGE), exponent, _FLOAT.type(_EDGE + 1))
    return clamped, exponent.astype(_jnp.int32) + _EDGE


# --- bits ------------------------------------------------------------------------------------------------------------


def cut(b: Builder, x: Value, bits: int) -> Value:
    """Clears the last bits of the mantissas of 32-bit floats."""
    size = b.same("abs", [x])
    (result,) = b.composed(_cut, [x, size, *_split(b, size)], {"bits": bits})
    return result


def _cut(params: Params, x: Any, size: Any, *parts: Any) -> Any:
    split, kept = _split_of(*parts), 2.0 ** (23 - params["bits"])
    near_one = split.fix(split.scaled, 0.5) * kept
    back = split.fix(_jnp.floor(near_one) * (1 / kept), 2.0) / split.scale
    normal = _jnp.where(size < _LEAST, x * 0, _jnp.where(x < 0, -back, back))
    return _jnp.where(size <= _MOST, normal, x)


def to_bits(b: Builder, x: Value) -> Value:
    """Returns the bits of floats of 32 or 16 bits, as uint32; every NaN has the usual bits."""
    params, wide = {"dtype": b.dtype(x)}, b.cast(x, _FLOAT)
    (size,) = b.composed(_size, [wide], {})
    (result,) = b.composed(_to_bits, [wide, size, *_split(b, size)], params)
    return result


def _size(params: Params, x: Any) -> Any:
    return abs(_jnp.where(x != x, 1, x))


def _to_bits(params: Params, x: Any, size: Any, *parts: Any) -> Any:
    split, info = _split_of(*parts), _jnp.finfo(params["dtype"])
    mantissa, bias, least = int(info.nmant), int(info.maxexp) - 1, int(info.minexp)
    behind = split.fix(split.scaled, 0.5) - 1
    exponent = split.index + split.is_big.astype(_jnp.int32) - split.is_small.astype(_jnp.int32) + (bias - _EDGE)
    normal = exponent.astype(_jnp.uint32) * (1 << mantissa) + (behind * 2.0**mantissa).astype(_jnp.uint32)
    # In two steps: the power itself may be too large.
    tiny = size * 2.0**-least * 2.0**mantissa
    below = _jnp.minimum(tiny, 2.0**mantissa).astype(_jnp.uint32)
    infinite = ((1 << (int(info.bits) - 1 - mantissa)) - 1) << mantissa
    bits = _jnp.where(size < 2.0**least, below, normal)
    bits = _jnp.where(size == np.inf, _jnp.uint32(infinite), bits)
    bits = _jnp.where(x != x, _jnp.uint32(infinite | 1 << (mantissa - 1)), bits)
    # The reciprocal of a zero has its sign.
    negative = _jnp.where(x == 0, x**-1 < 0, x < 0)
    return _jnp.where(negative, bits + _jnp.uint32(1 << (int(info.bits) - 1)), bits)
