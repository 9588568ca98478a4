"""Equal arrays are one: the first of those with the same bytes stands for all."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_SAMPLE = 1024
"""Elements whose bytes tell most arrays apart, so that few are compared in whole."""
_BLOCK = 1 << 20
"""Bytes that are compared at a time."""


class Contents:
    """Arrays by shape, element type and bytes: zeros of two signs differ, and a NaN equals itself.

    >>> contents = Contents()
    >>> first = contents.first(np.arange(3))
    >>> contents.first(np.arange(3)) is first, contents.first(np.arange(4)) is first
    (True, False)
    """

    def __init__(self) -> None:
        self._alike: dict[Any, list[Array]] = {}

    def first(self, array: Array) -> Array:
        """Returns the first array that was given with this content: the given one, if it is the first."""
        # One element in memory, which may stand for more than memory holds.
        is_one = not any(array.strides)
        flat = (array[(slice(1),) * array.ndim] if is_one else array).reshape(-1)
        sample = flat[:: max(1, flat.size // _SAMPLE)]
        alike = self._alike.setdefault((array.shape, array.dtype, is_one, sample.tobytes()), [])
        found = next((a for a in alike if is_one or _is_equal(a, array)), None)
        if found is None:
            alike.append(found := array)
        return found


def _is_equal(a: Array, b: Array) -> bool:
    if a is b:
        return True
    one, other = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return all(np.array_equal(one[i : i + _BLOCK], other[i : i + _BLOCK]) for i in range(0, one.size, _BLOCK))
