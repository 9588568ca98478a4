"""Opens and closes mesh devices."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmesh.errors import ArgumentTypeError, MeshError
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Device
from jaxmesh.sharding.configs import MeshCoordinate, MeshShape, integers
from jaxmesh.sharding.mesh import make_mesh
from jaxmesh.tensor import beyond
from jaxmesh.tensor.mesh_device import MeshDevice as MeshDevice, mesh_of as mesh_of
from jaxmesh.validate import as_index


def _devices() -> list[Device]:
    return typed.devices()


def open_mesh_device(
    mesh_shape: MeshShape | Sequence[int] | None = None,
    l1_small_size: int = 0,
    trace_region_size: int = 0,
    num_command_queues: int = 1,
    dispatch_core_config: object = None,
    offset: MeshCoordinate | Sequence[int] | None = None,
    physical_device_ids: Sequence[int] = (),
    worker_l1_size: int = 0,
) -> MeshDevice:
    """Opens a mesh of emulated devices; arguments about memory and dispatch are ignored.

    Args:
      mesh_shape: the shape of the mesh; by default all devices in one row.
      l1_small_size: not used.
      trace_region_size: not used.
      num_command_queues: not used.
      dispatch_core_config: not used.
      offset: must be the origin: the emulated system is exactly the mesh.
      physical_device_ids: the ids of the devices; by default the first ones.
      worker_l1_size: not used.

    Raises:
      DeviceCountError: too few devices, and too late to emulate them.
      MeshError: an offset other than the origin, or an unknown device id.

    >>> from jaxmesh import ttnn
    >>> ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    MeshDevice([2, 4])
    """
    if offset is not None and any(origin := integers("open_mesh_device: offset", offset)):
        raise MeshError(f"the emulated system is the mesh itself, so its offset is the origin, got {list(origin)}.")
    shape = MeshShape(len(_devices())) if mesh_shape is None else MeshShape(mesh_shape)
    if len(shape) > 2 and not beyond.is_enabled():
        raise MeshError(
            f"a mesh device has one or two axes, got the shape {list(shape)}, {beyond.REMEDY}. In ttnn: Only 1D and 2D "
            "mesh shapes are supported."
        )
    has_l1_small = as_index("open_mesh_device", "l1_small_size", l1_small_size) > 0
    ids = integers("open_mesh_device: physical_device_ids", physical_device_ids)
    if not ids:
        return MeshDevice(make_mesh(tuple(shape)), has_l1_small)
    known = {d.id: d for d in _devices()}
    missing = [i for i in ids if i not in known]
    if missing or len(ids) != shape.mesh_size() or len(set(ids)) < len(ids):
        raise MeshError(
            f"physical_device_ids {list(ids)} must name {shape.mesh_size()} different ones of the devices "
            f"{sorted(known)} for a mesh of shape {list(shape)}."
        )
    return MeshDevice(make_mesh(tuple(shape), devices=[known[i] for i in ids]), has_l1_small)


def close_mesh_device(mesh_device: MeshDevice) -> None:
    """Closes a mesh device.

    Raises:
      ArgumentTypeError: no mesh device.
    """
    if not isinstance(mesh_device, MeshDevice):
        raise ArgumentTypeError(f"close_mesh_device takes a MeshDevice, got {type(mesh_device).__name__}.")
    mesh_device.close()


def open_device(
    *,
    device_id: int,
    l1_small_size: int = 0,
    trace_region_size: int = 0,
    dispatch_core_config: object = None,
    worker_l1_size: int = 0,
) -> MeshDevice:
    """Opens one device, a mesh of shape `[1, 1]`; options as of `open_mesh_device`."""
    return open_mesh_device(MeshShape(1, 1), l1_small_size, physical_device_ids=[device_id])


def close_device(device: MeshDevice) -> None:
    """Closes a device; see `close_mesh_device`."""
    close_mesh_device(device)


def get_num_devices() -> int:
    """Returns the number of devices, emulated ones included."""
    return len(_devices())
