"""`jm.jit` of functions that call `jax.shard_map`: raised to `mesh_shard`s, the same bits, the same shardings."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback  # noqa: TID251
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.jaxprs.walk import all_eqns
from tests.generators.oracles import same_bits

pytestmark = pytest.mark.slow(but_one_in=4)

X = np.random.default_rng(11).normal(size=(8, 8)).astype(np.float32)
W = np.random.default_rng(12).normal(size=(8, 8)).astype(np.float32) * 0.3
ROWS, COLUMNS, BOTH, WHOLE = P("y"), P(None, "x"), P("y", "x"), P()
MESH = jm.make_mesh((2, 4))


def mapped(body: Callable[..., Any], in_specs: Any, out_specs: Any, **options: Any) -> Any:
    return jax.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)


multiply = mapped(lambda x, w: lax.psum(jnp.tanh(x @ w), "x"), (BOTH, P("x")), ROWS)
shift = mapped(lambda x: lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)]), BOTH, BOTH)
double = mapped(lambda x: x * 2, BOTH, BOTH)
back = mapped(lambda x: x + lax.axis_index("x"), P(("x", "y")), P(("x", "y")))


def primitives(stage: Any) -> list[str]:
    return [e.primitive.name for e in all_eqns(stage.jaxpr)]


def same(got: Any, want: Any, exact: bool = True) -> None:
    leaves, tree = jax.tree.flatten(got)
    wanted, wanted_tree = jax.tree.flatten(want)
    assert tree == wanted_tree
    for a, b in zip(leaves, wanted, strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        assert a.sharding == b.sharding
        if exact:
            assert same_bits(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def check(f: Callable[..., Any], *args: Any, exact: bool = True, reference: bool = True) -> None:
    """Against `jax.jit`; and what the two levels of the program are made of."""
    function = jm.jit(f, mesh=MESH)
    traced = function.trace(*args)
    above = primitives(traced)
    assert "mesh_shard" in above
    assert "shard_map" not in above
    lowered = traced.lower()
    below = primitives(lowered)
    assert "mesh_shard" not in below
    assert "shard_map" not in below
    assert {"distribute_tensor", "aggregate_tensor"} & set(below)
    assert traced.assumptions == ()
    same(function(*args), jax.jit(f)(*args), exact)
    if reference:
        got, want = (jax.tree.leaves(r) for r in (lowered.reference(*args), jax.jit(f)(*args)))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


@dataclass(frozen=True)
class Case:
    f: Callable[..., Any]
    args: tuple[Any, ...] = (X,)
    exact: bool = True
    reference: bool = True


@jax.custom_jvp
def sine(x: Any) -> Any:
    return double(jnp.sin(x))


sine.defjvp(lambda p, t: (double(jnp.sin(p[0])), double(jnp.cos(p[0]) * t[0])))


@jax.custom_vjp
def cosine(x: Any) -> Any:
    return double(jnp.cos(x))


cosine.defvjp(lambda x: (double(jnp.cos(x)), shift(x)), lambda x, ct: (double(ct * jnp.sin(x)),))


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, row: (shift(c) + row, c[0]), x, X[:3])


def branching(x: Any) -> Any:
    return lax.cond(x.sum() > 0, shift, lambda v: double(v) + 1, x)


def switching(x: Any) -> Any:
    return [lax.switch(i, [shift, double, lambda v: v], x) for i in range(3)]


def repeating(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, shift(c[1])), (0, x))


def batched(x: Any) -> Any:
    f = mapped(lambda v: lax.psum(v, "x"), P("x"), WHOLE)
    return jax.vmap(f, spmd_axis_name="y")(jnp.stack([x, x + 1]))


FORMS: dict[str, Case] = {
    "alone": Case(lambda x: shift(x)),
    "other order of axes": Case(lambda x: back(x)),
    "several": Case(lambda x, w: shift(multiply(x, w)) + double(w), (X, W)),
    "several results": Case(lambda x: mapped(lambda v: (v, lax.psum(v, "y"), {"a": v.sum()[None, None]}), BOTH,
                                             (BOTH, COLUMNS, BOTH))(x)),
    "with work around": Case(lambda x: double(x[::-1].T)[:, 1:] + 1),
    "given on from one to the next": Case(lambda x: double(shift(double(x)))),
    "nothing is done": Case(lambda x: mapped(lambda v: v, BOTH, P("y", "x"))(x)),
    "resharded on the way": Case(lambda x: mapped(lambda v: v * 2, P("x", "y"), P("x", "y"))(double(x))),
    "scalars": Case(lambda x, s: mapped(lambda v, t: (v * t, t + 1), (BOTH, WHOLE), (BOTH, WHOLE))(x, s),
                    (X, np.float32(2))),
    "closed-over values": Case(lambda x, w: mapped(lambda v: v * w.sum(), BOTH, BOTH)(x), (X, W), exact=False),
    "jit": Case(lambda x: jax.jit(shift)(jax.jit(lambda v: double(v) + 1)(x))),
    "jit in the body": Case(lambda x: mapped(lambda v: jax.jit(lambda u: lax.psum(u, "x"))(v), BOTH, ROWS)(x)),
    "scan": Case(scanned),
    "fori_loop": Case(lambda x: lax.fori_loop(0, 4, lambda i, c: shift(c) + i, x)),
    "cond": Case(branching),
    "switch": Case(switching),
    "while": Case(repeating),
    "remat": Case(lambda x, w: jax.checkpoint(multiply)(x, w), (X, W)),
    "custom_jvp": Case(sine),
    "custom_vjp": Case(cosine),
    "vmap": Case(lambda x: jax.vmap(shift)(jnp.stack([x, x * 2]))),
    "vmap of other axes": Case(lambda x: jax.vmap(shift, 1, 2)(jnp.stack([x, x * 2], 1))),
    "vmap over a mesh axis": Case(batched),
    "grad inside": Case(jax.grad(lambda x, w: (multiply(x, w) ** 2).sum(), (0, 1)), (X, W)),
    "grad of a scan inside": Case(jax.grad(lambda x: scanned(x)[0].sum() + scanned(x)[1].sum())),
    "grad of a custom_jvp": Case(jax.grad(lambda x: sine(x).sum())),
    "grad of a custom_vjp": Case(jax.grad(lambda x: cosine(x).sum())),
    "grad of remat": Case(jax.grad(lambda x, w: jax.checkpoint(multiply)(x, w).sum()), (X, W)),
    "vmap of grad": Case(lambda x, w: jax.vmap(jax.grad(lambda v: multiply(v, w).sum()))(jnp.stack([x, x])), (X, W)),
    "jvp": Case(lambda x, w: jax.jvp(multiply, (x, w), (w, x)), (X, W)),
    "control flow in the body": Case(lambda x: mapped(lambda v: lax.scan(
        lambda c, _: (lax.cond(lax.axis_index("x") > 1, lambda u: u * 2, lambda u: -u, c), None), v, None, length=3)[0],
        BOTH, BOTH)(x)),
    "random numbers": Case(lambda k: mapped(lambda q: jax.random.bits(jax.random.fold_in(q, lax.axis_index("x")), (2,)),
                                            WHOLE, P("x"))(k), (jax.random.key(3),)),
    "ints": Case(lambda x: mapped(lambda v: lax.psum(v, ("y", "x")), BOTH, WHOLE)(x), (np.arange(64).reshape(8, 8),)),
    "keyword arguments and trees": Case(lambda d: {"c": double(d["a"]) + shift(d["b"]["x"])},
                                        ({"a": X, "b": {"x": W}},)),
}  # fmt: skip


@pytest.mark.slow(but_one_in=6)
@pytest.mark.parametrize("case", list(FORMS.values()), ids=list(FORMS))
def test_forms(case: Case) -> None:
    check(case.f, *case.args, exact=case.exact, reference=case.reference)


@pytest.mark.parametrize("f", [multiply, lambda x, w: sine(multiply(x, w)), lambda x, w: scanned(multiply(x, w))[0]],
                         ids=["psum", "custom_jvp", "scan"])  # fmt: skip
@pytest.mark.slow(but_one_in=3)
def test_grad_outside(f: Any) -> None:
    function = jm.jit(f, mesh=MESH)
    got = jax.grad(lambda x, w: (function(x, w) ** 2).sum(), (0, 1))(X, W)
    want = jax.jit(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)))(X, W)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    batch = np.stack([X, X + 1])
    np.testing.assert_allclose(
        jax.vmap(function, (0, None))(batch, W), jax.vmap(f, (0, None))(batch, W), rtol=1e-5, atol=1e-5
    )


def test_the_attributes_of_the_mesh_shards() -> None:
    traced = jm.jit(multiply, mesh=MESH).trace(X, W)
    found = [e.params for e in all_eqns(traced.jaxpr) if e.primitive.name == "mesh_shard"]
    assert [p["shard_dims"] for p in found] == [(0, 1), (-1, 0), (0, -1)]
    assert [p["shard_shape"] for p in found] == [(2, 4), (4, 1), (2, 1)]
    assert [p["shard_direction"].value for p in found] == ["full_to_shard", "full_to_shard", "shard_to_full"]


def test_stages() -> None:
    function = jm.jit(multiply, mesh=MESH)
    lowered = function.lower(X, W)
    compiled = lowered.compile()
    same(compiled(X, W), jax.jit(multiply)(X, W))
    hand_written = jax.jit(multiply).lower(X, W).compile().as_text()
    assert compiled.as_text().count("all-reduce(") == hand_written.count("all-reduce(")
    assert [tuple(a.shape) for a in lowered.out_avals] == [(8, 8)]


def test_arguments_on_the_devices() -> None:
    for spec in (BOTH, WHOLE, P("x", "y")):
        x = jax.device_put(X, NamedSharding(MESH, spec))
        same(jm.jit(shift, mesh=MESH)(x), jax.jit(shift)(x))


# --- check_vma=False -------------------------------------------------------------------------------------------------

PROVEN: dict[str, Case] = {
    "psum": Case(lambda x: mapped(lambda v: lax.psum(v, "x"), BOTH, ROWS, check_vma=False)(x)),
    "psum of both": Case(lambda x: mapped(lambda v: lax.psum(v, ("y", "x")), BOTH, WHOLE, check_vma=False)(x)),
    "pmax": Case(lambda x: mapped(lambda v: lax.pmax(v, "x"), BOTH, ROWS, check_vma=False)(x)),
    "all_gather": Case(lambda x: mapped(
        lambda v: lax.all_gather(v, "x", axis=1, tiled=True), BOTH, ROWS, check_vma=False)(x)),
    "pmean after work": Case(lambda x: mapped(
        lambda v: jnp.sin(lax.pmean(v.mean(), ("y", "x"))), BOTH, WHOLE, check_vma=False)(x), exact=False),
    "never split": Case(lambda x, w: mapped(lambda v, u: (v @ u, u * 2), (ROWS, WHOLE), (ROWS, WHOLE),
                                            check_vma=False)(x, w), (X, W)),
    "fori_loop": Case(lambda x: mapped(
        lambda v: lax.fori_loop(0, 3, lambda i, c: c * 2 + lax.axis_index("x"), v), BOTH, BOTH, check_vma=False)(x)),
    "a carry that becomes a shard": Case(lambda x: mapped(
        lambda v: lax.fori_loop(0, 2, lambda i, c: c + v, jnp.zeros(v.shape)), BOTH, BOTH, check_vma=False)(x)),
    "a carry psummed": Case(lambda x: mapped(
        lambda v: lax.scan(lambda c, r: (c + lax.psum(r, "x"), None), jnp.zeros(2), v)[0], COLUMNS, WHOLE,
        check_vma=False)(x)),
    "while": Case(lambda x: mapped(lambda v: lax.while_loop(
        lambda c: lax.pmax(c.max(), ("y", "x")) < 50, lambda c: jnp.abs(c) * 2, v), BOTH, BOTH, check_vma=False)(x)),
    "cond": Case(lambda x: mapped(lambda v: lax.cond(
        lax.axis_index("x") > 1, lambda u: u, lambda u: -u, v), BOTH, BOTH, check_vma=False)(x)),
    "cond of a psum": Case(lambda x: mapped(lambda v: lax.cond(
        lax.psum(v.sum(), ("y", "x")) > 0, lambda u: lax.psum(u, "x"), lambda u: -lax.psum(u, "x"), v), BOTH, ROWS,
        check_vma=False)(x)),
    "custom_jvp": Case(lambda x: mapped(lambda v: jax.nn.relu(v) + jax.nn.silu(v), BOTH, BOTH, check_vma=False)(x)),
    "custom_vjp": Case(lambda x: mapped(lambda v: local(v), BOTH, BOTH, check_vma=False)(x)),
    "remat and jit": Case(lambda x: mapped(
        lambda v: jax.checkpoint(lambda u: jax.jit(jnp.sin)(lax.psum(u, "x")))(v), BOTH, ROWS, check_vma=False)(x)),
    "scatter": Case(lambda x: mapped(
        lambda v: lax.psum_scatter(v, "x", tiled=True), ROWS, P(("y", "x")), check_vma=False)(x)),
}  # fmt: skip


@jax.custom_vjp
def local(x: Any) -> Any:
    return jnp.sin(x)


local.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))


@pytest.mark.parametrize("case", list(PROVEN.values()), ids=list(PROVEN))
def test_unchecked_but_provable(case: Case) -> None:
    check(case.f, *case.args, exact=case.exact)
    marks = [
        e.params.get("assume_replicated", False)
        for e in all_eqns(jm.jit(case.f, mesh=MESH).trace(*case.args).jaxpr)
        if e.primitive.name == "mesh_shard"
    ]
    assert not any(marks)


def first_only(x: Any) -> Any:
    return mapped(lambda v: (v, v * 2), BOTH, (ROWS, BOTH), check_vma=False)(x)


def gathered_by_hand(x: Any) -> Any:
    def body(v: Any) -> Any:
        out = lax.dynamic_update_slice(jnp.zeros((4, 8)), v, (0, lax.axis_index("x") * 2))
        return sum(lax.ppermute(out, "x", [(j, (j + i) % 4) for j in range(4)]) for i in range(4))

    return mapped(body, BOTH, ROWS, check_vma=False)(x)


def both_axes(x: Any) -> Any:
    return mapped(lambda v: v, BOTH, WHOLE, check_vma=False)(x)


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (first_only, r"first_only.*result 0, out_spec .*'y'.* mesh axis 'x'$"),
        (gathered_by_hand, r"gathered_by_hand.*result 0.* mesh axis 'x'$"),
        (both_axes, r"both_axes.*result 0, out_spec .* mesh axis 'x', 'y'$"),
    ],
)
@pytest.mark.usefixtures("unequal_copies")
def test_what_types_cannot_prove_is_assumed_and_listed(f: Any, words: str) -> None:
    function = jm.jit(f, mesh=MESH)
    traced = function.trace(X)
    (assumption,) = traced.assumptions
    assert re.search(r"test_jit_of_shard_map\.py:\d+" + ".*" + words, assumption), assumption
    marks = [e.params.get("assume_replicated") for e in all_eqns(traced.jaxpr) if e.primitive.name == "mesh_shard"]
    assert marks.count(True) == 1
    lowered = traced.lower()
    want = jax.jit(f)(X)
    got = function(X)
    for a, b, c in zip(*map(jax.tree.leaves, (got, want, lowered.reference(X))), strict=True):
        # JAX leaves the copies as they are; both give the one at coordinate 0.
        assert same_bits(a, b)
        assert same_bits(c, np.asarray(b))


@pytest.mark.usefixtures("unequal_copies")
def test_each_place_is_listed_once() -> None:
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, c: jnp.tile(both_axes(c), (2, 4)), both_axes(x).repeat(2, 0).repeat(4, 1))

    traced = jm.jit(f, mesh=MESH).trace(X)
    assert len(traced.assumptions) == len(set(traced.assumptions))
    assert 1 <= len(traced.assumptions) <= 2
    # JAX goes on with whatever each device holds; the model takes coordinate 0.
    want = X[:4, :2].repeat(2, 0).repeat(4, 1)
    for _ in range(3):
        want = np.tile(want[:4, :2], (2, 4))
    assert same_bits(traced.lower().compile()(X), want)
    assert same_bits(traced.lower().reference(X), want)


# --- meshes ----------------------------------------------------------------------------------------------------------


def test_a_second_mesh_is_refused_with_both_shown() -> None:
    other = jm.make_mesh((4, 2))
    f = jax.shard_map(lambda x: x, mesh=other, in_specs=BOTH, out_specs=BOTH)
    for program in (
        f,
        lambda x: double(x) + f(x),
        jax.jit(f),
        lambda x: lax.scan(lambda c, _: (f(c), None), x, None, 2),
    ):
        # As under jax.set_mesh(MESH), where JAX traces nothing over another mesh.
        with pytest.raises(ValueError, match=r"context mesh.*'y': 2, 'x': 4.*'y': 4, 'x': 2"):
            jm.jit(program, mesh=MESH).trace(X)
        with pytest.raises(jm.MeshMismatchError, match=r"y=4, x=2.*y=2, x=4"):
            jm.jit(program, in_shardings=NamedSharding(MESH, P())).trace(X)


def test_another_order_of_devices_is_another_mesh() -> None:
    other = jm.make_mesh((2, 4), devices=jax.devices()[:8][::-1])
    f = jax.shard_map(lambda x: x, mesh=other, in_specs=BOTH, out_specs=BOTH)
    with pytest.raises(jm.MeshMismatchError) as caught:
        jm.jit(f, mesh=MESH)(X)
    assert str(list(range(8))) in str(caught.value)
    assert str(list(range(8))[::-1]) in str(caught.value)


def test_other_names_are_another_mesh() -> None:
    other = jm.make_mesh((2, 4), ("a", "b"))
    f = jax.shard_map(lambda x: x, mesh=other, in_specs=P("a"), out_specs=P("a"))
    with pytest.raises(ValueError, match=r"context mesh.*'y': 2, 'x': 4.*'a': 2, 'b': 4"):
        jm.jit(f, mesh=MESH).trace(X)


def test_the_mesh_of_the_shard_map() -> None:
    function = jm.jit(lambda x: shift(x) + 1)
    assert function.trace(X).mesh == MESH
    same(function(X), jax.jit(lambda x: shift(x) + 1)(X))


def test_the_mesh_of_the_context() -> None:
    f = lambda x: jax.shard_map(lambda v: lax.psum(v, "x"), in_specs=BOTH, out_specs=ROWS)(x)  # noqa: E731
    with jax.set_mesh(MESH):
        same(jm.jit(f)(X), jax.jit(f)(X))
        same(jm.jit(f, mesh=MESH)(X), jax.jit(f)(X))
        want = jax.jit(f)(X)
    # Without a context a shard_map without a mesh is over the program's.
    assert same_bits(jm.jit(f, mesh=MESH)(X), want)


def test_a_map_within_try_is_not_given_up() -> None:
    # A program is first traced where no map can be called: that error is not one of the program's own.
    twice = {"in_specs": BOTH, "out_specs": BOTH}
    good = (jax.shard_map(lambda v: v * 2, **twice), jax.shard_map(lambda v: v * 2, mesh=MESH, **twice))
    bad = jax.shard_map(lambda v: v * 2, mesh=MESH, in_specs=P("z"), out_specs=P("y"))
    mine = jm.shard_map(lambda v: v * 2, mesh=MESH, **twice)

    def tried(f: Any, x: Any) -> Any:
        try:
            return f(x)
        except ValueError:
            return x * 5

    for f in good:
        assert same_bits(jm.jit(functools.partial(tried, f), mesh=MESH)(X), X * 2)
    assert same_bits(jm.jit(functools.partial(tried, bad), mesh=MESH)(X), X * 5)
    for f, factor in ((mine, 2), (bad, 5)):
        beside = jm.jit(lambda x: jm.shard_to_full(jm.full_to_shard(tried(f, x), ROWS), ROWS), mesh=MESH)  # noqa: B023
        assert same_bits(beside(X), X * factor)


def test_a_program_that_catches_errors_is_traced_as_under_set_mesh() -> None:
    specs = {"in_specs": BOTH, "out_specs": BOTH}
    mine, other = (jax.shard_map(lambda v: v * 2, mesh=m, **specs) for m in (MESH, jm.make_mesh((4, 2))))
    without_a_mesh = jax.shard_map(lambda v: v * 2, **specs)

    def tried(f: Any, x: Any) -> Any:
        try:
            return f(x)
        except Exception:
            return x * 5

    def split(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, BOTH) * 2, BOTH)

    assert same_bits(jm.jit(functools.partial(tried, split), mesh=MESH)(X), X * 2)
    assert same_bits(jm.jit(lambda x: tried(without_a_mesh, mine(x)), mesh=MESH)(X), X * 4)
    # What it catches of a map over another mesh it catches under jax.set_mesh, too.
    with jax.set_mesh(MESH):
        want = jax.jit(functools.partial(tried, other))(X)
    assert same_bits(jm.jit(functools.partial(tried, other), mesh=MESH)(X), want)


def test_a_map_without_a_mesh_can_be_used_again() -> None:
    f = jax.shard_map(lambda v: v * 2, in_specs=BOTH, out_specs=BOTH)
    for factor in (2, 3):
        assert same_bits(jm.jit(lambda x: f(x) * factor, mesh=MESH)(X), X * 2 * factor)  # noqa: B023
    with jax.set_mesh(MESH):
        assert same_bits(jax.jit(f)(X), X * 2)


def test_explicit_axes() -> None:
    mesh = jm.make_mesh((2, 4), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(X, NamedSharding(mesh, BOTH))
    for options in ({"in_specs": BOTH}, {}):
        f = jax.shard_map(lambda v: lax.psum(v, "x"), mesh=mesh, out_specs=ROWS, **options)
        with jax.set_mesh(mesh):
            function = jm.jit(lambda v: f(v) * 2, mesh=mesh)  # noqa: B023
            want = jax.jit(lambda v: f(v) * 2)(x)  # noqa: B023
            assert same_bits(function(x), want)
            assert "shard_map" not in primitives(function.trace(x))


def test_abstract_meshes() -> None:
    abstract = AbstractMesh((2, 4), ("y", "x"), axis_types=(AxisType.Auto,) * 2)
    f = jax.shard_map(lambda v: lax.psum(v, "x"), mesh=abstract, in_specs=BOTH, out_specs=ROWS)
    traced = jm.jit(f, mesh=abstract).trace(jax.ShapeDtypeStruct((8, 8), jnp.float32))
    lowered = traced.lower()
    assert primitives(traced).count("mesh_shard") == 2
    assert primitives(lowered).count("distribute_tensor") == 1
    np.testing.assert_allclose(lowered.reference(X), jax.jit(multiply_free)(X), rtol=1e-5, atol=1e-6)
    with pytest.raises(jm.MeshError):
        lowered.compile()
    big = AbstractMesh((32, 64), ("y", "x"), axis_types=(AxisType.Auto,) * 2)
    g = jax.shard_map(lambda v: lax.psum(v, "x"), mesh=big, in_specs=BOTH, out_specs=ROWS)
    shape = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    assert "distribute_tensor" in jm.jit(g).trace(shape).lower().as_text()


multiply_free = mapped(lambda v: lax.psum(v, "x"), BOTH, ROWS)


# --- beside mesh_shard, MeshTensors ----------------------------------------------------------------------------------

ours = jm.shard_map(lambda x: lax.psum(x, "x"), mesh=MESH, in_specs=BOTH, out_specs=ROWS)


def mixed(way: Any) -> Any:
    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, BOTH) * 2
        return way(jm.shard_to_full(s, BOTH)) + 1

    return f


def test_beside_mesh_shards() -> None:
    function = jm.jit(mixed(ours), mesh=MESH)
    assert "shard_map" not in primitives(function.trace(X))
    assert primitives(function.trace(X)).count("mesh_shard") == 4
    want = jax.jit(lambda x: multiply_free(x * 2) + 1)(X)
    np.testing.assert_allclose(function(X), want, rtol=1e-6)
    np.testing.assert_allclose(function.lower(X).reference(X), want, rtol=1e-5, atol=1e-6)
    got = jax.grad(lambda x: (function(x) ** 2).sum())(X)
    want = jax.grad(lambda x: ((multiply_free(x * 2) + 1) ** 2).sum())(X)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_jaxs_beside_mesh_shards_is_refused() -> None:
    with pytest.raises(ValueError, match="context mesh") as caught:
        jm.jit(mixed(multiply_free), mesh=MESH).trace(X)
    assert "jaxmesh.shard_map" in caught.value.__notes__[0]


def test_ours_alone_in_a_program() -> None:
    f = lambda x: ours(x) + 1  # noqa: E731
    same(jm.jit(f, mesh=MESH)(X), jax.jit(lambda x: multiply_free(x) + 1)(X))
    assert "shard_map" not in primitives(jm.jit(f, mesh=MESH).trace(X))


def test_a_mesh_tensor_beside_ours() -> None:
    config = jm.MeshMapperConfig([jm.PlacementShard(0), jm.PlacementShard(1)])
    t = ttnn.distribute_tensor(X, ttnn.create_mesh_mapper(MESH, config))

    @jm.jit(mesh=MESH)
    def f(shard: Any, x: Any) -> Any:
        return shard * 2, ours(x)

    shard, full = f(t, X)
    composer = ttnn.create_mesh_composer(MESH, jm.MeshComposerConfig([0, 1]))
    assert same_bits(ttnn.aggregate_tensor(shard, composer), X * 2)
    np.testing.assert_allclose(full, multiply_free(X), rtol=1e-6)


def test_a_mesh_tensor_beside_jaxs_is_refused() -> None:
    s = ttnn.distribute_tensor(X, ttnn.create_mesh_mapper(MESH, jm.MeshMapperConfig(
        [jm.PlacementShard(0), jm.PlacementReplicate()])))  # fmt: skip
    with pytest.raises(ValueError, match="context mesh") as caught:
        jm.jit(lambda shard, x: (shard, multiply_free(x)), mesh=MESH).trace(s, X)
    assert "jaxmesh.shard_map" in caught.value.__notes__[0]


# --- what has no words -----------------------------------------------------------------------------------------------


def partly(x: Any) -> Any:
    return mapped(lambda v: lax.psum(v, "x"), COLUMNS, WHOLE, axis_names={"x"})(x) + 1


def printing(x: Any) -> Any:
    def body(v: Any) -> Any:
        jax.debug.callback(lambda u: None, v)
        return v * 2

    return mapped(body, BOTH, BOTH)(x)


def test_a_part_of_the_axes_has_words() -> None:
    lowered = jm.jit(partly, mesh=MESH).trace(X).lower()
    np.testing.assert_allclose(jm.from_mlir(lowered.as_text(), MESH).lower().compile()(X), jax.jit(partly)(X))


def test_what_has_no_words_runs_and_has_no_text() -> None:
    function = jm.jit(printing, mesh=MESH)
    want = jax.jit(printing)(X)
    np.testing.assert_array_equal(function(X), want)
    traced = function.trace(X)
    lowered = traced.lower()
    asked: list[Callable[[], Any]] = [
        traced.as_text, lowered.as_text, lambda: traced.jaxpr, lambda: lowered.jaxpr, lambda: lowered.reference(X),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(jm.InexpressibleError, match=r"printing.*effects"):
            ask()
    np.testing.assert_array_equal(lowered.compile()(X), want)
    assert issubclass(jm.InexpressibleError, NotImplementedError)
    np.testing.assert_array_equal(jax.grad(lambda x: function(x).sum())(X), jax.grad(lambda x: printing(x).sum())(X))


# --- effects and references around regions, and what else JAX knows ---------------------------------------------------


def write_and_read(x: Any) -> Any:
    ref = jax.new_ref(jnp.zeros_like(x))
    ref[...] = double(x)
    return ref[...]


def write_and_read_by_hand(x: Any) -> Any:
    ref = jax.new_ref(jnp.zeros_like(x))
    ref[...] = jm.shard_to_full(jm.full_to_shard(x, BOTH) * 2, BOTH)
    return ref[...]


def write_in_a_loop(x: Any) -> Any:
    ref = jax.new_ref(x)

    def step(c: Any, _: Any) -> Any:
        ref[...] = double(ref[...])
        return c, None

    lax.scan(step, 0, None, length=2)
    return ref[...]


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no jax.new_ref")
@pytest.mark.parametrize(
    ("f", "want"),
    [
        (write_and_read, 2),
        (write_and_read_by_hand, 2),
        (write_in_a_loop, 4),
    ],
    ids=["outside", "by hand", "in a loop"],
)
def test_references_around_regions(f: Any, want: int) -> None:
    assert same_bits(jm.jit(f, mesh=MESH)(X), X * want)


def test_ordered_callbacks_around_regions() -> None:
    heard: list[str] = []

    def say(name: str, x: Any) -> Any:
        def hear(_: Any) -> np.ndarray:
            heard.append(name)
            return np.float32(1)

        return io_callback(hear, jax.ShapeDtypeStruct((), jnp.float32), x, ordered=True)

    def f(x: Any) -> Any:
        y = double(x * say("a", x[0, 0]))
        return y * say("b", y[0, 0]) + say("c", x[0, 0])

    jax.block_until_ready(jm.jit(f, mesh=MESH)(X))
    jax.effects_barrier()
    assert heard == ["a", "b", "c"]


def test_groups_without_checks() -> None:
    f = mapped(lambda v: lax.psum(v, "x", axis_index_groups=[[0, 1], [2, 3]]), BOTH, BOTH, check_vma=False)
    same(jm.jit(f, mesh=MESH)(X), jax.jit(f)(X))
    with pytest.raises(jm.InexpressibleError):
        jm.jit(f, mesh=MESH).trace(X).as_text()


@pytest.mark.parametrize(("names", "groups", "axis"), [
    ("x", [[0, 1, 2, 3]], "x"),
    (("y", "x"), [[0, 1, 2, 3], [4, 5, 6, 7]], "x"),
    (("y", "x"), [[0, 4], [1, 5], [2, 6], [3, 7]], "y"),
    (("y", "x"), [[0, 4, 1, 5, 2, 6, 3, 7]], ("x", "y")),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["psum", "all_gather"])
def test_groups_along_axes_are_those_axes(kind: str, names: Any, groups: Any, axis: Any) -> None:
    more: Any = {"tiled": True} if kind == "all_gather" else {}
    f, plain = (
        mapped(lambda v, n=n, g=g: getattr(lax, kind)(v, n, axis_index_groups=g, **more), BOTH, BOTH, check_vma=False)
        for n, g in ((names, groups), (axis, None))
    )
    same(jm.jit(f, mesh=MESH)(X), jax.jit(f)(X))
    assert jm.jit(f, mesh=MESH).trace(X).as_text() == jm.jit(plain, mesh=MESH).trace(X).as_text()


GROUPED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "psum": lambda v, n, g: lax.psum(v, n, axis_index_groups=g),
    "pmax": lambda v, n, g: lax.pmax(v, n, axis_index_groups=g),
    "all_gather": lambda v, n, g: lax.all_gather(v, n, axis=1, axis_index_groups=g).reshape(len(v), -1),
    "tiled all_gather": lambda v, n, g: lax.all_gather(v, n, axis_index_groups=g, tiled=True),
    "all_to_all": lambda v, n, g: lax.all_to_all(v[:, :1].repeat(8, 1), n, 1, 0, axis_index_groups=g, tiled=True),
    "psum_scatter": lambda v, n, g: lax.psum_scatter(v.repeat(8, 0), n, axis_index_groups=g, tiled=True),
}


@pytest.mark.parametrize("shardings", [{}, {"in_shardings": BOTH, "out_shardings": BOTH}], ids=["none", "given"])
@pytest.mark.parametrize("kind", GROUPED)
def test_groups_of_one_device_and_in_another_order(kind: str, shardings: Any) -> None:
    """Alone a device moves nothing; a sum has no order, and gathered parts are permuted on each device."""
    alone, turned, unlike = [[2], [0], [3], [1]], [[3, 0, 1, 2]], [[1, 0, 3, 2], [4, 5, 6, 7]]
    for names, groups in (("x", alone), ("x", turned), (("y", "x"), [[6, 2], [5, 1], [7, 3], [4, 0]]),
                          (("y", "x"), unlike)):  # fmt: skip
        f = mapped(lambda v, n=names, g=groups: GROUPED[kind](v, n, g), BOTH, BOTH, check_vma=False)
        traced = jm.jit(lambda x, f=f: f(x), mesh=MESH, **shardings).trace(X)
        by_order = kind not in ("psum", "pmax")
        if groups is not alone and by_order and (groups is unlike or "gather" not in kind):
            with pytest.raises((jm.InexpressibleError, jm.MissingRuleError), match="groups"):
                traced.as_text()
            continue
        text = traced.lower().as_text()
        assert (groups is alone) == (re.search(r"ttnn\.(all_|reduce_scatter|point_to_point)", text) is None)
        whole = np.rint(X * 8)
        np.testing.assert_array_equal(jm.from_mlir(text, MESH).lower().compile()(whole), jax.jit(f)(whole))


@pytest.mark.parametrize("shardings", [{}, {"in_shardings": BOTH, "out_shardings": BOTH}], ids=["none", "given"])
def test_groups_of_a_part_of_an_axis_need_an_axis(shardings: Any) -> None:
    f = mapped(lambda v: lax.psum(v, "x", axis_index_groups=[[0, 1], [2, 3]]), BOTH, BOTH, check_vma=False)
    traced = jm.jit(lambda x: f(x), mesh=MESH, **shardings)
    same(traced(X), jax.jit(f)(X))
    with pytest.raises(
        jm.InexpressibleError, match=r"do not correspond to axes of the mesh \{.*'x': 4\}.*; split an axis of"
    ):
        traced.lower(X).as_text()
    # As the message says: x of 4 devices as two axes of 2.
    mesh = jm.make_mesh((2, 2, 2), ("y", "a", "b"))
    spec = P("y", ("a", "b"))
    split = jax.shard_map(lambda v: lax.psum(v, "b"), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    if shardings:
        shardings = dict.fromkeys(shardings, spec)
    program = jm.jit(lambda x: split(x), mesh=mesh, **shardings)
    np.testing.assert_array_equal(program(X), jax.jit(f)(X))
    assert '"ttir.all_reduce"' in program.trace(X).as_text()


@pytest.mark.skipif(not hasattr(lax, "pbroadcast"), reason="JAX has it from 0.10 on")
def test_a_broadcast_that_jax_does_not_lower() -> None:
    f = mapped(lambda v: lax.pbroadcast(v, "x", 1), BOTH, BOTH, check_vma=False)
    lowered = jm.jit(lambda x: f(x), mesh=MESH, in_shardings=BOTH, out_shardings=BOTH).lower(X)
    with pytest.raises(jm.InexpressibleError, match=r"pbroadcast of .* neither runs nor .*; for the text, leave the"):
        lowered.as_text()
    assert '"ttir.collective_broadcast"' in jm.jit(lambda x: f(x), mesh=MESH).trace(X).as_text()


triple = mapped(lambda v: 3 * v, BOTH, BOTH)
third = mapped(lambda v: v / 3, BOTH, BOTH)


def test_a_linear_solve_around_regions() -> None:
    def f(x: Any) -> Any:
        return lax.custom_linear_solve(triple, x, lambda _, b: third(b))

    check(f, X)


def test_constraints_between_regions_say_nothing() -> None:
    """The values are the same; where JAX would place them is not: the program has mesh_shards instead."""
    to = NamedSharding(MESH, P("x"))
    for f in (
        lambda x: lax.with_sharding_constraint(double(x), to),
        lambda x: double(lax.with_sharding_constraint(x, to)),
    ):
        assert same_bits(jm.jit(f, mesh=MESH)(X), jax.jit(f)(X))
        assert "sharding_constraint" not in primitives(jm.jit(f, mesh=MESH).trace(X))


def test_static_and_donated_arguments() -> None:
    @jm.jit(mesh=MESH, static_argnames="times", donate_argnames="other")
    def f(x: Any, other: Any, times: int = 2) -> Any:
        return double(x) * times + other

    n = np.arange(64, dtype=np.int32).reshape(8, 8)
    assert same_bits(f(n, jnp.asarray(n), times=3), n * 7)


@pytest.mark.filterwarnings("ignore::jaxmesh.errors.DroppedShardingWarning")
def test_free_axes_that_do_not_divide_the_shard_of_a_result_are_dropped() -> None:
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    both = jax.sharding.NamedSharding(mesh, P(("i", "j")))

    def f(x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, both)
        mapped = jax.shard_map(
            lambda v: v.sum()[None], mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names={"i"}, check_vma=False
        )
        return jax.lax.with_sharding_constraint(mapped(x), both)

    expected, found = (jit(f)(jnp.arange(8.0)) for jit in (jax.jit, jm.jit))
    np.testing.assert_array_equal(found, expected)
    assert found.sharding == expected.sharding
