"""Loops that stay loops in MLIR: texts of the size of their bodies, read back with the values of JAX."""

from __future__ import annotations

import contextlib
import io
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.cli.run_folder import run_folder
from jaxmesh.emit.cpp.printer import include_dir

X = np.arange(32, dtype=np.float32).reshape(8, 4) / 40
W = np.eye(4, dtype=np.float32) * 0.9 + 0.01
STEPS = 10_000
Loop = Callable[[Any, Any], Any]


def carried(x: Any, w: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=STEPS)[0]


def stacked(x: Any, w: Any) -> Any:
    rows = jnp.arange(STEPS, dtype=jnp.float32).reshape(-1, 8) / STEPS

    def step(c: Any, row: Any) -> Any:
        return jnp.tanh(c @ w) + row[:, None], (c.sum(0), row[::-1])

    return lax.scan(step, x, rows, reverse=True)


def counted(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, STEPS, lambda i, c: jnp.sin(c @ w) + i / STEPS, x)


def until(x: Any, w: Any) -> Any:
    return lax.while_loop(lambda s: (s[0] ** 2).sum() > 0.5, lambda s: (s[0] * 0.97, s[1] + 1), (x, 0))


def to_a_number_of_data(x: Any, w: Any) -> Any:
    end = jnp.int32(jnp.abs(x).sum())
    return lax.while_loop(lambda s: s[0] < end, lambda s: (s[0] + 1, jnp.sin(s[1] @ w) + s[0]), (0, x))


def collective(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, STEPS, lambda i, c: c / jnp.sqrt(1 + (c**2).sum(0, keepdims=True)) + x * 0.1, x)


def branches(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, STEPS, lambda i, c: lax.cond(i % 2 == 0, jnp.sin, lambda y: jnp.cos(y) @ w, c), x)


def in_a_loop(x: Any, w: Any) -> Any:
    def outer(c: Any, _: Any) -> Any:
        c = lax.fori_loop(0, 5000, lambda i, d: jnp.sin(d) + i / 9000, c)
        return lax.while_loop(lambda s: (s**2).sum() > 1.0, lambda s: s * 0.9, c), c[0]

    return lax.scan(outer, x, None, length=3)


def doublings(x: Any, w: Any) -> Any:
    """Trajectories of twice the steps each, of which one ends early, as in a sampler without U-turns."""

    def double(state: Any) -> Any:
        c, size, total = state

        def leap(s: Any) -> Any:
            return s[0] - 0.1 * jnp.sin(s[0] @ w), s[1] - 1

        c, left = lax.while_loop(lambda s: (s[1] > 0) & ((s[0] ** 2).sum() > 0.2), leap, (c, size))
        return c, size * 2, total + size - left

    return lax.while_loop(lambda s: (s[0] ** 2).sum() > 0.2, double, (x, jnp.int32(x[0, 0]) + 1, 0))


