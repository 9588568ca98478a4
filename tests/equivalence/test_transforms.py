"""JAX's transformations of programs, from outside and from inside, against the unsharded one; and what jm.jit takes."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from tests.generators.oracles import coordinates, oracle_shard, same_bits

pytestmark = pytest.mark.slow(but_one_in=60)


@pytest.fixture(autouse=True)
def not_compared(request: pytest.FixtureRequest) -> None:
    if "unequal copies" in request.node.name:
        request.getfixturevalue("unequal_copies")


RNG = np.random.default_rng(11)


def random(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


X, W, ROW = random(4, 8), random(8, 8), random(8)


def full(x: Any) -> Any:
    """A tensor that stays on the devices, equal on all, as one array; anything else as it is."""
    if not isinstance(x, jm.MeshTensor):
        return x
    assert x.varying == ()
    first, *rest = [s for _, s in x.shards()]
    assert all(same_bits(first, r) for r in rest)
    return first


def close(got: Any, want: Any) -> None:
    leaves = [full(x) for x in jax.tree.leaves(got, is_leaf=lambda x: isinstance(x, jm.MeshTensor))]
    for a, b in zip(leaves, jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-5)


# --- the programs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A function of X and W with mesh_shards, and the same without; both give an array like X."""

    f: Callable[..., Any]
    plain: Callable[..., Any]
    mesh: tuple[int, ...] = (2, 4)


def through(spec: P, work: Callable[..., Any] = jnp.sin) -> Callable[..., Any]:
    def f(x: Any, w: Any) -> Any:
        return jm.shard_to_full(work(jm.full_to_shard(x @ w, spec)), spec)

    return f


def matmul(x: Any, w: Any) -> Any:
    a, b = jm.full_to_shard(x, P("y", "x")), jm.full_to_shard(w, P("x"))
    return jm.shard_to_full(lax.psum(jnp.sin(a) @ b, "x"), P("y"))


def beside(x: Any, w: Any) -> Any:
    """`w` is full and used beside shards."""
    return jm.shard_to_full(jnp.sin(jm.full_to_shard(x, P("y")) @ w), P("y"))


def both_replicated(x: Any, w: Any) -> Any:
    return jm.shard_to_full(jnp.sin(jm.full_to_shard(x, P()) @ jm.full_to_shard(w, P())), P())


def on_trust(x: Any, w: Any) -> Any:
    """The copies along x are equal in truth, but not by type."""
    s = jm.full_to_shard(x, P("y"))
    return jm.shard_to_full(jnp.sin(lax.pcast(s, "x", to="varying") @ w), P("y"), assume_replicated=True)


def unequal(x: Any, w: Any) -> Any:
    """Only coordinate 0 along x, a quarter of the columns, is read; four of it make a whole again."""
    s = jm.full_to_shard(jnp.sin(x @ w), P("y", "x"))
    quarter = jm.shard_to_full(s * s, P("y"), assume_replicated=True)
    return jnp.tile(quarter, (1, 4))


def unequal_plain(x: Any, w: Any) -> Any:
    return jnp.tile((jnp.sin(x @ w) ** 2)[:, :2], (1, 4))


def scanned(x: Any, w: Any) -> Any:
    s, b = jm.full_to_shard(x, P("y", "x")), jm.full_to_shard(w, P(None, "x"))

    def step(c: Any, r: Any) -> tuple[Any, Any]:
        c = jnp.sin(lax.psum(c.sum(1, keepdims=True), "x") / 8 + c * r)
        return c, None

    return jm.shard_to_full(lax.scan(step, s, b[:3])[0], P("y", "x"))


def scanned_plain(x: Any, w: Any) -> Any:
    return lax.scan(lambda c, r: (jnp.sin(c.sum(1, keepdims=True) / 8 + c * r), None), x, w[:3])[0]


def split_in_scan(x: Any, w: Any) -> Any:
    def step(c: Any, r: Any) -> tuple[Any, None]:
        s = jm.full_to_shard(c, P("y", "x")) * jm.full_to_shard(r, P("x"))
        return jm.shard_to_full(jnp.sin(s), P("y", "x")), None

    return lax.scan(step, x, w[:3])[0]


def split_in_scan_plain(x: Any, w: Any) -> Any:
    return lax.scan(lambda c, r: (jnp.sin(c * r), None), x, w[:3])[0]


def branched(x: Any, w: Any) -> Any:
    s = jm.full_to_shard(x, P("y", "x"))
    first = lambda v: lax.psum(v.sum(1, keepdims=True), "x") * v  # noqa: E731
    out = lax.cond(w[0, 0] > 0, first, jnp.sin, s)
    return jm.shard_to_full(lax.cond(w[0, 0] > 0, jnp.sin, first, out), P("y", "x"))


def branched_plain(x: Any, w: Any) -> Any:
    first = lambda v: v.sum(1, keepdims=True) * v  # noqa: E731
    out = lax.cond(w[0, 0] > 0, first, jnp.sin, x)
    return lax.cond(w[0, 0] > 0, jnp.sin, first, out)


def nested_and_remat(x: Any, w: Any) -> Any:
    @jax.checkpoint
    def inner(v: Any, u: Any) -> Any:
        return jax.jit(matmul)(jnp.sin(v), u)

    return jax.jit(lambda v, u: jax.jit(inner)(v, u) * v)(x, w)


def gathered(x: Any, w: Any) -> Any:
    """The weight gathered where it is used; the gradient comes back scattered."""
    a, b = jm.full_to_shard(x, P("y", "x")), jm.full_to_shard(w, P("x"))
    whole = lax.all_gather(jnp.sin(b), "x", axis=0, tiled=True)
    part = lax.psum_scatter(lax.all_gather(a, "x", axis=1, tiled=True) @ whole, "x", scatter_dimension=1, tiled=True)
    return jm.shard_to_full(part / 4, P("y", "x"))


def sine(x: Any, w: Any) -> Any:
    return jnp.sin(x @ w)


