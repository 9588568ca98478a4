"""The moves of a program and their totals; explanations, estimates and comparisons show them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxmesh.dialects.ttnn.transfers import cut_axes
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig
from jaxmesh.sharding.distribution import mesh_axis_dims, resolve_composer, resolve_mapper

HOST_KINDS = ("distribute", "aggregate")
"""The kinds of moves between the host and the devices; all other kinds are among the devices."""
SEND = "point_to_point"
ENDLESS = "a loop whose end only the devices know counts as one iteration"


@dataclass(frozen=True, slots=True)
class Move:
    """One exchange of data, executed `count` times.

    Attributes:
      kind: the TTNN op: `distribute`, `aggregate`; `all_reduce`, `all_gather`, `reduce_scatter`, `point_to_point`,
        `all_to_all_dispatch`, `all_to_all_combine`. Of a program without a text, also `all_to_all`,
        `collective_permute` and `collective_broadcast`.
      axes: the mesh axes along which it runs; for a distribute or an aggregate, the sharded axes.
      group_size: the number of devices in a group that exchanges data.
      groups: the number of groups.
      bytes: the payload on one device: of its result for an all_gather, of its operand for all others, which is the
        larger side of every collective; of a distribute or aggregate the shard. Sends that follow each other run on
        different devices: the bytes of a point_to_point are those that it adds to the busiest sender.
      sent: the bytes that all devices send together if no byte is sent twice (a ring, for groups of n devices with S
        bytes each): all_reduce 2(n-1)S, all_gather n(n-1)S, reduce_scatter and all_to_all (n-1)S per group,
        point_to_point S. For an exchange of experts, the most that routes can ask for. For a distribute, the bytes that
        the host sends, one copy for each device; for an aggregate, the bytes that it receives.
      distinct: for a distribute or aggregate, the bytes of the global tensor without copies; else None.
      count: the number of executions.
      exact: False in a branch, which may not be taken, or in a loop of unknown length, which counts as one iteration.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    groups: int
    bytes: int
    sent: int
    distinct: int | None = None
    count: int = 1
    exact: bool = True


def merge(moves: Iterable[Move]) -> tuple[Move, ...]:
    """Returns the moves with equal ones added up; sends along the same axis are one move."""
    merged: dict[object, Move] = {}
    for move in moves:
        key = (move.kind, move.axes) if move.kind == SEND else replace(move, count=0)
        old = merged.get(key)
        if old is None:
            merged[key] = _once(move) if move.kind == SEND else move
        elif move.kind == SEND:
            merged[key] = _once(old, _once(move))
        else:
            merged[key] = replace(old, count=old.count + move.count)
    return tuple(merged.values())


def _once(move: Move, other: Move | None = None) -> Move:
    """Returns sends as one move that is executed once, with the groups of all."""
    size, sent, groups = (n * move.count for n in (move.bytes, move.sent, move.groups))
    if other is not None:
        size, sent, groups = size + other.bytes, sent + other.sent, groups + other.groups
    exact = move.exact and (other is None or other.exact)
    return replace(move, bytes=size, sent=sent, groups=groups, count=1, exact=exact)


def exchange(
    kind: str, axes: tuple[str, ...], size: int, groups: int, operand: int, result: int, pairs: int = 0
) -> list[Move]:
    """Returns a collective among groups of `size` devices; empty without bytes or without another device in the
    group."""
    payload = result if kind in ("all_gather", "all_to_all_combine") else operand
    if not payload or size < 2 or (kind == "collective_permute" and not pairs):
        return []
    sent = {
        "all_reduce": 2 * (size - 1) * operand,
        "all_gather": size * (size - 1) * operand,
        "reduce_scatter": (size - 1) * operand,
        "all_to_all": (size - 1) * operand,
        # The most: each token has an expert on each of the other devices.
        "all_to_all_dispatch": size * (size - 1) * operand,
        "all_to_all_combine": size * result,
        "collective_permute": pairs * operand,
        "collective_broadcast": (size - 1) * operand,
    }.get(kind, 0)
    return [Move(kind, axes, size, groups, payload, groups * sent)]


def distribute(config: MeshMapperConfig, mesh: Mapping[str, int], shape: Sequence[int], itemsize: int) -> Move:
    """Returns the move of a global tensor from the host, a shard to each device that holds one."""
    resolved = resolve_mapper(config, tuple(mesh.values()), shape)
    cut, holders = cut_axes(resolved, mesh), resolved.count
    axes = tuple(a for a, n in mesh.items() if a in cut and n > 1)
    size, shard = math.prod(mesh[a] for a in axes), math.prod(resolved.local) * itemsize
    full = math.prod(shape) * itemsize
    return Move("distribute", axes, size, holders // size, shard, holders * shard, full)


def aggregate(config: MeshComposerConfig, mesh: Mapping[str, int], shape: Sequence[int], itemsize: int) -> Move:
    """Returns the move of shards to the host, one from each device that is read."""
    resolved = resolve_composer(config, tuple(mesh.values()), shape)
    dims = mesh_axis_dims(resolved.landing, resolved.dims, drop_single=True)
    joined = [n > 1 for n in mesh.values()] if dims is None else [d is not None for d in dims]
    axes, full = tuple(itertools.compress(mesh, joined)), math.prod(resolved.full) * itemsize
    return Move("aggregate", axes, resolved.landing.size, 1, math.prod(shape) * itemsize, full, full)


@dataclass(frozen=True, slots=True)
class Total:
    """All moves of one kind along the same axes.

    Attributes:
      count: the number of executions.
      bytes: the payloads on one device, all executions together.
      sent: the bytes that all devices send, all executions together.
      exact: False if a move is not exact, as defined by `Move`.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    sent: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.moves}: {self.bytes:,} bytes per device"

    @property
    def moves(self) -> str:
        """The number of moves, their kind and their axes, such as `2 all_reduce over x`."""
        return f"{self.count:,} {self.kind}" + (f" over {', '.join(self.axes)}" if self.axes else "")


def totals(moves: Iterable[Move]) -> list[Total]:
    """Sums moves by kind and axes: between host and devices first, then among the devices."""
    added: dict[tuple[str, tuple[str, ...]], Total] = {}
    for move in moves:
        key = (move.kind, move.axes)
        old = added.get(key, Total(*key, 0, 0, 0, True))
        times = move.count * (move.groups if move.kind == SEND else 1)
        size, sent = old.bytes + move.count * move.bytes, old.sent + move.count * move.sent
        added[key] = Total(*key, old.count + times, size, sent, old.exact and move.exact)
    return sorted(added.values(), key=lambda t: t.kind not in HOST_KINDS)
