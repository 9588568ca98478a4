"""What a loop writes one by one is stacked once: texts grow as the steps do, as of a stack by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

STEPS = 24
X = np.arange(16, dtype=np.float32).reshape(8, 2) / 9


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.tanh(c), c), x, None, length=STEPS)[1]


def backwards(x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.tanh(c), c), x, None, length=STEPS, reverse=True)[1]


def written(x: Any) -> Any:
    def step(i: Any, state: Any) -> Any:
        rows, y = state
        return rows.at[STEPS - 1 - i].set(y), jnp.tanh(y)

    return lax.fori_loop(0, STEPS, step, (jnp.zeros((STEPS, *x.shape)), x))[0]


def every_other(x: Any) -> Any:
    rows = jnp.ones((STEPS, *x.shape))
    for i in range(0, STEPS, 2):
        rows = lax.dynamic_update_slice(rows, x[None] * i, (i, 0, 0))
    return rows


def read_between(x: Any) -> Any:
    def step(i: Any, rows: Any) -> Any:
        return rows.at[i].set(rows[i - 1] + rows[(i + 5) % STEPS] + x)

    return lax.fori_loop(1, STEPS, step, jnp.zeros((STEPS, *x.shape)))


@pytest.mark.parametrize("function", [scanned, backwards, written, every_other, read_between])
def test_a_stack_of_shards_is_written_once(function: Callable[[Any], Any]) -> None:
    mesh = jm.make_mesh((2, 4))
    lowered = jm.jit(function, mesh=mesh, in_shardings=P("y"), out_shardings=P(None, "y")).lower(X)

    def by_hand(x: Any) -> Any:
        return jm.shard_to_full(function(jm.full_to_shard(x, P("y"))), P(None, "y"))

    text = lowered.as_text()
    assert text.count("\n") <= jm.jit(by_hand, mesh=mesh).lower(X).as_text().count("\n")
    assert "ttnn.where" not in text
    # One that is read in between is put together for each reader.
    assert function is read_between or text.count("ttnn.concat") == 1
    got = jm.from_mlir(text, mesh).lower().compile()(X)
    np.testing.assert_allclose(got, function(X), rtol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_that_stays_writes_its_stack_in_pieces(reverse: bool) -> None:
    def lowered(steps: int, by_hand: bool) -> Any:
        def rows(x: Any) -> Any:
            return lax.scan(lambda c, _: (jnp.tanh(c), c), x, None, length=steps, reverse=reverse)[1]

        def local(x: Any) -> Any:
            return jm.shard_to_full(rows(jm.full_to_shard(x, P("y"))), P(None, "y"))

        shardings = {} if by_hand else {"in_shardings": P("y"), "out_shardings": P(None, "y")}
        return jm.jit(local if by_hand else rows, mesh=jm.make_mesh((2, 4)), **shardings).lower(X)

    work: dict[tuple[int, bool], int] = {}
    for by_hand in (False, True):
        for steps in (256, 1024):
            found = lowered(steps, by_hand)
            assert found.as_text(unroll_limit=0).count('"ttcore.while_loop"') == 2
            work[steps, by_hand] = sum(op.flops for op in found.estimate(unroll_limit=0).ops)
        # The power 3/2 of the steps; anew in each of them, it would be 16.
        assert work[1024, by_hand] < 8.5 * work[256, by_hand]
    assert work[1024, False] <= 1.1 * work[1024, True]
