"""Kinds of arguments and results of plain programs with shardings: random keys, integers, derivatives of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback  # noqa: TID251
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.errors import InexpressibleError
from jaxmesh.jaxprs import source_locations
from tests.generators.alike import assert_alike, outcome
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


@pytest.mark.slow(but_one_in=5)
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


# --- linear algebra --------------------------------------------------------------------------------------------------


library_p = Primitive("cholesky_of_a_library")
library_p.def_impl(jnp.linalg.cholesky)
library_p.def_abstract_eval(lambda a: jax.core.ShapedArray(a.shape, a.dtype))
mlir.register_lowering(library_p, mlir.lower_fun(jnp.linalg.cholesky, multiple_results=False))


@pytest.mark.slow(but_one_in=3)
@pytest.mark.parametrize("spec", [P("y"), P(("y", "x")), P("x", None, "y")])
@pytest.mark.parametrize(
    "fun",
    [
        jnp.linalg.cholesky,
        library_p.bind,
        jnp.linalg.qr,
        jnp.linalg.inv,
        lambda a: jnp.linalg.solve(a, a[..., :1] * 2),
        jax.grad(lambda a: jnp.linalg.slogdet(a)[1].sum()),
    ],
    ids=["cholesky", "cholesky of a library", "qr", "inv", "solve", "gradient"],
)
def test_matrices_of_a_split_batch_stay_where_they_are(fun: Callable[[Array], Any], spec: P) -> None:
    a = np.random.default_rng(0).normal(size=(8, 4, 4)).astype(np.float32)
    a = a @ a.swapaxes(1, 2) + 4 * np.eye(4, dtype=np.float32)
    program = jm.jit(fun, mesh=MESH, in_shardings=spec)
    alike(program(a), fun(a))
    traced = program.trace(a)
    assert (traced.as_text().count("ttir.all_gather") > 0) == (len(spec) > 1)
    assert traced.lower().as_text()


@pytest.mark.slow(but_one_in=4)
@pytest.mark.filterwarnings("ignore::jaxmesh.errors.ReplicatedProgramWarning")
@pytest.mark.parametrize("spec", [P(None, "x"), P("y", "x"), P(None, ("y", "x")), P(None, ("x", "y"))])
@pytest.mark.parametrize("k", [1, 7, 8, 20])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_the_largest_of_a_split_dim_are_picked_among_those_of_each_part(k: int, dtype: Any, spec: P) -> None:
    """Many are equal, so that the first of them is to be found; not-a-number is the largest of all."""
    x = np.random.default_rng(k).integers(-9, 9, (4, 64)).astype(dtype)
    if dtype is np.float32:
        x[1, 50] = np.nan
    program = jm.jit(lambda x: jax.lax.top_k(x, k), mesh=MESH, in_shardings=spec)
    for got, want in zip(program(x), jax.lax.top_k(x, k), strict=True):
        np.testing.assert_array_equal(got, want)
    parts = 8 if isinstance(spec[1], tuple) else 4
    gathered = re.findall(r"ttir.all_gather.*tensor<[0-9]+x([0-9]+)x[fi]32>\n", program.trace(x).as_text())
    assert max(map(int, gathered)) == (k * parts if k < 64 // parts else 64)


COMPLEX = (np.arange(64) * (1 - 2j)).reshape(8, 8).astype(np.complex64)


@pytest.mark.slow(but_one_in=6)
@pytest.mark.filterwarnings("ignore::jaxmesh.errors.ReplicatedProgramWarning")
@pytest.mark.parametrize("spec", [P("y", "x"), P(None, "x")])
@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jax.lax.cumlogsumexp(x, axis=1, reverse=True),
        lambda x: jax.lax.approx_max_k(x, 3),
        lambda x: jax.lax.approx_min_k(x, 2, reduction_dimension=0),
        lambda x: jnp.imag(x * (1 + 2j)) + jnp.abs(x + COMPLEX),
        lambda x: jnp.abs(jnp.full((8, 8), 3j, np.complex64) + x),
    ],
    ids=["cumlogsumexp", "approx_max_k", "approx_min_k", "complex constants", "one complex number"],
)
def test_what_lowers_to_no_common_op_has_texts(fun: Callable[[Array], Any], spec: P) -> None:
    x = np.random.default_rng(2).normal(size=(8, 8)).astype(np.float32)
    program = jm.jit(fun, mesh=MESH, in_shardings=(spec,))
    alike(program(x), fun(x))
    lowered = program.lower(x)
    alike(lowered.reference(x), fun(x))
    assert all(lowered.as_text(language) for language in ("ttnn", "python", "cpp"))


@pytest.mark.parametrize("name", ["pure_callback", "io_callback", "debug_print"])
def test_a_call_of_the_host_has_no_text_which_one_sentence_says(name: str) -> None:
    def fun(x: Array) -> Array:
        if name == "debug_print":
            jax.debug.print("{}", x.sum())
            return x
        call = jax.pure_callback if name == "pure_callback" else io_callback
        return call(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    plain = jm.jit(fun, mesh=MESH, in_shardings=P("y"))
    by_hand = jm.jit(lambda x: jm.shard_to_full(fun(jm.full_to_shard(x, P("y"))), P("y")), mesh=MESH)
    said: set[str] = set()
    for program in (plain, by_hand):
        with pytest.raises(InexpressibleError, match=f"{name}.*test_jit_shardings_kinds.py:.* calls Python") as caught:
            program.lower(np.ones((8, 8), np.float32)).as_text()
        said.add(str(caught.value))
    assert len(said) == 1


def test_what_functions_of_jax_do_is_at_the_line_that_calls_them() -> None:
    program = jm.jit(lambda x: jnp.linalg.norm(jnp.var(x, 1, keepdims=True), axis=1), mesh=MESH, in_shardings=P("y"))
    here = [source_locations.source_line(e) for e in program.trace(X).jaxpr.eqns if e.primitive.name != "mesh_shard"]
    assert here
    assert all(__file__ in line for line in here)


# --- what a program looks at, and arrays of other meshes --------------------------------------------------------------


def inspecting(x: Array, seen: list[Any]) -> Array:
    """Looks at a value, at the state of a loop, and at what the loop makes."""

    def step(total: Array, row: Array) -> tuple[Array, Array]:
        jax.debug.inspect_array_sharding(total, callback=seen.append)
        return total + row, total

    y = x * 2
    jax.debug.inspect_array_sharding(y, callback=seen.append)
    rows = jax.lax.scan(step, y.sum(0), y)[1]
    jax.debug.inspect_array_sharding(rows, callback=seen.append)
    return rows.sum(0)


def test_inspected_shardings_are_those_of_jax() -> None:
    seen: list[Any] = []
    wanted: list[Any] = []
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    program = jm.jit(lambda x: inspecting(x, seen), mesh=MESH, in_shardings=P(None, "x"))
    alike(program(x), jax.jit(lambda x: inspecting(x, wanted), in_shardings=on(None, "x"))(x))
    # XLA compiles the body of a loop before what is around it.
    assert (
        sorted(str(s.spec) for s in seen) == sorted(str(s.spec) for s in wanted) == ["P('x',)", *["P(None, 'x')"] * 2]
    )
    assert all(s.mesh == MESH for s in seen)
    assert "inspect" not in program.trace(x).lower().as_text()


def test_an_inspected_shard_leaves_no_trace_in_a_text() -> None:
    def program(x: Array) -> Array:
        shard = jm.full_to_shard(x, P("y"))
        jax.debug.inspect_array_sharding(shard, callback=print)
        return jm.shard_to_full(shard, P("y"))

    assert "inspect" not in jm.jit(program, mesh=MESH).trace(X).lower().as_text()


def test_an_array_on_other_devices_is_refused() -> None:
    four = jax.sharding.Mesh(np.asarray(jax.devices()[:4]), ("z",))
    x = jax.device_put(X, jax.sharding.NamedSharding(four, P("z")))
    for shardings in ({}, {"in_shardings": P("y")}):
        with pytest.raises(jm.MeshMismatchError, match=r"P\('z',\).*device_put"):
            jm.jit(lambda x: x * 2, mesh=MESH, **shardings)(x)


def test_a_split_over_another_mesh_of_the_same_devices_is_dropped_with_a_warning() -> None:
    line = jax.sharding.Mesh(np.asarray(jax.devices()[:8]), ("z",))
    x = jax.device_put(X, jax.sharding.NamedSharding(line, P("z")))
    with pytest.warns(jm.errors.DroppedShardingWarning, match=r"P\('z',\).*full tensor"):
        y = jm.jit(lambda x: jax.lax.with_sharding_constraint(x * 2, on("y")), mesh=MESH)(x)
    alike(y, X * 2)
    assert y.sharding.is_equivalent_to(on("y"), 2)


@pytest.mark.filterwarnings("ignore::jaxmesh.errors.DroppedShardingWarning")
@pytest.mark.parametrize(("shape", "spec"), [((8,), P("a")), ((8,), P()), ((4, 2), P("a", "b")), ((2, 4), P())])
def test_results_are_on_the_programs_mesh_wherever_arguments_are(shape: tuple[int, ...], spec: P) -> None:
    other = jax.sharding.Mesh(np.asarray(jax.devices()[:8]).reshape(shape), ("a", "b")[: len(shape)])
    x = jax.device_put(X, jax.sharding.NamedSharding(other, spec))
    y = jm.jit(lambda x: x * 2, mesh=MESH, out_shardings=P("y"))(x)
    alike(y, X * 2)
    assert (y.sharding.mesh.axis_names, y.sharding.spec) == (("y", "x"), P("y"))


def test_a_kind_of_memory_of_results_is_warned_of_once() -> None:
    pinned = jax.sharding.NamedSharding(MESH, P("y"), memory_kind="pinned_host")
    with pytest.warns(jm.errors.MemoryKindWarning) as caught:
        jm.jit(lambda x: x * 2, mesh=MESH, in_shardings=P("y"), out_shardings=pinned)(X)
    assert len(caught) == 1


# --- primitives that JAX expands --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fun", [jnp.searchsorted, lambda x, q: jax.lax.map(lambda y: jnp.searchsorted(x, y), q)])
def test_what_jax_expands_before_it_lowers_has_texts(fun: Callable[..., Any]) -> None:
    args = np.arange(16, dtype=np.float32), np.linspace(-1, 17, 8, dtype=np.float32)
    program = jm.jit(fun, mesh=MESH, in_shardings=(P("x"), P("y")))
    np.testing.assert_array_equal(program(*args), fun(*args))
    traced = program.trace(*args)
    np.testing.assert_array_equal(traced.lower().compile()(*args), fun(*args))
    assert (
        "shard_dims = array<i64: -1, 0>, shard_direction = #ttcore.shard_direction<full_to_shard>" in traced.as_text()
    )
    assert all(traced.lower().as_text(language) for language in ("ttnn", "python", "cpp"))


# --- regions for one device ------------------------------------------------------------------------------------------


def place(x: Array) -> Any:
    rolled = jax.lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])
    return rolled + jax.lax.axis_index("x")


def test_a_region_over_some_axes_knows_its_place_along_them() -> None:
    part = jax.shard_map(place, mesh=MESH, in_specs=P(None, "x"), out_specs=P(None, "x"), axis_names={"x"})
    want = np.roll(X, X.shape[1] // 4, 1) + np.repeat(np.arange(4, dtype=np.float32), X.shape[1] // 4)
    repeated = lambda x: jax.lax.scan(lambda c, _: (part(c), None), x, None, length=4)[0]  # noqa: E731
    for fun, expected in ((part, want), (jax.vmap(part, 1, 1), None), (repeated, None)):
        x = X if expected is not None or fun is repeated else np.stack([X, 2 * X], 1)
        program = jm.jit(fun, mesh=MESH, in_shardings=P("y"))
        expected = np.asarray(jax.jit(fun)(x)) if expected is None else expected
        traced = program.trace(x)
        for got in (program(x), traced.lower().compile()(x), traced.reference(x)):
            np.testing.assert_allclose(got, expected, rtol=1e-6)
        assert all(traced.lower().as_text(language) for language in ("ttnn", "python", "cpp"))
    text = jax.jit(part, in_shardings=on("y")).lower(X).as_text()
    with pytest.warns(jm.AssumptionWarning, match="the same over mesh axis 'y'$"):
        read = jm.from_mlir(text)
    np.testing.assert_allclose(read.lower().compile()(X), want, rtol=1e-6)


def test_gradients_of_integers_are_float0() -> None:
    step = jax.grad(lambda x, n: (x**2).sum() + n.sum() * 0, argnums=(0, 1), allow_int=True)
    n = np.ones((8, 8), np.int32)
    expected = jax.jit(step)(X, n)
    found = jm.jit(step, mesh=MESH, in_shardings=P("y"))(X, n)
    assert [y.dtype for y in found] == [y.dtype for y in expected] == [np.float32, jax.dtypes.float0]
    assert found[1].shape == n.shape


# --- Explicit axes ---------------------------------------------------------------------------------------------------


def test_the_reference_does_not_look_at_explicit_types() -> None:
    explicit = jax.make_mesh((1, 2), ("y", "x"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    x = jax.device_put(X, jax.sharding.NamedSharding(explicit, P(None, "y")))
    with jax.set_mesh(explicit):
        lowered = jm.jit(lambda x: jax.sharding.reshard(x + x, P("y", None)).T @ x).lower(x)
        np.testing.assert_allclose(lowered.reference(x), 2 * X.T @ X, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", [P(), P(None, "x"), P("x")])
def test_results_are_as_asked_on_explicit_axes(spec: P) -> None:
    explicit = jax.make_mesh((2, 4), ("y", "x"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    wanted = jax.sharding.NamedSharding(explicit, P("y"))
    x = jax.device_put(X, jax.sharding.NamedSharding(explicit, spec))
    program = jm.jit(lambda x: jnp.sin(x) * 2, mesh=explicit, out_shardings=P("y"))
    inner = jax.jit(lambda x: jnp.sin(x) * 2, out_shardings=wanted)
    assert jax.jit(program)(x).sharding == jax.jit(inner)(x).sharding
    for y in (program(x), program.lower(x).compile()(x)):
        alike(y, np.sin(X) * 2)
        assert y.sharding.is_equivalent_to(wanted, 2)
    # Under transformations the call is JAX's own: its types, and its type errors.
    with jax.set_mesh(explicit):
        for transform in (jax.grad, lambda f: jax.jit(jax.grad(f))):
            mine, theirs = (
                outcome(lambda f=f: transform(lambda x: (f(x) ** 2).sum())(x))  # noqa: B023
                for f in (program, inner)
            )
            assert_alike(mine, theirs)
        alike(jax.jvp(program, (x,), (x,))[1], 2 * np.cos(X) * X)
        alike(jax.vmap(program)(jnp.stack([x, x])), np.stack([np.sin(X) * 2] * 2))


# --- arrays without elements -----------------------------------------------------------------------------------------

EMPTY = [
    (lambda a, b: (a, b.sum()), ((0, 8), (0, 8)), (P(None, "x"), P("y"))),
    (lambda a, b: (jnp.concatenate([a, b]), a @ b.T), ((0, 8), (4, 8)), (P("y"), P("y", "x"))),
    (lambda a, b: (jnp.argmax(b.sum(1)), b.sum(1) @ a), ((4,), (4, 0)), (P(), P("y", "x"))),
    (lambda a, b: (jnp.sort(a), b * 2), ((0,), (2, 0, 4)), (P("x"), P("y", None, "x"))),
    (lambda a, b: lax.fori_loop(0, 3, lambda _, v: v + b.sum(), a), ((0, 4), (0,)), (P(None, "x"), P())),
]


@pytest.mark.filterwarnings("ignore::jaxmesh.errors.ReplicatedProgramWarning")
@pytest.mark.parametrize("sizes", [(2, 4), (8, 1)], ids=str)
@pytest.mark.parametrize("number", range(len(EMPTY)))
def test_arrays_without_elements(number: int, sizes: tuple[int, ...]) -> None:
    f, shapes, specs = EMPTY[number]
    args = [np.ones(shape, np.float32) for shape in shapes]
    expected = jax.jit(f)(*args)
    mesh = jm.make_mesh(sizes)
    asked = specs if sizes == (2, 4) else (P(), P())
    programs = [jm.jit(f, mesh=mesh, in_shardings=asked), jm.jit(f, mesh=mesh, in_shardings=asked, out_shardings=P())]
    for program in programs:
        found = program(*args)
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            np.testing.assert_array_equal(x, y)


# --- axes of size 1 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(8, 1), (1, 1), (1, 8)], ids=str)
def test_an_axis_of_size_one_splits_nothing(sizes: tuple[int, ...], tmp_path: Path) -> None:
    mesh = jm.make_mesh(sizes)
    split, x = NamedSharding(mesh, P("y", "x")), np.arange(64, dtype=np.float32).reshape(8, 8)

    def f(v: Any) -> Any:
        return (v @ v.T + 1).sum(0), v * 2

    expected, theirs = jax.jit(f)(x), jax.jit(f, out_shardings=(NamedSharding(mesh, P("x")), split))(x)
    ours = jm.jit(f, mesh=mesh, in_shardings=P("y", "x"), out_shardings=(P("x"), P("y", "x")))
    for given in (x, jax.device_put(x, split)):
        found = ours(given)
        for a, b, c in zip(found, expected, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
            assert a.sharding.is_equivalent_to(c.sharding, a.ndim)
        lowered = ours.lower(given)
        for run in (lowered.reference, lowered.compile(check_replication=True)):
            np.testing.assert_allclose(run(given)[1], expected[1], rtol=1e-6)
        assert lowered.record(given).entries
        lowered.export(tmp_path / str(type(given).__name__), given)
        program = str(lowered.jaxpr)
        single = [name for name, size in mesh.shape.items() if size == 1]
        assert not [name for name in single if f"axis_name=('{name}',)" in program or f"axes=('{name}',)" in program]
