"""Slices at computed places, and gathers as lookups of rows: TTIR's `embedding`, and its `gather` along one dim.

The operand becomes a matrix whose rows hold the dims taken whole; an index vector becomes the number of a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule
from jaxmesh.passes.flatten.index_arithmetic import (
    INDEX,
    MOST,
    as_index,
    broadcast_to,
    clamp_indices,
    compare,
    is_float,
    known,
    limits,
    positions,
    reshape,
    select,
)

RULES: Rules[Rule] = Rules()

_FEW = 16
"""The largest number of known rows that are picked by slices."""


# --- dynamic_slice ---------------------------------------------------------------------------------------------------


def start_of(b: Builder, start: Value, size: int, length: int) -> int | Value | None:
    """Returns the clamped start of a slice of a dim, 0 for the whole dim; None if it is not known."""
    if length == size:
        return 0
    constant = known(b, start)
    return None if constant is None else min(max(int(constant.item()), 0), size - length)


@RULES.add("dynamic_slice")
def _dynamic_slice(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    # The operands behind the starts say sizes that are not known when tracing; JAX passes none here.
    x, *starts = xs
    return dynamic_slice(b, x, starts, tuple(map(int, eqn.params["slice_sizes"])))


def dynamic_slice(b: Builder, x: Value, starts: Sequence[Value], sizes: Shape) -> Value:
    """Slices an array at starts that may be computed; clamps those out of range."""
    shape = b.shape(x)
    places = [start_of(b, s, n, k) for s, n, k in zip(starts, shape, sizes, strict=True)]
    begins = [0 if k is None else k for k in places]
    ends = [n if k is None else k + size for k, n, size in zip(places, shape, sizes, strict=True)]
    x = b.slice(x, begins, ends)
    if 0 in sizes or None not in places:
        return x if 0 not in sizes else b.full(sizes, 0, b.dtype(x))
    at = b.concat(
        [b.full((1,), 0, INDEX) if k is not None else b.reshape(as_index(b, s), (1,))
         for k, s in zip(places, starts, strict=True)], 0,
    )  # fmt: skip
    end = b.same("add", [at, b.constant(np.array(sizes, INDEX))])
    return b.op("slice_dynamic", [x, at, end], sizes, b.dtype(x))


# --- dynamic_update_slice --------------------------------------------------------------------------------------------


@RULES.add("dynamic_update_slice")
def _dynamic_update_slice(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    x, new, *starts = xs
    if not math.prod(b.shape(new)):
        return x
    at = [start_of(b, s, n, k) for s, n, k in zip(starts, b.shape(x), b.shape(new), strict=True)]
    cached = _cache(b, x, new, at, starts)
    return update_slice(b, x, new, at, starts) if cached is None else cached


def _cache(b: Builder, x: Value, new: Value, at: Sequence[int | None], starts: Sequence[Value]) -> Value | None:
    """Writes one position, or all from the first on, to a cache (batch, heads, sequence, head size); else None."""
    whole, piece = b.shape(x), b.shape(new)
    fits = len(whole) == 4 and (whole[1], whole[3]) == (piece[1], piece[3]) and is_float(b.dtype(x))
    if not fits or at[0] is None or whole == piece or not b.options.in_place:
        return None
    if at[2] == 0 and piece[2] < whole[2]:
        return b.same("fill_cache", [x, new], batch_offset=at[0])
    if at[2] is None and piece[2] == 1 and b.level == "ttir":
        # Upstream's op has the batch behind the heads; ttnn's takes the position as a number alone.
        turned = new if piece[0] == 1 else b.permute(new, (2, 1, 0, 3))
        index = b.reshape(as_index(b, starts[2]), (1,))
        return b.same("update_cache", [x, turned, index], batch_offset=at[0])
    return None


def update_slice(b: Builder, x: Value, new: Value, at: Sequence[int | None], starts: Sequence[Value]) -> Value:
    """Replaces a slice of `x`; `at` are the clamped starts, None where only `starts` has them.

    Dim by dim: the block of `x` that a dim leaves is updated along the other dims, then put back.
    """
    whole, piece = b.shape(x), b.shape(new)
    dim = next((d for d, (n, k) in enumerate(zip(whole, piece, strict=True)) if n != k), None)
    if dim is None:
        return new
    block = (*whole[:dim], piece[dim], *whole[dim + 1 :])
    begin = at[dim]
    if block != piece:
        inner = [*starts]
        inner[:dim] = [b.full((), 0, INDEX)] * dim
        old = _block(b, x, dim, block, begin, starts[dim])
        new = update_slice(b, old, new, [0 if d == dim else a for d, a in enumerate(at)], inner)
    if begin is not None:
        return _put_at(b, x, new, dim, begin)
    return _put_computed(b, x, new, dim, clamp_indices(b, as_index(b, starts[dim]), whole[dim] - piece[dim]))


def _block(b: Builder, x: Value, dim: int, sizes: Shape, begin: int | None, start: Value) -> Value:
    zero = b.full((), 0, INDEX)
    if begin is not None:
        start = b.full((), begin, INDEX)
    return dynamic_slice(b, x, [start if d == dim else zero for d in range(len(sizes))], sizes)


def _put_at(b: Builder, x: Value, new: Value, dim: int, begin: int) -> Value:
    size, end = b.shape(x)[dim], begin + b.shape(new)[dim]
    parts = [*_parts(b, x, dim, 0, begin), new, *_parts(b, x, dim, end, size)]
    return b.concat([p for p in parts if b.shape(p)[dim]], dim)


def _parts(b: Builder, x: Value, dim: int, begin: int, end: int) -> Sequence[Value]:
    """Returns what makes up a piece: of what was written before one by one, each once, and not the whole again."""
    made, place, parts = b.maker(x, "concat"), 0, list[Value]()
    if begin == end or made is None or made.attributes["dim"] != dim:
        return [b.piece(x, dim, begin, end)]
    for part in made.used:
        first, last = max(begin - place, 0), min(end - place, b.shape(part)[dim])
        if first < last:
            parts += _parts(b, part, dim, first, last)
        place += b.shape(part)[dim]
    return parts


def _put_computed(b: Builder, x: Value, new: Value, dim: int, start: Value) -> Value:
    """Writes along a dim from a computed index on, which is in range."""
    length = b.shape(new)[dim]
    if length == 1:
        here = compare(b, "eq", positions(b, b.shape(x), dim), start)
        return select(b, here, new, x)
    index = b.binary("add", positions(b, b.shape(new), dim), start)
    places = b.broadcast(index, b.shape(new))
    return b.same("scatter", [x, places, new], dim=dim, scatter_reduce_type="invalid")


# --- gather ----------------------------------------------------------------------------------------------------------


@RULES.add("gather")
def _gather(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    x, indices = xs
    params, out = eqn.params, eqn.outvars[0].aval
    shape, sizes = tuple(out.shape), tuple(map(int, params["slice_sizes"]))
    if not math.prod(shape):
        return b.full(shape, 0, b.dtype(x))
    numbers = Numbers(params["dimension_numbers"])
    filled = params["mode"].name == "FILL_OR_DROP"
    if filled and not math.prod(b.shape(x)):
        return b.full(shape, _fill(eqn), b.dtype(x))
    picked = _pick(b, x, indices, sizes, numbers) if numbers.mapped else _first(b, x, sizes, numbers, shape)
    if picked is not None:
        return picked
    made = _rows(b, x, indices, sizes, numbers)
    if made is None:
        made = gather_slices(b, x, indices, sizes, numbers)
    if not filled or not numbers.mapped:
        return made
    good = in_range(b, indices, numbers.mapped, b.shape(x), sizes)
    batch = iter(b.shape(good))
    good = b.reshape(good, [1 if d in numbers.offset else next(batch) for d in range(len(shape))])
    return select(b, good, made, b.full((), _fill(eqn), b.dtype(x)))


def _fill(eqn: Eqn) -> Any:
    """Returns the number for elements out of range."""
    value, dtype = eqn.params["fill_value"], np.dtype(eqn.outvars[0].aval.dtype)
    if value is not None:
        return value
    if is_float(dtype):
        return np.nan
    least, most = limits(dtype)
    return least if least else most


def in_range(b: Builder, indices: Value, dims: Sequence[int], shape: Shape, sizes: Shape) -> Value:
    """Returns a mask of the index vectors, the last dim of `indices`, whose whole window lies inside."""
    at = as_index(b, indices)
    most = np.array([shape[d] - sizes[d] for d in dims], INDEX)
    low = compare(b, "ge", at, b.full((), 0, INDEX))
    high = compare(b, "le", at, b.constant(most) if len(most) > 1 else b.full((), most[0], INDEX))
    good = b.same("logical_and", [low, high])
    rank = len(b.shape(good))
    if len(dims) == 1:
        return b.reshape(good, b.shape(good)[:-1])
    return b.reduce("reduce_and", good, (rank - 1,))


def _pick(b: Builder, x: Value, indices: Value, sizes: Shape, numbers: Numbers) -> Value | None:
    """Returns a few rows known at compile time by slices, one per run of consecutive rows; else returns None."""
    constant, shape = known(b, indices), b.shape(x)
    if constant is None or constant.size > _FEW or constant.ndim > 2 or not _is_take(numbers, sizes, shape):
        return None
    (dim,) = numbers.mapped
    rows = [int(i) for i in constant.reshape(-1)]
    if min(rows) < 0 or max(rows) >= shape[dim]:
        return None
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([row, row + 1])
    made = b.concat([b.piece(x, dim, begin, end) for begin, end in runs], dim)
    return _permute_to_result(b, made, dim, (len(rows),) if constant.ndim == 2 else (), numbers)


def _first(b: Builder, x: Value, sizes: Shape, numbers: Numbers, out: Shape) -> Value | None:
    """Returns the window at 0 for each index vector of no numbers, as of `x[:]`."""
    if numbers.batching or 0 in sizes:
        return None
    window = b.slice(x, [0] * len(sizes), sizes)
    kept = [n for d, n in enumerate(sizes) if d not in numbers.collapsed]
    return broadcast_to(b, b.reshape(window, kept), out, numbers.offset)


def _is_take(numbers: Numbers, sizes: Shape, shape: Shape) -> bool:
    """Returns True if whole rows along one dim are picked, each by one number."""
    if len(numbers.mapped) != 1 or numbers.batching or numbers.collapsed not in ((), numbers.mapped):
        return False
    (dim,) = numbers.mapped
    return all(n == (1 if d == dim else whole) for d, (n, whole) in enumerate(zip(sizes, shape, strict=True)))


def _permute_to_result(b: Builder, x: Value, dim: int, batch: Shape, numbers: Numbers) -> Value:
    """Permutes rows picked along `dim` to the order of the gather's result."""
    shape = b.shape(x)
    first = b.permute(x, [dim, *(d for d in range(len(shape)) if d != dim)])
    rest = b.shape(first)[1:]
    return _order(b, b.reshape(first, (*batch, *rest)), len(batch), dim, numbers)


