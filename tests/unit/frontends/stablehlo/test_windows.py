"""Reductions of windows by bodies of more than one op, read from StableHLO and sharded, equal JAX's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm


def _first_largest(x: Any) -> Any:
    """Returns the largest elements of windows with their columns, by one reduction of two operands."""
    columns = lax.broadcasted_iota(jnp.int32, x.shape, 1)

    def larger(a: Any, b: Any) -> Any:
        return jnp.where(a[0] >= b[0], a[0], b[0]), jnp.where(a[0] >= b[0], a[1], b[1])

    starts = (-np.inf, np.int32(0))
    return lax.reduce_window((x, columns), starts, larger, (1, 3), (1, 1), ((0, 0), (1, 1)))


def _bounded_sums(x: Any) -> Any:
    def combine(a: Any, b: Any) -> Any:
        return jnp.minimum(a + b, 3.0)

    return lax.reduce_window(abs(x), np.float32(0), combine, (1, x.shape[1]), (1, 1), ((0, 0), (x.shape[1] - 1, 0)))


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize(
    "reduce",
    [
        lambda x: lax.cumlogsumexp(x, axis=1),
        lambda x: lax.cumlogsumexp(x, axis=1, reverse=True),
        lambda x: lax.reduce_window(x, -np.inf, jnp.logaddexp, (1, 3), (1, 1), ((0, 0), (1, 1))),
        _bounded_sums,
        _first_largest,
    ],
    ids=["cumulative", "reversed", "windows", "with a constant", "two operands"],
)
@pytest.mark.parametrize("spec", [P("y"), P("y", "x"), P(None, ("y", "x"))], ids=str)
def test_a_body_of_many_ops(reduce: Callable[[Any], Any], spec: P) -> None:
    mesh = jm.make_mesh((2, 4))
    x = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
    text = jax.jit(reduce, in_shardings=NamedSharding(mesh, spec)).lower(x).as_text()
    lowered = jm.from_mlir(text, mesh=mesh).lower()
    for got in (lowered.compile()(x), lowered.reference(x)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, reduce(jnp.asarray(x)))
