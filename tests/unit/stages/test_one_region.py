"""A program as one region computes what JAX computes on one device; the parts of collectives are those of NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.repair import SUBSTITUTES
from jaxmesh.stages.one_region import regrouped
from tests.generators.hlo_traffic import moved

MESH = jm.make_mesh((2, 4), ("y", "x"))
SIZES = dict(MESH.shape)
X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
BOTH = ("y", "x")
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "reverse": lambda x: x[::-1],
    "sums": lambda x: (x.sum(0), x.max(1), x.prod(0)),
    "loop": lambda x: lax.fori_loop(0, 3, lambda _, c: c + c.sum(0), x),
    "branches": lambda x: lax.cond(x[0, 0] > 0, jnp.sin, lambda v: v[::-1], x),
    "random": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "update": lambda x: lax.dynamic_update_slice_in_dim(x, x[:2] * 2, 5, 0),
    "custom": lambda x: jax.nn.silu(x) @ x.T,
}
REPLACED: dict[str, Callable[[Any], Any]] = {
    "pad": lambda x: lax.pad(x, 1.0, ((-2, 2, 0), (3, -1, 0))),
    "any": lambda x: ((x > 0).any(0), (x > -1).all(1)),
    "reduce": lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b * b, (0,)),
    "argmax": lambda x: (jnp.argmax(x, 0), jnp.argmin(jnp.round(x), 1), jnp.argmax(jnp.where(x > 1.5, jnp.nan, x), 1)),
    "window": lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 3), (1, 2), "SAME"),
    "integers": lambda x: (x * 50).astype(jnp.int8) * (x * 40).astype(jnp.int8) - (x * 50).astype(jnp.int8),
    "unsigned": lambda x: (jnp.abs(x) * 50).astype(jnp.uint8) * jnp.uint8(7) + jnp.uint8(200),
    "gelu": lambda x: jax.nn.gelu(x),
    "remainder": lambda x: (lax.rem(x, x[::-1]), lax.rem((x * 50).astype(jnp.int32), jnp.int32(-7))),
    "in a loop": lambda x: lax.fori_loop(0, 2, lambda _, c: jnp.where((c > 0).any(0), jnp.tanh(c), -c), x),
}


def region_of(fun: Callable[..., Any], substitutes: Any = (), **options: Any) -> Any:
    lowered = jm.jit(fun, mesh=MESH, **options).lower(X)
    region = lowered.partitioned(substitutes)
    assert region.text(lowered.out_tree).count("sdy.manual_computation") == 1
    return region, region.function(lowered.out_tree)


def check(found: Any, wanted: Any) -> None:
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("spec", [P("y", "x"), P(("x", "y"))], ids=str)
@pytest.mark.slow(but_one_in=4)
def test_one_region_computes_what_the_program_does(name: str, spec: P) -> None:
    fun = PROGRAMS[name]
    _, function = region_of(fun, in_shardings=spec)
    check(function(X), fun(X))


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.parametrize("spec", [P(), P("x", "y")], ids=str)
@pytest.mark.slow(but_one_in=4)
def test_substitutes_are_equal(name: str, spec: P) -> None:
    region, function = region_of(REPLACED[name], SUBSTITUTES, in_shardings=spec)
    assert region.replaced
    check(function(X), REPLACED[name](X))


def test_gradients_are_those_of_the_program() -> None:
    def loss(x: Any) -> Any:
        return (jax.nn.gelu(x) @ x.T[:, ::-1]).sum(0)

    _, function = region_of(loss, SUBSTITUTES, in_shardings=P("y", "x"))
    check(jax.grad(lambda x: (function(x) ** 2).sum())(X), jax.grad(lambda x: (loss(x) ** 2).sum())(X))


@pytest.mark.parametrize(
    ("local", "out"),
    [
        (lambda x: lax.psum(x, BOTH), P()),
        (lambda x: lax.pmax(x, BOTH), P()),
        (lambda x: lax.all_gather(x, BOTH, tiled=True), P(BOTH)),
        (lambda x: lax.all_gather(x, BOTH, axis=1, tiled=True), P(BOTH)),
        (lambda x: lax.all_gather(x, BOTH), P(None, BOTH)),
        (lambda x: lax.psum_scatter(x, BOTH, scatter_dimension=1, tiled=True), P(BOTH)),
        (lambda x: lax.all_to_all(x, BOTH, 1, 0, tiled=True), P(BOTH)),
        (lambda x: lax.all_to_all(x.T, BOTH, 0, 1, tiled=True), P(BOTH)),
        (lambda x: lax.all_to_all(jnp.tile(x, (8, 1)), BOTH, 0, 0, tiled=True), P(BOTH)),
    ],
)
def test_collectives_over_two_axes_are_one_for_each(local: Callable[[Any], Any], out: P) -> None:
    mapped = jax.shard_map(local, mesh=MESH, in_specs=P(BOTH), out_specs=out)
    lowered = jm.jit(mapped, mesh=MESH).lower(X)
    region = lowered.partitioned()
    text = region.text(lowered.out_tree)
    assert "dense<[[0, 1, 2, 3, 4, 5, 6, 7]]>" not in text
    check(region.function(lowered.out_tree)(X), jax.jit(mapped)(X))


@pytest.mark.parametrize("rows", [(("x", "y"), ()), (("y",), ("x",)), ((), ("y", "x"))])
@pytest.mark.parametrize("new", [(4, 2, 16), (8, 4, 4), (128,), (2, 4, 2, 8), (8, 16, 1), (1, 8, 16)])
def test_a_reshape_that_moves_nothing_keeps_every_part(rows: Any, new: tuple[int, ...]) -> None:
    made = regrouped(rows, X.shape, new, SIZES)
    if made is None:
        return
    for coordinate in itertools.product(*map(range, SIZES.values())):
        old_part, new_part = (part(x, r, coordinate) for x, r in ((X, rows), (X.reshape(new), made)))
        np.testing.assert_array_equal(old_part.reshape(-1), new_part.reshape(-1))


def test_reshapes_of_whole_axes_move_nothing() -> None:
    assert regrouped((("x", "y"), ()), (8, 16), (4, 2, 16), SIZES) == (("x",), ("y",), ())
    assert regrouped((("y",), ("x",)), (8, 16), (128,), SIZES) is None


def part(x: Any, rows: Any, coordinate: tuple[int, ...]) -> Any:
    at, index = dict(zip(SIZES, coordinate, strict=True)), list[slice]()
    for size, axes in zip(x.shape, rows, strict=True):
        position = 0
        for axis in axes:
            size, position = size // SIZES[axis], position * SIZES[axis] + at[axis]
        index.append(slice(position * size, (position + 1) * size))
    return x[tuple(index)]


@pytest.mark.parametrize("shape", [(2, 4), (4, 2), (2, 2, 2)])
def test_a_result_in_another_order_of_axes_sends_each_part_once(shape: tuple[int, ...]) -> None:
    names = "yxz"[: len(shape)]
    mesh = jm.make_mesh(shape, tuple(names))
    backward = P(None, tuple(reversed(names)))
    lowered = jm.jit(lambda x: x + 1, mesh=mesh, in_shardings=backward, out_shardings=backward).lower(X)
    region = lowered.partitioned()
    assert region.asked == {0: ((), tuple(reversed(names)))}
    assert region.out_rows == (((), tuple(names)),)
    function = region.function(lowered.out_tree)
    np.testing.assert_array_equal(np.asarray(function(X)), X + 1)
    ((kind, _), (_, sent)) = next(iter(moved(function.lower(X).compile().as_text(), dict(mesh.shape)).items()))
    assert kind == "collective_permute"
    assert sent < X.nbytes