def _order(b: Builder, x: Value, batch: int, dim: int, numbers: Numbers) -> Value:
    """Permutes `(batch..., other dims...)` to the gather's order; a dim that is not collapsed returns with size 1."""
    if not numbers.collapsed:
        at = batch + dim
        x = b.reshape(x, (*b.shape(x)[:at], 1, *b.shape(x)[at:]))
    rank = len(b.shape(x))
    offsets, batches = iter(range(batch, rank)), iter(range(batch))
    return b.permute(x, [next(offsets) if d in numbers.offset else next(batches) for d in range(rank)])


def _rows(b: Builder, x: Value, indices: Value, sizes: Shape, numbers: Numbers) -> Value | None:
    """Returns looked-up rows, as of embeddings: `w[ids]` along any one dim; None for another gather."""
    shape = b.shape(x)
    if not _is_take(numbers, sizes, shape) or not is_float(b.dtype(x)):
        return None
    (dim,) = numbers.mapped
    first = b.permute(x, [dim, *(d for d in range(len(shape)) if d != dim)])
    rest = b.shape(first)[1:]
    table = b.reshape(first, (shape[dim], math.prod(rest)))
    ids = as_index(b, reshape(b, indices, b.shape(indices)[:-1]))
    batch = b.shape(ids)
    flat = b.reshape(ids, (1,)) if not batch else ids
    made = b.op("embedding", [flat, table], (*b.shape(flat), math.prod(rest)), b.dtype(x))
    return _order(b, b.reshape(made, (*batch, *rest)), len(batch), dim, numbers)


