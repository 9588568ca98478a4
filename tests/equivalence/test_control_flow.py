"""Transfers at any depth: inside calls, loops, branches, custom rules and nested maps.

Numbers are small integers in float32, so that every order of summation gives the same bits.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.jaxprs import source_locations
from tests.generators.oracles import coordinates, oracle_shard, same_bits

pytestmark = pytest.mark.slow(but_one_in=40)

X = jnp.asarray(np.random.default_rng(3).integers(-4, 5, (6, 6)), jnp.float32)
ROW = jnp.asarray(np.arange(6) - 2, jnp.float32)
HALF = X[:3] + 1
"""A full array of the shape that half of X, a shard under P('y'), has."""


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    """Few devices, for speed; the two axes differ in size."""
    return jm.make_mesh((2, 3))


@pytest.fixture(scope="module")
def mesh_2x4() -> Mesh:
    return jm.make_mesh((2, 4))


# --- looking into programs -------------------------------------------------------------------------------------------


def inside(value: Any) -> Iterator[Any]:
    """The jaxprs in a parameter, in tuples, lists and dicts too, open or closed, on every JAX version."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from inside(item)
    elif hasattr(value, "eqns"):
        yield value
    elif hasattr(value, "jaxpr"):
        yield from inside(value.jaxpr)


def eqns(jaxpr: Any) -> Iterator[Any]:
    for body in inside(jaxpr):
        for eqn in body.eqns:
            yield eqn
            for value in eqn.params.values():
                yield from eqns(value)


def named(program: Any, name: str) -> list[Any]:
    return [e for e in eqns(program.jaxpr) if e.primitive.name == name]


def transfers(program: Any) -> tuple[int, int]:
    """How many distributes and aggregates a program holds, at every depth."""
    return len(named(program, "distribute_tensor")), len(named(program, "aggregate_tensor"))


def top_level(program: Any) -> Counter[str]:
    return Counter(e.primitive.name for e in program.jaxpr.eqns)


def host(x: Any) -> Any:
    """A result as one array; of a tensor that stays on the devices, equal everywhere, the copy they hold."""
    if isinstance(x, jm.MeshTensor):
        assert x.varying == ()
        x = {tuple(c): s for c, s in x.shards()}
    if isinstance(x, dict):
        first, *rest = x.values()
        assert all(same_bits(first, r) for r in rest)
        return first
    return x


def assert_same(got: Any, want: Any) -> None:
    leaves = [host(x) for x in jax.tree.leaves(got, is_leaf=lambda x: isinstance(x, (jm.MeshTensor, dict)))]
    for a, b in zip(leaves, jax.tree.leaves(want), strict=True):
        assert same_bits(a, b), (a, b)


def check(
    f: Callable[..., Any], plain: Callable[..., Any], mesh: Mesh, *args: Any, counts: Sequence[Any] | None = None
) -> Any:
    """Traced with mesh_shard, lowered without; the compiled and the reference run equal the unsharded function.

    With `counts` the functions take one more argument, and are run with each of these.
    """
    runs = [args] if counts is None else [(*args, n) for n in counts]
    traced = jm.jit(f, mesh=mesh).trace(*runs[0])
    assert named(traced, "mesh_shard")
    lowered = traced.lower()
    assert not named(lowered, "mesh_shard")
    compiled = lowered.compile()
    for run in runs:
        want = plain(*run)
        assert_same(compiled(*run), want)
        assert_same(lowered.reference(*run), want)
    return lowered


# --- the wrappers: each takes a function of one array and gives one that calls it inside something --------------------

Fun = Callable[[Any], Any]


def nested_jit(g: Fun, n: Any) -> Fun:
    return jax.jit(lambda x: jax.jit(jax.jit(g))(x) + 1)


def scanned(g: Fun, n: Any) -> Fun:
    return lambda x: lax.scan(lambda c, _: (g(c), None), x, None, length=2)[0]


def scanned_backwards(g: Fun, n: Any) -> Fun:
    def run(x: Any) -> Any:
        carry, ys = lax.scan(lambda c, v: (c - v, g(v)), x, jnp.stack([x, x + 1, 2 * x]), reverse=True)
        return carry + ys[0] - 2 * ys[1] + 3 * ys[2]

    return run


def looped(g: Fun, n: Any) -> Fun:
    return lambda x: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, g(s[1])), (0, x))[1]


def counted(g: Fun, n: Any) -> Fun:
    return lambda x: lax.fori_loop(0, 2, lambda i, v: g(v) + i.astype(v.dtype), x)


def counted_dynamically(g: Fun, n: Any) -> Fun:
    return lambda x: lax.fori_loop(0, n, lambda _, v: g(v), x)


def branched(g: Fun, n: Any) -> Fun:
    return lambda x: lax.cond(n > 1, g, lambda v: v - 1, x)


def branched_otherwise(g: Fun, n: Any) -> Fun:
    return lambda x: lax.cond(n > 1, lambda v: 2 * v, lambda v: g(g(v)), x)


def switched(g: Fun, n: Any) -> Fun:
    return lambda x: lax.switch(n, [g, lambda v: v - 1, lambda v: g(v) - g(v + 1)], x)


def remat(g: Fun, n: Any) -> Fun:
    return jax.checkpoint(lambda x: g(x) + 1)


