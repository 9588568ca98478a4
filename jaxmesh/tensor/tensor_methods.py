"""Operators and methods of tensors that compute, move or read, and the arithmetic of their shapes and indices.

`install_methods` adds them to the tensor classes. The classes are data and stand below the execution of ops, as arrays
do in JAX (`jax/_src/numpy/array_methods.py`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, cast

import jax
import numpy as np

from jaxmesh.errors import ArgumentTypeError, ResidencyError, UnsupportedError, VerifyError
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.sharding.configs import integers
from jaxmesh.tensor.assemble import with_memory
from jaxmesh.tensor.execute import apply_op, apply_operator
from jaxmesh.tensor.host_tensor import Tensor, copy_to_devices
from jaxmesh.tensor.mesh_device import MeshToTensor
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.tensor.transfers import aggregate, to_mesh
from jaxmesh.tensor.types import DRAM_MEMORY_CONFIG, ON_HOST, DataType, Layout, MemoryConfig, as_dtype, on_host
from jaxmesh.validate import as_instance, quote

_BOOL = (bool, np.bool_)


def infer_shape(callee: str, shape: Sequence[int], own: Sequence[int]) -> tuple[int, ...]:
    """Returns a shape for the elements of shape `own`; one dim may be -1 and is inferred.

    >>> infer_shape("reshape", [2, -1], (4, 6))
    (2, 12)
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


def slices_of(key: object, shape: Sequence[int]) -> tuple[list[tuple[int, int, int]], set[int]]:
    """Returns begin, end and step of every dim, and the dims that the result keeps.

    >>> slices_of((1, slice(None, 2)), (4, 6))
    ([(1, 2, 1), (0, 2, 1)], {1})
    """
    keys: list[object] = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1 or len(keys) - len(dots) > len(shape):
        raise VerifyError(
            f"a tensor of {len(shape)} dims takes as many indices at most, and one '...'; got {quote(key)}."
        )
    at = dots[0] if dots else len(keys)
    keys[at : at + len(dots)] = [slice(None)] * (len(shape) - len(keys) + len(dots))
    slices, kept = list[tuple[int, int, int]](), set[int]()
    for dim, (index, size) in enumerate(zip(keys, shape, strict=True)):
        if isinstance(index, slice):
            slices.append(_bounds(cast("Any", index), size))
            kept.add(dim)
            continue
        if isinstance(index, _BOOL) or not isinstance(index, SupportsIndex) or getattr(index, "ndim", 0):
            raise UnsupportedError(f"a tensor is indexed by integers, slices and '...', got {quote(index)}.")
        begin = operator.index(index)
        if not -size <= begin < size:
            raise VerifyError(f"the index {quote(begin)} is out of range for dim {dim} of size {size}.")
        slices.append((begin % size, begin % size + 1, 1))
    return slices, kept


def _bounds(key: slice, size: int) -> tuple[int, int, int]:
    try:
        begin, end, step = key.indices(size)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"a slice of a tensor has integers, got {quote(key)}.") from None
    if step < 1:
        raise UnsupportedError(f"a slice of a tensor has a step from 1 on, as ttnn.slice has, got {step}.")
    return begin, max(begin, end), step


AnyTensor = MeshTensor | Tensor


# --- operators -------------------------------------------------------------------------------------------------------

_ARITHMETIC: Mapping[str, str] = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "matmul": "matmul",
    "pow": "pow_tensor",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
}
"""Python's operators with a reflected form, and the op of TTNN of each."""
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY: Mapping[str, str] = {"invert": "bitwise_not", "abs": "abs", "neg": "neg"}


def _binary(op: str) -> Callable[[object, object], object]:
    return lambda self, other: apply_operator(op, (self, other))


def _reflect(op: str) -> Callable[[object, object], object]:
    return lambda self, other: apply_operator(op, (other, self))


def _unary(op: str) -> Callable[[object], object]:
    return lambda self: apply_operator(op, (self,))


# --- moving and converting -------------------------------------------------------------------------------------------


def cpu(self: AnyTensor, blocking: bool = True, cq_id: int | None = None) -> Any:
    """Returns the tensor in host memory, of several devices one shard for each; see `ttnn.from_device`.

    Args:
      blocking: accepted and ignored.
      cq_id: accepted and ignored.
    """
    if isinstance(self, MeshTensor):
        return self.with_storage(on_host(self.layout, self.storage.block))
    return Tensor.wrap(self.array.view(), self.layout, self.block)


