"""Functions of `ttnn` without an op in the table, composed of functions with an op."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from jaxmesh.errors import VerifyError
from jaxmesh.tensor.assemble import owner_of, set_owner
from jaxmesh.tensor.host_tensor import Tensor
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.types import Layout, StorageType, data_type, stored_dtype
from jaxmesh.ttnn.conversion import integers, write_result
from jaxmesh.ttnn.functions import lookup, op_function
from jaxmesh.ttnn.further import Composed, composed
from jaxmesh.validate import as_instance

_jnp: Any = jax.numpy

ALIASES: Mapping[str, str] = {
    "div": "divide", "mul": "multiply", "sub": "subtract", "swish": "silu", "div_": "divide_", "mul_": "multiply_",
    "sub_": "subtract_",
}  # fmt: skip
"""Other names of functions."""


def _op(name: str, *args: Any, **kwargs: Any) -> Any:
    return lookup(f"ttnn.{name}")(*args, **kwargs)


def _normalize_dim(op: str, dim: Any, rank: int) -> int:
    """Returns a dim counted from the front."""
    if not -rank <= dim < rank:
        raise VerifyError(f"ttnn.{op}: dim = {dim} is out of range for {rank} dims.")
    return operator.index(dim) % rank


# --- tensors like another --------------------------------------------------------------------------------------------


def _like(tensor: Any, number: Any, dtype: Any, layout: Any, device: Any, memory: Any) -> Any:
    """Returns a tensor filled with one number, like another tensor where an argument is None."""
    shape = tuple(tensor.shape)
    kind = data_type(tensor.dtype if dtype is None else dtype)
    options: dict[str, Any] = {"dtype": kind, "layout": layout or getattr(tensor, "layout", Layout.ROW_MAJOR)}
    on = isinstance(tensor, MeshTensor) and tensor.storage_type() is StorageType.DEVICE
    if device is None and not on:
        return _op("full", shape, number, **options)
    memory = memory or (tensor.memory_config() if on else None)
    # Not the tensor's device: a shard of `get_device_tensors` has the device of the whole tensor.
    target = tensor.mesh if device is None else device
    full = _op("full", shape, number, device=target, memory_config=memory, **options)
    return set_owner(full, owner_of([tensor]) if device is None else None)


@composed()
def full_like(tensor: Any, fill_value: Any, dtype: Any, layout: Any, device: Any, memory_config: Any) -> Any:
    """Makes a tensor filled with one number, like another tensor in shape, element type, layout and device."""
    return _like(tensor, fill_value, dtype, layout, device, memory_config)


def _filled_like(name: str, number: int, what: str) -> None:
    def fill(tensor: Any, dtype: Any, layout: Any, device: Any, memory_config: Any) -> Any:
        return _like(tensor, number, dtype, layout, device, memory_config)

    fill.__doc__ = f"Makes a tensor of {what}; see `full_like`."
    Composed(f"ttnn.{name}", fill)


_filled_like("zeros_like", 0, "zeros")
_filled_like("ones_like", 1, "ones")
_filled_like("empty_like", 0, "unspecified numbers, here zeros")


# --- parts and wholes ------------------------------------------------------------------------------------------------


@composed()
def split(input_tensor: Any, split_size: Any, dim: Any, memory_config: Any) -> list[Any]:
    """Splits a tensor along one dim, by `ttnn.slice`.

    Args:
      input_tensor: a tensor on the devices.
      split_size: the size of each part but a smaller last one; or the sizes of all parts.
      dim: the dim.
      memory_config: the memory config of the parts.

    Raises:
      VerifyError: the dim is out of range, or the sizes do not fill it.

    >>> from jaxmesh import ttnn
    >>> x = ttnn.zeros([2, 5], device=ttnn.open_mesh_device([1, 2]))
    >>> [part.shape for part in ttnn.split(x, [2, 3], dim=1)]
    [Shape([2, 2]), Shape([2, 3])]
    """
    shape = tuple(input_tensor.shape)
    at = _normalize_dim("split", dim, len(shape))
    sizes = integers("ttnn.split", "split_size", split_size)
    size = shape[at]
    if not isinstance(split_size, (list, tuple)) and sizes[0] > 0:
        sizes = tuple(min(sizes[0], size - begin) for begin in range(0, size, sizes[0]))
    if min(sizes, default=0) < 1 or sum(sizes) != size:
        raise VerifyError(f"ttnn.split: parts of {split_size} do not fill dim {at} of size {size}.")
    parts: list[Any] = []
    begin = [0] * len(shape)
    for length in sizes:
        end = [*shape[:at], begin[at] + length, *shape[at + 1 :]]
        parts.append(_op("slice", input_tensor, begin.copy(), end, memory_config=memory_config))
        begin[at] += length
    return parts


@composed()
def chunk(input_tensor: Any, chunks: Any, dim: Any) -> list[Any]:
    """Splits a tensor along one dim into a number of parts, the last one the smallest; see `split`.

    Raises:
      VerifyError: the dim is out of range, or less than one part.
    """
    shape = tuple(input_tensor.shape)
    if chunks < 1:
        raise VerifyError(f"ttnn.chunk makes one part at least, got {chunks}.")
    size = shape[_normalize_dim("chunk", dim, len(shape))]
    length = max(1, -(-size // chunks))
    return split(input_tensor, length, dim) if length < size else [input_tensor]


@composed()
def stack(input_tensors: Any, dim: Any) -> Any:
    """Joins tensors of one shape along a new dim, by `ttnn.reshape` and `ttnn.concat`.

    Raises:
      VerifyError: no tensor, shapes that differ, or the dim is out of range.
    """
    shapes = [tuple(t.shape) for t in input_tensors]
    if len(set(shapes)) != 1:
        raise VerifyError(f"ttnn.stack takes tensors of one shape, got {[list(s) for s in dict.fromkeys(shapes)]}.")
    at = _normalize_dim("stack", dim, len(shapes[0]) + 1)
    new = [*shapes[0][:at], 1, *shapes[0][at:]]
    return _op("concat", [_op("reshape", t, new) for t in input_tensors], at)


@composed()
def unsqueeze_to_4D(tensor: Any) -> Any:
    """Adds leading dims of size 1 up to four dims.

    Raises:
      VerifyError: it has more.
    """
    shape = tuple(tensor.shape)
    if len(shape) > 4:
        raise VerifyError(
            f"ttnn.unsqueeze_to_4D takes a tensor of four dims at most, got {list(shape)}. In ttnn: Tensor cannot have "
            "more than 4 dimensions."
        )
    return tensor if len(shape) == 4 else _op("reshape", tensor, [1] * (4 - len(shape)) + list(shape))


@composed()
def squeeze(input_tensor: Any, dim: Any) -> Any:
    """Drops dims of size 1, by `ttnn.reshape`.

    Args:
      input_tensor: a tensor.
      dim: the dims to drop; those of another size stay. By default every dim of size 1.

    Raises:
      VerifyError: a dim is out of range.
    """
    shape = tuple(input_tensor.shape)
    if not shape:
        return input_tensor
    dims = range(len(shape)) if dim is None else integers("ttnn.squeeze", "dim", dim)
    dropped = {_normalize_dim("squeeze", d, len(shape)) for d in dims}
    return _op("reshape", input_tensor, [n for i, n in enumerate(shape) if n != 1 or i not in dropped])


@composed()
def unsqueeze(input_tensor: Any, dim: Any) -> Any:
    """Inserts a dim of size 1, by `ttnn.reshape`.

    Args:
      input_tensor: a tensor.
      dim: the position of the new dim in the result.

    Raises:
      VerifyError: the dim is out of range.
    """
    shape = list(input_tensor.shape)
    shape.insert(_normalize_dim("unsqueeze", dim, len(shape) + 1), 1)
    return _op("reshape", input_tensor, shape)


# --- arithmetic ------------------------------------------------------------------------------------------------------


@composed()
def square(input_tensor: Any, memory_config: Any) -> Any:
    """Computes the square of each element, by `ttnn.multiply`."""
    return _op("multiply", input_tensor, input_tensor, memory_config=memory_config)


@composed(input_b="input_tensor_b")
def rsub(input_tensor_a: Any, input_tensor_b: Any, dtype: Any, memory_config: Any) -> Any:
    """Computes the second operand, which may be a number, minus the first."""
    options = {"dtype": dtype, "memory_config": memory_config}
    if isinstance(input_tensor_b, (Tensor, MeshTensor)):
        return _op("subtract", input_tensor_b, input_tensor_a, **options)
    return _op("add", _op("neg", input_tensor_a), input_tensor_b, **options)


@composed()
def squared_difference(input_tensor_a: Any, input_tensor_b: Any, dtype: Any, memory_config: Any) -> Any:
    """Computes the square of the difference."""
    difference = _op("subtract", input_tensor_a, input_tensor_b)
    return _op("multiply", difference, difference, dtype=dtype, memory_config=memory_config)


@composed()
def isnan(input_tensor: Any, memory_config: Any) -> Any:
    """Returns which elements are NaN."""
    return _op("ne", input_tensor, input_tensor, memory_config=memory_config)


@composed()
def isinf(input_tensor: Any, memory_config: Any) -> Any:
    """Returns which elements are infinite."""
    return _op("eq", _op("abs", input_tensor), math.inf, memory_config=memory_config)


def _against_zero(name: str, op: str) -> None:
    def compare(input_tensor: Any, memory_config: Any) -> Any:
        return _op(op, input_tensor, 0, memory_config=memory_config)

    compare.__doc__ = f"Compares each element with zero, by `ttnn.{op}`."
    Composed(f"ttnn.{name}", compare)


for _name in ("eqz", "nez", "gtz", "gez", "ltz", "lez"):
    _against_zero(_name, _name.removesuffix("z"))


def _clamp(input_tensor: Any, min: Any, max: Any, memory_config: Any) -> Any:  # noqa: A002
    """Selects values between two bounds, which are numbers or tensors; None leaves a side open."""
    if any(isinstance(b, (Tensor, MeshTensor)) for b in (min, max)):
        out = input_tensor if min is None else _op("maximum", input_tensor, min, memory_config=memory_config)
        return out if max is None else _op("minimum", out, max, memory_config=memory_config)
    least, most = -math.inf, math.inf
    stored = stored_dtype(data_type(input_tensor.dtype), "ttnn.clamp")
    if _jnp.issubdtype(stored, _jnp.integer):
        whole: Any = _jnp.iinfo(stored)
        least, most = int(whole.min), int(whole.max)
    low, high = least if min is None else min, most if max is None else max
    return op_function("ttnn.clamp")(input_tensor, low, high, memory_config=memory_config)


Composed("ttnn.clamp", _clamp)
Composed("ttnn.clip", _clamp)


@composed()
def update_cache(cache: Any, input: Any, update_idx: Any, batch_offset: Any) -> Any:  # noqa: A002
    """Writes one position of each user into a cache; the input is [1, heads, users, width], or one user's each."""
    users = input.shape[2]
    if users <= 1:
        return op_function("ttnn.update_cache")(cache, input, update_idx, batch_offset=batch_offset)
    shape = tuple(cache.shape)
    for user in range(min(users, shape[0])):
        row = _op("slice", input, [0, 0, user, 0], [1, shape[1], user + 1, shape[3]])
        row = row if row.dtype == cache.dtype else _op("typecast", row, data_type(cache.dtype))
        parts = [
            _op("slice", cache, [user, 0, 0, 0], [user + 1, shape[1], update_idx, shape[3]]) if update_idx else None,
            row,
            _op("slice", cache, [user, 0, update_idx + 1, 0], [user + 1, *shape[1:]])
            if update_idx + 1 < shape[2]
            else None,
        ]
        whole = _op("concat", [p for p in parts if p is not None], 2)
        before = [_op("slice", cache, [0, 0, 0, 0], [user, *shape[1:]])] if user else []
        after = [_op("slice", cache, [user + 1, 0, 0, 0], list(shape))] if user + 1 < shape[0] else []
        write_result("ttnn.update_cache", cache, _op("concat", [*before, whole, *after], 0))
    return cache


