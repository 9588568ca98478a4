"""The accessor of calls, loops and branches, in the form of the installed JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxmesh.jaxprs import evaluate, walk
from jaxmesh.jaxprs.control_flow import Call, Cond, Scan, While, control_flow


def only_equation(f: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """The closed jaxpr of a function, and its only loop, branch or call."""
    jaxpr = jax.make_jaxpr(f)(*args)
    (eqn,) = [e for e in jaxpr.eqns if control_flow(e) is not None]
    return jaxpr, eqn


def test_a_scan_has_constants_carry_and_rows() -> None:
    offset = jnp.arange(3.0)
    _, eqn = only_equation(
        lambda x, k: lax.scan(lambda c, row: (c + k * offset, c * row), x, jnp.ones((5, 3))), offset, 2.0
    )
    loop = control_flow(eqn)
    assert isinstance(loop, Scan)
    consts, carry, rows = loop.split(eqn.invars)
    assert (loop.length, loop.reverse, len(consts), len(carry), len(rows)) == (5, False, 2, 1, 1)
    assert [v.aval.shape for v in rows] == [(5, 3)]
    last, stacked = loop.split_results(eqn.outvars)
    assert [v.aval.shape for v in (*last, *stacked)] == [(3,), (5, 3)]
    assert len(walk.open_jaxpr(loop.body).invars) == len(eqn.invars)


def test_a_while_loop_has_constants_of_its_condition_and_of_its_body() -> None:
    _, eqn = only_equation(lambda x, most, by: lax.while_loop(lambda v: v < most, lambda v: v * by, x), 1.0, 9.0, 2.0)
    loop = control_flow(eqn)
    assert isinstance(loop, While)
    assert (loop.cond_consts, loop.body_consts) == (1, 1)
    assert [len(part) for part in loop.split(eqn.invars)] == [1, 1, 1]
    assert loop.predicate(eqn).dtype == bool


def test_an_index_out_of_range_is_the_first_or_the_last_branch() -> None:
    branches = [lambda x: x, lambda x: -x, lambda x: x + 1]
    _, eqn = only_equation(lambda i, x: lax.switch(i, branches, x), 0, 1.0)
    cond = control_flow(eqn)
    assert isinstance(cond, Cond)
    assert [cond.clamp(i) for i in (-3, 0, 1, 2, 7)] == [0, 0, 1, 2, 2]
    index, operands = cond.split(eqn.invars)
    assert (index.aval.dtype, len(operands)) == (cond.predicate(eqn).dtype, 1)


@jax.custom_jvp
def twice(x: Any) -> Any:
    return 2 * x


twice.defjvp(lambda xs, ts: (twice(*xs), 2 * ts[0]))


@pytest.mark.parametrize(
    ("f", "kind"),
    [(jax.jit(jnp.sin), "jit"), (jax.checkpoint(jnp.sin), "remat"), (twice, "custom_jvp_call")],
    ids=["jit", "checkpoint", "custom_jvp"],
)
def test_a_call_has_one_name_in_every_version(f: Callable[..., Any], kind: str) -> None:
    _, eqn = only_equation(lambda x: f(x), 1.0)
    call = control_flow(eqn)
    assert isinstance(call, Call)
    assert call.kind == kind


def by(step: float) -> list[Callable[..., Any]]:
    """A loop, a while loop, a branch and a call that add a number."""
    return [
        lambda x: lax.fori_loop(0, 3, lambda _, y: y + step, x),
        lambda x: lax.while_loop(lambda y: y < 5, lambda y: y + step, x),
        lambda x: lax.cond(x > 0, lambda y: y + step, lambda y: y, x),
        jax.jit(lambda x: x + step),
    ]


@pytest.mark.parametrize("kind", range(4), ids=["scan", "while", "cond", "jit"])
def test_other_bodies_take_the_places_of_the_bodies(kind: int) -> None:
    ones, twos = by(1)[kind], by(2)[kind]
    jaxpr, eqn = only_equation(lambda x: ones(x), jnp.float32(2))
    _, other = only_equation(lambda x: twos(x), jnp.float32(2))
    flow, theirs = control_flow(eqn), control_flow(other)
    assert flow is not None
    assert theirs is not None
    new = flow.with_bodies(eqn, theirs.bodies)
    outvars = walk.open_jaxpr(jaxpr).outvars
    changed = walk.with_eqns(jaxpr, [new if e is eqn else e for e in jaxpr.eqns], outvars)
    for program, function in ((jaxpr, ones), (changed, twos)):
        assert evaluate.eval_jaxpr(program, jnp.float32(2)) == [function(jnp.float32(2))]
    assert ones(jnp.float32(2)) != twos(jnp.float32(2))
