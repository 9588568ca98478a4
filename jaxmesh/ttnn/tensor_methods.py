"""The methods of `ttnn.Tensor`, of tensors in host memory and of those of several devices alike."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import jax
import numpy as np

from jaxmesh.errors import ArgumentTypeError, ResidencyError, UnsupportedError, VerifyError
from jaxmesh.sharding.configs import integers
from jaxmesh.ttnn.mesh_device import MeshDevice, MeshToTensor
from jaxmesh.ttnn.tensor_operators import Operators, owned, owner_of
from jaxmesh.ttnn.torch_interop import check_asked, torch_from_array
from jaxmesh.ttnn.types import (
    DRAM_MEMORY_CONFIG,
    DataType,
    Layout,
    MemoryConfig,
    Place,
    Shape,
    StorageType,
    as_dtype,
    data_type,
)
from jaxmesh.validate import as_instance, quote

_TILE = 32
"""Rows and columns of a tile."""

_TRUTH: Any = (bool, np.bool_)


class Methods(Operators):
    """What every tensor can be asked. A subclass says how it is moved, converted and read."""

    __slots__ = ()

    # A tensor is indexed, but never walked: each step would start a program on the devices.
    __iter__ = None

    # --- what a subclass says ---

    def value(self, op: str, composer: MeshToTensor | None) -> np.ndarray[Any, Any]:
        """Its one value, which may be memory of others."""
        raise NotImplementedError

    def _home(self) -> Any:
        """The same in host memory."""
        raise NotImplementedError

    def _moved(self, device: Any, memory: MemoryConfig) -> Any:
        """The same on the devices of a mesh."""
        raise NotImplementedError

    def _laid(self, layout: Layout) -> Any:
        """The same in another layout."""
        raise NotImplementedError

    def _by_row(self, op: str, attributes: tuple[tuple[str, Any], ...], dtype: Any = None) -> Any:
        """What an op of TTNN makes of it, wherever it is."""
        raise NotImplementedError

    # --- moving and converting ---

    def cpu(self, blocking: bool = True, cq_id: int | None = None) -> Any:
        """The same tensor in host memory, of several devices one shard for each; see `ttnn.from_device`.

        Args:
          blocking: taken, and means nothing here.
          cq_id: taken, and means nothing here.
        """
        return self._home()

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The tensor on a device, in a layout, or in an element type.

        Called as `to(device, mem_config=None, cq_id=None)`, `to(layout, worker=None)` or `to(dtype)`; `device` is a
        mesh device or a `jax.sharding.Mesh`, and `cq_id` and `worker` mean nothing here.

        Raises:
          ArgumentTypeError: something else.
          MeshMismatchError: it is distributed over a mesh of another shape than the device's.
        """
        given = {("mem_config" if k == "memory_config" else k): v for k, v in kwargs.items()}
        target = args[0] if args else next((given.pop(k) for k in ("device", "layout", "dtype") if k in given), None)
        if isinstance(target, (Layout, DataType, np.dtype)):
            names: tuple[str, ...] = ("worker",) if isinstance(target, Layout) else ()
        else:
            names = ("mem_config", "cq_id")
        if len(args) > 1 + len(names) or any(k not in names[max(0, len(args) - 1) :] for k in given):
            raise ArgumentTypeError(
                "Tensor.to is called as to(device, mem_config=None, cq_id=None), to(layout, worker=None) or to(dtype); "
                f"got {len(args)} arguments by place, and by name {sorted(kwargs)}."
            )
        if isinstance(target, Layout):
            return self._laid(target)
        if isinstance(target, (DataType, np.dtype)):
            return self._by_row("typecast", (), as_dtype(target, "Tensor.to"))
        if target is None:
            raise ArgumentTypeError("Tensor.to takes a mesh device, a Layout or a DataType, got None.")
        memory = args[1] if len(args) > 1 else given.get("mem_config")
        memory = DRAM_MEMORY_CONFIG if memory is None else as_instance(MemoryConfig, "Tensor.to", "mem_config", memory)
        return self._moved(target, memory)

    def reshape(self, *shape: Any) -> Any:
        """The same elements in another shape, of each device: `reshape(2, -1)` or `reshape([2, -1])`.

        Raises:
          VerifyError: the shape has another number of elements.
        """
        said = shape[0] if len(shape) == 1 and not isinstance(shape[0], SupportsIndex) else shape
        whole = whole_shape("Tensor.reshape", integers("Tensor.reshape", said), self._own_shape())
        return self._by_row("reshape", (("shape", whole),))

    def __getitem__(self, key: Any) -> Any:
        """A part of the tensor, of each device the same one, as NumPy cuts it: integers, slices and `...`.

        Raises:
          VerifyError: out of range, or too many indices.
          UnsupportedError: an array of indices, None, or a step that is not positive.
        """
        own = self._own_shape()
        cuts, kept = _cuts(key, own)
        if all(cut == (0, n, 1) for cut, n in zip(cuts, own, strict=True)):
            made: Any = self
        else:
            begins, ends, steps = (tuple(row) for row in zip(*cuts, strict=True))
            made = self._by_row("slice_static", (("begins", begins), ("ends", ends), ("step", steps)))
        if len(kept) == len(own):
            return made
        return made.reshape([n for i, n in enumerate(made.shape) if i in kept])

    # --- reading ---

    def to_numpy(self, *, mesh_composer: MeshToTensor | None = None) -> np.ndarray[Any, Any]:
        """A copy of its value as a NumPy array; a tensor of several devices has one with a composer only.

        Raises:
          ResidencyError: several devices, and no composer; or deallocated.
        """
        return np.array(self.value("to_numpy", mesh_composer))

    def to_torch(
        self, dtype: Any = None, *, torch_rank: int | None = None, mesh_composer: MeshToTensor | None = None
    ) -> Any:
        """Its value as a torch tensor, where torch is installed; see `ttnn.to_torch`."""
        check_asked(dtype, torch_rank)
        return torch_from_array(self.value("to_torch", mesh_composer), dtype, torch_rank)

    def to_list(self) -> Any:
        """The numbers, nested; of one device.

        Raises:
          ResidencyError: several devices hold it.
        """
        return self.value("to_list", None).tolist()

    tolist = to_list

    def item(self, *, cq_id: int | None = None) -> Any:
        """The only number it holds.

        Raises:
          VerifyError: it holds more, or none.
          ResidencyError: several devices hold it.
        """
        array = self.value("item", None)
        if array.size != 1:
            raise VerifyError(f"item gives the only element of a tensor, this one has the shape {list(array.shape)}.")
        return array.item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    # --- what it is ---

    def _own_shape(self) -> tuple[int, ...]:
        return tuple(cast("Any", self).shape)

    @property
    def padded_shape(self) -> Shape:
        """The shape that it takes in memory: in `Layout.TILE` the last two dims fill whole tiles of 32x32."""
        own, me = list(self._own_shape()), cast("Any", self)
        if me.layout is Layout.TILE:
            own = [1] * (2 - len(own)) + own
            own[-2:] = [-(-n // _TILE) * _TILE for n in own[-2:]]
        return Shape(own)

    def logical_volume(self) -> int:
        """How many elements the shape has."""
        return math.prod(self._own_shape())

    def physical_volume(self) -> int:
        """How many elements the padded shape has."""
        return math.prod(self.padded_shape)

    volume = physical_volume

    def element_size(self) -> int:
        """The bytes of an element."""
        return int(cast("Any", self).dtype.itemsize)

    def get_dtype(self) -> DataType:
        """Its `DataType`."""
        return data_type(cast("Any", self).dtype)

    def get_layout(self) -> Layout:
        """Its `Layout`."""
        return cast("Any", self).layout

    def is_sharded(self) -> bool:
        """Whether it is spread over the cores of a device by a shard spec."""
        memory = cast("Any", self).memory_config()
        return memory is not None and memory.is_sharded()


class MeshMethods(Methods):
    """The methods of a tensor of several devices."""

    __slots__ = ()

    def device(self) -> MeshDevice | None:
        """The mesh device it is on; None of a tensor in host memory.

        Raises:
          MeshError: the device was closed.
        """
        me = cast("Any", self)
        if me.place.storage is StorageType.HOST:
            return None
        return owner_of([self]) or MeshDevice(me.mesh)

    def value(self, op: str, composer: MeshToTensor | None) -> np.ndarray[Any, Any]:
        """Its one value: of several devices what a composer makes of it."""
        me = cast("Any", self)
        if composer is not None:
            from jaxmesh.ttnn.transfers import aggregate

            if not isinstance(composer, MeshToTensor):
                raise ArgumentTypeError(
                    f"{op} takes a composer as mesh_composer, got {quote(composer)}; make one with "
                    "create_mesh_composer."
                )
            found: Any = aggregate(me, composer.config, composer.mesh)
            return found
        if (count := math.prod(me.mesh.shape.values())) > 1:
            raise ResidencyError(
                f"{op}: a tensor distributed over {count} devices has no single value; give "
                "mesh_composer=ttnn.create_mesh_composer(device, config), or read each of ttnn.get_device_tensors."
            )
        return np.asarray(me.shard((0,) * len(me.mesh.shape)))

    def _home(self) -> Any:
        me = cast("Any", self)
        return me.placed(Place(StorageType.HOST, me.layout, None))

    def _moved(self, device: Any, memory: MemoryConfig) -> Any:
        from jaxmesh.ttnn.transfers import to_mesh

        return to_mesh(cast("Any", self), device, memory)

    def _laid(self, layout: Layout) -> Any:
        me = cast("Any", self)
        return owned(me.placed(Place(me.place.storage, layout, me.place.memory)), owner_of([self]))

    def _by_row(self, op: str, attributes: tuple[tuple[str, Any], ...], dtype: Any = None) -> Any:
        from jaxmesh.ttnn.execute import by_row

        return owned(by_row(op, [self], attributes, dtype, cast("Any", self).place), owner_of([self]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if (count := self._devices_of()) > 1:
            raise ResidencyError(
                f"a MeshTensor of local shape {self._own_shape()} on {count} devices has no single value on the "
                "host; read it with jaxmesh.ttnn.aggregate_tensor(tensor, composer), or per device with "
                "get_device_tensors."
            )
        return np.array(self.value("numpy.asarray", None), dtype=dtype, copy=copy)

    def __jax_array__(self) -> Any:
        if self._devices_of() == 1 and not jax.sharding.get_abstract_mesh().manual_axes:
            return cast("Any", self).data.reshape(self._own_shape())
        raise ResidencyError(
            f"a MeshTensor of local shape {self._own_shape()} is used as an array. Inside a program give it to "
            "the function as an argument, which is then this device's shard; outside, read it with "
            "jaxmesh.ttnn.aggregate_tensor."
        )

    def _devices_of(self) -> int:
        return math.prod(cast("Any", self).mesh.shape.values())


# --- shapes ----------------------------------------------------------------------------------------------------------


def whole_shape(callee: str, shape: Sequence[int], own: Sequence[int]) -> tuple[int, ...]:
    """A shape one dim of which may be -1, for the elements of another shape.

    Raises:
      VerifyError: no number in the place of -1 has that many elements.
    """
    if -1 not in shape:
        return tuple(shape)
    size, known = math.prod(own), math.prod(n for n in shape if n != -1)
    if list(shape).count(-1) > 1 or known <= 0 or size % known:
        raise VerifyError(
            f"{callee}: one dim of the shape may be -1, where the others divide the number of elements; got "
            f"{list(shape)} for a tensor of shape {list(own)}, {size} elements."
        )
    return tuple(size // known if n == -1 else n for n in shape)


def _cuts(key: Any, shape: Sequence[int]) -> tuple[list[tuple[int, int, int]], set[int]]:
    """Begin, end and step of each dim, and the dims that stay."""
    keys: list[Any] = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1 or len(keys) - len(dots) > len(shape):
        raise VerifyError(
            f"a tensor of {len(shape)} dims takes as many indices at most, and one '...'; got {quote(key)}."
        )
    at = dots[0] if dots else len(keys)
    keys[at : at + len(dots)] = [slice(None)] * (len(shape) - len(keys) + len(dots))
    cuts, kept = list[tuple[int, int, int]](), set[int]()
    for dim, (one, size) in enumerate(zip(keys, shape, strict=True)):
        if isinstance(one, slice):
            cuts.append(_cut(cast("Any", one), size))
            kept.add(dim)
            continue
        if isinstance(one, _TRUTH) or not isinstance(one, SupportsIndex) or getattr(one, "ndim", 0):
            raise UnsupportedError(f"a tensor is indexed by integers, slices and '...', got {quote(one)}.")
        place = operator.index(one)
        if not -size <= place < size:
            raise VerifyError(f"the index {place} is out of range for dim {dim} of size {size}.")
        cuts.append((place % size, place % size + 1, 1))
    return cuts, kept


def _cut(key: slice, size: int) -> tuple[int, int, int]:
    try:
        begin, end, step = key.indices(size)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"a slice of a tensor has integers, got {quote(key)}.") from None
    if step < 1:
        raise UnsupportedError(f"a slice of a tensor has a step from 1 on, as ttnn.slice has, got {step}.")
    return begin, max(begin, end), step