def to(self: AnyTensor, *args: Any, **kwargs: Any) -> Any:
    """Returns the tensor on a device, in a layout, or in an element type.

    Called as `to(device, mem_config=None, cq_id=None)`, `to(layout, worker=None)` or `to(dtype)`; `device` is a
    mesh device or a `jax.sharding.Mesh`; `cq_id` and `worker` are ignored.

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
        if isinstance(self, MeshTensor):
            return with_memory(self, target)
        return Tensor.wrap(self.array.view(), target, self.block)
    if isinstance(target, (DataType, np.dtype)):
        return _apply_here(self, "typecast", (), as_dtype(target, "Tensor.to"))
    if target is None:
        raise ArgumentTypeError("Tensor.to takes a mesh device, a Layout or a DataType, got None.")
    memory = args[1] if len(args) > 1 else given.get("mem_config")
    memory = DRAM_MEMORY_CONFIG if memory is None else as_instance(MemoryConfig, "Tensor.to", "mem_config", memory)
    if isinstance(self, MeshTensor):
        return to_mesh(self, target, memory)
    return copy_to_devices(self.array, target, self.layout, memory)


def _apply_here(tensor: AnyTensor, op: str, attributes: tuple[tuple[str, Any], ...], dtype: Any = None) -> Any:
    """Returns the result of an op of TTNN in the memory of the tensor, on the host or on the devices."""
    if isinstance(tensor, MeshTensor):
        return apply_op(op, [tensor], attributes, dtype, tensor.storage)
    return Tensor.wrap(apply_op(op, [tensor.array], attributes, dtype, ON_HOST), tensor.layout)


def reshape(self: AnyTensor, *shape: Any) -> Any:
    """Returns the same elements in another local shape: `reshape(2, -1)` or `reshape([2, -1])`.

    Raises:
      VerifyError: the shape has another number of elements.
    """
    row = shape[0] if len(shape) == 1 and not isinstance(shape[0], SupportsIndex) else shape
    whole = infer_shape("Tensor.reshape", integers("Tensor.reshape", row), tuple(self.shape))
    return _apply_here(self, "reshape", (("shape", whole),))


def getitem(self: AnyTensor, key: object) -> Any:
    """Returns a part of the tensor, of each device the same one, as NumPy cuts it: integers, slices and `...`.

    Raises:
      VerifyError: out of range, or too many indices.
      UnsupportedError: an array of indices, None, or a step that is not positive.
    """
    own = tuple(self.shape)
    slices, kept = slices_of(key, own)
    part = self
    if any(cut != (0, n, 1) for cut, n in zip(slices, own, strict=True)):
        begins, ends, steps = (tuple(row) for row in zip(*slices, strict=True))
        part = _apply_here(self, "slice_static", (("begins", begins), ("ends", ends), ("step", steps)))
    if len(kept) == len(own):
        return part
    return part.reshape([n for i, n in enumerate(part.shape) if i in kept])


# --- reading a tensor of several devices -----------------------------------------------------------------------------


def value(self: MeshTensor, op: str, composer: MeshToTensor | None) -> Array:
    """Returns the value of a tensor on one device, or the shards of several joined by a composer."""
    if composer is not None:
        if not isinstance(composer, MeshToTensor):
            raise ArgumentTypeError(
                f"{op} takes a composer as mesh_composer, got {quote(composer)}; make one with create_mesh_composer."
            )
        joined: Any = aggregate(self, composer.config, composer.mesh)
        return joined
    if (count := self.mesh.size) > 1:
        raise ResidencyError(
            f"{op}: a tensor distributed over {count} devices has no single value; give "
            "mesh_composer=ttnn.create_mesh_composer(device, config), or read each of ttnn.get_device_tensors."
        )
    return np.asarray(self.shard((0,) * len(self.mesh.shape)))


def to_array(self: MeshTensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """Returns the value of a tensor on one device for `numpy.asarray`."""
    if (count := self.mesh.size) > 1:
        raise ResidencyError(
            f"a MeshTensor of local shape {tuple(self.shape)} on {count} devices has no single value on the "
            "host; read it with jaxmesh.ttnn.aggregate_tensor(tensor, composer), or per device with "
            "get_device_tensors."
        )
    return np.array(self.value("numpy.asarray", None), dtype=dtype, copy=copy)


def to_jax_array(self: MeshTensor) -> jax.Array:
    """Returns the array of a tensor on one device for functions of JAX."""
    if self.mesh.size == 1 and not jax.sharding.get_abstract_mesh().manual_axes:
        return self.data.reshape(tuple(self.shape))
    raise ResidencyError(
        f"a MeshTensor of local shape {tuple(self.shape)} is used as an array. Inside a program give it to "
        "the function as an argument, which is then this device's shard; outside, read it with "
        "jaxmesh.ttnn.aggregate_tensor."
    )


# --- installation ----------------------------------------------------------------------------------------------------


def install_methods() -> None:
    """Adds the operators and methods of this file to `Tensor` and `MeshTensor`; `jaxmesh.ttnn` does it first."""
    for name, op in _ARITHMETIC.items():
        _install(TensorBase, f"__{name}__", _binary(op))
        _install(TensorBase, f"__r{name}__", _reflect(op))
    for name in _COMPARISONS:
        _install(TensorBase, f"__{name}__", _binary(name))
    for name, op in _UNARY.items():
        _install(TensorBase, f"__{name}__", _unary(op))
    for name, method in {"cpu": cpu, "to": to, "reshape": reshape, "__getitem__": getitem}.items():
        _install(TensorBase, name, method)
    for name, method in {"value": value, "__array__": to_array, "__jax_array__": to_jax_array}.items():
        _install(MeshTensor, name, method)


def _install(cls: type, name: str, method: Callable[..., object]) -> None:
    method.__name__, method.__qualname__ = name, f"{cls.__name__}.{name}"
    setattr(cls, name, method)
