"""`jm.shard_map` against `jax.shard_map`: meshes in part, names of `vmap`, reduced types, rules with zeros, mistakes.

Each case is a function of the one `shard_map` or the other. What has values runs in one program for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

import jaxmesh as jm
from tests.generators.alike import assert_alike, outcome

X = np.arange(64, dtype=np.float32).reshape(8, 8) % 11 - 4
FOUR, GRID, CUBE = (
    jm.make_mesh((4,), ("x",)),
    jm.make_mesh((2, 2), ("x", "y")),
    jm.make_mesh((2, 2, 1), ("x", "y", "z")),
)
RING = [(i, (i + 1) % 4) for i in range(4)]
Way = Callable[..., Any]
SPLIT = P("x")
VALUES: dict[str, Callable[[Way, Any], Any]] = {}
ERRORS: dict[str, Callable[[Way], Any]] = {}


def value(case: Callable[[Way, Any], Any]) -> Callable[[Way, Any], Any]:
    VALUES[case.__name__] = case
    return case


def rows(way: Way, body: Any, x: Any, mesh: Any = FOUR, ins: Any = SPLIT, outs: Any = SPLIT, **more: Any) -> Any:
    return way(body, mesh=mesh, in_specs=ins, out_specs=outs, **more)(x)


# --- values, all in one program --------------------------------------------------------------------------------------


@value
def vmap_with_spmd_axis_name(way: Way, x: Any) -> Any:
    f = way(lambda v: v * 2, mesh=GRID, in_specs=P("x"), out_specs=P("x"))
    return jax.vmap(f, spmd_axis_name="y")(x)


@value
def vmap_with_two_spmd_axis_names(way: Way, x: Any) -> Any:
    f = way(lambda v: v * 2, mesh=CUBE, in_specs=P("x"), out_specs=P("x"))
    return jax.vmap(f, spmd_axis_name=("y", "z"))(x)


@value
def vmap_of_a_captured_value(way: Way, x: Any) -> Any:
    f = way(lambda v: v + 1, mesh=GRID, in_specs=P("x"), out_specs=P("x"))
    return jax.vmap(lambda v: f(v) * x.sum(), spmd_axis_name="y")(x)


@value
def vmap_to_other_dims(way: Way, x: Any) -> Any:
    f = way(lambda v, k: (v + k, k), mesh=FOUR, in_specs=(P("x"), P()), out_specs=(P("x"), P()))
    return jax.vmap(f, in_axes=(1, None), out_axes=(2, None))(jnp.stack([x, x], 1), 3.0)


@value
def an_axis_of_vmap_where_nothing_is_checked(way: Way, x: Any) -> Any:
    f = way(lambda v: lax.psum(v, "i"), mesh=FOUR, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return jax.vmap(f, axis_name="i")(x)


@value
def some_axes_manual_with_gradient(way: Way, x: Any) -> Any:
    f = way(lambda a, b: lax.psum(a * b, "x"), mesh=GRID, in_specs=(P("x"), P()), out_specs=P(), axis_names={"x"})
    return jax.grad(lambda a, b: (f(a, b) ** 2).sum(), (0, 1))(x, x[:4])


@value
def one_axis_inside_the_other(way: Way, x: Any) -> Any:
    def outer(v: Any) -> Any:
        inner = way(lambda u: lax.psum(u, "y"), in_specs=P(None, "y"), out_specs=P(), axis_names={"y"})
        return lax.psum(inner(v), "x")

    f = way(outer, mesh=GRID, in_specs=P("x"), out_specs=P(), axis_names={"x"})
    return f(x), jax.grad(lambda v: (f(v) ** 2).sum())(x)


@value
def some_axes_unchecked(way: Way, x: Any) -> Any:
    return rows(way, lambda v: v * 2, x, GRID, axis_names={"x"}, check_vma=False)


@value
def custom_jvp_with_symbolic_zeros(way: Way, x: Any) -> Any:
    @jax.custom_jvp
    def f(v: Any) -> Any:
        return v * 2

    @functools.partial(f.defjvp, symbolic_zeros=True)
    def rule(primals: Any, tangents: Any) -> Any:
        zero = type(tangents[0]) is jax.custom_derivatives.SymbolicZero
        return f(*primals), jnp.zeros_like(primals[0]) if zero else 5 * tangents[0]

    g = way(f, mesh=FOUR, in_specs=P("x"), out_specs=P("x"))
    return jax.jvp(g, (x,), (x,)), jax.grad(lambda v: g(v).sum())(x)


@value
def custom_vjp_of_a_psum(way: Way, x: Any) -> Any:
    @jax.custom_vjp
    def f(v: Any) -> Any:
        return lax.psum(v, "x")

    f.defvjp(lambda v: (f(v), v), lambda v, ct: (lax.pcast(ct, "x", to="varying") * v,))
    return jax.grad(lambda v: (rows(way, f, v, outs=P()) ** 2).sum())(x)


@value
def custom_vjp_with_a_static_argument(way: Way, x: Any) -> Any:
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def f(n: int, v: Any) -> Any:
        return v**n

    f.defvjp(lambda n, v: (f(n, v), v), lambda n, v, ct: (ct * v * 10 * n,))
    return jax.grad(lambda v: rows(way, functools.partial(f, 2), v).sum())(x)


@value
def a_ring_in_a_scan(way: Way, x: Any) -> Any:
    def body(v: Any) -> Any:
        return lax.scan(lambda c, _: (lax.ppermute(c, "x", RING), c.sum()), v, None, length=3)[0]

    return rows(way, body, x), jax.grad(lambda v: (rows(way, body, v) * x).sum())(x)


@value
def a_mapped_function_in_a_while_loop(way: Way, x: Any) -> Any:
    f = way(lambda v: v + lax.axis_index("x"), mesh=FOUR, in_specs=P("x"), out_specs=P("x"))
    return lax.while_loop(lambda c: c.sum() < 200, f, x[0])


@value
def a_mapped_function_in_a_branch(way: Way, x: Any) -> Any:
    return lax.cond(x[0, 0] < 0, lambda v: rows(way, lambda u: lax.psum(u, "x"), v, outs=P()), lambda v: v[:2], x)


@value
def a_branch_for_each_device(way: Way, x: Any) -> Any:
    branches = [lambda v: v, lambda v: v * 2, lambda v: -v, lambda v: v * v]
    return rows(way, lambda v: lax.switch(lax.axis_index("x"), branches, v), x)


@value
def axis_index_groups(way: Way, x: Any) -> Any:
    groups: Any = {"axis_index_groups": [[0, 2], [1, 3]], "tiled": True}

    def body(v: Any) -> Any:
        return (
            lax.all_gather(v, "x", **groups),
            lax.psum_scatter(v, "x", **groups),
            lax.all_to_all(v, "x", 1, 0, **groups),
        )

    return rows(way, body, x)


@value
def residuals_without_dims(way: Way, x: Any) -> Any:
    def body(v: Any) -> Any:
        s = v.sum()
        return lax.psum(s * s * v, "x")

    return jax.grad(lambda v: (rows(way, body, v, outs=P()) * 2).sum())(x), jax.vmap(
        jax.grad(lambda v: rows(way, body, v, outs=P()).sum())
    )(jnp.stack([x, 2 * x]))


@value
def integers_have_no_tangent(way: Way, x: Any) -> Any:
    f = way(lambda v, i: (v * i, i + 1), mesh=FOUR, in_specs=(P("x"), P("x")), out_specs=P("x"))
    return jax.vjp(f, x, jnp.arange(64).reshape(8, 8))[0]


@value
def results_that_nobody_takes(way: Way, x: Any) -> Any:
    f = way(lambda a, b: (a * 2, b * 3, jnp.ones(()), a * b), mesh=FOUR, in_specs=P("x"),
            out_specs=(P("x"), P("x"), P(), P("x")))  # fmt: skip
    return f(x, x)[0], jax.grad(lambda v: f(v, x)[3].sum())(x)


@value
def the_idiom_of_a_gradient_inside(way: Way, x: Any) -> Any:
    def body(w: Any, v: Any) -> Any:
        return jax.grad(lambda u: ((v @ u) ** 2).sum())(w)

    return way(body, mesh=FOUR, in_specs=(P(), P("x")), out_specs=P())(x, x)


@value
def barriers_and_named_calls(way: Way, x: Any) -> Any:
    f = way(lambda v: lax.optimization_barrier((v, lax.psum(v, "x")))[0], mesh=FOUR, in_specs=P("x"), out_specs=P("x"))
    return jax.grad(lambda v: (jax.named_call(f, name="inner")(v) ** 2).sum())(x)


@value
def saved_by_policy(way: Way, x: Any) -> Any:
    f = way(lambda v, w: lax.psum(v @ w, "x") ** 2, mesh=FOUR, in_specs=(P(None, "x"), P("x")), out_specs=P())
    return jax.grad(lambda v: jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)(v, x).sum())(x)


@value
def other_dtypes(way: Way, x: Any) -> Any:
    return (
        rows(way, lambda v: lax.all_gather(v.astype(jnp.float8_e4m3fn), "x"), x),
        rows(way, lambda v: lax.psum(v.astype(jnp.bfloat16), "x"), x, outs=P()),
        rows(way, lambda v: lax.psum(v * 1j, "x"), x, outs=P()),
    )


def test_values() -> None:
    def program(way: Way) -> Any:
        return jax.jit(lambda x: {name: case(way, x) for name, case in VALUES.items()})(X)

    got, want = program(jm.shard_map), program(jax.shard_map)
    for name in VALUES:
        assert_alike(got[name], want[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", VALUES)
def test_values_eagerly(name: str) -> None:
    got, want = (outcome(lambda way=way: VALUES[name](way, jnp.asarray(X))) for way in (jm.shard_map, jax.shard_map))
    assert_alike(got, want) if isinstance(want, jax.Array) else assert_alike([got], [want])


# --- types -----------------------------------------------------------------------------------------------------------


def both(case: Callable[[Way], Any]) -> tuple[Any, Any]:
    return outcome(lambda: case(jm.shard_map)), outcome(lambda: case(jax.shard_map))


def test_types_on_explicit_axes() -> None:
    mesh = jm.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))

    def case(way: Way) -> Any:
        x = jax.device_put(X, jax.NamedSharding(mesh, P("x")))
        inferred = way(lambda v: (v * 2,), mesh=mesh, out_specs=P("x"))
        partial = way(lambda v: lax.pcast(v, "x", to="unreduced"), mesh=mesh, in_specs=P("x"),
                      out_specs=P(None, None, unreduced={"x"}))  # fmt: skip
        sums = jax.jit(partial)(x)
        grad = jax.grad(lambda v: inferred(v)[0].sum())(x)
        return inferred(x), grad, str(jax.typeof(sums)), jax.jit(lambda v: jax.sharding.reshard(v, P()))(sums)

    with jax.set_mesh(mesh):
        got, want = both(case)
    assert got[2] == want[2]
    assert_alike([*got[:2], got[3]], [*want[:2], want[3]])


def test_what_the_body_sees() -> None:
    def case(way: Way) -> Any:
        seen: list[Any] = []

        def body(v: Any) -> Any:
            total = lax.psum(v, "x")
            seen.extend(map(str, (jax.typeof(v), jax.typeof(total), jax.typeof(v + total), v.shape, v.dtype, v.size)))
            return total

        jax.eval_shape(way(body, mesh=GRID, in_specs=P("x", "y"), out_specs=P(None, "y")), X)
        named = way(case, mesh=FOUR, in_specs=P("x"), out_specs=P("x"))
        return seen, named.__name__, named.__wrapped__ is case

    got, want = both(case)
    assert got == want
    assert got[1:] == ("case", True)


# --- mistakes --------------------------------------------------------------------------------------------------------


def wrong(
    name: str, body: Any, args: Any = (X,), mesh: Any = FOUR, ins: Any = SPLIT, outs: Any = SPLIT, **o: Any
) -> None:
    ERRORS[name] = lambda way: way(body, mesh=mesh, in_specs=ins, out_specs=outs, **o)(*args)


wrong("a gather is not known to be the same", lambda v: lax.all_gather(v, "x", tiled=True), outs=P())
wrong("several results not the same", lambda v: (v, v.sum(), lax.psum(v, "x")), mesh=GRID, ins=P("x", "y"), outs=P())
wrong("a result without dims", lambda v: v.sum())
wrong(
    "a tree of results without dims", lambda v: (v, {"a": v, "b": v.sum()}), outs=(P("x"), {"a": P("x"), "b": P("x")})
)
wrong("a tree of arguments without dims", lambda v: v, ({"a": [np.float32(3)]},), ins=({"a": [P("x")]},), outs=())
wrong("a prefix too short", lambda v: v, ([X, X],), ins=([P("x")],))
wrong("uneven leaves", lambda a, b: (a, b), ({"a": X[:6], "b": X[:7]}, X[:3]), GRID, (P(("x", "y")), P("y")))
wrong("pcast of what varies", lambda v: lax.pcast(v, "x", to="varying"))
wrong("pcast to reduced", lambda v: lax.pcast(v, "x", to="reduced"))
wrong("a carry that stops varying", lambda v: lax.scan(lambda c, _: (lax.pmean(c, "x"), None), v, None, length=2)[0])
wrong("branches of two types", lambda v: lax.cond(True, lambda u: lax.psum(u, "x"), lambda u: u, v))
wrong("a wrong shape to scatter", lambda v: lax.psum_scatter(v, "x", scatter_dimension=0), (X[:2],), ins=P())
wrong("a wrong shape to swap", lambda v: lax.all_to_all(v, "x", 1, 1), ins=P("x"))
wrong("a source twice", lambda v: lax.ppermute(v, "x", [(0, 1), (0, 0)]))
wrong("a device that is not there", lambda v: lax.ppermute(v, "x", [(0, 5)]))
wrong("groups of a checked psum", lambda v: lax.psum(v, "x", axis_index_groups=[[0, 1], [2, 3]]))
wrong("an axis that is not manual", lambda v: v * lax.axis_index("y"), mesh=GRID, axis_names={"x"})
wrong("a list of axis names", lambda v: v, mesh=GRID, axis_names=["x"])
wrong("a spec out of an axis that is not manual", lambda v: v, mesh=GRID, outs=P("y"), axis_names={"x"})
wrong("a collective over an axis of vmap", lambda v: jax.vmap(lambda u: lax.psum(u, "i"), axis_name="i")(v))
ERRORS["vmap over an axis in use"] = lambda way: jax.vmap(
    way(lambda v: v, mesh=GRID, in_specs=P("x"), out_specs=P("x")), spmd_axis_name="x"
)(X)
# The types inside of a checkpoint do not know of the axis.
ERRORS["vmap over an axis of the result alone"] = lambda way: jax.jit(
    jax.vmap(way(jax.checkpoint(jnp.sin), mesh=GRID, in_specs=P(), out_specs=P("x")), spmd_axis_name="x")
)(X)
ERRORS["vmap over more than there is"] = lambda way: jax.vmap(
    way(lambda v: v, mesh=FOUR, in_specs=P(), out_specs=P()), spmd_axis_name="x"
)(X[:3])
ERRORS["no derivative"] = lambda way: jax.grad(lambda v: rows(way, lambda u: lax.pmax(u, "x"), v, outs=P()).sum())(X)
ERRORS["no reverse mode"] = lambda way: jax.grad(
    lambda v: rows(way, lambda u: lax.while_loop(lambda c: c.sum() < 10, lambda c: c + 1, u), v).sum()
)(X)


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    got, want = both(ERRORS[name])
    assert isinstance(want, tuple)
    assert issubclass(want[0], Exception)
    assert got == want
