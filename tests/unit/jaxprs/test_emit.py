"""Equations that are added to a trace as they are, as the ones that JAX would trace."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmesh.jaxprs.emit import Kept, emit_jaxpr
from jaxmesh.jaxprs.source_locations import source_location
from jaxmesh.jaxprs.user_frames import frames


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


def test_other_programs_add_the_equations_where_the_settings_are_the_same() -> None:
    calls: list[Any] = []
    key = object()

    def product(x: Any) -> Any:
        calls.append(x)
        return jax.lax.dot_general(x, x, (((0,), (0,)), ((), ())))

    def program(x: Any) -> Any:
        return Kept().made(key, product, x)[0]

    first, second = (jax.make_jaxpr(lambda x: program(x))(ARGUMENTS[0]) for _ in range(2))
    assert str(first) == str(second)
    assert len(calls) == 1
    with jax.default_matmul_precision("float32"):
        exact = jax.make_jaxpr(lambda x: program(x))(ARGUMENTS[0])
    assert exact.eqns[0].params["precision"] != first.eqns[0].params["precision"]
    jax.make_jaxpr(lambda x: program(x))(ARGUMENTS[1][:2])
    jax.clear_caches()
    jax.make_jaxpr(lambda x: program(x))(ARGUMENTS[0])
    assert len(calls) == 4


def test_other_programs_have_their_own_lines_and_bodies() -> None:
    calls, key = list[str](), object()

    def negated(x: Any) -> Any:
        calls.append("negated")
        return jax.lax.neg(x)

    def called(x: Any) -> Any:
        calls.append("called")
        return jax.jit(lambda v: v + 1)(x)

    def both(x: Any) -> Any:
        kept = Kept()
        return kept.made((key, 1), negated, x)[0], kept.made((key, 2), called, x)[0]

    def one(x: Any) -> Any:
        return both(x)

    def two(x: Any) -> Any:
        return both(x)

    # The first trace is gone when the second reads its equations.
    with jax.checking_leaks():
        traced = [jax.make_jaxpr(f)(ARGUMENTS[0]) for f in (one, two)]
    assert str(traced[0]) == str(traced[1])
    assert calls == ["negated", "called", "called"]
    for jaxpr, f in zip(traced, (one, two), strict=True):
        for eqn in jaxpr.eqns[:1]:
            assert f.__qualname__ in {frame.function_name for frame in frames(eqn.source_info.traceback)}