def custom_jvp(g: Fun, n: Any) -> Fun:
    f = jax.custom_jvp(g)
    f.defjvp(lambda p, t: (g(*p), jax.jvp(g, p, t)[1]))
    return f


def custom_vjp(g: Fun, n: Any) -> Fun:
    f = jax.custom_vjp(g)
    f.defvjp(lambda x: (g(x), x), lambda x, ct: jax.vjp(g, x)[1](ct))
    return f


def nested_map(g: Fun, n: Any) -> Fun:
    """`jax.shard_map` in the body of a program, which is fully manual; in the unsharded program nothing."""
    if jax.sharding.get_abstract_mesh().empty:
        return g
    return jax.shard_map(g, in_specs=P(), out_specs=P())


Wrapper = Callable[[Fun, Any], Fun]
WRAPPERS: dict[str, Wrapper] = {
    "jit": lambda g, n: jax.jit(g),
    "nested jit": nested_jit,
    "scan": scanned,
    "scan backwards": scanned_backwards,
    "while": looped,
    "fori": counted,
    "fori, dynamic": counted_dynamically,
    "cond": branched,
    "cond, other branch": branched_otherwise,
    "switch": switched,
    "remat": remat,
    "custom_jvp": custom_jvp,
    "custom_vjp": custom_vjp,
    "shard_map": nested_map,
}
DYNAMIC = {"while", "fori, dynamic", "cond", "cond, other branch", "switch"}
each_wrapper = pytest.mark.parametrize("wrapper", list(WRAPPERS))


def counts(wrapper: str) -> list[Any]:
    """The values of the scalar that reach every branch and trip count."""
    return [jnp.int32(n) for n in ((0, 1, 2) if wrapper in DYNAMIC else (1,))]


def work(spec: P) -> Fun:
    """Full to full: split, work on the shards, join."""

    def g(x: Any) -> Any:
        s = jm.full_to_shard(x, spec)
        return jm.shard_to_full(s * 2 - jnp.sign(s), spec)

    return g


def plain_work(x: Any) -> Any:
    return x * 2 - jnp.sign(x)


@pytest.mark.parametrize(
    ("wrapper", "spec"),
    [(w, P("y", "x")) for w in WRAPPERS] + [(w, P(("x", "y"))) for w in ("scan", "while", "switch", "custom_vjp")],
    ids=str,
)
def test_split_and_join_inside(wrapper: str, spec: P, mesh: Mesh) -> None:
    wrap = WRAPPERS[wrapper]
    check(lambda x, k: wrap(work(spec), k)(x), lambda x, k: wrap(plain_work, k)(x), mesh, X, counts=counts(wrapper))


@each_wrapper
@pytest.mark.parametrize("outer", ["scan", "custom_vjp"])
def test_split_and_join_two_deep(wrapper: str, outer: str, mesh: Mesh) -> None:
    def nest(g: Fun) -> Callable[..., Any]:
        return lambda x, k: WRAPPERS[outer](WRAPPERS[wrapper](g, k), k)(x)

    check(nest(work(P("y", "x"))), nest(plain_work), mesh, X, jnp.int32(2))


@each_wrapper
def test_full_shape_work_around_and_beside(wrapper: str, mesh: Mesh) -> None:
    """Full arrays of the outer program are closed over and used both as full arrays and beside shards."""
    wrap = WRAPPERS[wrapper]

    def body(split: Callable[[Any], Any], join: Callable[[Any], Any], row: Any) -> Fun:
        return lambda v: join(split(v + row) * row[0] - row.sum()) - row

    def f(x: Any, row: Any, k: Any) -> Any:
        g = body(lambda a: jm.full_to_shard(a, P("y", "x")), lambda s: jm.shard_to_full(s, P("y", "x")), row)
        return jnp.abs(wrap(g, k)(x * row))

    def plain(x: Any, row: Any, k: Any) -> Any:
        return jnp.abs(wrap(body(lambda a: a, lambda a: a, row), k)(x * row))

    check(f, plain, mesh, X, ROW, counts=counts(wrapper))


@each_wrapper
def test_work_on_shards_inside(wrapper: str, mesh: Mesh) -> None:
    """Split and joined outside; inside only collectives, and a full array used beside the shards."""
    if wrapper == "shard_map":
        pytest.skip("a nested shard_map takes and gives full values here; see the tests of its own")
    wrap = WRAPPERS[wrapper]

    def f(x: Any, row: Any, k: Any) -> Any:
        def g(s: Any) -> Any:
            return s + lax.psum(s.sum(1, keepdims=True), "x") - row[0]

        return jm.shard_to_full(wrap(g, k)(jm.full_to_shard(x, P("y", "x"))), P("y", "x"))

    def plain(x: Any, row: Any, k: Any) -> Any:
        return wrap(lambda v: v + v.sum(1, keepdims=True) - row[0], k)(x)

    check(f, plain, mesh, X, ROW, counts=counts(wrapper))


