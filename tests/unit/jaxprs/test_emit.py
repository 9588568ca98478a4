"""Equations that are added to a trace as they are, as the ones that JAX would trace."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmesh.jaxprs.emit import Kept, emit_jaxpr
from jaxmesh.jaxprs.source_locations import source_location


def program(x: Any, y: Any) -> tuple[Any, ...]:
    unused, z = jnp.divmod(x, 2.0)
    del unused
    carry, _ = jax.lax.scan(lambda c, _: (jnp.sin(c) + z, None), y, length=3)
    return carry, x, 3.0 * z, jnp.arange(4.0)


ARGUMENTS = np.arange(4, dtype=np.float32), np.ones(4, np.float32)


def test_an_emitted_jaxpr_is_the_jaxpr() -> None:
    traced = jax.make_jaxpr(program)(*ARGUMENTS)
    again = jax.make_jaxpr(lambda *xs: emit_jaxpr(traced, xs))(*ARGUMENTS)
    assert str(again) == str(traced)
    assert [source_location(e) for e in again.eqns] == [source_location(e) for e in traced.eqns]
    for ours, wanted in zip(
        jax.core.eval_jaxpr(again.jaxpr, again.consts, *ARGUMENTS), program(*ARGUMENTS), strict=True
    ):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)


def test_outside_of_a_trace_a_jaxpr_is_evaluated() -> None:
    traced = jax.make_jaxpr(program)(*ARGUMENTS)
    for ours, wanted in zip(emit_jaxpr(traced, ARGUMENTS), program(*ARGUMENTS), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)


def test_a_jaxpr_with_references_is_bound() -> None:
    def counted(x: Any) -> Any:
        total = jax.new_ref(jnp.zeros_like(x))
        total[...] = x + 1
        return total[...]

    traced = jax.make_jaxpr(counted)(ARGUMENTS[0])
    again = jax.jit(lambda x: emit_jaxpr(traced, [x])[0])
    np.testing.assert_array_equal(again(ARGUMENTS[0]), ARGUMENTS[0] + 1)


@pytest.mark.parametrize("several", [False, True])
def test_what_comes_again_is_traced_once_and_differs_by_types_keys_and_numbers(several: bool) -> None:
    calls: list[Any] = []

    def scale(x: Any, factor: Any) -> Any:
        calls.append(x)
        return [x * factor, x] if several else x * factor

    def run(kept: Any) -> Any:
        def layers(x: Any) -> list[Any]:
            made: list[Any] = []
            for factor in (2.0, 3.0, 2.0, 2.0, 2.0):
                made.append(kept("scale", scale, x, np.asarray(factor, np.float32)))
                made.append(kept("shift", lambda v: v + 1, x))
            made.append(kept("scale", scale, x[:2], np.asarray(2.0, np.float32)))
            return jax.tree.leaves(made)

        return layers

    plain = jax.make_jaxpr(run(lambda _, fun, *xs: fun(*xs)))(ARGUMENTS[0])
    calls.clear()
    kept = jax.make_jaxpr(run(Kept()))(ARGUMENTS[0])
    assert str(kept) == str(plain)
    # Once for each number and type.
    assert len(calls) == 3


def test_operands_that_are_one_value_or_a_known_one_say_nothing_of_others() -> None:
    def run(kept: Any) -> Any:
        def rows(x: Any, y: Any) -> list[Any]:
            two, three = (jax.lax.full_like(x, n) for n in (2.0, 3.0))
            pairs = (x, x), (x, y), (y, y), (y, x), (x, two), (x, three), (two, x), (x, y)
            return [kept("sub", lambda a, b: a - b, *pair) for pair in pairs]

        return rows

    plain = jax.make_jaxpr(run(lambda _, fun, *xs: fun(*xs)))(*ARGUMENTS)
    assert str(jax.make_jaxpr(run(Kept()))(*ARGUMENTS)) == str(plain)


def test_values_of_other_traces_are_not_kept() -> None:
    kept = Kept()

    def outer(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return kept("add", lambda a, b: a + b, x, y)

        return jax.lax.map(inner, jnp.stack([inner(x), inner(x), inner(x)]))

    np.testing.assert_allclose(jax.jit(outer)(ARGUMENTS[0]), np.tile(3 * ARGUMENTS[0], (3, 1)))
