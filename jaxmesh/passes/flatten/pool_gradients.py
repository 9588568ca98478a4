"""Gradients of max pooling: the element that each window picked, offset by offset."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.pad import pad_tensor
from jaxmesh.passes.flatten.reduce_window import Window, windows_of
from jaxmesh.passes.flatten.reductions import identity
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_LIMIT = 256


class _Scan:
    """The elements of windows, one offset after the other, compared with those before."""

    def __init__(self, b: Builder, eqn: Eqn, windows: Sequence[Window], shape: Shape, dtype: np.dtype[Any]) -> None:
        self.b, self.shape = b, shape
        self.windows = list(windows)
        self.offsets = list(itertools.product(*(range(w.size) for w in windows)))
        if len(self.offsets) > _LIMIT:
            sizes = [w.size for w in windows]
            raise missing(eqn, f"a window of {sizes} has {len(self.offsets)} elements, more than {_LIMIT} to compare")
        self.compare = eqn.params["select_prim"].name
        self.least = identity("max" if self.compare in ("ge", "gt") else "min", dtype)
        if any(w.spread > 1 or min(w.low, w.high) < 0 for w in windows):
            raise missing(eqn, "its operand is dilated or cut, which pooling by the largest is not")

    def at(self, x: Value, offset: Shape) -> Value:
        """Returns the element at an offset of every window, of a tensor that is padded already."""
        begins = [o * w.dilation for o, w in zip(offset, self.windows, strict=True)]
        ends = [n + (m - 1) * w.stride + 1 for n, m, w in zip(begins, self.shape, self.windows, strict=True)]
        return self.b.slice(x, begins, ends, [w.stride for w in self.windows])

    def around(self, x: Value, value: float) -> Value:
        """Pads a tensor."""
        return pad_tensor(self.b, x, value, [(w.low, w.high, 0) for w in self.windows])

    def keeps(self, x: Value, best: Value | None) -> list[Value | None]:
        """Returns per offset a mask of windows whose best element so far stays; None for the first without a `best`."""
        b = self.b
        outer = self.around(x, self.least)
        out: list[Value | None] = []
        for offset in self.offsets:
            candidate = self.at(outer, offset)
            keep = None if best is None else b.op(self.compare, [best, candidate], self.shape, np.bool_)
            best = candidate if keep is None else b.op("where", [keep, best, candidate], self.shape, b.dtype(x))
            out.append(keep)
        return out


@RULES.add("select_and_gather_add")
def _select_and_gather_add(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    """Returns the tangents at the elements that windows pick; 0 where none is above the padding."""
    tangents, x = xs
    windows, (shape, dtype) = windows_of(eqn.params), b.result(eqn)
    scan = _Scan(b, eqn, windows, shape, b.dtype(x))
    outer, picked = scan.around(tangents, 0), b.full(shape, 0, dtype)
    keeps = scan.keeps(x, b.full(shape, scan.least, b.dtype(x)))
    for offset, keep in zip(scan.offsets, keeps, strict=True):
        picked = b.op("where", [keep, picked, scan.at(outer, offset)], shape, dtype)
    return picked


@RULES.add("select_and_scatter_add")
def _select_and_scatter_add(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    """Adds each window's number to the element that it picks."""
    source, x = xs
    windows = windows_of(eqn.params)
    shape, dtype = b.shape(source), b.dtype(source)
    if 0 in (*shape, *b.shape(x)):
        return b.full(b.shape(x), 0, dtype)
    scan = _Scan(b, eqn, windows, shape, b.dtype(x))
    keeps = scan.keeps(x, None)
    zero, total = b.full((), 0, dtype), None
    # From the last offset on: a window that keeps what was best before goes to an earlier one.
    left = source
    for offset, keep in zip(reversed(scan.offsets), reversed(keeps), strict=True):
        here = left if keep is None else b.op("where", [keep, zero, left], shape, dtype)
        left = left if keep is None else b.op("where", [keep, left, zero], shape, dtype)
        placed = pad_tensor(b, here, 0, _paddings(scan, b.shape(x), offset))
        total = placed if total is None else b.same("add", [total, placed])
    assert total is not None
    return total


def _paddings(scan: _Scan, length: Sequence[int], offset: Shape) -> list[tuple[int, int, int]]:
    """Returns the padding that moves the numbers of windows to the elements at one offset."""
    made: list[tuple[int, int, int]] = []
    for n, m, o, w in zip(length, scan.shape, offset, scan.windows, strict=True):
        low = o * w.dilation - w.low
        made.append((low, n - low - ((m - 1) * w.stride + 1), w.stride - 1))
    return made
