"""Multi-device tensors from their shards, and the mesh devices that tensors were put on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.runtime.distributed.collectives import is_here
from jaxmesh.runtime.launch import check_process
from jaxmesh.sharding.mesh import storage_spec
from jaxmesh.tensor.mesh_device import MeshDevice
from jaxmesh.tensor.mesh_tensor import PART, MeshTensor, Shape
from jaxmesh.tensor.types import ON_DEVICE, Layout, MemoryConfig, Storage, TensorTopology


def assemble(
    shards: dict[Shape, Array],
    mesh: Mesh,
    varying: tuple[str, ...] | None,
    topology: TensorTopology | None,
    storage: Storage = ON_DEVICE,
) -> MeshTensor:
    """Returns a tensor from the shard at each mesh coordinate; `varying` is None if some devices lack a shard.

    Each of several processes gets all shards, and puts the shards of local devices there.
    """
    check_process()
    first = next(iter(shards.values()))
    if varying is None:
        storage_mesh, varying = Mesh(np.array([mesh.devices[c] for c in shards]), (PART,)), (PART,)
    else:
        storage_mesh = mesh
    shape = (*first.shape, *[storage_mesh.shape[a] for a in varying])
    single = (*first.shape, *[1] * len(varying))
    here = [(a, mesh.devices[c]) for c, a in shards.items() if is_here(mesh.devices[c])]
    arrays = [typed.device_put(a.reshape(single), device, may_alias=True) for a, device in here]
    sharding = NamedSharding(storage_mesh, storage_spec(first.ndim, varying))
    data = jax.make_array_from_single_device_arrays(shape, sharding, arrays, dtype=first.dtype)
    return MeshTensor(data, mesh, varying, topology, storage)


def owner_of(operands: Sequence[object]) -> MeshDevice | None:
    """Returns the mesh device of the first operand that has an owner."""
    owners = [x.owner.check_open() for x in operands if type(x) is MeshTensor and x.owner is not None]
    return owners[0] if owners else None


def set_owner(tensor: object, owner: object) -> Any:
    """Sets the owner of a `MeshTensor` to a mesh device, does nothing for anything else; returns the tensor."""
    if type(tensor) is MeshTensor and isinstance(owner, MeshDevice):
        tensor.owner = owner
    return tensor


def with_memory(tensor: MeshTensor, layout: Layout, memory: MemoryConfig | None = None) -> MeshTensor:
    """Returns the tensor with another layout and, if given, another memory config, on the same mesh device."""
    old = tensor.storage
    storage = Storage(old.type, layout, memory or old.memory_config, old.block)
    return set_owner(tensor.with_storage(storage), owner_of([tensor]))