@each_wrapper
def test_only_a_split_inside(wrapper: str, mesh: Mesh) -> None:
    """A full array is split inside and its shards are used beside shards that come from outside."""
    if wrapper in {"custom_jvp", "custom_vjp", "shard_map"}:
        pytest.skip("no type for a shard at the boundary of these")
    wrap = WRAPPERS[wrapper]

    def f(x: Any, k: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        return jm.shard_to_full(wrap(lambda v: v + jm.full_to_shard(x, P("y")), k)(s), P("y"))

    check(f, lambda x, k: wrap(lambda v: v + x, k)(x), mesh, X, counts=counts(wrapper))


@pytest.mark.parametrize("wrapper", [w for w in WRAPPERS if w not in {"while", "fori, dynamic"}])
@pytest.mark.parametrize("side", ["inside", "outside"])
def test_gradients_through(wrapper: str, side: str, mesh: Mesh) -> None:
    """The rules that calls, loops and custom functions make only when they are differentiated hold mesh_shard too."""
    wrap = WRAPPERS[wrapper]

    def g(x: Any) -> Any:
        s = jm.full_to_shard(x, P("y", "x"))
        total = lax.psum(s.sum(1, keepdims=True), "x")
        return jm.shard_to_full(s * 2 - total, P("y", "x"))

    def plain_g(x: Any) -> Any:
        return x * 2 - x.sum(1, keepdims=True)

    def f(x: Any, k: Any) -> Any:
        return (wrap(g, k)(x) * ROW).sum()

    def want(x: Any, k: Any) -> Any:
        return jax.grad(lambda v: (wrap(plain_g, k)(v) * ROW).sum())(x)

    if side == "inside":
        check(jax.grad(f), want, mesh, X, counts=counts(wrapper))
        return
    if wrapper == "shard_map":
        pytest.skip("JAX itself cannot take the residuals out of two nested maps")
    outside = jax.jit(jax.grad(jm.jit(f, mesh=mesh)))
    for n in counts(wrapper):
        assert same_bits(outside(X, n), want(X, n))


# --- custom rules with mesh_shards of their own ----------------------------------------------------------------------


@pytest.mark.parametrize("side", ["inside", "outside"])
def test_a_custom_vjp_with_its_own_transfers(side: str, mesh: Mesh) -> None:
    """Primal, forward and backward rule split differently; the backward rule is not the derivative."""

    @jax.custom_vjp
    def g(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y"))

    def fwd(x: Any) -> tuple[Any, Any]:
        s = jm.full_to_shard(x, P(None, "x"))
        return jm.shard_to_full(s * 2, P(None, "x")), s

    def bwd(s: Any, ct: Any) -> tuple[Any]:
        return (jm.shard_to_full(jm.full_to_shard(ct, P(None, "x")) * s * 5, P(None, "x")),)

    g.defvjp(fwd, bwd)

    def f(x: Any) -> Any:
        return (g(x) * ROW).sum()

    check(g, lambda x: 2 * x, mesh, X)
    want = 5 * X * ROW
    if side == "inside":
        check(jax.grad(f), lambda x: want, mesh, X)
    else:
        assert same_bits(jax.grad(jm.jit(f, mesh=mesh))(X), want)
        assert same_bits(jax.jit(jax.grad(jm.jit(f, mesh=mesh)))(X), want)


@pytest.mark.parametrize("side", ["inside", "outside"])
def test_a_custom_jvp_with_its_own_transfers(side: str, mesh: Mesh) -> None:
    @jax.custom_jvp
    def g(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y"))

    @g.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        shard = jm.full_to_shard(t, P(None, ("x", "y"))) * 7
        return g(x), jm.shard_to_full(shard, P(None, ("x", "y")))

    check(g, lambda x: 2 * x, mesh, X)
    tangent = X + 1
    if side == "inside":
        check(lambda x, t: jax.jvp(g, (x,), (t,)), lambda x, t: (2 * x, 7 * t), mesh, X, tangent)
        check(jax.grad(lambda x: g(x).sum()), lambda x: 7 * jnp.ones_like(x), mesh, X)
    else:
        out, dot = jax.jvp(jm.jit(g, mesh=mesh), (X,), (tangent,))
        assert same_bits(out, 2 * X)
        assert same_bits(dot, 7 * tangent)
        assert same_bits(jax.grad(lambda x: jm.jit(g, mesh=mesh)(x).sum())(X), 7 * jnp.ones_like(X))


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap", "grad of vmap"])
def test_custom_rules_on_shards(transform: str, mesh: Mesh) -> None:
    """A custom function of a shard, with collectives in all of its rules, transformed where it is used."""

    @jax.custom_vjp
    def total(s: Any) -> Any:
        return lax.psum(s.sum(), "x")

    total.defvjp(lambda s: (total(s), s), lambda s, ct: (3 * lax.pcast(ct, "x", to="varying") * jnp.ones_like(s),))

    @jax.custom_jvp
    def doubled(s: Any) -> Any:
        return 2 * s

    doubled.defjvp(lambda p, t: (doubled(*p), 10 * t[0]))

    def f(x: Any) -> Any:
        return jm.shard_to_full(total(doubled(jm.full_to_shard(x, P("x")))), P())

    def g(x: Any) -> Any:
        return jm.shard_to_full(doubled(jm.full_to_shard(x, P("x"))), P("x"))

    ones = jnp.ones_like(ROW)
    if transform == "grad":
        check(jax.grad(f), lambda x: 30 * ones, mesh, ROW)
        assert same_bits(jax.grad(jm.jit(f, mesh=mesh))(ROW), 30 * ones)
    elif transform == "jvp":
        check(lambda x: jax.jvp(g, (x,), (ROW,)), lambda x: (2 * x, 10 * ROW), mesh, ROW)
        assert same_bits(jax.jvp(jm.jit(g, mesh=mesh), (ROW,), (ROW,))[1], 10 * ROW)
    elif transform == "vmap":
        check(jax.vmap(f), lambda x: 2 * x.sum(1), mesh, X)
        assert same_bits(jax.vmap(jm.jit(f, mesh=mesh))(X), 2 * X.sum(1))
    else:
        check(jax.grad(lambda x: jax.vmap(f)(x).sum()), lambda x: 30 * jnp.ones_like(x), mesh, X)
        assert same_bits(jax.grad(lambda x: jax.vmap(jm.jit(f, mesh=mesh))(x).sum())(X), 30 * jnp.ones_like(X))


# --- loops that carry shards -----------------------------------------------------------------------------------------


def test_scan_over_shards_that_stacks_shards(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        rows = jm.full_to_shard(x, P(None, "x"))
        carry, ys = lax.scan(lambda c, r: (c + r, c * r), jnp.zeros_like(rows[0]), rows)
        return jm.shard_to_full(carry, P("x")), jm.shard_to_full(ys, P(None, "x"))

    def plain(x: Any) -> Any:
        return lax.scan(lambda c, r: (c + r, c * r), jnp.zeros_like(x[0]), x)

    check(f, plain, mesh, X)


def test_scan_over_full_rows_that_splits_each(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        def step(c: Any, row: Any) -> tuple[Any, Any]:
            s = jm.full_to_shard(row, P("x"))
            return c + s, jm.shard_to_full(c * s, P("x"))

        carry, ys = lax.scan(step, jm.full_to_shard(jnp.zeros(6), P("x")), x)
        return jm.shard_to_full(carry, P("x")), ys

    def plain(x: Any) -> Any:
        return lax.scan(lambda c, r: (c + r, c * r), jnp.zeros_like(x[0]), x)

    check(f, plain, mesh, X)


def test_while_whose_test_reads_a_sum_over_the_devices(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P("y", "x"))
        more = lambda c: lax.psum(jnp.abs(c).sum(), ("y", "x")) < 1000  # noqa: E731
        return jm.shard_to_full(lax.while_loop(more, lambda c: 2 * c, s), P("y", "x"))

    check(f, lambda x: lax.while_loop(lambda c: jnp.abs(c).sum() < 1000, lambda c: 2 * c, x), mesh, X)


def test_while_whose_test_splits_and_joins(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        def more(c: Any) -> Any:
            s = jm.full_to_shard(c, P("y", "x"))
            return jm.shard_to_full(lax.psum(jnp.abs(s).sum(), ("y", "x")), P()) < 1000

        return lax.while_loop(more, lambda c: 2 * c, x)

    check(f, lambda x: lax.while_loop(lambda c: jnp.abs(c).sum() < 1000, lambda c: 2 * c, x), mesh, X)


def test_while_that_runs_differently_long_on_each_device(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P(("y", "x")))
        return jm.shard_to_full(lax.while_loop(lambda c: jnp.abs(c).max() < 100, lambda c: c * 2 + 1, s), P(("y", "x")))

    def plain(x: Any) -> Any:
        one = lambda r: lax.while_loop(lambda c: jnp.abs(c).max() < 100, lambda c: c * 2 + 1, r)  # noqa: E731
        return jnp.stack([one(r) for r in x])

    check(f, plain, mesh, X)


def test_a_branch_per_device(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P(("y", "x")))
        out = lax.switch(s[0, 0].astype(int) % 3, [lambda v: v, lambda v: v * 10, lambda v: v * v], s)
        return jm.shard_to_full(out, P(("y", "x")))

    def plain(x: Any) -> Any:
        k = (x[:, :1].astype(int)) % 3
        return jnp.where(k == 0, x, jnp.where(k == 1, x * 10, x * x))

    assert len({int(v) % 3 for v in X[:, 0]}) == 3
    check(f, plain, mesh, X)


# --- full-shape control flow beside regions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrapper", "differentiated"),
    [(w, True) for w in WRAPPERS if w not in {"while", "fori, dynamic", "shard_map"}]
    + [(w, False) for w in ("scan", "while", "fori, dynamic", "switch", "custom_jvp", "custom_vjp")],
)
def test_full_shape_control_flow_stays_on_the_host(wrapper: str, differentiated: bool, mesh: Mesh) -> None:
    """No transfer inside the loop or call: it belongs to the host side, before a region and after it."""
    wrap = WRAPPERS[wrapper]

    def body(v: Any) -> Any:
        return v * 2 - v.sum(0) * jnp.ones_like(v) + lax.broadcasted_iota(v.dtype, v.shape, 1)

    def f(x: Any, k: Any) -> Any:
        return wrap(body, k)(work(P("y", "x"))(wrap(body, k)(x)))

    def plain(x: Any, k: Any) -> Any:
        return wrap(body, k)(plain_work(wrap(body, k)(x)))

    if differentiated:
        loss = jax.grad(lambda x, k: (f(x, k) * ROW).sum())
        plain_loss = jax.grad(lambda x, k: (plain(x, k) * ROW).sum())
    else:
        loss, plain_loss = f, plain
    check(loss, plain_loss, mesh, X, counts=counts(wrapper))


# --- nested shard_map ------------------------------------------------------------------------------------------------


def test_a_nested_map_of_full_values_between_shards(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        def g(v: Any) -> Any:
            return jm.shard_to_full(3 * jm.full_to_shard(v, P("y", "x")), P("y", "x"))

        before = work(P("y"))(x)
        between = jax.shard_map(g, in_specs=P(), out_specs=P())(before)
        return work(P(None, "x"))(between)

    lowered = check(f, lambda x: plain_work(3 * plain_work(x)), mesh, X)
    assert named(lowered, "shard_map")


def test_a_nested_map_with_several_values(mesh: Mesh) -> None:
    def f(x: Any, row: Any) -> Any:
        def g(v: Any, r: Any) -> tuple[Any, Any]:
            return work(P("y", "x"))(v) + r, r.sum()

        return jax.shard_map(g, in_specs=(P(), P()), out_specs=(P(), P()))(x, row)

    check(f, lambda x, row: (plain_work(x) + row, row.sum()), mesh, X, ROW)


# --- explicit replicating distributes --------------------------------------------------------------------------------


def replicating(program: Any) -> list[Any]:
    return [
        e
        for e in named(program, "distribute_tensor")
        if all(isinstance(p, jm.PlacementReplicate) for p in e.params["mapper_config"].placements)
    ]


def arguments(program: Any) -> list[Any]:
    return list(getattr(program.jaxpr, "jaxpr", program.jaxpr).invars)


def test_a_full_array_beside_shards_is_distributed_once(mesh: Mesh) -> None:
    def f(x: Any, half: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        return jm.shard_to_full((s + half) * half - jnp.abs(s) * half, P("y"))

    def plain(x: Any, half: Any) -> Any:
        both = jnp.concatenate([half, half])
        return (x + both) * both - jnp.abs(x) * both

    lowered = check(f, plain, mesh, X, HALF)
    (eqn,) = replicating(lowered)
    assert eqn.params["mapper_config"] == jm.MeshMapperConfig([jm.PlacementReplicate()] * 2, jm.MeshShape(2, 3))
    assert eqn.outvars[0].aval.shape == (3, 6)
    assert transfers(lowered) == (2, 1)


def test_a_full_array_of_rank_0_is_distributed_too(mesh: Mesh) -> None:
    def f(x: Any, a: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P("y")) * a, P("y"))

    lowered = check(f, lambda x, a: x * a, mesh, X, jnp.float32(3))
    (eqn,) = replicating(lowered)
    assert eqn.invars[0] in arguments(lowered)
    assert eqn.outvars[0].aval.shape == ()


def test_a_full_array_used_on_both_sides_stays_for_the_host(mesh: Mesh) -> None:
    def f(x: Any, row: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        return jm.shard_to_full(s * row, P("y")) + row, jnp.sign(row)

    lowered = check(f, lambda x, row: (x * row + row, jnp.sign(row)), mesh, X, ROW)
    assert len(replicating(lowered)) == 1
    (work_on_host,) = named(lowered, "sign")
    assert work_on_host.invars[0] in arguments(lowered)


def test_literals_and_scalar_constants_stay_what_they_are(mesh: Mesh) -> None:
    constant = jnp.float32(5)

    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        return jm.shard_to_full((s * 2 + 1) * constant - jnp.zeros_like(s) + jnp.ones((3, 6)), P("y"))

    lowered = check(f, lambda x: (x * 2 + 1) * 5 + 1, mesh, X)
    assert transfers(lowered) == (1, 1)


def test_a_constant_array_is_a_full_array(mesh: Mesh) -> None:
    table = np.arange(6, dtype=np.float32)

    def f(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P("y")) + table, P("y"))

    lowered = check(f, lambda x: x + table, mesh, X)
    assert len(replicating(lowered)) == 1


@pytest.mark.parametrize("wrapper", [w for w in WRAPPERS if w not in {"custom_jvp", "custom_vjp", "shard_map"}])
def test_a_full_array_used_inside_is_distributed_outside(wrapper: str, mesh: Mesh) -> None:
    def f(x: Any, half: Any, k: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        return jm.shard_to_full(WRAPPERS[wrapper](lambda v: v + half, k)(s), P("y"))

    lowered = jm.jit(f, mesh=mesh).lower(X, HALF, jnp.int32(1))
    assert top_level(lowered)["distribute_tensor"] == 2
    assert transfers(lowered) == (2, 1)
    wanted = WRAPPERS[wrapper](lambda v: v + jnp.concatenate([HALF, HALF]), jnp.int32(1))(X)
    assert same_bits(lowered.reference(X, HALF, jnp.int32(1)), wanted)


# --- carries and branches unify to the device ------------------------------------------------------------------------


def test_a_carry_that_starts_on_the_host_is_distributed_before_the_loop(mesh: Mesh) -> None:
    def f(x: Any, start: Any) -> Any:
        s = jm.full_to_shard(x, P("y", "x"))
        total = lax.scan(lambda c, _: (c + lax.psum(s.sum(), ("y", "x")), None), start, None, length=3)[0]
        return jm.shard_to_full(total, P())

    lowered = check(f, lambda x, start: start + 3 * x.sum(), mesh, X, jnp.float32(7))
    assert top_level(lowered)["distribute_tensor"] == 2
    assert transfers(lowered) == (2, 1)


def test_carries_that_depend_on_each_other_all_move(mesh: Mesh) -> None:
    """Only c is reached by the shard at once; b by c in the second round, a by b in the third."""

    def f(x: Any, a: Any, b: Any, c: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))

        def step(_: Any, carry: Any) -> Any:
            a, b, c = carry
            return a + b, b + c, c + lax.psum(s.sum(), "y")

        return tuple(jm.shard_to_full(v, P()) for v in lax.fori_loop(0, 4, step, (a, b, c)))

    def plain(x: Any, a: Any, b: Any, c: Any) -> Any:
        return lax.fori_loop(0, 4, lambda _, t: (t[0] + t[1], t[1] + t[2], t[2] + x.sum()), (a, b, c))

    lowered = check(f, plain, mesh, X, jnp.float32(1), jnp.float32(2), jnp.float32(3))
    assert top_level(lowered)["distribute_tensor"] == 4


def test_a_carry_that_stays_on_the_host_does(mesh: Mesh) -> None:
    def f(x: Any, a: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        a, s = lax.fori_loop(0, 3, lambda _, t: (t[0] * 2, t[1] + 1), (a, s))
        return a, jm.shard_to_full(s, P("y"))

    lowered = check(f, lambda x, a: (a * 8, x + 3), mesh, X, ROW)
    assert transfers(lowered) == (1, 1)
    assert isinstance(jm.jit(f, mesh=mesh)(X, ROW)[0], jax.Array)


@pytest.mark.parametrize("on_device_first", [True, False])
def test_branch_results_unify(on_device_first: bool, mesh: Mesh) -> None:
    def f(x: Any, row: Any, n: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        branches = [lambda: lax.psum(s.sum(0), "y"), lambda: row]
        out = lax.switch(n, branches if on_device_first else branches[::-1])
        return jm.shard_to_full(out, P()), out

    def plain(x: Any, row: Any, n: Any) -> Any:
        out = x.sum(0) if (int(n) == 0) is on_device_first else row
        return out, out

    check(f, plain, mesh, X, ROW, counts=[jnp.int32(0), jnp.int32(1)])
    left = jm.jit(f, mesh=mesh)(X, ROW, jnp.int32(1))
    assert isinstance(left[0], jax.Array)
    assert isinstance(left[1], jm.MeshTensor)


def test_a_branch_of_literals_unifies(mesh: Mesh) -> None:
    def f(x: Any, n: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        return jm.shard_to_full(lax.cond(n > 0, lambda: lax.psum(s.sum(), "y"), lambda: jnp.float32(4)), P())

    check(f, lambda x, n: x.sum() if n > 0 else jnp.float32(4), mesh, X, counts=[jnp.int32(0), jnp.int32(1)])


@pytest.mark.parametrize("spec", [P("x"), P("y"), P(("y", "x")), P(("x", "y"))], ids=str)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a loop"])
def test_what_every_device_holds_is_split_there(spec: P, inside: bool, mesh: Mesh) -> None:
    """A sum over the devices is full, but lives there: splitting it again is a mesh_partition per axis."""

    def f(x: Any) -> Any:
        def split(total: Any) -> Any:
            return jm.shard_to_full(jm.full_to_shard(total, spec) * 2, spec)

        total = lax.psum(jm.full_to_shard(x, P("y")).sum(0), "y")
        return lax.fori_loop(0, 3, lambda _, s: s + split(total), jnp.zeros(total.shape)) if inside else split(total)

    big = jnp.tile(X, (1, 2))
    lowered = check(f, lambda x: (6 if inside else 2) * x.sum(0), mesh, big)
    assert transfers(lowered) == (1, 1)
    text, (axes,) = lowered.as_text(), spec
    partitions = re.findall(r"mesh_partition.*cluster_axis = ([0-9])", text)
    assert set(partitions) == {str(mesh.axis_names.index(a)) for a in ([axes] if isinstance(axes, str) else axes)}


# --- source locations ------------------------------------------------------------------------------------------------


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


@each_wrapper
def test_source_locations_survive(wrapper: str, mesh: Mesh) -> None:
    lines: dict[str, int] = {}

    def g(x: Any) -> Any:
        lines["distribute_tensor"] = here() + 1
        s = jm.full_to_shard(x, P("y", ("x",)))
        lines["aggregate_tensor"] = here() + 1
        return jm.shard_to_full(s * 2, P("y", ("x",)))

    call = here() + 1
    lowered = jm.jit(lambda x, k: WRAPPERS[wrapper](g, k)(x), mesh=mesh).lower(X, jnp.int32(1))
    if wrapper == "shard_map":
        # Its ends are transfers of their own, so that the split by hand is a slice of a replicated tensor.
        for name in lines:
            assert any(f"{__file__}:{call}:" in source_locations.source_line(e) for e in named(lowered, name))
        lines["dynamic_slice"] = lines.pop("distribute_tensor")
    for name, line in lines.items():
        found = [source_locations.source_line(eqn) for eqn in named(lowered, name)]
        own = [x for x in found if wrapper != "shard_map" or f"{__file__}:{call}:" not in x]
        assert own
        assert all(f"{__file__}:{line}:" in x for x in own)


def test_reshapes_of_the_lowering_stand_at_the_line_too() -> None:
    cube = jm.make_mesh((2, 2, 2))
    lines: list[int] = []

    def f(x: Any) -> Any:
        lines.append(here() + 1)
        return jm.full_to_shard(x, P(("z", "x")))

    lowered = jm.jit(f, mesh=cube).lower(X[:4])
    assert len(named(lowered, "reshape")) == 2
    for eqn in (*named(lowered, "reshape"), *named(lowered, "distribute_tensor")):
        assert f"{__file__}:{lines[0]}:" in source_locations.source_line(eqn)


def test_an_implicit_distribute_stands_where_it_is_needed(mesh: Mesh) -> None:
    lines: list[int] = []

    def f(x: Any, row: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        lines.append(here() + 1)
        return jm.shard_to_full(s + row, P("y"))

    (eqn,) = replicating(jm.jit(f, mesh=mesh).lower(X, ROW))
    assert f"{__file__}:{lines[0]}:" in source_locations.source_line(eqn)


def test_locations_reach_the_compiled_program(mesh: Mesh) -> None:
    lines: list[int] = []

    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        lines.append(here() + 1)
        return jm.shard_to_full(jnp.tanh(s), P("y"))

    text = jm.jit(f, mesh=mesh).lower(X).compile().as_text()
    (line,) = [r for r in text.splitlines() if " tanh(" in r and "metadata=" in r]
    assert f"source_line={lines[0]}" in line or "stack_frame_id" in line


# --- cancelling ------------------------------------------------------------------------------------------------------

SPECS_2D = [P("y", "x"), P("x", "y"), P(("y", "x")), P(None, ("y", "x")), P(("x", "y")), P(None, ("x", "y")), P("y"),
            P(None, "x"), P()]  # fmt: skip
SPECS_3D = [P(("z", "x")), P(("z", "x"), "y"), P("y", ("z", "x")), P(("x", "z")), P(("z", "y")), P(("y", "x"), "z"),
            P(("x", "y", "z")), P(("z", "y", "x")), P("x")]  # fmt: skip
SQUARE = jnp.asarray(np.random.default_rng(4).integers(-4, 5, (8, 8)), jnp.float32)
MESHED = [((2, 4), s) for s in SPECS_2D] + [((2, 2, 2), s) for s in SPECS_3D]
each_layout = pytest.mark.parametrize(("shape", "spec"), MESHED, ids=lambda v: str(v))


@each_layout
def test_an_aggregate_and_the_same_distribute_cancel(shape: tuple[int, ...], spec: P) -> None:
    def f(x: Any) -> Any:
        first = jm.shard_to_full(jm.full_to_shard(x, spec) * 2, spec)
        return jm.shard_to_full(jm.full_to_shard(first, spec) + 1, spec)

    lowered = check(f, lambda x: 2 * x + 1, jm.make_mesh(shape), SQUARE)
    assert transfers(lowered) == (1, 1)


@pytest.mark.parametrize(("shape", "spec"), MESHED[2::5], ids=lambda v: str(v))
def test_an_aggregate_that_is_used_elsewhere_stays(shape: tuple[int, ...], spec: P) -> None:
    def f(x: Any) -> Any:
        first = jm.shard_to_full(jm.full_to_shard(x, spec) * 2, spec)
        return jm.shard_to_full(jm.full_to_shard(first, spec) + 1, spec), jnp.sign(first)

    lowered = check(f, lambda x: (2 * x + 1, jnp.sign(2 * x)), jm.make_mesh(shape), SQUARE)
    assert transfers(lowered) == (1, 2)


@pytest.mark.parametrize("wrapper", [w for w in WRAPPERS if w not in {"nested jit", "scan backwards", "fori"}])
def test_transfers_cancel_at_any_depth(wrapper: str, mesh: Mesh) -> None:
    def twice(x: Any) -> Any:
        return work(P(("x", "y")))(work(P(("x", "y")))(x))

    once = jm.jit(lambda x, k: WRAPPERS[wrapper](work(P(("x", "y"))), k)(x), mesh=mesh).lower(X, jnp.int32(1))
    both = check(
        lambda x, k: WRAPPERS[wrapper](twice, k)(x),
        lambda x, k: WRAPPERS[wrapper](lambda v: plain_work(plain_work(v)), k)(x),
        mesh,
        X,
        jnp.int32(1),
    )
    assert transfers(both) == transfers(once)


@pytest.mark.parametrize(
    ("there", "back"),
    [(P("y"), P("x")), (P("y", "x"), P("x", "y")), (P(("y", "x")), P(("x", "y"))), (P("y"), P(None, "y")),
     (P("y"), P("y", "x")), (P("y", "x"), P("y")), (P(), P("y")), (P("x"), P())],
    ids=str,
)  # fmt: skip
def test_other_configs_do_not_cancel(there: P, back: P, mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        first = jm.shard_to_full(jm.full_to_shard(x, there) * 2, there)
        return jm.shard_to_full(jm.full_to_shard(first, back) + 1, back)

    lowered = check(f, lambda x: 2 * x + 1, mesh, X)
    assert transfers(lowered) == (2, 2)


def test_full_shape_work_between_keeps_both(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        first = jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y"))
        return jm.shard_to_full(jm.full_to_shard(first[::-1], P("y")) + 1, P("y"))

    lowered = check(f, lambda x: 2 * x[::-1] + 1, mesh, X)
    assert transfers(lowered) == (2, 2)


def test_a_users_reshape_between_keeps_both(mesh: Mesh) -> None:
    """Rows become columns: the shape comes back, the split does not mean the same."""

    def f(x: Any) -> Any:
        first = jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y")).reshape(2, 18)
        return jm.shard_to_full(jm.full_to_shard(first, P("y")) + 1, P("y"))

    check(f, lambda x: (2 * x).reshape(2, 18) + 1, mesh, X)


@pytest.mark.usefixtures("unequal_copies")
def test_unequal_copies_do_not_cancel(mesh_2x4: Mesh) -> None:
    """Taken on trust, the copies differ along x: coordinate 0's data is the full tensor, then and afterwards."""

    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P("y", "x"))
        full = jm.shard_to_full(s, P("y"), assume_replicated=True)
        again = jm.full_to_shard(full, P("y"))
        return full, jm.shard_to_full(again * 1, P("y"))

    lowered = check(f, lambda x: (x[:, :2], x[:, :2]), mesh_2x4, SQUARE)
    assert transfers(lowered) == (2, 2)


@pytest.mark.parametrize("there", [P("y"), P("x"), P(), P(None, "x")], ids=str)
@pytest.mark.usefixtures("unequal_copies")
def test_unequal_copies_yield_coordinate_0(there: P, mesh_2x4: Mesh) -> None:
    """Every device reads back the data of coordinate 0 of the axes that were not aggregated, not its own."""

    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P(("y", "x")))
        return jm.full_to_shard(jm.shard_to_full(s, there, assume_replicated=True), there)

    shards = {c: oracle_shard(np.asarray(SQUARE), [[0, 1], []], (2, 4), c) for c in coordinates((2, 4))}
    named_axes = [a for e in there if e for a in (e if isinstance(e, tuple) else (e,))]

    def source(c: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i if n in named_axes else 0 for i, n in zip(c, ("y", "x"), strict=True))

    lowered = jm.jit(f, mesh=mesh_2x4).lower(SQUARE)
    assert transfers(lowered) == (2, 1)
    for out in (lowered.compile()(SQUARE), lowered.reference(SQUARE)):
        got = {tuple(c): s for c, s in (out.shards() if isinstance(out, jm.MeshTensor) else out.items())}
        assert set(got) == set(shards)
        for c, shard in got.items():
            assert same_bits(shard, shards[source(c)])


# --- folds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["full_to_shard", "shard_to_full"])
def test_identity_is_no_operation(direction: str, mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        same = jm.mesh_shard(x, shard_type="identity", shard_direction=direction, shard_shape=[1], shard_dims=[-1])
        return same + 1

    lowered = check(f, lambda x: x + 1, mesh, X)
    assert transfers(lowered) == (0, 0)


def test_identity_of_a_shard_is_no_operation(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P("y", "x"))
        s = jm.mesh_shard(s, shard_type="identity", shard_direction="shard_to_full", shard_shape=[1], shard_dims=[-1])
        return jm.shard_to_full(s + 1, P("y", "x"))

    lowered = check(f, lambda x: x + 1, mesh, X)
    assert transfers(lowered) == (1, 1)


@pytest.mark.parametrize("direction", ["full_to_shard", "shard_to_full"])
@pytest.mark.parametrize("dims", [(0, -1), (1, -1), (-1, -1)])
def test_a_product_of_one_is_no_operation(direction: str, dims: tuple[int, int]) -> None:
    def f(x: Any) -> Any:
        same = jm.mesh_shard(x, shard_type="devices", shard_direction=direction, shard_shape=[1, 1], shard_dims=dims)
        return same + 1

    lowered = check(f, lambda x: x + 1, jm.make_mesh((1, 4)), X)
    assert transfers(lowered) == (0, 0)


def test_replicate_is_an_operation(mesh: Mesh) -> None:
    """The fold is for other types only: a replicating distribute puts the copies on the devices."""

    def f(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P()) + 1, P())

    lowered = check(f, lambda x: x + 1, mesh, X)
    assert transfers(lowered) == (1, 1)
    (eqn,) = named(lowered, "aggregate_tensor")
    assert eqn.params["composer_config"] == jm.MeshComposerConfig([0], jm.MeshShape(1))


def test_folded_operations_differentiate(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        same = jm.mesh_shard(
            x, shard_type="identity", shard_direction="full_to_shard", shard_shape=[1], shard_dims=[-1]
        )
        return (work(P("y"))(same) * ROW).sum()

    want = 2 * jnp.ones_like(X) * ROW
    check(jax.grad(f), lambda x: want, mesh, X)
    assert same_bits(jax.grad(jm.jit(f, mesh=mesh))(X), want)
