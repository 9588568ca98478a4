"""Comparing copies on the host, bit for bit: for the reference executor, eager reads and presharded arguments."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from jaxmesh.dialects.replication import Claim, Difference, error, users_line
from jaxmesh.runtime.distributed.collectives import digest, gather, spans_processes
from jaxmesh.sharding.distribution import Composition, claimed_equal
from jaxmesh.ttnn.mesh_tensor import MeshTensor

Coordinate = tuple[int, ...]


def first_difference(shards: Mapping[Coordinate, Any], claim: Claim) -> Difference | None:
    """The first shard, row-major over the mesh, that is not what the claim says it is; coordinates may be missing."""
    axes = list(claim.mesh)
    limits = {axes.index(a): n for a, n in claim.limits}
    for place in sorted(shards):
        other = tuple(0 if a in claim.axes else i for a, i in zip(axes, place, strict=True))
        if place == other or other not in shards or any(place[a] >= n for a, n in limits.items()):
            continue
        found = _compare(shards[place], shards[other])
        if found is not None:
            return Difference(claim, place, other, *found)
    return None


def _compare(mine: Any, read: Any) -> tuple[tuple[int, ...], Any, Any] | None:
    if not np.size(mine):
        return None
    a, b = _plain(mine), _plain(read)
    apart = (_bytes(a) != _bytes(b)).reshape(*np.shape(mine), -1).any(-1)
    if not apart.any():
        return None
    index = tuple(int(i) for i in np.argwhere(apart)[0])
    return index, a[index], b[index]


def _plain(x: Any) -> np.ndarray[Any, Any]:
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        x = jax.random.key_data(x)
    return np.asarray(x)


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of each element along a last dim; elements of less than a byte as whole numbers."""
    if jnp.issubdtype(array.dtype, jnp.integer) and jnp.iinfo(array.dtype).bits < 8:
        array = array.astype(np.int8)
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.dtype.itemsize)


# --- claims of tensors -----------------------------------------------------------------------------------------------


def check_tensor(tensor: Any, what: str) -> None:
    """Compares the copies of a tensor that is declared to be equal along some axes, unless it is known to be.

    Raises:
      ReplicationError: they differ.
    """
    if not isinstance(tensor, MeshTensor) or tensor.proven or tensor.partial:
        return
    mesh, data = tensor.mesh, tensor.data
    if not isinstance(data, jax.Array) or isinstance(data, Tracer) or not isinstance(mesh, Mesh):
        return
    sizes = dict(mesh.shape)
    axes = tuple(a for a in mesh.axis_names if a not in tensor.varying and sizes[a] > 1)
    if axes and not data.is_deleted():
        _check_shards(tensor, mesh, Claim(0, users_line(), f"{what} ({tensor!r})", sizes, axes))


def check_read(tensor: MeshTensor, joined: Composition, mesh: Mesh) -> None:
    """Compares the shards that a composer reads with those it takes them for.

    Raises:
      ReplicationError: they differ.
    """
    equal, limits = claimed_equal(joined)
    names = mesh.axis_names
    axes = tuple(names[a] for a in equal if mesh.shape[names[a]] > 1)
    if axes and not (tensor.proven and set(axes).isdisjoint(tensor.varying)):
        what = f"the operand of aggregate_tensor ({tensor!r})"
        limited = tuple((names[a], n) for a, n in limits)
        _check_shards(tensor, mesh, Claim(0, users_line(), what, dict(mesh.shape), axes, limited))


def _check_shards(tensor: MeshTensor, mesh: Mesh, claim: Claim) -> None:
    """Compares the shards; of several processes every one finds the same, and all must take part."""
    data, local = tensor.data, tensor.shape
    held = {s.device: s.data for s in data.addressable_shards}
    devices = {c: mesh.devices[c] for c in itertools.product(*map(range, mesh.devices.shape))}
    shards = {c: _local(held[d], local) for c, d in devices.items() if d in held}
    if spans_processes(mesh):
        owners = {c: d.process_index for c, d in devices.items() if d in data.sharding.device_set}
        shards = _from_all(shards, owners, tensor, mesh, claim)
    found = first_difference(shards, claim)
    if found is not None:
        raise error([found])


def _from_all(
    mine: Mapping[Coordinate, Any], owners: Mapping[Coordinate, int], tensor: MeshTensor, mesh: Mesh, claim: Claim
) -> Mapping[Coordinate, Any]:
    """The shards of all processes if some differ that must not; their digests tell, so that equal ones stay."""
    devices: list[Any] = list(mesh.devices.flat)
    plain = {c: _plain(x) for c, x in mine.items()}
    said = {c: np.frombuffer(digest(x), np.uint8) for c, x in plain.items()}
    digests = gather(said, owners, (len(digest(0)),), np.uint8, devices)
    if digests is None or first_difference(digests, claim) is None:
        return {}
    kind: Any = jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
    if jax.dtypes.issubdtype(kind.dtype, jax.dtypes.extended):
        kind = jax.eval_shape(jax.random.key_data, kind)
    return gather(plain, owners, kind.shape, kind.dtype, devices) or {}


def _local(shard: Any, shape: tuple[int, ...]) -> Any:
    if jax.dtypes.issubdtype(shard.dtype, jax.dtypes.extended):
        return shard.reshape(shape)
    return np.asarray(shard).reshape(shape)


def reference_rule(
    shards: Mapping[Coordinate, Any], mesh: Mapping[str, int], params: Mapping[str, Any]
) -> dict[Coordinate, Any]:
    """The check of the reference executor: it compares, and leaves every shard as it is.

    Raises:
      ReplicationError: copies differ.
    """
    found = first_difference(shards, params["claim"])
    if found is not None:
        raise error([found])
    return dict(shards)


REFERENCE_RULES = {"check_copies": reference_rule}
