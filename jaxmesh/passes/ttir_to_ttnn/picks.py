"""Rows and elements picked by index: slices for few known ones, `embedding` for 16-bit floats, else `gather`.

The real `ttnn.embedding` takes tables of bfloat16 only. tt-mlir converts other tables to it
(createEmbeddingOpOperandsWorkarounds in lib/Dialect/TTNN/IR/TTNNWorkaroundsPass.cpp at 19c86fca), which loses the
lower bits of float32; `ttnn.gather` takes any type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.dialects.ttnn.data_types import BF16
from jaxmesh.dialects.ttnn.forms import stored_as
from jaxmesh.passes.ttir_to_ttnn.builder import Ops

_FEW = 8
"""Up to so many slices stand for a pick; beyond it is one gather."""
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
