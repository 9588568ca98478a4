"""Checks that the copies of a multi-device tensor are equal, where a type or a composer claims that they are."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from jaxmesh.dialects.replication import Claim, error
from jaxmesh.jaxprs.source_locations import caller_line
from jaxmesh.runtime.compare_copies import Coordinate, first_difference, host_bits
from jaxmesh.runtime.distributed.collectives import digest, gather, spans_processes
from jaxmesh.sharding.distribution import Composition, equality_claims
from jaxmesh.tensor.mesh_tensor import MeshTensor


def check_tensor(tensor: Any, what: str) -> None:
    """Compares the copies of a tensor that is typed as equal along some mesh axes, unless they are proven."""
    if not isinstance(tensor, MeshTensor) or tensor.is_proven or tensor.is_partial:
        return
    mesh, data = tensor.mesh, tensor.data
    if not isinstance(data, jax.Array) or isinstance(data, Tracer) or not isinstance(mesh, Mesh):
        return
    sizes = dict(mesh.shape)
    axes = tuple(a for a in mesh.axis_names if a not in tensor.varying and sizes[a] > 1)
    if axes:
        _check_shards(tensor, mesh, Claim(0, caller_line(), f"{what} ({tensor!r})", sizes, axes))


def check_read(tensor: MeshTensor, composition: Composition, mesh: Mesh) -> None:
    """Compares the shards that a composer reads with the shards that it drops as their copies."""
    equal, limits = equality_claims(composition)
    names = mesh.axis_names
    axes = tuple(names[a] for a in equal if mesh.shape[names[a]] > 1)
    if axes and not (tensor.is_proven and set(axes).isdisjoint(tensor.varying)):
        what = f"the operand of aggregate_tensor ({tensor!r})"
        limited = tuple((names[a], n) for a, n in limits)
        _check_shards(tensor, mesh, Claim(0, caller_line(), what, dict(mesh.shape), axes, limited))


def _check_shards(tensor: MeshTensor, mesh: Mesh, claim: Claim) -> None:
    """Compares the shards. All processes must take part, and all find the same difference."""
    local = tensor.shape
    here = {s.device: s.data for s in tensor.data.addressable_shards}
    devices = {c: mesh.devices[c] for c in itertools.product(*map(range, mesh.devices.shape))}
    shards = {c: _reshape(here[d], local) for c, d in devices.items() if d in here}
    if spans_processes(mesh):
        owners = {c: d.process_index for c, d in devices.items() if d in tensor.data.sharding.device_set}
        shards = _gather_if_different(shards, owners, tensor, mesh, claim)
    difference = first_difference(shards, claim)
    if difference is not None:
        raise error([difference])


def _gather_if_different(
    mine: Mapping[Coordinate, Any], owners: Mapping[Coordinate, int], tensor: MeshTensor, mesh: Mesh, claim: Claim
) -> Mapping[Coordinate, Any]:
    """Returns the shards of all processes if their digests show a difference, else no shard."""
    devices: list[Any] = list(mesh.devices.flat)
    arrays = {c: host_bits(x) for c, x in mine.items()}
    own = {c: np.frombuffer(digest(x), np.uint8) for c, x in arrays.items()}
    digests = gather(own, owners, (len(digest(0)),), np.uint8, devices)
    if digests is None or first_difference(digests, claim) is None:
        return {}
    kind: Any = jax.ShapeDtypeStruct(tensor.shape, tensor.data.dtype)
    if jax.dtypes.issubdtype(kind.dtype, jax.dtypes.extended):
        kind = jax.eval_shape(jax.random.key_data, kind)
    return gather(arrays, owners, kind.shape, kind.dtype, devices) or {}


def _reshape(shard: Any, shape: tuple[int, ...]) -> Any:
    if jax.dtypes.issubdtype(shard.dtype, jax.dtypes.extended):
        return shard.reshape(shape)
    return np.asarray(shard).reshape(shape)