def random_walk(x: Any, w: Any) -> Any:
    def step(state: Any, _: Any) -> Any:
        key, c = state
        key, part = jax.random.split(key)
        return (key, c * 0.9 + jax.random.normal(part, c.shape) / 10), c[0, 0]

    (_, last), path = lax.scan(step, (jax.random.key(0), x), None, length=STEPS // 10)
    return last, path


def swapped(x: Any, w: Any) -> Any:
    """States that change places, and are read after the loop."""
    x, y = jnp.sin(x), jnp.cos(x)
    a, b, c = lax.fori_loop(0, STEPS + 1, lambda i, s: (s[1], s[0], jnp.sin(s[2])), (x, y, x + y))
    return jnp.tanh(jnp.exp(b) @ w + c) + a * x


def swapped_within(x: Any, w: Any) -> Any:
    """States of a loop within that change places an unknown number of times, one of them a state of the loop around."""

    def step(_: Any, state: Any) -> Any:
        a, b = state
        c, d, _ = lax.while_loop(
            lambda s: (s[2] ** 2).sum() > 0.5, lambda s: (s[1], s[0], s[2] * 0.7), (b, jnp.sin(a), jnp.cos(a))
        )
        return jnp.cos(c), jnp.sin(d)

    a, b = lax.fori_loop(0, STEPS, step, (x, jnp.sin(x)))
    return a @ w + b


LOOPS: Mapping[str, tuple[Loop, int]] = {
    "carried": (carried, 1), "stacked": (stacked, 4), "counted": (counted, 1), "until": (until, 1),
    "to a number of data": (to_a_number_of_data, 1), "collective": (collective, 1), "branches": (branches, 1),
    "in a loop": (in_a_loop, 3), "doublings": (doublings, 2), "random walk": (random_walk, 5),
    "swapped": (swapped, 1), "swapped within": (swapped_within, 2),
}  # fmt: skip
"""By name: a function, and its loops that stay."""
SPLIT = {"rows": (P("y"), P()), "copies": (P(), P())}


@pytest.mark.slow(but_one_in=5)
@pytest.mark.parametrize("split", SPLIT)
@pytest.mark.parametrize("name", LOOPS)
def test_values(name: str, split: str) -> None:
    mesh = jm.make_mesh((2, 4))
    function, loops = LOOPS[name]
    wanted = jax.tree.leaves(jax.jit(function)(X, W))
    traced = jm.jit(lambda x, w: function(x, w), mesh=mesh, in_shardings=SPLIT[split]).trace(X, W)
    for stage in (traced, traced.lower()):
        text = stage.as_text()
        assert text.count('"ttcore.while_loop"') == loops
        assert text.count("\n") < (1500 if name == "random walk" else 350)
        got = jax.tree.leaves(jm.from_mlir(text, mesh).lower().compile()(X, W))
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


RING = [(i, (i + 1) % 4) for i in range(4)]
ROUNDS = 1000


def ring(c: Any) -> Any:
    return lax.ppermute(c, "x", RING)


def stacked_ring(x: Any) -> Any:
    return lax.scan(lambda c, _: (ring(c), c.sum(0)), x, None, length=ROUNDS)[1]


def while_ring(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < ROUNDS, lambda s: (s[0] + 1, ring(s[1]) + s[0]), (0, x))[1]


def gradient_of_ring(x: Any) -> Any:
    return jax.grad(lambda x: lax.fori_loop(0, ROUNDS, lambda i, c: jnp.sin(ring(c)), x).sum())(x)


EXCHANGES: Mapping[str, tuple[Callable[[Any], Any], int]] = {
    "ring": (lambda x: lax.fori_loop(0, ROUNDS, lambda i, c: ring(c), x), 8),
    "ring of sums": (lambda x: lax.fori_loop(0, ROUNDS, lambda i, s: (s[0] + s[1], ring(s[1])), (x * 0, x))[0], 8),
    "stacked": (stacked_ring, 8),
    "while": (while_ring, 8),
    "at a place": (
        lambda x: lax.fori_loop(0, ROUNDS, lambda i, c: jnp.where(lax.axis_index("x") == i % 4, ring(c), c), x),
        8,
    ),
    "all_to_all": (lambda x: lax.fori_loop(0, ROUNDS, lambda i, c: lax.all_to_all(c, "x", 0, 0, tiled=True), x), 24),
    "all_reduce": (lambda x: lax.fori_loop(0, ROUNDS, lambda i, c: c - lax.psum(c, "x") * 0.01, x), 1),
    "gradient": (gradient_of_ring, 16),
}
"""By name: the function of a shard, and how many collectives all of its iterations run, in thousands."""


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.slow(but_one_in=2)
def test_loops_of_exchanges_stay_loops(name: str) -> None:
    """An exchange is as many operations as devices send; the text grows with the body, the totals with iterations."""
    mesh, x = jm.make_mesh((2, 4), ("y", "x")), np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    function, thousands = EXCHANGES[name]
    mapped = jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    traced = jm.jit(mapped, mesh=mesh).trace(x)
    lowered = traced.lower()
    wanted = jax.jit(mapped)(x)
    np.testing.assert_array_equal(lowered.compile()(x), wanted)
    for text in (traced.as_text(), lowered.as_text()):
        assert "ttcore.while_loop" in text
        assert text.count("\n") < 200
        np.testing.assert_allclose(jm.from_mlir(text, mesh).lower().compile()(x), wanted, rtol=1e-5, atol=1e-6)
    assert f"range({ROUNDS})" in lowered.as_text("python") or name in ("stacked", "gradient")
    assert "while (" not in lowered.as_text("cpp")
    totals = [t for t in lowered.explain().totals() if t.kind not in ("distribute", "aggregate")]
    assert sum(t.count for t in totals) == thousands * ROUNDS
    assert all(t.exact for t in totals)


def test_few_exchanges_are_unrolled() -> None:
    """The same exchanges in a loop under a condition are counted alike."""
    mesh, x = jm.make_mesh((2, 4), ("y", "x")), np.zeros((8, 4), np.float32)
    loops: list[Callable[[Any], Any]] = [
        lambda x: lax.fori_loop(0, 20, lambda i, c: ring(c), x),
        lambda x: lax.while_loop(lambda s: s[0] < 20, lambda s: (s[0] + 1, ring(s[1])), (0, x))[1],
    ]
    for function in loops:
        lowered = jm.jit(jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x")), mesh=mesh).lower(x)
        for limit, stays in ((None, False), (100, True), (400, False)):
            assert ("ttcore.while_loop" in lowered.as_text(unroll_limit=limit)) is stays


@pytest.mark.parametrize(("start", "step", "limit"), [(0, 1, 5000), (3, 7, 30_001), (-5, 2, 6000), (0, 3, 6001)])
def test_a_loop_that_counts_to_a_known_number_has_so_many_iterations(start: int, step: int, limit: int) -> None:
    def count(x: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < s[2], lambda s: (s[0] + step, s[1] + s[0], s[2]), (start, x, limit))[:2]

    mesh, x = jm.make_mesh((2, 4), ("y", "x")), np.zeros(8, np.int32)
    mapped = jax.shard_map(count, mesh=mesh, in_specs=P("x"), out_specs=(P(), P("x")))
    lowered = jm.jit(mapped, mesh=mesh).lower(x)
    assert f"range({len(range(start, limit, step))})" in lowered.as_text("python")
    got = jm.from_mlir(lowered.as_text(), mesh).lower().compile()(x)
    for a, b in zip(got, mapped(x), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "condition",
    [
        lambda s: s[0] <= 5000,
        lambda s: (s[0] < 5000) & (s[1].sum() < 99),
        lambda s: s[0] < s[2],
        lambda s: s[2] < 5000,
    ],
    ids=["at most a limit", "data, too", "a limit that moves", "a counter that doubles"],
)
def test_a_loop_that_does_not_count_to_a_known_number_keeps_its_condition(condition: Any) -> None:
    def count(x: Any) -> Any:
        return lax.while_loop(condition, lambda s: (s[0] + 1, s[1] + 1, s[2] * 2 - s[2] // 2), (0, x, 9))[1]

    mesh, x = jm.make_mesh((2, 4), ("y", "x")), np.zeros(8, np.int32)
    mapped = jax.shard_map(count, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    text = jm.jit(mapped, mesh=mesh).lower(x).as_text("python", unroll_limit=4)
    assert "in range(" not in text


def test_a_distribute_that_stays_the_same_stands_before_the_loop() -> None:
    mesh = jm.make_mesh((2, 4))

    def program(x: Any, w: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            return jnp.tanh(c) + jm.full_to_shard(w, P("y"))

        return jm.shard_to_full(lax.fori_loop(0, STEPS, step, jm.full_to_shard(x, P("y"))), P("y"))

    text = jm.jit(program, mesh=mesh).lower(X, X).as_text()
    before, _, body = text.partition("func.func private")
    assert (before.count("ttnn.distribute_tensor"), body.count("ttnn.distribute_tensor")) == (2, 0)
    wanted = lax.fori_loop(0, STEPS, lambda i, c: jnp.tanh(c) + X, X)
    np.testing.assert_allclose(jm.from_mlir(text, mesh).lower().compile()(X, X), wanted, rtol=1e-5)


def test_a_loop_that_splits_what_it_computes_is_unrolled() -> None:
    mesh = jm.make_mesh((2, 4))

    def program(x: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            return jm.shard_to_full(jnp.sin(jm.full_to_shard(c, P("y"))), P("y"))

        return lax.fori_loop(0, 2000, step, x)

    lowered = jm.jit(program, mesh=mesh).lower(X)
    assert lowered.as_text().count("ttnn.sin") == 2000
    with pytest.raises(jm.UnsupportedError, match="Raise unroll_limit"):
        lowered.as_text(unroll_limit=100)


def test_a_loop_of_unknown_length_says_why_it_stays_none() -> None:
    def program(x: Any) -> Any:
        def step(c: Any) -> Any:
            return jm.shard_to_full(jnp.sin(jm.full_to_shard(c, P("y"))), P("y"))

        return lax.while_loop(lambda c: c.sum() > 0.5, step, x)

    lowered = jm.jit(program, mesh=jm.make_mesh((2, 4))).lower(X)
    with pytest.raises(jm.UnsupportedError, match=r"only the devices know.*distributes a tensor that it computes"):
        lowered.as_text()


def carries(rng: random.Random) -> Loop:
    """A loop that leaves, swaps, sets and counts numbers and arguments; its limit is one of them."""
    count = rng.randint(2, 4)
    starts = [rng.choice([2, 3, 5, "argument", "computed"]) for _ in range(count)]
    steps = [rng.choice(["stay", "stay", "swap", "set", "count"]) for _ in range(count)]
    limit, chooses = rng.randrange(count), rng.random() < 0.4

    def step(state: Any) -> Any:
        i, now, v = state
        known = {"stay": lambda k: now[k], "swap": lambda k: now[k - 1], "set": lambda k: jnp.int32(k),
                 "count": lambda k: jnp.minimum(now[k] + 1, 6)}  # fmt: skip
        return i + 1, [known[s](k) for k, s in enumerate(steps)], jnp.sin(v) + now[0]

    def program(x: Any, n: Any) -> Any:
        made = [n if s == "argument" else n * 2 if s == "computed" else jnp.int32(s) for s in starts]
        found = lax.while_loop(lambda s: (s[0] < s[1][limit]) & (s[0] < 8), step, (jnp.int32(0), made, x))
        return (*found, lax.cond(x.sum() > 0, lambda: (1, n), lambda: (limit, made[0]))) if chooses else found

    return program


@pytest.mark.parametrize("seed", range(6))
def test_what_a_loop_carries_and_gives_back_is_read_again(seed: int) -> None:
    mesh, program = jm.make_mesh((2, 4), ("y", "x")), carries(random.Random(seed))
    args = np.linspace(-1, 2, 32, dtype=np.float32).reshape(8, 4), np.int32(3)
    lowered = jm.jit(program, mesh=mesh, in_shardings=[None, (P("y"), P())][seed % 2]).lower(*args)
    for limit in (0, None):
        got = jm.from_mlir(lowered.as_text(unroll_limit=limit), mesh).lower().compile()(*args)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(program)(*args)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5 if b.dtype == np.float32 else 0)


def without_arguments(rng: random.Random) -> Callable[[Any], Any]:
    """A loop that reads no argument; what it gives back is added to a split value."""
    steps, kind = rng.randint(3, 70), rng.choice(["fori", "scan", "map", "while"])
    start, draws, turned = rng.random(), rng.random() < 0.5, rng.random() < 0.5

    def step(i: Any, c: Any) -> Any:
        drawn = jax.random.uniform(jax.random.fold_in(jax.random.key(steps), i), (4,)) if draws else jnp.sin(c)
        return c * 0.9 + drawn + i / 9

    def program(x: Any) -> Any:
        c = jnp.full(4, start)
        if kind == "fori":
            return lax.fori_loop(0, steps, step, c) + x
        if kind == "while":
            i, c = lax.while_loop(lambda s: s[0] < steps, lambda s: (s[0] + 2, step(*s)), (0, c))
            return c + x, i
        if kind == "map":
            return lax.map(lambda i: step(i, c), jnp.arange(steps)).sum(0) + x
        c, rows = lax.scan(lambda c, i: (step(i, c), c.sum()), c, jnp.arange(steps), reverse=turned)
        return c + x, rows, rows[-1] * x

    return program


@pytest.mark.parametrize("seed", range(8))
def test_what_a_loop_without_arguments_gives_back_meets_split_values(seed: int) -> None:
    rng, mesh = random.Random(seed), jm.make_mesh((2, 4), ("y", "x"))
    # Of two rows each device has one, whose shape is a view of the state's.
    x = X[: rng.choice([2, 2, 8])]
    program, split = without_arguments(rng), rng.choice([P("y"), P(None, "x"), P("y", "x")])
    lowered = jm.jit(program, mesh=mesh, in_shardings=split).lower(x)
    text = lowered.as_text(unroll_limit=0)
    assert "ttcore.while_loop" in text
    assert text.count("ttnn.aggregate_tensor") == len(jax.tree.leaves(jax.eval_shape(program, x)))
    got = jm.from_mlir(text, mesh).lower().compile()(x)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(program)(x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def rows_by_number(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    """A loop that leaves pieces of stacks and of a table as they are, taken by numbers of the loop and of data."""
    rank, dtype = rng.randint(2, 4), rng.choice([jnp.bfloat16, jnp.bfloat16, jnp.float32, jnp.int32])
    shape = [rng.choice([3, 5, 33]), *(rng.choice([2, 4, 32]) for _ in range(rank - 2)), rng.choice([8, 32, 48])]
    dim, size, last = rng.randrange(rank - 1), rng.randint(1, 2), rng.randint(0, 6)
    draws = np.random.default_rng(rng.randrange(100))
    stack, table = (jnp.asarray(draws.integers(-99, 99, s), dtype) for s in (shape, (40, 64)))

    def program(stack: Any, table: Any, ids: Any) -> Any:
        def take(i: Any, state: Any) -> Any:
            return jnp.where(i == last, lax.dynamic_slice_in_dim(stack, i - 1, size, dim), state[0]), table[ids + i % 3]

        first = lax.dynamic_slice_in_dim(stack, 0, size, dim), table[ids]
        low = lambda s: (s[0] < 9) & (table[s[0]].sum() < 10_000)  # noqa: E731
        found = lax.while_loop(low, lambda s: (s[0] + 1, table[s[0]]), (jnp.int32(0), table[0]))
        return (*lax.fori_loop(0, 7, take, first), *found)

    return program, [stack, table, draws.integers(0, 37, 5).astype(np.int32)]


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_a_loop_takes_by_number_have_the_bits_of_jax(seed: int, tmp_path: Path) -> None:
    mesh, (program, args) = jm.make_mesh((1, 2), ("y", "x")), rows_by_number(random.Random(seed))
    lowered = jm.jit(program, mesh=mesh, in_shardings=[P(), (P(), P(None, "x"), P())][seed % 2]).lower(*args)
    text = lowered.as_text(unroll_limit=0)
    assert text.count('"ttcore.while_loop"') == 2
    for a, b in zip(jm.from_mlir(text, mesh).lower().compile()(*args), jax.jit(program)(*args), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    if seed < 2:
        lowered.export(tmp_path / "loop", *args, languages=("python",), unroll_limit=0)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert run_folder(tmp_path / "loop", ["--check"]) == 0, out.getvalue()


def writes(rng: random.Random) -> tuple[Callable[[Any], Any], list[str]]:
    """A loop that writes rows of two states by numbers, and the types of those that it does not carry therefore."""
    steps, rank, free = rng.choice([5, 64, 67, 90]), rng.randint(1, 3), rng.randint(0, 3)
    shape, dim = [rng.randint(1, 4) for _ in range(rank)], rng.randrange(rank)
    first, down, loop = rng.randint(0, free), rng.random() < 0.3, rng.choice(["fori", "while", "scan"])
    way, fault = rng.choice(["at", "slice"]), rng.choice(["", "", "", "", "reads", "two steps", "past the end"])
    shape[dim] = steps * (2 if fault == "two steps" else 1) + free - (free + 1 if fault == "past the end" else 0)
    row = [n for d, n in enumerate(shape) if d != dim]

    def place(i: Any) -> Any:
        return first + (steps - 1 - i if down else i) * (2 if fault == "two steps" else 1)

    def step(i: Any, state: Any) -> Any:
        c, other, x = state
        y = jnp.full(row, i * 3 + 1, jnp.int32) + (c.sum() if fault == "reads" else 0) + x[0]
        if way == "at":
            c = c.at[(*[slice(None)] * dim, place(i))].set(y)
        else:
            c = lax.dynamic_update_slice(c, jnp.expand_dims(y, dim), [place(i) if d == dim else 0 for d in range(rank)])
        return c, other.at[i].set(x[0] * 2), x + jnp.arange(4)

    def program(x: Any) -> Any:
        states = jnp.full(shape, -7, jnp.int32), jnp.zeros(200, jnp.int32), x
        if loop == "fori":
            return lax.fori_loop(0, steps, step, states)
        if loop == "scan":
            return lax.scan(lambda s, i: (step(i, s), s[2]), states, jnp.arange(steps), reverse=down)
        return lax.while_loop(lambda s: s[0] < steps + 2, lambda s: (s[0] + 1, step(s[0] - 2, s[1])), (2, states))

    same = fault or shape[dim] == steps
    return program, ["tensor<200xi32>", *([] if same else [f"tensor<{'x'.join(map(str, shape))}xi32>"])]


@pytest.mark.slow(but_one_in=4)
@pytest.mark.parametrize("seed", range(40))
def test_rows_that_iterations_write_have_the_bits_of_jax(seed: int) -> None:
    mesh, (program, gone) = jm.make_mesh((1, 2), ("y", "x")), writes(random.Random(seed))
    x = np.arange(4, dtype=np.int32)
    lowered = jm.jit(program, mesh=mesh, in_shardings=[P(), P("x")][seed % 2]).lower(x)
    text = lowered.as_text(unroll_limit=0)
    loops = [line for line in text.splitlines() if "ttcore.while_loop" in line]
    assert loops
    assert not any(kind in line for kind in gone for line in loops)
    got, wanted = map(jax.tree.leaves, (jm.from_mlir(text, mesh).lower().compile()(x), jax.jit(program)(x)))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_at_numbers_that_grow_faster_than_iterations_are_no_stack() -> None:
    def step(i: Any, state: Any) -> Any:
        return state[0].at[state[1]].set(state[2][0] + i), state[1] + i, state[2] * 2

    mesh, x = jm.make_mesh((1, 2), ("y", "x")), np.arange(1, 5, dtype=np.int32)
    program = lambda x: lax.fori_loop(0, 9, step, (jnp.zeros(64, jnp.int32), 0, x))[0]  # noqa: E731
    text = jm.jit(program, mesh=mesh).lower(x).as_text(unroll_limit=0)
    np.testing.assert_array_equal(jm.from_mlir(text, mesh).lower().compile()(x), program(x))


@pytest.mark.slow(but_one_in=5)
@pytest.mark.parametrize("name", [name for name in LOOPS if name != "in a loop"])
def test_python_has_the_same_loops(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "STEPS", 48)
    mesh = jm.make_mesh((1, 2))
    function, loops = LOOPS[name]
    lowered = jm.jit(lambda x, w: function(x, w), mesh=mesh, in_shardings=SPLIT["rows"]).lower(X, W)
    text = lowered.as_text("python", unroll_limit=30)
    # Stacks of so few rows are filled by one loop.
    assert len(re.findall("^  (?:for|while) ", text, re.MULTILINE)) >= min(loops, 1)
    lowered.export(tmp_path / "loop", X, W, languages=("python",), unroll_limit=30)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run_folder(tmp_path / "loop", ["--check"]) == 0, out.getvalue()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(
    "name", ["carried", "stacked", "counted", "until", "to a number of data", "collective", "branches"]
)
def test_cpp_has_the_same_loops(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "STEPS", 48)
    mesh = jm.make_mesh((1, 2))
    lowered = jm.jit(lambda x, w: LOOPS[name][0](x, w), mesh=mesh, in_shardings=SPLIT["rows"]).lower(X, W)
    folder = tmp_path / "loop"
    lowered.export(folder, X, W, languages=("cpp",), unroll_limit=30)
    heads = "  for (int32_t i = 0; i < ", "  while (ttnn::is_true("
    assert sum(map((folder / "main.cpp").read_text().count, heads)) == 1
    command = ["g++", "-std=c++20", f"-I{include_dir()}", "main.cpp", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    done = subprocess.run(["./main", "--check"], cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
