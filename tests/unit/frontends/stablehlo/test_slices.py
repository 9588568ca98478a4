"""Static slices of split dims: each device slices its own shard where that holds all it needs."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.frontends.stablehlo.shapes import lies_in_own_shards

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
