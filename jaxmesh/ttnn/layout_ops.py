"""Functions of `ttnn` that move tensors, and change layouts and element types."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxmesh.errors import ArgumentTypeError, ResidencyError
from jaxmesh.tensor.assemble import with_memory
from jaxmesh.tensor.host_tensor import Tensor, array_of, copy_to_devices, in_program, is_host_tensor
from jaxmesh.tensor.mesh_device import MeshDevice
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.tensor.transfers import to_mesh
from jaxmesh.tensor.types import DRAM_MEMORY_CONFIG, DataType, Layout, MemoryConfig, StorageType
from jaxmesh.ttnn.composed import composed
from jaxmesh.ttnn.functions import lookup
from jaxmesh.validate import quote


@composed
def to_device(tensor: MeshTensor, device: MeshDevice | Mesh, memory_config: MemoryConfig | None) -> Any:
    """Moves a tensor to the devices of a mesh.

    Args:
      tensor: a multi-device host tensor, each of whose shards goes to its device; or a host tensor, or a NumPy or JAX
        array, of which every device gets a copy.
      device: the mesh device.
      memory_config: its memory config there, kept and shown.

    Raises:
      MeshMismatchError: the tensor is distributed over a mesh of another shape.

    >>> import numpy as np
    >>> from jaxmesh import ttnn
    >>> device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    >>> t = ttnn.distribute_tensor(np.ones((8, 2)), ttnn.shard_tensor_to_mesh_mapper(device, 0))
    >>> t.storage_type(), ttnn.to_device(t, device).storage_type()
    (<StorageType.HOST: 0>, <StorageType.DEVICE: 1>)
    """
    if in_program() and not isinstance(tensor, MeshTensor):
        return array_of(tensor)
    if not isinstance(tensor, MeshTensor):
        layout, block = (tensor.layout, tensor.block) if is_host_tensor(tensor) else (Layout.ROW_MAJOR, None)
        return copy_to_devices(array_of(tensor), device, layout, memory_config or DRAM_MEMORY_CONFIG, block)
    return to_mesh(tensor, device, memory_config or tensor.memory_config() or DRAM_MEMORY_CONFIG)


@composed
def from_device(tensor: object) -> Any:
    """Moves a tensor to host memory: a multi-device host tensor, whose shards `aggregate_tensor` joins.

    Args:
      tensor: a tensor on the devices; a host tensor is copied.
    """
    return tensor.cpu() if isinstance(tensor, TensorBase) else _copy_numpy(tensor)


@composed
def to_layout(tensor: MeshTensor, layout: Layout, dtype: DataType | None, memory_config: MemoryConfig | None) -> Any:
    """Converts the layout, and with `dtype` the element type; on the devices or in host memory.

    Like the real function, it returns a tensor in the wanted layout unchanged, whatever its element type.
    """
    if isinstance(tensor, Tensor) and tensor.layout is layout:
        dtype = None
    if dtype is not None:
        tensor = lookup("ttnn.typecast")(tensor, dtype)
    if isinstance(tensor, MeshTensor):
        return with_memory(tensor, layout, memory_config)
    if in_program() or (not is_host_tensor(tensor) and layout is Layout.ROW_MAJOR):
        return array_of(_copy_numpy(tensor))
    return (tensor if is_host_tensor(tensor) else Tensor(tensor)).to(layout)


def _copy_numpy(x: Any) -> Any:
    """Returns a copy of a NumPy array, which its owner may write to; anything else unchanged."""
    array = x
    return x.copy() if isinstance(array, np.ndarray) else x


@composed
def to_memory_config(tensor: Any, memory_config: MemoryConfig, dtype: DataType | None) -> Any:
    """Moves a tensor to other memory on its devices; with `dtype` in another element type.

    Raises:
      ResidencyError: the tensor is in host memory.
    """
    if in_program() and not isinstance(tensor, MeshTensor):
        return array_of(tensor if dtype is None else lookup("ttnn.typecast")(tensor, dtype))
    if not isinstance(tensor, MeshTensor) or tensor.storage_type() is StorageType.HOST:
        raise ResidencyError(
            f"to_memory_config moves a tensor that is on the devices, got {quote(tensor)} in host memory; bring it "
            "there with ttnn.to_device(x, device, memory_config)."
        )
    if dtype is not None and tensor.memory_config() != memory_config:
        tensor = lookup("ttnn.typecast")(tensor, dtype)
    return with_memory(tensor, tensor.layout, memory_config)


@composed
def to_dtype(tensor: object, dtype: object) -> Any:
    """Converts a host tensor to another element type; `typecast` does it on the devices.

    Raises:
      ResidencyError: the tensor is on the devices.
    """
    if isinstance(tensor, MeshTensor) and tensor.storage_type() is StorageType.DEVICE:
        raise ResidencyError(f"to_dtype works in host memory, got {tensor!r}; use ttnn.typecast.")
    return lookup("ttnn.typecast")(tensor, dtype)


def deallocate(tensor: object, force: bool = True) -> None:
    """Releases the memory of a tensor; using it afterwards is an error, releasing it again is not.

    Args:
      tensor: any tensor; a NumPy or JAX array is left alone.
      force: whether the real `ttnn` also takes the memory from other tensors that share it; no tensor does here.
    """
    if isinstance(tensor, (Tensor, MeshTensor)):
        tensor.deallocate(force)
    elif not isinstance(tensor, (np.ndarray, jax.Array, np.generic)):
        raise ArgumentTypeError(f"deallocate takes a tensor, got {type(tensor).__name__}.")
