"""Values of a partitioned program: this device's shard, the global sharding, pending reductions, repeats, reshards."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

from jaxmesh.dialects.ttir.collectives import exchange, gather
from jaxmesh.frontends.jax.retype import spread
from jaxmesh.frontends.stablehlo.shardings import Sharding, axes_of, count, split_only
from jaxmesh.jaxprs.compat import Atom
from jaxmesh.jaxprs.emit import Steps, alike, as_tracer, current_trace, type_in_trace
from jaxmesh.jaxprs.untyped import lax

_FIRST: Any = np.int32(0)


@dataclass(slots=True, eq=False)
class Sharded:
    """A value inside the region of all devices.

    Attributes:
      array: this device's shard, `[local shape]`.
      sharding: per dim the mesh axes that split the global value.
      partial: the mesh axes with a pending reduction of the shards, by `kind`.
      kind: `sum`, `max`, `min`, `prod`, `and` or `or`.
      source: the op that produced a partial value.
      known: cached reshards and reductions of this value, per scope.
    """

    array: jax.Array
    sharding: Sharding
    partial: tuple[str, ...] = ()
    kind: str = ""
    source: ir.Operation | None = None
    known: dict[object, Sharded] = field(default_factory=dict[object, "Sharded"])
    make: Callable[[Sharding], jax.Array] | None = None
    """A function that creates the shard in another sharding without communication, for a value such as a constant."""


def axis_position(axes: Sequence[str], sizes: Mapping[str, int]) -> jax.Array:
    """Returns the row-major position of this device along mesh axes, an int32."""
    position = _FIRST
    for axis in axes:
        index = lax.axis_index(axis)
        position = index if position is _FIRST else position * np.int32(sizes[axis]) + index
    return position


def reduce_over(x: jax.Array, axes: Sequence[str], kind: str) -> jax.Array:
    """Reduces a value over mesh axes; the result is replicated along them."""
    names = tuple(axes)
    x = spread(x, names)
    small = x.dtype == np.bool_ or (jnp.issubdtype(x.dtype, jnp.integer) and jnp.iinfo(x.dtype).bits < 8)
    if small:
        of_bools = _OF_BOOLS.get(kind, kind) if x.dtype == np.bool_ else kind
        wide = reduce_over(lax.convert_element_type(x, np.int32), names, of_bools)
        return lax.convert_element_type(wide, x.dtype)
    match kind:
        case "sum":
            return lax.psum(x, names)
        case "max" | "or" if not (kind == "or" and x.dtype != np.bool_):
            return lax.pmax(x, names)
        case "min":
            return lax.pmin(x, names)
        case _:
            return _gather_and_reduce(x, names, kind)


_OF_BOOLS = {"sum": "max", "or": "max", "and": "min", "prod": "min"}
"""Reductions of booleans, as reductions of the integers 0 and 1."""


def _gather_and_reduce(x: jax.Array, axes: tuple[str, ...], kind: str) -> jax.Array:
    # Reduce after each axis, so that the next all_gather receives one value per device.
    for axis in reversed(axes):
        x = COMBINE_DIMS[kind](all_gather(lax.expand_dims(x, (0,)), axis, 0), (0,))
    return x


COMBINE: dict[str, Callable[..., jax.Array]] = {
    "sum": lax.add,
    "max": lax.max,
    "min": lax.min,
    "prod": lax.mul,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
}
"""Reductions of two values, by kind."""
COMBINE_DIMS: dict[str, Callable[..., jax.Array]] = {kind: getattr(lax, f"reduce_{kind}") for kind in COMBINE}
"""Reductions over tensor dims, by kind."""


def all_gather(x: jax.Array, axis: str, dim: int) -> jax.Array:
    """Joins the shards along a mesh axis; the result is equal along it."""
    return gather(_as_numbers(x), axis, dim, tiled=True).astype(x.dtype)


def _as_numbers(x: jax.Array) -> jax.Array:
    """Converts truth values to bytes."""
    return x.astype(np.uint8) if x.dtype == np.bool_ else x


def own_slice(x: jax.Array, axis: str, dim: int, sizes: Mapping[str, int]) -> jax.Array:
    """Returns this device's part of a dim along a mesh axis."""
    shape, starts = list(x.shape), [np.int32(0)] * x.ndim
    shape[dim] //= sizes[axis]
    starts[dim] = lax.axis_index(axis) * np.int32(shape[dim])
    return lax.dynamic_slice(spread(x, (axis,)), starts, shape, allow_negative_indices=False)


def all_to_all(x: jax.Array, axis: str, split: int, join: int) -> jax.Array:
    """Moves a mesh axis from the dim `join` to the dim `split`."""
    return exchange(_as_numbers(x), (axis,), split, join).astype(x.dtype)


