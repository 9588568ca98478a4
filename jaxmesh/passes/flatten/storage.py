"""How values of JAX's types are held in flat programs, and the constants of jaxprs as NumPy arrays."""

from __future__ import annotations

from typing import Any, cast

import jax
import numpy as np

from jaxmesh.dialects.program import Shape
from jaxmesh.errors import InexpressibleError
from jaxmesh.jaxprs import evaluate

Array = np.ndarray[Any, Any]
SMALL = 64
"""How many elements a known value may have; of more, only small slices are known."""
_key_data: Any = jax.random.key_data


def is_key(dtype: Any) -> bool:
    """Whether an element type is that of the keys of random numbers."""
    return not isinstance(dtype, np.dtype) and bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def storage_type(aval: Any, line: str = "") -> tuple[Shape, np.dtype[Any]]:
    """The shape and element type in which values of a type are held: those of a key's numbers, for keys.

    Args:
      aval: the type.
      line: the source line that a message names.

    Raises:
      InexpressibleError: the elements are complex numbers, or of another type that TTIR has not.
    """
    dtype = aval.dtype
    if isinstance(dtype, np.dtype):
        if dtype.kind == "c":
            raise _no_type(aval, line, "TTIR has real numbers only; compute with the real and imaginary parts")
        return tuple(aval.shape), cast("np.dtype[Any]", dtype)
    if not is_key(dtype):
        raise _no_type(aval, line, "TTIR has no such elements")
    held: Any = jax.eval_shape(_key_data, jax.ShapeDtypeStruct(aval.shape, dtype))
    return tuple(held.shape), np.dtype(held.dtype)


def _no_type(aval: Any, line: str, why: str) -> InexpressibleError:
    where = f" ({line})" if line else ""
    return InexpressibleError(f"no text for a value of type {aval.dtype}{list(aval.shape)}{where}: {why}.")


def held_array(constant: Any) -> Any:
    """A constant of a jaxpr; of keys, their numbers."""
    dtype = getattr(constant, "dtype", None)
    return _key_data(constant) if dtype is not None and is_key(dtype) else evaluate.untyped(constant)


def plain(value: Any) -> Any:
    """A number or a row of numbers as Python's own: what JAX keeps in parameters may be NumPy's."""
    if isinstance(value, tuple):
        return tuple(map(plain, cast("tuple[Any, ...]", value)))
    number: Any = value
    return number.item() if isinstance(value, np.generic) else value


def is_uniform(held: Array) -> bool:
    """Whether all elements are the same, bit by bit."""
    if held.ndim == 0 or held.size == 1:
        return True
    elements = np.ascontiguousarray(held).reshape(-1, 1).view(np.uint8)
    return bool((elements == elements[0]).all())
