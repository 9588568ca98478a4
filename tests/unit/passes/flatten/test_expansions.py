"""Special functions by elementary ones against JAX's own on the CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmesh.passes.flatten.special_functions import expanded

X = np.random.default_rng(0).standard_normal(400).astype(np.float32)
EDGES = np.array([0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 1e30, 1e-30, np.inf, -np.inf, np.nan], np.float32)
EVERY = np.concatenate([X, 10 * X, EDGES])
POSITIVE = np.abs(np.concatenate([X, 10 * X]))


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("erf_inv", [np.clip(X / 2, -1, 1)]),
        ("bessel_i0e", [EVERY]),
        ("bessel_i1e", [EVERY]),
        ("lgamma", [EVERY]),
        ("digamma", [EVERY]),
        ("zeta", [POSITIVE + 1.01, POSITIVE[::-1] + 0.1]),
        ("polygamma", [np.round(POSITIVE % 5), POSITIVE[::-1] + 0.1]),
    ],
)
def test_expansions_are_the_functions(name: str, operands: list[Any]) -> None:
    function: Any = getattr(jax.lax, name)
    got, want = jax.jit(lambda *xs: expanded(name, *xs))(*operands), jax.jit(function)(*operands)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
