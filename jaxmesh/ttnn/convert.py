"""Between `ttnn` and NumPy or torch. A tensor on several devices has no value without a composer, and gives none."""

from __future__ import annotations

import importlib
import math
from typing import Any

import jax
import numpy as np

from jaxmesh.checks import shown
from jaxmesh.errors import ArgumentTypeError, ResidencyError, UnsupportedError
from jaxmesh.runtime.eager_transfers import elements
from jaxmesh.runtime.eager_types import DataType, Layout, MemoryConfig, as_dtype, data_type
from jaxmesh.runtime.tensor import MeshTensor
from jaxmesh.ttnn.distributed import MeshToTensor, TensorToMesh, aggregate_tensor, distribute_tensor
from jaxmesh.ttnn.host import Tensor, is_host_tensor
from jaxmesh.ttnn.moves import to_device

_jnp: Any = jax.numpy
_ARRAY: Any = (np.ndarray, np.generic, jax.Array)


def from_numpy(
    array: Any,
    dtype: DataType | None = None,
    *,
    layout: Layout = Layout.ROW_MAJOR,
    device: Any = None,
    memory_config: MemoryConfig | None = None,
    mesh_mapper: TensorToMesh | None = None,
) -> Any:
    """A tensor from a NumPy array (or anything NumPy makes one of), of every element type.

    The real `ttnn` goes through torch; this emulation has no need of it.

    Args:
      array: the array.
      dtype: its `DataType`; by default the array's.
      layout: a `Layout`, kept and shown.
      device: a mesh device to bring it to; without a mapper every device gets a copy.
      memory_config: where it lies there, kept and shown.
      mesh_mapper: how to distribute it.

    Returns:
      A host `Tensor`; with a mapper a multi-device host tensor; with a device one on the devices.

    >>> import numpy as np
    >>> from jaxmesh import ttnn
    >>> ttnn.from_numpy(np.arange(3), dtype=ttnn.float32).to_list()
    [0.0, 1.0, 2.0]
    """
    if isinstance(array, MeshTensor):
        raise ResidencyError(f"from_numpy takes an array, got {array!r}, which is distributed already.")
    host = Tensor(elements(array, "from_numpy"), dtype=dtype, layout=layout)
    moved = host if mesh_mapper is None else distribute_tensor(host, mesh_mapper)
    return moved if device is None else to_device(moved, device, memory_config)


def to_numpy(tensor: Any, *, mesh_composer: MeshToTensor | None = None) -> np.ndarray[Any, Any]:
    """The value of a tensor as a NumPy array.

    Args:
      tensor: a host tensor or an array; or a tensor on several devices, with a composer that joins its shards.
      mesh_composer: from `create_mesh_composer` or its shorthand.

    Raises:
      ResidencyError: a tensor on several devices, and no composer.
      ArgumentTypeError: no tensor, or a composer for one that is not distributed.
    """
    return _read("to_numpy", tensor, mesh_composer)


def _read(op: str, tensor: Any, composer: MeshToTensor | None) -> np.ndarray[Any, Any]:
    if isinstance(tensor, MeshTensor):
        if composer is not None:
            return aggregate_tensor(tensor, composer)
        count = math.prod(tensor.mesh.shape.values())
        if count > 1:
            raise ResidencyError(
                f"{op}: a tensor distributed over {count} devices has no single value; give "
                "mesh_composer=ttnn.create_mesh_composer(device, config), or read each of ttnn.get_device_tensors."
            )
        return np.array(tensor.shard((0,) * len(tensor.mesh.shape)))
    if composer is not None:
        raise ArgumentTypeError(f"{op}: a composer joins a distributed tensor, got one of no device; leave it out.")
    if is_host_tensor(tensor):
        return tensor.to_numpy()
    if isinstance(tensor, _ARRAY):
        return np.array(elements(tensor, op))
    raise ArgumentTypeError(f"{op} takes a tensor, got {type(tensor).__name__}.")


# --- torch, where it is installed ------------------------------------------------------------------------------------


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise UnsupportedError(
            "from_torch and to_torch need torch, which is not installed; use ttnn.from_numpy and ttnn.to_numpy."
        ) from None


def _narrow(name: str) -> bool:
    """Whether NumPy itself does not know the element type, so that torch gives and takes none as an array."""
    return hasattr(_jnp, name) and np.dtype(getattr(_jnp, name)).isbuiltin != 1