CASES = {
    "matmul": Case(matmul, lambda x, w: jnp.sin(x) @ w),
    "one axis": Case(through(P(None, "x")), sine),
    "replicate": Case(both_replicated, sine),
    "full beside": Case(beside, sine),
    "merged": Case(through(P(None, ("y", "x"))), sine),
    "other order": Case(through(P(None, ("x", "y"))), sine),
    "not adjacent": Case(through(P("y", ("z", "x"))), sine, (2, 2, 2)),
    "not adjacent, other order": Case(through(P(("x", "z"))), sine, (2, 2, 2)),
    "on trust": Case(on_trust, sine),
    "unequal copies": Case(unequal, unequal_plain),
    "scan": Case(scanned, scanned_plain),
    "split in scan": Case(split_in_scan, split_in_scan_plain),
    "cond": Case(branched, branched_plain),
    "nested jit, remat": Case(nested_and_remat, lambda x, w: jnp.sin(jnp.sin(x)) @ w * x),
    "gather and scatter": Case(gathered, lambda x, w: x @ jnp.sin(w)),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


# --- the transformations: each takes a function of X and W and gives one ---------------------------------------------

TX, TW = random(4, 8), random(8, 8)
SMALL = 0.3


def scalar(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: (f(x, w) * TX).sum()


def t_jvp(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: jax.jvp(f, (x, w), (TX, TW))


def t_vjp(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, w: Any) -> Any:
        out, pull = jax.vjp(f, x, w)
        return out, pull(TX)

    return run


def t_linearize(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, w: Any) -> Any:
        out, push = jax.linearize(f, x, w)
        return out, push(TX, TW), push(2 * TX, TW)

    return run


def t_hessian_product(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: jax.jvp(jax.grad(scalar(f), (0, 1)), (x, w), (TX, TW))[1]


def t_hessian(f: Callable[..., Any]) -> Callable[..., Any]:
    """Over four numbers that enter everywhere."""
    return lambda x, w: jax.hessian(lambda a: f(x * a[0] + a[1], w * a[2] + a[3])[::3, ::7])(jnp.array([1.0, 0, 1, 0]))


def t_vmap(f: Callable[..., Any], in_axes: Any, out_axes: int) -> Callable[..., Any]:
    def run(x: Any, w: Any) -> Any:
        xs = x if in_axes[0] is None else jnp.stack([x, 2 * x, -x], in_axes[0])
        ws = w if in_axes[1] is None else jnp.stack([w, w + 1, -w], in_axes[1])
        return jax.vmap(f, in_axes, out_axes)(xs, ws)

    return run


def t_vmap_of_vmap(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, w: Any) -> Any:
        rows = jax.vmap(jax.vmap(f, (0, None), 1), (None, 2), 2)
        return rows(jnp.stack([x, 2 * x, -x]), jnp.stack([w, w + 1], 2))

    return run


def t_vmap_of_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    return t_vmap(jax.grad(scalar(f), (0, 1)), (1, None), 1)


def t_grad_of_vmap(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda x, w: (t_vmap(f, (None, 1), 2)(x, w) * TX[..., None]).sum(), (0, 1))


def t_remat(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(scalar(jax.checkpoint(f)), (0, 1))


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "jvp": t_jvp,
    "vjp": t_vjp,
    "grad": lambda f: jax.value_and_grad(scalar(f), (0, 1)),
    "linearize": t_linearize,
    "hessian product": t_hessian_product,
    "hessian": t_hessian,
    "vmap at the ends": lambda f: t_vmap(f, (0, 2), 2),
    "vmap in the middle": lambda f: t_vmap(f, (1, None), 1),
    "vmap of the other": lambda f: t_vmap(f, (None, 0), 0),
    "vmap of vmap": t_vmap_of_vmap,
    "vmap of grad": t_vmap_of_grad,
    "grad of vmap": t_grad_of_vmap,
    "grad of remat": t_remat,
    "jit": jax.jit,
}
WANTED: dict[tuple[str, str], Any] = {}


def wanted(case: str, transform: str) -> Any:
    """The transformed unsharded program's result, computed once."""
    key = (case, transform)
    if key not in WANTED:
        WANTED[key] = jax.jit(TRANSFORMS[transform](CASES[case].plain))(SMALL * X, SMALL * W)
    return WANTED[key]


EVERY_CASE = ("grad", "hessian product", "vmap of grad")
SOME_CASES = ("other order", "unequal copies", "split in scan")
INSIDE = [(c, t) for c in CASES for t in TRANSFORMS if t in EVERY_CASE or c in SOME_CASES]
# From outside JAX transforms what runs, not the operations: fewer will do.
OUTSIDE = [(c, t) for c, t in INSIDE if t == "vmap of grad" or c == "unequal copies"]


@pytest.mark.parametrize(("case", "transform"), OUTSIDE, ids=lambda v: v)
def test_from_outside(case: str, transform: str) -> None:
    """The transformation is of the callable that jm.jit made."""
    f = jm.jit(CASES[case].f, mesh=jm.make_mesh(CASES[case].mesh))
    close(jax.jit(TRANSFORMS[transform](f))(SMALL * X, SMALL * W), wanted(case, transform))


@pytest.mark.parametrize(("case", "transform"), INSIDE, ids=lambda v: v)
def test_from_inside(case: str, transform: str) -> None:
    """The transformation is part of the program that jm.jit traces, so it acts on the mesh_shards themselves."""
    f = jm.jit(TRANSFORMS[transform](CASES[case].f), mesh=jm.make_mesh(CASES[case].mesh))
    close(f(SMALL * X, SMALL * W), wanted(case, transform))


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap at the ends"])
@pytest.mark.parametrize("case", ["matmul", "unequal copies"])
def test_without_an_outer_jit(case: str, transform: str) -> None:
    f = jm.jit(CASES[case].f, mesh=jm.make_mesh(CASES[case].mesh))
    close(TRANSFORMS[transform](f)(SMALL * X, SMALL * W), wanted(case, transform))


@pytest.mark.parametrize("transform", ["grad", "vmap of grad"])
@pytest.mark.parametrize("case", ["matmul", "full beside", "not adjacent", "unequal copies", "cond"])
def test_the_reference_executor_agrees(case: str, transform: str) -> None:
    lowered = jm.jit(TRANSFORMS[transform](CASES[case].f), mesh=jm.make_mesh(CASES[case].mesh)).lower(
        SMALL * X, SMALL * W
    )
    got = jax.tree.map(
        lambda x: next(iter(x.values())) if isinstance(x, dict) else x,
        lowered.reference(SMALL * X, SMALL * W),
        is_leaf=lambda x: isinstance(x, dict),
    )
    close(got, wanted(case, transform))


@pytest.mark.parametrize("case", list(CASES))
def test_shapes_without_running(case: str) -> None:
    f = jm.jit(CASES[case].f, mesh=jm.make_mesh(CASES[case].mesh))
    out = jax.eval_shape(f, X, W)
    assert (out.shape, out.dtype) == ((4, 8), jnp.float32)
    grads = jax.eval_shape(jax.grad(scalar(f), (0, 1)), X, W)
    assert [g.shape for g in grads] == [(4, 8), (8, 8)]
    jaxpr = jax.make_jaxpr(f)(X, W)
    assert [v.shape for v in jaxpr.out_avals] == [(4, 8)]
    text = str(jaxpr)
    assert "shard_map" in text
    assert "mesh_shard" not in text


# --- the primitive's own rules ---------------------------------------------------------------------------------------

LAYOUTS = [
    *[
        ((2, 4), s)
        for s in (P("y", "x"), P("x", "y"), P(None, "y"), P(("y", "x")), P(("x", "y")), P(None, ("x", "y")), P())
    ],
    *[((2, 2, 2), s) for s in (P(("z", "x")), P(("x", "z"), "y"), P("y", ("z", "x")))],
    *[((8,), P("x")), ((8,), P(None, "x")), ((1, 4), P("y", "x")), ((4, 1), P("y"))],
]
each_layout = pytest.mark.parametrize(("shape", "spec"), LAYOUTS, ids=str)
INTEGERS = jnp.asarray(RNG.integers(-5, 6, (8, 16)), jnp.float32)
OTHERS = jnp.asarray(RNG.integers(-5, 6, (8, 16)), jnp.float32)


def axes_of(spec: P) -> tuple[str, ...]:
    return tuple(a for e in spec if e for a in (e if isinstance(e, tuple) else (e,)))


def everywhere(s: Any) -> Any:
    """The sum of a shard's numbers over the devices that hold different ones."""
    names = tuple(a for a in jax.sharding.get_abstract_mesh().axis_names if a in jax.typeof(s).manual_axis_type.varying)
    total = s.sum()
    return lax.psum(total, names) if names else total


def transposes(rule: str) -> Callable[..., Any]:
    def by_vjp(f: Callable[..., Any], x: Any, ct: Any) -> Any:
        return jax.vjp(f, x)[1](ct)[0]

    def by_transpose(f: Callable[..., Any], x: Any, ct: Any) -> Any:
        return jax.linear_transpose(f, x)(ct)[0]

    return by_vjp if rule == "vjp" else by_transpose


each_rule = pytest.mark.parametrize("rule", ["vjp", "linear_transpose"])


@each_layout
@each_rule
def test_the_transpose_of_a_split_is_its_adjoint(shape: tuple[int, ...], spec: P, rule: str) -> None:
    """<A x, y> = <x, A' y>, in integers: exactly. The shards' product counts each piece once."""

    def products(x: Any, y: Any) -> Any:
        split = lambda v: jm.full_to_shard(v, spec)  # noqa: E731
        ct = jm.full_to_shard(y, spec)
        left = everywhere(split(x) * ct)
        right = (x * transposes(rule)(split, x, ct)).sum()
        return jm.shard_to_full(left, P()), right

    left, right = jm.jit(products, mesh=jm.make_mesh(shape))(INTEGERS, OTHERS)
    assert same_bits(left, (INTEGERS * OTHERS).sum())
    assert same_bits(full(right), left)


@each_layout
@each_rule
def test_the_transpose_of_a_join_is_its_adjoint(shape: tuple[int, ...], spec: P, rule: str) -> None:
    def products(x: Any, y: Any) -> Any:
        join = lambda s: jm.shard_to_full(s, spec)  # noqa: E731
        s = jm.full_to_shard(x, spec)
        back = transposes(rule)(join, s, y)
        return (join(s) * y).sum(), jm.shard_to_full(everywhere(s * back), P())

    left, right = jm.jit(products, mesh=jm.make_mesh(shape))(INTEGERS, OTHERS)
    assert same_bits(full(left), (INTEGERS * OTHERS).sum())
    assert same_bits(right, full(left))


@each_layout
def test_the_transpose_of_a_split_is_the_join(shape: tuple[int, ...], spec: P) -> None:
    """Number by number, not only in a product; and each one transposes into one operation."""

    def f(x: Any, y: Any) -> Any:
        return jax.linear_transpose(lambda v: jm.full_to_shard(v, spec), x)(jm.full_to_shard(y, spec))[0]

    mesh = jm.make_mesh(shape)
    assert same_bits(full(jm.jit(f, mesh=mesh)(INTEGERS, OTHERS)), OTHERS)
    traced = jm.jit(f, mesh=mesh).trace(INTEGERS, OTHERS)
    assert traced.as_text().count("mesh_shard") == 2


@each_rule
@pytest.mark.parametrize("spec", [P("y"), P("x"), P(None, "x"), P()], ids=str)
@pytest.mark.usefixtures("unequal_copies")
def test_on_trust_the_cotangent_goes_to_coordinate_0_alone(spec: P, rule: str, mesh: Mesh) -> None:
    """Shards that differ over both axes; those of the axes that are not aggregated are read at coordinate 0."""
    read = axes_of(spec)

    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P(("y", "x")))
        join = lambda v: jm.shard_to_full(v, spec, assume_replicated=True)  # noqa: E731
        full = join(s)
        y = jnp.arange(1, full.size + 1, dtype=jnp.float32).reshape(full.shape)
        back = transposes(rule)(join, s, y)
        assert jax.typeof(back).manual_axis_type == jax.typeof(s).manual_axis_type
        return full, back, jm.shard_to_full(everywhere(s * back), P())

    joined, back, right = jm.jit(f, mesh=mesh)(INTEGERS)
    y = np.arange(1, joined.size + 1, dtype=np.float32).reshape(joined.shape)
    dims = [[("y", "x").index(a) for a in ((e if isinstance(e, tuple) else (e,)) if e else ())] for e in spec]
    dims += [[]] * (2 - len(dims))
    for c, shard in back.shards():
        taken = all(i == 0 or n in read for i, n in zip(c, ("y", "x"), strict=True))
        want = oracle_shard(y, dims, (2, 4), tuple(c))
        assert same_bits(shard, want if taken else np.zeros_like(want))
    assert same_bits(right, jnp.float32((np.asarray(joined) * y).sum()))


@pytest.mark.usefixtures("unequal_copies")
def test_on_trust_the_tangent_reads_coordinate_0(mesh: Mesh) -> None:
    def f(x: Any, t: Any) -> Any:
        join = lambda v: jm.shard_to_full(v, P("y"), assume_replicated=True)  # noqa: E731
        return jax.jvp(join, (jm.full_to_shard(x, P("y", "x")),), (jm.full_to_shard(t, P("y", "x")),))

    out, dot = jm.jit(f, mesh=mesh)(INTEGERS, OTHERS)
    assert same_bits(out, INTEGERS[:, :4])
    assert same_bits(dot, OTHERS[:, :4])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("shape", "spec"), LAYOUTS[::2], ids=str)
def test_batching_adds_a_dim_that_is_not_split(shape: tuple[int, ...], spec: P, axis: int) -> None:
    x = jnp.stack([INTEGERS, OTHERS, INTEGERS + OTHERS], axis)

    def f(xs: Any) -> Any:
        shards = jax.vmap(lambda v: jm.full_to_shard(v, spec), axis, axis)(xs)
        return shards, jax.vmap(lambda s: jm.shard_to_full(s * 2, spec), axis, axis)(shards)

    sizes = dict(zip("zyx"[-len(shape) :], shape, strict=True))
    names = tuple(sizes)
    shards, joined = jm.jit(f, mesh=jm.make_mesh(shape))(x)
    assert same_bits(joined, 2 * x)
    dims = [[names.index(a) for a in ((e if isinstance(e, tuple) else (e,)) if e else ())] for e in spec]
    dims += [[]] * (2 - len(dims))
    dims.insert(axis % 3, [])
    for c, shard in shards.shards():
        assert same_bits(shard, oracle_shard(np.asarray(x), dims, shape, tuple(c)))


def test_batching_a_replicate_form_of_full_rank(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        s = jm.mesh_shard(
            x, shard_type="replicate", shard_direction="full_to_shard", shard_shape=[1, 1], shard_dims=[-1, -1]
        )
        return jm.mesh_shard(
            s, shard_type="replicate", shard_direction="shard_to_full", shard_shape=[1, 1], shard_dims=[-1, -1]
        )

    x = jnp.stack([INTEGERS, OTHERS])
    assert same_bits(jm.jit(jax.vmap(f), mesh=mesh)(x), x)
    assert same_bits(jax.vmap(jm.jit(f, mesh=mesh))(x), x)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bool_, jnp.bfloat16, jnp.complex64], ids=lambda d: jnp.dtype(d).name)
def test_other_types_keep_their_bits(dtype: Any, mesh: Mesh) -> None:
    x = (INTEGERS + (1j if dtype is jnp.complex64 else 0)).astype(dtype)

    def f(v: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(v, P("y", "x"))[..., ::-1], P("y", "x"))

    want = x.reshape(8, 4, 4)[..., ::-1].reshape(8, 16)
    assert same_bits(jm.jit(f, mesh=mesh)(x), want)
    assert same_bits(jax.vmap(jm.jit(f, mesh=mesh))(x[None])[0], want)


def test_integers_have_no_gradient_but_pass_beside_one(mesh: Mesh) -> None:
    def f(x: Any, i: Any) -> Any:
        s = jm.full_to_shard(x, P("y")) * jm.full_to_shard(i, P("y"))
        return jm.shard_to_full(s, P("y")).sum()

    ints = INTEGERS.astype(int)
    assert same_bits(jax.grad(jm.jit(f, mesh=mesh))(OTHERS, ints), INTEGERS)
    assert same_bits(jm.jit(jax.grad(f), mesh=mesh)(OTHERS, ints), INTEGERS)


def test_an_argument_that_does_not_matter_has_a_zero_gradient(mesh: Mesh) -> None:
    def f(x: Any, y: Any) -> Any:
        jm.full_to_shard(y, P("y"))
        return jm.shard_to_full(jm.full_to_shard(x, P("y")), P("y")).sum()

    for grad in (jax.grad(jm.jit(f, mesh=mesh), (0, 1)), jm.jit(jax.grad(f, (0, 1)), mesh=mesh)):
        dx, dy = grad(INTEGERS, OTHERS)
        assert same_bits(dx, jnp.ones_like(INTEGERS))
        assert same_bits(full(dy), jnp.zeros_like(OTHERS))


def test_a_constant_of_the_program_is_split(mesh: Mesh) -> None:
    for constant in (INTEGERS, np.asarray(INTEGERS)):

        def f(x: Any, constant: Any = constant) -> Any:
            s = jm.full_to_shard(x, P("y", "x")) + jm.full_to_shard(constant, P("y", "x"))
            return jm.shard_to_full(s, P("y", "x"))

        assert same_bits(jm.jit(f, mesh=mesh)(OTHERS), INTEGERS + OTHERS)
        assert same_bits(jm.jit(f, mesh=mesh).lower(OTHERS).reference(OTHERS), INTEGERS + OTHERS)


def test_stop_gradient_and_has_aux(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))
        y = jm.shard_to_full(s * lax.stop_gradient(s), P("y"))
        return y.sum(), {"y": y}

    for grad in (jax.grad(jm.jit(f, mesh=mesh), has_aux=True), jm.jit(jax.grad(f, has_aux=True), mesh=mesh)):
        dx, aux = grad(INTEGERS)
        assert same_bits(dx, INTEGERS)
        assert same_bits(aux["y"], INTEGERS * INTEGERS)


