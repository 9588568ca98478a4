"""Serializes the types of mesh tensors in the trees of `jax.export`: mesh, varying axes and storage.

A file has the ids of the devices. The reader gets the mesh of the context if it has the same axes, else a mesh of the
devices with these ids, else `jaxmesh.make_mesh` of that shape.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxmesh.errors import DeviceCountError, ParseError
from jaxmesh.jaxprs.typed import typed
from jaxmesh.sharding.mesh import context_mesh, emulate, make_mesh
from jaxmesh.tensor.types import BufferType, Layout, MemoryConfig, Storage, StorageType, TensorMemoryLayout

AnyMesh = Mesh | AbstractMesh
Read = tuple[AnyMesh, tuple[str, ...], Storage]


def write(mesh: AnyMesh, varying: Sequence[str], storage: Storage) -> bytes:
    """Returns the type of a tensor in a tree as bytes, without the shard spec of its memory.

    >>> from jaxmesh import make_mesh
    >>> from jaxmesh.tensor.types import ON_DEVICE
    >>> mesh, varying, storage = read(write(make_mesh((2, 4)), ("x",), ON_DEVICE))
    >>> mesh == make_mesh((2, 4)), varying, storage == ON_DEVICE
    (True, ('x',), True)
    """
    memory = storage.memory_config
    entries = {
        "axes": [[n, mesh.shape[n], t.name] for n, t in zip(mesh.axis_names, mesh.axis_types, strict=True)],
        "devices": None,
        "varying": list(varying),
        "storage": storage.type.name,
        "layout": storage.layout.name,
        "memory": None if memory is None else [memory.memory_layout.name, memory.buffer_type.name],
    }
    if isinstance(mesh, Mesh):
        devices: list[Any] = list(mesh.devices.flat)
        entries["devices"] = [devices[0].platform, [d.id for d in devices]]
    return json.dumps(entries).encode()


def read(data: bytes) -> Read:
    """Returns the type that `write` wrote."""
    try:
        entries = json.loads(data)
        names, sizes, kinds = zip(*entries["axes"], strict=True)
        types = tuple(AxisType[k] for k in kinds)
        memory = entries["memory"] and MemoryConfig(
            TensorMemoryLayout[entries["memory"][0]], BufferType[entries["memory"][1]]
        )
        storage = Storage(StorageType[entries["storage"]], Layout[entries["layout"]], memory)
        varying, devices = tuple(entries["varying"]), entries["devices"]
    except (ValueError, KeyError, TypeError) as error:
        raise ParseError(
            f"an export holds a MeshTensor that cannot be read ({type(error).__name__}: {error}): another version of "
            "jaxmesh wrote it, or the file is damaged. Export it again."
        ) from None
    if devices is None:
        return AbstractMesh(sizes, names, axis_types=types), varying, storage
    mesh = context_mesh()
    if not isinstance(mesh, Mesh) or dict(mesh.shape) != dict(zip(names, sizes, strict=True)):
        mesh = make_mesh(sizes, names, axis_types=types, devices=_devices(*devices))
    return mesh, varying, storage


def _devices(platform: str, ids: Sequence[int]) -> list[Any] | None:
    """Returns the devices with these ids; None if this process lacks one."""
    try:
        # Counting processes would start the backend and fix the number of devices.
        if platform == "cpu" and not jax.distributed.is_initialized():
            emulate(max(ids) + 1)
        every = typed.devices(platform)
        known: dict[int, object] = {d.id: d for d in every}
    except (DeviceCountError, RuntimeError):
        return None
    return [known[i] for i in ids] if all(i in known for i in ids) else None
