"""Results of `jm.shard_map` and of `jax.shard_map`, compared in every respect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.generators.oracles import same_bits


def array(x: Any) -> np.ndarray:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(x))
    # JAX cannot read a split array without elements.
    return np.zeros(x.shape, x.dtype) if isinstance(x, jax.Array) and not x.size else np.asarray(x)


def assert_alike(got: Any, want: Any) -> None:
    """The same tree of the same values: type, weak type, sharding, bits."""
    leaves, tree = jax.tree.flatten(got)
    wanted, wanted_tree = jax.tree.flatten(want)
    assert tree == wanted_tree
    for a, b in zip(leaves, wanted, strict=True):
        assert type(a) is type(b)
        if isinstance(b, jax.Array):
            assert jax.typeof(a) == jax.typeof(b)
            assert a.sharding == b.sharding
            assert a.committed == b.committed
        assert same_bits(array(a), array(b))


def outcome(run: Callable[[], Any]) -> Any:
    """The result of a call, or its exception's type and message."""
    try:
        return run()
    except Exception as error:
        return type(error), str(error)