# --- jm.jit: what a jax.jit takes ------------------------------------------------------------------------------------


ROWS, COLUMNS = P("y"), P(None, "x")


def halve(x: Any, spec: P = ROWS) -> Any:
    return jm.shard_to_full(jm.full_to_shard(x, spec) / 2, spec)


@dataclass
class Counter:
    """Counts how often a function is traced."""

    count: int = 0

    def __call__(self, x: Any) -> Any:
        self.count += 1
        return x


def test_static_arguments_by_position(mesh: Mesh) -> None:
    traces = Counter()

    def f(x: Any, spec: P, power: int) -> Any:
        return traces(halve(x, spec)) ** power

    g = jm.jit(f, mesh=mesh, static_argnums=(1, 2))
    for spec, power in itertools.product([P("y"), P(None, "x")], [2, 3]):
        assert same_bits(g(INTEGERS, spec, power), (INTEGERS / 2) ** power)
        assert same_bits(g(INTEGERS, power=power, spec=spec), (INTEGERS / 2) ** power)
    assert g.lower(INTEGERS, P("y"), 2).compile()(INTEGERS).shape == INTEGERS.shape
    before = traces.count
    g(OTHERS, P("y"), 2)
    assert traces.count == before


def test_static_arguments_by_name(mesh: Mesh) -> None:
    def f(x: Any, *, spec: P = ROWS, scale: Any = 1) -> Any:
        return halve(x, spec) * scale

    g = jm.jit(f, mesh=mesh, static_argnames="spec")
    assert same_bits(g(INTEGERS), INTEGERS / 2)
    assert same_bits(g(INTEGERS, spec=P(None, "x"), scale=4), INTEGERS * 2)
    compiled = g.lower(INTEGERS, spec=P("x"), scale=jnp.float32(1)).compile()
    assert same_bits(compiled(INTEGERS, scale=jnp.float32(8)), INTEGERS * 4)


