"""`jm.shard_map` against `jax.shard_map`: results, types, shardings, trees, gradients and errors, bit for bit."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.stages.shard_map import ShardMapped
from tests.generators.alike import assert_alike, outcome
from tests.generators.oracles import cases, same_bits

pytestmark = pytest.mark.slow(but_one_in=10)

X = np.random.default_rng(3).normal(size=(8, 8)).astype(np.float32)
V = X[0]
ROWS, COLUMNS, BOTH, WHOLE = P("y"), P(None, "x"), P("y", "x"), P()
N = np.arange(64, dtype=np.int32).reshape(8, 8) * 7 % 23


def both_ways(f: Any, **options: Any) -> tuple[Any, Any]:
    return jm.shard_map(f, **options), jax.shard_map(f, **options)


def check(
    f: Any, *args: Any, expressible: bool = True, eager: bool = True, jitted: bool = True, **options: Any
) -> None:
    """Eagerly, where JAX runs it, and in a program that is lowered if TTIR can express it."""
    mine, theirs = both_ways(f, **options)
    assert (jm.jit(theirs).lower(*args).inexpressible is None) == expressible
    if eager:
        assert_alike(mine(*args), theirs(*args))
    if jitted:
        assert_alike(jm.jit(mine)(*args), jax.jit(theirs)(*args))


@dataclass(frozen=True)
class Case:
    """A body, its specs on the mesh (y=2, x=4) and its arguments."""

    body: Callable[..., Any]
    in_specs: Any = BOTH
    out_specs: Any = BOTH
    args: tuple[Any, ...] = (X,)
    mesh: tuple[int, ...] = (2, 4)
    eager: bool = True
    """Whether it also runs without `jax.jit`, which compiles a dozen small programs a case."""


def pair(case: Case, **options: Any) -> tuple[Any, Any]:
    mesh = jm.make_mesh(case.mesh)
    return both_ways(case.body, mesh=mesh, in_specs=case.in_specs, out_specs=case.out_specs, **options)


def run_eagerly(case: Case) -> None:
    mine, theirs = pair(case)
    assert jm.jit(theirs).lower(*case.args).inexpressible is None
    if case.eager:
        assert_alike(mine(*case.args), theirs(*case.args))


def run_jitted(table: dict[str, Case], derive: Callable[[Any], Any] = lambda f: f, **options: Any) -> None:
    """All cases of a mesh in one program, because most of the time goes into starting a compilation."""
    for mesh in dict.fromkeys(case.mesh for case in table.values()):
        cases = {name: case for name, case in table.items() if case.mesh == mesh}
        pairs = {name: pair(case, **options) for name, case in cases.items()}

        def program(args: Any, which: int, pairs: Any = pairs) -> Any:
            return {name: derive(fs[which])(*args[name]) for name, fs in pairs.items()}

        args = {name: case.args for name, case in cases.items()}
        got, want = jm.jit(lambda a: program(a, 0))(args), jax.jit(lambda a: program(a, 1))(args)
        assert set(got) == set(cases)
        for name in cases:
            assert_alike(got[name], want[name])


def each(table: dict[str, Case]) -> Any:
    return pytest.mark.parametrize("case", list(table.values()), ids=list(table))


RING = [(i, (i + 1) % 4) for i in range(4)]

# --- collectives -----------------------------------------------------------------------------------------------------

COLLECTIVES: dict[str, Case] = {
    "psum": Case(lambda x: lax.psum(x, "x"), out_specs=ROWS),
    "psum of both axes": Case(lambda x: lax.psum(x, ("x", "y")), out_specs=WHOLE),
    "psum of a tree": Case(lambda x: lax.psum({"a": x, "b": (x[0, :1], x[0])}, "x"), out_specs=ROWS),
    "psum of a number": Case(lambda x: x * lax.psum(1, "x") + lax.psum(2.5, ("y", "x"))),
    "psum of ints": Case(lambda x: lax.psum(x, "x"), out_specs=ROWS, args=(N,), eager=False),
    "psum of bools": Case(lambda x: lax.psum(x > 0, "x"), out_specs=ROWS, eager=False),
    "psum of what is replicated": Case(lambda x: lax.psum(lax.pcast(x, "x", to="varying"), "x"), ROWS, ROWS),
    "psum of what does not vary": Case(lambda x: lax.psum(x, "x") + lax.psum(x, ("x",)), ROWS, ROWS),
    "psum twice": Case(lambda x: lax.psum(lax.psum(x, "x"), "y"), out_specs=WHOLE, eager=False),
    "pmax": Case(lambda x: lax.pmax(x, "x"), out_specs=ROWS),
    "pmin": Case(lambda x: lax.pmin(x, ("y", "x")), out_specs=WHOLE),
    "pmean": Case(lambda x: lax.pmean(x, "y"), out_specs=COLUMNS),
    "pmean of both axes": Case(lambda x: lax.pmean(x, ("y", "x")), out_specs=WHOLE, eager=False),
    "all_gather": Case(lambda x: lax.all_gather(x, "x"), out_specs=P(None, "y", "x")),
    "all_gather on another dim": Case(lambda x: lax.all_gather(x, "x", axis=2), out_specs=BOTH, eager=False),
    "all_gather, tiled": Case(lambda x: lax.all_gather(x, "x", axis=1, tiled=True), out_specs=BOTH),
    "all_gather of two axes": Case(lambda x: lax.all_gather(x, ("y", "x"), tiled=True), out_specs=BOTH),
    "all_gather to invarying": Case(lambda x: lax.all_gather(x, "x", axis=1, tiled=True, to="invarying"),
                                    out_specs=ROWS),
    "all_gather to invarying, untiled": Case(lambda x: lax.all_gather(x, "x", axis=1, to="invarying"), out_specs=ROWS,
                                             eager=False),
    "psum_scatter": Case(lambda x: lax.psum_scatter(x, "x"), P("y"), P(("y", "x"))),
    "psum_scatter, tiled": Case(lambda x: lax.psum_scatter(x, "x", tiled=True), ROWS, P(("y", "x"))),
    "psum_scatter of columns": Case(lambda x: lax.psum_scatter(x, "y", scatter_dimension=1, tiled=True),
                                    COLUMNS, P(None, ("x", "y")), eager=False),
    "all_to_all": Case(lambda x: lax.all_to_all(x, "x", 0, 1), ROWS, BOTH),
    "all_to_all, tiled": Case(lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True), P("x"), P(None, "x")),
    "all_to_all of two axes": Case(lambda x: lax.all_to_all(x, ("y", "x"), 1, 0, tiled=True), P(("y", "x")),
                                   P(None, ("y", "x"))),
    "ppermute": Case(lambda x: lax.ppermute(x, "x", RING)),
    "ppermute with holes": Case(lambda x: lax.ppermute(x, "x", [(0, 3), (3, 1)])),
    "ppermute over two axes": Case(lambda x: lax.ppermute(x, ("y", "x"), [(i, (i + 3) % 8) for i in range(8)]),
                                   eager=False),
    "pshuffle": Case(lambda x: lax.pshuffle(x, "x", [2, 0, 3, 1])),
    "pswapaxes": Case(lambda x: lax.pswapaxes(x, "x", 0), ROWS, BOTH),
    "axis_index": Case(lambda x: x + lax.axis_index("x")),
    "axis_index of two axes": Case(lambda x: x * lax.axis_index(("x", "y")), eager=False),
    "axis_index alone": Case(lambda: lax.axis_index("x")[None], (), P("x"), ()),
    "axis_size": Case(lambda x: x * lax.axis_size("x")),
    "pcast": Case(lambda x: lax.pcast(x, ("x", "y"), to="varying"), WHOLE, BOTH),
    "collectives in a row": Case(
        lambda x: lax.all_gather(lax.ppermute(x, "x", RING) * lax.pmax(x, "x"), "y", axis=0, tiled=True),
        out_specs=BOTH, eager=False),
}  # fmt: skip


@each(COLLECTIVES)
def test_collectives(case: Case) -> None:
    run_eagerly(case)


@pytest.mark.slow
def test_collectives_jitted() -> None:
    run_jitted(COLLECTIVES)


# --- what the shards are used for ------------------------------------------------------------------------------------


def elementwise(x: Any) -> Any:
    y = jnp.where(x > 0, jnp.sqrt(jnp.abs(x)), jnp.sin(x) ** 2 / (1 + jnp.exp(-x)))
    return jnp.clip(y, -0.5, 2) + jnp.round(x, 1), jnp.floor(x).astype(jnp.int32) % 3, jnp.isnan(x) | (x < 0)


def reducing(x: Any) -> Any:
    return (
        jnp.stack([x.sum(0), x.mean(0), x.max(0), x.std(0), jax.nn.logsumexp(x, 0)]),
        jnp.cumsum(x, 1) + jnp.cumprod(x, 0) + lax.cummax(x),
        x.argmax(1),
        jnp.median(x, axis=1),
    )


def rearranging(x: Any) -> Any:
    y = jnp.concatenate([x[:, ::-1], jnp.roll(x, 1, 0)], 1).reshape(-1, 2).T
    z = jnp.pad(x, ((1, 0), (0, 2)))[:-1, 1:-1] + jnp.tile(x[:1], (x.shape[0], 1)) + jnp.repeat(x[:, :1], 2, 1)
    return y, jnp.sort(z, 0), jnp.argsort(x, axis=0), lax.top_k(x, 2)[0], jnp.diag(x[:2, :2])


def indexing(x: Any) -> Any:
    i = jnp.array([1, 0, 1])
    return (
        x[i],
        jnp.take(x, i, axis=1),
        x.at[i].add(2.0).at[0].set(7.0),
        lax.dynamic_slice(x, (i[0], 0), (2, 1)),
        lax.dynamic_update_slice(x, x[:1] * 3, (i[1], 0)),
        jax.nn.one_hot(i, 4) + jnp.searchsorted(jnp.sort(x[:, 0]), 0.5),
    )


def multiplying(x: Any) -> Any:
    g = x.T @ x
    return (
        x @ g,
        jnp.einsum("ab,cb->ac", x, x),
        jnp.dot(x, g, preferred_element_type=jnp.float32),
        lax.conv_general_dilated(x[None, None], g[None, None], (1, 1), "SAME"),
        jax.nn.softmax(x) + jax.nn.gelu(x),
        jnp.linalg.cholesky(g + 3 * jnp.eye(2)),
        jnp.fft.rfft(x, axis=0).real,
    )


OPS = {f.__name__: f for f in (elementwise, reducing, rearranging, indexing, multiplying)}


def flat(body: Any) -> Any:
    return lambda x: [jnp.ravel(v) for v in body(x)]


def test_operations_on_shards() -> None:
    # Eagerly every operation of a body is compiled by itself, which takes long; the small bodies above do that.
    table = {name: Case(flat(body), BOTH, P(("y", "x")), eager=False) for name, body in OPS.items()}
    for case in table.values():
        run_eagerly(case)
    run_jitted(table)


def scanned(x: Any) -> Any:
    total, steps = lax.scan(lambda c, row: (c * 0.5 + row, c.sum()), x[0], x)
    return jnp.concatenate([total, steps])


def looped(x: Any) -> Any:
    turn = lax.fori_loop(0, 3, lambda i, c: lax.ppermute(c, "x", RING) + i, x)
    return lax.while_loop(lambda c: lax.psum(c.sum(), ("y", "x")) < 50, lambda c: jnp.abs(c) * 1.5, turn)


def branching(x: Any) -> Any:
    y = lax.cond(lax.axis_index("x") % 2 == 0, jnp.sin, jnp.cos, x)
    y = lax.switch(lax.axis_index("y"), [lambda v: v, lambda v: -v, lambda v: v * 2], y)
    return lax.cond(lax.psum(x.sum(), ("y", "x")) > 0, lambda v: lax.psum(v, "x") * x, lambda v: v, y)


def calling(x: Any) -> Any:
    y = jax.jit(lambda v: lax.psum(v, "x") * v)(x)
    y = jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)))(y)
    return lax.map(lambda r: r * 2, y) + lax.associative_scan(jnp.add, y) + jax.vmap(lambda r: r / r.max())(x)


def solving(x: Any) -> Any:
    return lax.custom_linear_solve(lambda v: 3.0 * v, x, lambda _, v: v / 3.0, transpose_solve=lambda _, v: v / 3.0)


FLOW: dict[str, Case] = {
    "scan": Case(scanned, out_specs=P(("y", "x"))),
    "loops": Case(looped, eager=False),
    "branches": Case(branching, eager=False),
    "calls": Case(calling, eager=False),
    "custom_linear_solve": Case(solving),
    "static control flow": Case(lambda x: sum((x * i for i in range(3)), x) if x.ndim == 2 else x),
}


@each(FLOW)
def test_control_flow_in_the_body(case: Case) -> None:
    run_eagerly(case)


def test_control_flow_in_the_body_jitted() -> None:
    run_jitted(FLOW)


KEYS = jax.random.split(jax.random.key(5), 8)
RANDOM: dict[str, Case] = {
    "the same everywhere": Case(lambda k: jax.random.normal(k, (4, 2)), WHOLE, WHOLE, (KEYS[0],)),
    "other on each device": Case(
        lambda k: jax.random.uniform(jax.random.fold_in(k, lax.axis_index(("y", "x"))), (2, 2)),
        WHOLE, BOTH, (KEYS[0],), eager=False),
    "made in the body": Case(
        lambda x: x + jax.random.bernoulli(jax.random.key(lax.axis_index("x")), 0.5, x.shape), eager=False),
    "a row of keys": Case(lambda k: jax.vmap(lambda q: jax.random.bits(q, (3,)))(k), P("x"), P("x"), (KEYS,),
                          eager=False),
    "keys as results": Case(lambda k: jax.random.split(k[0], 2), P(("y", "x")), P(("y", "x")), (KEYS,)),
    "raw keys": Case(lambda k, x: x * jax.random.normal(k, x.shape), (WHOLE, BOTH), BOTH, (jax.random.PRNGKey(3), X),
                     eager=False),
    "rbg": Case(lambda k: jax.random.normal(k, (4,)), WHOLE, WHOLE, (jax.random.key(3, impl="rbg"),), eager=False),
    "permutation": Case(lambda k, x: jax.random.permutation(k, x), (WHOLE, BOTH), BOTH, (KEYS[1], X), eager=False),
}  # fmt: skip


@each(RANDOM)
def test_random_numbers(case: Case) -> None:
    run_eagerly(case)


@pytest.mark.slow
def test_random_numbers_jitted() -> None:
    run_jitted(RANDOM)


DTYPES = """
bool int2 int4 int8 int16 int32 uint2 uint4 uint8 uint16 uint32 float16 bfloat16 float32 complex64 float4_e2m1fn
float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu
"""
KNOWN = [d for d in DTYPES.split() if d == "bool" or hasattr(jnp, d)]


def moved(x: Any) -> Any:
    out = [x, lax.ppermute(x, "x", RING)]
    if x.dtype not in (jnp.int2, jnp.uint2):
        # XLA's CPU backend garbles an all_gather of those.
        out.append(lax.all_gather(x, "x", axis=1, tiled=True))
    return out


def of_dtype(d: str) -> Case:
    x = jnp.asarray(N % 2 if d.endswith("int2") else N % 5).astype(d)
    return Case(moved, args=(x,), eager=d in ("bool", "bfloat16"))


DTYPE_CASES = {d: of_dtype(d) for d in KNOWN}


@each(DTYPE_CASES)
def test_dtypes(case: Case) -> None:
    run_eagerly(case)


@pytest.mark.slow
def test_dtypes_jitted() -> None:
    run_jitted(DTYPE_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128"])
def test_wide_dtypes(dtype: str) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(X).astype(dtype)
        check(lambda v: lax.psum(v * 3, "x"), x, mesh=jm.make_mesh((2, 4)), in_specs=BOTH, out_specs=ROWS)


# --- trees, specs, odd arguments and results -------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass
class Pair:
    a: Any
    b: Any


TREES: dict[str, Case] = {
    "a dict in, a tuple out": Case(lambda d: (d["a"] + d["b"], {"c": d["b"]}), ({"a": BOTH, "b": BOTH},),
                                   (BOTH, {"c": BOTH}), ({"a": X, "b": X * 2},)),
    "prefixes": Case(lambda d, x: ([d["a"] * d["b"][0]], x), (BOTH, ROWS), (BOTH, ROWS), ({"a": X, "b": (X,)}, X)),
    "a dataclass": Case(lambda p: Pair(p.b, p.a * 2), (Pair(BOTH, ROWS),), Pair(ROWS, BOTH), (Pair(X, X),),
                        eager=False),
    "one spec for all arguments": Case(lambda x, y, z: x + y * z, BOTH, BOTH, (X, X, X), eager=False),
    "a list of specs": Case(lambda x, y: [x, y], (ROWS, COLUMNS), [ROWS, COLUMNS], (X, X), eager=False),
    "no argument": Case(lambda: jnp.arange(4.0), (), WHOLE, ()),
    "empty trees": Case(lambda d, x: ({}, x, ()), (WHOLE, BOTH), ({}, BOTH, ()), ({}, X)),
    "None in a tree": Case(lambda d: (d["a"], None), ({"a": BOTH, "n": None},), (BOTH, None), ({"a": X, "n": None},)),
    "None as a result": Case(lambda x: None, BOTH, None),
    "None among results": Case(lambda x: {"a": x, "b": None}, BOTH, {"a": BOTH, "b": BOTH}),
    "scalars": Case(lambda x, s: (x * s, s + 1), (BOTH, WHOLE), (BOTH, WHOLE), (X, jnp.float32(2))),
    "a Python number": Case(lambda x, s: x * s, (BOTH, WHOLE), BOTH, (X, 3), eager=False),
    "weak types": Case(lambda s: (s, s * 2, s + jnp.float32(1)), WHOLE, WHOLE, (jnp.asarray(2.5) * 1, )),
    "numbers as results": Case(lambda x: (1, 2.5, True, 1j, np.float32(3), np.arange(4)), BOTH, WHOLE),
    "a numpy result": Case(lambda x: np.ones((2, 2), np.int8), BOTH, BOTH),
    "an argument as it is": Case(lambda x, y: (y, x, x), (BOTH, WHOLE), (WHOLE, BOTH, BOTH), (X, V)),
    "unused arguments": Case(lambda x, y: x * 2, (BOTH, ROWS), BOTH, (X, X), eager=False),
    "a literal over an axis": Case(lambda: lax.pcast(jnp.float32(1), "x", to="varying")[None], (), P("x"), ()),
    "zero-size": Case(lambda x: (x, lax.psum(x, "y"), x.sum(1)), P("y"), (ROWS, WHOLE, ROWS), (np.zeros((4, 0)),)),
    "zero-size, split": Case(lambda x: x + 1, BOTH, BOTH, (np.zeros((0, 8), np.float32),), eager=False),
    "rank 4": Case(lambda x: x.transpose(0, 2, 1, 3), P(None, "x", None, "y"), P(None, None, "x", "y"),
                   (X.reshape(1, 4, 8, 2),)),
    "trailing dims unsaid": Case(lambda x: x, P("x"), P("x", None), (X,), eager=False),
    "nothing is split": Case(lambda x: x * 2, WHOLE, WHOLE),
    "both axes on one dim": Case(lambda x: x * 2, P(("y", "x")), P(("y", "x"))),
    "both axes, the other order": Case(lambda x: x + lax.axis_index("y"), P(("x", "y")), P(("x", "y")), eager=False),
    "the order changes": Case(lambda x: x * 2, P(("x", "y")), P(None, ("y", "x"))),
    "a tuple of one axis": Case(lambda x: x * 2, P(("x",)), P(("x",))),
    "an empty tuple": Case(lambda x: x * 2, P((), "x"), P((), "x"), eager=False),
}  # fmt: skip


@each(TREES)
def test_trees_and_specs(case: Case) -> None:
    run_eagerly(case)


def test_trees_and_specs_jitted() -> None:
    run_jitted(TREES)


@pytest.mark.slow
def test_static_arguments_have_no_spec() -> None:
    mesh = jm.make_mesh((2, 4))
    for static in ("twice", None, len, 3):

        def body(x: Any, how: Any, static: Any = static) -> Any:
            assert how is static
            return x * (2 if how == "twice" else 1)

        mine, theirs = both_ways(body, mesh=mesh, in_specs=(BOTH, None), out_specs=BOTH)
        got, want = (outcome(lambda f=f: f(X, static)) for f in (mine, theirs))  # noqa: B023
        assert_alike(got, want)


MESHES: dict[str, Case] = {
    "rank 1": Case(lambda x: x * lax.psum(x.sum(), "x"), P("x"), P("x"), mesh=(8,)),
    "rank 1, one device": Case(lambda x: lax.psum(x, "x"), P("x"), WHOLE, mesh=(1,)),
    "1x2": Case(lambda x: lax.psum(x, "x") + lax.axis_index("y"), P("y", "x"), P("y"), mesh=(1, 2)),
    "size 1 is psummed": Case(lambda x: lax.psum(x, "y"), P("y", "x"), P(None, "x"), mesh=(1, 4)),
    "size 1, tuple": Case(lambda x: x * 2, P(("y", "x")), P(("x", "y")), mesh=(1, 4)),
    "rank 3": Case(lambda x: lax.psum(x, "z") * 2, P("z", ("y", "x")), P(None, ("y", "x")), mesh=(2, 2, 2)),
    "rank 3, apart on one dim": Case(lambda x: x + 1, P(("z", "x"), "y"), P(("z", "x"), "y"), mesh=(2, 2, 2)),
    "rank 3, backwards": Case(lambda x: x + 1, P(("x", "y", "z")), P(("y", "x", "z")), mesh=(2, 2, 2)),
    "rank 3, some size 1": Case(lambda x: x + lax.axis_index("x"), P(("z", "y", "x")), P(("z", "y", "x")),
                                mesh=(2, 1, 4)),
    "rank 4": Case(lambda x: lax.psum(x, ("w", "y")), P("w", ("z", "y", "x")), P(None, ("z", "x")),
                   mesh=(2, 2, 1, 4)),
}  # fmt: skip


@each(MESHES)
def test_meshes(case: Case) -> None:
    run_eagerly(case)
    run_jitted({"the case": case})


def test_other_devices_and_orders() -> None:
    devices = jax.devices()
    for row in (devices[8:], devices[:8][::-1]):
        check(
            lambda x: x + lax.axis_index("x"), X, mesh=jm.make_mesh((2, 4), devices=row), in_specs=BOTH, out_specs=BOTH
        )


def test_arguments_that_are_on_the_devices_already() -> None:
    mesh = jm.make_mesh((2, 4))
    for spec in (BOTH, P(("x", "y"))):
        x = jax.device_put(X, NamedSharding(mesh, spec))
        check(lambda v: v * 2, x, mesh=mesh, in_specs=BOTH, out_specs=BOTH)
    for f in both_ways(lambda v: v * 2, mesh=mesh, in_specs=BOTH, out_specs=BOTH):
        with pytest.raises(ValueError, match="incompatible devices"):
            f(jax.device_put(X, jax.devices()[9]))


# --- meshes of the context, Explicit axes ----------------------------------------------------------------------------


def test_the_mesh_of_the_context() -> None:
    with jax.set_mesh(jm.make_mesh((2, 4))):
        check(lambda x: lax.psum(x, "x"), X, in_specs=BOTH, out_specs=ROWS)
        check(lambda x: lax.psum(x, "x"), X, mesh=jax.sharding.get_abstract_mesh(), in_specs=BOTH, out_specs=ROWS)


def test_the_context_of_the_first_call_is_kept() -> None:
    mine, theirs = both_ways(lambda x: lax.psum(x, "x"), in_specs=BOTH, out_specs=ROWS)
    assert outcome(lambda: mine(X)) == outcome(lambda: theirs(X))
    mine, theirs = both_ways(lambda x: lax.psum(x, "x"), in_specs=BOTH, out_specs=ROWS)
    with jax.set_mesh(jm.make_mesh((2, 4))):
        assert_alike(mine(X), theirs(X))
        assert_alike(jax.jit(mine)(X), jax.jit(theirs)(X))
    with jax.set_mesh(jm.make_mesh((4, 2))):
        want = outcome(lambda: theirs(X))
        assert outcome(lambda: mine(X)) == want
        assert "should match the mesh passed to shard_map" in want[1]


@pytest.mark.parametrize("way", [jm.shard_map, jax.shard_map], ids=["ours", "jax"])
def test_a_function_without_a_mesh_is_of_use_again(way: Any) -> None:
    # The first trace of a program, with all axes manual, was the context that such a function kept.
    mesh = jm.make_mesh((2, 4))
    want = (X.reshape(8, 4, 2).astype(np.int32)).sum(1).astype(np.float32)
    whole = X.astype(np.int32).astype(np.float32)

    def mapped() -> Any:
        return way(lambda x: lax.psum(x, "x"), in_specs=BOTH, out_specs=ROWS)

    for setting in (lambda: jax.set_mesh(mesh), contextlib.nullcontext):
        f = mapped()
        with setting():
            assert np.array_equal(jm.jit(f, mesh=mesh)(whole), want)
            assert "ttir.all_reduce" in jm.jit(lambda x, f=f: f(x) + 1, mesh=mesh).trace(whole).as_text()
        with jax.set_mesh(mesh):
            assert np.array_equal(f(whole), want)
            assert np.array_equal(jm.jit(f)(whole), want)


INFER: Any = inspect.signature(jax.shard_map).parameters["in_specs"].default


@pytest.mark.parametrize("spec", [BOTH, P(("x", "y")), WHOLE], ids=str)
def test_explicit_axes(spec: P) -> None:
    mesh = jm.make_mesh((2, 4), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(X, NamedSharding(mesh, spec))
    with jax.set_mesh(mesh):
        check(lambda v: v * 2, x, in_specs=spec, out_specs=spec)
        check(lambda v: v * 2, x, out_specs=spec, eager=False)
        check(lambda v, w: (v * 2, w), x, x, in_specs=INFER, out_specs=spec, jitted=False)


def test_explicit_arguments_placed_otherwise() -> None:
    mesh = jm.make_mesh((2, 4), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(X, NamedSharding(mesh, P("x")))
    with jax.set_mesh(mesh):
        mine, theirs = both_ways(lambda v: v * 2, in_specs=BOTH, out_specs=BOTH)
        assert_alike(outcome(lambda: mine(x)), outcome(lambda: theirs(x)))
        assert_alike(outcome(lambda: jax.jit(mine)(x)), outcome(lambda: jax.jit(theirs)(x)))


# --- what the function looks like, and how it is called --------------------------------------------------------------


def test_the_signature_is_jaxs() -> None:
    want = inspect.signature(jax.shard_map)
    got = inspect.signature(jm.shard_map)
    assert list(got.parameters) == list(want.parameters)
    for name, p in want.parameters.items():
        assert got.parameters[name].kind == p.kind
        # JAX's default for axis_names is an empty set that could be written to.
        assert got.parameters[name].default == p.default


def test_the_name_and_the_documentation_of_the_function() -> None:
    def body(x: Any, *, scale: int = 2) -> Any:
        """What it does."""
        return x * scale

    mine, theirs = both_ways(body, mesh=jm.make_mesh((2, 4)), in_specs=BOTH, out_specs=BOTH)
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        assert getattr(mine, name) == getattr(theirs, name)
    assert inspect.signature(mine) == inspect.signature(theirs)
    assert inspect.unwrap(mine) is inspect.unwrap(theirs)
    assert functools.wraps(mine)(lambda x: x).__doc__ == "What it does."
    assert isinstance(mine, ShardMapped)
    assert "body" in repr(mine)


def test_a_function_without_a_name() -> None:
    check(functools.partial(lambda s, x: x * s, 3), X, mesh=jm.make_mesh((2, 4)), in_specs=BOTH, out_specs=BOTH)


def test_the_decorator_forms() -> None:
    mesh = jm.make_mesh((2, 4))

    @jm.shard_map(mesh=mesh, in_specs=BOTH, out_specs=ROWS)
    def rows(x: Any) -> Any:
        return lax.psum(x, "x")

    @functools.partial(jm.shard_map, mesh=mesh, in_specs=(BOTH,), out_specs=ROWS)
    def again(x: Any) -> Any:
        return lax.psum(x, "x")

    want = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=BOTH, out_specs=ROWS)(X)
    assert_alike(rows(X), want)
    assert_alike(again(X), want)
    assert rows.__name__ == "rows"


@pytest.mark.parametrize("way", [jm.shard_map, jax.shard_map], ids=["jaxmesh", "jax"])
def test_methods(way: Any) -> None:
    mesh = jm.make_mesh((2, 4))

    class Model:
        scale = 3.0

        @functools.partial(way, mesh=mesh, in_specs=(None, BOTH), out_specs=BOTH)
        def run(self, x: Any) -> Any:
            return self.scale * x

        @staticmethod
        @functools.partial(way, mesh=mesh, in_specs=BOTH, out_specs=BOTH)
        def still(x: Any) -> Any:
            return x + 1

    model = Model()
    assert same_bits(model.run(X), 3 * X)
    assert same_bits(jax.jit(model.run)(X), 3 * X)
    assert same_bits(Model.still(X), X + 1)
    assert same_bits(Model.run(model, X), 3 * X)


@pytest.mark.slow
def test_what_the_body_closes_over() -> None:
    mesh = jm.make_mesh((2, 4))
    row = jnp.arange(2.0)
    split = jax.device_put(X, NamedSharding(mesh, BOTH))
    check(lambda x: x * row + np.ones(2, np.float32), X, mesh=mesh, in_specs=BOTH, out_specs=BOTH)
    check(lambda x: x * split.sum(), X, mesh=mesh, in_specs=BOTH, out_specs=BOTH)
    mine, theirs = both_ways(lambda x: x @ split[:2].T, mesh=mesh, in_specs=BOTH, out_specs=BOTH)
    assert outcome(lambda: mine(X))[0] is outcome(lambda: theirs(X))[0] is ValueError

    def around(way: Any) -> Any:
        def f(x: Any, w: Any) -> Any:
            return way(lambda v: v * w.sum() + jnp.sin(w), mesh=mesh, in_specs=BOTH, out_specs=BOTH)(x)

        return f

    mine, theirs = around(jm.shard_map), around(jax.shard_map)
    w = jnp.float32(0.3)
    assert_alike(jax.jit(mine)(X, w), jax.jit(theirs)(X, w))
    for argnum in (0, 1):
        got, want = (jax.jit(jax.grad(lambda x, w, f=f: f(x, w).sum(), argnum))(X, w) for f in (mine, theirs))
        assert_alike(got, want)


def nested(way: Any, mesh: Any) -> Any:
    inner = way(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=BOTH, out_specs=ROWS)
    outer = way(lambda x: x * 2, mesh=mesh, in_specs=ROWS, out_specs=ROWS)
    return lambda x: outer(jnp.sin(inner(x)))


def test_one_after_the_other() -> None:
    mesh = jm.make_mesh((2, 4))
    mine, theirs = nested(jm.shard_map, mesh), nested(jax.shard_map, mesh)
    assert_alike(mine(X), theirs(X))
    assert_alike(jax.jit(mine)(X), jax.jit(theirs)(X))
    assert_alike(jax.jit(jax.grad(lambda x: mine(x).sum()))(X), jax.jit(jax.grad(lambda x: theirs(x).sum()))(X))


def test_one_inside_the_other_over_another_axis() -> None:
    mesh = jm.make_mesh((2, 4))

    def run(way: Any) -> Any:
        def outer(x: Any) -> Any:
            inner = way(lambda v: v * lax.axis_index("x"), in_specs=P(None, "x"), out_specs=P(None, "x"),
                        axis_names={"x"})  # fmt: skip
            return inner(x) + lax.axis_index("y")

        return jax.jit(way(outer, mesh=mesh, in_specs=P("y"), out_specs=P("y"), axis_names={"y"}))

    assert_alike(run(jm.shard_map)(X), run(jax.shard_map)(X))


def test_one_inside_the_other_over_the_same_axes_is_jaxs_error() -> None:
    mesh = jm.make_mesh((2, 4))

    def run(way: Any) -> Any:
        inner = way(lambda v: v, mesh=mesh, in_specs=BOTH, out_specs=BOTH)
        return outcome(lambda: way(inner, mesh=mesh, in_specs=BOTH, out_specs=BOTH)(X))

    got, want = run(jm.shard_map), run(jax.shard_map)
    assert got == want
    assert want[0] is ValueError


def test_donation() -> None:
    mesh = jm.make_mesh((2, 4))
    for f in both_ways(lambda x: x + 1, mesh=mesh, in_specs=BOTH, out_specs=BOTH):
        x = jax.device_put(X, NamedSharding(mesh, BOTH))
        y = jax.jit(f, donate_argnums=0)(x)
        assert x.is_deleted()
        assert same_bits(y, X + 1)


def test_jaxs_own_stages() -> None:
    mine, theirs = both_ways(
        lambda x: lax.psum(jnp.sin(x), "x"), mesh=jm.make_mesh((2, 4)), in_specs=BOTH, out_specs=ROWS
    )
    lowered = jax.jit(mine).lower(X)
    assert isinstance(lowered, jax.stages.Lowered)
    assert "sdy.manual_computation" in lowered.as_text() or "shard_map" in lowered.as_text()
    assert lowered.out_info == jax.jit(theirs).lower(X).out_info
    assert_alike(lowered.compile()(X), jax.jit(theirs).lower(X).compile()(X))
    assert jax.eval_shape(mine, X) == jax.eval_shape(theirs, X)
    assert jax.make_jaxpr(mine)(X).out_avals == jax.make_jaxpr(theirs)(X).out_avals


def test_our_own_stages() -> None:
    f = jm.shard_map(lambda x: lax.psum(x, "x"), mesh=jm.make_mesh((2, 4)), in_specs=BOTH, out_specs=ROWS)
    traced, lowered = f.trace(X), f.lower(X)
    assert [e.params["shard_dims"] for e in traced.jaxpr.eqns if e.primitive.name == "mesh_shard"] == [(0, 1), (0, -1)]
    assert "distribute_tensor" in lowered.as_text()
    want = f(X)
    assert same_bits(lowered.compile()(X), want)
    np.testing.assert_allclose(lowered.reference(X), want, rtol=1e-6)


def test_in_a_scan() -> None:
    mesh = jm.make_mesh((2, 4))

    def run(way: Any) -> Any:
        step = way(lambda c, x: lax.psum(c * 0.3, "x") * x, mesh=mesh, in_specs=(BOTH, BOTH), out_specs=BOTH)
        return lambda c, xs: lax.scan(lambda c, x: (step(c, x), c.sum()), c, xs)

    mine, theirs = run(jm.shard_map), run(jax.shard_map)
    xs = jnp.stack([X, X * 0.5])
    assert_alike(jax.jit(mine)(X, xs), jax.jit(theirs)(X, xs))
    got, want = (jax.jit(jax.grad(lambda c, f=f: f(c, xs)[0].sum()))(X) for f in (mine, theirs))
    assert_alike(got, want)


# --- differentiation -------------------------------------------------------------------------------------------------


@jax.custom_vjp
def halved(x: Any) -> Any:
    return jnp.sin(x)


halved.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (0.5 * ct * jnp.cos(x),))


@jax.custom_jvp
def doubled(x: Any) -> Any:
    return jnp.cos(x)


doubled.defjvp(lambda p, t: (jnp.cos(p[0]), -2 * t[0] * jnp.sin(p[0])))

SMOOTH: dict[str, Case] = {
    "matmul and psum": Case(lambda x, w: lax.psum(jnp.tanh(x @ w), "x"), (BOTH, P("x")), ROWS, (X, X)),
    "gather": Case(lambda x: jnp.sin(lax.all_gather(x, "x", axis=1, tiled=True)) @ jnp.ones((8, 2))),
    "gather to invarying": Case(lambda x: lax.all_gather(x, "x", axis=1, tiled=True, to="invarying") ** 2,
                                out_specs=ROWS),
    "scatter": Case(lambda x: lax.psum_scatter(x * x, "x", scatter_dimension=0, tiled=True), ROWS, P(("y", "x"))),
    "ring": Case(lambda x: lax.ppermute(jnp.sin(x), "x", RING) * x),
    "all_to_all": Case(lambda x: lax.all_to_all(x ** 2, "x", 1, 0, tiled=True), P("x"), P(None, "x")),
    "maximum": Case(lambda x: x - lax.pmax(lax.stop_gradient(x), "x")),
    "mean of all": Case(lambda x: lax.pmean((x * x).mean(), ("y", "x")), BOTH, WHOLE),
    "replicated weights": Case(lambda x, w: jnp.tanh(x @ w), (ROWS, WHOLE), ROWS, (X, X)),
    "custom_vjp": Case(lambda x: halved(x) * x),
    "custom_jvp": Case(lambda x: doubled(x) * x),
    "scan and cond": Case(lambda x: lax.scan(lambda c, r: (jnp.sin(c) + r, None), x[0], x)[0][None] * lax.cond(
        lax.axis_index("x") > 1, jnp.sin, jnp.cos, x), out_specs=BOTH),
    "checkpoint": Case(lambda x: jax.checkpoint(lambda v: jnp.sin(lax.psum(jnp.sin(v), "x")))(x), out_specs=ROWS),
    "backwards": Case(lambda x: x * lax.axis_index("x") * x, P(("x", "y")), P(("x", "y"))),
}  # fmt: skip


def loss(f: Any) -> Any:
    return lambda *args: sum(jnp.vdot(y, jnp.cos(y)) for y in jax.tree.leaves(f(*args)))


@pytest.mark.slow
def test_gradients() -> None:
    run_jitted(SMOOTH, lambda f: lambda *args: jax.value_and_grad(loss(f), tuple(range(len(args))))(*args))


@pytest.mark.slow
def test_tangents() -> None:
    forward = {name: case for name, case in SMOOTH.items() if name != "custom_vjp"}
    run_jitted(forward, lambda f: lambda *args: jax.jvp(f, args, tuple(map(jnp.cos, args))))


@pytest.mark.slow
def test_gradients_in_a_batch() -> None:
    def derive(f: Any) -> Any:
        def batched(*args: Any) -> Any:
            return jax.vmap(jax.grad(loss(f), tuple(range(len(args)))))(*[jnp.stack([a, a * 0.5]) for a in args])

        return batched

    run_jitted(SMOOTH, derive)


MLP: dict[str, Any] = {"in_specs": (BOTH, P("x")), "out_specs": ROWS}


def mlp(x: Any, w: Any) -> Any:
    return lax.psum(jnp.tanh(x @ w), "x")


DERIVED: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: jax.grad(loss(f), (0, 1)),
    "vjp": lambda f: lambda x, w: jax.vjp(f, x, w)[1](X),
    "vjp, has_aux": lambda f: lambda x, w: jax.vjp(lambda v: (f(v, w), v.sum()), x, has_aux=True)[0],
    "linearize": lambda f: lambda x, w: jax.linearize(f, jnp.asarray(x), jnp.asarray(w))[1](
        jnp.asarray(w), jnp.asarray(x)),
    "linear_transpose": lambda f: lambda x, w: jax.linear_transpose(
        lambda v: jax.jvp(lambda u: f(u, w), (x,), (v,))[1], x)(x),
    "second order": lambda f: jax.grad(lambda x, w: (jax.grad(loss(f))(x, w) ** 2).sum()),
    "forward over reverse": lambda f: lambda x, w: jax.jvp(jax.grad(loss(f)), (x, w), (w, x)),
    "hessian": lambda f: lambda x, w: jax.hessian(lambda s: loss(f)(x * s, w))(jnp.ones(2).repeat(4)),
    "jacfwd": lambda f: lambda x, w: jax.jacfwd(lambda s: f(x * s, w).sum())(jnp.ones(8)),
    "jacrev": lambda f: lambda x, w: jax.jacrev(lambda s: f(x * s, w)[:2, :2])(jnp.ones(8)),
    "checkpoint": lambda f: jax.grad(loss(jax.checkpoint(f))),
    "checkpoint, dots": lambda f: jax.grad(
        loss(jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable))),
    "checkpoint, nothing": lambda f: jax.grad(
        loss(jax.checkpoint(f, policy=jax.checkpoint_policies.nothing_saveable)), (0, 1)),
    "checkpoint, everything": lambda f: jax.grad(
        loss(jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable))),
    "grad of vmap": lambda f: jax.grad(lambda x, w: loss(jax.vmap(f, (0, None)))(jnp.stack([x, x * 2]), w), 1),
    "vmap of grad": lambda f: lambda x, w: jax.vmap(jax.grad(loss(f)), (None, 0))(x, jnp.stack([w, w * 2])),
    "in custom_vjp": lambda f: jax.grad(loss(wrapped_vjp(f))),
    "in a loop": lambda f: jax.grad(lambda x, w: lax.scan(lambda c, _: (f(c, w), None), x, None, length=2)[0].sum()),
}  # fmt: skip


def wrapped_vjp(f: Any) -> Any:
    @jax.custom_vjp
    def g(x: Any, w: Any) -> Any:
        return f(x, w)

    g.defvjp(lambda x, w: (f(x, w), (x, w)), lambda r, ct: (f(ct, r[1]), f(r[0], ct)))
    return g


@pytest.mark.slow
def test_derivatives() -> None:
    mine, theirs = both_ways(mlp, mesh=jm.make_mesh((2, 4)), **MLP)
    got, want = (
        jax.jit(lambda x, w, f=f: {name: derive(f)(x, w) for name, derive in DERIVED.items()})(X, X)
        for f in (mine, theirs)
    )
    for name in DERIVED:
        assert_alike(got[name], want[name])


@pytest.mark.slow
def test_derivatives_eagerly() -> None:
    """Bit for bit where nothing is rounded, on any processor.

    Eagerly, JAX compiles what a `jit` in the body holds (`jnp.matmul` is one) as a whole, while a raised program has it
    inlined, operation by operation: where numbers are rounded, the last bit follows what is compiled together.
    """
    whole = np.round(X)

    def exact(x: Any, w: Any) -> Any:
        return lax.psum((x @ w) * 2 - x.sum(), "x")

    got, want = (
        jax.grad(lambda x, w, f=f: (f(x, w) ** 2).sum(), (0, 1))(whole, whole)
        for f in both_ways(exact, mesh=jm.make_mesh((2, 4)), **MLP)
    )
    assert_alike(got, want)
    mine, theirs = both_ways(mlp, mesh=jm.make_mesh((2, 4)), **MLP)
    for a, b in zip(DERIVED["grad"](mine)(X, X), DERIVED["grad"](theirs)(X, X), strict=True):
        assert a.sharding == b.sharding
        np.testing.assert_allclose(a, b, rtol=4 * np.finfo(np.float32).eps, atol=4 * np.finfo(np.float32).eps)


def test_saved_by_name() -> None:
    def body(x: Any, w: Any) -> Any:
        return lax.psum(checkpoint_name(jnp.tanh(x @ w), "hidden"), "x")

    policy = jax.checkpoint_policies.save_only_these_names("hidden")
    inside = jax.checkpoint(body, policy=policy)
    for b in (body, inside):
        mine, theirs = both_ways(b, mesh=jm.make_mesh((2, 4)), **MLP)
        got, want = (jax.jit(jax.grad(loss(jax.checkpoint(f, policy=policy)), (0, 1)))(X, X) for f in (mine, theirs))
        assert_alike(got, want)


def test_gradients_in_the_body() -> None:
    def body(x: Any, w: Any) -> Any:
        return jax.grad(lambda v: lax.psum(jnp.tanh(x @ v).sum(), "y"))(w)

    options = {"mesh": jm.make_mesh((2, 4)), "in_specs": (ROWS, WHOLE), "out_specs": WHOLE}
    check(body, X, X, eager=False, **options)


# --- vmap ------------------------------------------------------------------------------------------------------------


def test_vmap() -> None:
    axes = [(0, 0), (1, 0), (2, 1), (-1, -1), (0, 2)]
    for spec in (BOTH, ROWS, P(("x", "y"))):
        case = Case(lambda x: x * 2 + x.sum(), spec, spec)

        def derive(f: Any) -> Any:
            def batched(x: Any) -> Any:
                batch = jnp.stack([x, x + 1, x * 2])
                return [jax.vmap(f, i, o)(jnp.moveaxis(batch, 0, i)) for i, o in axes]

            return batched

        run_jitted({"the case": case}, derive)


def test_vmap_of_some_arguments_and_eagerly() -> None:
    mine, theirs = both_ways(mlp, mesh=jm.make_mesh((2, 4)), **MLP)
    batch = np.stack([X, X + 1])
    for axes in ((0, None), (None, 0), (0, 0)):
        args = [X if a is None else batch for a in axes]
        assert_alike(jax.jit(jax.vmap(mine, axes))(*args), jax.jit(jax.vmap(theirs, axes))(*args))
    assert_alike(jax.vmap(mine, (0, None))(batch, X), jax.vmap(theirs, (0, None))(batch, X))


def test_vmap_twice_with_names() -> None:
    body = lambda x: x - lax.pmean(x, "batch") + lax.psum(x, "x")  # noqa: E731
    mine, theirs = both_ways(lambda x: x + x.sum(), mesh=jm.make_mesh((2, 4)), in_specs=BOTH, out_specs=BOTH)
    batch = np.stack([np.stack([X, X + 1])] * 3)
    got, want = (
        jax.jit(jax.vmap(jax.vmap(lambda x, f=f: f(x) - lax.pmean(x, "b"), axis_name="b")))(batch)
        for f in (mine, theirs)
    )
    assert_alike(got, want)
    mine, theirs = both_ways(body, mesh=jm.make_mesh((2, 4)), in_specs=BOTH, out_specs=BOTH)
    got, want = (outcome(lambda f=f: jax.jit(jax.vmap(f, axis_name="batch"))(batch[0])) for f in (mine, theirs))
    assert_alike(got, want)


def test_vmap_over_a_mesh_axis() -> None:
    mesh = jm.make_mesh((2, 4))
    mine, theirs = both_ways(lambda x: lax.psum(jnp.sin(x), "x"), mesh=mesh, in_specs=P("x"), out_specs=WHOLE)
    batch = np.stack([X, X + 1])
    for derive in (lambda f: f, lambda f: jax.grad(lambda x: f(x).sum())):
        got, want = (jax.jit(jax.vmap(derive(f), spmd_axis_name="y"))(batch) for f in (mine, theirs))
        assert_alike(got, want)
    got, want = (outcome(lambda f=f: jax.vmap(f, spmd_axis_name="x")(batch)) for f in (mine, theirs))
    assert_alike(got, want)


# --- what runs as JAX runs it ----------------------------------------------------------------------------------------


def test_python_that_looks_at_replicated_values() -> None:
    def body(x: Any, s: Any) -> Any:
        return x * 2 if s > 0 else -x

    options = {"mesh": jm.make_mesh((2, 4)), "in_specs": (BOTH, WHOLE), "out_specs": BOTH}
    mine, theirs = both_ways(body, **options)
    for s in (jnp.float32(1), jnp.float32(-1)):
        assert_alike(mine(X, s), theirs(X, s))
    assert outcome(lambda: jax.jit(mine)(X, 1.0)) == outcome(lambda: jax.jit(theirs)(X, 1.0))
    with pytest.raises(jax.errors.TracerBoolConversionError):
        mine.trace(X, 1.0)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_debug_prints(jit: bool, capfd: Any) -> None:
    def body(x: Any) -> Any:
        jax.debug.print("sum {}", lax.psum(x.sum(), ("y", "x")), ordered=False)
        return x * 2

    texts = []
    for f in both_ways(body, mesh=jm.make_mesh((2, 4)), in_specs=BOTH, out_specs=BOTH):
        run = jax.jit(f) if jit else f
        assert same_bits(run(N), N * 2)
        jax.effects_barrier()
        texts.append(sorted(capfd.readouterr().out.split("\n")))
    assert texts[0] == texts[1]
    assert f"sum {N.sum()}" in texts[0]


def test_callbacks() -> None:
    def twice(x: Any) -> Any:
        return np.asarray(x) * 2

    def body(x: Any) -> Any:
        return jax.pure_callback(twice, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    options = {"mesh": jm.make_mesh((2, 4)), "in_specs": BOTH, "out_specs": BOTH}
    check(body, X, **options)
    seen: list[float] = []

    def heard(x: Any) -> Any:
        jax.debug.callback(lambda v: seen.append(float(v)), x[0, 0])
        return x

    for f in both_ways(heard, **options):
        jax.block_until_ready(jax.jit(f)(N))
        jax.effects_barrier()
    assert sorted(seen[:8]) == sorted(seen[8:]) == sorted(N[::4, ::2].ravel().tolist())


def test_effects_have_no_text() -> None:
    def body(x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return x

    mapped = jm.shard_map(body, mesh=jm.make_mesh((2, 4)), in_specs=BOTH, out_specs=BOTH)
    with pytest.raises(jm.InexpressibleError, match=r"effects .*Debug"):
        mapped.trace(X).as_text()


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no jax.new_ref")
def test_references() -> None:
    def inside(x: Any) -> Any:
        ref = jax.new_ref(x)
        ref[...] += 1
        ref[0] = ref[1] * 2
        return ref[...]

    options = {"mesh": jm.make_mesh((2, 4)), "in_specs": BOTH, "out_specs": BOTH}
    mine, theirs = both_ways(inside, **options)
    for derive in (lambda f: f, lambda f: jax.grad(lambda x: f(x).sum())):
        got, want = (outcome(lambda f=f: jax.jit(derive(f))(X)) for f in (mine, theirs))  # noqa: B023
        assert_alike(got, want)

    def writing(x: Any, ref: Any) -> Any:
        ref[...] = x * 2
        return x

    mine, theirs = both_ways(writing, mesh=options["mesh"], in_specs=(BOTH, BOTH), out_specs=BOTH)

    def run(f: Any) -> Any:
        def whole(x: Any) -> Any:
            ref = jax.new_ref(jnp.zeros_like(x))
            return f(x, ref), ref[...]

        return outcome(lambda: jax.jit(whole)(X))

    assert_alike(run(mine), run(theirs))


PARTIAL: dict[str, Any] = {
    "one axis": (lambda x: lax.psum(x, "x"), P(None, "x"), WHOLE, {"x"}),
    "the other": (lambda x: lax.ppermute(x, "y", [(0, 1), (1, 0)]), P("y"), P("y"), {"y"}),
    "a matmul": (lambda x: lax.psum(x @ x.T, "x"), P(None, "x"), WHOLE, {"x"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", list(PARTIAL.values()), ids=list(PARTIAL))
def test_some_axes_alone(case: Any) -> None:
    body, in_specs, out_specs, names = case
    options = {"mesh": jm.make_mesh((2, 4)), "in_specs": in_specs, "out_specs": out_specs, "axis_names": names}
    mine, theirs = both_ways(body, **options)
    lowered = jm.jit(theirs).lower(X)
    assert "ttnn." in lowered.as_text()
    np.testing.assert_allclose(np.asarray(lowered.compile()(X)), np.asarray(jax.jit(theirs)(X)), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(lowered.reference(X)), np.asarray(jax.jit(theirs)(X)), rtol=1e-6)
    # Eager partial mapping is not for every JAX; what it says is said here too.
    assert_alike(outcome(lambda: mine(X)), outcome(lambda: theirs(X)))
    x = jax.device_put(X, NamedSharding(options["mesh"], P(None, "x")))
    for arg in (X, x):
        assert_alike(jax.jit(mine)(arg), jax.jit(theirs)(arg))
    got, want = (jax.jit(jax.grad(lambda v, f=f: jnp.sin(f(v)).sum()))(X) for f in (mine, theirs))
    assert_alike(got, want)
    assert "ttir." in mine.trace(X).as_text()


def test_all_axis_names_are_all_axes() -> None:
    check(lambda x: lax.psum(x, "x"), X, mesh=jm.make_mesh((2, 4)), in_specs=BOTH, out_specs=ROWS,
          axis_names={"x", "y"})  # fmt: skip


def test_unreduced_results() -> None:
    mesh = jm.make_mesh((2, 4), axis_types=(AxisType.Explicit,) * 2)

    def run(way: Any) -> Any:
        def f(x: Any) -> Any:
            part = way(lambda v: lax.pcast(v.sum(1), "x", to="unreduced"), in_specs=BOTH,
                       out_specs=P("y", unreduced={"x"}))(x)  # fmt: skip
            return jax.reshard(part, P("y"))

        with jax.set_mesh(mesh):
            return outcome(lambda: jax.jit(f)(jax.device_put(X, NamedSharding(mesh, BOTH))))

    assert_alike(run(jm.shard_map), run(jax.shard_map))


UNCHECKED: dict[str, Case] = {
    "psum": Case(lambda x: lax.psum(x, "x"), out_specs=ROWS),
    "gather": Case(lambda x: lax.all_gather(x, "x", axis=1, tiled=True), out_specs=ROWS),
    "not replicated": Case(lambda x: x * 2, out_specs=ROWS),
    "scatter": Case(lambda x: lax.psum_scatter(x * x, "x", scatter_dimension=0, tiled=True), ROWS, P(("y", "x"))),
    "replicated weights": Case(lambda x, w: jnp.tanh(x @ w), (ROWS, WHOLE), ROWS, (X, X)),
    "mean of all": Case(lambda x: lax.pmean((x * x).mean(), ("y", "x")), BOTH, WHOLE),
    "a loop": Case(lambda x: lax.fori_loop(0, 3, lambda _, c: jnp.sin(c), x)),
    "cond": Case(lambda x: lax.cond(lax.axis_index("x") > 1, jnp.sin, lambda v: v * 2, x)),
    "custom_vjp": Case(lambda x: halved(x) * x),
}


@each(UNCHECKED)
@pytest.mark.usefixtures("unequal_copies")
def test_without_checks(case: Case) -> None:
    mine, theirs = pair(case, check_vma=False)
    assert_alike(mine(*case.args), theirs(*case.args))


@pytest.mark.usefixtures("unequal_copies")
def test_without_checks_jitted() -> None:
    run_jitted(UNCHECKED, check_vma=False)


@pytest.mark.slow
# Bits are compared, and XLA rounds otherwise where copies are compared as well.
@pytest.mark.usefixtures("unequal_copies")
def test_gradients_without_checks() -> None:
    grad = lambda f: lambda *args: jax.grad(loss(f), tuple(range(len(args))))(*args)  # noqa: E731
    run_jitted({n: c for n, c in UNCHECKED.items() if n != "not replicated"}, grad, check_vma=False)


# --- errors ----------------------------------------------------------------------------------------------------------

MESH = jm.make_mesh((2, 4))
GOOD: dict[str, Any] = {"mesh": MESH, "in_specs": BOTH, "out_specs": BOTH}
MISTAKES: dict[str, tuple[Any, dict[str, Any], tuple[Any, ...]]] = {
    "a forgotten psum": (lambda x: x, {"out_specs": ROWS}, (X,)),
    "unknown axis in": (lambda x: x, {"in_specs": P("z")}, (X,)),
    "unknown axis out": (lambda x: x, {"out_specs": P("z")}, (X,)),
    "axis twice": (lambda x: x, {"in_specs": P("x", "x")}, (X,)),
    "axis twice, out": (lambda x: x, {"out_specs": P("x", "x")}, (X,)),
    "uneven": (lambda x: x, {"in_specs": P("x")}, (X[:6],)),
    "too many entries": (lambda x: x, {"in_specs": P(None, None, "x")}, (X,)),
    "too many entries, out": (lambda x: x.sum(), {"out_specs": P("x")}, (X,)),
    "too few specs": (lambda x, y: x, {"in_specs": (BOTH,)}, (X, X)),
    "too many specs": (lambda x: x, {"in_specs": (BOTH, BOTH)}, (X,)),
    "tree of results": (lambda x: (x, x), {"out_specs": (BOTH,) * 3}, (X,)),
    "keys of results": (lambda x: {"a": x}, {"out_specs": {"b": BOTH}}, (X,)),
    "text for a spec": (lambda x: x, {"in_specs": "x"}, (X,)),
    "text for a spec, out": (lambda x: x, {"out_specs": "x"}, (X,)),
    "a number for a spec": (lambda x: x, {"in_specs": 3}, (X,)),
    "no mesh": (lambda x: x, {"mesh": None}, (X,)),
    "no mesh but a shape": (lambda x: x, {"mesh": (2, 4)}, (X,)),
    "abstract mesh": (lambda x: x, {"mesh": AbstractMesh((2, 4), ("y", "x"))}, (X,)),
    "not callable": (3, {}, (X,)),
    "unknown axis_names": (lambda x: x, {"axis_names": {"z"}}, (X,)),
    "text for axis_names": (lambda x: x, {"axis_names": "x"}, (X,)),
    "spec of an axis that is not manual": (lambda x: x, {"axis_names": {"x"}}, (X,)),
    "unreduced": (lambda x: x, {"out_specs": P(unreduced={"x"})}, (X,)),
    "inferred specs of Auto axes": (lambda x: x, {"in_specs": INFER}, (X,)),
    "an unknown option": (lambda x: x, {"check_rep": False}, (X,)),
    "too few arguments": (lambda x, y: x, {}, (X,)),
    "too many arguments": (lambda x: x, {}, (X, X)),
    "text as result": (lambda x: "a", {}, (X,)),
    "an error in the body": (lambda x: 1 / 0, {}, (X,)),
    "an unknown axis in the body": (lambda x: lax.psum(x, "z"), {}, (X,)),
    "shapes in the body": (lambda x: x @ x, {}, (X,)),
    "types of a carry": (lambda x: lax.scan(lambda c, r: (c + r.sum(), None), 0.0, x)[0], {}, (X,)),
    "types of branches": (lambda x: lax.cond(True, lambda v: v, lambda v: lax.psum(v, "x"), x), {}, (X,)),
    "truth of a shard": (lambda x: x if x.sum() > 0 else -x, {}, (X,)),
    "float of a value": (lambda x, s: x * float(s), {"in_specs": (BOTH, WHOLE)}, (X, V[0])),
    "NumPy of a value": (lambda x, s: x * np.asarray(s), {"in_specs": (BOTH, WHOLE)}, (X, V[0])),
}  # fmt: skip


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("mistake", list(MISTAKES.values()), ids=list(MISTAKES))
def test_errors_are_jaxs(mistake: tuple[Any, dict[str, Any], tuple[Any, ...]], jit: bool) -> None:
    body, options, args = mistake

    def run(way: Any) -> Any:
        f = way(body, **{**GOOD, **options})
        return (jax.jit(f) if jit else f)(*args)

    got, want = outcome(lambda: run(jm.shard_map)), outcome(lambda: run(jax.shard_map))
    assert isinstance(want, tuple)
    assert issubclass(want[0], Exception)
    assert got == want


def test_more_errors_are_jaxs() -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda way: way(lambda x: x, mesh=MESH, in_specs=BOTH),
        lambda way: way(lambda x: x, MESH, BOTH, BOTH),
        lambda way: way(mesh=MESH, in_specs=BOTH, out_specs=BOTH)(3),
        lambda way: way(lambda x: x, **GOOD)("text"),
        lambda way: way(lambda x: x, **GOOD)(x=X),
    ]
    for call in calls:
        want = outcome(lambda: call(jax.shard_map))  # noqa: B023
        assert issubclass(want[0], TypeError)
        assert outcome(lambda: call(jm.shard_map)) == want  # noqa: B023


def test_errors_say_nothing_of_the_detour() -> None:
    def body(x: Any) -> Any:
        raise KeyError("mine")

    mine, theirs = both_ways(body, **GOOD)
    for f in (mine, theirs):
        with pytest.raises(KeyError, match="mine") as caught:
            f(X)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


# --- random cases ----------------------------------------------------------------------------------------------------

NAMES = ("z", "y", "x")


@st.composite
def specs(draw: Any, rank: int, axes: tuple[str, ...]) -> P:
    """A partition spec: any axes on any dims, in any order."""
    row = draw(st.permutations(axes))
    entries: list[Any] = [[] for _ in range(rank)]
    for axis in row:
        dim = draw(st.integers(-1, rank - 1))
        if dim >= 0:
            entries[dim].append(axis)
    return P(*[None if not e else e[0] if len(e) == 1 and draw(st.booleans()) else tuple(e) for e in entries])


BODIES: list[Callable[[Any, tuple[str, ...], tuple[str, ...]], Any]] = [
    lambda x, kept, gone: x * 2,
    lambda x, kept, gone: lax.psum(x, gone) if gone else x,
    lambda x, kept, gone: lax.pmax(x, gone) + x if gone else -x,
    lambda x, kept, gone: x + sum(lax.axis_index(a) for a in kept),
    lambda x, kept, gone: lax.ppermute(x, kept, [(0, 0)]) if kept else x,
    lambda x, kept, gone: lax.scan(lambda c, _: (c * 3 + 1, None), x, None, length=2)[0],
]


@st.composite
def programs(draw: Any) -> Any:
    mesh = draw(st.sampled_from([(2,), (4,), (1, 2), (2, 2), (2, 3), (2, 1, 2), (2, 2, 2)]))
    axes = NAMES[-len(mesh) :]
    rank = draw(st.integers(0, 3))
    # Whatever one dim may be split by divides it.
    shape = tuple(math.prod(mesh) * draw(st.integers(1, 2)) for _ in range(rank))
    body, in_spec, out_spec = draw(st.sampled_from(BODIES)), draw(specs(rank, axes)), draw(specs(rank, axes))
    return mesh, shape, body, in_spec, out_spec


def names(spec: P) -> set[str]:
    return {a for e in spec if e is not None for a in (e if isinstance(e, tuple) else (e,))}


@cases(20)
@hypothesis.given(programs())
def test_random_programs(program: Any) -> None:
    mesh, shape, body, in_spec, out_spec = program
    order = NAMES[-len(mesh) :]
    entering, leaving = names(in_spec), names(out_spec)
    kept = tuple(a for a in order if a in entering & leaving)
    gone = tuple(a for a in order if a in entering - leaving)
    x = np.arange(math.prod(shape), dtype=np.int32).reshape(shape) % 11

    def run(v: Any) -> Any:
        missing = tuple(a for a in order if a in leaving - entering)
        y = body(v, kept, gone)
        return lax.pcast(y, missing, to="varying") if missing else y

    options = {"mesh": jm.make_mesh(mesh, order), "in_specs": in_spec, "out_specs": out_spec}
    mine, theirs = both_ways(run, **options)
    want = outcome(lambda: jax.jit(theirs)(x))
    assert_alike(outcome(lambda: jm.jit(mine)(x)), want)
    if isinstance(want, jax.Array):
        assert same_bits(mine.lower(x).reference(x), want)


def test_a_trace_holds_no_equation_of_our_own() -> None:
    x = jnp.ones((8, 8))
    mapped = jm.shard_map(lambda x: x * 2, mesh=jm.make_mesh((2, 4)), in_specs=P("x"), out_specs=P("x"))
    assert [e.primitive.name for e in jax.make_jaxpr(mapped)(x).eqns] == ["shard_map"]
    assert [e.primitive.name for e in jax.make_jaxpr(jax.jit(mapped))(x).eqns[0].params["jaxpr"].eqns] == ["shard_map"]
    program = jm.jit(lambda x: x * 2, mesh=jm.make_mesh((2, 4)))
    assert len(jax.make_jaxpr(program)(x).eqns) == 1


def test_sizes_that_an_export_leaves_open() -> None:
    size = jax.export.symbolic_shape("size")[0]
    program = jm.jit(lambda x: x * 2, mesh=jm.make_mesh((2, 4)))
    exported = jax.export.export(jax.jit(program))(jax.ShapeDtypeStruct((size, 8), jnp.float32))
    assert str(exported.out_avals[0].shape) == "(size, 8)"


def test_a_mesh_tensor_is_no_full_array() -> None:
    mesh = jm.make_mesh((2, 4), ("y", "x"))
    device = jm.ttnn.open_mesh_device(mesh_shape=jm.ttnn.MeshShape(2, 4))
    config = jm.ttnn.MeshMapperConfig([jm.ttnn.PlacementShard(0), jm.ttnn.PlacementReplicate()])
    x = jnp.arange(32.0).reshape(8, 4)
    tensor = jm.ttnn.distribute_tensor(x, jm.ttnn.create_mesh_mapper(device, config))

    @jm.shard_map(mesh=mesh, in_specs=P("y"), out_specs=P("y"))
    def double(block: Any) -> Any:
        return 2 * block

    calls: list[Callable[[], Any]] = [
        lambda: double(tensor),
        lambda: jax.jit(double)(tensor),
        lambda: jax.jit(lambda: double(tensor))(),
        lambda: double.trace(tensor),
    ]
    for call in calls:
        with pytest.raises(jm.ArgumentTypeError, match="holds a MeshTensor, but such a function splits full arrays"):
            call()
    # What the message advises.
    body = jm.jit(lambda block: 2 * block, mesh=mesh)(tensor)
    composer = jm.ttnn.create_mesh_composer(device, jm.ttnn.MeshComposerConfig([0, 1], jm.ttnn.MeshShape(2, 1)))
    np.testing.assert_array_equal(jm.to_host(body, composer), 2 * x)
    np.testing.assert_array_equal(double(jm.to_host(tensor, composer)), 2 * x)
