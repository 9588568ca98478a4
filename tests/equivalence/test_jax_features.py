"""Corners where programs meet the rest of JAX: custom rules, contexts, methods, trees, constants."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from tests.generators.oracles import same_bits

X = jnp.arange(16.0).reshape(4, 4)


def there(x: Any, *entries: Any) -> Any:
    return jm.full_to_shard(x, P(*entries))


def back(x: Any, *entries: Any) -> Any:
    return jm.shard_to_full(x, P(*entries))


def test_full_shape_loops_transform(mesh: Mesh) -> None:
    def loop(v: Any) -> Any:
        return lax.scan(lambda c, _: (c * 0.1, None), v, None, length=2)[0]

    g = jm.jit(lambda v: back(there(loop(v), "y"), "y"), mesh=mesh)
    np.testing.assert_array_equal(jax.grad(lambda v: g(v).sum())(X), jax.grad(lambda v: loop(v).sum())(X))
    np.testing.assert_array_equal(jax.jvp(g, (X,), (X,))[1], jax.jvp(loop, (X,), (X,))[1])
    both = jnp.stack([X, X + 1])
    np.testing.assert_array_equal(jax.vmap(g)(both), jax.vmap(loop)(both))


@jax.custom_vjp
def sine(x: Any) -> Any:
    return jnp.sin(x)


sine.defvjp(
    lambda x: (jnp.sin(x), x),
    lambda x, ct: (back(jnp.cos(there(x, "y", "x")) * there(ct, "y", "x"), "y", "x"),),
)


@jax.custom_vjp
def forward(x: Any) -> Any:
    return jnp.sin(x)


forward.defvjp(lambda x: (back(jnp.sin(there(x, "y")), "y"), jnp.cos(x)), lambda r, ct: (r * ct,))


@jax.custom_jvp
def tangent(x: Any) -> Any:
    return jnp.sin(x)


tangent.defjvp(lambda p, t: (jnp.sin(p[0]), back(jnp.cos(there(p[0], "y")) * there(t[0], "y"), "y")))


@pytest.mark.parametrize("rule", [sine, forward, tangent], ids=["backward", "forward", "jvp"])
@pytest.mark.parametrize("where", ["plain", "scan"])
def test_custom_rules_that_move_tensors_although_their_primal_does_not(rule: Any, where: str, mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        if where == "plain":
            return rule(x).sum()
        return lax.scan(lambda c, _: (rule(c), None), x, None, length=2)[0].sum()

    def want(x: Any) -> Any:
        return jnp.sin(x).sum() if where == "plain" else jnp.sin(jnp.sin(x)).sum()

    if rule is sine:
        # JAX calls a backward rule after the call that it belongs to has ended.
        with pytest.raises(jm.UnloweredError, match=r"backward rule .* jaxmesh.jit\(jax.grad\(f\), mesh=mesh\)"):
            jax.grad(jm.jit(f, mesh=mesh))(X)
    else:
        # The second one finds what JAX kept of the first.
        for _ in range(2):
            np.testing.assert_allclose(jax.grad(jm.jit(f, mesh=mesh))(X), jax.grad(want)(X), rtol=1e-6)
        with jax.set_mesh(mesh):
            for _ in range(2):
                np.testing.assert_allclose(jax.grad(jm.jit(f))(X), jax.grad(want)(X), rtol=1e-6)
    inside = jm.jit(jax.grad(f), mesh=mesh)(X)
    np.testing.assert_allclose(inside, jax.grad(want)(X), rtol=1e-6)


@pytest.mark.parametrize("rule", [forward, tangent], ids=["forward", "jvp"])
def test_rules_that_move_tensors_beside_rules_of_jax(rule: Any, mesh: Mesh) -> None:
    for around in (jax.nn.relu, jax.jit(jnp.tanh), jax.nn.silu):
        for f, want in (
            (lambda x, g=around: g(rule(x)).sum(), lambda x, g=around: g(jnp.sin(x)).sum()),
            (lambda x, g=around: rule(g(x)).sum(), lambda x, g=around: jnp.sin(g(x)).sum()),
        ):
            # The plain program first: JAX keeps what it derives of `around`.
            jax.grad(jm.jit(lambda x, g=around: g(x).sum(), mesh=mesh))(X)
            for _ in range(2):
                np.testing.assert_allclose(jax.grad(jm.jit(f, mesh=mesh))(X), jax.grad(want)(X), rtol=1e-5)


def test_transfers_where_devices_go_different_ways_are_refused(mesh: Mesh) -> None:
    def branch(x: Any) -> Any:
        s = there(x, "x")
        again = lambda v: lax.pcast(back(v, "x"), ("x",), to="varying")[:1]  # noqa: E731
        return back(lax.cond(lax.axis_index("x") == 0, again, lambda v: v, s), "x")

    with pytest.raises(jm.UnsupportedError, match=r"cond .*test_jax_features.*'x'.*every device must"):
        jm.jit(branch, mesh=mesh).lower(X)


def test_the_same_axes_in_another_order_are_another_mesh(mesh: Mesh) -> None:
    other = jm.make_mesh((4, 2), ("x", "y"))
    mapper = ttnn.create_mesh_mapper(other, jm.MeshMapperConfig([jm.PlacementShard(0), jm.PlacementReplicate()]))
    with pytest.raises(jm.MeshMismatchError):
        jm.jit(lambda a: ttnn.distribute_tensor(a, mapper), mesh=mesh)(jnp.arange(8.0))
    inner = jm.jit(lambda a: a, mesh=other)
    with pytest.raises(jm.MeshMismatchError):
        jm.jit(lambda a: inner(a), mesh=mesh)(X)


def test_a_program_without_devices_runs_on_the_mesh_of_the_context(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        return back(lax.fori_loop(0, 3, lambda i, c: c * 2 + i, there(x, "y")), "y")

    g = jm.jit(f, mesh=AbstractMesh((2, 4), ("y", "x")))
    lowered = g.lower(X)
    with jax.set_mesh(mesh):
        want = jax.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2 + i, x))(X)
        assert same_bits(g(X), want)
        assert same_bits(lowered.compile()(X), want)


def test_shards_are_read_inside_a_context_mesh(mesh: Mesh) -> None:
    t = jm.jit(lambda x: there(x, "y", "x"), mesh=mesh)(X)
    with jax.set_mesh(mesh):
        assert np.asarray(ttnn.get_device_tensors(t)[0]).tolist() == [[0.0], [4.0]]


def test_random_keys_are_split_and_joined(mesh: Mesh) -> None:
    keys = jax.random.split(jax.random.key(0), 8)
    f = jm.jit(lambda k: (there(k, "x"), back(there(k, "x"), "x")), mesh=mesh)
    shard, full = f(keys)
    assert same_bits(jax.random.key_data(full), jax.random.key_data(keys))
    assert same_bits(jax.random.key_data(ttnn.get_device_tensors(shard)[1]), jax.random.key_data(keys)[2:4])


def test_a_mesh_tensor_in_a_loop_has_one_type(mesh: Mesh) -> None:
    config = jm.MeshMapperConfig([jm.PlacementShard(0), jm.PlacementShard(1)])
    t = ttnn.distribute_tensor(X, ttnn.create_mesh_mapper(mesh, config))
    traces = []

    @jm.jit(mesh=mesh)
    def double(q: Any) -> Any:
        traces.append(q)
        return q * 2

    u = double(double(t))
    assert len(traces) == 1
    composer = ttnn.create_mesh_composer(mesh, jm.MeshComposerConfig([0, 1]))
    assert same_bits(ttnn.aggregate_tensor(u, composer), 4 * X)
    added = jax.tree.map(lambda a, b: a + b, t, u)
    assert same_bits(ttnn.aggregate_tensor(added, composer), 5 * X)
    carried, _ = jax.lax.scan(lambda c, _: (double(c), None), t, None, length=3)
    assert same_bits(ttnn.aggregate_tensor(carried, composer), 8 * X)


def test_negative_vmap_axes_of_a_mesh_tensor_are_refused(mesh: Mesh) -> None:
    out = jax.vmap(jm.jit(lambda x: there(x, "x"), mesh=mesh), out_axes=-1)(jnp.zeros((3, 8)))
    with pytest.raises(jm.UnsupportedError, match="negative"):
        _ = out.shape


def test_literals_are_aggregated(mesh: Mesh) -> None:
    assert jm.jit(lambda: back(1.5), mesh=mesh)() == 1.5


def test_a_constraint_on_a_full_array_says_nothing(mesh: Mesh) -> None:
    f = jm.jit(lambda x: back(there(lax.with_sharding_constraint(x, P()), "y"), "y"), mesh=mesh)
    assert same_bits(f(X), X)


class Scaled:
    k = 3.0

    @functools.partial(jm.jit, mesh=AbstractMesh((2, 4), ("y", "x")), static_argnums=0)
    def scale(self, x: Any) -> Any:
        return back(self.k * there(x, "y", "x"), "y", "x")


def test_methods(mesh: Mesh) -> None:
    with jax.set_mesh(mesh):
        assert same_bits(Scaled().scale(X), 3 * X)


def test_static_arguments_count_from_the_end(mesh: Mesh) -> None:
    def f(*args: Any) -> Any:
        assert args[-1] == "s"
        return back(there(args[0], "y"), "y")

    for position in (-1, np.int64(1)):
        assert same_bits(jm.jit(f, mesh=mesh, static_argnums=position)(X, "s"), X)


def test_the_context_of_full_shape_work_is_kept(mesh: Mesh) -> None:
    def f(key: Any) -> Any:
        with jax.threefry_partitionable(False):
            return jax.random.normal(key, (8,))

    key = jax.random.key(1)
    assert same_bits(jm.jit(lambda k: back(there(f(k), "x"), "x"), mesh=mesh)(key), jax.jit(f)(key))


def test_transfers_cancel_across_calls(mesh: Mesh) -> None:
    @jax.jit
    def first(x: Any) -> Any:
        return back(there(x, "y") * 2, "y")

    second = jax.jit(lambda h: back(there(h, "y") + 1, "y"))
    lowered = jm.jit(lambda x: second(first(x)), mesh=mesh).lower(X)
    assert lowered.as_text("jaxpr").count("aggregate_tensor[") == 1
    assert lowered.as_text("jaxpr").count("distribute_tensor[") == 1
    assert same_bits(lowered.compile()(X), X * 2 + 1)


def test_a_linear_solve_of_shards_on_the_reference(mesh: Mesh) -> None:
    def f(b: Any) -> Any:
        solve = lambda _, v: v / 3.0  # noqa: E731
        return back(lax.custom_linear_solve(lambda v: 3.0 * v, there(b, "y"), solve, transpose_solve=solve), "y")

    lowered = jm.jit(f, mesh=mesh).lower(X)
    np.testing.assert_allclose(lowered.reference(X), X / 3, rtol=1e-6)
    np.testing.assert_allclose(lowered.compile()(X), X / 3, rtol=1e-6)


def test_sums_that_overflow_do_so_in_silence(mesh: Mesh) -> None:
    """As on devices: gradients that overflow under loss scaling are no warning of the reference runs."""

    def sums(x: Any) -> Any:
        x = there(x, "y", "x")
        part = lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True)
        return back(lax.psum(x, ("y", "x"))), back(part, "y", "x")

    x = np.full((2, 16), 3e38, np.float32)
    x[1] = np.repeat([np.inf, -np.inf], 8)
    traced = jm.jit(sums, mesh=mesh).trace(x)
    for stage in (traced, traced.lower()):
        total, part = stage.reference(x)
        assert np.isnan(total).all()
        np.testing.assert_array_equal(part, np.full((2, 4), [[np.inf], [np.nan]], np.float32))


def test_constants_are_distributed_in_programs(mesh: Mesh) -> None:
    mapper = ttnn.shard_tensor_to_mesh_mapper(mesh, 0)
    t = jm.jit(lambda: ttnn.distribute_tensor(np.arange(8.0), mapper), mesh=mesh)()
    assert [float(s[0]) for s in ttnn.get_device_tensors(t)] == list(range(8))


def test_a_mesh_tensor_is_no_array(mesh: Mesh) -> None:
    t = ttnn.distribute_tensor(X, ttnn.replicate_tensor_to_mesh_mapper(mesh))
    with pytest.raises(jm.ResidencyError, match="argument"):
        jm.jit(lambda x: x + t, mesh=mesh)(X)


def test_work_from_no_array_is_done_once(mesh: Mesh) -> None:
    calls = []

    def host() -> np.ndarray:
        calls.append(1)
        return np.ones(4, np.float32)

    def f(x: Any) -> Any:
        row = jax.pure_callback(host, jax.ShapeDtypeStruct((4,), jnp.float32))
        return back(there(x, "y") * row, "y")

    lowered = jm.jit(f, mesh=mesh).lower(X)
    assert lowered.as_text("jaxpr").count("distribute_tensor[") == 2
    assert same_bits(lowered.compile()(X), X)
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int2])
@pytest.mark.usefixtures("unequal_copies")
def test_coordinate_0_is_read_bit_for_bit(dtype: Any, mesh: Mesh) -> None:
    x = np.array([[-0.0, 1], [0, -0.0]], np.float32).astype(dtype) if dtype is jnp.float32 else np.ones((2, 2), dtype)
    f = jm.jit(lambda v: jm.shard_to_full(there(v, "y"), P(), assume_replicated=True), mesh=mesh)
    assert same_bits(f(x), x[:1])
    assert "all-reduce" not in f.lower(x).compile().as_text()


@pytest.mark.parametrize(
    "make",
    [
        lambda: jm.make_mesh(8),
        lambda: jm.make_mesh((2, 4), axis_types=(jax.sharding.AxisType.Auto,)),
        lambda: jm.jit(lambda x: there("s", "y"), mesh=jm.make_mesh((2, 4)))(X),
    ],
    ids=["a number", "too few axis types", "text"],
)
def test_wrong_kinds_have_names(make: Any) -> None:
    with pytest.raises(jm.JaxmeshError):
        make()
