"""Functions of `ttnn` composed of others, or without an op: transfers, layouts and element types of tensors."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxmesh.errors import ArgumentTypeError, ResidencyError
from jaxmesh.jaxprs.untyped import jnp
from jaxmesh.tensor.assemble import with_memory
from jaxmesh.tensor.host_tensor import Tensor, array_of, copy_to_devices, in_program, is_host_tensor
from jaxmesh.tensor.mesh_device import MeshDevice
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.tensor.transfers import to_mesh
from jaxmesh.tensor.types import (
    DRAM_MEMORY_CONFIG,
    DataType,
    Layout,
    MemoryConfig,
    StorageType,
    data_type,
    stored_dtype,
)
from jaxmesh.ttnn.call_arguments import HOW
from jaxmesh.ttnn.conversion import finish_one
from jaxmesh.ttnn.functions import COMPOSED, TtnnFunction, lookup, op_function
from jaxmesh.ttnn.refusals import computing, results_of
from jaxmesh.validate import quote


class Composed(TtnnFunction):
    """A function composed of others, callable as in `ttnn`; the arguments it does not know must be left out."""

    def __init__(self, callee: str, compute: Callable[..., object]) -> None:
        super().__init__(callee, {})
        self.__doc__ = compute.__doc__
        self._compute = compute
        COMPOSED[callee] = self
        self._known = [n for n in inspect.signature(compute).parameters if n in self._slots]
        self._others = [(n, i) for n, i in self._slots.items() if n not in self._known and n not in HOW]

    def __call__(self, *args: object, **kwargs: Any) -> Any:
        """Performs the function; see `help` of it for its arguments."""
        values = self._binder.bind(args, kwargs)
        for name, slot in self._others:
            self._binder.check_default(name, values[slot])
        every = dict(zip(self._slots, values, strict=True))
        results = results_of(self.callee, every)
        # Where no results are declared, the rules of the composing functions determine the types.
        with contextlib.nullcontext() if results == [] else computing():
            result = self._compute(**{name: every[name] for name in self._known})
        return finish_one(result, results[0]) if results else result


def composed(compute: Callable[..., object]) -> Composed:
    """Gives a function the parameters of the real one, and enters it under its name."""
    return Composed(f"ttnn.{compute.__name__}", compute)


@composed
def clamp(input_tensor: MeshTensor, min: object, max: object, memory_config: MemoryConfig | None) -> Any:  # noqa: A002
    """Selects values between two bounds, which are numbers or tensors; None leaves a side open."""
    if any(isinstance(b, (Tensor, MeshTensor)) for b in (min, max)):
        maximum, minimum = lookup("ttnn.maximum"), lookup("ttnn.minimum")
        out = input_tensor if min is None else maximum(input_tensor, min, memory_config=memory_config)
        return out if max is None else minimum(out, max, memory_config=memory_config)
    least, most = -math.inf, math.inf
    stored = stored_dtype(data_type(input_tensor.dtype), "ttnn.clamp")
    if jnp.issubdtype(stored, jnp.integer):
        whole = jnp.iinfo(stored)
        least, most = int(whole.min), int(whole.max)
    low, high = least if min is None else min, most if max is None else max
    return op_function("ttnn.clamp")(input_tensor, low, high, memory_config=memory_config)


@composed
def conv1d(
    input_tensor: object, weight_tensor: Any, device: MeshDevice, in_channels: int, out_channels: int, batch_size: int,
    input_length: int, kernel_size: int, stride: int, padding: int | Sequence[int], dilation: int, groups: int,
    bias_tensor: object, dtype: DataType | None, memory_config: MemoryConfig | None,
) -> Any:  # fmt: skip
    """Computes a convolution of rows, by `ttnn.conv2d` of images one pixel wide."""
    sides = [padding, padding] if isinstance(padding, int) else list(padding)
    shape = [*weight_tensor.shape[:3], 1]
    weights = weight_tensor if len(weight_tensor.shape) == 4 else lookup("ttnn.reshape")(weight_tensor, shape)
    flat = lookup("ttnn.reshape")(input_tensor, [1, 1, batch_size * input_length, in_channels])
    return lookup("ttnn.conv2d")(
        input_tensor=flat, weight_tensor=weights, device=device, in_channels=in_channels, out_channels=out_channels,
        batch_size=batch_size, input_height=input_length, input_width=1, kernel_size=[kernel_size, 1],
        stride=[stride, 1], padding=[sides[0], sides[-1], 0, 0], dilation=[dilation, 1], groups=groups,
        bias_tensor=bias_tensor, dtype=dtype, memory_config=memory_config,
    )  # fmt: skip


# --- transfers, layouts, element types -------------------------------------------------------------------------------


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