def test_static_arguments_from_the_end_and_in_the_middle(mesh: Mesh) -> None:
    def f(x: Any, flag: bool, y: Any, spec: P) -> Any:
        return halve(x if flag else y, spec)

    g = jm.jit(f, mesh=mesh, static_argnums=(1, -1))
    assert same_bits(g(INTEGERS, True, OTHERS, P("y")), INTEGERS / 2)
    assert same_bits(g(INTEGERS, False, OTHERS, P("x")), OTHERS / 2)
    assert same_bits(jax.grad(lambda v: g(v, True, OTHERS, P("y")).sum())(INTEGERS), jnp.full_like(INTEGERS, 0.5))


def test_a_static_argument_that_is_not_hashable(mesh: Mesh) -> None:
    with pytest.raises((TypeError, ValueError), match="hashable"):
        jm.jit(lambda x, s: x, mesh=mesh, static_argnums=1)(INTEGERS, [1])


@pytest.mark.parametrize("by", ["argnums", "argnames"])
def test_donation_does_what_jax_does(by: str, mesh: Mesh) -> None:
    specs = P("y", "x")
    sharding = NamedSharding(mesh, specs)

    def f(x: Any, y: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, specs) + jm.full_to_shard(y, specs), specs)

    donated: dict[str, Any] = {"donate_argnums": 1} if by == "argnums" else {"donate_argnames": "y"}
    by_hand = jax.jit(
        jax.shard_map(lambda x, y: x + y, mesh=mesh, in_specs=(specs, specs), out_specs=specs), donate_argnums=1
    )
    fate = []
    for g in (jm.jit(f, mesh=mesh, **donated), by_hand):
        x, y = jax.device_put(INTEGERS, sharding), jax.device_put(OTHERS, sharding)
        assert same_bits(g(x, y), INTEGERS + OTHERS)
        fate.append((x.is_deleted(), y.is_deleted()))
    assert fate[0] == fate[1] == (False, True)


