"""Gathers of slices as lookups of rows: TTIR's `embedding`, and its `gather` along one dim.

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
from jaxmesh.passes.flatten.builder import Builder
from jaxmesh.passes.flatten.index_arithmetic import INDEX, MOST, as_index, clamp_indices


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
