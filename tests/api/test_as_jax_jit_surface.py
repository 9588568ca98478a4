"""`jm.jit` beside `jax.jit`: where the mesh comes from, keywords, methods, exports, programs fed their own results."""

from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import errors
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
    outcome,
    put,
    same,
    same_results,
)

LINE = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:8])


# --- where the mesh comes from ---------------------------------------------------------------------------------------


def plain(x: Any) -> Any:
    return jnp.sin(x) * 2


def by_spec(x: Any) -> Any:
    return lax.with_sharding_constraint(x * 2, P("y"))


def inside(x: Any) -> Any:
    return lax.with_sharding_constraint(x * 2, auto("y"))


def mapped(x: Any) -> Any:
    return jax.shard_map(lambda v: v * 2, mesh=AUTO, in_specs=P("y"), out_specs=P("y"))(x)


@contextlib.contextmanager
def legacy(mesh: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with mesh:
            yield


def test_the_mesh_that_is_given() -> None:
    with jax.set_mesh(AUTO):
        want = jax.jit(by_spec)(X)
    made = jm.jit(anew(by_spec), mesh=AUTO)
    same_results(made(X), want)
    assert dict(made.trace(X).mesh.shape) == {"y": 2, "x": 4}


SOURCES = {
    "in_shardings": (plain, X, {"in_shardings": auto("y", "x")}, contextlib.nullcontext),
    "out_shardings": (plain, X, {"out_shardings": auto("y", "x")}, contextlib.nullcontext),
    "arguments": (plain, put(X, auto("y", "x")), {}, contextlib.nullcontext),
    "set_mesh": (by_spec, X, {}, lambda: jax.set_mesh(AUTO)),
    "set_mesh and specs": (plain, X, {"in_shardings": P("y")}, lambda: jax.set_mesh(AUTO)),
    "with mesh": (by_spec, X, {}, lambda: legacy(AUTO)),
    "constraints": (inside, X, {}, contextlib.nullcontext),
    "shard_map": (mapped, X, {}, contextlib.nullcontext),
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_mesh_of(name: str) -> None:
    f, x, options, around = SOURCES[name]
    with around():
        same(f, x, **options)
        assert dict(jm.jit(anew(f), **options).trace(x).mesh.shape) == {"y": 2, "x": 4}


def test_specs_within_the_deprecated_context_are_over_its_mesh() -> None:
    """As under `jax.set_mesh`; `jax.jit` refuses specs here, which `pjit` of older tutorials took."""
    with jax.set_mesh(AUTO):
        want = jax.jit(plain, in_shardings=P("y"), out_shardings=P("x"))(X)
    with legacy(AUTO):
        same_results(jm.jit(anew(plain), in_shardings=P("y"), out_shardings=P("x"))(X), want)


def test_one_device_else() -> None:
    same(plain, X)
    same(plain, put(X, jax.devices()[3]))
    assert set(jm.jit(anew(plain)).trace(X).mesh.shape.values()) == {1}


def test_a_deprecated_context_warns_as_it_does_without_jaxmesh() -> None:
    with pytest.warns(DeprecationWarning, match="with mesh"), AUTO:
        same(by_spec, X)


def test_two_meshes_are_an_error_that_names_both_arguments() -> None:
    x, w = put(X, auto("y")), put(W1, NamedSharding(LINE, P("x")))
    with pytest.raises(jm.MeshMismatchError, match=r"argument x is over .*\(y=2, x=4\).*argument w over \(x=8\)"):
        jm.jit(lambda x, w: x @ w).trace(x, w)


def test_two_meshes_of_a_sharding_and_an_argument() -> None:
    with pytest.raises(jm.MeshMismatchError, match=r"in_shardings is over .*\(x=8\).*argument x over \(y=2, x=4\)"):
        jm.jit(plain, in_shardings=NamedSharding(LINE, P(None, "x"))).trace(put(X, auto("y")))


# --- results that stay on the mesh -----------------------------------------------------------------------------------


def step(w: Any, b: Any, x: Any) -> Any:
    def loss(w: Any, b: Any) -> Any:
        return ((jnp.tanh(x @ w) + b) ** 2).mean()

    value, (dw, db) = jax.value_and_grad(loss, argnums=(0, 1))(w, b)
    return w - 0.1 * dw, b - 0.1 * db, value


def state(mesh: Any) -> tuple[Any, ...]:
    rows = (W1, P(None, "x")), (np.zeros(16, np.float32), P("x")), (X, P("y"))
    return tuple(put(x, NamedSharding(mesh, spec)) for x, spec in rows)


def types_in_text(text: str) -> tuple[list[str], list[str]]:
    """Returns the types of the arguments and of the results of the first function of a text."""
    line = next(row for row in text.splitlines() if "func.func" in row)
    ends = line.split(") -> (")
    return tuple([part.split(">")[0] for part in end.split("tensor<")[1:]] for end in ends)  # type: ignore[return-value]


@pytest.mark.parametrize("mesh", MESHES, ids=["auto", "explicit"])
def test_a_training_step_is_fed_its_own_results(mesh: Any) -> None:
    args = state(mesh)
    traced = jm.jit(anew(step)).trace(*args)
    arguments, results = types_in_text(traced.as_text())
    assert results[:2] == arguments[:2] == ["8x4xf32", "4xf32"]
    assert traced.as_text().count("presharded") == 6
    assert traced.as_text().count("shard_to_full>") == 0
    compiled, reference = traced.lower().compile(), jax.jit(anew(step))
    (w, b, _), (u, c, _) = args, args
    for _ in range(3):
        w, b, value = compiled(w, b, args[2])
        u, c, want = reference(u, c, args[2])
        same_results((w, b, value), (u, c, want))


def test_full_results_are_aggregated_in_the_text_alone() -> None:
    args = state(AUTO)
    text = jm.jit(anew(step), full_results=True).trace(*args).as_text()
    assert (text.count("presharded"), text.count("shard_to_full>")) == (3, 3)
    assert types_in_text(text)[1] == ["8x16xf32", "16xf32", "f32"]
    same_results(jm.jit(anew(step), full_results=True)(*args), jax.jit(anew(step))(*args))
    kept = jm.jit(anew(step), full_results=False, in_shardings=tuple(x.sharding for x in args))
    assert kept.trace(*map(np.asarray, args)).as_text().count("shard_to_full>") == 0
    with pytest.raises(errors.ArgumentTypeError, match="full_results"):
        jm.jit(step, full_results="no")


@pytest.mark.parametrize(
    "mesh", [pytest.param(AUTO, id="auto"), pytest.param(EXPLICIT, id="explicit", marks=pytest.mark.slow)]
)
def test_an_exported_training_step_runs(mesh: Any, tmp_path: Path) -> None:
    args = state(mesh)
    first = jax.jit(anew(step))(*args)
    lowered = jm.jit(anew(step)).lower(*args)
    # Its second step: the results of the first are its arguments.
    lowered.export(tmp_path / "model", *first[:2], args[2], languages=("python",))
    command = [sys.executable, "-m", "jaxmesh", "run", str(tmp_path / "model"), "--check"]
    made = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert made.returncode == 0, made.stderr
    assert made.stdout.count(": ok") == 3
    assert "on each device" in made.stdout


# --- keywords --------------------------------------------------------------------------------------------------------


def scaled(x: Any, n: Any = 2) -> Any:
    return {"y": x * n, "sum": x.sum()}


KEYWORDS: list[dict[str, Any]] = [
    {"keep_unused": True},
    {"inline": True},
    {"backend": "cpu"},
    {"compiler_options": {"xla_cpu_enable_fast_math": False}},
    {"static_argnames": ("n",)},
    {"donate_argnames": "x"},
    {"in_shardings": None},
    {"out_shardings": None},
]


@pytest.mark.parametrize("options", KEYWORDS, ids=lambda o: next(iter(o)))
def test_keywords(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*donated buffers|backend and device argument")
        same(scaled, X, **options)
        same(scaled, put(X, auto("y")), **{k: v for k, v in options.items() if k != "donate_argnames"})


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "nothing"},
        {"compiler_options": {"no_such_flag": 1}},
        {"device": 3},
        {"abstracted_axes": ("n",)},
        {"no_such_keyword": 1},
    ],
    ids=lambda o: next(iter(o)),
)
def test_keywords_that_are_refused(options: dict[str, Any]) -> None:
    made = [outcome(lambda x, jit=jit: jit(anew(scaled), **options)(x), X) for jit in (jax.jit, jm.jit)]
    assert made[1].error is not None
    if made[0].error is not None:
        assert isinstance(made[1].error, type(made[0].error))