# --- copies ----------------------------------------------------------------------------------------------------------


@composed()
def clone(input: Any, dtype: Any, memory_config: Any) -> Any:  # noqa: A002
    """Makes a copy of a tensor on the devices, by `ttnn.assign`."""
    return _copy("clone", input, memory_config, dtype=dtype)


def _copy(name: str, tensor: Any, memory_config: Any, **options: Any) -> Any:
    kept = as_instance((Tensor, MeshTensor), f"ttnn.{name}", "input_tensor", tensor).memory_config()
    return _op("assign", tensor, memory_config=memory_config or kept, **options)


def _assigned(name: str, what: str, **also: str) -> None:
    def assign(input_tensor: Any, memory_config: Any) -> Any:
        return _copy(name, input_tensor, memory_config)

    assign.__doc__ = what
    Composed(f"ttnn.{name}", assign, **also)


_assigned("identity", "Makes a copy of a tensor on the devices.")
_assigned("move", "Moves a tensor to other memory of the devices.")
_assigned("reallocate", "Moves a tensor to other memory of the devices.", tensor="input_tensor")


@composed()
def copy(input_a: Any, input_b: Any) -> Any:
    """Writes the elements of the first tensor into the second."""
    return write_result("ttnn.copy", input_b, _op("typecast", input_a, data_type(input_b.dtype)))


