"""Reshards of values by whole mesh axes: slices, all_to_alls, all_gathers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxmesh.frontends.stablehlo import values
from jaxmesh.frontends.stablehlo.shardings import Sharding, axes_of, count


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

    def shared(sharding: Sharding) -> Sharding:
        return tuple(tuple(a for a in axes if sizes[a] > 1) for axes in sharding)

    pairs = list(enumerate(zip(source, target, strict=True)))
    left = [ReshardStep("all_gather", a, i) for i, (s, t) in pairs for a in s if sizes[a] == 1 and a not in t]
    entered = [ReshardStep("slice", a, i) for i, (s, t) in pairs for a in t if sizes[a] == 1 and a not in s]
    return [*left, *_plan(shared(source), shared(target), shape, sizes), *entered]


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


def perform(x: Any, moves: list[ReshardStep], sizes: Mapping[str, int]) -> Any:
    """Performs the steps of a reshard on a shard."""
    for move in moves:
        match move.kind:
            case "slice":
                x = values.own_slice(x, move.axis, move.dim, sizes)
            case "all_to_all":
                x = values.all_to_all(x, move.axis, move.dim, move.source)
                if move.group:
                    x = values.reorder(x, move.source, [sizes[a] for a in move.group])
            case _:
                x = values.all_gather(x, move.axis, move.dim)
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
