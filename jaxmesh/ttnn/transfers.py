"""Moving tensors between the host and the devices: `distribute_tensor` and `aggregate_tensor`, eagerly."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh

from jaxmesh.dialects.replication import is_enabled
from jaxmesh.errors import ArgumentTypeError, JaxmeshError, MeshMismatchError, ResidencyError, VerifyError
from jaxmesh.jaxprs.compat import on_devices
from jaxmesh.runtime.array_views import check_alive
from jaxmesh.runtime.compare_copies import check_read
from jaxmesh.runtime.distributed.collectives import agree, digest, gather, is_here, spans_processes
from jaxmesh.runtime.host_memory import copy_all, in_place, memory
from jaxmesh.runtime.launch import check_process
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig
from jaxmesh.ttnn.mesh_device import MeshDevice, mesh_of
from jaxmesh.ttnn.mesh_tensor import MeshTensor, assemble
from jaxmesh.ttnn.tensor_operators import owned, owner_of
from jaxmesh.ttnn.transfer_plans import Spreading, joining, spreading
from jaxmesh.ttnn.types import ON_HOST, MemoryConfig, Place, StorageType
from jaxmesh.validate import check_nesting, quote

Shape = tuple[int, ...]

# --- host to devices -------------------------------------------------------------------------------------------------


def host_array(tensor: Any, op: str) -> np.ndarray[Any, Any]:
    """A host tensor as NumPy, in the dtype JAX gives it.

    Raises:
      ResidencyError: the tensor is on the devices already.
      DeletedError: it is a JAX array that was donated or deleted.
      ArgumentTypeError: no tensor, or of elements that JAX has no type for.
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
    if isinstance(tensor, Tracer):
        raise ArgumentTypeError(
            f"{op} takes an array that holds numbers, got {tensor!r:.120}, a value of a trace; inside jaxmesh.jit, not "
            "jax.jit, it is a part of the program."
        )
    array = elements(tensor, op)
    return array.astype(canonical(array.dtype, op), copy=False)


def elements(x: Any, op: str) -> np.ndarray[Any, Any]:
    """What NumPy makes of an array, all of it.

    Raises:
      DeletedError: a JAX array that was donated or deleted.
      ArgumentTypeError: a masked array, whose mask would be lost.
    """
    check_alive(x, op)
    if isinstance(x, np.ma.MaskedArray):
        raise ArgumentTypeError(f"{op} takes arrays without a mask, got a masked array; pass array.filled(value).")
    check_nesting((x,), op)
    try:
        return np.asarray(x)
    except JaxmeshError:
        raise
    except (TypeError, ValueError, OverflowError):
        what = "a value of a trace" if isinstance(x, Tracer) else quote(x)
        raise ArgumentTypeError(f"{op} takes an array of numbers, got {what}.") from None


def canonical(dtype: np.dtype[Any], op: str) -> np.dtype[Any]:
    """The dtype that JAX gives elements.

    Raises:
      ArgumentTypeError: none.
    """
    if not dtype.isnative:
        raise ArgumentTypeError(
            f"{op} takes elements in this machine's byte order, got dtype {dtype}; pass "
            "array.astype(array.dtype.newbyteorder('='))."
        )
    if not _known(dtype):
        raise ArgumentTypeError(f"{op} takes numeric tensors, got dtype {dtype}, which JAX has no type for.")
    return jax.dtypes.canonicalize_dtype(dtype)


