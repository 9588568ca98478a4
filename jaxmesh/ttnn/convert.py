"""Converts between `ttnn` and NumPy or torch. A tensor on several devices needs a composer."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxmesh.errors import ArgumentTypeError, ResidencyError
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.tensor import beyond
from jaxmesh.tensor.distributed import MeshToTensor, TensorToMesh, distribute_tensor
from jaxmesh.tensor.host_tensor import Tensor
from jaxmesh.tensor.mesh_device import MeshDevice
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.torch_interop import array_from_torch, check_to_torch, torch_from_array
from jaxmesh.tensor.transfers import elements
from jaxmesh.tensor.types import DataType, Layout, MemoryConfig, as_dtype, data_type
from jaxmesh.ttnn.layout_ops import to_device

_ARRAY = (np.ndarray, np.generic, jax.Array)
_STORED_AS = {
    "bool": DataType.UINT8, "int16": DataType.UINT16, "int64": DataType.UINT32, "float16": DataType.BFLOAT16,
}  # fmt: skip
"""What `from_torch` of ttnn 0.81.1 makes of element types that ttnn does not have, when no `dtype` is named."""


def from_numpy(
    array: object,
    dtype: DataType | None = None,
    *,
    layout: Layout = Layout.ROW_MAJOR,
    device: MeshDevice | Mesh | None = None,
    memory_config: MemoryConfig | None = None,
    mesh_mapper: TensorToMesh | None = None,
) -> Any:
    """Makes a tensor from a NumPy array, or anything NumPy converts to one, of any element type.

    The real `ttnn` goes through torch; this emulation does not need it.

    Args:
      array: the array.
      dtype: its `DataType`; by default the array's.
      layout: a `Layout`, kept and shown.
      device: a mesh device to bring it to; without a mapper every device gets a copy.
      memory_config: its memory config there, kept and shown.
      mesh_mapper: how to distribute it.

    Returns:
      A host `Tensor`; with a mapper a multi-device host tensor; with a device one on the devices.

    >>> import numpy as np
    >>> from jaxmesh import ttnn
    >>> from jaxmesh.ttnn import helpers
    >>> helpers.from_numpy(np.arange(3), dtype=ttnn.float32).to_list()
    [0.0, 1.0, 2.0]
    """
    if isinstance(array, MeshTensor):
        raise ResidencyError(f"from_numpy takes an array, got {array!r}, which is distributed already.")
    host = Tensor(elements(array, "from_numpy"), dtype=dtype, layout=layout)
    moved = host if mesh_mapper is None else distribute_tensor(host, mesh_mapper)
    return moved if device is None else to_device(moved, device, memory_config)


def to_numpy(tensor: object, *, mesh_composer: MeshToTensor | None = None) -> Array:
    """Returns the value of a tensor as a NumPy array.

    Args:
      tensor: a host tensor or an array; or a tensor on several devices, with a composer that joins its shards.
      mesh_composer: from `create_mesh_composer` or its shorthand.

    Raises:
      ResidencyError: a tensor on several devices, and no composer.
      ArgumentTypeError: no tensor, or a composer for one that is not distributed.
    """
    return np.array(_read("to_numpy", tensor, mesh_composer))


def _read(op: str, tensor: object, composer: MeshToTensor | None) -> Array:
    if isinstance(tensor, Tensor):
        return tensor.value(op, composer)
    if composer is not None:
        raise ArgumentTypeError(f"{op}: a composer joins a distributed tensor, got a host tensor; leave it out.")
    if isinstance(tensor, _ARRAY):
        return elements(tensor, op)
    raise ArgumentTypeError(f"{op} takes a tensor, got {type(tensor).__name__}.")


# --- torch, where it is installed ------------------------------------------------------------------------------------


def from_torch(
    tensor: object,
    dtype: DataType | None = None,
    *,
    spec: object = None,
    tile: object = None,
    pad_value: float | None = None,
    layout: Layout | None = None,
    device: MeshDevice | Mesh | None = None,
    memory_config: MemoryConfig | None = None,
    mesh_mapper: TensorToMesh | None = None,
    cq_id: int | None = None,
    preserve_nan_values: bool = False,
    col_tilize: bool = False,
    enable_bfloat_opt: bool = False,
) -> Any:
    """Makes a tensor from a torch tensor; see `from_numpy`. The arguments about storage details are ignored.

    Element types that ttnn lacks become what the real function makes of them: truth values uint8, int16 uint16,
    int64 uint32, float16 bfloat16. The real one lets negative numbers wrap; here they are an error.

    Raises:
      VerifyError: a number that the element type cannot hold, or a type that ttnn has nothing for (float64, float8).
      UnsupportedError: torch is not installed; or the tensor is sparse, quantized, complex or without data.
      ArgumentTypeError: no torch tensor.
    """
    array = array_from_torch(tensor)
    if dtype is None and not beyond.is_enabled():
        dtype = _STORED_AS.get(str(array.dtype))
    options: dict[str, Any] = {"layout": layout or Layout.ROW_MAJOR, "device": device, "memory_config": memory_config}
    return from_numpy(array, dtype, mesh_mapper=mesh_mapper, **options)


def to_torch(
    tensor: object,
    dtype: object = None,
    *,
    torch_rank: int | None = None,
    mesh_composer: MeshToTensor | None = None,
    device: MeshDevice | Mesh | None = None,
    cq_id: int | None = None,
) -> Any:
    """Returns the value of a tensor as a torch tensor; see `to_numpy`.

    Args:
      tensor: as for `to_numpy`.
      dtype: a torch dtype to convert to.
      torch_rank: drop leading dims of size 1 down to this rank.
      mesh_composer: as for `to_numpy`.
      device: accepted and ignored.
      cq_id: accepted and ignored.

    Raises:
      UnsupportedError: torch is not installed, or has no such element type.
      ResidencyError: a tensor on several devices, and no composer.
      ArgumentTypeError: a leading dim to drop is not of size 1; a `dtype` that is not torch's; a rank that is no
        number.
    """
    check_to_torch(dtype, torch_rank)
    return torch_from_array(_read("to_torch", tensor, mesh_composer), dtype, torch_rank)


def get_dtype(tensor: object) -> DataType:
    """Returns the `DataType` of any tensor or array.

    >>> import numpy as np
    >>> from jaxmesh import ttnn
    >>> from jaxmesh.ttnn import helpers
    >>> helpers.get_dtype(np.zeros(3, np.float32))
    <DataType.FLOAT32: 1>
    """
    kind = getattr(tensor, "dtype", None)
    if kind is None or isinstance(tensor, type):
        raise ArgumentTypeError(f"get_dtype takes a tensor, got {type(tensor).__name__}.")
    return data_type(as_dtype(kind, "get_dtype"))
