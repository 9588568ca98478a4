"""Converts between NumPy arrays and torch tensors, where torch is installed."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from jaxmesh.errors import ArgumentTypeError, UnsupportedError
from jaxmesh.jaxprs.untyped import Array, jnp
from jaxmesh.validate import quote


def torch_module() -> Any:
    """Returns torch."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise UnsupportedError(
            "from_torch and to_torch need torch, which is not installed; for arrays jaxmesh.ttnn.helpers has "
            "from_numpy and to_numpy."
        ) from None


def _narrow(name: str) -> bool:
    """Returns True for an element type that NumPy lacks, so that torch does not convert it."""
    kind = getattr(jnp, name, None)
    return kind is not None and np.dtype(kind).isbuiltin != 1


def array_from_torch(tensor: Any) -> Array:
    """Returns the elements of a torch tensor; the array may share its memory."""
    torch = torch_module()
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(f"from_torch takes a torch tensor, got {type(tensor).__name__}.")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex() or tensor.is_meta:
        raise UnsupportedError(
            "from_torch takes a dense tensor of real numbers, integers or truth values with data, got "
            f"{tensor.dtype} of {tensor.layout} on {tensor.device}; use to_dense(), dequantize(), real and imag, or a "
            "tensor with data."
        )
    plain, name = tensor.detach().cpu().contiguous(), str(tensor.dtype).removeprefix("torch.")
    if not _narrow(name):
        return plain.numpy()
    bits = torch.uint8 if plain.element_size() == 1 else torch.int16
    return plain.view(bits).numpy().view(getattr(jnp, name))


def check_to_torch(dtype: object, torch_rank: object) -> None:
    """Checks the arguments of `to_torch` before anything is read."""
    torch = torch_module()
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentTypeError(f"to_torch takes an element type of torch's, as torch.float32, got {quote(dtype)}.")
    if torch_rank is not None and (not isinstance(torch_rank, int) or isinstance(torch_rank, bool)):
        raise ArgumentTypeError(f"to_torch takes a whole number as torch_rank, got {quote(torch_rank)}.")


def torch_from_array(array: Array, dtype: object = None, torch_rank: int | None = None) -> Any:
    """Returns a torch tensor that shares no memory, by default in the element type of the array."""
    torch = torch_module()
    while torch_rank is not None and array.ndim > torch_rank:
        if array.shape[0] != 1:
            shape = list(array.shape)
            raise ArgumentTypeError(f"to_torch: shape {shape} cannot have rank {torch_rank}: dim 0 is not 1.")
        array = array[0]
    kind = getattr(torch, array.dtype.name, None)
    if kind is None:
        raise UnsupportedError(f"torch has no element type {array.dtype}; typecast the tensor first.")
    array = np.array(array, order="C")
    if _narrow(array.dtype.name):
        tensor = torch.from_numpy(array.view(np.uint8 if array.dtype.itemsize == 1 else np.int16)).view(kind)
    else:
        tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.to(dtype)