def test_a_device() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        results = [jit(anew(plain), device=jax.devices()[3])(X) for jit in (jax.jit, jm.jit)]
    assert results[1].devices() == results[0].devices() == {jax.devices()[3]}


def test_every_keyword_of_jax_jit_is_taken_or_refused() -> None:
    of_jax, ours = (set(inspect.signature(f).parameters) for f in (jax.jit, jm.jit))
    assert of_jax - ours <= {"abstracted_axes"}


# --- methods ---------------------------------------------------------------------------------------------------------


def both(f: Callable[..., Any], **options: Any) -> list[Any]:
    return [jit(anew(f), **options) for jit in (jax.jit, jm.jit)]


@pytest.mark.parametrize(
    "options", [{}, {"in_shardings": (auto("y"),), "out_shardings": auto()}], ids=["", "shardings"]
)
def test_eval_shape_and_out_info(options: dict[str, Any]) -> None:
    theirs, mine = both(scaled, **options)
    assert jax.tree.structure(mine.eval_shape(X)) == jax.tree.structure(theirs.eval_shape(X))
    infos = [mine.eval_shape(X), mine.trace(X).out_info, mine.lower(X).out_info, mine.lower(X).compile().out_info]
    for info in infos:
        rows = zip(jax.tree.leaves(info), jax.tree.leaves(theirs.eval_shape(X)), strict=True)
        assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in rows)


