"""Copies shards into a full array and back: one pass over the bytes, by all cores.

The order of the copy decides its cost. Runs of a few bytes are copied as one element, because NumPy's loop costs
more than the bytes. Arrays that share cache lines advance together, block by block. Arrays in the other order are
transposed tile by tile. Each thread writes to a separate range: two threads that first touch one page wait for each
other while the system clears it.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided

from jaxmesh.jaxprs.untyped import Array, DType

Pair = tuple[Array, Array]
"""Destination and source, of the same shape and dtype."""

ALIGNED = 64
"""The alignment in bytes of memory that XLA uses in place. It copies other memory, once per device."""
_PAGE = 2 << 20
"""A large page, in bytes: the system clears memory aligned to it in the fewest steps."""
_LARGE = 24 << 20
"""The number of bytes from which large pages and several threads pay off. Smaller memory is reused and needs no
clearing, which takes most of the time."""
_LINE = 128
"""The length in bytes below which runs of neighbouring arrays share cache lines."""
_SHORT = 1024
"""The length in bytes up to which a run is copied as one element."""
_ALIASED = 1 << 11
"""The distance in bytes of addresses that map to the same few cache lines."""
_TILE = 128
"""The number of elements on a side of the transposed tiles."""
_BLOCK = 1 << 20
"""The number of bytes that all arrays together advance by, so that shared lines stay in a core's cache."""


def memory(shape: Sequence[int], dtype: DType) -> Array:
    """Returns new, uninitialised memory that XLA can use in place."""
    count = math.prod(shape) * dtype.itemsize
    alignment = _PAGE if count >= _LARGE else ALIGNED
    raw = np.empty(count + alignment, np.uint8)
    start = -raw.__array_interface__["data"][0] % alignment
    return raw[start : start + count].view(dtype).reshape(tuple(shape))


def is_usable_by_xla(array: Array) -> bool:
    """Returns True if XLA can use the memory of an array in place."""
    return array.flags.c_contiguous and array.__array_interface__["data"][0] % ALIGNED == 0


def copy_all(pairs: Sequence[Pair]) -> None:
    """Fills the destination of each pair from its source; destinations must not overlap."""
    whole = sum(to.nbytes for to, _ in pairs)
    if whole <= _BLOCK:
        for to, of in pairs:
            np.copyto(to, of)
        return
    threads = cores() if whole >= _LARGE else 1
    _run(_in_order([_merge_runs(p) for p in pairs if p[0].size], threads), threads)


