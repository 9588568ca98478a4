"""Functions of `ttnn` that the table has no op for, from those that it has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxmesh.errors import ArgumentTypeError, VerifyError
from jaxmesh.ttnn.argument_conversion import integers, written
from jaxmesh.ttnn.convert import from_numpy, from_torch
from jaxmesh.ttnn.distributed import TensorToMesh
from jaxmesh.ttnn.functions import lookup
from jaxmesh.ttnn.host_tensor import Tensor
from jaxmesh.ttnn.layout_ops import to_device
from jaxmesh.ttnn.mesh_tensor import MeshTensor
from jaxmesh.ttnn.shorthands import dim_of, shape_of
from jaxmesh.ttnn.tensor_files import dump_tensor, load_tensor
from jaxmesh.ttnn.tensor_operators import owned, owner_of
from jaxmesh.ttnn.types import DataType, Layout, MemoryConfig, StorageType, as_dtype, data_type
from jaxmesh.validate import as_instance, as_path, as_tuple, quote


def _op(name: str, *args: Any, **kwargs: Any) -> Any:
    return lookup(f"ttnn.{name}", "ttnn")(*args, **kwargs)


# --- tensors like others ---------------------------------------------------------------------------------------------


def full_like(
    tensor: Any,
    fill_value: float,
    *,
    dtype: DataType | None = None,
    layout: Layout | None = None,
    device: Any = None,
    memory_config: MemoryConfig | None = None,
) -> Any:
    """A tensor of one number, where another one is, of its shape, element type and layout.

    Args:
      tensor: the tensor that it is like.
      fill_value: the number.
      dtype: another element type.
      layout: another layout.
      device: another mesh device.
      memory_config: where it lies there.

    Raises:
      ArgumentTypeError: no tensor.
    """
    shape = shape_of("full_like", tensor)
    kind = data_type(tensor.dtype if dtype is None else as_dtype(dtype, "ttnn.full_like"))
    options: dict[str, Any] = {"shape": shape, "fill_value": fill_value, "dtype": kind}
    options["layout"] = layout or getattr(tensor, "layout", Layout.ROW_MAJOR)
    on = isinstance(tensor, MeshTensor) and tensor.storage_type() is StorageType.DEVICE
    if device is None and not on:
        return _op("full", **options)
    memory = memory_config or (tensor.memory_config() if on else None)
    # Not the tensor's device: that of a piece is the one of the whole.
    made = _op("full", device=tensor.mesh if device is None else device, memory_config=memory, **options)
    return owned(made, owner_of([tensor]) if device is None else None)


def zeros_like(tensor: Any, **options: Any) -> Any:
    """A tensor of zeros; see `full_like`."""
    return full_like(tensor, 0, **options)


def ones_like(tensor: Any, **options: Any) -> Any:
    """A tensor of ones; see `full_like`."""
    return full_like(tensor, 1, **options)


def empty_like(tensor: Any, **options: Any) -> Any:
    """A tensor of no numbers in particular, here of zeros; see `full_like`."""
    return full_like(tensor, 0, **options)


# --- parts and wholes ------------------------------------------------------------------------------------------------


def split(
    input_tensor: Any,
    split_size: int | Sequence[int],
    dim: int = 0,
    *,
    memory_config: MemoryConfig | None = None,
) -> list[Any]:
    """Parts of a tensor along one dim, by `ttnn.slice`.

    Args:
      input_tensor: a tensor on the devices.
      split_size: the size of each part but a smaller last one; or the sizes of all parts.
      dim: the dim.
      memory_config: where the parts lie.

    Raises:
      VerifyError: the dim is out of range, or the sizes do not fill it.

    >>> import numpy as np
    >>> from jaxmesh import ttnn
    >>> x = ttnn.from_numpy(np.arange(10).reshape(2, 5), device=ttnn.open_mesh_device((1, 2)))
    >>> [part.shape for part in ttnn.split(x, [2, 3], dim=1)]
    [Shape([2, 2]), Shape([2, 3])]
    """
    shape = shape_of("split", input_tensor)
    at = dim_of("split", integers("ttnn.split", "dim", dim)[0], len(shape))
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


def chunk(input_tensor: Any, chunks: int, dim: int = 0) -> list[Any]:
    """A number of parts of a tensor along one dim, the last one the smallest; see `split`.

    Raises:
      VerifyError: the dim is out of range, or less than one part.
    """
    shape = shape_of("chunk", input_tensor)
    (count,) = integers("ttnn.chunk", "chunks", chunks)
    if count < 1:
        raise VerifyError(f"ttnn.chunk makes one part at least, got {count}.")
    size = shape[dim_of("chunk", integers("ttnn.chunk", "dim", dim)[0], len(shape))]
    return split(input_tensor, max(1, -(-size // count)), dim)


def stack(tensors: Sequence[Any], dim: int) -> Any:
    """Tensors of one shape along a new dim, by `ttnn.reshape` and `ttnn.concat`.

    Raises:
      VerifyError: no tensor, shapes that differ, or the dim is out of range.
    """
    given = as_tuple("ttnn.stack", tensors, "a list of tensors")
    shapes = [shape_of("stack", t) for t in given]
    if len(set(shapes)) != 1:
        raise VerifyError(f"ttnn.stack takes tensors of one shape, got {[list(s) for s in dict.fromkeys(shapes)]}.")
    at = dim_of("stack", integers("ttnn.stack", "dim", dim)[0], len(shapes[0]) + 1)
    new = [*shapes[0][:at], 1, *shapes[0][at:]]
    return _op("concat", [_op("reshape", t, new) for t in given], at)


def unsqueeze_to_4D(tensor: Any) -> Any:
    """The tensor with leading dims of size 1 up to four dims.

    Raises:
      VerifyError: it has more.
    """
    shape = shape_of("unsqueeze_to_4D", tensor)
    if len(shape) > 4:
        raise VerifyError(f"ttnn.unsqueeze_to_4D takes a tensor of four dims at most, got {list(shape)}.")
    return tensor if len(shape) == 4 else _op("reshape", tensor, [1] * (4 - len(shape)) + list(shape))


# --- arithmetic ------------------------------------------------------------------------------------------------------


def square(input_tensor: Any, **options: Any) -> Any:
    """The square of each element, by `ttnn.multiply`."""
    return _op("multiply", input_tensor, input_tensor, **options)


def rsub(input_tensor_a: Any, input_tensor_b: Any, **options: Any) -> Any:
    """The second operand less the first; of a number, too."""
    if isinstance(input_tensor_b, (Tensor, MeshTensor)):
        return _op("subtract", input_tensor_b, input_tensor_a, **options)
    return _op("add", _op("neg", input_tensor_a), input_tensor_b, **options)


def squared_difference(input_tensor_a: Any, input_tensor_b: Any, **options: Any) -> Any:
    """The square of the difference."""
    return square(_op("subtract", input_tensor_a, input_tensor_b), **options)


def isnan(input_tensor: Any, **options: Any) -> Any:
    """Which elements are no number."""
    return _op("ne", input_tensor, input_tensor, **options)


def isinf(input_tensor: Any, **options: Any) -> Any:
    """Which elements are infinite."""
    return _op("eq", _op("abs", input_tensor), math.inf, **options)


def _against_zero(name: str, op: str) -> Callable[..., Any]:
    def compare(input_tensor: Any, **options: Any) -> Any:
        return _op(op, input_tensor, 0, **options)

    compare.__name__ = compare.__qualname__ = name
    compare.__doc__ = f"Each element compared with zero, by `ttnn.{op}`."
    return compare


eqz, nez = _against_zero("eqz", "eq"), _against_zero("nez", "ne")
gtz, gez = _against_zero("gtz", "gt"), _against_zero("gez", "ge")
ltz, lez = _against_zero("ltz", "lt"), _against_zero("lez", "le")


def _in_place(name: str) -> Callable[..., Any]:
    def change(input_a: Any, input_b: Any, **options: Any) -> Any:
        return written(f"ttnn.{name}_", input_a, _op(name, input_a, input_b, **options))

    change.__name__ = change.__qualname__ = f"{name}_"
    change.__doc__ = (
        f"`ttnn.{name}`, whose result the first operand holds afterwards.\n\nRaises:\n"
        "  VerifyError: the result has another shape or element type than the first operand."
    )
    return change


add_, subtract_ = _in_place("add"), _in_place("subtract")
multiply_, divide_ = _in_place("multiply"), _in_place("divide")


# --- what a tensor is ------------------------------------------------------------------------------------------------


def is_tensor_storage_on_device(tensor: Any) -> bool:
    """Whether a tensor is on the devices."""
    return has_storage_type_of(tensor, StorageType.DEVICE)


def has_storage_type_of(tensor: Any, storage_type: StorageType) -> bool:
    """Whether a tensor is in host memory, or on the devices.

    Raises:
      ArgumentTypeError: no tensor, or no `StorageType`.
    """
    kind = as_instance(StorageType, "has_storage_type_of", "storage_type", storage_type)
    return as_instance((Tensor, MeshTensor), "has_storage_type_of", "tensor", tensor).storage_type() is kind


def get_memory_config(tensor: Any) -> MemoryConfig | None:
    """Where a tensor lies on each device; None in host memory."""
    return as_instance((Tensor, MeshTensor), "get_memory_config", "tensor", tensor).memory_config()


# --- with a cache of files -------------------------------------------------------------------------------------------


def as_tensor(
    tensor: Any,
    dtype: DataType | None = None,
    *,
    layout: Layout | None = Layout.ROW_MAJOR,
    device: Any = None,
    memory_config: MemoryConfig | None = None,
    cache_file_name: str | Path | None = None,
    preprocess: Callable[[Any], Any] | None = None,
    mesh_mapper: TensorToMesh | None = None,
) -> Any:
    """A tensor from one of torch or a NumPy array, kept in a file if one is named; else as `from_torch`.

    Args:
      tensor: a torch tensor, or an array.
      dtype: its `DataType`; by default the array's.
      layout: a `Layout`, kept and shown.
      device: a mesh device to bring it to.
      memory_config: where it lies there, kept and shown.
      cache_file_name: the beginning of a file's name, which element type and layout are added to. If the file is there
        it is read, and the tensor is not looked at; else it is written, in the format of `dump_tensor`.
      preprocess: what is done to the tensor first.
      mesh_mapper: how to distribute it.
    """

    if preprocess is not None and not callable(preprocess):
        raise ArgumentTypeError(f"as_tensor takes a function of the tensor as preprocess, got {quote(preprocess)}.")

    def made() -> Any:
        given = tensor if preprocess is None else preprocess(tensor)
        make = from_numpy if isinstance(given, np.ndarray) else from_torch
        return make(given, dtype, layout=layout or Layout.ROW_MAJOR, mesh_mapper=mesh_mapper)

    if cache_file_name is None:
        host = made()
    else:
        kind = "None" if dtype is None else data_type(as_dtype(dtype, "as_tensor")).name
        name = as_path("as_tensor", cache_file_name)
        file = name.with_name(f"{name.name}_dtype_{kind}_layout_{(layout or Layout.ROW_MAJOR).name}.tensorbin")
        if file.is_file():
            host = load_tensor(file)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            dump_tensor(file, host := made())
    return host if device is None else to_device(host, device, memory_config)


def init_device_compute_kernel_config(arch: Any = None, *args: Any, **settings: Any) -> Any:
    """A compute kernel config with these settings; kept, and without a meaning here.

    Args:
      arch: taken, and means nothing here.
      *args: the same.
      **settings: those of `WormholeComputeKernelConfig`.

    Raises:
      ArgumentTypeError: a setting that it has not.
    """
    from jaxmesh.ttnn.settings import WormholeComputeKernelConfig

    try:
        return WormholeComputeKernelConfig(**settings)
    except TypeError:
        raise ArgumentTypeError(
            f"init_device_compute_kernel_config takes the settings {list(WormholeComputeKernelConfig.__slots__)}, got "
            f"{quote(list(settings))}."
        ) from None
