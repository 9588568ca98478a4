"""What `distribute_tensor` and `aggregate_tensor` do with tensors of one shape: worked out once and kept."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxmesh.jaxprs.caches import Cache
from jaxmesh.jaxprs.compat import array_type
from jaxmesh.runtime.distributed.collectives import spans_processes
from jaxmesh.sharding.configs import MeshComposerConfig, MeshCoordinate, MeshMapperConfig, MeshShape
from jaxmesh.sharding.distribution import Composition, Distribution, resolve_composer, resolve_mapper
from jaxmesh.ttnn.mesh_tensor import PART, spec_of
from jaxmesh.ttnn.types import TensorTopology

Shape = tuple[int, ...]
Index = tuple[Any, ...]
"""What cuts an array; it begins with an ellipsis, so that what it gives of a rank 0 is an array too."""
_KEPT = 256


@dataclass(frozen=True, slots=True)
class Spreading:
    """Where a full tensor goes.

    `cuts` are its distinct pieces as they are stored, `held` says which of them each device holds, in the order of
    `devices`; `places` are the coordinates of these, in the order of the distribution, with the number of the piece.
    """

    resolved: Distribution
    places: tuple[tuple[Shape, int], ...]
    cuts: tuple[Index, ...]
    held: tuple[int, ...]
    devices: list[Any]
    sharding: NamedSharding
    kind: Any
    varying: tuple[str, ...]
    topology: TensorTopology
    everywhere: bool
    apart: bool


@dataclass(frozen=True, slots=True)
class Joining:
    """Which coordinates are read, and where in the result each shard goes."""

    resolved: Composition
    coordinates: tuple[Shape, ...]
    places: tuple[Index, ...]


_spreadings: Cache[Spreading] = Cache(_KEPT, "what mappers do")
_joinings: Cache[Joining] = Cache(_KEPT, "what composers do")


def spreading(config: MeshMapperConfig, mesh: Mesh, full: Shape, dtype: np.dtype[Any]) -> Spreading:
    """What a mapper does with tensors of one shape.

    Raises:
      VerifyError: a rule of section 2 is broken.
    """
    key = (config, mesh, full, dtype)
    return _spreadings.get(key) or _spreadings.put(key, _spread(config, mesh, full, dtype))


def joining(config: MeshComposerConfig, mesh: Mesh, local: Shape) -> Joining:
    """What a composer does with tensors of one local shape.

    Raises:
      VerifyError: a rule of section 2 is broken.
    """
    key = (config, mesh, local)
    return _joinings.get(key) or _joinings.put(key, _join(config, mesh, local))


def _spread(config: MeshMapperConfig, mesh: Mesh, full: Shape, dtype: np.dtype[Any]) -> Spreading:
    resolved = resolve_mapper(config, mesh.devices.shape, full)
    placed = {c: _only_cut(resolved, p) for c, p in resolved.placed()}
    everywhere = len(placed) == mesh.devices.size
    varying = _varying(placed, mesh) if everywhere else (PART,)
    devices = [mesh.devices[c] for c in placed]
    storage = mesh if everywhere else Mesh(np.array(devices), (PART,))
    numbers = {p: i for i, p in enumerate(dict.fromkeys(placed.values()))}
    single = (None,) * len(varying)
    shape = (*resolved.local, *[storage.shape[a] for a in varying])
    # The order in which JAX counts the devices of a sharding is that of its mesh.
    order = sorted(placed) if everywhere else list(placed)
    sharding = NamedSharding(storage, spec_of(len(full), varying) if varying else PartitionSpec())
    return Spreading(
        resolved,
        tuple((c, numbers[p]) for c, p in placed.items()),
        tuple((..., *resolved.index(p), *single) for p in numbers),
        tuple(numbers[placed[c]] for c in order),
        [mesh.devices[c] for c in order],
        sharding,
        array_type(shape, dtype, sharding),
        varying,
        _topology(config, resolved),
        everywhere,
        spans_processes(mesh),
    )


def _only_cut(resolved: Distribution, place: Shape) -> Shape:
    """The place along the axes that cut; along the others all hold the same."""
    return tuple(p if d is not None else 0 for p, d in zip(place, resolved.dims, strict=True))


def _varying(held: dict[Shape, Shape], mesh: Mesh) -> tuple[str, ...]:
    """The axes along which neighbouring devices hold different pieces."""

    def differs(axis: int) -> bool:
        return any(held[c] != held[(*c[:axis], 0, *c[axis + 1 :])] for c in held)

    return tuple(n for axis, n in enumerate(mesh.axis_names) if differs(axis))


def _topology(config: MeshMapperConfig, resolved: Distribution) -> TensorTopology:
    shape = MeshShape(resolved.landing.shape)
    return TensorTopology(shape, config.placements, tuple(MeshCoordinate(c) for c in resolved.holders))


def _join(config: MeshComposerConfig, mesh: Mesh, local: Shape) -> Joining:
    resolved = resolve_composer(config, mesh.devices.shape, local)
    places = itertools.product(*map(range, resolved.landing.shape))
    return Joining(resolved, tuple(resolved.landing.coordinates()), tuple(_index(resolved, p) for p in places))


def _index(resolved: Composition, place: Shape) -> Index:
    index: list[Any] = [slice(0, n) for n in resolved.full]
    for dim, at in zip(resolved.dims, place, strict=True):
        if dim is not None:
            size = resolved.local[dim]
            index[dim] = slice(at * size, (at + 1) * size)
    return (..., *index)
