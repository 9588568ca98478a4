"""Scatters: `x.at[...].set`, `.add`, `.multiply`, `.min`, `.max`.

TTIR scatters single elements along one dim, to indices in range. Windows that are not wholly inside are dropped, as in
JAX: they go to an element behind the end, which is cut off again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.source_locations import source_line
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.index_arithmetic import (
    INDEX,
    MOST,
    as_index,
    broadcast_to,
    clamp_indices,
    compare,
    known,
    positions,
    reshape,
    select,
)
from jaxmesh.passes.flatten.reductions import PAIRS
from jaxmesh.passes.flatten.slicing_and_gather import in_range, update_slice

RULES: Rules[Rule] = Rules()

KINDS = {
    "scatter": None, "scatter-add": "sum", "scatter-mul": "prod", "scatter-min": "min", "scatter-max": "max",
    "scatter-sub": "sum",
}  # fmt: skip
"""The reduce type by primitive; None replaces."""


@dataclass(frozen=True, slots=True)
class _Scatter:
    """One scatter: `x`, index vectors as int32 in the last dim, updates.

    Attributes:
      kind: a reduce type, or None to replace.
      mapped: the dim of `x` that each number of an index vector counts along.
      inserted: dims of `x` that windows do not have.
      batching: dims of `x` that go along with the dims `index_batching` of the indices.
      window: the dims of the updates that are dims of a window.
      drops: whether windows may be out of range; else they are known to be inside.
    """

    x: Value
    index: Value
    new: Value
    kind: str | None
    mapped: Shape
    inserted: Shape
    batching: Shape
    index_batching: Shape
    window: Shape
    drops: bool

    def sizes(self, b: Builder) -> Shape:
        """Returns the size of a window along each dim of `x`."""
        present = iter(b.shape(self.new)[d] for d in self.window)
        left_out = {*self.inserted, *self.batching}
        return tuple(1 if d in left_out else next(present) for d in range(len(b.shape(self.x))))


@RULES.add(*KINDS)
def _scatter(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    x, index, new = xs
    name, params = eqn.primitive.name, eqn.params
    if name == "scatter" and params.get("update_jaxpr") is not None:
        raise missing(eqn, "it applies a function in place; write x.at[i].set(f(x[i]))")
    if not math.prod(b.shape(new)):
        return x
    if name == "scatter-sub":
        new = b.same("neg", [new])
    numbers = params["dimension_numbers"]
    update = _Scatter(
        x, as_index(b, index), new, KINDS[name],
        *(tuple(map(int, dims)) for dims in (
            numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims, numbers.operand_batching_dims,
            numbers.scatter_indices_batching_dims, numbers.update_window_dims,
        )),
        drops=params["mode"] is None or params["mode"].name != "CLIP",
    )  # fmt: skip
    for form in (_one_window, _one_row):
        made = form(b, update)
        if made is not None:
            return made
    return _many(b, _inside(b, update), source_line(eqn))


def _combine(b: Builder, kind: str | None, old: Value, new: Value) -> Value:
    """Combines old elements with new ones; operands broadcast to each other."""
    return new if kind is None else b.binary(PAIRS[kind], old, new)


# --- one window ------------------------------------------------------------------------------------------------------


def _one_window(b: Builder, s: _Scatter) -> Value | None:
    """Replaces a slice, for one window at a known index inside; else returns None."""
    # An index of no numbers, as of `x.at[:]`, means the first place.
    constant = known(b, s.index) if s.mapped else np.zeros(0, INDEX)
    shape, sizes = b.shape(s.x), s.sizes(b)
    if constant is None or math.prod(b.shape(s.index)[:-1]) != 1 or s.batching:
        return None
    at = [0] * len(shape)
    for dim, place in zip(s.mapped, constant.reshape(-1), strict=True):
        most = shape[dim] - sizes[dim]
        at[dim] = int(place) if s.drops else min(max(int(place), 0), most)
        if not 0 <= at[dim] <= most:
            return s.x
    new = b.reshape(s.new, sizes)
    if s.kind is not None:
        new = _combine(b, s.kind, b.slice(s.x, at, [i + n for i, n in zip(at, sizes, strict=True)]), new)
    zero = b.full((), 0, INDEX)
    return update_slice(b, s.x, new, at, [zero] * len(shape))


def _one_row(b: Builder, s: _Scatter) -> Value | None:
    """Writes one row of full length at a computed index by a mask, empty if it is out of range; else returns None."""
    shape, sizes = b.shape(s.x), s.sizes(b)
    if math.prod(b.shape(s.index)) != 1 or s.batching:
        return None
    (dim,) = s.mapped
    if any(n != (1 if d == dim else whole) for d, (n, whole) in enumerate(zip(sizes, shape, strict=True))):
        return None
    index = reshape(b, s.index, ())
    index = index if s.drops else clamp_indices(b, index, shape[dim] - 1)
    here = compare(b, "eq", positions(b, shape, dim), index)
    return select(b, here, _combine(b, s.kind, s.x, b.reshape(s.new, sizes)), s.x)


# --- many windows ----------------------------------------------------------------------------------------------------


def _inside(b: Builder, s: _Scatter) -> _Scatter:
    """Returns the scatter with indices known to be inside, clamped if the mode clips."""
    if not s.mapped:
        return replace(s, drops=False)
    shape, sizes = b.shape(s.x), s.sizes(b)
    most = [shape[d] - sizes[d] for d in s.mapped]
    constant = known(b, s.index)
    if constant is not None and ((constant >= 0) & (constant <= np.array(most))).all():
        return replace(s, drops=False)
    if s.drops:
        return s
    return replace(s, index=clamp_indices(b, s.index, most[0] if len(most) == 1 else most), drops=False)


def _many(b: Builder, s: _Scatter, line: str) -> Value:
    """Builds a scatter along the one mapped dim, else along all dims as one."""
    shape, sizes = b.shape(s.x), s.sizes(b)
    batch = b.shape(s.index)[:-1]
    order = [*(d for d in range(len(b.shape(s.new))) if d not in s.window), *s.window]
    good = in_range(b, s.index, s.mapped, shape, sizes) if s.drops else None
    if len(s.mapped) == 1 and not s.batching:
        (dim,) = s.mapped
        if all(n == (1 if d == dim else whole) for d, (n, whole) in enumerate(zip(sizes, shape, strict=True))):
            return _along_one(b, s, dim, b.permute(s.new, order), good)
    rest = {d: d for d in range(len(shape)) if d not in s.mapped}
    batching = dict(zip(s.batching, s.index_batching, strict=True))
    if len(s.mapped) == 1 and s.inserted == s.mapped and len(batch) == len(shape) and batching == rest:
        # One index per update, along one dim. As one row, the tensor would be padded to the height of a tile.
        (dim,) = s.mapped
        index = b.reshape(s.index, batch)
        index = index if good is None else select(b, b.reshape(good, batch), index, b.full((), shape[dim], INDEX))
        return _scatter_along(b, s, s.x, index, b.permute(s.new, order), dim)
    count = math.prod(shape)
    if count >= MOST:
        raise UnsupportedError(
            f"{line}: a scatter over several dims counts its places in 32 bits, but {list(shape)} has {count} elements;"
            " scatter along one dim, or to a smaller array."
        )
    places = _row_indices(b, s, shape, sizes, batch)
    if good is not None:
        wide = b.reshape(good, (*b.shape(good), *[1] * len(shape)))
        places = select(b, wide, places, b.full((), count, INDEX))
    places = b.broadcast(places, (*batch, *sizes))
    flat = (math.prod(b.shape(s.new)),)
    new = b.reshape(b.permute(s.new, order), flat)
    made = _scatter_along(b, s, b.reshape(s.x, (count,)), b.reshape(places, flat), new, 0)
    return b.reshape(made, shape)


def _along_one(b: Builder, s: _Scatter, dim: int, new: Value, good: Value | None) -> Value:
    """Builds a scatter of rows of full length along one dim."""
    shape = b.shape(s.x)
    count = math.prod(b.shape(s.index))
    index = reshape(b, s.index, (count,))
    if good is not None:
        index = select(b, b.reshape(good, (count,)), index, b.full((), shape[dim], INDEX))
    others = [d for d in range(len(shape)) if d != dim]
    new = b.reshape(new, (count, *(shape[d] for d in others)))
    new = b.permute(new, [0 if d == dim else 1 + others.index(d) for d in range(len(shape))])
    return _scatter_along(b, s, s.x, broadcast_to(b, index, b.shape(new), (dim,)), new, dim)


def _scatter_along(b: Builder, s: _Scatter, x: Value, index: Value, new: Value, dim: int) -> Value:
    """Builds a scatter along a dim, with an element behind its end for dropped updates."""
    shape = b.shape(x)
    if s.drops:
        spare = tuple(1 if d == dim else n for d, n in enumerate(shape))
        x = b.concat([x, b.full(spare, 0, b.dtype(x))], dim)
    made = b.same("scatter", [x, index, new], dim=dim, scatter_reduce_type=s.kind or "invalid")
    return b.slice(made, [0] * len(shape), shape) if s.drops else made


def _row_indices(b: Builder, s: _Scatter, shape: Shape, sizes: Shape, batch: Shape) -> Value:
    """Returns the row-major index of each element of each window: `(batch..., sizes...)`, or 1 for some of these."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    rank = len(batch)
    whole = (*batch, *sizes)
    steps = [(rank + d, n) for d, n in enumerate(strides) if sizes[d] > 1]
    steps += [(at, strides[dim]) for dim, at in zip(s.batching, s.index_batching, strict=True)]
    total = b.full((1,) * len(whole), 0, INDEX)
    for at, stride in steps:
        total = b.binary("add", total, positions(b, whole, at, stride))
    for i, dim in enumerate(s.mapped):
        column = b.slice(s.index, (*[0] * rank, i), (*batch, i + 1))
        start = b.reshape(column, (*batch, *[1] * len(sizes)))
        if strides[dim] != 1:
            start = b.binary("multiply", start, b.full((), strides[dim], INDEX))
        total = b.binary("add", total, start)
    return total
