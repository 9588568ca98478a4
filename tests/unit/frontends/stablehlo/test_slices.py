"""Slices of split dims: each device slices its own shard where that holds all it needs; else little is moved."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.frontends.stablehlo.shapes import lies_in_own_shards
from tests.generators.oracles import same_bits

MESH = jm.make_mesh((2, 4), ("y", "x"))
LINE = jm.make_mesh((8,), ("x",))


def test_which_slices_need_no_other_shard() -> None:
    """Against the places that each part reads."""
    seen = set[bool]()
    for whole, parts, stride in itertools.product((8, 12, 16), (2, 4), (1, 2, 3, 5)):
        for start, stop in itertools.combinations(range(whole + 1), 2):
            places = np.arange(whole)[start:stop:stride]
            made = len(places)
            want = made % parts == 0 and all(
                np.all(part // (whole // parts) == i) for i, part in enumerate(np.split(places, parts))
            )
            assert lies_in_own_shards(whole, made, start, stride, parts) is want, (whole, start, stop, stride, parts)
            seen.add(want)
    assert seen == {False, True}


@pytest.mark.parametrize(("whole", "made"), [(9, 8), (8, 9), (8, 0)])
def test_dims_that_do_not_divide(whole: int, made: int) -> None:
    assert not lies_in_own_shards(whole, made, 0, 1, 2)


LOCAL = {
    "the same place of each shard": (lambda x: x[:, ::2], P("y", "x"), MESH),
    "other places of each shard": (lambda x: x[1:15], P("y", "x"), MESH),
    "both": (lambda x: x[3:13, 1::4], P("y", "x"), MESH),
    "two axes on a dim": (lambda x: x[1::2], P(("y", "x")), MESH),
    "places that move on": (lambda x: x[::5], P("x", "y"), MESH),
    "on eight": (lambda x: x.reshape(64, 4)[::9], P("x"), LINE),
}


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.slow(but_one_in=6)
def test_a_slice_in_own_shards_moves_nothing_and_is_the_slice(name: str) -> None:
    fun, spec, mesh = LOCAL[name]
    x = np.arange(256, dtype=np.float32).reshape(16, 16)
    program = jm.jit(fun, mesh=mesh, in_shardings=spec, out_shardings=spec)
    traced = program.trace(x)
    moved = [d for d in traced.decisions if d.kind not in ("asked", "propagated")]
    assert moved == []
    lowered = traced.lower()
    assert "all_gather" not in lowered.as_text()
    for got in (program(x), traced.reference(x), lowered.reference(x)):
        np.testing.assert_array_equal(got, fun(x))

    def loss(f: Any) -> Any:
        return lambda v: (f(v) ** 2).sum()

    np.testing.assert_array_equal(jax.grad(loss(program))(x), jax.grad(loss(fun))(x))
    inside = jm.jit(jax.grad(loss(fun)), mesh=mesh, in_shardings=spec, out_shardings=spec)
    np.testing.assert_array_equal(inside(x), jax.grad(loss(fun))(x))
    batch = np.stack([x, -x])
    np.testing.assert_array_equal(jax.vmap(program)(batch), jax.vmap(fun)(batch))


def test_a_slice_that_crosses_shards_gathers_that_dim_alone() -> None:
    x = np.arange(256, dtype=np.float32).reshape(16, 16)
    fun = lambda x: x[:8, ::2]  # noqa: E731
    program = jm.jit(fun, mesh=MESH, in_shardings=P("y", "x"), out_shardings=P("y", "x"))
    gathers = [d.text for d in program.trace(x).decisions if d.kind == "all_gather"]
    assert len(gathers) == 1
    assert gathers[0].startswith("over y, dim 0")
    np.testing.assert_array_equal(program(x), fun(x))


# --- slices at computed places ----------------------------------------------------------------------------------------


def changing(x: Any) -> Any:
    """Every row is read once of a value that changes in the loop."""
    n = len(x)
    return lax.fori_loop(0, n, lambda i, c: lax.dynamic_update_index_in_dim(c, c[(5 * i + 3) % n], (3 * i) % n, 0), x)


def windows(x: Any) -> Any:
    return lax.map(lambda i: lax.dynamic_slice_in_dim(x, i - 1, 2, 0), jnp.arange(len(x)))


def few(x: Any) -> Any:
    return lax.fori_loop(0, 2, lambda i, c: jnp.where(c == c, x[(i * 7 + 5) % len(x)], c), jnp.zeros_like(x[0]))


READERS: dict[str, Any] = {
    "scan": lambda x: lax.scan(lambda c, r: (r, jnp.flip(c)), jnp.zeros_like(x[0]), x),
    "scan in reverse": lambda x: lax.scan(lambda c, r: (r, jnp.flip(c)), jnp.zeros_like(x[0]), x, reverse=True),
    "map": lambda x: lax.map(jnp.flip, x),
    "a place in each iteration": lambda x: lax.fori_loop(0, len(x), lambda i, c: x[i], jnp.zeros_like(x[0])),
    "a while loop": lambda x: lax.while_loop(lambda s: s[0] < 7, lambda s: (s[0] + 3, x[s[0]]), (2, x[0])),
    "windows": windows,
    "a value that changes": changing,
    "few": few,
}


def rows_of(n: int, dtype: Any, width: int = 24) -> np.ndarray:
    x = np.random.default_rng(n).integers(-3, 4, (n, width)).astype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        x[::3] *= -0.0
        x[1, 2], x[-1] = np.nan, np.inf
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_, jnp.bfloat16])
@pytest.mark.parametrize("name", READERS)
@pytest.mark.slow(but_one_in=8)
def test_rows_at_computed_places_are_those_of_jax_bit_by_bit(name: str, dtype: Any) -> None:
    fun, x = READERS[name], rows_of(16, dtype)
    for mesh, spec in ((LINE, P("x")), (MESH, P("x")), (MESH, P(("x", "y"))), (MESH, P("y", "x"))):
        program = jm.jit(fun, mesh=mesh, in_shardings=spec)
        for got, want in zip(*map(jax.tree.leaves, (program(x), jax.jit(fun)(x))), strict=True):
            assert same_bits(np.asarray(got), np.asarray(want))


def test_a_slice_longer_than_a_shard() -> None:
    """Each device sends its whole shard of such a dim, and a part of the other."""
    x, mesh = rows_of(8, np.float32, 16), jm.make_mesh((4, 2), ("y", "x"))
    fun = lambda x, i, j: lax.dynamic_slice(x, (i, j), (1, 12))  # noqa: E731
    program = jm.jit(fun, mesh=mesh, in_shardings=(P("x", "y"), P(), P()))
    for start in np.int32([[-2, 35], [3, -15], [5, 2]]):
        lowered = program.lower(x, *start)
        assert "all_gather" in lowered.as_text()
        for got in (program(x, *start), lowered.reference(x, *start)):
            assert same_bits(np.asarray(got), np.asarray(fun(x, *start)))


COUNTERS = [(np.int8, 96, 126, 7), (np.uint8, 0, 250, 9), (np.int8, -100, 100, 1), (np.float32, 0, 5, 1.5)]


@pytest.mark.parametrize(("dtype", "start", "limit", "step"), COUNTERS)
def test_counters_that_start_again_or_step_by_fractions(dtype: Any, start: int, limit: int, step: float) -> None:
    """Against a loop of NumPy; the first passes the last number of its type and starts again."""

    def count(x: Any) -> Any:
        body = lambda s: (s[0] + dtype(step), s[1] + 1)  # noqa: E731
        return lax.while_loop(lambda s: s[0] < dtype(limit), body, (jnp.asarray(start, dtype), x))

    i, trips = np.full(1, start, dtype), 0
    while i[0] < limit:
        i, trips = i + np.full(1, step, dtype), trips + 1
    x = np.arange(16, dtype=np.int32)
    lowered = jm.jit(count, mesh=LINE, in_shardings=P("x")).lower(x)
    for last, y in (lowered.compile()(x), lowered.reference(x)):
        assert (last, *np.asarray(y)) == (i[0], *(x + trips))


def sent(fun: Any, mesh: Any, spec: Any, *args: Any) -> int:
    program = jm.jit(fun, mesh=mesh, in_shardings=(spec, *[P()] * (len(args) - 1)))
    return sum(t.sent for t in program.lower(*args).explain().totals() if t.kind not in ("distribute", "aggregate"))


@pytest.mark.parametrize(("mesh", "parts"), [(LINE, 8), (MESH, 4)], ids=["8", "2x4"])
@pytest.mark.parametrize("name", ["scan", "map", "a place in each iteration"])
def test_a_loop_over_a_split_dim_gathers_it_once(name: str, mesh: Any, parts: int) -> None:
    """Each of eight devices receives the rows that it lacks, whatever the number of iterations."""
    for n in (8, 256):
        x = np.ones((n, 32), np.float32)
        assert sent(READERS[name], mesh, P("x"), x) == 8 * x.nbytes * (parts - 1) // parts


@pytest.mark.parametrize(("mesh", "parts"), [(LINE, 8), (MESH, 4)], ids=["8", "2x4"])
def test_a_value_that_changes_moves_one_row_in_each_iteration(mesh: Any, parts: int) -> None:
    for n in (128, 512):
        assert sent(changing, mesh, P("x"), np.ones((n, 32), np.float32)) == n * 8 * 128 * (parts - 1)


def at_constants(x: Any) -> Any:
    """Reads rows, a row and a block at constants of a value that changes, in a loop in a loop, and stacks some."""

    def step(c: Any, _: Any) -> Any:
        c = lax.fori_loop(0, 2, lambda _, d: jnp.where(d > d[3], d[::-1], d + d[2:3, 1:2]), c)
        return jnp.roll(c, 1, 1), (c[5:13], c[5:13, 2:10], c[1])

    return lax.scan(step, x, None, length=3)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_, jnp.bfloat16])
@pytest.mark.slow(but_one_in=4)
def test_slices_at_constants_of_a_value_that_changes_are_those_of_jax_bit_by_bit(dtype: Any) -> None:
    x = rows_of(32, dtype)
    for mesh, spec in ((LINE, P("x")), (MESH, P(("x", "y"))), (MESH, P("y", "x"))):
        lowered = jm.jit(at_constants, mesh=mesh, in_shardings=spec).lower(x)
        for made in (lowered.compile()(x), lowered.reference(x)):
            for got, want in zip(*map(jax.tree.leaves, (made, jax.jit(at_constants)(x))), strict=True):
                assert same_bits(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize(("mesh", "parts"), [(LINE, 8), (MESH, 4)], ids=["8", "2x4"])
def test_slices_at_constants_of_a_value_that_changes_move_alone(mesh: Any, parts: int) -> None:
    """All slices of a value do, or, as one is nearly the whole value, none: then the value moves once for all."""
    for n in (128, 512):
        x = np.ones((n, 32), np.float32)
        few = lambda x: lax.fori_loop(0, 5, lambda _, c: c * 2 + c[2:6].sum(0) + c[9], x)  # noqa: E731
        turn = lambda x: lax.fori_loop(0, 5, lambda _, c: c * 2 + jnp.concatenate([c[1:], c[:1]]), x)  # noqa: E731
        gathers = [t.sent for t in jm.jit(few, mesh=mesh, in_shardings=P("x")).lower(x).explain().totals()
                   if t.kind == "all_gather"]  # fmt: skip
        assert sum(gathers) == 5 * 8 * (4 + 1) * 128 * (parts - 1)
        assert sent(turn, mesh, P("x"), x) == 5 * 8 * x.nbytes * (parts - 1) // parts


def test_one_row_of_many_moves_alone() -> None:
    x = np.ones((256, 32), np.float32)
    assert sent(lambda x, i: x[i], LINE, P("x"), x, np.int32(-7)) == 8 * 7 * 128
    assert sent(lambda x, i: lax.dynamic_slice(x, (i, 3), (5, 7)), MESH, P("y"), x, np.int32(123)) == 8 * 5 * 128


def test_a_large_value_is_not_gathered_whole() -> None:
    """Its rows are, one by one: the devices hold two shards each."""
    x = jax.ShapeDtypeStruct((2**10, 2**15), np.float32)
    lowered = jm.jit(READERS["map"], mesh=LINE, in_shardings=P("x")).lower(x)
    kinds = {t.kind: t for t in lowered.explain().totals() if t.kind not in ("distribute", "aggregate")}
    assert kinds["all_gather"].count == 2**10
    assert sum(t.sent for t in kinds.values()) <= 8 * 2**27 * 7 // 8 * 9 // 8


@pytest.mark.slow(but_one_in=4)
@pytest.mark.parametrize("name", ["scan", "map", "windows", "a value that changes"])
def test_gradients_of_rows_at_computed_places(name: str) -> None:
    fun, x = READERS[name], np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)

    def loss(f: Any) -> Any:
        return lambda x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(x)))

    want = jax.grad(loss(fun))(x)
    for mesh, spec in ((LINE, P("x")), (MESH, P("y", "x"))):
        program = jm.jit(fun, mesh=mesh, in_shardings=spec)
        np.testing.assert_allclose(jax.grad(loss(program))(x), want, rtol=1e-6)
        np.testing.assert_allclose(jm.jit(jax.grad(loss(fun)), mesh=mesh, in_shardings=spec)(x), want, rtol=1e-6)
