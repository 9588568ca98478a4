"""A second `ttnn` in NumPy, as narrow as the real one: its element types, and no bfloat16 in NumPy.

What emitted Python and its `utils.py` do with the real API is tested against it: it has no `from_numpy`, it takes no
device tensor where a host tensor belongs, and it reads no tensor of several devices without a composer.
"""

from __future__ import annotations

import copy
import enum
import itertools
import math
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, MeshShape, PlacementReplicate, PlacementShard

Array = np.ndarray[Any, Any]


class DataType(enum.Enum):
    BFLOAT16 = 0
    FLOAT32 = 1
    UINT32 = 2
    UINT8 = 5
    UINT16 = 6
    INT32 = 7


def _numpy(dtype: Any) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype.name.lower(), dtype.name.lower()))


class Layout(enum.Enum):
    ROW_MAJOR = 0
    TILE = 1


class Tensor:
    """Pieces, one or one per device; on the host or on a device."""

    def __init__(self, array: Array, dtype: Any) -> None:
        assert array.flags.writeable, "The given NumPy array is not writable"
        assert array.dtype.isbuiltin == 1
        self.pieces, self.dtype, self.layout = [array.astype(_numpy(dtype))], dtype, Layout.ROW_MAJOR
        self.device, self.freed = None, False

    def to_numpy(self) -> Array:
        assert not self.freed
        assert self.device is None, "The tensor must be on host"
        assert len(self.pieces) == 1, "a tensor of several devices needs a composer"
        assert self.pieces[0].dtype != ml_dtypes.bfloat16, "NumPy has no bfloat16"
        return self.pieces[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pieces[0].shape

    def with_(self, **changes: Any) -> Tensor:
        assert not self.freed, "tensor was deallocated"
        made = copy.copy(self)
        for name, value in changes.items():
            setattr(made, name, value)
        return made


class Device:
    def __init__(self, log: list[Any], shape: MeshShape) -> None:
        self.log, self.shape = log, shape

    def reshape(self, shape: MeshShape) -> None:
        assert math.prod(shape) == math.prod(self.shape)
        self.log.append(("reshape", tuple(shape)))
        self.shape = shape

    def create_submesh(self, shape: MeshShape) -> Device:
        assert all(n <= m for n, m in zip(shape, self.shape, strict=True))
        self.log.append(("submesh", tuple(shape)))
        return Device(self.log, shape)


def strict_ttnn() -> Any:
    """A fresh module; `.log` notes what was asked of the device."""
    t: Any = ModuleType("ttnn")
    t.log = []
    # A fresh enum: utils.py adds names to it.
    t.DataType = enum.Enum("DataType", {m.name: m.value for m in DataType})
    t.Layout, t.Shape, t.MeshShape, t.Tensor = Layout, list, MeshShape, Tensor
    t.MeshMapperConfig, t.MeshComposerConfig = MeshMapperConfig, MeshComposerConfig
    t.PlacementShard, t.PlacementReplicate = PlacementShard, PlacementReplicate
    t.FabricConfig = enum.Enum("FabricConfig", ["DISABLED", "FABRIC_1D"])
    t.TensorMemoryLayout = enum.Enum("TensorMemoryLayout", ["INTERLEAVED"])
    t.BufferType = enum.Enum("BufferType", ["DRAM"])
    t.MemoryConfig = lambda layout, buffer, spec: SimpleNamespace(layout=layout, buffer=buffer, spec=spec)
    t.set_fabric_config = lambda config: t.log.append(("fabric", config.name))
    t.get_num_devices = lambda: 8
    t.open_mesh_device = lambda *, mesh_shape=None, l1_small_size: _open(t, mesh_shape, l1_small_size)
    t.close_mesh_device = lambda device: t.log.append(("close", tuple(device.shape)))
    t.create_mesh_mapper = lambda device, config: (device, config)
    t.create_mesh_composer = lambda device, config: (device, config)
    for function in (
        distribute_tensor, aggregate_tensor, to_device, from_device, to_layout, deallocate, from_host_shards,
        get_device_tensors, to_dtype, ones, add, multiply, logical_or, logical_and,
    ):  # fmt: skip
        setattr(t, function.__name__, function)
    return t


def _open(t: Any, mesh_shape: MeshShape | None, l1_small_size: int) -> Device:
    """Opens eight devices: the fabric runs on all of them or on none."""
    assert l1_small_size == 65536
    shape = MeshShape((2, 4)) if mesh_shape is None else mesh_shape
    assert math.prod(shape) in (1, 8), "Fabric is being used but a device is not active"
    t.log.append(("open", tuple(shape)))
    return Device(t.log, shape)


def to_dtype(tensor: Tensor, dtype: Any) -> Tensor:
    assert tensor.device is None
    return tensor.with_(pieces=[p.astype(_numpy(dtype)) for p in tensor.pieces], dtype=dtype)


def ones(*, shape: list[int], dtype: Any, layout: Layout, device: Any, memory_config: Any) -> Tensor:
    assert (device is None) == (memory_config is None)
    count = 1 if device is None else math.prod(device.shape)
    return Tensor(np.ones(shape, np.float32), dtype).with_(
        pieces=[np.ones(shape, _numpy(dtype))] * count, layout=layout, device=device
    )


def from_host_shards(tensors: list[Tensor], mesh_shape: MeshShape) -> Tensor:
    assert len(tensors) == math.prod(mesh_shape)
    assert all(t.device is None and len(t.pieces) == 1 for t in tensors)
    return tensors[0].with_(pieces=[t.pieces[0] for t in tensors])


def get_device_tensors(tensor: Tensor) -> list[Tensor]:
    return [tensor.with_(pieces=[p]) for p in tensor.pieces]


def distribute_tensor(tensor: Tensor, *, mapper: Any) -> Tensor:
    device, config = mapper
    assert tensor.device is None
    assert tensor.layout is Layout.ROW_MAJOR
    assert len(tensor.pieces) == 1
    sizes = tuple(config.mesh_shape_override)
    assert sizes == tuple(device.shape)
    pieces: list[Array] = []
    for place in itertools.product(*map(range, sizes)):
        piece = tensor.pieces[0]
        for at, size, placement in zip(place, sizes, config.placements, strict=True):
            if isinstance(placement, PlacementShard):
                piece = np.split(piece, size, placement.dim)[at]
        pieces.append(piece)
    return tensor.with_(pieces=pieces)


def aggregate_tensor(tensor: Tensor, *, composer: Any) -> Tensor:
    device, config = composer
    assert tensor.device is None
    assert len(tensor.pieces) == math.prod(device.shape)
    sizes, whole = tuple(config.mesh_shape_override), tuple(device.shape)
    assert sizes == whole, "this fake joins all devices"
    rows = list(tensor.pieces)
    for size, dim in reversed(list(zip(sizes, config.dims, strict=True))):
        rows = [np.concatenate(rows[i : i + size], dim) for i in range(0, len(rows), size)]
    return tensor.with_(pieces=rows)


def to_device(tensor: Tensor, *, device: Device, memory_config: Any) -> Tensor:
    assert tensor.device is None
    assert memory_config is not None
    assert len(tensor.pieces) == math.prod(device.shape)
    return tensor.with_(device=device)


def from_device(tensor: Tensor) -> Tensor:
    return tensor.with_(device=None)


def to_layout(tensor: Tensor, layout: Layout, dtype: Any = None, *, memory_config: Any = None) -> Tensor:
    assert dtype is None
    return tensor.with_(layout=layout)


def deallocate(tensor: Tensor, force: bool) -> None:
    assert force is False
    assert not tensor.freed
    tensor.freed = True


def _compute(a: Tensor, b: Tensor, function: Any, dtype: Any, memory_config: Any) -> Tensor:
    for x in (a, b):
        assert x.device is not None, "a host tensor in a compute op"
        assert x.layout is Layout.TILE
        assert not x.freed
    assert memory_config is not None
    return a.with_(
        pieces=[function(x, y).astype(_numpy(dtype)) for x, y in zip(a.pieces, b.pieces, strict=True)], dtype=dtype
    )


def add(a: Tensor, b: Tensor, *, dtype: Any, memory_config: Any) -> Tensor:
    return _compute(a, b, np.add, dtype, memory_config)


def multiply(a: Tensor, b: Tensor, *, dtype: Any, memory_config: Any) -> Tensor:
    return _compute(a, b, np.multiply, dtype, memory_config)


def logical_or(a: Tensor, b: Tensor, *, dtype: Any, memory_config: Any) -> Tensor:
    return _compute(a, b, np.logical_or, dtype, memory_config)


def logical_and(a: Tensor, b: Tensor, *, dtype: Any, memory_config: Any) -> Tensor:
    return _compute(a, b, np.logical_and, dtype, memory_config)