def test_donation_of_a_compiled_program(mesh: Mesh) -> None:
    def f(x: Any, rest: Any) -> Any:
        return halve(x) + rest["a"], halve(rest["b"])

    y = {"a": jnp.copy(OTHERS), "b": OTHERS + 1}
    compiled = jm.jit(f, mesh=mesh, donate_argnums=1).lower(INTEGERS, y).compile()
    assert compiled.as_text().count("may-alias") + compiled.as_text().count("must-alias") == 2


def test_keywords_defaults_and_trees(mesh: Mesh) -> None:
    def f(params: Any, *rest: Any, scale: Any = 2.0, **more: Any) -> Any:
        total = sum(jax.tree.leaves(params)) + sum(rest) + sum(more.values())
        return {"half": [halve(total * scale)], "none": None, "all": (params, more)}

    g = jm.jit(f, mesh=mesh)
    params = {"b": (INTEGERS,), "a": [OTHERS, {"c": INTEGERS}]}
    out = g(params, OTHERS, INTEGERS, scale=3.0, extra=OTHERS)
    assert same_bits(out["half"][0], (3 * INTEGERS + 3 * OTHERS) * 3.0 / 2)
    assert out["none"] is None
    assert jax.tree.structure(out["all"]) == jax.tree.structure((params, {"extra": 0}))
    compiled = g.lower(params, scale=INTEGERS).compile()
    assert same_bits(compiled(params, scale=INTEGERS)["half"][0], (2 * INTEGERS + OTHERS) * INTEGERS / 2)
    with pytest.raises(jm.ArgumentTypeError, match="tree"):
        compiled(params, INTEGERS)
    with pytest.raises(jm.ArgumentTypeError, match=r"float32\[8, 16\].*int32"):
        compiled(params, scale=INTEGERS.astype(int))


def test_results_that_are_arguments_constants_or_repeated(mesh: Mesh) -> None:
    def f(x: Any, y: Any) -> Any:
        h = halve(x)
        return x, h, h, y, 3, jnp.float32(4), np.arange(3)

    out = jm.jit(f, mesh=mesh)(INTEGERS, OTHERS)
    want = (INTEGERS, INTEGERS / 2, INTEGERS / 2, OTHERS, jnp.asarray(3), jnp.float32(4), jnp.arange(3))
    assert all(same_bits(a, b) for a, b in zip(out, want, strict=True))
    ref = jm.jit(f, mesh=mesh).lower(INTEGERS, OTHERS).reference(INTEGERS, OTHERS)
    assert all(same_bits(a, b) for a, b in zip(ref, want, strict=True))


def test_shapes_stand_for_arrays_when_tracing(mesh: Mesh) -> None:
    traced = jm.jit(halve, mesh=mesh).trace(jax.ShapeDtypeStruct((8, 16), jnp.float32))
    assert [(a.shape, a.dtype) for a in traced.in_avals] == [((8, 16), jnp.float32)]
    assert [(a.shape, a.dtype) for a in traced.out_avals] == [((8, 16), jnp.float32)]
    assert same_bits(traced.lower().compile()(INTEGERS), INTEGERS / 2)


def test_an_abstract_mesh_traces_and_lowers(mesh: Mesh) -> None:
    huge = AbstractMesh((32, 64), ("y", "x"))
    f = jm.jit(lambda x: jm.shard_to_full(jm.full_to_shard(x, P("y", "x")) * 2, P("y", "x")), mesh=huge)
    lowered = f.trace(jax.ShapeDtypeStruct((64, 128), jnp.float32)).lower()
    assert "aggregate_tensor" in lowered.as_text()
    assert lowered.out_avals[0].shape == (64, 128)
    with pytest.raises(jm.MeshError, match="abstract"):
        lowered.compile()
    with pytest.raises(jm.MeshError, match="abstract"):
        f(jnp.ones((64, 128)))
    small = jm.jit(halve, mesh=mesh.abstract_mesh)
    assert same_bits(small.lower(INTEGERS).reference(INTEGERS), INTEGERS / 2)


def test_calls_are_cached_by_shape_and_type(mesh: Mesh) -> None:
    traces = Counter()
    f = jm.jit(lambda x: traces(halve(x)), mesh=mesh)
    for _ in range(3):
        f(INTEGERS)
        f(OTHERS)
    assert traces.count == 1
    f(np.asarray(INTEGERS))
    assert traces.count == 1
    f(INTEGERS[:4])
    assert traces.count == 2
    f(INTEGERS.astype(jnp.bfloat16))
    assert traces.count == 3
    f(INTEGERS)
    assert traces.count == 3


def test_functions_and_their_programs_can_be_forgotten(mesh: Mesh) -> None:
    """As with jax.jit: nothing but the caller keeps a function alive."""

    def make() -> weakref.ref[Any]:
        class Model:
            def __call__(self, x: Any) -> Any:
                return halve(x)

        model = Model()
        f = jm.jit(model, mesh=mesh)
        f(INTEGERS)
        f.lower(INTEGERS).compile()(INTEGERS)
        return weakref.ref(model)

    kept = make()
    gc.collect()
    assert kept() is None


def test_jit_is_a_decorator_with_a_name(mesh: Mesh) -> None:
    @jm.jit(mesh=mesh)
    def quarter(x: Any) -> Any:
        """The doc."""
        return halve(halve(x))

    assert quarter.__name__ == "quarter"
    assert quarter.__doc__ == "The doc."
    assert same_bits(quarter(INTEGERS), INTEGERS / 4)
    assert "jit_quarter" in quarter.lower(INTEGERS).compile().as_text()


def test_methods_and_partials(mesh: Mesh) -> None:
    class Model:
        scale = 3

        def __call__(self, x: Any) -> Any:
            return halve(x) * self.scale

    import functools

    assert same_bits(jm.jit(Model(), mesh=mesh)(INTEGERS), INTEGERS / 2 * 3)
    assert same_bits(jm.jit(Model().__call__, mesh=mesh)(INTEGERS), INTEGERS / 2 * 3)
    assert same_bits(jm.jit(functools.partial(halve, spec=P("x")), mesh=mesh)(INTEGERS), INTEGERS / 2)


# --- jits in jits ----------------------------------------------------------------------------------------------------


def test_jax_jit_of_a_program(mesh: Mesh) -> None:
    traces = Counter()
    f = jax.jit(jm.jit(lambda x: traces(halve(x)), mesh=mesh))
    assert same_bits(f(INTEGERS), INTEGERS / 2)
    assert same_bits(f(OTHERS), OTHERS / 2)
    assert traces.count == 1
    g = jax.jit(lambda x: jnp.sin(jm.jit(halve, mesh=mesh)(jnp.cos(x))))
    np.testing.assert_allclose(g(INTEGERS), jnp.sin(jnp.cos(INTEGERS) / 2), rtol=1e-6)


