"""The storage types of JAX's types in flat programs, and the constants of jaxprs as NumPy arrays."""

from __future__ import annotations

from typing import Any, cast

import jax
import numpy as np

from jaxmesh.dialects.program import Shape
from jaxmesh.errors import InexpressibleError
from jaxmesh.jaxprs import evaluate
from jaxmesh.jaxprs.compat import is_key, words_of

SMALL = 64
"""The largest number of elements of a known value; of larger ones only small slices are known."""


def storage_type(aval: Any, line: str = "") -> tuple[Shape, np.dtype[Any]]:
    """Returns the shape and element type of a value in a flat program: for a key, the shape and type of its words.

    Raises `InexpressibleError`, which names the source line, for complex numbers and other types that TTIR lacks.
    """
    dtype = aval.dtype
    if isinstance(dtype, np.dtype):
        if dtype.kind == "c":
            raise _no_type(aval, line, "TTIR has real numbers only; compute with the real and imaginary parts")
        return tuple(aval.shape), cast("np.dtype[Any]", dtype)
    if not is_key(dtype):
        raise _no_type(aval, line, "TTIR has no such elements")
    data: Any = jax.eval_shape(words_of, jax.ShapeDtypeStruct(aval.shape, dtype))
    return tuple(data.shape), np.dtype(data.dtype)


def _no_type(aval: Any, line: str, why: str) -> InexpressibleError:
    where = f" ({line})" if line else ""
    return InexpressibleError(f"no text for a value of type {aval.dtype}{list(aval.shape)}{where}: {why}.")


def as_array(constant: Any) -> Any:
    """Returns a constant of a jaxpr as an array; for keys, of their words."""
    words = words_of(constant)
    return evaluate.strip_type(constant) if words is constant else words