@functools.cache
def cores() -> int:
    """Returns the number of threads that copy: the usable cores, at most 8, which saturate any memory."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(usable, 8)


# --- the walk --------------------------------------------------------------------------------------------------------


def _merge_runs(pair: Pair) -> tuple[Array, Array, int]:
    """Returns the pair with short runs as one element each, and the length of its runs in bytes."""
    # Dims of size 1, such as mesh dims, would hide the strides of other dims.
    to, of = (x.squeeze() for x in pair)
    item, rank = to.dtype.itemsize, to.ndim
    run = item
    while rank and to.strides[rank - 1] == of.strides[rank - 1] == run:
        run *= to.shape[rank - 1]
        rank -= 1
    if item < run <= _SHORT and rank:
        return _as_void(to, rank, run), _as_void(of, rank, run), run
    return to, of, run


def _as_void(array: Array, rank: int, run: int) -> Array:
    """Returns an array whose last dims are one run of bytes as an array of such runs."""
    item = array.dtype.itemsize
    # As void elements: NumPy cannot parse the names of some extension types, such as float8_e5m2.
    raw = array.view(np.dtype((np.void, item)))
    runs = as_strided(raw, (*array.shape[:rank], run // item), (*array.strides[:rank], item))
    return cast(Array, runs.view(np.dtype((np.void, run)))[..., 0])


def _in_order(pairs: list[tuple[Array, Array, int]], threads: int) -> list[Pair]:
    """Returns the parts in the order of the copy; each thread gets consecutive parts."""
    apart = all(to.flags.c_contiguous and run >= _LINE for to, _, run in pairs)
    if apart:
        # Write each array from start to end, one after the other.
        parts = -(-threads // len(pairs)) if len(pairs) % threads else 1
        return [part for to, of, _ in pairs for part in _cut(to, of, parts)]
    whole = all(to.flags.c_contiguous for to, _, _ in pairs)
    # Threads that write between each other's cache lines are faster with longer parts.
    block = _BLOCK if whole or threads == 1 else 4 * _BLOCK
    order: list[Pair] = []
    for group in _neighbours([(to, of, of if whole else to) for to, of, _ in pairs]):
        step = max(1, block // len(group))
        walks = [_cut(to, of, -(-to.nbytes // step)) for to, of in group]
        order += [part for step_parts in itertools.zip_longest(*walks) for part in step_parts if part is not None]
    return order


def _neighbours(pairs: list[tuple[Array, Array, Array]]) -> list[list[Pair]]:
    """Returns the pairs in groups whose third arrays overlap in address range."""
    bounds = [byte_bounds(cut) for _, _, cut in pairs]
    groups: list[list[Pair]] = []
    end = -1
    for i in sorted(range(len(pairs)), key=lambda i: bounds[i]):
        if bounds[i][0] >= end:
            groups.append([])
        groups[-1].append(pairs[i][:2])
        end = max(end, bounds[i][1])
    return groups


def _cut(to: Array, of: Array, parts: int) -> list[Pair]:
    """Returns about `parts` parts of a pair, along its first dims."""
    if parts <= 1 or not to.ndim:
        return [(to, of)]
    length = to.shape[0]
    if length < parts and to.ndim > 1:
        return [part for i in range(length) for part in _cut(to[i], of[i], -(-parts // length))]
    step = max(1, length // parts)
    return [(to[i : i + step], of[i : i + step]) for i in range(0, length, step)]


# --- threads ---------------------------------------------------------------------------------------------------------


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="jaxmesh-copy")


# Threads do not survive a fork.
os.register_at_fork(after_in_child=_pool.cache_clear)


def _run(parts: list[Pair], threads: int) -> None:
    """Runs the copies on threads; each thread gets consecutive parts of about equal bytes."""
    if threads == 1:
        _copy(parts)
        return
    shares = _shares(parts, threads)
    try:
        list(_pool().map(_copy, shares))
    except RuntimeError:
        # The interpreter is shutting down and starts no more threads.
        for share in shares:
            _copy(share)


def _shares(parts: list[Pair], count: int) -> list[list[Pair]]:
    """Splits the parts into `count` lists of consecutive parts with about equal bytes."""
    whole = sum(to.nbytes for to, _ in parts)
    shares: list[list[Pair]] = [[] for _ in range(count)]
    done = 0
    for part in parts:
        shares[min(count - 1, done * count // max(1, whole))].append(part)
        done += part[0].nbytes
    return shares


def _copy(parts: list[Pair]) -> None:
    for to, of in parts:
        axis = _contiguous_axis(to, of)
        if axis is None:
            np.copyto(to, of)
        else:
            _transpose(np.moveaxis(to, axis, -2), np.moveaxis(of, axis, -2))


def _contiguous_axis(to: Array, of: Array) -> int | None:
    """Returns the contiguous axis of a source if copying across it would thrash the cache, else None."""
    if to.ndim < 2 or to.shape[-1] < _TILE or of.strides[-1] % _ALIASED:
        return None
    axis = next((i for i, n in enumerate(of.strides) if abs(n) == of.itemsize), None)
    return None if axis is None or axis == to.ndim - 1 or to.shape[axis] < _TILE // 4 else axis


def _transpose(to: Array, of: Array) -> None:
    """Transposes a source with a contiguous second last dim: tile by tile, through a small buffer."""
    tile = np.empty((_TILE, _TILE), to.dtype).T
    rows, columns = to.shape[-2:]
    for outer in np.ndindex(*to.shape[:-2]):
        into, out_of = to[outer], of[outer]
        for i, j in itertools.product(range(0, rows, _TILE), range(0, columns, _TILE)):
            part = out_of[i : i + _TILE, j : j + _TILE]
            buffer = tile[: part.shape[0], : part.shape[1]]
            np.copyto(buffer, part)
            np.copyto(into[i : i + _TILE, j : j + _TILE], buffer)
