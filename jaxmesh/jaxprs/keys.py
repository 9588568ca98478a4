"""Random keys and their words: JAX types keys by their generator, StableHLO has arrays of integers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

_random: Any = jax.random


def is_key(dtype: Any) -> bool:
    """Returns True for an element type of random keys."""
    return not isinstance(dtype, np.dtype) and bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def words_of(x: Any) -> Any:
    """Returns the words of random keys, which are a further dim; returns any other array unchanged."""
    dtype = getattr(x, "dtype", None)
    return _random.key_data(x) if dtype is not None and is_key(dtype) else x


def from_words(x: Any, dtype: Any) -> Any:
    """Returns random keys of an element type from their words; returns an array unchanged for any other type."""
    if not is_key(dtype):
        return x
    generators: list[Any] = []

    def note(key: Any) -> None:
        generators.append(_random.key_impl(key))

    jax.eval_shape(note, jax.ShapeDtypeStruct((), dtype))
    return _random.wrap_key_data(x, impl=generators[0])