def from_torch(
    tensor: Any,
    dtype: DataType | None = None,
    *,
    spec: Any = None,
    tile: Any = None,
    pad_value: float = 0.0,
    layout: Layout = Layout.ROW_MAJOR,
    device: Any = None,
    memory_config: MemoryConfig | None = None,
    mesh_mapper: TensorToMesh | None = None,
    cq_id: int | None = None,
) -> Any:
    """A tensor from a torch tensor; see `from_numpy`. `spec`, `tile`, `pad_value`, `cq_id` mean nothing here.

    Raises:
      UnsupportedError: torch is not installed; or the tensor is sparse, quantized, complex or without data.
      ArgumentTypeError: no torch tensor.
    """
    torch = _torch()
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(f"from_torch takes a torch tensor, got {type(tensor).__name__}.")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex() or tensor.is_meta:
        raise UnsupportedError(
            "from_torch takes a dense tensor of real numbers, integers or truth values with data, got "
            f"{tensor.dtype} of {tensor.layout} on {tensor.device}; use to_dense(), dequantize(), real and imag, or a "
            "tensor with data."
        )
    plain, name = tensor.detach().cpu().contiguous(), str(tensor.dtype).removeprefix("torch.")
    if _narrow(name):
        bits = torch.uint8 if plain.element_size() == 1 else torch.int16
        array = plain.view(bits).numpy().view(getattr(_jnp, name))
    else:
        array = plain.numpy()
    options: dict[str, Any] = {"layout": layout, "device": device, "memory_config": memory_config}
    return from_numpy(array, dtype, mesh_mapper=mesh_mapper, **options)


def to_torch(
    tensor: Any,
    dtype: Any = None,
    *,
    torch_rank: int | None = None,
    mesh_composer: MeshToTensor | None = None,
    device: Any = None,
    cq_id: int | None = None,
) -> Any:
    """The value of a tensor as a torch tensor; see `to_numpy`. `cq_id` means nothing here.

    Args:
      tensor: as for `to_numpy`.
      dtype: a torch dtype to convert to.
      torch_rank: drop leading dims of size 1 down to this rank.
      mesh_composer: as for `to_numpy`.
      device: a mesh device, which says nothing more.
      cq_id: taken, and means nothing here.

    Raises:
      UnsupportedError: torch is not installed, or has no such element type.
      ResidencyError: a tensor on several devices, and no composer.
      ArgumentTypeError: a leading dim to drop is not of size 1; a `dtype` that is not torch's; a rank that is no
        number.
    """
    torch = _torch()
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentTypeError(f"to_torch takes an element type of torch's, as torch.float32, got {shown(dtype)}.")
    if torch_rank is not None and (not isinstance(torch_rank, int) or isinstance(torch_rank, bool)):
        raise ArgumentTypeError(f"to_torch takes a whole number as torch_rank, got {shown(torch_rank)}.")
    array = _read("to_torch", tensor, mesh_composer)
    while torch_rank is not None and array.ndim > torch_rank:
        if array.shape[0] != 1:
            raise ArgumentTypeError(f"to_torch: shape {list(array.shape)} has no rank {torch_rank}: dim 0 is not 1.")
        array = array[0]
    kind = getattr(torch, array.dtype.name, None)
    if kind is None:
        raise UnsupportedError(f"torch has no element type {array.dtype}; typecast the tensor first.")
    array = np.array(array, order="C")
    if _narrow(array.dtype.name):
        bits = np.uint8 if array.dtype.itemsize == 1 else np.int16
        made = torch.from_numpy(array.view(bits)).view(kind)
    else:
        made = torch.from_numpy(array)
    return made if dtype is None else made.to(dtype)


def get_dtype(tensor: Any) -> DataType:
    """The `DataType` of any tensor or array.

    >>> import numpy as np
    >>> from jaxmesh import ttnn
    >>> ttnn.get_dtype(np.zeros(3, np.float32))
    <DataType.FLOAT32: 1>
    """
    kind = getattr(tensor, "dtype", None)
    if kind is None or isinstance(tensor, type):
        raise ArgumentTypeError(f"get_dtype takes a tensor, got {type(tensor).__name__}.")
    return data_type(as_dtype(kind, "get_dtype"))
