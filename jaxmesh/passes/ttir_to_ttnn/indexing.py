"""Patterns of ops that read or write elements by index.

TTNN looks up rows of a matrix and elements along one dim, and writes along one dim (`scatter`). A slice that starts at
a computed place becomes a lookup: the operand is a matrix whose rows hold the dims taken whole, and the indices are one
number per row. Few known rows are slices; others are looked up by `embedding` for 16-bit floats, else by `gather`: the
real `ttnn.embedding` takes tables of bfloat16 only. tt-mlir converts other tables to it
(createEmbeddingOpOperandsWorkarounds in lib/Dialect/TTNN/IR/TTNNWorkaroundsPass.cpp at 19c86fca), which loses the
lower bits of float32; `ttnn.gather` takes any type.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.dialects.ttnn.forms import BF16, stored_as
from jaxmesh.dialects.ttnn.layouts import TILE
from jaxmesh.errors import UnsupportedError
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.ttir_to_ttnn.builder import BOOL, INDEX, Ops, Pattern, Site, iinfo

_FEW = 8
"""Up to so many slices stand for a pick; beyond it is one gather."""
_WRITTEN = 64
"""The most numbers of consecutive rows that a text writes out."""
_SHORT = 2**16
"""The number of positions that an index of 16 bits counts."""


def lookup(o: Ops, rows: Value, table: Value) -> Value:
    """Returns rows of a matrix [rows, width] by numbers of type int32 in range, [count]; returns [count, width]."""
    (count,), (length, width) = o.shape(rows), o.shape(table)
    if stored_as(o.dtype(table)) == BF16:
        ids = o.cast(rows, np.uint32)
        return o.op("embedding", [ids, table], (count, width), o.dtype(table))
    index = o.cast(rows, np.uint32)
    if width == 1:
        picked = o.gather(o.reshape(table, (1, length)), o.reshape(index, (1, count)), 1)
        return o.reshape(picked, (count, 1))
    return o.gather(table, o.repeat(o.reshape(index, (count, 1)), (1, width)), 0)


def pick_known(o: Ops, x: Value, dim: int, places: Sequence[int]) -> Value:
    """Returns slices of size 1 along a dim, at places known when the program is compiled."""
    shape = o.shape(x)
    runs = _runs(places)
    if len(runs) <= _FEW:
        return o.concat([o.piece(x, dim, run.start, run.stop, run.step) for run in runs], dim)
    kind = np.uint16 if shape[dim] < _SHORT else np.uint32
    column = [len(places) if d == dim else 1 for d in range(len(shape))]
    index = o.constant(np.array(places, kind).reshape(column))
    if len(shape) == 1:
        row = o.gather(o.reshape(x, (1, *shape)), o.reshape(index, (1, len(places))), 1)
        return o.reshape(row, (len(places),))
    return o.gather(x, o.repeat(index, [1 if d == dim else n for d, n in enumerate(shape)]), dim)


def _runs(places: Sequence[int]) -> list[range]:
    """Returns places as runs of equal, positive steps."""
    runs: list[range] = []
    for place in places:
        last = runs[-1] if runs else None
        step = 0 if last is None else place - last[-1]
        if last is not None and step > 0 and (len(last) == 1 or step == last.step):
            runs[-1] = range(last.start, place + 1, step)
        else:
            runs.append(range(place, place + 1))
    return runs


def reverse(o: Ops, x: Value, dim: int) -> Value:
    """Returns a tensor with a reversed dim; the real library lacks `flip`."""
    size = o.shape(x)[dim]
    if size < 2 or not math.prod(o.shape(x)):
        return x
    return pick_known(o, x, dim, range(size - 1, -1, -1))


PATTERNS: Rules[Pattern] = Rules()


@PATTERNS.add("embedding")
def _embedding(o: Ops, site: Site) -> Value:
    ids, weight = site.xs
    table = o.reshape(weight, o.shape(weight)[-2:])
    rows = o.reshape(ids, (math.prod(o.shape(ids)),))
    if o.dtype(rows).kind == "i":
        # A negative id means the first row.
        rows = o.same("maximum", [rows, o.full((), 0, o.dtype(rows))])
    return o.reshape(lookup(o, rows, table), site.result.shape)


@PATTERNS.add("scatter")
def _scatter(o: Ops, site: Site) -> Value:
    kind, dim = site["scatter_reduce_type"], site["dim"] % len(site.result.shape)
    if kind in ("max", "min") and _is_small(o, site, dim):
        return _scatter_extremes(o, site, kind, dim)
    return o.op("scatter", site.operands, site.result.shape, site.result.dtype, dim=dim, scatter_reduce_type=kind)


_MASK_LIMIT = 2**24
"""The most elements of the mask that stands for a scatter of maxima or minima, which TTNN does not have."""


def _is_small(o: Ops, site: Site, dim: int) -> bool:
    whole, part = list(site.result.shape), list(o.shape(site.xs[1]))
    count, _ = part.pop(dim), whole.pop(dim)
    return part == whole and math.prod(site.result.shape) * count <= _MASK_LIMIT


def _scatter_extremes(o: Ops, site: Site, kind: str, dim: int) -> Value:
    """Reduces the updates of each place: a new dim has the places, and a mask says where each update goes."""
    x, index, updates = site.xs
    dtype, (count, places) = site.result.dtype, (o.shape(v)[dim] for v in (index, x))
    number = np.dtype(jnp.bfloat16) if dtype == BOOL else dtype
    x = o.cast(x, number)

    def spread(v: Value, at: int, times: int) -> Value:
        before, after = o.shape(v)[:at], o.shape(v)[at:]
        return o.repeat(o.reshape(v, (*before, 1, *after)), [*(1 for _ in before), times, *(1 for _ in after)])

    along = o.reshape(o.constant(np.arange(places, dtype=o.dtype(index))), (places, *[1] * (len(o.shape(x)) - dim - 1)))
    old = spread(x, dim, count)
    is_there = o.op("eq", [spread(index, dim + 1, places), along], o.shape(old), BOOL)
    chosen = o.op("where", [is_there, spread(o.cast(updates, number), dim + 1, places), old], o.shape(old), number)
    return o.cast(o.binary(f"{kind}imum", x, o.reduce(kind, chosen, [dim])), dtype)


@PATTERNS.add("gather")
def _gather(o: Ops, site: Site) -> Value:
    if not math.prod(site.result.shape):
        return o.zeros(site.result.shape, site.result.dtype)
    x, index = site.xs
    return _along(o, x, index, site["dim"] % len(site.result.shape))


def _along(o: Ops, x: Value, index: Value, dim: int) -> Value:
    """Gathers elements along a dim; an index out of range moves inside."""
    kind = np.dtype(np.uint32) if o.dtype(index) == np.uint32 else INDEX
    index = o.cast(index, kind)
    if kind == INDEX:
        index = o.same("maximum", [index, o.full((), 0, kind)])
    index = o.same("minimum", [index, o.full((), o.shape(x)[dim] - 1, kind)])
    return o.gather(x, o.cast(index, np.uint32), dim)


# --- slices that start at an index ---------------------------------------------------------------------------------


@PATTERNS.add("slice_dynamic")
def _slice_dynamic(o: Ops, site: Site) -> Value:
    """Returns a slice by lookups in a matrix, whose rows hold the dims taken whole."""
    x, begins, result = site.xs[0], site.xs[1], site.result
    shape, sizes, rank = o.shape(x), result.shape, len(result.shape)
    if not math.prod(sizes):
        return o.zeros(sizes, result.dtype)
    steps = tuple(site["step"] or (1,) * rank)
    if rank == 0 or (sizes == shape and max(steps) == 1):
        return x
    # Where the operand lies in rows of the same length, they are read there.
    taken = [d for d in range(rank) if sizes[d] != shape[d]]
    if stored_as(result.dtype) == BF16 and rank - 1 not in taken and shape[-1] >= TILE:
        taken = [*range(rank - 1)]
    order = [*taken, *(d for d in range(rank) if d not in taken)]
    rows = math.prod(shape[d] for d in taken)
    if rows > np.iinfo(np.int32).max:
        raise UnsupportedError(
            f"a gather from {list(shape)} counts more rows than int32 does; gather from pieces of it."
        )
    starts = o.reshape(begins, (1, rank))
    table = o.reshape(o.permute(x, order), (rows, math.prod(shape) // rows))
    places = _row_indices(o, starts, shape, taken, sizes, steps)
    final = [sizes[d] for d in order]
    picked = o.reshape(o.reshape(lookup(o, places, table), (1, *final)), final)
    return o.permute(picked, [order.index(d) for d in range(rank)])


def _numbers(o: Ops, numbers: Sequence[int]) -> Value:
    """Returns places as one row; many that follow each other are counted, as their text would be long."""
    count = len(numbers)
    if count <= _WRITTEN or len(_runs(numbers)) > 1:
        return o.constant(np.array(numbers, INDEX).reshape(1, -1))
    start, step = numbers[0], numbers[1] - numbers[0]
    made = o.op("arange", [o.handle], (count,), INDEX, start=start, end=start + count * step, step=step)
    return o.reshape(made, (1, count))


def _row_indices(
    o: Ops, starts: Value, shape: Shape, taken: Sequence[int], sizes: Sequence[int], steps: Sequence[int]
) -> Value:
    """Returns the row of every element of a slice along the dims `taken`; clamps a start out of range."""
    steps_of = [math.prod(shape[e] for e in taken[i + 1 :]) for i in range(len(taken))]
    along = [np.arange(sizes[d]) * steps[d] * n for d, n in zip(taken, steps_of, strict=True)]
    within = _numbers(o, functools.reduce(np.add.outer, along).reshape(-1).tolist())
    # A slice of a whole dim starts at 0, whatever the index.
    moving = [d for d in taken if sizes[d] != shape[d] or steps[d] != 1]
    strides = np.array([n for d, n in zip(taken, steps_of, strict=True) if d in moving], np.int32)
    kind = o.dtype(starts) if o.dtype(starts).name in ("uint32", "int64", "uint64") else INDEX
    starts = o.cast(starts, kind)
    if len(moving) < len(shape):
        starts = o.concat([o.piece(starts, 1, d, d + 1) for d in moving], 1)
    spans = [(sizes[d] - 1) * steps[d] + 1 for d in moving]
    most = [min(shape[d] - n, int(iinfo(kind).max)) for d, n in zip(moving, spans, strict=True)]
    inside = o.same("maximum", [starts, o.full((), 0, kind)]) if kind.kind == "i" else starts
    inside = o.cast(o.same("minimum", [inside, o.constant(np.array(most, kind))]), INDEX)
    if (strides != 1).any():
        inside = o.same("multiply", [inside, o.constant(strides)])
    first = inside if len(moving) == 1 else o.reduce("sum", inside, [1], keep=True)
    flat = o.binary("add", first, within)
    return o.reshape(flat, (math.prod(o.shape(flat)),))
