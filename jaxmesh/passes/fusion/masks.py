"""The masks of attention: what is added to the scores, or which scores count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.passes.fusion import axes as of
from jaxmesh.passes.fusion.axes import Atom, Axes, Axis, Cuts, Rearranger
from jaxmesh.passes.fusion.dataflow import BF16, Flow, View

LOW = -(238 * 2.0**22)
"""The number at or below which a score counts for nothing: -1e9, as bfloat16 rounds it."""
_LOWEST = -(2 - 2.0**-7) * 2.0**127
"""The least finite number of bfloat16."""


@dataclass(slots=True)
class Mask:
    """A mask in the dims of the scores.

    Attributes:
      view: of the mask, aligned to scores of some shape.
      axes: those of these scores, in terms of the product of queries and keys.
      fill: the score where a truth value is false; None for numbers that are added.
      hides: True if it is the score where a truth value is true.
    """

    view: View
    axes: Axes
    fill: float | None = None
    hides: bool = False

    def parts(self) -> list[Atom]:
        """Returns the parts of the dims of the scores along which the mask varies."""
        return [a for axis, d in zip(self.axes, self.view.dims, strict=True) if d is not None for a in axis]


def conditions(flow: Flow, view: View, axes: Axes, fill: float, hides: bool = False) -> list[Mask]:
    """Returns the conditions that must all hold, or with `hides` all not hold, for a score to count."""
    view, hides = _affirmed(flow, view, hides)
    number, op = flow.numbers.get(view.value), flow.maker(view.value, "logical_or" if hides else "logical_and")
    if number is not None and bool(number) != hides:
        return []
    if op is None:
        return [Mask(view, axes, fill, hides)]
    shape = flow.shape(view.value)
    return [m for v in op.used for m in conditions(flow, view.of(flow.align(v, shape)), axes, fill, hides)]


def _affirmed(flow: Flow, view: View, hides: bool) -> tuple[View, bool]:
    """Returns a condition without negations and choices of truth values, and whether it says which scores do not
    count."""
    view = flow.follow(view, flow.moved)
    op = flow.makers.get(view.value)
    is_not = op is not None and op.name == "ttir.logical_not"
    chosen = [flow.numbers.get(v) for v in op.used[1:]] if op is not None and op.name == "ttir.where" else []
    if op is None or not (is_not or chosen in ([True, False], [False, True])):
        return view, hides
    inner = view.of(flow.align(op.used[0], flow.shape(view.value)))
    return _affirmed(flow, inner, hides != (is_not or not chosen[0]))


def added_condition(flow: Flow, view: View, axes: Axes) -> list[Mask] | None:
    """Returns the conditions of a mask that adds 0 to a score that counts, and else a very low number; None for other
    numbers."""
    op = flow.maker(view.value, "where")
    chosen = [float(n) for v in op.used[1:] if (n := flow.numbers.get(v)) is not None] if op is not None else []
    if op is None or len(chosen) < 2 or max(chosen) != 0 or not min(chosen) <= LOW:
        return None
    inner = view.of(flow.align(op.used[0], flow.shape(view.value)))
    return conditions(flow, inner, axes, min(chosen), chosen[0] < 0)


@dataclass(slots=True)
class Roles:
    """The dims of the fused operation, in terms of the product of queries and keys.

    `shared` are those parts of the rows that become heads, as the mask is the same for all of them.
    """

    batch: Axis
    heads: Axis
    shared: Axis
    rows: Axis
    keys: Axis

    @property
    def groups(self) -> tuple[Axis, ...]:
        """The parts along each dim of a mask."""
        return self.batch, self.heads + self.shared, self.rows, self.keys


def decide(masks: Sequence[Mask], whole: Axes, cuts: Cuts, keys_dim: int) -> Roles | None:
    """Decides what becomes batch, heads and rows: what shares a mask becomes heads, and so does the rest of a batch."""
    batch, rows = cuts.parts(a for x in whole[:-2] for a in x), cuts.parts(whole[2 * len(whole) - 3 - keys_dim])
    varied = [cuts.parts(m.parts()) for m in masks]
    keys = cuts.parts(whole[keys_dim])
    if batch is None or rows is None or None in varied or keys is None or len(keys) > 1:
        return None
    along = {p for parts in varied for p in parts or ()}
    own = tuple(p for p in rows if p in along) or rows
    shared = tuple(p for p in rows if p not in own)
    flags = [p in along for p in batch]
    if not any(flags):
        split = min(1, len(batch) - 1) if batch else 0
    elif all(flags[: (split := len(flags) - flags[::-1].index(True))]):
        pass
    elif shared or not all(flags[(split := flags.index(True)) :]):
        return None
    return Roles(batch[:split], batch[split:], shared, own, keys)


def causal_mask(flow: Flow, masks: Sequence[Mask], keys: int, shape: Shape) -> Mask | None:
    """Returns the only mask, as one along queries and keys alone, if each query sees the keys up to its own place."""
    if len(masks) != 1 or masks[0].fill is None:
        return None
    (mask,) = masks
    places = {axis[0][0]: d for d, axis in enumerate(mask.axes) if len(axis) == 1 and axis[0][2] == shape[keys]}
    row, column = places.get(2 * len(shape) - 3 - keys), places.get(keys)
    view, op = mask.view, flow.makers.get(mask.view.value)
    names = ("ttir.lt", "ttir.gt") if mask.hides else ("ttir.ge", "ttir.le")
    if row is None or column is None or op is None or op.name not in names:
        return None
    sides = (row, column) if op.name == names[0] else (column, row)
    operands = [view.of(flow.align(v, flow.shape(view.value))) for v in op.used]
    if not all(_counts(flow, v, d) for v, d in zip(operands, sides, strict=True)):
        return None
    dims = tuple([d if place in sides else None for place, d in enumerate(mask.view.dims)])
    return Mask(View(mask.view.value, dims), mask.axes, mask.fill)


def _counts(flow: Flow, view: View, dim: int) -> bool:
    """Returns True if the elements of a value, seen by a view, are their own places along a dim of it."""
    view = flow.follow(view, flow.moved)
    op = flow.makers.get(view.value)
    if op is not None and op.name == "ttir.add" and flow.numbers.get(op.used[1]) == 0:
        return _counts(flow, view.of(flow.align(op.used[0], flow.shape(view.value))), dim)
    if op is None or [d for d, inner in enumerate(view.dims) if inner is not None] != [dim]:
        return False
    if op.name == "ttir.arange":
        return (op.attributes["start"], op.attributes["step"]) == (0, 1)
    elements = np.asarray(op.attributes["value"]).reshape(-1) if op.name == "ttir.constant" else np.zeros(2)
    return bool((elements == np.arange(elements.size)).all())


def added(flow: Flow, b: Rearranger, masks: Sequence[Mask], roles: Roles, cuts: Cuts) -> Value | None:
    """Returns the numbers that are added to the scores; None if the fused operation takes another mask."""
    fills = {m.fill for m in masks}
    arranged = [_arranged(flow, b, m, roles, cuts) for m in masks]
    numbers = [v for v, m in zip(arranged, masks, strict=True) if m.fill is None]
    if None in arranged or len(numbers) > 1 or len(fills - {None}) > 1 or (numbers and masks[0].fill is not None):
        return None
    whole = (1, 1, *map(of.count, roles.groups[2:]))
    values = [v for v in arranged if v is not None]
    shape = np.broadcast_shapes(whole, *map(b.shape, values))
    bias = None if not numbers or numbers[0] is None else _broadcast(b, numbers[0], shape)
    rows = zip(values, masks, strict=True)
    conditions = [b.op("logical_not", [v], b.shape(v), b.dtype(v)) if m.hides else v for v, m in rows][len(numbers) :]
    if not conditions:
        return bias
    seen = conditions[0]
    for other in conditions[1:]:
        seen = b.binary("logical_and", seen, other)
    low = max(f for f in fills if f is not None)
    low = low if math.isinf(low) else _LOWEST
    kept = b.op("full", (), shape, BF16, shape=shape, fill_value=0.0) if bias is None else bias
    hidden = b.op("full", (), shape, BF16, shape=shape, fill_value=low)
    return b.op("where", [_broadcast(b, seen, shape), kept, hidden], shape, BF16)


def _arranged(flow: Flow, b: Rearranger, mask: Mask, roles: Roles, cuts: Cuts) -> Value | None:
    """Returns a mask with a dim each for batch, heads, rows and keys, of size 1 where it is the same along them."""
    names: dict[Atom, Axis] = {}
    for axis, d in zip(mask.axes, mask.view.dims, strict=True):
        parts = None if d is None else cuts.parts(axis)
        if d is None or parts is None:
            continue
        found = of.grouped(((d, 1, of.count(axis)),), [n for _, _, n in parts])
        names.update(zip(parts, found or (), strict=True))
    if any(0 < sum(p in names for p in group) < len(group) for group in roles.groups):
        return None
    axes = tuple([of.renamed(group, names) if group and group[0] in names else () for group in roles.groups])
    return b.arrange(mask.view.value, axes)


def _broadcast(b: Rearranger, x: Value, shape: Shape) -> Value:
    counts = tuple(n // m for n, m in zip(shape, b.shape(x), strict=True))
    return x if b.shape(x) == shape else b.op("broadcast", [x], shape, b.dtype(x), broadcast_dimensions=counts)