def reorder(x: jax.Array, dim: int, sizes: Sequence[int]) -> jax.Array:
    """Orders the parts of a dim that was joined along axes of some sizes, so that the first axis is major."""
    count = len(sizes)
    parts = [*reversed(sizes), x.shape[dim] // math.prod(sizes)]
    apart = lax.reshape(x, (*x.shape[:dim], *parts, *x.shape[dim + 1 :]))
    order = [*range(dim), *reversed(range(dim, dim + count)), *range(dim + count, apart.ndim)]
    return lax.reshape(lax.transpose(apart, order), x.shape)


# --- repeated ops -----------------------------------------------------------------------------------------------------


Make = Callable[[jax.Array, Sharding], jax.Array]
"""A function that creates the shard of a result from the operand and the sharding."""


class Import(NamedTuple):
    """The import of an op without communication; `region` stands for the op's region, if it has one."""

    region: str
    steps: Steps
    make: Make | None
    splits: bool


class Repeat(NamedTuple):
    """The import of an op: its equations, and its result."""

    steps: Steps
    trace: object
    mark: object
    sharding: Sharding
    make: Make | None
    splits: bool


Row = tuple[object, Atom, Repeat | Sharded, Atom]
"""A value: its mark, its variable or constant, the shard or its import, and the first operand of the import.

Values of one scope share a mark if ops treat them alike; the mark of other values is None.
"""


class ShardTable(dict[ir.Value, Sharded]):
    """The shards of values; the shard of a repeated result is created when it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[ir.Value, Row] = {}
        self.repeats: dict[object, Repeat | Row] = {}
        self._marks: dict[object, object] = {}

    def __missing__(self, value: ir.Value) -> Sharded:
        _, atom, x, operand = self.rows[value]
        if isinstance(x, Repeat):
            make = x.make and functools.partial(x.make, as_tracer(x.trace, operand))
            x = Sharded(as_tracer(x.trace, atom), x.sharding, make=make)
        self[value] = x
        return x

    def define(self, scope: object, value: ir.Value, x: Sharded) -> Row:
        """Adds a value of a scope."""
        known = None if x.partial else type_in_trace(x.array)
        key = scope, value.type, x.sharding, known
        mark = None if known is None else self._marks.setdefault(key, object())
        self[value] = x
        row = self.rows[value] = mark, getattr(x.array, "val", x.array), x, None
        return row

    def key(self, scope: object, op: ir.Operation, region: str, operands: Sequence[Row]) -> object:
        """Returns a key that is equal for equal ops on operands with the same marks.

        `region` stands for the op's region, if it has one.
        """
        kind, name = op.results[0].type, op.name
        # MLIR's bindings cannot read complex constants; no two have one key.
        unread = name == "stablehlo.constant" and isinstance(kind.element_type, ir.ComplexType)
        attributes = object() if unread else tuple(op.attributes.items())
        return scope, name, attributes, region, kind, alike([row[1] for row in operands]), *[row[0] for row in operands]

    def remember(self, scope: object, op: ir.Operation, row: Row, made: Import) -> None:
        """Keeps the import of an op of one result, its `row`, for equal ops of the scope; see `Repeat`."""
        operands = [self.rows[v] for v in op.operands if v in self.rows]
        mark, y = row[0], self[op.results[0]]
        if len(operands) == len(op.operands) and mark and all(row[0] for row in operands):
            repeat = Repeat(made.steps, current_trace(), mark, y.sharding, made.make, made.splits)
            self.repeats[self.key(scope, op, made.region, operands)] = repeat


# --- reshards ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReshardStep:
    """One step of a reshard: `kind` is slice, all_to_all or all_gather, from `source` (if any) to `dim`.

    In a group of axes that move together, the major axis moves first. The remaining parts of dim `source` are then in
    arrival order; the last step of the group has all axes as `group`, and reorders the parts in axis order.
    """

    kind: str
    axis: str
    dim: int
    source: int = -1
    group: tuple[str, ...] = ()


def plan(source: Sharding, target: Sharding, shape: tuple[int, ...], sizes: Mapping[str, int]) -> list[ReshardStep]:
    """Returns the steps from one sharding of a value to another, given its global shape.

    Slices over free axes come first, since they shrink the operands of later steps. Then axes move between
    dims; the remaining axes are gathered.

    >>> [f"{m.kind} {m.axis}" for m in plan((("x",), ()), ((), ("x",)), (8, 8), {"x": 4})]
    ['all_to_all x']
    >>> [f"{m.kind} {m.axis}" for m in plan((("x", "y"), ()), (("y",), ()), (8, 8), {"y": 2, "x": 4})]
    ['all_gather y', 'all_gather x', 'slice y']
    >>> [f"{m.kind} {m.axis}" for m in plan((("x", "y"), ()), ((), ("x", "y")), (8, 8), {"y": 2, "x": 4})]
    ['all_to_all x', 'all_to_all y']
    >>> [f"{m.kind} {m.axis}" for m in plan((("y", "x"),), (("x",),), (8,), {"y": 1, "x": 4})]
    ['all_gather y']
    """
    moves = _plan(source, target, shape, sizes)
    apart = _plan_without_single(source, target, shape, sizes) if 1 in sizes.values() else moves
    return min(moves, apart, key=lambda found: sum(sizes[m.axis] > 1 for m in found))


def moved_elements(source: Sharding, target: Sharding, shape: tuple[int, ...], sizes: Mapping[str, int]) -> float:
    """Returns the elements that a device receives in a reshard.

    >>> moved_elements((("x",),), ((),), (8,), {"x": 4}), moved_elements(((),), (("x",),), (8,), {"x": 4})
    (6.0, 0.0)
    """
    size: float = math.prod(shape) / count(axes_of(source), sizes)
    moved: float = 0
    for step in plan(source, target, shape, sizes):
        n = sizes[step.axis]
        moved += {"slice": 0, "all_to_all": (n - 1) / n, "all_gather": n - 1}[step.kind] * size
        size *= {"slice": 1 / n, "all_to_all": 1, "all_gather": n}[step.kind]
    return moved


def _plan_without_single(
    source: Sharding, target: Sharding, shape: tuple[int, ...], sizes: Mapping[str, int]
) -> list[ReshardStep]:
    """Returns the steps if axes of size 1, which split nothing, leave a dim first and enter one last."""
    pairs = list(enumerate(zip(source, target, strict=True)))
    left = [ReshardStep("all_gather", a, i) for i, (s, t) in pairs for a in s if sizes[a] == 1 and a not in t]
    entered = [ReshardStep("slice", a, i) for i, (s, t) in pairs for a in t if sizes[a] == 1 and a not in s]
    return [*left, *_plan(split_only(source, sizes), split_only(target, sizes), shape, sizes), *entered]


def _plan(source: Sharding, target: Sharding, shape: tuple[int, ...], sizes: Mapping[str, int]) -> list[ReshardStep]:
    now, moves = [list(a) for a in source], list[ReshardStep]()
    while now != [list(a) for a in target]:
        for move in _group(now, target) or [next(_possible(now, target, shape, sizes))]:
            moves.append(move)
            if move.kind != "slice":
                now[move.source if move.source >= 0 else move.dim].remove(move.axis)
            if move.kind != "all_gather":
                now[move.dim].append(move.axis)
    return moves


def _group(now: list[list[str]], target: Sharding) -> list[ReshardStep]:
    """Returns the moves of several minor axes of a dim to a dim that needs them in the same order, or an empty list."""
    for i, wanted in enumerate(target):
        if not _is_start(now[i], wanted):
            continue
        missing = wanted[len(now[i]) :]
        for j, axes in enumerate(now):
            size = len(axes) - axes.index(missing[0]) if missing and missing[0] in axes else 0
            group = tuple(axes[-size:])
            if j != i and size > 1 and missing[:size] == group:
                return [ReshardStep("all_to_all", a, i, j, group if a == group[-1] else ()) for a in group]
    return []


def _possible(
    now: list[list[str]], target: Sharding, shape: tuple[int, ...], sizes: Mapping[str, int]
) -> Iterator[ReshardStep]:
    used = {a for axes in now for a in axes}
    wanted = {i: axis for i, axis in enumerate(map(_next, now, target)) if axis is not None}
    yield from (ReshardStep("slice", axis, i) for i, axis in wanted.items() if axis not in used)
    leaving = {axes[-1]: j for j, axes in enumerate(now) if axes and not _is_start(axes, target[j])}
    for i, axis in wanted.items():
        if axis in leaving and leaving[axis] != i and shape[i] % count([*now[i], axis], sizes) == 0:
            yield ReshardStep("all_to_all", axis, i, leaving[axis])
    # Gather the smallest axis first, since it yields the smallest value.
    yield from (
        ReshardStep("all_gather", axis, j) for axis, j in sorted(leaving.items(), key=lambda item: sizes[item[0]])
    )


def _is_start(axes: list[str], target: tuple[str, ...]) -> bool:
    return axes == list(target[: len(axes)])


def _next(now: list[str], target: tuple[str, ...]) -> str | None:
    """Returns the next axis to split a dim over, if its present axes may stay."""
    return target[len(now)] if _is_start(now, target) and len(now) < len(target) else None


def perform(x: jax.Array, moves: list[ReshardStep], sizes: Mapping[str, int]) -> jax.Array:
    """Performs the steps of a reshard on a shard."""
    for move in moves:
        match move.kind:
            case "slice":
                x = own_slice(x, move.axis, move.dim, sizes)
            case "all_to_all":
                x = all_to_all(x, move.axis, move.dim, move.source)
                if move.group:
                    x = reorder(x, move.source, [sizes[a] for a in move.group])
            case _:
                x = all_gather(x, move.axis, move.dim)
    return x


def global_shape(local: tuple[int, ...], sharding: Sharding, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the global shape of a shard."""
    return tuple(n * count(a, sizes) for n, a in zip(local, sharding, strict=True))


def added_axes(source: Sharding, target: Sharding) -> list[tuple[str, int]] | None:
    """Returns the axes and dims that a target splits in addition to a source; None if they differ in any other way."""
    if any(not _is_start(list(s), t) for s, t in zip(source, target, strict=True)):
        return None
    taken = set(axes_of(source))
    added = [(a, i) for i, (s, t) in enumerate(zip(source, target, strict=True)) for a in t[len(s) :]]
    return None if any(a in taken for a, _ in added) else added