def test_a_program_in_jax_control_flow(mesh: Mesh) -> None:
    f = jm.jit(halve, mesh=mesh)
    assert same_bits(lax.fori_loop(0, 3, lambda _, x: f(x), INTEGERS), INTEGERS / 8)
    assert same_bits(lax.cond(True, f, lambda x: x, INTEGERS), INTEGERS / 2)
    rows = lax.scan(lambda c, x: (c + f(x).sum(), f(x)), 0.0, jnp.stack([INTEGERS, OTHERS]))
    assert same_bits(rows[1], jnp.stack([INTEGERS, OTHERS]) / 2)
    assert same_bits(lax.map(f, jnp.stack([INTEGERS, OTHERS])), jnp.stack([INTEGERS, OTHERS]) / 2)


def test_a_program_in_a_program_is_a_part_of_it(mesh: Mesh) -> None:
    inner = jm.jit(lambda s, n: s * n, mesh=mesh, static_argnums=1)
    whole = jm.jit(halve, mesh=mesh)

    @jm.jit(mesh=mesh)
    def outer(x: Any) -> Any:
        s = inner(jm.full_to_shard(whole(x), P("y", "x")), 6)
        return whole(jm.shard_to_full(s, P("y", "x")))

    assert same_bits(outer(INTEGERS), INTEGERS / 2 * 6 / 2)
    lowered = outer.lower(INTEGERS)
    assert "mesh_shard" not in lowered.as_text()
    assert same_bits(lowered.reference(INTEGERS), INTEGERS / 2 * 6 / 2)
    assert same_bits(jax.grad(lambda x: outer(x).sum())(INTEGERS), jnp.full_like(INTEGERS, 1.5))


def test_a_program_without_a_mesh_in_a_program(mesh: Mesh) -> None:
    inner = jm.jit(halve)
    assert same_bits(jm.jit(lambda x: inner(x) + 1, mesh=mesh)(INTEGERS), INTEGERS / 2 + 1)


@pytest.mark.parametrize(
    "other",
    [lambda: jm.make_mesh((4, 2)), lambda: jm.make_mesh((2, 4), ("a", "b")), lambda: jm.make_mesh((2, 2, 2))],
    ids=["shape", "names", "rank"],
)
def test_a_program_for_another_mesh_in_a_program(other: Callable[[], Mesh], mesh: Mesh) -> None:
    inner = jm.jit(lambda x: x * 2, mesh=other())
    with pytest.raises(jm.MeshMismatchError):
        jm.jit(lambda x: inner(halve(x)), mesh=mesh)(INTEGERS)


def test_a_program_for_other_devices_in_a_program(mesh: Mesh) -> None:
    inner = jm.jit(lambda x: x * 2, mesh=jm.make_mesh((2, 4), devices=jax.devices()[8:]))
    with pytest.raises(jm.MeshMismatchError):
        jm.jit(lambda x: inner(halve(x)), mesh=mesh)(INTEGERS)


# --- the context mesh ------------------------------------------------------------------------------------------------


def devices_of(x: Any) -> set[Any]:
    return set(x.sharding.device_set)


def test_the_mesh_of_the_context(mesh: Mesh) -> None:
    f = jm.jit(halve)
    with jax.set_mesh(mesh):
        assert same_bits(f(INTEGERS), INTEGERS / 2)
        assert same_bits(jax.jit(lambda x: f(x) + 1)(INTEGERS), INTEGERS / 2 + 1)
        assert same_bits(jax.grad(lambda x: f(x).sum())(INTEGERS), jnp.full_like(INTEGERS, 0.5))
        assert same_bits(jax.vmap(f)(INTEGERS[None]), INTEGERS[None] / 2)
        assert same_bits(f.lower(INTEGERS).compile()(INTEGERS), INTEGERS / 2)
        assert f.trace(INTEGERS).mesh == mesh
    with pytest.raises(jm.MeshError, match="no mesh"):
        f(INTEGERS)


