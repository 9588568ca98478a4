"""The shards on each device, read from the arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxmesh as jm


@dataclass(frozen=True, slots=True)
class Holding:
    """One device's shard of one tensor; `exact` is True if it equals the slice `slices` bit for bit."""

    coordinate: tuple[int, ...]
    tensor: str
    shape: tuple[int, ...]
    slices: tuple[slice, ...]
    nbytes: int
    exact: bool


def list_holdings(tensors: Mapping[str, jax.Array], specs: Mapping[str, PartitionSpec], mesh: Mesh) -> list[Holding]:
    """Distributes full tensors and lists every device's shards, row-major over the mesh."""

    def distribute(full: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {name: jm.full_to_shard(x, specs[name]) for name, x in full.items()}

    holdings: list[Holding] = []
    for name, tensor in jm.jit(distribute, mesh=mesh)(dict(tensors)).items():
        full = np.asarray(tensors[name])
        for coordinate, shard in tensor.shards():
            slices = slices_of(full.shape, specs[name], mesh, tuple(coordinate))
            local, cut = np.asarray(shard), full[slices]
            exact = (local.shape, local.dtype, local.tobytes()) == (cut.shape, cut.dtype, cut.tobytes())
            holdings.append(Holding(tuple(coordinate), name, local.shape, slices, local.nbytes, exact))
    # The sort is stable, so a device's tensors keep their order.
    return sorted(holdings, key=lambda h: h.coordinate)


def slices_of(shape: Sequence[int], spec: PartitionSpec, mesh: Mesh, coordinate: Sequence[int]) -> tuple[slice, ...]:
    """Returns the slice of a full tensor that a spec assigns to the device at a coordinate."""
    return NamedSharding(mesh, spec).devices_indices_map(tuple(shape))[mesh.devices[tuple(coordinate)]]


def show_slices(slices: Sequence[slice]) -> str:
    """Returns a slice in Python's notation.

    >>> show_slices((slice(0, 2), slice(None)))
    '[0:2, :]'
    """
    return "[" + ", ".join(":" if s.stop is None else f"{s.start}:{s.stop}" for s in slices) + "]"
