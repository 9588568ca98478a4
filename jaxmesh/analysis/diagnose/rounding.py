"""How far values on devices may differ from the unsharded run, by the roundings of their types."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxmesh.analysis.diagnose.stage import Array
from jaxmesh.runtime.npz import numbers

_ROUNDINGS, _NARROW_ROUNDINGS = 64, 4
"""The rounding units of the largest magnitude that a value may differ by: float32 and wider, and narrower floats."""
EXACT = 2.0**-23
"""The rounding unit of float32."""
GROWTH = 16
"""The factor by which one operation may enlarge the relative error of its operands."""
_MOST, _MOST_NARROW = 0.02, 0.25
"""The largest error that counts as carried rounding."""
PART = 1 << 22
"""The elements that are compared at once."""


def is_exact(error: float) -> bool:
    """Returns True if float32 explains an error."""
    return error <= tolerance(EXACT, 0.0)


def tolerance(unit: float, carried: float) -> float:
    """Returns the error that rounding explains, for a rounding unit and the largest error of the operands."""
    narrow = unit > 1e-6
    own = unit * (_NARROW_ROUNDINGS if narrow else _ROUNDINGS)
    return max(own, min(carried * GROWTH, _MOST_NARROW if narrow else _MOST))


def as_numbers(x: Array) -> Array:
    """Returns values to compare: narrow floats as float32."""
    narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    return x.astype(np.float32) if narrow else x if x.dtype.isbuiltin == 1 else numbers(x)


def error_of(found: Array, wanted: Array, scale: float) -> float:
    """Returns the largest difference of two arrays, relative to the larger of a magnitude and the element; infinite for
    NaNs and infinities in one array alone."""
    if not found.size or found is wanted:
        return 0.0
    found, wanted = as_numbers(found), as_numbers(wanted)
    if found.size > PART and (axis := next((d for d, n in enumerate(found.shape) if n > 1), None)) is not None:
        # Parts of a large array, whose differences need less memory.
        count = min(found.shape[axis], -(-found.size // PART))
        split: Any = np.array_split
        parts: list[tuple[Any, Any]] = list(zip(split(found, count, axis), split(wanted, count, axis), strict=True))
        # Of integers the share of the part that differs most.
        errors: list[float] = [error_of(a, b, scale) for a, b in parts]
        return max(errors)
    if found.dtype.kind not in "fc":
        different: Any = found != wanted
        return float(different.mean())
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        gap = np.abs(found - wanted)
        most = float(np.max(gap))
        if not most:
            return 0.0
        gap = gap / np.maximum(np.abs(wanted), scale)
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        return float(np.max(np.where(same, 0, np.where(np.isnan(gap), np.inf, gap))))