class Numbers:
    """The dims of a gather, as plain integers."""

    def __init__(self, given: Any) -> None:
        self.offset = tuple(map(int, given.offset_dims))
        self.collapsed = tuple(map(int, given.collapsed_slice_dims))
        self.mapped = tuple(map(int, given.start_index_map))
        self.batching = tuple(map(int, given.operand_batching_dims))
        self.index_batching = tuple(map(int, given.start_indices_batching_dims))


@dataclass(frozen=True, slots=True)
class _Rows:
    """A tensor as a matrix.

    Attributes:
      shape: of the tensor.
      sizes: the size of a slice in each dim.
      taken: the dims that the number of a row counts, in order.
      batching: by a dim of the tensor, the dim of the index vectors that it follows.
    """

    shape: Shape
    sizes: Shape
    taken: tuple[int, ...]
    batching: Mapping[int, int]

    @property
    def whole(self) -> tuple[int, ...]:
        """The dims that a row holds."""
        return tuple(d for d in range(len(self.shape)) if d not in self.taken)

    @property
    def count(self) -> int:
        """The number of rows."""
        return math.prod(self.shape[d] for d in self.taken)

    def stride(self, dim: int) -> int:
        """Returns how many rows one step along a taken dim is."""
        return math.prod(self.shape[d] for d in self.taken[self.taken.index(dim) + 1 :])