def _in_place(name: str) -> None:
    def change(input_a: Any, input_b: Any) -> Any:
        result = _op(name, input_a, input_b)
        if result.dtype != input_a.dtype:
            result = _op("typecast", result, data_type(input_a.dtype))
        if result.shape != input_a.shape and result.logical_volume() == input_a.logical_volume():
            result = _op("reshape", result, input_a.shape)
        return write_result(f"ttnn.{name}_", input_a, result)

    change.__doc__ = (
        f"Performs `ttnn.{name}` and writes the result into the first operand.\n\nRaises:\n"
        "  VerifyError: the result has another shape or element type than the first operand."
    )
    Composed(f"ttnn.{name}_", change, input_tensor_a="input_a", input_tensor_b="input_b")


for _name in ("add", "subtract", "multiply", "divide"):
    _in_place(_name)


# --- convolutions ----------------------------------------------------------------------------------------------------


@composed()
def conv1d(
    input_tensor: Any, weight_tensor: Any, device: Any, in_channels: Any, out_channels: Any, batch_size: Any,
    input_length: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: Any, bias_tensor: Any,
    dtype: Any, memory_config: Any,
) -> Any:  # fmt: skip
    """Computes a convolution of rows, by `ttnn.conv2d` of images one pixel wide."""
    row: Any = padding
    sides: list[Any] = list(row) if isinstance(padding, (list, tuple)) else [row, row]
    shape = [*weight_tensor.shape[:3], 1]
    weights = weight_tensor if len(weight_tensor.shape) == 4 else lookup("ttnn.reshape")(weight_tensor, shape)
    flat = lookup("ttnn.reshape")(input_tensor, [1, 1, batch_size * input_length, in_channels])
    return lookup("ttnn.conv2d")(
        input_tensor=flat, weight_tensor=weights, device=device, in_channels=in_channels, out_channels=out_channels,
        batch_size=batch_size, input_height=input_length, input_width=1, kernel_size=[kernel_size, 1],
        stride=[stride, 1], padding=[sides[0], sides[-1], 0, 0], dilation=[dilation, 1], groups=groups,
        bias_tensor=bias_tensor, dtype=dtype, memory_config=memory_config,
    )  # fmt: skip


# --- semaphores and traces -------------------------------------------------------------------------------------------


@dataclass
class Semaphore:
    """A stand-in for a semaphore of devices that compute in step."""

    value: Any


@composed()
def create_global_semaphore(mesh_device: Any, cores: Any, initial_value: Any) -> Any:
    """Returns a stand-in for a semaphore."""
    return Semaphore(initial_value)


@composed()
def reset_global_semaphore_value(global_semaphore: Any, reset_value: Any) -> None:
    """Sets the value of a semaphore."""
    what = "ttnn.reset_global_semaphore_value"
    as_instance(Semaphore, what, "global_semaphore", global_semaphore).value = reset_value
