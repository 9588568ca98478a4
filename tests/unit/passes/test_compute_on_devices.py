"""The flat TTNN program has the transfers of a jaxpr and no others, also those of work on full host tensors."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.rewrite import inline_calls
from jaxmesh.passes.pipeline import printed_jaxpr
from tests.generators.suite.all_programs import PROGRAMS, Entry

X = np.arange(32, dtype=np.float32).reshape(4, 8)
NAMES = tuple(p.name for p in PRIMITIVES)


def lowered(function: Callable[..., Any], *args: Any, sizes: Sequence[int] = (2, 4)) -> Any:
    return jm.jit(function, mesh=jm.make_mesh(tuple(sizes), ("y", "x"))).lower(*args)


def explicit(stage: Any) -> Any:
    """The jaxpr that the text renders, its calls inlined."""
    return inline_calls(printed_jaxpr(stage.residency, stage._boundary.sizes))


def in_jaxpr(stage: Any) -> dict[str, int]:
    counts = collections.Counter(e.primitive.name for e in walk.all_eqns(explicit(stage)))
    return {name: counts[name] for name in NAMES}


def in_text(stage: Any) -> dict[str, int]:
    text = stage.as_text(groups=False, strict=False)
    return {name: text.count(f'"ttnn.{name}"') for name in NAMES}


def count(distributes: int, aggregates: int) -> dict[str, int]:
    return {"distribute_tensor": distributes, "aggregate_tensor": aggregates}


def halves(x: Any) -> Any:
    return jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y"))


def split_twice(x: Any) -> Any:
    y = jnp.exp(x)
    return halves(y), jm.shard_to_full(jm.full_to_shard(y, P("x")), P("x"))


CASES: dict[str, tuple[Callable[[Any], Any], int, int]] = {
    "nothing is computed on the host": (halves, 1, 1),
    "an operand": (lambda x: x + 1, 1, 1),
    "an operand of several ops": (lambda x: (x + 1, jnp.exp(x)), 1, 2),
    "work between ops": (lambda x: jnp.exp(x + 1), 1, 1),
    "what is returned twice": (lambda x: (y := jnp.exp(x), y), 1, 1),
    "what is split twice": (
        lambda x: (halves(y := jnp.exp(x)), jm.shard_to_full(jm.full_to_shard(y, P("x")), P("x"))),
        3,
        3,
    ),
    "a reshape": (lambda x: x.reshape(8, 4), 0, 0),
    "a reshape before": (lambda x: jnp.exp(x.reshape(8, 4)), 1, 1),
    "a reshape after": (lambda x: jnp.exp(x).reshape(8, 4), 1, 1),
    "a constant": (lambda x: halves(x + X), 2, 2),
    "a constant alone": (lambda x: halves(jnp.ones((4, 8))), 1, 1),
    "a call": (lambda x: jax.jit(jnp.exp)(x), 1, 1),
    "an unrolled loop": (lambda x: lax.fori_loop(0, 3, lambda _, y: y * 2, x), 1, 1),
    "the rows of a loop": (lambda x: lax.scan(lambda c, r: (c + r, r * c), jnp.ones(8), x), 1, 2),
    "a loop that splits its rows": (lambda x: lax.map(lambda r: halves(r[:, None])[:, 0], x.T), 3, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_transfers_of_work_on_full_tensors(name: str) -> None:
    function, distributes, aggregates = CASES[name]
    stage = lowered(function, X)
    assert in_jaxpr(stage) == count(distributes, aggregates)
    again = jm.from_mlir(stage.as_text()).lower().compile()(X)
    for got, want in zip(jax.tree.leaves(again), jax.tree.leaves(stage.compile()(X)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in CASES if "loop" not in n])
def test_a_text_has_the_transfers_of_the_jaxpr(name: str) -> None:
    stage = lowered(CASES[name][0], X)
    assert in_text(stage) == in_jaxpr(stage)


@pytest.mark.slow(but_one_in=5)
@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda e: e.name)
def test_a_text_of_the_suite_has_the_transfers_of_the_jaxpr(entry: Entry) -> None:
    stage = entry.lowered
    if any(e.primitive.name in ("scan", "while", "cond") for e in walk.all_eqns(stage.jaxpr)):
        pytest.skip("a loop is unrolled, so its transfers are printed once per iteration")
    assert in_jaxpr(stage) == in_text(stage)


def test_the_program_that_runs_has_no_such_transfers() -> None:
    stage = lowered(lambda x: jnp.exp(x), X)
    assert not any(e.primitive in PRIMITIVES for e in walk.all_eqns(stage.jaxpr))


def test_a_lowered_program_without_work_on_the_host_is_the_same() -> None:
    stage = lowered(halves, X)
    assert printed_jaxpr(stage.residency, stage._boundary.sizes) is stage.jaxpr


def test_a_loop_that_aggregates_a_static_number() -> None:
    """A number has no residency, so no distribute of it stands before the loop."""

    def nested(x: Any) -> Any:
        def outer(i: Any, c: Any) -> Any:
            def step(carry: Any) -> Any:
                return carry[0] + 1, carry[1] + jm.shard_to_full(i, P())

            return lax.while_loop(lambda carry: carry[0] < i, step, (jnp.int32(0), c))[1]

        return lax.fori_loop(0, 3, outer, x)

    stage = lowered(nested, x := np.zeros((2,), np.int32))
    np.testing.assert_array_equal(stage.compile()(x), x + 5)
    np.testing.assert_array_equal(jm.from_mlir(stage.as_text()).lower().compile()(x), x + 5)