def test_the_same_function_under_one_mesh_after_the_other() -> None:
    f = jm.jit(lambda x: jm.full_to_shard(x, P("y")))
    meshes = [jm.make_mesh((2, 4)), jm.make_mesh((4, 2)), jm.make_mesh((2, 4), devices=jax.devices()[8:])]
    for mesh in (*meshes, *meshes):
        with jax.set_mesh(mesh):
            t = f(INTEGERS)
        assert t.shape == (8 // mesh.shape["y"], 16)
        assert devices_of(t.data) == set(mesh.devices.flat)


def test_a_given_mesh_in_its_own_context(mesh: Mesh) -> None:
    with jax.set_mesh(mesh):
        assert same_bits(jm.jit(halve, mesh=mesh)(INTEGERS), INTEGERS / 2)
        assert same_bits(jm.jit(halve, mesh=mesh.abstract_mesh)(INTEGERS), INTEGERS / 2)


@pytest.mark.parametrize("how", ["call", "trace", "jit", "grad", "vmap"])
@pytest.mark.parametrize(
    "other",
    [
        lambda: jm.make_mesh((4, 2)),
        lambda: jm.make_mesh((2, 4), ("a", "b")),
        lambda: jm.make_mesh((8,)),
        lambda: jm.make_mesh((2, 4), devices=jax.devices()[8:]),
    ],
    ids=["shape", "names", "rank", "devices"],
)
def test_the_context_has_another_mesh(other: Callable[[], Mesh], how: str, mesh: Mesh) -> None:
    f = jm.jit(halve, mesh=mesh)
    calls: dict[str, Callable[[], Any]] = {
        "call": lambda: f(INTEGERS),
        "trace": lambda: f.trace(INTEGERS),
        "jit": lambda: jax.jit(f)(INTEGERS),
        "grad": lambda: jax.grad(lambda x: f(x).sum())(INTEGERS),
        "vmap": lambda: jax.vmap(f)(INTEGERS[None]),
    }
    with jax.set_mesh(other()), pytest.raises(jm.MeshMismatchError, match="one program has one mesh"):
        calls[how]()


def test_the_context_has_another_mesh_after_a_first_call(mesh: Mesh) -> None:
    """What is cached does not hide the mistake."""
    f = jm.jit(halve, mesh=mesh)
    f(INTEGERS)
    for other in (jm.make_mesh((4, 2)), jm.make_mesh((2, 4), devices=jax.devices()[8:])):
        with jax.set_mesh(other), pytest.raises(jm.MeshMismatchError):
            f(INTEGERS)


# --- explicit axes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["auto", "explicit", "mixed"])
def typed_mesh(request: pytest.FixtureRequest) -> Mesh:
    types = {
        "auto": (AxisType.Auto,) * 2,
        "explicit": (AxisType.Explicit,) * 2,
        "mixed": (AxisType.Explicit, AxisType.Auto),
    }
    return jm.make_mesh((2, 4), axis_types=types[request.param])


@pytest.fixture(params=[False, True], ids=["no context", "set_mesh"])
def context(request: pytest.FixtureRequest, typed_mesh: Mesh) -> Iterator[bool]:
    if request.param:
        with jax.set_mesh(typed_mesh):
            yield True
    else:
        yield False


def work(x: Any, w: Any) -> Any:
    """Full-shape work, a region, full-shape work, a second region."""
    a = jm.full_to_shard(jnp.sin(x) + 1, P("y", "x"))
    b = jm.shard_to_full(lax.psum(a @ jm.full_to_shard(w, P("x")), "x"), P("y"))
    c = jnp.tanh(b) * 2 + x
    return jm.shard_to_full(jm.full_to_shard(c, P(("x",))) * ROW, P("x")).T


def work_plain(x: Any, w: Any) -> Any:
    return ((jnp.tanh((jnp.sin(x) + 1) @ w) * 2 + x) * ROW).T


PLACES: dict[str, P | None] = {
    "plain": None,
    "as the program splits": P("y", "x"),
    "otherwise": P("x"),
    "replicated": P(),
}


@pytest.mark.parametrize("place", list(PLACES))
def test_axis_types(place: str, typed_mesh: Mesh, context: bool) -> None:
    spec = PLACES[place]
    x = X if spec is None else jax.device_put(X, NamedSharding(typed_mesh, spec))
    w = W if spec is None else jax.device_put(W, NamedSharding(typed_mesh, P(None, "x")))
    f = jm.jit(work, mesh=None if context else typed_mesh)
    close(f(x, w), work_plain(X, W))


@pytest.mark.parametrize("place", list(PLACES))
def test_a_compiled_program_takes_the_arrays_it_was_lowered_for(place: str, typed_mesh: Mesh) -> None:
    """`lower(x).compile()(x)` works for every x, as with jax.jit: where x lies is part of its type."""
    spec = PLACES[place]
    x = X if spec is None else jax.device_put(X, NamedSharding(typed_mesh, spec))
    f = jm.jit(work, mesh=typed_mesh)
    close(f.lower(x, W).compile()(x, W), work_plain(X, W))


@pytest.mark.parametrize("place", ["plain", "as the program splits"])
def test_axis_types_under_transformations(place: str, typed_mesh: Mesh, context: bool) -> None:
    spec = PLACES[place]
    x = X if spec is None else jax.device_put(X, NamedSharding(typed_mesh, spec))
    f = jm.jit(work, mesh=typed_mesh)
    loss = lambda x, w: (f(x, w) ** 2).sum()  # noqa: E731
    plain_loss = lambda x, w: (work_plain(x, w) ** 2).sum()  # noqa: E731
    want = jax.jit(jax.grad(plain_loss, (0, 1)))(X, W)
    close(jax.jit(jax.grad(loss, (0, 1)))(x, W), want)
    inside = jm.jit(jax.grad(lambda x, w: (work(x, w) ** 2).sum(), (0, 1)), mesh=typed_mesh)
    close(inside(x, W), want)
    if spec is None:
        close(
            jax.vmap(f, (0, None))(jnp.stack([x, 2 * x]), W), jax.vmap(work_plain, (0, None))(jnp.stack([X, 2 * X]), W)
        )


def test_axis_types_and_tensors_on_the_devices(typed_mesh: Mesh, context: bool) -> None:
    split = jm.jit(lambda x: jm.full_to_shard(x, P("y", "x")) * 2, mesh=typed_mesh)
    join = jm.jit(lambda s: jm.shard_to_full(s + 1, P("y", "x")), mesh=typed_mesh)
    t = split(INTEGERS)
    assert t.varying == ("y", "x")
    close(join(t), 2 * INTEGERS + 1)
    close(jax.jit(lambda x: join(split(x)))(INTEGERS), 2 * INTEGERS + 1)


# --- tensors that stay on the devices --------------------------------------------------------------------------------


def split(x: Any) -> Any:
    return jm.full_to_shard(x, P("y", "x"))


def join(s: Any) -> Any:
    return jm.shard_to_full(s, P("y", "x"))


def assert_shards(t: Any, want: Any, dims: list[list[int]]) -> None:
    held = {tuple(c): s for c, s in t.shards()}
    assert set(held) == set(coordinates((2, 4)))
    for c, shard in held.items():
        assert same_bits(shard, oracle_shard(np.asarray(want), dims, (2, 4), c))


def test_a_tensor_leaves_and_enters(mesh: Mesh) -> None:
    t = jm.jit(lambda x: split(x) * 2, mesh=mesh)(INTEGERS)
    assert isinstance(t, jm.MeshTensor)
    assert (t.shape, t.dtype, t.varying) == ((4, 4), jnp.float32, ("y", "x"))
    assert_shards(t, 2 * INTEGERS, [[0], [1]])
    traces = Counter()
    g = jm.jit(lambda s, x: join(traces(s) + split(x)), mesh=mesh)
    assert same_bits(g(t, OTHERS), 2 * INTEGERS + OTHERS)
    g(t, INTEGERS)
    assert traces.count == 1
    lowered = g.lower(t, OTHERS)
    assert lowered.in_avals[0].shape == (4, 4)
    assert same_bits(lowered.compile()(t, OTHERS), 2 * INTEGERS + OTHERS)
    assert same_bits(lowered.reference(t, OTHERS), 2 * INTEGERS + OTHERS)
    assert lowered.as_text().count("distribute_tensor") == 1


def test_tensors_that_vary_over_some_axes(mesh: Mesh) -> None:
    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P(None, "x"))
        return s, lax.psum(s.sum(1), "x"), jm.full_to_shard(x, P())

    s, total, copies = jm.jit(f, mesh=mesh)(INTEGERS)
    assert (s.varying, total.varying, copies.varying) == (("x",), (), ())
    assert_shards(s, INTEGERS, [[], [1]])
    assert_shards(total, INTEGERS.sum(1), [[]])
    assert_shards(copies, INTEGERS, [[], []])

    def g(s: Any, total: Any, copies: Any) -> Any:
        return jm.shard_to_full(s, P(None, "x")), jm.shard_to_full(total, P()), jm.shard_to_full(copies, P())

    out = jm.jit(g, mesh=mesh)(s, total, copies)
    assert all(same_bits(a, b) for a, b in zip(out, (INTEGERS, INTEGERS.sum(1), INTEGERS), strict=True))


def test_a_tensor_of_other_types_makes_another_program(mesh: Mesh) -> None:
    traces = Counter()
    g = jm.jit(lambda s: lax.psum(traces(s).sum(), ()), mesh=mesh)
    first = jm.jit(lambda x: jm.full_to_shard(x, P("y", "x")), mesh=mesh)(INTEGERS)
    second = jm.jit(lambda x: jm.full_to_shard(x, P(None, ("y", "x"))), mesh=mesh)(INTEGERS)
    third = jm.jit(lambda x: jm.full_to_shard(x, P("y")), mesh=mesh)(INTEGERS[:, :4])
    assert first.shape == third.shape != second.shape
    assert [g(t).varying for t in (first, second, third)] == [("y", "x"), ("y", "x"), ("y",)]
    assert traces.count == 3


