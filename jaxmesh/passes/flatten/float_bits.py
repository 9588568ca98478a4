"""The bits of floats by arithmetic: TTIR lacks a cast that keeps them. Subnormal numbers may be zero, as on devices.

Each function is one in JAX of a primitive's parameters and operands, for `Builder.composed`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmesh.passes.flatten.decompositions import Params

_jnp: Any = jax.numpy
_lax: Any = jax.lax
_FLOAT: Any = np.dtype(np.float32)
_LEAST, _MOST = _FLOAT.type(2.0**-126), np.finfo(np.float32).max
# Two to the power of -125 up to 126: a guess that is one off is still a normal number's.
_EDGE = 125
_SCALES = [2.0**-e for e in range(-_EDGE, _EDGE + 2)]


def _look_up(index: Any, numbers: Sequence[float]) -> Any:
    """Returns float32 numbers looked up by an index in range; a computed power of two may be inexact."""
    return _jnp.take(np.array(numbers, _FLOAT)[:, None], index, axis=0, mode="clip")[..., 0]


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


def _split(size: Any) -> _Split:
    """Splits a size, clamped to normal numbers; guesses its exponent by its logarithm."""
    clamped = _lax.clamp(_LEAST, size, _MOST)
    exponent = _jnp.floor(_jnp.log(clamped) * (1 / math.log(2)))
    exponent = _lax.clamp(_FLOAT.type(-_EDGE), exponent, _FLOAT.type(_EDGE + 1))
    index = exponent.astype(_jnp.int32) + _EDGE
    scale = _look_up(index, _SCALES)
    scaled = clamped * scale
    return _Split(index, scale, scaled, scaled >= 2, scaled < 1)


# --- bits ------------------------------------------------------------------------------------------------------------


def cut(params: Params, x: Any) -> Any:
    """Clears the last bits of the mantissas of 32-bit floats, as many as the parameter `bits`."""
    size, kept = abs(x), 2.0 ** (23 - params["bits"])
    split = _split(size)
    near_one = split.fix(split.scaled, 0.5) * kept
    back = split.fix(_jnp.floor(near_one) * (1 / kept), 2.0) / split.scale
    normal = _jnp.where(size < _LEAST, x * 0, _jnp.where(x < 0, -back, back))
    return _jnp.where(size <= _MOST, normal, x)


def to_bits(params: Params, x: Any) -> Any:
    """Returns the bits of floats of 32 or 16 bits, as uint32; every NaN has the usual bits."""
    info, x = _jnp.finfo(x.dtype), x.astype(_FLOAT)
    mantissa, bias, least = int(info.nmant), int(info.maxexp) - 1, int(info.minexp)
    size = abs(_jnp.where(x != x, 1, x))
    split = _split(size)
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


def from_bits(params: Params, x: Any) -> Any:
    """Returns the floats of the type `dtype` with the bits of unsigned integers."""
    dtype, word = params["dtype"], x.astype(_jnp.uint32)
    info: Any = _jnp.finfo(dtype)
    mantissa, bias = int(info.nmant), int(info.maxexp) - 1
    # Integers of fewer than 32 bits are computed in 32, where TTIR's ops on bits work.
    exponent = word >> mantissa & (1 << int(info.bits) - 1 - mantissa) - 1
    fraction = (word & (1 << mantissa) - 1).astype(_FLOAT) * 2.0**-mantissa
    sign, exponent = word >> int(info.bits) - 1, exponent.astype(_jnp.int32)
    power = _look_up(exponent, [*(2.0 ** (max(e, 1) - bias) for e in range(2 * bias + 1)), np.inf])
    size = (_jnp.where(exponent != 0, _FLOAT.type(1), _FLOAT.type(0)) + fraction) * power
    size = _jnp.where((exponent == 2 * bias + 1) & (fraction != 0), _jnp.nan, size)
    return _jnp.where(sign != 0, -size, size).astype(dtype)
