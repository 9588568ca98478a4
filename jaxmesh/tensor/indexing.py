"""Shape arithmetic of tensors: shapes with a -1, and indices."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import numpy as np

from jaxmesh.errors import ArgumentTypeError, UnsupportedError, VerifyError
from jaxmesh.validate import quote

_BOOL: Any = (bool, np.bool_)


def infer_shape(callee: str, shape: Sequence[int], own: Sequence[int]) -> tuple[int, ...]:
    """Returns a shape for the elements of shape `own`; one dim may be -1 and is inferred.

    >>> infer_shape("reshape", [2, -1], (4, 6))
    (2, 12)
    """
    if -1 not in shape:
        return tuple(shape)
    size, known = math.prod(own), math.prod(n for n in shape if n != -1)
    if list(shape).count(-1) > 1 or known <= 0 or size % known:
        raise VerifyError(
            f"{callee}: one dim of the shape may be -1, where the others divide the number of elements; got "
            f"{list(shape)} for a tensor of shape {list(own)}, {size} elements."
        )
    return tuple(size // known if n == -1 else n for n in shape)


def slices_of(key: Any, shape: Sequence[int]) -> tuple[list[tuple[int, int, int]], set[int]]:
    """Returns begin, end and step of every dim, and the dims that the result keeps.

    >>> slices_of((1, slice(None, 2)), (4, 6))
    ([(1, 2, 1), (0, 2, 1)], {1})
    """
    keys: list[Any] = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1 or len(keys) - len(dots) > len(shape):
        raise VerifyError(
            f"a tensor of {len(shape)} dims takes as many indices at most, and one '...'; got {quote(key)}."
        )
    at = dots[0] if dots else len(keys)
    keys[at : at + len(dots)] = [slice(None)] * (len(shape) - len(keys) + len(dots))
    slices, kept = list[tuple[int, int, int]](), set[int]()
    for dim, (index, size) in enumerate(zip(keys, shape, strict=True)):
        if isinstance(index, slice):
            slices.append(_bounds(cast("Any", index), size))
            kept.add(dim)
            continue
        if isinstance(index, _BOOL) or not isinstance(index, SupportsIndex) or getattr(index, "ndim", 0):
            raise UnsupportedError(f"a tensor is indexed by integers, slices and '...', got {quote(index)}.")
        begin = operator.index(index)
        if not -size <= begin < size:
            raise VerifyError(f"the index {begin} is out of range for dim {dim} of size {size}.")
        slices.append((begin % size, begin % size + 1, 1))
    return slices, kept


def _bounds(key: slice, size: int) -> tuple[int, int, int]:
    try:
        begin, end, step = key.indices(size)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"a slice of a tensor has integers, got {quote(key)}.") from None
    if step < 1:
        raise UnsupportedError(f"a slice of a tensor has a step from 1 on, as ttnn.slice has, got {step}.")
    return begin, max(begin, end), step
