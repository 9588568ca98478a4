"""What a loop writes one by one is stacked once: texts grow as the steps do, as of a stack by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
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


def stacked_rows(x: Any, steps: int, reverse: bool) -> Any:
    return lax.scan(lambda c, _: (jnp.tanh(c), c), x, None, length=steps, reverse=reverse)[1]


def rows_at_counter(x: Any, steps: int, reverse: bool) -> Any:
    def step(i: Any, state: Any) -> Any:
        return state[0].at[steps - 1 - i if reverse else i].set(state[1]), jnp.tanh(state[1])

    return lax.fori_loop(0, steps, step, (jnp.zeros((steps, *x.shape)), x))[0]


def rows_under_condition(x: Any, steps: int, reverse: bool) -> Any:
    def step(state: Any) -> Any:
        i, rows, c = state
        at = steps + 3 - i if reverse else i - 4
        return i + 1, lax.dynamic_update_slice(rows, c[None], (at, 0, 0)), jnp.tanh(c)

    return lax.while_loop(lambda s: s[0] < steps + 4, step, (4, jnp.zeros((steps, *x.shape)), x))[1]


@pytest.mark.parametrize("function", [stacked_rows, rows_at_counter, rows_under_condition])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_that_stays_writes_its_stack_in_pieces(function: Any, reverse: bool) -> None:
    def lowered(steps: int, by_hand: bool) -> Any:
        def rows(x: Any) -> Any:
            return function(x, steps, reverse)

        def local(x: Any) -> Any:
            return jm.shard_to_full(rows(jm.full_to_shard(x, P("y"))), P(None, "y"))

        shardings = {} if by_hand else {"in_shardings": P("y"), "out_shardings": P(None, "y")}
        return jm.jit(local if by_hand else rows, mesh=jm.make_mesh((2, 4)), **shardings).lower(X)

    work: dict[tuple[int, bool], int] = {}
    for by_hand in (False, True):
        for steps, loops in ((256, 3), (1024, 4)):
            found = lowered(steps, by_hand)
            assert found.as_text(unroll_limit=0).count('"ttcore.while_loop"') == loops
            work[steps, by_hand] = sum(op.flops for op in found.estimate(unroll_limit=0).ops)
        # The steps, by a logarithm; anew in each of them, it would be 16.
        assert work[1024, by_hand] < 5.5 * work[256, by_hand]
    assert work[1024, False] <= 1.1 * work[1024, True]


@pytest.mark.parametrize("length", [64, 127, 1021])
@pytest.mark.slow(but_one_in=3)
def test_a_stack_of_any_length_is_written_in_pieces(length: int) -> None:
    mesh, x = jm.make_mesh((1, 2)), np.float32(2)
    for function in (stacked_rows, rows_at_counter):
        for reverse in (False, True):

            def rows(x: Any, function: Any = function, reverse: bool = reverse) -> Any:
                return function(jnp.full((1, 2), x), length, reverse)

            program = jm.jit(rows, mesh=mesh).lower(x)
            work = sum(op.flops for op in program.estimate(unroll_limit=0).ops)
            # Of each iteration with two numbers; in one loop it would be twice the length.
            assert work < 70 * length
            got = jm.from_mlir(program.as_text(unroll_limit=0), mesh).lower().compile()(x)
            np.testing.assert_allclose(got, rows(x), rtol=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_a_slice_of_joined_tensors_that_is_one_of_them_is_not_cut_out_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dim, sizes = int(rng.integers(2)), rng.integers(1, 4, 3).tolist()
    parts = [rng.normal(size=(n, 3) if dim == 0 else (3, n)).astype(np.float32) for n in sizes]
    ends = np.cumsum([0, *sizes]).tolist()
    whole = [(ends[i], ends[i + 1]) for i in range(3)]
    others = {(int(i), int(j)) for i, j in rng.integers(0, ends[-1] + 1, (8, 2)) if i < j} - {*whole, (0, ends[-1])}

    def cut(*xs: Any, pieces: Any) -> Any:
        joined = jnp.concatenate(xs, dim)
        return [lax.slice_in_dim(joined, i, j, axis=dim) for i, j in pieces]

    for pieces, count in ((whole, 0), (sorted(others), len(others))):
        traced = jm.jit(lambda *xs, p=pieces: cut(*xs, pieces=p), mesh=jm.make_mesh((2, 4))).trace(*parts)
        text = traced.as_text()
        assert text.count("ttir.slice_static") == count
        joined = np.concatenate(parts, dim)
        results = jax.tree.leaves(jm.from_mlir(text, traced.mesh).lower().compile()(*parts))
        for got, (i, j) in zip(results, pieces, strict=True):
            np.testing.assert_array_equal(got, joined.take(range(i, j), dim))


def test_every_second_row_of_joined_tensors_is_none_of_them() -> None:
    """Two rows of four begin where an operand of two rows does."""
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(6, 12, dtype=np.float32).reshape(2, 3)
    traced = jm.jit(lambda a, b: jnp.concatenate([a, b])[::2], mesh=jm.make_mesh((2, 4))).trace(a, b)
    for text in (traced.as_text(), traced.lower().as_text()):
        got = jm.from_mlir(text, traced.mesh).lower().compile()(a, b)
        np.testing.assert_array_equal(got, np.concatenate([a, b])[::2])
