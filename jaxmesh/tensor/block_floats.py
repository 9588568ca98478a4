"""Rounds values as the block formats `BFLOAT8_B` and `BFLOAT4_B` do.

Sixteen neighbours along the last dim share the largest exponent among them; each keeps a sign and a magnitude of 7 or
3 bits, rounded to the nearest, and ties to the even one. A result that does not fit is the largest magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxmesh.tensor.types import DataType

BLOCK = 16
"""Elements that share an exponent."""
_BITS: Mapping[str, int] = {"BFLOAT8_B": 7, "BFLOAT4_B": 3}
"""Bits of the magnitude, the leading one included."""


def round_to_blocks(array: Any, kind: DataType, numpy: Any = np) -> Any:
    """Returns a float32 array as a block format rounds it.

    Args:
      array: the values; the last dim is cut into blocks, the last of which is filled up with zeros.
      kind: the format.
      numpy: `numpy`, or `jax.numpy` for an array on devices.

    >>> round_to_blocks(np.array([1.0, 0.3, 0.01], np.float32), DataType.BFLOAT8_B).tolist()
    [1.0, 0.296875, 0.015625]
    """
    shape = array.shape
    size = shape[-1] if shape else 1
    if array.size == 0:
        return array
    rows = array.reshape(*shape[:-1], size)
    rows = numpy.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -size % BLOCK)])
    blocks = rows.reshape(*rows.shape[:-1], -1, BLOCK)
    words = blocks.view(np.uint32)
    exponents = (words >> 23) & 0xFF
    shared = exponents.max(axis=-1, keepdims=True)
    # Subnormal numbers are zero; the others get their leading one.
    significand = numpy.where(exponents > 0, (words & 0x7FFFFF) | 0x800000, 0).astype(np.uint32)
    drop = numpy.minimum(shared - exponents, 31).astype(np.uint32)
    aligned = significand >> drop
    low = 24 - _BITS[kind.name]
    kept = aligned >> low
    rest = aligned & ((1 << low) - 1)
    half = 1 << (low - 1)
    kept = kept + ((rest > half) | ((rest == half) & (kept & 1 == 1))).astype(np.uint32)
    kept = numpy.minimum(kept, (1 << _BITS[kind.name]) - 1)
    unit = numpy.ldexp(numpy.float32(1), shared.astype(np.int32) - 127 - (_BITS[kind.name] - 1))
    with np.errstate(over="ignore"):
        values = kept.astype(np.float32) * unit.astype(np.float32)
    # The exponent of infinity with any other bit is a NaN.
    values = numpy.where((shared == 255) & (kept > 1 << (_BITS[kind.name] - 1)), np.nan, values)
    # The format lacks a negative zero.
    values = numpy.where((words >> 31 == 1) & (kept > 0), -values, values).astype(np.float32)
    return values.reshape(*rows.shape)[..., :size].reshape(shape)
