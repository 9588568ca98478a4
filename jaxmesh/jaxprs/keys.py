"""Random keys and their words: JAX types keys by their generator, StableHLO has arrays of integers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType

from jaxmesh.jaxprs.user_trace import without_mesh

_random: Any = jax.random


def is_key(dtype: Any) -> bool:
    """Returns True for an element type of random keys."""
    return not isinstance(dtype, np.dtype) and bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def words_of(x: Any) -> Any:
    """Returns the words of random keys, which are a further dim; returns any other array unchanged."""
    dtype = getattr(x, "dtype", None)
    return _random.key_data(x) if dtype is not None and is_key(dtype) else x


def from_words(x: Any, dtype: Any) -> Any:
    """Returns values of an element type that StableHLO lacks: random keys from their words, and `float0`.

    Returns an array unchanged for any other type.
    """
    if dtype == jax.dtypes.float0:
        return jax.lax.broadcast(np.zeros((), dtype), x.shape)
    if not is_key(dtype):
        return x
    generators: list[Any] = []

    def note(key: Any) -> None:
        generators.append(_random.key_impl(key))

    jax.eval_shape(note, jax.ShapeDtypeStruct((), dtype))
    return _random.wrap_key_data(x, impl=generators[0])


def off_explicit_axes(constant: Any) -> Any:
    """Returns a constant whose type names no Explicit axes, as a mapped region can close over it."""
    traced: Any = constant
    if isinstance(traced, Tracer):
        return constant
    sharding: Any = getattr(jax.typeof(constant), "sharding", None)
    if sharding is None or AxisType.Explicit not in sharding.mesh.axis_types:
        return constant
    with jax.ensure_compile_time_eval(), without_mesh():
        return from_words(np.asarray(words_of(constant)), constant.dtype)
