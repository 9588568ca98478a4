"""Properties of a tensor beside its elements: element type, shape, layout, storage and memory config, topology."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self, SupportsIndex, cast

import numpy as np

from jaxmesh.errors import ArgumentTypeError, UnsupportedError
from jaxmesh.jaxprs.untyped import DType, jnp
from jaxmesh.sharding.configs import MeshCoordinate, MeshShape, Placement, integers
from jaxmesh.validate import quote


class DataType(enum.Enum):
    """An element type, `ttnn.DataType`; it stands wherever NumPy and JAX take a dtype, and equals that dtype.

    The first eight are `ttnn`'s, in its order. The elements of the two block floats share exponents, so no NumPy
    dtype is one: a tensor holds their values as float32. INT16 and the following are additions of jaxmesh for JAX
    programs; the real `ttnn` lacks them.

    >>> DataType.BFLOAT16 == DataType.BFLOAT16.dtype, DataType.FLOAT32.dtype
    (True, dtype('float32'))
    """

    BFLOAT16 = 0
    FLOAT32 = 1
    UINT32 = 2
    BFLOAT8_B = 3
    BFLOAT4_B = 4
    UINT8 = 5
    UINT16 = 6
    INT32 = 7
    INT8 = 100
    INT16 = 101
    INT64 = 102
    UINT64 = 103
    FLOAT16 = 104
    FLOAT64 = 105
    BOOL = 106
    COMPLEX64 = 107
    COMPLEX128 = 108
    INT2 = 109
    INT4 = 110
    UINT2 = 111
    UINT4 = 112
    FLOAT4_E2M1FN = 113
    FLOAT8_E3M4 = 114
    FLOAT8_E4M3 = 115
    FLOAT8_E4M3B11FNUZ = 116
    FLOAT8_E4M3FN = 117
    FLOAT8_E4M3FNUZ = 118
    FLOAT8_E5M2 = 119
    FLOAT8_E5M2FNUZ = 120
    FLOAT8_E8M0FNU = 121

    @property
    def dtype(self) -> DType:
        """The NumPy dtype.

        Raises:
          UnsupportedError: a block float.
        """
        if self.name in _BLOCK_FLOATS:
            raise UnsupportedError(
                f"DataType.{self.name} is a block float, whose elements share exponents: no NumPy dtype is one. Use "
                "DataType.BFLOAT16 for arrays, which holds every value of it exactly."
            )
        return _DTYPES[self.name]

    def __eq__(self, other: object) -> bool:
        if self.name not in _BLOCK_FLOATS and isinstance(other, (np.dtype, type)):
            return self.dtype == other
        return self is other

    def __hash__(self) -> int:
        return hash(self.name) if self.name in _BLOCK_FLOATS else hash(self.dtype)


_BLOCK_FLOATS = frozenset({"BFLOAT8_B", "BFLOAT4_B"})


_DTYPES: dict[str, DType] = {
    n: np.dtype(getattr(jnp, "bool_" if n == "BOOL" else n.lower()))
    for n in DataType.__members__
    if n not in _BLOCK_FLOATS
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def is_block(kind: object) -> bool:
    """Returns True for a block float, whose elements share exponents."""
    return isinstance(kind, DataType) and kind.name in _BLOCK_FLOATS


def stored_dtype(kind: object, what: str) -> DType:
    """Returns the NumPy dtype that holds the values of a `DataType`: float32 for a block float."""
    return np.dtype(np.float32) if is_block(kind) else as_dtype(kind, what)


def data_type(dtype: Any) -> DataType:
    """Returns the `DataType` of a NumPy dtype, or the `DataType` itself."""
    if isinstance(dtype, DataType):
        return dtype
    try:
        name = _NAMES.get(np.dtype(dtype))
    except TypeError:
        # A type of JAX alone, such as random keys have.
        name = None
    if name is None:
        raise ArgumentTypeError(f"no ttnn.DataType is {dtype}; those there are: {', '.join(DataType.__members__)}.")
    return DataType[name]


def as_dtype(kind: Any, what: str) -> DType:
    """Returns the NumPy dtype of a `DataType`, or of a dtype that has a `DataType`."""
    if isinstance(kind, DataType):
        return kind.dtype
    # JAX's names of types, such as jax.numpy.bfloat16, are classes that have a dtype.
    names_dtype = isinstance(kind, type) and isinstance(getattr(kind, "dtype", None), np.dtype)
    dtype = getattr(kind, "dtype") if names_dtype else kind  # noqa: B009
    if not isinstance(dtype, (np.dtype, type)):
        raise ArgumentTypeError(f"{what} takes a ttnn.DataType as dtype, got {quote(kind)}.")
    return data_type(dtype).dtype


class Layout(enum.Enum):
    """The layout of a tensor in memory, set by `to_layout`; it does not change how ops compute here."""

    ROW_MAJOR = 0
    TILE = 1


class StorageType(enum.Enum):
    """The storage of a tensor: in host memory or on the devices."""

    HOST = 0
    DEVICE = 1


class TensorMemoryLayout(enum.Enum):
    """The layout of a tensor over the memory banks of one device."""

    INTERLEAVED = 0
    HEIGHT_SHARDED = 2
    WIDTH_SHARDED = 3
    BLOCK_SHARDED = 4


class BufferType(enum.Enum):
    """The kind of memory on one device."""

    DRAM = 0
    L1 = 1
    SYSTEM_MEMORY = 2
    L1_SMALL = 3
    TRACE = 4


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """The memory of a tensor on each device; kept and shown, and without effect on values."""

    memory_layout: TensorMemoryLayout = TensorMemoryLayout.INTERLEAVED
    buffer_type: BufferType = BufferType.DRAM
    shard_spec: Any = None


DRAM_MEMORY_CONFIG = MemoryConfig()
L1_MEMORY_CONFIG = MemoryConfig(buffer_type=BufferType.L1)


class Shape(tuple[int, ...]):
    """The shape of a tensor: `Shape([2, 4])`; a tuple of integers.

    Raises:
      ArgumentTypeError: an entry is not an integer.

    >>> Shape([2, 4]).rank, Shape([2, 4]) == (2, 4)
    (2, True)
    """

    __slots__ = ()

    def __new__(cls, values: Iterable[SupportsIndex] = ()) -> Self:
        """Converts the entries to plain integers."""
        return super().__new__(cls, integers("Shape", values))

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self)

    def __eq__(self, other: object) -> bool:
        # The real one also equals lists.
        row = tuple(cast("list[object]", other)) if isinstance(other, list) else other
        return super().__eq__(row)

    def __ne__(self, other: object) -> bool:
        return NotImplemented if (equal := self.__eq__(other)) is NotImplemented else not equal

    def __hash__(self) -> int:
        return super().__hash__()

    def __repr__(self) -> str:
        return f"Shape({list(self)})"

    def __format__(self, spec: str) -> str:
        return format(str(tuple(self)), spec)


@dataclass(frozen=True, slots=True)
class Storage:
    """How a tensor is stored.

    Attributes:
      type: in host memory or on the devices.
      layout: the layout.
      memory_config: the memory config; None in host memory.
      block: the block format whose values a float32 array holds; None for other element types.
    """

    type: StorageType = StorageType.DEVICE
    layout: Layout = Layout.TILE
    memory_config: MemoryConfig | None = DRAM_MEMORY_CONFIG
    block: DataType | None = None


ON_DEVICE = Storage()


def on_host(layout: Layout = Layout.ROW_MAJOR, block: DataType | None = None) -> Storage:
    """Returns the storage of a tensor in host memory."""
    return Storage(StorageType.HOST, layout, None, block)


ON_HOST = on_host()


@dataclass(frozen=True, slots=True)
class TensorTopology:
    """The distribution of the shards of a tensor, as in `ttnn.TensorTopology`."""

    _distribution_shape: MeshShape
    _placements: tuple[Placement, ...]
    _mesh_coords: tuple[MeshCoordinate, ...]

    def distribution_shape(self) -> MeshShape:
        """Returns the shape of the distribution."""
        return self._distribution_shape

    def placements(self) -> list[Placement]:
        """Returns one placement per axis of the distribution."""
        return list(self._placements)

    def mesh_coords(self) -> list[MeshCoordinate]:
        """Returns the mesh coordinates with a shard, in row-major order of the distribution."""
        return list(self._mesh_coords)
