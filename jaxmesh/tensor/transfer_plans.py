"""Plans of `distribute_tensor` and `aggregate_tensor` for tensors of one shape; cached."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxmesh.jaxprs.caches import lru_cached
from jaxmesh.jaxprs.compat import array_type
from jaxmesh.jaxprs.untyped import Device, DType, Shape
from jaxmesh.runtime.distributed.collectives import is_here, spans_processes
from jaxmesh.sharding.configs import MeshComposerConfig, MeshCoordinate, MeshMapperConfig, MeshShape
from jaxmesh.sharding.distribution import (
    Composition,
    read_existing,
    resolve_composer,
    resolve_mapper,
)
from jaxmesh.sharding.mesh import storage_spec
from jaxmesh.tensor.mesh_tensor import PART
from jaxmesh.tensor.types import TensorTopology

Index = tuple[Any, ...]
"""An index into an array. It begins with an ellipsis, so that a result of rank 0 is an array too."""


@dataclass(frozen=True, slots=True)
class DistributePlan:
    """The pieces of a full tensor, and the devices of this process that they go to.

    Attributes:
      cuts: the index of each distinct piece, which also adds the mesh dims.
      piece_of_device: the number of the piece of each of `devices`.
      devices: the devices with a shard, in the order of the sharding.
      sharding, kind: the sharding and the type of the stored array.
      spans_processes: True if other processes have devices of the mesh.
    """

    cuts: tuple[Index, ...]
    piece_of_device: tuple[int, ...]
    devices: list[Device]
    sharding: NamedSharding
    kind: Any
    varying: tuple[str, ...]
    topology: TensorTopology
    spans_processes: bool


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """The mesh coordinates to read, and the index of each shard in the result."""

    resolved: Composition
    coordinates: tuple[Shape, ...]
    indices: tuple[Index, ...]


@lru_cached(256)
def plan_distribute(config: MeshMapperConfig, mesh: Mesh, full: Shape, dtype: DType) -> DistributePlan:
    """Returns the plan of a mapper for tensors of one full shape."""
    resolved = resolve_mapper(config, mesh.devices.shape, full)
    # A piece has the position 0 along the axes that only replicate.
    pieces = {
        c: tuple(p if d is not None else 0 for p, d in zip(position, resolved.dims, strict=True))
        for c, position in resolved.shard_coordinates()
    }
    is_complete = len(pieces) == mesh.devices.size
    varying = _varying_axes(pieces, mesh) if is_complete else (PART,)
    storage_mesh = mesh if is_complete else Mesh(np.array([mesh.devices[c] for c in pieces]), (PART,))
    single = (None,) * len(varying)
    shape = (*resolved.local, *[storage_mesh.shape[a] for a in varying])
    # JAX orders the devices of a sharding as its mesh does.
    here = [c for c in (sorted(pieces) if is_complete else pieces) if is_here(mesh.devices[c])]
    numbers = {p: i for i, p in enumerate(dict.fromkeys(pieces[c] for c in here))}
    sharding = NamedSharding(storage_mesh, storage_spec(len(full), varying) if varying else PartitionSpec())
    return DistributePlan(
        tuple((..., *resolved.index(p), *single) for p in numbers),
        tuple(numbers[pieces[c]] for c in here),
        [mesh.devices[c] for c in here],
        sharding,
        array_type(shape, dtype, sharding),
        varying,
        TensorTopology(
            MeshShape(resolved.distribution_shape), config.placements, tuple(map(MeshCoordinate, resolved.holders))
        ),
        spans_processes(mesh),
    )


def _varying_axes(pieces: dict[Shape, Shape], mesh: Mesh) -> tuple[str, ...]:
    """Returns the mesh axes along which devices have different pieces."""
    return tuple(
        name
        for axis, name in enumerate(mesh.axis_names)
        if any(pieces[c] != pieces[(*c[:axis], 0, *c[axis + 1 :])] for c in pieces)
    )


@lru_cached(256)
def plan_aggregate(
    config: MeshComposerConfig, mesh: Mesh, local: Shape, holders: frozenset[Shape] | None = None
) -> AggregatePlan:
    """Returns the plan of a composer for tensors of one local shape; `holders` have a shard, by default all devices."""
    if holders is None:
        resolved = resolve_composer(config, mesh.devices.shape, local)
        coordinates = resolved.landing.coordinates()
    else:
        existing, coordinates = read_existing(config, mesh.devices.shape, holders)
        resolved = resolve_composer(existing, mesh.devices.shape, local)
    positions = itertools.product(*map(range, resolved.landing.shape))
    indices = tuple((..., *resolved.index(p)) for p in positions)
    return AggregatePlan(resolved, tuple(coordinates), indices)
