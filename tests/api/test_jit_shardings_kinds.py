"""Kinds of arguments and results of plain programs with shardings: random keys, integers, derivatives of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from tests.generators.plain_programs import MESH, SQUARE, X, on

Array = Any
KEY, KEYS = jax.random.key(3), jax.random.split(jax.random.key(5), 8)


def words(tree: Any) -> list[np.ndarray[Any, Any]]:
    """The leaves of a tree as arrays; of random keys the words."""

    def of(x: Any) -> Any:
        return np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)

    return [of(x) for x in jax.tree.leaves(tree)]


def alike(got: Any, want: Any) -> None:
    for x, y in zip(words(got), words(want), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


# --- random keys -----------------------------------------------------------------------------------------------------


def dropped(key: Array, x: Array, w: Array) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x @ w, 0), jax.random.split(key)[0]


def per_row(keys: Array, x: Array) -> Any:
    return x + jax.vmap(lambda key: jax.random.normal(key, x.shape[1:]))(keys), keys[::-1]


def split_on_the_mesh(key: Array, x: Array) -> Any:
    return jax.random.split(key, 8), x * 2


PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...], Any, Any]] = [
    (dropped, (KEY, X, SQUARE), (None, P("y"), P(None, "x")), None),
    (per_row, (KEYS, X), (P("y"), P("y")), (P("y"), None)),
    (per_row, (KEYS, X), P("x"), P("y")),
    (split_on_the_mesh, (KEY, X), (P(), P("y")), (P("x"), P())),
    (lambda x: x + jax.random.normal(KEY, x.shape), (X,), P("y"), None),
]


@pytest.mark.quick(5)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p[0].__name__)
def test_random_keys(program: tuple[Callable[..., Any], tuple[Any, ...], Any, Any]) -> None:
    fun, args, ins, outs = program
    sharded = jm.jit(fun, mesh=MESH, in_shardings=ins, out_shardings=outs)
    want = jax.jit(fun)(*args)
    traced = sharded.trace(*args)
    alike(sharded(*args), want)
    alike(traced.lower().compile()(*args), want)
    alike(traced.reference(*args), want)
    assert all(traced.lower().as_text(language) for language in ("ttnn", "python", "cpp"))


def test_random_keys_on_the_mesh_are_presharded() -> None:
    keys, x = jax.device_put(KEYS, on("x")), jax.device_put(X, on("x"))
    program, plain = jm.jit(per_row, mesh=MESH), jax.jit(per_row)
    got, want = program(keys, x), plain(keys, x)
    alike(got, want)
    assert got[0].sharding.is_equivalent_to(want[0].sharding, 2)
    text = program.trace(keys, x).as_text()
    assert "tensor<2x2xui32> {jaxmesh.varying = array<i64: 1>, ttcore.shard_status = #ttcore.shard_status<presh" in text
    # The split of a key alone decides that a program is partitioned.
    alone = jm.jit(lambda keys: jax.vmap(jax.random.uniform)(keys), mesh=MESH)
    assert "presharded" in alone.trace(keys).as_text()
    alike(alone(keys), jax.vmap(jax.random.uniform)(KEYS))


# --- results without derivatives -------------------------------------------------------------------------------------


def with_aux(x: Array, w: Array, key: Array) -> Any:
    logits = x @ w
    return (logits**2).sum(), (jnp.argmax(logits, 0), logits > 0, jax.random.fold_in(key, 1))


@pytest.mark.slow
def test_derivatives_beside_integers_truth_values_and_keys() -> None:
    program = jm.jit(with_aux, mesh=MESH, in_shardings=(P("y", "x"), P("x"), None))
    for f in (jax.grad, lambda f, **options: jax.jit(jax.grad(f, **options))):
        alike(f(program, has_aux=True)(X, SQUARE, KEY), f(with_aux, has_aux=True)(X, SQUARE, KEY))

    def tangents(fun: Callable[..., Any]) -> Any:
        _, moved, aux = jax.jvp(lambda x: fun(x, SQUARE, KEY), (X,), (X,), has_aux=True)
        return moved, aux

    alike(tangents(program), tangents(with_aux))
    alike(jax.vmap(program, (None, None, 0))(X, SQUARE, KEYS)[1][2], jax.vmap(lambda k: jax.random.fold_in(k, 1))(KEYS))