def test_the_names_of_the_stages_of_jax() -> None:
    theirs, mine = both(scaled, in_shardings=(auto("y"),), donate_argnums=())
    for stage in ("trace", "lower"):
        a, b = getattr(theirs, stage)(X), getattr(mine, stage)(X)
        assert str(b.args_info) == str(a.args_info)
        assert (b.in_tree, b.out_tree) == (a.in_tree, a.out_tree)
    assert mine.trace(X).fun_name == theirs.trace(X).fun_name == "scaled"
    assert mine.lower(X).donate_argnums == theirs.lower(X).donate_argnums == ()


def test_compiled_programs_offer_what_jax_offers() -> None:
    options = {"in_shardings": (auto("y", "x"),), "out_shardings": {"y": auto("y"), "sum": auto()}}
    theirs, mine = (f.lower(X).compile() for f in both(scaled, **options))
    assert isinstance(mine.as_text(), str)
    assert mine.cost_analysis().keys() & theirs.cost_analysis().keys()
    assert type(mine.memory_analysis()) is type(theirs.memory_analysis())
    for name in ("input_shardings", "output_shardings"):
        a, b = getattr(theirs, name), getattr(mine, name)
        assert jax.tree.structure(a) == jax.tree.structure(b)
        assert all(t.is_equivalent_to(u, 2) for t, u in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    assert (mine.in_tree, mine.out_tree) == (theirs.in_tree, theirs.out_tree)
    for name in ("input_formats", "output_formats"):
        a, b = (jax.tree.map(lambda f: f.layout, getattr(c, name)) for c in (theirs, mine))
        assert a == b
    same_results(mine(X), theirs(X))


def test_functions_run_op_by_op_where_jit_is_disabled() -> None:
    seen = []

    def scaled_if(x: Any) -> Any:
        seen.append(isinstance(x, jax.core.Tracer))
        return x * 2 if float(x.sum()) > 0 else x

    with jax.disable_jit():
        for options in ({}, {"in_shardings": auto("y")}, {"mesh": MESHES[0]}):
            np.testing.assert_array_equal(jm.jit(scaled_if, **options)(abs(X)), abs(X) * 2)
        by_hand = jm.jit(lambda x: jm.shard_to_full(jnp.sin(jm.full_to_shard(x, P("y"))), P("y")), mesh=MESHES[0])
        np.testing.assert_array_equal(by_hand(X), jnp.sin(X))
    assert seen == [False] * 3


def test_clear_cache_traces_again() -> None:
    for jit in (jax.jit, jm.jit):
        calls = []
        program = jit(lambda x, calls=calls: (calls.append(1), x)[1])
        program(X)
        program(X)
        program.clear_cache()
        program(X)
        assert len(calls) == 2


def test_lower_takes_the_keywords_of_jax() -> None:
    for f in both(plain):
        assert "stablehlo" in f.trace(X).lower(lowering_platforms=("cpu",)).as_text()


def test_jax_lowers_a_program_of_keywords() -> None:
    program = jm.jit(lambda x, *, y: x - y, mesh=LINE).lower(X, y=3 * X)
    np.testing.assert_array_equal(program.lower_with_jax().compile()(X, y=3 * X), X - 3 * X)


def test_attributes_of_the_function() -> None:
    theirs, mine = both(scaled)
    assert mine.__name__ == theirs.__name__
    assert mine.__wrapped__.__code__ is theirs.__wrapped__.__code__


# --- jax.export ------------------------------------------------------------------------------------------------------


def hand_split(x: Any) -> Any:
    return jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y"))


@pytest.mark.parametrize(
    "options", [{}, {"in_shardings": auto("y"), "out_shardings": auto("x")}], ids=["", "shardings"]
)
def test_jax_export(options: dict[str, Any]) -> None:
    theirs, mine = (jax.export.export(f)(X) for f in both(plain, **options))
    # The types are compared without the mesh that an abstract value names.
    assert str((mine.in_avals, mine.out_avals)) == str((theirs.in_avals, theirs.out_avals))
    assert (mine.nr_devices, mine.in_tree, mine.out_tree) == (theirs.nr_devices, theirs.in_tree, theirs.out_tree)
    again = jax.export.deserialize(mine.serialize())
    call = jax.jit(again.call, in_shardings=auto() if options else None)
    np.testing.assert_allclose(call(X), plain(X), rtol=1e-6)


def test_jax_export_of_a_program_that_splits_by_hand() -> None:
    exported = jax.export.export(jm.jit(hand_split, mesh=AUTO))(X)
    assert exported.nr_devices == 8
    np.testing.assert_array_equal(jax.jit(exported.call, in_shardings=auto())(X), X * 2)


# --- jm.shard_map called outside of a program ------------------------------------------------------------------------


def test_an_eager_shard_map_prints_the_values_of_each_device(capfd: pytest.CaptureFixture[str]) -> None:
    def body(v: Any) -> Any:
        print(v)
        return v * 2

    shown = []
    x = put(np.arange(8, dtype=np.float32), auto("x"))
    for wrap in (jax.shard_map, jm.shard_map):
        y = wrap(body, mesh=AUTO, in_specs=P("x"), out_specs=P("x"))(x)
        np.testing.assert_array_equal(y, np.arange(8.0) * 2)
        shown.append(capfd.readouterr().out)
    assert shown[0] == shown[1]
    assert "Tracer" not in shown[1] or "[6. 7.]" in shown[1]


def test_a_program_of_shard_map_is_lowered() -> None:
    f = jm.shard_map(lambda v, w: lax.psum(v @ w, "x"), mesh=AUTO, in_specs=(P("y", "x"), P("x")), out_specs=P("y"))
    want = jax.jit(lambda x, w: x @ w)(X, W1)
    np.testing.assert_allclose(f(X, W1), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(f.lower(X, W1).compile()(X, W1), want, rtol=1e-4, atol=1e-5)
    assert f.trace(X, W1).as_text().count("ttir.all_reduce") == 1
    np.testing.assert_allclose(jm.jit(lambda x, w: f(x, w) @ W2)(X, W1), want @ W2, rtol=1e-4, atol=1e-4)
