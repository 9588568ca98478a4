"""`jm.jit` of plain programs with shardings: values, gradients, texts, communication, explanations, errors."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import errors
from tests.generators.plain_programs import (
    BATCH,
    CASES,
    LINE,
    MESH,
    SQUARE,
    Case,
    V,
    W,
    X,
    by_hand,
    jitted,
    mlp,
    normal,
    on,
    wsc,
)

pytestmark = pytest.mark.slow(but_one_in=4)


def cases(keep: Callable[[Case], bool] = lambda c: True) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(c, id=c.name.replace(" ", "_")) for c in CASES if keep(c)])


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ShardingWarning)
        yield


def alike(got: Any, want: Any) -> None:
    rows = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    for a, b in rows:
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5 * (1 + np.max(np.abs(y), initial=0)))


@pytest.mark.slow(but_one_in=8)
@cases()
def test_values_and_shardings_of_results(case: Case) -> None:
    got = jitted(case)(*case.args)
    alike(got, jax.jit(case.fun)(*case.args))
    for y, z in zip(
        jax.tree.leaves(got), jax.tree.leaves(jax.jit(case.fun, **case.jax_options())(*case.args)), strict=True
    ):
        assert y.sharding.is_equivalent_to(z.sharding, y.ndim), (y.sharding, z.sharding)


@cases(lambda c: c.gradients)
@pytest.mark.slow(but_one_in=32)
def test_gradients(case: Case) -> None:
    def loss(fun: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: sum(jnp.sum(jnp.sin(0.1 * y)) for y in jax.tree.leaves(fun(*args)))

    every = tuple(range(len(case.args)))
    alike(jax.grad(loss(jitted(case)), every)(*case.args), jax.grad(loss(case.fun), every)(*case.args))


_SHARD = re.compile(r"mesh_shard.*shard_dims = array<i64: ([-0-9, ]+)>, shard_direction = #\w+.\w+<full_to_shard>")


@cases(lambda c: c.text)
def test_the_texts_name_the_shards_that_were_asked_for(case: Case) -> None:
    traced = jitted(case).trace(*case.args)
    text = traced.as_text()
    lowered = traced.lower()
    # The real ttnn opens meshes of two dims.
    strict = len(case.mesh.shape) <= 2
    assert all(lowered.as_text(language, strict=strict) for language in ("ttnn", "python", "cpp"))
    decided = {d.op: d.text for d in traced.decisions if d.kind in ("asked", "propagated")}
    leaves = jax.tree.leaves(case.args)
    asked = jax.tree.leaves(jax.tree.broadcast(case.in_shardings, case.args, is_leaf=_leaf), is_leaf=_leaf)
    assert len([name for name in decided if name.startswith("argument")]) == len(leaves)
    for i, spec in enumerate(asked):
        if spec is not None:
            assert [d for d in traced.decisions if d.op == f"argument {i}" and d.kind == "asked"]
    split = sum(bool(s) and any(s) for s in asked)
    assert len(_SHARD.findall(text)) >= split


def _leaf(x: Any) -> bool:
    return x is None or isinstance(x, P)


# --- communication ---------------------------------------------------------------------------------------------------

_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
_CALLED = re.compile(rf" ({'|'.join(_COLLECTIVES)})(?:-start)?\(")


def collectives(text: str) -> Counter[str]:
    return Counter(_CALLED.findall(text))


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.slow(but_one_in=8)
@cases()
def test_no_collective_where_xla_needs_none(case: Case) -> None:
    theirs = jax.jit(case.fun, **case.jax_options()).lower(*case.args).compile().as_text()
    ours = jitted(case).lower(*case.args).compile().as_text()
    if not collectives(theirs or ""):
        assert not collectives(ours)


def test_a_sum_that_is_scattered_is_a_reduce_scatter() -> None:
    text = (
        jm.jit(lambda x, w: wsc(x @ w, on("y", "x")), mesh=MESH, in_shardings=(P("y", "x"), P("x")))
        .trace(X, SQUARE)
        .as_text()
    )
    assert "ttir.reduce_scatter" in text
    assert "ttir.all_reduce" not in text


def test_tensor_parallelism_takes_one_all_reduce() -> None:
    traced = jm.jit(mlp, mesh=MESH, in_shardings=(P("y"), P(None, "x"), P("x"))).trace(X, W, V)
    assert [d.kind for d in traced.decisions if d.bytes or d.kind.startswith("all_")] == ["all_reduce"]
    assert traced.assumptions == ()


# --- arrays on the mesh, Explicit axes, meshes without devices -------------------------------------------------------


def test_arrays_on_the_mesh_are_presharded() -> None:
    args = [jax.device_put(a, on(*s)) for a, s in zip((X, W, V), (("y",), (None, "x"), ("x",)), strict=True)]
    program = jm.jit(mlp, mesh=MESH)
    text = program.trace(*args).as_text()
    # The arguments, and the result, which stays there.
    assert text.count("shard_status<presharded>") == 4
    assert text.count("full_to_shard>") == 0
    y = program(*args)
    alike(y, mlp(X, W, V))
    assert y.sharding.is_equivalent_to(on("y"), 2)
    compiled = program.lower(*args).compile()
    alike(compiled(*args), mlp(X, W, V))
    alike(program.trace(*args).reference(*args), mlp(X, W, V))
    # A result goes in again as it is.
    alike(program(*args[:2], jax.device_put(V, on("x"))), y)
    with pytest.raises(jm.JaxmeshError, match="traced with the sharding"):
        compiled(jax.device_put(X, on("x")), *args[1:])


def test_arrays_elsewhere_than_asked_for_are_an_error() -> None:
    with pytest.raises(errors.ArgumentValueError, match="in_shardings asks for"):
        jm.jit(mlp, mesh=MESH, in_shardings=(P("x"), None, None))(jax.device_put(X, on("y")), W, V)


def test_explicit_axes() -> None:
    mesh = jax.make_mesh((2, 4), ("y", "x"), axis_types=(AxisType.Explicit,) * 2)

    def program(x: Any, w1: Any, w2: Any) -> Any:
        h = jax.sharding.reshard(jax.nn.relu(x @ w1), P(None, "x"))
        return jnp.einsum("ij,jk->ik", h, w2, out_sharding=P("y"))

    specs = P("y"), P(None, "x"), P("x")
    args = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip((X, W, V), specs, strict=True)]
    with jax.set_mesh(mesh):
        got, want = jm.jit(program)(*args), jax.jit(program)(*args)
        alike(got, want)
        assert jax.typeof(got).sharding.spec == jax.typeof(want).sharding.spec
        grads = [
            jax.grad(lambda *a, f=f: (f(*a) ** 2).sum(), (0, 1, 2))(*args) for f in (jm.jit(program), jax.jit(program))
        ]
        alike(*grads)
        assert [g.sharding.spec for g in grads[0]] == [g.sharding.spec for g in grads[1]]
        assert jm.jit(program).trace(*args).as_text().count("presharded") == 4
        assert jm.jit(program, full_results=True).trace(*args).as_text().count("presharded") == 3


def test_the_mesh_of_set_mesh() -> None:
    with jax.set_mesh(MESH):
        y = jm.jit(lambda x: wsc(x * 2, P("y")), in_shardings=P("x"))(X)
    alike(y, X * 2)
    assert y.sharding.is_equivalent_to(on("y"), 2)


def test_a_program_that_computes_nothing_is_not_called_replicated() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jm.jit(lambda x, _: x, mesh=MESH, in_shardings=(P("y"), P("x"))).trace(X, X)


def test_an_argument_in_the_hosts_memory_is_moved() -> None:
    x = jax.device_put(X, NamedSharding(MESH, P("y"), memory_kind="pinned_host"))
    with pytest.warns(errors.MemoryKindWarning, match="pinned_host"):
        y = jm.jit(lambda x: x + 1, mesh=MESH)(x)
    alike(y, X + 1)
    assert y.sharding.is_equivalent_to(on("y"), 2)


def test_what_a_program_prints_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def program(x: Any) -> Any:
        jax.debug.print("the sum is {}", x.sum())
        return x + 1

    jitted = jm.jit(program, mesh=MESH, in_shardings=P("y"))
    alike(jitted(np.ones_like(X)), np.ones_like(X) + 1)
    jax.effects_barrier()
    assert f"the sum is {float(X.size)}" in capfd.readouterr().out
    assert "debug_print" in str(jitted.trace(X).inexpressible)


def test_a_spec_inside_of_a_program_on_explicit_axes() -> None:
    mesh = jax.make_mesh((2, 4), ("y", "x"), axis_types=(AxisType.Explicit,) * 2)
    program = jm.jit(lambda x: jax.sharding.reshard(x * 2, P("x")), mesh=mesh, in_shardings=NamedSharding(mesh, P("y")))
    y = program(X)
    alike(y, X * 2)
    assert y.sharding.spec[0] == "x"


def test_in_shardings_do_not_type_arguments_on_explicit_axes() -> None:
    """As in JAX: a product over a dim that both operands split is partitioned, not computed whole."""
    mesh = jax.make_mesh((2, 4), ("y", "x"), axis_types=(AxisType.Explicit,) * 2)
    w1, w2 = (np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate([(8, 16), (16, 8)]))
    specs = P(), P(None, "x"), P("x")

    def program(x: Any, w1: Any, w2: Any) -> Any:
        return jnp.tanh(x @ w1) @ w2

    jitted = jm.jit(program, mesh=mesh, in_shardings=specs)
    text = jitted.lower(X[:, :8], w1, w2).as_text()
    assert [text.count(f"ttnn.{name}") for name in ("distribute_tensor", "all_reduce", "aggregate_tensor")] == [3, 1, 1]
    np.testing.assert_allclose(jitted(X[:, :8], w1, w2), program(X[:, :8], w1, w2), rtol=1e-5, atol=1e-5)
    rows = jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("y")))(X)
    assert jm.jit(jnp.sin, mesh=mesh, in_shardings=P("y"))(X).sharding.is_equivalent_to(rows.sharding, 2)


def test_unreduced_axes_are_jaxs_error_on_auto_axes() -> None:
    with pytest.raises(ValueError, match="Unreduced axes can only refer to mesh axes that is of type `Explicit`"):
        jm.jit(jnp.sin, mesh=MESH, in_shardings=P("y", unreduced={"x"})).trace(X)


@pytest.mark.parametrize("options", [{}, {"in_shardings": P("x")}], ids=["alone", "in_shardings"])
def test_a_constraint_by_a_spec_is_over_the_mesh_of_the_program(options: dict[str, Any]) -> None:
    program = jm.jit(lambda x: wsc(x * 2, P("y")), mesh=MESH, **options)
    y = program(X)
    alike(y, X * 2)
    assert y.sharding.is_equivalent_to(on("y"), 2)
    alike(jax.grad(lambda x: program(x).sum())(X), 2 * np.ones_like(X))


def test_a_mesh_without_devices() -> None:
    mesh = AbstractMesh((64, 64), ("y", "x"))
    struct = jax.ShapeDtypeStruct
    args = struct((128, 256), np.float32), struct((256, 512), np.float32), struct((512, 256), np.float32)
    text = jm.jit(mlp, mesh=mesh, in_shardings=(P("y"), P(None, "x"), P("x"))).trace(*args).as_text()
    assert "tensor<2x256xf32>" in text


@pytest.mark.slow
def test_vmap_jit_hessian_from_outside() -> None:
    program = jm.jit(lambda x, w: jax.nn.softmax(x @ w), mesh=MESH, in_shardings=(P("y"), P(None, "x")))
    w = normal(16, 8)

    def plain(x: Any, w: Any) -> Any:
        return jax.nn.softmax(x @ w)

    alike(jax.vmap(program, (0, None))(BATCH, w), jax.vmap(plain, (0, None))(BATCH, w))
    alike(jax.jit(program)(X, w), plain(X, w))
    alike(jax.jvp(program, (X, w), (X, w))[1], jax.jvp(plain, (X, w), (X, w))[1])
    few = normal(2, 16)
    hessians = [jax.hessian(lambda x, f=f: (f(x, w) ** 2).sum())(few) for f in (program, plain)]
    alike(*hessians)


def test_split_by_hand_with_shardings() -> None:
    program = jm.jit(by_hand, mesh=MESH, in_shardings=(P("y", "x"), P("x")), out_shardings=P("y"))
    alike(program(X, SQUARE), X @ SQUARE)
    assert program(X, SQUARE).sharding.is_equivalent_to(on("y"), 2)


# --- explanations, warnings, errors ----------------------------------------------------------------------------------


def test_decisions_name_the_line_the_dim_and_the_axis() -> None:
    def program(x: Any, w: Any) -> Any:
        h = x @ w
        return wsc(h, on("x")).sum(0)

    explanation = jm.jit(program, mesh=MESH, in_shardings=(P("y"), P(None, "x"))).trace(X, SQUARE).explain()
    kinds = Counter(d.kind for d in explanation.decisions)
    assert kinds["asked"] == 2
    assert kinds["propagated"] == 1
    moves = [d for d in explanation.decisions if d.kind in ("all_to_all", "all_gather", "all_reduce")]
    assert moves
    assert all("test_jit_shardings.py" in d.line and "over " in d.text for d in moves)
    assert any("dim 0" in d.text for d in moves)
    assert any(n.kind == "partitioned" for row in explanation for n in row.notes)
    assert "asked: argument 0: P('y', None)" in explanation.table()


def test_the_sum_of_a_scatter_is_a_decision() -> None:
    """Each device has some of the updates, as in the gradient of an embedding whose ids are split."""

    def program(table: Any, ids: Any, updates: Any) -> Any:
        return table.at[ids].add(updates)

    options = {"in_shardings": (P("x"), P("y"), P("y")), "out_shardings": P("x")}
    args = normal(16, 8), np.int32([1, 3, 3, 15]), normal(4, 8)
    traced = jm.jit(program, mesh=MESH, **options).trace(*args)
    moves = [d for d in traced.decisions if d.kind.startswith(("all_", "reduce_"))]
    assert [(d.kind, d.text) for d in moves] == [
        ("all_reduce", "over y: sum of updates, of which each device has a part")
    ]
    assert traced.as_text().count("ttir.all_reduce") == 1
    alike(jm.jit(program, mesh=MESH, **options)(*args), program(jnp.asarray(args[0]), *args[1:]))


def warned(kind: type[Warning], call: Callable[[], Any], match: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.warns(kind, match=match):
            call()
        # Each kind can be turned off.
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", kind)
        call()


def test_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace(fun: Callable[..., Any], **options: Any) -> Callable[[], Any]:
        return lambda: jm.jit(fun, mesh=MESH, **options).trace(X)

    warned(errors.ReplicatedProgramWarning, trace(lambda x: wsc(x, on()) * 2, in_shardings=P("y")), "whole on every")
    warned(errors.DroppedShardingWarning, trace(lambda x: jnp.concatenate([x, x[:1]]), in_shardings=P("y")), "divide")
    warned(errors.DonationWarning, trace(lambda x: x.sum(0), in_shardings=P("y"), donate_argnums=0), "donated")
    pinned = NamedSharding(MESH, P("y"), memory_kind="pinned_host")
    warned(errors.MemoryKindWarning, trace(jnp.sin, in_shardings=pinned), "pinned_host")

    warned(errors.MemoryKindWarning, trace(lambda x: wsc(x + 1, pinned), in_shardings=P("y")), "pinned_host")
    warned(errors.MemoryKindWarning, trace(lambda x: jax.device_put(x, pinned) + 0, in_shardings=P("y")), "device_put")
    host = jax.memory.Space.Host
    warned(errors.MemoryKindWarning, trace(lambda x: jax.device_put(x, host), in_shardings=P("y")), "'host'")

    def doubly(x: Any) -> Any:
        body = jax.shard_map(lambda a: lax.psum(a, "x"), mesh=MESH, in_specs=P("y"), out_specs=P("y"))
        return body(x) * 2

    warned(errors.RedundantReductionWarning, trace(doubly, in_shardings=P("y")), "does not vary")
    monkeypatch.setenv("JAXMESH_ALL_GATHER_WARNING", "100")
    warned(errors.AllGatherWarning, trace(lambda x: wsc(x * 2, on(None, "x")) + 1, in_shardings=P("y", "x")), "bytes")


@pytest.mark.parametrize(
    "options",
    [
        {"in_shardings": P("q")},
        {"in_shardings": (P("y"), P())},
        {"in_shardings": 3},
        {"in_shardings": P(None, None, "x")},
        {"out_shardings": (P(), P())},
    ],
)
def test_wrong_shardings_are_jaxs_errors(options: dict[str, Any]) -> None:
    def same_error(call: Callable[[], Any]) -> None:
        with pytest.raises((TypeError, ValueError)) as theirs, jax.set_mesh(MESH):
            jax.jit(jnp.sin, **options).trace(X)
        with pytest.raises(type(theirs.value)) as mine:
            call()
        assert str(mine.value) == str(theirs.value)

    same_error(lambda: jm.jit(jnp.sin, mesh=MESH, **options).trace(X))
    same_error(lambda: jm.jit(jnp.sin, mesh=MESH, **options)(X))


def test_shardings_over_another_mesh() -> None:
    with pytest.raises(jm.MeshMismatchError, match="one program has one mesh"):
        jm.jit(jnp.sin, mesh=MESH, in_shardings=NamedSharding(LINE, P("x"))).trace(X)


def test_uneven_shardings_are_jaxs_error() -> None:
    with pytest.raises(ValueError, match="axis 0 is partitioned 4 times, but the dimension size is 6"):
        jm.jit(jnp.sin, mesh=MESH, in_shardings=P("x")).trace(normal(6, 4))


def test_keyword_arguments_have_no_in_shardings() -> None:
    with pytest.raises(ValueError, match="kwargs when in_shardings is specified"):
        jm.jit(lambda x: x, mesh=MESH, in_shardings=P("x"))(x=X)


def test_what_has_no_meaning_runs_as_jax_runs_it() -> None:
    program = jm.jit(lambda x: jnp.linalg.eigvalsh(x @ x.T), mesh=MESH, in_shardings=P("y"))
    alike(program(X), np.linalg.eigvalsh(X @ X.T).astype(np.float32))
    with pytest.raises(errors.InexpressibleError, match=r"eigh.*test_jit_shardings.py"):
        program.trace(X).as_text()


def test_none_in_the_tree_of_an_argument_or_result_has_no_sharding() -> None:
    def halves(given: Any) -> Any:
        return {"a": given["w"] * 2, "b": None}, given["w"] + 1

    program = jm.jit(halves, mesh=MESH, in_shardings=P("y"), out_shardings=({"a": P("y"), "b": None}, None))
    made, more = program({"u": None, "w": X})
    assert made["b"] is None
    alike(made["a"], X * 2)
    alike(more, X + 1)


@pytest.mark.parametrize("spec", [P("y"), P(None, "x")])
def test_fourier_transforms_are_whole_along_their_dims(spec: Any) -> None:
    program = jm.jit(lambda x: jnp.fft.fft2(jnp.fft.rfft(x)).real, mesh=MESH, in_shardings=spec)
    alike(program(X), np.fft.fft2(np.fft.rfft(X)).real.astype(np.float32))
    assert "complex" not in program.lower(X).as_text()


def test_a_fourier_transform_beside_a_change_of_placement() -> None:
    x = np.arange(64, dtype=np.float32).reshape(4, 4, 4) % 7
    program = jm.jit(lambda x: jnp.fft.rfft(x).real, mesh=MESH, in_shardings=P("x", "y"), out_shardings=P("y", "x"))
    alike(program(x), np.fft.rfft(x).real.astype(np.float32))


def test_drawings_show_the_placements() -> None:
    traced = jm.jit(mlp, mesh=MESH, in_shardings=(P("y"), P(None, "x"), P("x"))).trace(X, W, V)
    before, after = str(jm.visualize(traced)), str(jm.visualize(traced.lower()))
    assert "f32[8,16]" in before
    assert "y" in after