def gather_slices(b: Builder, x: Value, indices: Value, sizes: Shape, numbers: Numbers) -> Value:
    """Gathers one slice per index vector, the last dim of `indices`; a start out of range is clamped."""
    shape = b.shape(x)
    if 0 in sizes:
        raise UnsupportedError(f"a gather of slices {list(sizes)} picks nothing from {list(shape)}.")
    batching = dict(zip(numbers.batching, numbers.index_batching, strict=True))
    at, rest = b.shape(indices)[:-1], {d: d for d in range(len(shape)) if d not in numbers.mapped}
    if len(at) == len(shape) and batching == rest and numbers.collapsed == numbers.mapped and len(numbers.mapped) == 1:
        # One index per result, along one dim. As one row, the tensor would be padded to the height of a tile.
        (dim,) = numbers.mapped
        chosen = clamp_indices(b, b.reshape(as_index(b, indices), at), shape[dim] - 1)
        return b.gather(x, chosen, dim)
    # A slice of a whole dim starts at 0, whatever the index.
    taken = tuple(d for d in range(len(shape)) if d in batching or sizes[d] != shape[d])
    rows = _Rows(shape, sizes, taken, batching)
    if rows.count > MOST:
        raise UnsupportedError(
            f"a gather from {list(shape)} counts {rows.count} rows, but they are counted in 32 bits, up to {MOST}; "
            "gather from pieces of it."
        )
    order = [*rows.taken, *rows.whole]
    table = b.reshape(b.permute(x, order), (rows.count, math.prod(shape[d] for d in rows.whole)))
    picked = _look_up(b, table, _row_numbers(b, as_index(b, indices), rows, numbers.mapped))
    batch = b.shape(indices)[:-1]
    kept = [d for d in order if d not in numbers.collapsed and d not in batching]
    picked = b.reshape(picked, (*batch, *(sizes[d] for d in kept)))
    return b.permute(picked, _output_order(numbers.offset, len(batch), kept))


def _look_up(b: Builder, table: Value, numbers: Value) -> Value:
    """Returns the rows of these numbers."""
    (count,), (rows, width) = b.shape(numbers), b.shape(table)
    if width == 1:
        return b.gather(b.reshape(table, (1, rows)), b.reshape(numbers, (1, count)), 1)
    return b.op("embedding", [numbers, table], (count, width), b.dtype(table))


def _row_numbers(b: Builder, starts: Value, rows: _Rows, mapped: Sequence[int]) -> Value:
    """Returns the row of every element of every slice, in one dim."""
    batch = b.shape(starts)[:-1]
    fixed = np.zeros((math.prod(batch), *(rows.sizes[d] for d in rows.taken)), np.int64)
    for i, dim in enumerate(rows.taken):
        steps = np.arange(rows.sizes[dim]) * rows.stride(dim)
        fixed += steps.reshape([-1 if j == i else 1 for j in range(len(rows.taken))])
    for dim, at in rows.batching.items():
        index = np.arange(batch[at]).reshape([-1 if d == at else 1 for d in range(len(batch))])
        wide = np.broadcast_to(index, batch).reshape(-1, *[1] * len(rows.taken))
        fixed += wide * rows.stride(dim)
    within = b.constant(fixed.reshape(len(fixed), -1).astype(INDEX))
    moving = [(i, d) for i, d in enumerate(mapped) if d in rows.taken]
    if moving:
        within = b.binary("add", _first_rows(b, starts, rows, moving), within)
    return b.reshape(within, (math.prod(b.shape(within)),))


def _first_rows(b: Builder, starts: Value, rows: _Rows, moving: Sequence[tuple[int, int]]) -> Value:
    """Returns the row at which each slice starts, as (index vectors, 1)."""
    *batch, length = b.shape(starts)
    flat = b.reshape(starts, (math.prod(batch), length))
    if len(moving) < length:
        flat = b.concat([b.slice(flat, (0, i), (math.prod(batch), i + 1)) for i, _ in moving], 1)
    most = [rows.shape[d] - rows.sizes[d] for _, d in moving]
    inside = clamp_indices(b, flat, most[0] if len(most) == 1 else most)
    strides = np.array([rows.stride(d) for _, d in moving], INDEX)
    if (strides != 1).any():
        inside = b.same("multiply", [inside, b.constant(strides)])
    return inside if len(moving) == 1 else b.reduce("sum", inside, (1,), keep=True)


def _output_order(offsets: Sequence[int], batch: int, kept: Sequence[int]) -> list[int]:
    """Returns for each dim of the result the dim of the lookup: the batch first, then the kept dims."""
    of_batch = iter(range(batch))
    of_slice = iter(batch + kept.index(d) for d in sorted(kept))
    return [next(of_slice) if dim in offsets else next(of_batch) for dim in range(batch + len(kept))]
