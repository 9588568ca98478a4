"""Calls are inlined where they are wanted, constants are copied, and what need not change is the same object."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmesh.jaxprs import evaluate
from jaxmesh.jaxprs.rewrite import copy_constants, inline_calls, map_sub_jaxprs

SINES = jax.jit(jnp.sin)
COSINES = jax.jit(jnp.cos)


def names(jaxpr: Any) -> list[str]:
    return [e.primitive.name for e in jaxpr.eqns]


def test_calls_that_are_wanted_are_inlined() -> None:
    jaxpr = jax.make_jaxpr(lambda x: SINES(x) + jax.jit(lambda y: COSINES(y) * 2)(x))(1.0)
    every = inline_calls(jaxpr)
    assert names(every) == ["sin", "cos", "mul", "add"]
    some = inline_calls(jaxpr, lambda body: "sin" in names(body))
    assert names(some) == ["sin", "jit", "add"]
    for changed in (every, some):
        assert evaluate.eval_jaxpr(changed, 0.5) == evaluate.eval_jaxpr(jaxpr, 0.5)
    assert inline_calls(every) is every


@pytest.mark.parametrize("depth", [0, 1])
def test_a_write_to_an_array_does_not_reach_a_copied_constant(depth: int) -> None:
    table = np.arange(3, dtype=np.float32)
    times = lambda x: x * table  # noqa: E731
    jaxpr = jax.make_jaxpr(jax.jit(times) if depth else times)(jnp.ones(3))
    copied = copy_constants(jaxpr)
    table[:] = 7
    assert evaluate.eval_jaxpr(jaxpr, jnp.ones(3))[0].tolist() == [7, 7, 7]
    assert evaluate.eval_jaxpr(copied, jnp.ones(3))[0].tolist() == [0, 1, 2]


def test_an_equation_without_bodies_is_unchanged() -> None:
    (eqn,) = jax.make_jaxpr(jnp.sin)(1.0).eqns
    assert map_sub_jaxprs(eqn, lambda j: j) is eqn
    (call,) = jax.make_jaxpr(lambda x: SINES(x))(1.0).eqns
    assert map_sub_jaxprs(call, lambda j: j) is call