def test_a_tensor_in_trees_and_under_jit(mesh: Mesh) -> None:
    t = jm.jit(split, mesh=mesh)(INTEGERS)
    f = jm.jit(lambda d, k: {"sum": join(d["a"] * k), "same": d["a"]}, mesh=mesh)
    for call in (f, jax.jit(f)):
        out = call({"a": t}, 3.0)
        assert same_bits(out["sum"], 3 * INTEGERS)
        assert_shards(out["same"], INTEGERS, [[0], [1]])
    shapes = jax.eval_shape(f, {"a": t}, 3.0)
    assert isinstance(shapes["same"], jm.MeshTensor)
    assert shapes["same"].shape == (4, 4)


def test_vmap_over_a_function_that_leaves_a_tensor(mesh: Mesh) -> None:
    x = jnp.stack([INTEGERS, OTHERS, -INTEGERS])
    t = jax.vmap(jm.jit(split, mesh=mesh))(x)
    assert isinstance(t, jm.MeshTensor)
    assert t.shape == (3, 4, 4)
    assert_shards(t, x, [[], [0], [1]])
    assert same_bits(jax.vmap(jm.jit(join, mesh=mesh))(t), x)
    assert same_bits(jax.jit(jax.vmap(jm.jit(lambda s: join(s * 2), mesh=mesh)))(t), 2 * x)
    assert same_bits(jm.jit(jax.vmap(join), mesh=mesh)(t), x)


def test_gradients_with_respect_to_a_tensor(mesh: Mesh) -> None:
    t = jm.jit(split, mesh=mesh)(INTEGERS)
    loss = jm.jit(lambda s, w: (join(s * s) * w).sum(), mesh=mesh)
    dt, dw = jax.grad(loss, (0, 1))(t, OTHERS)
    assert isinstance(dt, jm.MeshTensor)
    assert dt.varying == t.varying
    assert_shards(dt, 2 * INTEGERS * OTHERS, [[0], [1]])
    assert same_bits(dw, INTEGERS * INTEGERS)
    inside = jm.jit(jax.grad(lambda s, w: (join(s * s) * w).sum()), mesh=mesh)(t, OTHERS)
    assert_shards(inside, 2 * INTEGERS * OTHERS, [[0], [1]])


def test_gradients_past_a_tensor_between_two_programs(mesh: Mesh) -> None:
    first, second = jm.jit(lambda x: split(x) ** 2, mesh=mesh), jm.jit(lambda s: join(s * 3).sum(), mesh=mesh)
    for grad in (jax.grad(lambda x: second(first(x))), jax.jit(jax.grad(lambda x: second(first(x))))):
        assert same_bits(grad(INTEGERS), 6 * INTEGERS)


def test_the_gradient_of_a_full_array_beside_shards_is_a_tensor(mesh: Mesh) -> None:
    """Residency: it is made on the devices, and nothing brings it back."""

    def f(x: Any, row: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P("y")) * row, P("y")).sum()

    got = jm.jit(jax.grad(f, 1), mesh=mesh)(INTEGERS, OTHERS[0])
    assert isinstance(got, jm.MeshTensor)
    assert same_bits(full(got), INTEGERS.sum(0))
    outside = jax.grad(jm.jit(f, mesh=mesh), 1)(INTEGERS, OTHERS[0])
    assert isinstance(outside, jax.Array)
    assert same_bits(outside, INTEGERS.sum(0))


def _free_levels() -> int:
    """How many calls the recursion limit has left."""

    def deeper(n: int) -> int:
        try:
            return deeper(n + 1)
        except RecursionError:
            return n

    return deeper(0)


ROUNDS = np.arange(8, dtype=np.float32).reshape(2, 4)


def _scaled(mesh: Mesh, by: float) -> Any:
    return jm.jit(lambda d: {"a": [jm.shard_to_full(d["t"] * by, P("y", "x"))]}, mesh=mesh)


TENSOR_TREES: dict[str, Callable[[Any, Any], Any]] = {
    "call": lambda f, d: f(d)["a"][0],
    "ahead of time": lambda f, d: jax.jit(f).lower(d).compile()(d)["a"][0],
    "export": lambda f, d: jax.export.export(jax.jit(f))(d).call(d)["a"][0],
    "our stages": lambda f, d: f.lower(d).compile()(d)["a"][0],
    "jacfwd": lambda f, d: jax.jacfwd(lambda d: f(d)["a"][0].sum())(d)["t"].data.shape,
    "jacrev": lambda f, d: jax.jacrev(lambda d: f(d)["a"][0].sum())(d)["t"].data.shape,
    "hessian": lambda f, d: jax.tree.leaves(jax.hessian(lambda d: (f(d)["a"][0] ** 2).sum())(d))[0].shape,
    "custom_vjp": lambda f, d: _with_rule(f)(d)["a"][0],
}


def _with_rule(f: Any) -> Any:
    made = jax.custom_vjp(lambda d: f(d))
    made.defvjp(lambda d: (f(d), d), lambda d, _: (d,))
    gradient = jax.grad(lambda d: made(d)["a"][0].sum())
    return lambda d: [gradient(d), made(d)][1]


@pytest.mark.parametrize("name", TENSOR_TREES)
def test_tensors_in_trees(mesh: Mesh, name: str) -> None:
    # JAX puts types, specs and whole trees in the place of a tensor's array; where that was an error and JAX caught it,
    # each compilation took a level of the recursion limit, until nothing ran any more.
    tensor = jm.jit(lambda x: jm.full_to_shard(x, P("y", "x")), mesh=mesh)(ROUNDS)
    before = _free_levels()
    for by in (2.0, 3.0):
        out = TENSOR_TREES[name](_scaled(mesh, by), {"t": tensor})
        if isinstance(out, tuple):
            assert out[: len(tensor.data.shape)] == tensor.data.shape
        else:
            assert same_bits(out, ROUNDS * np.float32(by))
    assert _free_levels() == before


def test_a_tensor_of_another_mesh(mesh: Mesh) -> None:
    f = jm.jit(join, mesh=mesh)
    for other in (jm.make_mesh((4, 2)), jm.make_mesh((2, 4), devices=jax.devices()[8:])):
        t = jm.jit(split, mesh=other)(INTEGERS)
        with pytest.raises(jm.MeshMismatchError):
            f(t)
        with pytest.raises(jm.MeshMismatchError):
            f.trace(t)


def test_a_tensor_of_the_context_mesh(mesh: Mesh) -> None:
    """Made under set_mesh without naming the mesh, and used with it, and the other way round."""
    with jax.set_mesh(mesh):
        t = jm.jit(split)(INTEGERS)
        assert same_bits(jm.jit(join)(t), INTEGERS)
        assert same_bits(jm.jit(join, mesh=mesh)(t), INTEGERS)
    assert t.mesh == mesh
    assert_shards(t, INTEGERS, [[0], [1]])
    assert same_bits(jm.jit(join, mesh=mesh)(t), INTEGERS)
    with jax.set_mesh(mesh):
        assert same_bits(jm.jit(join)(jm.jit(split, mesh=mesh)(INTEGERS)), INTEGERS)
