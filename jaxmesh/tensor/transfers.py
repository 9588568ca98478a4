"""Moves tensors between the host and the devices: `distribute_tensor` and `aggregate_tensor`, eagerly."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh

from jaxmesh.dialects.check_copies import Shard, first_difference, host_bits
from jaxmesh.dialects.replication import Claim, Coordinate, error, is_enabled
from jaxmesh.errors import ArgumentTypeError, JaxmeshError, MeshMismatchError, ResidencyError
from jaxmesh.jaxprs.compat import on_devices
from jaxmesh.jaxprs.tracing_state import require_region
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Array, Device, DType, Shape
from jaxmesh.jaxprs.user_frames import caller_line
from jaxmesh.runtime.array_views import check_alive
from jaxmesh.runtime.distributed.collectives import agree, digest, gather, spans_processes
from jaxmesh.runtime.host_memory import copy_all, is_usable_by_xla, memory
from jaxmesh.runtime.launch import check_process
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig
from jaxmesh.sharding.distribution import Composition, equality_claims
from jaxmesh.tensor.assemble import assemble, owner_of, set_owner
from jaxmesh.tensor.mesh_device import MeshDevice, mesh_of
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.transfer_plans import plan_aggregate, plan_distribute
from jaxmesh.tensor.types import ON_HOST, MemoryConfig, Storage, StorageType
from jaxmesh.validate import quote

# --- host to devices -------------------------------------------------------------------------------------------------


def host_array(tensor: Any, op: str) -> Array:
    """Returns a host tensor as NumPy array, in the dtype that JAX gives it."""
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
    if isinstance(tensor, Tracer):
        raise ArgumentTypeError(
            f"{op} takes an array that holds numbers, got {tensor!r:.120}, a value of a trace; inside jaxmesh.jit, not "
            "jax.jit, it is a part of the program."
        )
    array = elements(tensor, op)
    return array.astype(canonical(array.dtype, op), copy=False)


def elements(x: Any, op: str) -> Array:
    """Returns an array as NumPy array."""
    check_alive(x, op)
    if isinstance(x, np.ma.MaskedArray):
        raise ArgumentTypeError(f"{op} takes arrays without a mask, got a masked array; pass array.filled(value).")
    try:
        return np.asarray(x)
    except JaxmeshError:
        raise
    except (TypeError, ValueError, OverflowError):
        what = "a value of a trace" if isinstance(x, Tracer) else quote(x)
        raise ArgumentTypeError(f"{op} takes an array of numbers, got {what}.") from None


def canonical(dtype: DType, op: str) -> DType:
    """Returns the dtype that JAX gives elements of a dtype."""
    if not dtype.isnative:
        raise ArgumentTypeError(
            f"{op} takes elements in this machine's byte order, got dtype {dtype}; pass "
            "array.astype(array.dtype.newbyteorder('='))."
        )
    if not _is_known(dtype):
        raise ArgumentTypeError(f"{op} takes numeric tensors, got dtype {dtype}, not JAX's; use a numeric dtype.")
    return jax.dtypes.canonicalize_dtype(dtype)


@functools.lru_cache(maxsize=256)
def _is_known(dtype: DType) -> bool:
    if dtype.kind == "T":
        return False
    try:
        # XLA lacks some of the types that JAX has.
        with jax.ensure_compile_time_eval():
            typed.device_put(np.zeros(1, dtype))
    except (TypeError, RuntimeError):
        return False
    return True


_SMALL = 64 << 10
"""Bytes up to which XLA copies the pieces at less cost than copying them to aligned memory first."""


def distribute(tensor: object, config: MeshMapperConfig, mesh: Mesh, storage: Storage = ON_HOST) -> MeshTensor:
    """Returns a host tensor as one shard for each device of a mesh: `distribute_tensor`, eagerly.

    Devices share the memory of a JAX array, which never changes; of any other array each piece is copied once.
    """
    check_process()
    require_region()
    host = host_array(tensor, "distribute_tensor")
    plan = plan_distribute(config, mesh, host.shape, host.dtype)
    # A conversion copied already; a subclass of NumPy's arrays may convert without one.
    kind: Any = np.ndarray
    immutable = not isinstance(tensor, kind) or not np.may_share_memory(host, np.asarray(tensor))
    if plan.spans_processes and is_enabled():
        agree("distribute_tensor: the tensor", f"{host.dtype}{list(host.shape)}", digest(host), list(mesh.devices.flat))
    pieces = _pieces(host, plan.cuts, immutable, len(plan.cuts) == len(plan.piece_of_device))
    data = on_devices(plan.kind, plan.sharding, [pieces[i] for i in plan.piece_of_device], plan.devices)
    return MeshTensor(data, mesh, plan.varying, plan.topology, storage).mark_proven()


def _pieces(host: Array, cuts: Sequence[Any], immutable: bool, one_each: bool) -> list[Array]:
    """Returns the pieces of an array in immutable memory; `one_each` if every device gets a separate piece."""
    if one_each and host.nbytes <= _SMALL:
        if not immutable:
            copy = memory(host.shape, host.dtype)
            np.copyto(copy, host)
            host = copy
        return [host[index] for index in cuts]
    pieces: list[Array] = []
    copies: list[tuple[Array, Array]] = []
    for index in cuts:
        piece = host[index]
        if not (immutable and is_usable_by_xla(piece)):
            copies.append((memory(piece.shape, piece.dtype), piece))
            piece = copies[-1][0]
        pieces.append(piece)
    copy_all(copies)
    return pieces


def to_mesh(tensor: MeshTensor, device: Any, memory: MemoryConfig) -> MeshTensor:
    """Returns a tensor on the devices of a mesh."""
    mesh = mesh_of(device)
    storage = Storage(StorageType.DEVICE, tensor.layout, memory, tensor.storage.block)
    owner = device if isinstance(device, MeshDevice) else owner_of([tensor])
    return set_owner(_on_mesh(tensor, mesh).with_storage(storage), owner)


def _on_mesh(tensor: MeshTensor, mesh: Mesh) -> MeshTensor:
    """Returns the tensor on another mesh of the same shape; shards keep their mesh coordinates."""
    own = tensor.mesh
    if own == mesh or isinstance(own, AbstractMesh):
        return tensor
    if own.devices.shape != mesh.devices.shape:
        raise MeshMismatchError(
            f"to_device: the tensor is distributed over a mesh of shape {list(own.devices.shape)}, the device is "
            f"{list(mesh.devices.shape)}; make the mapper for the device the tensor goes to."
        )
    names = dict(zip(own.axis_names, mesh.axis_names, strict=True))
    shards = gather_shards(tensor)
    assert shards is not None
    varying = None if tensor.is_partial else tuple(names[a] for a in tensor.varying)
    return assemble(shards, mesh, varying, tensor.topology)


# --- devices to host -------------------------------------------------------------------------------------------------


def gather_shards(
    tensor: MeshTensor, process: int | None = None, coordinates: Sequence[Shape] | None = None
) -> dict[Shape, Array] | None:
    """Returns the shard at mesh coordinates, by default at every one with a shard, in all processes or in one.

    The other processes get None.
    """
    mesh: Any = tensor.mesh
    chosen = sorted(_holders(tensor, mesh)) if coordinates is None else coordinates
    owners = {c: mesh.devices[c].process_index for c in chosen}
    here = {s.device: s.data for s in tensor.data.addressable_shards}
    mine = {c: np.asarray(here[d]).reshape(tensor.shape) for c in owners if (d := mesh.devices[c]) in here}
    return gather(mine, owners, tensor.shape, tensor.data.dtype, list(mesh.devices.flat), process)


def all_shards(tensor: MeshTensor) -> dict[Shape, Any]:
    """Returns the shard at every mesh coordinate with one; of several processes all must call this."""
    mesh = tensor.mesh
    if not isinstance(mesh, Mesh) or not spans_processes(mesh):
        return {tuple(c): s for c, s in tensor.shards()}
    shards = gather_shards(tensor)
    assert shards is not None
    return shards


def _holders(tensor: MeshTensor, mesh: Mesh) -> frozenset[Shape]:
    """Returns the mesh coordinates with a shard."""
    devices = tensor.data.sharding.device_set
    return frozenset(c for c in np.ndindex(*mesh.devices.shape) if mesh.devices[c] in devices)


def aggregate(tensor: MeshTensor, config: MeshComposerConfig, mesh: Mesh, process: int | None = None) -> Array | None:
    """Returns the shards at the composer's coordinates, joined on the host: `aggregate_tensor`, eagerly.

    Of several processes all must take part; with `process` a single process gets the result and the others None.
    """
    require_region()
    if tensor.mesh != mesh:
        asked, got = dict(mesh.shape), dict(tensor.mesh.shape)
        how = "the same shape, other devices or names" if asked == got else "another shape"
        raise MeshMismatchError(
            f"aggregate_tensor: the composer is for the mesh {asked}, the tensor is on {got} ({how})."
        )
    plan = plan_aggregate(config, mesh, tensor.shape, _holders(tensor, mesh) if tensor.is_partial else None)
    if is_enabled():
        check_read(tensor, plan.resolved, mesh)
    shards = gather_shards(tensor, process, plan.coordinates)
    if shards is None:
        return None
    out = memory(plan.resolved.full, tensor.data.dtype)
    copy_all([(out[index], shards[c]) for c, index in zip(plan.coordinates, plan.indices, strict=True)])
    return out


# --- equal copies, where a type or a composer claims them ------------------------------------------------------------


def check_tensor(tensor: object, what: str) -> None:
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
    mine: Mapping[Coordinate, Shard], owners: Mapping[Coordinate, int], tensor: MeshTensor, mesh: Mesh, claim: Claim
) -> Mapping[Coordinate, Shard]:
    """Returns the shards of all processes if their digests show a difference, else no shard."""
    devices: list[Device] = list(mesh.devices.flat)
    arrays = {c: host_bits(x) for c, x in mine.items()}
    own = {c: np.frombuffer(digest(x), np.uint8) for c, x in arrays.items()}
    digests = gather(own, owners, (len(digest(0)),), np.uint8, devices)
    if digests is None or first_difference(digests, claim) is None:
        return {}
    kind = jax.ShapeDtypeStruct(tensor.shape, tensor.data.dtype)
    if jax.dtypes.issubdtype(kind.dtype, jax.dtypes.extended):
        kind = typed.eval_shape(jax.random.key_data, kind)
    return gather(arrays, owners, kind.shape, kind.dtype, devices) or {}


def _reshape(shard: jax.Array, shape: Shape) -> Shard:
    if jax.dtypes.issubdtype(shard.dtype, jax.dtypes.extended):
        return shard.reshape(shape)
    return np.asarray(shard).reshape(shape)
