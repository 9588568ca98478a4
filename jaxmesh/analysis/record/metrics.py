"""Metrics of the difference between two arrays, as Tenstorrent's tools report them.

The correlation follows tt-metal's `comp_pcc` (`models/common/utility_functions.py`) in every case. All NaN in both
arrays gives 1, in one array 0. One array of zeros and one with other values gives 0. NaNs and infinities count as
zeros, and equal arrays give 1. The correlation of single elements and of constant arrays that differ is undefined and
given as 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmesh.jaxprs.untyped import Array, jnp
from jaxmesh.jaxprs.walk import same_bits
from jaxmesh.runtime.npz import numbers

_PART = 1 << 20
"""The elements that are widened at once."""


@dataclass(frozen=True, slots=True)
class Apart:
    """The difference between two arrays of one shape and dtype.

    Attributes:
      same: True if all bits are equal.
      pcc: the correlation; 1 for empty arrays.
      defined: False where the correlation is undefined: for a single element or a constant.
      largest: the largest absolute difference; NaN equals NaN, an infinity equals itself, both are infinitely far from
        other values.
      relative: the largest of the differences, each relative to `a`'s element; infinite if the element is 0.
      ulps: the largest difference in steps between neighbouring floats; 0 for dtypes other than real floats.
      scale: the largest finite magnitude in either.
      index: the first element whose bits differ; None if all bits are equal.
      worst: the element with the largest difference; None if all bits are equal.
    """

    same: bool
    pcc: float
    defined: bool
    largest: float
    relative: float
    ulps: int
    scale: float
    index: tuple[int, ...] | None
    worst: tuple[int, ...] | None


def apart(a: Array, b: Array) -> Apart:
    """Compares an array with the golden array `a` of the same shape and dtype.

    >>> import numpy as np
    >>> metrics = apart(np.float32([1, 2, 4]), np.float32([1, 2, 5]))
    >>> metrics.index, metrics.largest, metrics.relative, round(metrics.pcc, 2)
    ((2,), 1.0, 0.25, 1.0)
    """
    if same_bits(a, b):
        return Apart(True, 1.0, True, 0.0, 0.0, 0, _scale(a), None, None)
    differs = (_bits(a) != _bits(b)).any(-1).reshape(a.shape)
    index = tuple(int(i) for i in np.argwhere(differs)[0])
    gap = _gap(a, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Equal values with different bits, such as 0.0 and -0.0, have the difference 0.
        ratio = np.where(gap == 0, 0.0, gap / _magnitude(a))
    relative = float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))
    value, defined = pcc(a, b)
    # If only the signs of zeros or the bits of NaNs differ, the first such element.
    worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(gap)), a.shape)) if gap.any() else index
    return Apart(
        False, value, defined, float(np.max(gap)), relative, _ulps(a, b), max(_scale(a), _scale(b)), index, worst
    )


def pcc(golden: Array, calculated: Array) -> tuple[float, bool]:
    """Returns the correlation as computed by `comp_pcc`, and True if it is defined.

    >>> import numpy as np
    >>> pcc(np.float32([1, 2, 3]), np.float32([2, 4, 6]))
    (1.0, True)
    >>> pcc(np.float32([1, 1]), np.float32([1, 2]))
    (0.0, False)
    """
    return pcc_of_parts([(golden, calculated)])


def pcc_of_parts(pairs: Sequence[tuple[Array, Array]]) -> tuple[float, bool]:
    """Returns the correlation of two arrays that are given in parts, which are widened one after the other."""

    def widened() -> Iterator[tuple[Array, Array]]:
        for golden, calculated in pairs:
            x, y = golden.reshape(-1), calculated.reshape(-1)
            for start in range(0, x.size, _PART):
                yield _flat(x[start : start + _PART]), _flat(y[start : start + _PART])

    def finite() -> Iterator[list[Array]]:
        return ([np.where(np.isfinite(x), x, 0.0) for x in pair] for pair in widened())

    facts = [[(bool(np.isnan(x).all()), bool(x.any())) for x in pair] for pair in widened()]
    nans, others = (np.array(facts, bool).reshape(-1, 2, 2)[..., i] for i in range(2))
    if not facts or nans.all(0).any():
        return float(nans.all()), True
    if others.any(0).sum() == 1:
        return 0.0, True
    if all(np.array_equal(x, y) for x, y in finite()):
        return 1.0, True
    rows = np.array([[(x.min(), x.max(), x.size) for x in pair] for pair in finite()])
    low, high, count = rows[..., 0].min(0), rows[..., 1].max(0), float(rows[:, 0, 2].sum())
    if count == 1 or (low == high).any():
        return 0.0, False
    # Scale the values so that no square overflows; the correlation does not change.
    scale = np.maximum(-low, high)
    mean = np.sum([[float(np.sum(x / n)) for x, n in zip(pair, scale, strict=True)] for pair in finite()], 0) / count
    products = np.zeros((2, 2))
    for pair in finite():
        centred = np.stack([x / n - m for x, n, m in zip(pair, scale, mean, strict=True)])
        products += centred @ centred.T
    norm = math.sqrt(products[0, 0]) * math.sqrt(products[1, 1])
    return (min(1.0, max(-1.0, float(products[0, 1]) / norm)), True) if norm else (0.0, False)


def tolerance(golden: Array) -> float:
    """Returns the largest difference allowed from a reference: 0 for integers, a few rounding units of the largest
    value.

    Both runs execute the same equations; only sums over devices and fused operations round differently.

    >>> import numpy as np
    >>> tolerance(np.int32([5])), tolerance(np.float32([0.5, 2])) == 128 * float(np.finfo(np.float32).eps)
    (0.0, True)
    """
    if not jnp.issubdtype(golden.dtype, jnp.inexact):
        return 0.0
    values, eps = _magnitude(golden), rounding_unit(golden.dtype)
    return (4 if eps > 1e-4 else 64) * eps * float(np.max(values, initial=1.0, where=np.isfinite(values)))


def largest_difference(golden: Array, other: Array) -> float:
    """Returns the largest absolute difference; NaN equals NaN, an infinity equals itself.

    >>> import numpy as np
    >>> largest_difference(np.float32([1, np.nan]), np.float32([1.5, np.nan]))
    0.5
    """
    return float(np.max(_gap(golden, other), initial=0.0))


def rounding_unit(dtype: Any) -> float:
    """Returns the distance from 1 to the next number of a float; 0 for other dtypes."""
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def _flat(x: Array) -> Array:
    """Returns real numbers; a complex number becomes its two parts."""
    wide = numbers(x).reshape(-1)
    return wide.view(np.float64) if np.iscomplexobj(wide) else wide.astype(np.float64)


def _bits(x: Array) -> Array:
    """Returns the bytes of each element along a last dim."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, -1) if x.size else np.zeros((0, 1))


