"""The moves of one equation of a program that runs, and their bytes; they count if TTNN cannot express the program.

Payloads and bytes sent are defined by `jaxmesh.analysis.account.Move`. A collective over several axes is one exchange
among all devices along them, as XLA runs it; an axis of one device moves nothing.

The bytes equal the traffic of XLA's optimized program, except where XLA optimizes further. It merges equal collectives,
removes more dead code, and carries 16-bit floats as float32 between CPUs. Without a host, it also reshards among the
devices where a program goes through the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from jaxmesh.analysis.account import moves
from jaxmesh.analysis.account.moves import Move, exchange
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Aval, Eqn
from jaxmesh.jaxprs.primitives import COLLECTIVES, RETYPES
from jaxmesh.sharding.distribution import mesh_axis_dims, resolve_composer

Mesh = Mapping[str, int]
UNKNOWN = "unknown"
"""The kind of a primitive that names mesh axes and has no rule in this module."""


def nbytes(avals: Iterable[Aval]) -> int:
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


# --- between host and devices ----------------------------------------------------------------------------------------


def aggregate(eqn: Eqn, mesh: Mesh) -> list[Move]:
    """Returns the moves of an aggregate at the end of a region: one shard from each device that is read.

    Where copies are read that no type proves equal, the devices exchange them first, so that every device has the one
    at coordinate 0.
    """
    (operand,), config = eqn.invars, eqn.params["composer_config"]
    move = moves.aggregate(config, mesh, operand.aval.shape, operand.aval.dtype.itemsize)
    resolved = resolve_composer(config, tuple(mesh.values()), operand.aval.shape)
    if mesh_axis_dims(resolved.landing, resolved.dims, drop_single=True) is None:
        return [*_stack(mesh, move.bytes), move]
    varying = compat.varying_axes(operand.aval)
    return [*(m for a in mesh if a in varying and a not in move.axes for m in _gather(mesh, a, move.bytes)), move]


def aggregate_inside(eqn: Eqn, mesh: Mesh) -> list[Move]:
    """Returns the moves of an aggregate inside device work, such as in a loop on the devices: gathers to every
    device."""
    (operand,) = eqn.invars
    resolved = resolve_composer(eqn.params["composer_config"], tuple(mesh.values()), operand.aval.shape)
    dims, payload = mesh_axis_dims(resolved.landing, resolved.dims, drop_single=True), nbytes([operand.aval])
    if dims is None:
        return _stack(mesh, payload)
    varying, found = compat.varying_axes(operand.aval), list[Move]()
    for axis, dim in reversed(list(zip(mesh, dims, strict=True))):
        if dim is not None or axis in varying:
            found += _gather(mesh, axis, payload)
        payload *= 1 if dim is None else mesh[axis]
    return found


def _gather(mesh: Mesh, axis: str, payload: int) -> list[Move]:
    size = mesh[axis]
    return exchange("all_gather", (axis,), size, math.prod(mesh.values()) // size, payload, payload * size)


def _stack(mesh: Mesh, payload: int) -> list[Move]:
    found = list[Move]()
    for axis in reversed(list(mesh)):
        found += _gather(mesh, axis, payload)
        payload *= mesh[axis]
    return found
