"""The moves of one equation and their bytes: arithmetic on types and configs.

Payloads and bytes sent are defined by `jaxmesh.analysis.explain.Move`. A collective over several axes is one exchange
among all devices along them, as XLA runs it; an axis of one device moves nothing.

The bytes equal the traffic of XLA's optimized program, except where XLA optimizes further. It merges equal collectives,
removes more dead code, and carries 16-bit floats as float32 between CPUs. Without a host, it also reshards among the
devices where a program goes through the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from jaxmesh.analysis.explain.records import Move
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.primitives import COLLECTIVES, RETYPES
from jaxmesh.sharding.distribution import mesh_axis_dims, resolve_composer, resolve_mapper

Mesh = Mapping[str, int]
UNKNOWN = "unknown"
"""The kind of a primitive that names mesh axes and has no rule in this module."""


def nbytes(avals: Iterable[Any]) -> int:
    """Returns the bytes of arrays; an element narrower than a byte takes one byte in a transfer."""
    return sum(math.prod(a.shape) * int(a.dtype.itemsize) for a in avals if compat.is_array_type(a))


# --- among the devices -----------------------------------------------------------------------------------------------

_STILL = RETYPES | {"axis_index", "check_copies", "shard_map"}
"""Primitives that name mesh axes but move no data."""


def collective(eqn: Eqn, mesh: Mesh) -> list[Move]:
    """Returns the moves of an equation on the devices."""
    name, params = eqn.primitive.name, eqn.params
    names: Any = params.get("axes", params.get("axis_name", ()))
    named: set[Any] = {names} if isinstance(names, str) or names is None else set(names)
    axes = tuple(a for a in mesh if a in named and mesh[a] > 1)
    if not axes or name in _STILL:
        return []
    operand, result = nbytes(a.aval for a in eqn.invars), nbytes(v.aval for v in eqn.outvars)
    parts = params.get("axis_index_groups")
    size = math.prod(mesh[a] for a in axes) if parts is None else len(parts[0])
    kind = COLLECTIVES.get(name, UNKNOWN)
    pairs = sum(s != t for s, t in params["perm"]) if kind == "collective_permute" else 0
    return exchange(kind, axes, size, math.prod(mesh.values()) // size, operand, result, pairs)


def exchange(
    kind: str, axes: tuple[str, ...], size: int, groups: int, operand: int, result: int, pairs: int = 0
) -> list[Move]:
    """Returns a collective among groups of `size` devices; empty without bytes or without another device in the
    group."""
    payload = result if kind == "all_gather" else operand
    if not payload or size < 2 or (kind == "collective_permute" and not pairs):
        return []
    sent = {
        "all_reduce": 2 * (size - 1) * operand,
        "all_gather": size * (size - 1) * operand,
        "reduce_scatter": (size - 1) * operand,
        "all_to_all": (size - 1) * operand,
        "collective_permute": pairs * operand,
        "collective_broadcast": (size - 1) * operand,
    }.get(kind, 0)
    return [Move(kind, axes, size, groups, payload, groups * sent)]


# --- between host and devices ----------------------------------------------------------------------------------------


def distribute(eqn: Eqn, mesh: Mesh) -> list[Move]:
    """Returns the moves of a distribute at the start of a region: one shard for each device."""
    (operand,), (out,) = eqn.invars, eqn.outvars
    axes = tuple(a for a in mesh if a in compat.varying_axes(out.aval) and mesh[a] > 1)
    holders = len(resolve_mapper(eqn.params["mapper_config"], tuple(mesh.values()), operand.aval.shape).holders)
    size, shard = math.prod(mesh[a] for a in axes), nbytes([out.aval])
    return [Move("distribute", axes, size, holders // size, shard, holders * shard, nbytes([operand.aval]))]


def aggregate(eqn: Eqn, mesh: Mesh) -> list[Move]:
    """Returns the moves of an aggregate at the end of a region: one shard from each device that is read.

    Where copies are read that no type proves equal, the devices exchange them first, so that every device has the one
    at coordinate 0.
    """
    (operand,), (out,) = eqn.invars, eqn.outvars
    resolved = resolve_composer(eqn.params["composer_config"], tuple(mesh.values()), operand.aval.shape)
    shard, full, count = nbytes([operand.aval]), nbytes([out.aval]), resolved.landing.size
    dims = mesh_axis_dims(resolved.landing, resolved.dims, drop_single=True)
    if dims is None:
        several = tuple(a for a, n in mesh.items() if n > 1)
        return [*_stack(mesh, shard), Move("aggregate", several, count, 1, shard, full, full)]
    joined = tuple(a for a, d in zip(mesh, dims, strict=True) if d is not None)
    varying = compat.varying_axes(operand.aval)
    spread = [a for a in mesh if a in varying and a not in joined]
    moves = [m for a in spread for m in _gather(mesh, a, shard)]
    return [*moves, Move("aggregate", joined, count, 1, shard, full, full)]


def aggregate_inside(eqn: Eqn, mesh: Mesh) -> list[Move]:
    """Returns the moves of an aggregate inside device work, such as in a loop on the devices: gathers to every
    device."""
    (operand,) = eqn.invars
    resolved = resolve_composer(eqn.params["composer_config"], tuple(mesh.values()), operand.aval.shape)
    dims, payload = mesh_axis_dims(resolved.landing, resolved.dims, drop_single=True), nbytes([operand.aval])
    if dims is None:
        return _stack(mesh, payload)
    varying, moves = compat.varying_axes(operand.aval), list[Move]()
    for axis, dim in reversed(list(zip(mesh, dims, strict=True))):
        if dim is not None or axis in varying:
            moves += _gather(mesh, axis, payload)
        payload *= 1 if dim is None else mesh[axis]
    return moves


def _gather(mesh: Mesh, axis: str, payload: int) -> list[Move]:
    size = mesh[axis]
    return exchange("all_gather", (axis,), size, math.prod(mesh.values()) // size, payload, payload * size)


def _stack(mesh: Mesh, payload: int) -> list[Move]:
    moves = list[Move]()
    for axis in reversed(list(mesh)):
        moves += _gather(mesh, axis, payload)
        payload *= mesh[axis]
    return moves
