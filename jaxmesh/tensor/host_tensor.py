"""`ttnn.Tensor`: a tensor in host memory. A `MeshTensor` is an instance of it too.

Values are rounded as the block formats `BFLOAT8_B` and `BFLOAT4_B` do: sixteen neighbours along the last dim share the
largest exponent among them; each keeps a sign and a magnitude of 7 or 3 bits, rounded to the nearest, and ties to the
even one. A result that does not fit is the largest magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxmesh.dialects.ttnn.forms import EVERY
from jaxmesh.errors import ArgumentTypeError, ResidencyError, VerifyError
from jaxmesh.jaxprs.untyped import Array, DType, jnp
from jaxmesh.sharding.configs import MeshMapperConfig, MeshShape, PlacementReplicate, integers
from jaxmesh.tensor.assemble import set_owner
from jaxmesh.tensor.beyond import REMEDY, is_enabled
from jaxmesh.tensor.mesh_device import MeshDevice, MeshToTensor, mesh_of
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.tensor.torch_interop import array_from_torch
from jaxmesh.tensor.transfers import distribute, elements, host_array
from jaxmesh.tensor.types import (
    DRAM_MEMORY_CONFIG,
    DataType,
    Layout,
    MemoryConfig,
    Shape,
    Storage,
    StorageType,
    as_dtype,
    data_type,
    is_block,
)
from jaxmesh.validate import as_instance, quote

BLOCK = 16
"""Elements that share an exponent."""
_BITS: Mapping[str, int] = {"BFLOAT8_B": 7, "BFLOAT4_B": 3}
"""Bits of the magnitude, the leading one included."""


def round_to_blocks(array: Any, kind: DataType, numpy: Any = np) -> Any:
    """Returns a float32 array as a block format rounds it.

    Args:
      array: the values; the last dim is cut into blocks, the last of which is filled up with zeros.
      kind: the format.
      numpy: `numpy`, or `jax.numpy` for an array on devices.

    >>> round_to_blocks(np.array([1.0, 0.3, 0.01], np.float32), DataType.BFLOAT8_B).tolist()
    [1.0, 0.296875, 0.015625]
    """
    shape = array.shape
    size = shape[-1] if shape else 1
    if array.size == 0:
        return array
    rows = array.reshape(*shape[:-1], size)
    rows = numpy.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -size % BLOCK)])
    blocks = rows.reshape(*rows.shape[:-1], -1, BLOCK)
    words = blocks.view(np.uint32)
    exponents = (words >> 23) & 0xFF
    shared = exponents.max(axis=-1, keepdims=True)
    # Subnormal numbers are zero; the others get their leading one.
    significand = numpy.where(exponents > 0, (words & 0x7FFFFF) | 0x800000, 0).astype(np.uint32)
    drop = numpy.minimum(shared - exponents, 31).astype(np.uint32)
    aligned = significand >> drop
    low = 24 - _BITS[kind.name]
    kept = aligned >> low
    rest = aligned & ((1 << low) - 1)
    half = 1 << (low - 1)
    kept = kept + ((rest > half) | ((rest == half) & (kept & 1 == 1))).astype(np.uint32)
    kept = numpy.minimum(kept, (1 << _BITS[kind.name]) - 1)
    unit = numpy.ldexp(numpy.float32(1), shared.astype(np.int32) - 127 - (_BITS[kind.name] - 1))
    with np.errstate(over="ignore"):
        values = kept.astype(np.float32) * unit.astype(np.float32)
    # The exponent of infinity with any other bit is a NaN.
    values = numpy.where((shared == 255) & (kept > 1 << (_BITS[kind.name] - 1)), np.nan, values)
    # The format lacks a negative zero.
    values = numpy.where((words >> 31 == 1) & (kept > 0), -values, values).astype(np.float32)
    return values.reshape(*rows.shape)[..., :size].reshape(shape)


_ARRAY = (np.ndarray, np.generic, jax.Array)


class _AnyTensor(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, MeshTensor) or super().__instancecheck__(instance)


class Tensor(TensorBase, metaclass=_AnyTensor):
    """A tensor in host memory, made from numbers; with a device, a `MeshTensor` with a copy on each of its devices.

    Read it with `numpy.asarray(tensor)` (read-only), `.to_numpy()` (a copy), `.to_torch()` or `.to_list()`. A
    `MeshTensor` is also an instance of this class.

    Args:
      data: an array, a tensor of torch, or a list of numbers, row by row.
      shape: its shape; of an array its own, and its `DataType` may stand here.
      dtype: its `DataType`; of an array its own, else FLOAT32.
      layout: a `Layout`, kept and shown.
      device: a mesh device, whose devices all get a copy.
      memory_config: its memory config there, kept and shown.

    Raises:
      ArgumentTypeError: wrong types.
      VerifyError: the numbers do not fill the shape, or the element type cannot hold them.

    >>> from jaxmesh import ttnn
    >>> ttnn.Tensor([1.0, 2.0], [2], ttnn.DataType.FLOAT32, ttnn.Layout.TILE)
    Tensor([1. 2.], shape=[2], dtype=DataType.FLOAT32, layout=Layout.TILE)
    """

    __slots__ = ("_array", "_layout", "block")

    def __new__(
        cls,
        data: Any,
        shape: Sequence[int] | DataType | None = None,
        dtype: DataType | None = None,
        layout: Layout = Layout.ROW_MAJOR,
        device: MeshDevice | Mesh | None = None,
        memory_config: MemoryConfig | None = None,
    ) -> Any:
        """Returns a host tensor, or with a device a `MeshTensor`."""
        if isinstance(shape, DataType):
            # The real class also takes (array, element type).
            if dtype is not None:
                raise ArgumentTypeError(
                    f"Tensor takes one DataType, got {shape} in the place of the shape and {dtype}."
                )
            shape, dtype = None, shape
        block = dtype if is_block(dtype) else None
        array = _array(data, shape, None if block is not None else dtype)
        if not is_enabled() and (name := data_type(array.dtype).name) not in EVERY:
            raise VerifyError(f"Tensor has the element type {name}, {REMEDY}. In ttnn: there is no DataType.{name}.")
        if block is not None:
            array = round_to_blocks(array.astype(np.float32), block)
            layout = Layout.TILE
        as_instance(Layout, "Tensor", "layout", layout)
        if device is not None:
            return jnp.asarray(array) if in_program() else copy_to_devices(array, device, layout, memory_config, block)
        return cls.wrap(array, layout, block)

    @classmethod
    def wrap(cls, array: Array, layout: Layout, block: DataType | None = None) -> Any:
        """Returns a host tensor that shares the memory of an array, which becomes read-only."""
        tensor = super().__new__(cls)
        array.flags.writeable = False
        tensor._array, tensor._layout, tensor.block = array, layout, block
        return tensor

    def __reduce__(self) -> Any:
        return type(self).wrap, (self.array, self._layout, self.block)

    @property
    def array(self) -> Array:
        """The elements, read-only.

        Raises:
          ResidencyError: it was deallocated.
        """
        array = self._array
        if array is None:
            raise ResidencyError(
                "this tensor was deallocated with deallocate and holds nothing any more; use it before, or keep it."
            )
        return array

    @property
    def shape(self) -> Shape:
        """The shape."""
        return Shape(self.array.shape)

    @property
    def dtype(self) -> Any:
        """The element type, as a NumPy dtype, which equals the `DataType`; of a block float the `DataType`."""
        return self.block or self.array.dtype

    @property
    def ndim(self) -> int:
        """The rank."""
        return self.array.ndim

    @property
    def layout(self) -> Layout:
        """The layout in memory."""
        return self._layout

    def storage_type(self) -> StorageType:
        """Returns HOST."""
        return StorageType.HOST

    def memory_config(self) -> None:
        """Returns None: the tensor is on no device."""
        return

    def is_allocated(self) -> bool:
        """Returns True if the tensor was not deallocated."""
        return self._array is not None

    def deallocate(self, force: bool = False) -> None:
        """Releases the array; using the tensor afterwards is an error."""
        self._array = None

    def device(self) -> None:
        """Returns None: the tensor is on no device."""
        return

    def value(self, op: str, composer: MeshToTensor | None) -> Array:
        """Returns the elements, read-only."""
        if composer is not None:
            raise ArgumentTypeError(f"{op}: a composer joins a distributed tensor, got a host tensor; leave it out.")
        return self.array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.array, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        if not self.is_allocated():
            return "Tensor(deallocated)"
        values = np.array2string(self.array, threshold=20, edgeitems=2, separator=" ")
        kind = data_type(self.dtype)
        return f"Tensor({values}, shape={list(self.shape)}, dtype={kind}, layout={self._layout})"


def _array(data: Any, shape: Sequence[int] | None, dtype: DataType | None) -> Array:
    kind = None if dtype is None else as_dtype(dtype, "Tensor")
    if isinstance(data, MeshTensor):
        raise ResidencyError(
            f"Tensor takes numbers or an array, got {data!r}; read it with tensor.to_numpy(mesh_composer=...)."
        )
    if is_host_tensor(data):
        data = data.array
    elif type(data).__module__ == "torch":
        data = array_from_torch(data)
    if isinstance(data, _ARRAY):
        given: Array = elements(data, "Tensor")
        if kind is not None:
            _check_range(given, kind)
        array = _convert(given, kind)
    else:
        array = _numbers(data, np.dtype(np.float32) if kind is None else kind)
    data_type(array.dtype)
    wanted = array.shape if shape is None else integers("Tensor", shape)
    if array.size != math.prod(wanted) or min(wanted, default=0) < 0:
        raise VerifyError(f"Tensor of shape {list(wanted)} was given {array.size} numbers.")
    return array.reshape(wanted)


def _convert(array: Array, kind: DType | None) -> Array:
    try:
        with np.errstate(all="ignore"):
            return np.array(array, dtype=kind)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"Tensor takes an array of numbers, got dtype {array.dtype}.") from None


def _check_range(array: Array, kind: DType) -> None:
    """Checks that an integer type can represent the whole part of every number."""
    if not jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(array.dtype, jnp.complexfloating):
        return
    limits = jnp.iinfo(kind)
    least, most = int(limits.min), int(limits.max)
    if jnp.issubdtype(array.dtype, jnp.inexact):
        whole = np.trunc(array.astype(np.float64))
        good = (whole >= float(least)) & (whole < float(most + 1))
    else:
        whole = array if array.dtype.kind in "biu" else array.astype(np.int64)
        whole = whole.astype(np.uint8) if whole.dtype.kind == "b" else whole
        good = (whole >= least) & (whole <= most)
    if not np.all(good):
        raise VerifyError(
            f"a tensor of {kind} holds numbers from {least} to {most}, got {array[~good].flat[0]} in an array of "
            f"{array.dtype}; clip the array first, or name a wider type."
        )


def _numbers(data: object, kind: DType) -> Array:
    try:
        array = np.array(data, dtype=kind)
        exact = np.asarray(data)
    except (TypeError, ValueError, OverflowError) as error:
        raise VerifyError(
            f"Tensor takes a list of numbers that {kind} can hold, got {quote(data)}: {error}."
        ) from error
    whole = not jnp.issubdtype(kind, jnp.inexact)
    if exact.dtype.kind not in "biufc" or (exact.dtype.kind in "fc" and whole and (array != exact).any()):
        raise VerifyError(f"Tensor takes a list of numbers that {kind} can hold, got {str(data)[:80]}.")
    return array


def in_program() -> bool:
    """Returns True while a program over a mesh is traced; every array is then a shard."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def copy_to_devices(
    array: object, device: MeshDevice | Mesh, layout: Layout, memory: MemoryConfig | None, block: DataType | None = None
) -> MeshTensor:
    """Returns a host tensor copied to every device of a mesh."""
    mesh = mesh_of(device)
    every = MeshMapperConfig([PlacementReplicate()], MeshShape(mesh.devices.size))
    if memory is not None:
        as_instance(MemoryConfig, "a tensor on a device", "memory_config", memory)
    storage = Storage(StorageType.DEVICE, layout, memory or DRAM_MEMORY_CONFIG, block)
    return set_owner(distribute(host_array(array, "to_device"), every, mesh, storage), device)


def is_host_tensor(x: object) -> bool:
    """Returns True for a host tensor; `isinstance` is also True for a `MeshTensor`."""
    return type(x) is Tensor


def array_of(x: Any) -> Any:
    """Returns the elements of a host tensor; anything else unchanged."""
    return x.array if is_host_tensor(x) else x


def wrap_array(x: MeshTensor, layout: Layout) -> Any:
    """Returns a NumPy array as a host tensor; anything else unchanged."""
    return Tensor(x, layout=layout) if isinstance(x, np.ndarray) else x
