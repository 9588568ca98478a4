"""`jm.jit` beside `jax.jit`: values, types and shardings of results on Auto and on Explicit axes, keys, references."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P, auto_axes, explicit_axes, reshard

import jaxmesh as jm
from tests import ROOT
from tests.generators.as_jax_jit import (
    AUTO,
    EXPLICIT,
    MESHES,
    W1,
    W2,
    X,
    anew,
    auto,
    explicit,
    put,
    same,
    same_results,
)

XE, W1E, W2E = put(X, explicit("y", "x")), put(W1, explicit("x")), put(W2, explicit())


@pytest.fixture(params=["set_mesh", "arguments"])
def around(request: pytest.FixtureRequest) -> Any:
    """A context in which a program has a mesh: that of `jax.set_mesh`, or no context, where the arguments have it."""
    return jax.set_mesh if request.param == "set_mesh" else contextlib.nullcontext


# --- Explicit axes ---------------------------------------------------------------------------------------------------


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return jnp.tanh(x @ w1) @ w2


def conflict(a: Any, b: Any) -> Any:
    return a + b


def test_a_split_contraction_without_an_out_sharding_is_a_type_error(around: Any) -> None:
    with around(EXPLICIT):
        error = same(mlp, XE, W1E, W2E).error
    assert type(error).__name__ == "ShardingTypeError"
    assert "Contracting dimensions are sharded" in str(error)


def test_conflicting_specs_are_a_type_error(around: Any) -> None:
    with around(EXPLICIT):
        error = same(conflict, XE, put(X, explicit("x", "y"))).error
    assert type(error).__name__ == "ShardingTypeError"


def test_a_text_is_not_made_of_what_is_a_type_error() -> None:
    for jit in (jax.jit, jm.jit):
        with pytest.raises(Exception, match="Contracting dimensions") as raised:
            jit(anew(mlp)).trace(XE, W1E, W2E)
        assert type(raised.value).__name__ == "ShardingTypeError"


def einsum(x: Any, w: Any) -> Any:
    return jnp.einsum("ij,jk->ik", x, w, out_sharding=P("y", None))


def dot(x: Any, w: Any) -> Any:
    return jnp.dot(x, w, out_sharding=NamedSharding(EXPLICIT, P(None, "x")))


def placed(x: Any, w: Any) -> Any:
    return reshard(x, P(None, "x")) + 1, reshard(w, P())


def automatic(x: Any, w: Any) -> Any:
    return auto_axes(lambda v, w: jnp.cumsum(jnp.tanh(v) @ w, 1), out_sharding=P("y"))(x, w)


def explicit_within(x: Any, w: Any) -> Any:
    def body(x: Any, w: Any) -> Any:
        assert "@y" in str(jax.typeof(x))
        return jnp.einsum("ij,jk->ik", x, w, out_sharding=P("y"))

    return explicit_axes(body, in_sharding=(P("y", "x"), P("x")))(x, w)


def kept_split(x: Any, w: Any) -> Any:
    return {"sum": x.sum(0), "mean": x.mean(), "rows": x.T, "steps": lax.cumsum(w, 1), "one": x[:, :1], "w": w}


def broadcast(x: Any, w: Any) -> Any:
    return jnp.zeros((4, 8), out_sharding=P("y")), x + jnp.arange(8.0, out_sharding=P("x")), w * 1.0


def loops(x: Any, w: Any) -> Any:
    carry, rows = lax.scan(lambda c, row: (c + row, c), jnp.zeros_like(x[:, 0]), reshard(x, P("y")).T)
    return carry, rows, lax.fori_loop(0, 3, lambda _, v: v * 2, x), lax.cond(True, jnp.sin, jnp.cos, w)


def gradients(x: Any, w: Any) -> Any:
    return jax.value_and_grad(lambda x, w: (einsum(jnp.sin(x), w) ** 2).sum(), argnums=(0, 1))(x, w)


def mapped(x: Any, w: Any) -> Any:
    body = jax.shard_map(lambda x, w: lax.psum(x @ w, "x"), in_specs=(P("y", "x"), P("x")), out_specs=P("y"))
    return body(x, w)


PROGRAMS = [einsum, dot, placed, automatic, kept_split, broadcast, loops, gradients, mapped]


@pytest.mark.parametrize("f", PROGRAMS)
def test_results_on_explicit_axes(f: Callable[..., Any]) -> None:
    with jax.set_mesh(EXPLICIT):
        made = same(f, XE, W1E)
    for leaf in jax.tree.leaves(made.result):
        assert leaf.sharding.mesh is EXPLICIT


def test_explicit_axes_within_auto_axes() -> None:
    with jax.set_mesh(AUTO):
        assert same(explicit_within, put(X, auto("y", "x")), put(W1, auto("x"))).error is None


@pytest.mark.parametrize("spec", [P("y", "x"), P(("y", "x")), P(None, "y"), P()], ids=str)
def test_types_inside_of_the_function(spec: P, around: Any) -> None:
    seen: list[str] = []

    def f(x: Any) -> Any:
        y = x * 2
        seen.append(f"{jax.typeof(x)} {jax.typeof(y)} {jax.typeof(y.T)} {jax.sharding.get_abstract_mesh()}")
        return y

    x = put(np.ones((8, 8), np.float32), explicit(*spec))
    with around(EXPLICIT):
        same(f, x)
        same(f, jax.jit(lambda x: x + 1)(x))
    assert len(seen) == 4 or len(seen) == 2
    assert len(set(seen)) == 1


@pytest.mark.parametrize("out", [{}, {"out_shardings": explicit("y", "x")}, {"out_shardings": explicit(None, "x")}])
def test_host_arguments_go_to_the_users_explicit_mesh(out: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        return x + 1

    made = same(f, X, in_shardings=explicit("y"), **out)
    assert made.result.sharding.mesh is EXPLICIT
    # It takes part in sums with arrays of that mesh.
    assert (made.result + put(X, made.result.sharding)).sharding.mesh is EXPLICIT


def test_host_arguments_under_an_explicit_mesh_that_is_given() -> None:
    y = jm.jit(lambda a: a * 2, mesh=EXPLICIT)(np.arange(8.0))
    with jax.set_mesh(EXPLICIT):
        want = jax.jit(lambda a: a * 2)(np.arange(8.0))
    np.testing.assert_array_equal(y, want)


# --- reduced and unreduced specs -------------------------------------------------------------------------------------


def partial(x: Any, w: Any) -> Any:
    return jnp.einsum("ij,jk->ik", x, w, out_sharding=P("y", None, unreduced={"x"}))


def partial_then_summed(x: Any, w: Any) -> Any:
    return reshard(partial(x, w), P("y"))


def of_reduced(x: Any, w: Any) -> Any:
    return jax.grad(lambda w: (jnp.einsum("ij,jk->ik", reshard(x, P("y")), w, out_sharding=P("y"))).sum())(w)


@pytest.mark.parametrize("f", [partial, partial_then_summed])
def test_unreduced_specs_run_as_in_jax(f: Callable[..., Any]) -> None:
    with jax.set_mesh(EXPLICIT):
        same(f, XE, W1E)


def test_reduced_specs_run_as_in_jax() -> None:
    w = put(W1, NamedSharding(EXPLICIT, P(None, None, reduced={"y"})))
    with jax.set_mesh(EXPLICIT):
        made = same(of_reduced, put(X, explicit("y")), w)
    assert made.error is None
    assert made.result.sharding.spec.unreduced == {"y"}


def test_the_text_of_partial_values_is_a_named_error() -> None:
    with jax.set_mesh(EXPLICIT):
        traced = jm.jit(anew(partial)).trace(XE, W1E)
        with pytest.raises(jm.InexpressibleError, match="unreduced"):
            traced.as_text()
        with pytest.raises(jm.InexpressibleError, match="unreduced"):
            traced.lower().as_text()


def test_a_compiled_program_returns_partial_values_as_in_jax() -> None:
    with jax.set_mesh(EXPLICIT):
        same_results(jm.jit(anew(partial)).lower(XE, W1E).compile()(XE, W1E), jax.jit(partial)(XE, W1E))


# --- Auto axes -------------------------------------------------------------------------------------------------------


def constrained(x: Any, w: Any) -> Any:
    h = lax.with_sharding_constraint(jnp.tanh(x @ w), auto("y", "x"))
    return h, lax.with_sharding_constraint(h.T, auto("x")), h.sum()


ENDS = [
    {"in_shardings": (auto("y", "x"), auto("x")), "out_shardings": (auto("y"), auto(), auto())},
    {"in_shardings": (auto("y"), None), "out_shardings": auto()},
    {"out_shardings": (auto(None, "y"), None, None)},
    {},
]


@pytest.mark.parametrize("options", ENDS, ids=range(len(ENDS)))
def test_results_on_auto_axes(options: dict[str, Any]) -> None:
    same(constrained, X, W1, **options)


@pytest.mark.parametrize("spec", [P("y", "x"), P("x"), P(("x", "y")), P()], ids=str)
def test_results_of_arrays_on_the_mesh(spec: P) -> None:
    x = put(np.arange(64, dtype=np.float32).reshape(8, 8), auto(*spec))

    def f(x: Any, scale: Any) -> Any:
        return {"twice": x * scale, "flat": x.reshape(-1), "sum": (x.sum(1), x.max()), "same": x}

    same(f, x, 2.0)
    same(f, x, np.float32(3))


def weak(x: Any, n: Any) -> Any:
    return n + 1, x * n, x.astype(jnp.bfloat16), x > 0, jnp.int8(3), n


@pytest.mark.parametrize(
    "mesh",
    [pytest.param(None, id="one device"), *(pytest.param(m, id=str(m.axis_types[0])) for m in MESHES)],
)
def test_element_types_weak_types_and_commitment(mesh: Any) -> None:
    x = X if mesh is None else put(X, NamedSharding(mesh, P("y")))
    same(weak, x, 3)
    same(weak, x, jnp.float16(2))
    same(weak, x, True)


# --- random keys -----------------------------------------------------------------------------------------------------


def noise(key: Any, x: Any) -> Any:
    first, second = jax.random.split(key)
    return x + jax.random.uniform(first, x.shape), second, jax.random.key_data(jax.random.fold_in(key, 3))


@pytest.mark.slow(but_one_in=4)
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize(("mesh", "on_mesh"), [(AUTO, True), (EXPLICIT, True), (AUTO, False)])
def test_random_keys_of_every_implementation(impl: str, mesh: Any, on_mesh: bool) -> None:
    key = jax.random.key(0, impl=impl)
    key = put(key, NamedSharding(mesh, P())) if on_mesh else key
    same(noise, key, put(X, NamedSharding(mesh, P("y"))))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
def test_an_export_of_a_key_on_the_mesh_runs(mesh: Any, tmp_path: Path) -> None:
    def f(key: Any, x: Any) -> Any:
        first, second = jax.random.split(key)
        return x + jax.random.uniform(first, x.shape), second

    args = put(jax.random.key(0), NamedSharding(mesh, P())), put(X, NamedSharding(mesh, P("y")))
    jm.codegen_py(f, *args, export_path=tmp_path / "model")
    command = [sys.executable, "-m", "jaxmesh", "run", str(tmp_path / "model"), "--check"]
    made = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert made.returncode == 0, made.stderr
    assert made.stdout.count(": ok") == 2


# --- references ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[jax.jit, jm.jit], ids=["jax", "jaxmesh"])
def jit(request: pytest.FixtureRequest) -> Any:
    return request.param


def add_to(ref: Any, x: Any) -> Any:
    ref[...] += x
    return ref[...] * 2


def test_references_as_arguments(jit: Any) -> None:
    ref = jax.new_ref(jnp.zeros(3))
    program = jit(anew(add_to))
    assert [float(program(ref, x)[0]) for x in (1.0, 2.0)] == [2, 6]
    np.testing.assert_array_equal(ref[...], [3, 3, 3])


def test_references_that_are_closed_over(jit: Any) -> None:
    ref = jax.new_ref(jnp.zeros(3))

    @jit
    def program(x: Any) -> Any:
        ref[...] += x
        return ref[...]

    assert [float(program(jnp.ones(3))[1]) for _ in range(3)] == [1, 2, 3]
    np.testing.assert_array_equal(ref[...], [3, 3, 3])


def test_references_inside_of_a_program() -> None:
    def f(x: Any) -> Any:
        ref = jax.new_ref(x)
        ref[0] = 5.0
        return ref[...]

    same(f, jnp.ones(3))
    same(f, put(X, auto(None, "x")))


def test_references_on_the_mesh() -> None:
    made = []
    for jit in (jax.jit, jm.jit):
        ref = jax.new_ref(put(jnp.zeros((4, 8)), auto("y")))
        made.append((jit(anew(add_to))(ref, X), ref[...]))
    same_results(made[1], made[0])


def test_the_text_of_a_reference_is_a_named_error() -> None:
    ref = jax.new_ref(jnp.zeros(3))
    traced = jm.jit(add_to).trace(ref, 1.0)
    with pytest.raises(jm.InexpressibleError, match=r"Ref\{float32\[3\]\}"):
        traced.as_text()


@pytest.mark.parametrize("twice", [False, True])
def test_references_that_jax_refuses(twice: bool) -> None:
    ref = jax.new_ref(jnp.zeros(3))

    def f(a: Any, b: Any) -> Any:
        return a if not twice else (a[...] + b[...])

    same(f, ref, ref if twice else 1.0)
