"""Moving tensors between the host and the devices: `distribute_tensor` and `aggregate_tensor`, eagerly."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxmesh.configs import MeshComposerConfig, MeshCoordinate, MeshMapperConfig, MeshShape
from jaxmesh.distribution import Distribution, resolve_composer, resolve_mapper
from jaxmesh.errors import ArgumentTypeError, MeshMismatchError, ResidencyError, VerifyError
from jaxmesh.runtime.eager_types import ON_HOST, Place, StorageType, TensorTopology
from jaxmesh.runtime.tensor import MeshTensor, assemble

Shape = tuple[int, ...]

# --- host to devices -------------------------------------------------------------------------------------------------


def host_array(tensor: Any, op: str) -> np.ndarray[Any, Any]:
    """A host tensor as NumPy, in the dtype JAX gives it.

    Raises:
      ResidencyError: the tensor is on the devices already.
      ArgumentTypeError: no tensor.
    """
    if isinstance(tensor, MeshTensor):
        where = "on the devices" if tensor.storage_type() is StorageType.DEVICE else "distributed"
        raise ResidencyError(
            f"{op} needs a host tensor, got {tensor!r}, which is {where} already; aggregate_tensor makes one host "
            "tensor of it."
        )
    if isinstance(tensor, jax.Array) and jax.dtypes.issubdtype(tensor.dtype, jax.dtypes.extended):
        raise ArgumentTypeError(
            f"{op} takes numeric tensors, got dtype {tensor.dtype}; pass jax.random.key_data(keys)."
        )
    if not isinstance(tensor, (jax.Array, np.ndarray, np.generic, int, float, complex, bool)):
        raise ArgumentTypeError(f"{op} takes a NumPy or JAX array, got {type(tensor).__name__}.")
    array = np.asarray(tensor)
    if array.dtype.kind in "OSUmM" or array.dtype.names is not None:
        raise ArgumentTypeError(f"{op} takes numeric tensors, got dtype {array.dtype}.")
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def distribute(tensor: Any, config: MeshMapperConfig, mesh: Mesh, place: Place = ON_HOST) -> MeshTensor:
    """`distribute_tensor`, eagerly: a host tensor as one shard for each device of a mesh.

    Raises:
      VerifyError: a rule of section 2 is broken.
    """
    host = host_array(tensor, "distribute_tensor")
    resolved = resolve_mapper(config, mesh.devices.shape, host.shape)

    @functools.cache
    def piece(place: Shape) -> np.ndarray[Any, Any]:
        # A private copy, so that neither a later write to the caller's array nor a shared buffer can be seen.
        return np.array(host[resolved.index(place)], order="C", copy=True)

    def cut_only(place: Shape) -> Shape:
        return tuple(p if d is not None else 0 for p, d in zip(place, resolved.dims, strict=True))

    shards = {c: piece(cut_only(p)) for c, p in resolved.placed()}
    varying = None if len(shards) < mesh.devices.size else _varying_names(resolved, mesh, cut_only)
    return assemble(shards, mesh, varying, _topology(config, resolved), place)


def _varying_names(resolved: Distribution, mesh: Mesh, cut_only: Callable[[Shape], Shape]) -> tuple[str, ...]:
    """The axes along which neighbouring devices hold different pieces."""
    held = {c: cut_only(p) for c, p in resolved.placed()}

    def differs(axis: int) -> bool:
        return any(held[c] != held[(*c[:axis], 0, *c[axis + 1 :])] for c in held)

    return tuple(n for axis, n in enumerate(mesh.axis_names) if differs(axis))


def _topology(config: MeshMapperConfig, resolved: Distribution) -> TensorTopology:
    shape = MeshShape(resolved.landing.shape)
    return TensorTopology(shape, config.placements, tuple(MeshCoordinate(c) for c in resolved.holders))


# --- devices to host -------------------------------------------------------------------------------------------------


def aggregate(tensor: MeshTensor, config: MeshComposerConfig, mesh: Mesh) -> np.ndarray[Any, Any]:
    """`aggregate_tensor`, eagerly: the shards at the composer's coordinates, joined, on the host.

    Raises:
      VerifyError: a rule of section 2 is broken, or a coordinate holds nothing.
      MeshMismatchError: the tensor is on another mesh.
    """
    if tensor.mesh != mesh:
        wanted, got = dict(mesh.shape), dict(tensor.mesh.shape)
        how = "the same shape, other devices or names" if wanted == got else "another shape"
        raise MeshMismatchError(
            f"aggregate_tensor: the composer is for the mesh {wanted}, the tensor is on {got} ({how})."
        )
    resolved = resolve_composer(config, mesh.devices.shape, tensor.shape)
    held = {s.device: s.data for s in tensor.data.addressable_shards}
    out = np.empty(resolved.full, tensor.dtype)
    places = itertools.product(*map(range, resolved.landing.shape))
    for coordinate, place in zip(resolved.landing.coordinates(), places, strict=True):
        device = mesh.devices[coordinate]
        if device not in held:
            raise VerifyError(
                f"aggregate_tensor reads the shard at {list(coordinate)}, but that device holds nothing of this "
                f"tensor; it is on {len(held)} of {mesh.devices.size} devices. Override the mesh shape to those "
                "that do."
            )
        index = [slice(None)] * len(resolved.local)
        for dim, at in zip(resolved.dims, place, strict=True):
            if dim is not None:
                index[dim] = slice(at * resolved.local[dim], (at + 1) * resolved.local[dim])
        out[tuple(index)] = np.asarray(held[device]).reshape(resolved.local)
    return out
