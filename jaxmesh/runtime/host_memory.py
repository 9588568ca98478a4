"""Copies between memory that is cut up and memory that is whole: one pass over the bytes, by all cores.

What a copy costs beyond the bytes is how it walks. Runs of a few bytes are copied as one element of that size, because
NumPy's loop over them costs more than the bytes. Where several arrays share the lines of a cache they advance together,
block by block. Arrays in the other order are turned tile by tile. And each thread writes to a range of its own: two
threads that touch a page for the first time wait for each other while the system clears it.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided

Array = np.ndarray[Any, Any]
Pair = tuple[Array, Array]
"""Where to, and where from; of one shape and dtype."""

ALIGNED = 64
"""The alignment in bytes of memory that XLA uses as it is; what lies otherwise it copies, for every device again."""
_PAGE = 2 << 20
"""A large page, in bytes: memory that begins with one is cleared by the system in as few steps as can be."""
_LARGE = 24 << 20
"""The bytes from which on large pages and several threads are worth their start: of less, what was freed is used again,
and needs no clearing by the system, which is what takes the time."""
_LINE = 128
"""Bytes: shorter runs of neighbouring pieces share lines of the cache."""
_SHORT = 1024
"""Bytes: shorter runs are copied as one element each."""
_ALIASED = 1 << 11
"""Bytes: what lies a multiple of them apart falls on the same few lines of the cache."""
_TILE = 128
"""Elements on a side of what is turned from one order to the other at a time."""
_BLOCK = 1 << 20
"""Bytes that all arrays together advance by, so that the lines they share stay in a core's own cache."""


