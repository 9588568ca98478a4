"""Traces functions in JAX for operands of a flat program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxmesh.dialects.program import Shape
from jaxmesh.jaxprs.caches import lru_cached_by_config
from jaxmesh.jaxprs.compat import Jaxpr


def trace(function: Callable[..., Any], types: Sequence[tuple[Shape, Any]]) -> Jaxpr:
    """Returns the jaxpr of a function for operands of these shapes and element types."""
    body: Any = jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in types])
    return body


@lru_cached_by_config(256)
def cached_trace(function: Callable[..., Any], params: tuple[Any, ...], types: tuple[Any, ...]) -> Jaxpr:
    """Traces a function that takes parameters first, once for all operands of the same types."""
    return trace(functools.partial(function, dict(params)), types)
