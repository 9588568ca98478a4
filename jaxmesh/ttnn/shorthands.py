"""Functions of `ttnn` that are other ones of it in short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxmesh.errors import ArgumentTypeError, VerifyError
from jaxmesh.ttnn.argument_conversion import integers
from jaxmesh.ttnn.functions import lookup
from jaxmesh.ttnn.host_tensor import Tensor
from jaxmesh.ttnn.types import DataType, MemoryConfig

_jnp: Any = jax.numpy

ALIASES: Mapping[str, str] = {"mul": "multiply", "sub": "subtract", "div": "divide", "swish": "silu"}
"""Other names of ops."""


def dim_of(op: str, dim: int, rank: int) -> int:
    """A dim counted from the front.

    Raises:
      VerifyError: out of range.
    """
    if not -rank <= dim < rank:
        raise VerifyError(f"ttnn.{op}: dim = {dim} is out of range for {rank} dims.")
    return dim % rank


def shape_of(op: str, tensor: Any) -> tuple[int, ...]:
    """The shape of a tensor.

    Raises:
      ArgumentTypeError: none.
    """
    shape = getattr(tensor, "shape", None)
    if not isinstance(shape, tuple) or not isinstance(getattr(tensor, "dtype", None), np.dtype):
        raise ArgumentTypeError(f"ttnn.{op} takes a tensor, got {type(tensor).__name__}.")
    return cast("tuple[int, ...]", shape)


def squeeze(input_tensor: Any, dim: int | Sequence[int] | None = None) -> Any:
    """Drops dims of size 1, by `ttnn.reshape`.

    Args:
      input_tensor: a tensor.
      dim: the dims to drop; those of another size stay. By default every dim of size 1.

    Raises:
      VerifyError: a dim is out of range.
    """
    shape = shape_of("squeeze", input_tensor)
    dims = range(len(shape)) if dim is None else integers("ttnn.squeeze", "dim", dim)
    dropped = {dim_of("squeeze", d, len(shape)) for d in dims}
    return lookup("ttnn.reshape", "ttnn")(input_tensor, [n for i, n in enumerate(shape) if n != 1 or i not in dropped])


def unsqueeze(input_tensor: Any, dim: int) -> Any:
    """Puts in a dim of size 1, by `ttnn.reshape`.

    Args:
      input_tensor: a tensor.
      dim: the place of the new dim in the result.

    Raises:
      VerifyError: the dim is out of range.
    """
    shape = list(shape_of("unsqueeze", input_tensor))
    if len(places := integers("ttnn.unsqueeze", "dim", dim)) != 1:
        raise ArgumentTypeError(f"ttnn.unsqueeze takes an integer as dim, got {dim!r}.")
    shape.insert(dim_of("unsqueeze", places[0], len(shape) + 1), 1)
    return lookup("ttnn.reshape", "ttnn")(input_tensor, shape)


def clone(
    input_tensor: Any,
    *,
    dtype: DataType | None = None,
    memory_config: MemoryConfig | None = None,
    compute_kernel_config: Any = None,
) -> Any:
    """A copy of a tensor on the devices, by `ttnn.assign`.

    Args:
      input_tensor: a tensor on the devices.
      dtype: the element type of the copy.
      memory_config: where the copy lies.
      compute_kernel_config: taken, and means nothing here.
    """
    return lookup("ttnn.assign", "ttnn")(input_tensor, dtype=dtype, memory_config=memory_config)


def clip(
    input_tensor: Any,
    min: float | None = None,  # noqa: A002
    max: float | None = None,  # noqa: A002
    *,
    memory_config: MemoryConfig | None = None,
) -> Any:
    """The tensor between two bounds, by `ttnn.clamp`.

    Args:
      input_tensor: a tensor on the devices.
      min: the least value; None for no bound.
      max: the greatest value; None for no bound.
      memory_config: where the result lies.

    Raises:
      ArgumentTypeError: no bound at all.
    """
    if min is None and max is None:
        raise ArgumentTypeError("ttnn.clip needs the argument 'min' or 'max'; both are None.")
    _ = shape_of("clip", input_tensor)
    least, most = -float("inf"), float("inf")
    if not isinstance(input_tensor, Tensor):
        raise ArgumentTypeError(f"ttnn.clip takes a tensor, got {type(input_tensor).__name__}.")
    if not _jnp.issubdtype(input_tensor.dtype, _jnp.inexact):
        whole: Any = _jnp.iinfo(input_tensor.dtype)
        least, most = int(whole.min), int(whole.max)
    low, high = least if min is None else min, most if max is None else max
    return lookup("ttnn.clamp", "ttnn")(input_tensor, low, high, memory_config=memory_config)