def _gap(a: Array, b: Array) -> Array:
    """Returns the absolute differences."""
    if a.dtype == np.bool_:
        return (a != b).astype(np.float64)
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        # Exact even if the difference of two 64-bit integers overflows their dtype.
        x, y = (v.astype(np.uint64 if v.dtype == np.uint64 else np.int64) for v in (a, b))
        return (np.maximum(x, y).astype(np.uint64) - np.minimum(x, y).astype(np.uint64)).astype(np.float64)
    x, y = numbers(a), numbers(b)
    with np.errstate(invalid="ignore", over="ignore"):
        gap: Array = np.abs(x - y)
    gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, gap)
    return np.where(np.isnan(gap), np.inf, gap)


def _magnitude(x: Array) -> Array:
    # The minimum of an integer dtype overflows when negated.
    wide = numbers(x)
    return np.abs(wide if np.iscomplexobj(wide) else wide.astype(np.float64))


def _scale(x: Array) -> float:
    if x.size and x.dtype in (np.float32, np.float64):
        largest = max(float(np.max(x)), -float(np.min(x)))
        if math.isfinite(largest):
            return largest
    magnitudes = np.abs(_flat(x))
    return float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes)))


def _ulps(a: Array, b: Array) -> int:
    """Returns the largest difference in steps between neighbouring floats."""
    if not jnp.issubdtype(a.dtype, jnp.floating) or a.dtype.itemsize * 8 != jnp.finfo(a.dtype).bits:
        return 0
    finite = np.isfinite(numbers(a)) & np.isfinite(numbers(b))
    x, y = (_order(v)[finite] for v in (a, b))
    return int(np.max(np.maximum(x, y) - np.minimum(x, y), initial=0))


def _order(x: Array) -> Array:
    wide = np.dtype(f"u{x.dtype.itemsize}")
    bits = np.ascontiguousarray(x).view(wide).reshape(x.shape)
    if x.dtype.name == "float8_e8m0fnu":
        return bits
    sign = wide.type(1 << (8 * wide.itemsize - 1))
    return np.where(bits & sign, ~bits, bits | sign)