@functools.lru_cache(maxsize=256)
def _known(dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "T":
        return False
    try:
        # Some types JAX has and XLA has not.
        with jax.ensure_compile_time_eval():
            jax.device_put(np.zeros(1, dtype))
    except (TypeError, RuntimeError):
        return False
    return True


_SMALL = 64 << 10
"""The bytes up to which it costs less to let XLA copy the pieces, one for each device, than to lay them out for it."""


def distribute(tensor: Any, config: MeshMapperConfig, mesh: Mesh, place: Place = ON_HOST) -> MeshTensor:
    """`distribute_tensor`, eagerly: a host tensor as one shard for each device of a mesh.

    Pieces of a JAX array, which never changes, are used where they lie, by every device that holds them; of anything
    else each piece is copied once.

    Raises:
      VerifyError: a rule of section 2 is broken.
      ProcessMismatchError: replication is checked, and another process has another tensor.
    """
    check_process()
    host = host_array(tensor, "distribute_tensor")
    plan = spreading(config, mesh, host.shape, host.dtype)
    # What was converted was copied; what a subclass of NumPy's arrays says of its type does not tell.
    kind: Any = np.ndarray
    frozen = not isinstance(tensor, kind) or not np.may_share_memory(host, np.asarray(tensor))
    if plan.apart:
        return _over_processes(host, frozen, plan, mesh, place)
    pieces = _pieces(host, plan.cuts, frozen, len(plan.cuts) == len(plan.held))
    data = on_devices(plan.kind, plan.sharding, [pieces[i] for i in plan.held], plan.devices)
    return MeshTensor(data, mesh, plan.varying, plan.topology, place).as_proven()


def _pieces(host: np.ndarray[Any, Any], cuts: Sequence[Any], frozen: bool, alone: bool) -> list[np.ndarray[Any, Any]]:
    """The pieces of an array, in memory that nobody writes to again; `alone` if each is of one device."""
    if alone and host.nbytes <= _SMALL:
        if not frozen:
            own = memory(host.shape, host.dtype)
            np.copyto(own, host)
            host = own
        return [host[index] for index in cuts]
    pieces: list[np.ndarray[Any, Any]] = []
    copied: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
    for index in cuts:
        part = host[index]
        if not (frozen and in_place(part)):
            copied.append((memory(part.shape, part.dtype), part))
            part = copied[-1][0]
        pieces.append(part)
    copy_all(copied)
    return pieces


def _over_processes(host: np.ndarray[Any, Any], frozen: bool, plan: Spreading, mesh: Mesh, place: Place) -> MeshTensor:
    """The same over several processes: each puts its pieces on its own devices, and only looks at the others."""
    if is_enabled():
        agree("distribute_tensor: the tensor", f"{host.dtype}{list(host.shape)}", digest(host), list(mesh.devices.flat))
    here = sorted({n for c, n in plan.places if is_here(mesh.devices[c])})
    own = dict(zip(here, _pieces(host, [plan.cuts[n] for n in here], frozen, False), strict=True))
    local = plan.resolved.local
    shards = {c: (own[n] if n in own else host[plan.cuts[n]]).reshape(local) for c, n in plan.places}
    varying = plan.varying if plan.everywhere else None
    return assemble(shards, mesh, varying, plan.topology, place).as_proven()


# --- devices to devices ----------------------------------------------------------------------------------------------


def to_mesh(tensor: MeshTensor, device: MeshDevice | Mesh, memory: MemoryConfig) -> MeshTensor:
    """The tensor on the devices of a mesh of its shape; shards keep their coordinates.

    Raises:
      MeshMismatchError: it is distributed over a mesh of another shape.
      ArgumentTypeError: no mesh device.
    """
    mesh = mesh_of(device)
    place = Place(StorageType.DEVICE, tensor.layout, memory)
    owner = device if isinstance(device, MeshDevice) else owner_of([tensor])
    return owned(_onto(tensor, mesh).placed(place), owner)


def _onto(tensor: MeshTensor, mesh: Mesh) -> MeshTensor:
    """The tensor on another mesh of the same shape: shards keep their coordinates."""
    own: Any = tensor.mesh
    if own == mesh or isinstance(own, AbstractMesh):
        return tensor
    if own.devices.shape != mesh.devices.shape:
        raise MeshMismatchError(
            f"to_device: the tensor is distributed over a mesh of shape {list(own.devices.shape)}, the device is "
            f"{list(mesh.devices.shape)}; make the mapper for the device the tensor goes to."
        )
    names = dict(zip(own.axis_names, mesh.axis_names, strict=True))
    shards = everywhere(tensor)
    assert shards is not None
    varying = None if tensor.partial else tuple(names[a] for a in tensor.varying)
    return assemble(shards, mesh, varying, tensor.topology)


# --- devices to host -------------------------------------------------------------------------------------------------


def everywhere(tensor: MeshTensor, process: int | None = None) -> dict[Shape, np.ndarray[Any, Any]] | None:
    """The shard at every coordinate that holds one, in every process or in one of them; the others get None."""
    mesh: Any = tensor.mesh
    holders = [c for c in np.ndindex(*mesh.devices.shape) if mesh.devices[c] in tensor.data.sharding.device_set]
    return _gathered(tensor, holders, mesh, process)


def every_shard(tensor: MeshTensor) -> dict[Shape, Any]:
    """The shard at every coordinate that holds one; over several processes all of them must ask."""
    mesh = tensor.mesh
    if not isinstance(mesh, Mesh) or not spans_processes(mesh):
        return {tuple(c): s for c, s in tensor.shards()}
    found = everywhere(tensor)
    assert found is not None
    return found


def _gathered(
    tensor: MeshTensor, coordinates: Sequence[Shape], mesh: Mesh, process: int | None
) -> dict[Shape, np.ndarray[Any, Any]] | None:
    owners = {c: mesh.devices[c].process_index for c in coordinates}
    held = {s.device: s.data for s in tensor.data.addressable_shards}
    mine = {c: np.asarray(held[d]).reshape(tensor.shape) for c in owners if (d := mesh.devices[c]) in held}
    return gather(mine, owners, tensor.shape, tensor.dtype, list(mesh.devices.flat), process)


def aggregate(
    tensor: MeshTensor, config: MeshComposerConfig, mesh: Mesh, process: int | None = None
) -> np.ndarray[Any, Any] | None:
    """`aggregate_tensor`, eagerly: the shards at the composer's coordinates, joined, on the host.

    Of several processes all must take part; `process` says that only one of them gets the result, the others None.

    Raises:
      VerifyError: a rule of section 2 is broken, or a coordinate holds nothing.
      MeshMismatchError: the tensor is on another mesh.
      ReplicationError: replication is checked, and an axis is dropped along which the shards differ.
    """
    if tensor.mesh != mesh:
        asked, got = dict(mesh.shape), dict(tensor.mesh.shape)
        how = "the same shape, other devices or names" if asked == got else "another shape"
        raise MeshMismatchError(
            f"aggregate_tensor: the composer is for the mesh {asked}, the tensor is on {got} ({how})."
        )
    plan = joining(config, mesh, tensor.shape)
    if is_enabled():
        check_read(tensor, plan.resolved, mesh)
    holders = tensor.data.sharding.device_set
    for coordinate in plan.coordinates:
        if mesh.devices[coordinate] not in holders:
            raise VerifyError(
                f"aggregate_tensor reads the shard at {list(coordinate)}, but that device holds nothing of this "
                f"tensor; it is on {len(holders)} of {mesh.devices.size} devices. Override the mesh shape to those "
                "that do."
            )
    shards = _gathered(tensor, plan.coordinates, mesh, process)
    if shards is None:
        return None
    out = memory(plan.resolved.full, tensor.dtype)
    copy_all([(out[index], shards[c]) for c, index in zip(plan.coordinates, plan.places, strict=True)])
    return out