def memory(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """New memory that XLA can use as it is, and that nobody else knows; not filled."""
    count = math.prod(shape) * dtype.itemsize
    alignment = _PAGE if count >= _LARGE else ALIGNED
    raw = np.empty(count + alignment, np.uint8)
    start = -raw.__array_interface__["data"][0] % alignment
    return raw[start : start + count].view(dtype).reshape(tuple(shape))


def is_usable_by_xla(array: Array) -> bool:
    """Whether XLA can use the memory of an array as it is."""
    return array.flags.c_contiguous and array.__array_interface__["data"][0] % ALIGNED == 0


def copy_all(pairs: Sequence[Pair]) -> None:
    """Copies all; no two pairs may write to the same place."""
    whole = sum(to.nbytes for to, _ in pairs)
    if whole <= _BLOCK:
        for to, of in pairs:
            np.copyto(to, of)
        return
    threads = cores() if whole >= _LARGE else 1
    _run(_in_order([_as_runs(p) for p in pairs if p[0].size], threads), threads)


@functools.cache
def cores() -> int:
    """How many threads copy: as many as cores that this process may use, at most 8, which any memory keeps up with."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 8)


# --- the walk --------------------------------------------------------------------------------------------------------


def _as_runs(pair: Pair) -> tuple[Array, Array, int]:
    """The pair with short runs as one element each, and the length of its runs in bytes."""
    # Dims of size 1, such as those of the mesh, would hide the ones that are walked.
    to, of = (x.squeeze() for x in pair)
    item, rank = to.dtype.itemsize, to.ndim
    run = item
    while rank and to.strides[rank - 1] == of.strides[rank - 1] == run:
        run *= to.shape[rank - 1]
        rank -= 1
    if item < run <= _SHORT and rank:
        return _wide(to, rank, run), _wide(of, rank, run), run
    return to, of, run


def _wide(array: Array, rank: int, run: int) -> Array:
    """The first dims of an array whose last ones are one run of bytes, as an array of such runs."""
    item = array.dtype.itemsize
    # As bytes without a meaning: NumPy cannot read the name that it gives some types of others, such as float8_e5m2.
    raw = array.view(np.dtype((np.void, item)))
    rows = as_strided(raw, (*array.shape[:rank], run // item), (*array.strides[:rank], item))
    return cast(Array, rows.view(np.dtype((np.void, run)))[..., 0])


def _in_order(pairs: list[tuple[Array, Array, int]], threads: int) -> list[Pair]:
    """Parts in the order in which they are copied; each thread gets a row of neighbours."""
    apart = all(to.flags.c_contiguous and run >= _LINE for to, _, run in pairs)
    if apart:
        # Every array is written from its start to its end, so one at a time.
        parts = -(-threads // len(pairs)) if len(pairs) % threads else 1
        return [part for to, of, _ in pairs for part in _cut(to, of, parts)]
    whole = all(to.flags.c_contiguous for to, _, _ in pairs)
    # Threads that write between each other's lines do it best in longer rows.
    block = _BLOCK if whole or threads == 1 else 4 * _BLOCK
    order: list[Pair] = []
    for group in _neighbours([(to, of, of if whole else to) for to, of, _ in pairs]):
        step = max(1, block // len(group))
        walks = [_cut(to, of, -(-to.nbytes // step)) for to, of in group]
        order += [part for row in itertools.zip_longest(*walks) for part in row if part is not None]
    return order


def _neighbours(pairs: list[tuple[Array, Array, Array]]) -> list[list[Pair]]:
    """The pairs in groups; in one group the third arrays lie between one another."""
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
    """About so many parts of a pair, along its first dims."""
    if parts <= 1 or not to.ndim:
        return [(to, of)]
    rows = to.shape[0]
    if rows < parts and to.ndim > 1:
        return [part for i in range(rows) for part in _cut(to[i], of[i], -(-parts // rows))]
    step = max(1, rows // parts)
    return [(to[i : i + step], of[i : i + step]) for i in range(0, rows, step)]


# --- threads ---------------------------------------------------------------------------------------------------------


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores() - 1, thread_name_prefix="jaxmesh-copy")


# A forked process has none of the threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _run(parts: list[Pair], threads: int) -> None:
    """Copies all parts, each thread a row of neighbours of about as many bytes."""
    rows = _shares(parts, threads)
    others: list[Future[None]] = []
    try:
        for row in rows[1:]:
            others.append(_pool().submit(_copy, row))
    except RuntimeError:
        # The interpreter is about to end and starts no threads any more.
        for row in rows[1 + len(others) :]:
            _copy(row)
    try:
        _copy(rows[0])
    finally:
        # The memory is whole, or nobody's, when this returns: also after an interrupt.
        for other in others:
            other.result()


def _shares(parts: list[Pair], count: int) -> list[list[Pair]]:
    """The parts as at most `count` rows of neighbours of about as many bytes."""
    whole = sum(to.nbytes for to, _ in parts)
    rows: list[list[Pair]] = [[] for _ in range(count)]
    done = 0
    for part in parts:
        rows[min(count - 1, done * count // max(1, whole))].append(part)
        done += part[0].nbytes
    return rows


def _copy(parts: list[Pair]) -> None:
    for to, of in parts:
        axis = _along(to, of)
        if axis is None:
            np.copyto(to, of)
        else:
            _turn(np.moveaxis(to, axis, -2), np.moveaxis(of, axis, -2))


def _along(to: Array, of: Array) -> int | None:
    """The axis along which the source lies in one piece, where to read it across that hits few lines of the cache."""
    if to.ndim < 2 or to.shape[-1] < _TILE or of.strides[-1] % _ALIASED:
        return None
    axis = next((i for i, n in enumerate(of.strides) if abs(n) == of.itemsize), None)
    return None if axis is None or axis == to.ndim - 1 or to.shape[axis] < _TILE // 4 else axis


def _turn(to: Array, of: Array) -> None:
    """Copies a source whose dim before the last is in one piece: tile by tile, through memory that lies close."""
    tile = np.empty((_TILE, _TILE), to.dtype).T
    rows, columns = to.shape[-2:]
    for place in np.ndindex(*to.shape[:-2]):
        into, out_of = to[place], of[place]
        for i, j in itertools.product(range(0, rows, _TILE), range(0, columns, _TILE)):
            part = out_of[i : i + _TILE, j : j + _TILE]
            held = tile[: part.shape[0], : part.shape[1]]
            np.copyto(held, part)
            np.copyto(into[i : i + _TILE, j : j + _TILE], held)
