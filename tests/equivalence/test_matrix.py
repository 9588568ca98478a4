"""Every operation under every transformation, against the unsharded program; and the command that shows it."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify  # noqa: TID251
from jax.interpreters import ad
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.dialects.ttir import mesh_shard
from jaxmesh.dialects.ttnn import transfers as ttnn_dialect
from jaxmesh.jaxprs import compat
from tests import ROOT
from tests.generators.matrix import __main__ as command, cells as matrix_cells, table as matrix
from tests.generators.matrix.cells import COLUMNS, Matrix, difference, faults, reason_of
from tests.generators.matrix.operation import Operation
from tests.generators.matrix.operations import operations
from tests.generators.matrix.transformations import Part, parts, policies, vjp
from tests.generators.oracles import EVERY, only_with_every, some
from tests.generators.outcome import Outcome, report
from tests.generators.programs import __main__ as random_programs

pytestmark = pytest.mark.slow(but_one_in=20)

Fun = Callable[[Any], Any]


# --- the cells -------------------------------------------------------------------------------------------------------


def checkified(f: Fun) -> Fun:
    """Every check that JAX knows but that of indices, and one of the user's; none of them fails."""

    def checked(x: Any) -> Any:
        checkify.check(jnp.all(x < 100), "too large: {m}", m=x.max())
        return f(x)

    return lambda x: checkify.checkify(checked, errors=checkify.all_checks - checkify.index_checks)(x)[1]


CHECKIFY = Part("checkify", "checkify", checkified)


@functools.cache
def cells(short: bool, dtype: str = "float32") -> Matrix:
    return Matrix(short=short, dtype=np.dtype(dtype), extra=() if short else (CHECKIFY,))


@functools.cache
def rows(sizes: tuple[int, ...]) -> dict[str, Operation]:
    return {o.name: o for o in operations(jm.make_mesh(sizes))}


def hold(operation: Operation, short: bool, dtype: str = "float32") -> None:
    results = list(cells(short, dtype).results(operation))
    assert not faults(results)
    columns = {r.column for r in results}
    if dtype == "float32":
        assert set(COLUMNS) <= columns
    wanted = {(p.name, r.number) for p in parts() if (r := reason_of(operation, p)) is not None}
    shown = {(r.part, r.reason) for r in results if r.reason is not None}
    assert shown <= wanted
    assert short or dtype != "float32" or shown == wanted


@pytest.mark.parametrize("name", some(rows((2, 4)), 6))
def test_every_transformation(name: str) -> None:
    hold(rows((2, 4))[name], short=not EVERY)


MESHES = [(8,), (2, 2, 2), (1, 4)]


@only_with_every
@pytest.mark.parametrize(("sizes", "name"), [(s, n) for s in MESHES for n in rows(s)], ids=str)
def test_every_transformation_on_other_meshes(sizes: tuple[int, ...], name: str) -> None:
    hold(rows(sizes)[name], short=True)


@only_with_every
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "float64", "complex64"])
@pytest.mark.parametrize("name", list(rows((2, 4))))
def test_every_transformation_of_other_types(name: str, dtype: str) -> None:
    if dtype == "complex64" and name in ("pmax", "pmin"):
        pytest.skip("complex numbers have no order")
    with jax.enable_x64(dtype == "float64"):
        hold(rows((2, 4))[name], short=True, dtype=dtype)


# --- checkify, which is not for the package ------------------------------------------------------------------------


def test_jax_cannot_check_indices_inside_a_shard_map() -> None:
    """Fails when JAX can: `indexed` of the next test, and the checks of `checkified`, are all of them then."""
    mesh = jm.make_mesh((8,), ("x",))
    first = jax.shard_map(
        lambda v: lax.dynamic_slice(v, (lax.axis_index("x"), 0), (1, 1)),
        mesh=mesh,
        in_specs=P(None, "x"),
        out_specs=P(None, "x"),
    )
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        checkify.checkify(first, errors=checkify.index_checks)(np.ones((8, 8)))


SOME = ["mesh_shard devices", "two axes, other order", "distribute_tensor", "psum", "pmax", "all_gather", "ppermute"]


@pytest.mark.parametrize("name", list(rows((2, 4))) if EVERY else SOME)
def test_checkify(name: str) -> None:
    operation = rows((2, 4))[name]
    x = operation.argument()
    want = operation.unsharded(lambda v: v * v)(jnp.asarray(x))
    f = operation.sharded(lambda v: v * v)
    indexed = name in ("shard_to_full devices", "aggregate_tensor")
    checks = checkify.all_checks - checkify.index_checks if indexed else checkify.all_checks
    outside = checkify.checkify(jm.jit(f, mesh=operation.mesh), errors=checks)
    for run in (outside, jax.jit(outside)):
        error, out = run(x)
        assert error.get() is None
        assert difference(out, want) is None
    # The errors of devices stay on them.
    all_inside = jm.jit(lambda v: checkify.checkify(f, errors=checkify.all_checks)(v)[1], mesh=operation.mesh)
    assert difference(all_inside(x), want) is None

    def checked(v: Any) -> Any:
        checkify.check(jnp.all(v < 2), "too large: {m}", m=v.max())
        return f(v)

    inside = jm.jit(checkify.checkify(checked, errors=checkify.user_checks), mesh=operation.mesh)
    error, out = inside(x)
    assert difference(out, want) is None
    assert "too large: 2.0" in str(error.get())
    error, _ = inside(x - 5)
    assert error.get() is None


# --- the matrix can fail ---------------------------------------------------------------------------------------------


def test_every_policy_is_there() -> None:
    names = {n for n in dir(jax.checkpoint_policies) if not n.startswith("_")}
    assert set(policies()) == {*names, "no policy"}


@pytest.fixture
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix that is quick to compute."""
    few = [p for p in parts() if p.name in ("jit", "grad", "vjp")]
    monkeypatch.setattr(matrix_cells, "parts", lambda: few)


@pytest.mark.usefixtures("few_parts")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: x + (jnp.arange(x.size) == 5).reshape(x.shape).astype(x.dtype), r"is \S+ where \S+ is expected"),
        (lambda x: x[:-1], r"is float32\[8, 8\] where float32\[7, 8\] is expected"),
    ],
)
def test_a_wrong_meaning_is_found(wrong: Fun, words: str) -> None:
    operation = dataclasses.replace(rows((2, 4))["mesh_shard identity"], plain=wrong)
    found = faults(Matrix(short=True).results(operation))
    assert any(f.startswith("mesh_shard identity, jit (inside): ") and re.search(words, f) for f in found)


@pytest.mark.usefixtures("few_parts")
def test_a_reason_that_does_not_hold_is_found() -> None:
    operation = dataclasses.replace(rows((2, 4))["mesh_shard identity"], differentiable=False)
    found = faults(Matrix(short=True).results(operation))
    assert any("no error, where reason 1 speaks of NotImplementedError" in f for f in found)


@pytest.mark.usefixtures("few_parts")
def test_a_cotangent_of_copies_that_are_not_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttnn_dialect, "first_copy_only", lambda x, varying: compat.vary(x, tuple(varying)))
    found = faults(Matrix(short=True).results(rows((2, 4))["both, replicated"]))
    assert any(re.search(r"is \S+ where \S+ is expected", f) for f in found)


# --- faults that the matrix found ------------------------------------------------------------------------------------


def test_a_table_that_a_loop_with_shards_carries_along() -> None:
    """It depends on no array, but leaves the loop where that ran."""

    def f(x: Any) -> Any:
        s = jm.full_to_shard(x, P("y"))

        def step(c: Any, _: Any) -> Any:
            return (c[0] + s, c[1][::-1]), None

        (out, table), _ = lax.scan(step, (s, jnp.arange(8.0)), None, length=3)
        return jm.shard_to_full(out, P("y")), jm.shard_to_full(jm.full_to_shard(table.reshape(4, 2), P("x")), P("x"))

    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    want = [4 * x, np.arange(8, dtype=np.float32)[::-1].reshape(4, 2)]
    lowered = jm.jit(f, mesh=jm.make_mesh((2, 4))).lower(x)
    assert difference(lowered.compile()(x), want) is None
    assert difference(lowered.reference(x), want) is None


def test_jax_speaks_for_itself_beside_a_traced_distribute() -> None:
    """Not the eager distribute, on which a second way of tracing came to grief."""
    mesh = jm.make_mesh((2, 4))
    operation = rows((2, 4))["distribute_tensor"]
    loop = lambda x: lax.while_loop(lambda v: v.sum() < 0, operation.sharded(lambda v: v), x)  # noqa: E731
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jm.jit(vjp(loop), mesh=mesh)(operation.argument())
    mapper = ttnn.shard_tensor_to_mesh_mapper(mesh, 0)
    with pytest.raises(ValueError, match=r"(?i)incompatible shapes"):
        jm.jit(lambda x: ttnn.distribute_tensor(x, mapper) + jnp.zeros(7), mesh=mesh)(np.zeros((8, 3), np.float32))


@pytest.mark.parametrize("shard_map", [jax.shard_map, jm.shard_map], ids=["jax", "jaxmesh"])
def test_a_map_of_full_values_that_split_inside_is_the_program(shard_map: Any) -> None:
    def split(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P("y", "x")) ** 2, P("y", "x"))

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    f = jm.jit(shard_map(split, in_specs=P(), out_specs=P()), mesh=jm.make_mesh((2, 4)))
    assert difference(f(x), x**2) is None
    assert "mesh_shard" in f.trace(x).as_text()


@pytest.mark.parametrize("collective", ["pbroadcast"])
def test_collectives_that_jax_has_not_on_cpus(collective: str) -> None:
    mesh = jm.make_mesh((2, 4))
    local = lambda s: getattr(lax, collective)(s, "x", 1)  # noqa: E731
    f = lambda x: jm.shard_to_full(local(jm.full_to_shard(x, P("y", "x"))), P("y", "x"))  # noqa: E731
    x = np.zeros((8, 8), np.float32)
    for run in (jax.shard_map(local, mesh=mesh, in_specs=P("y", "x"), out_specs=P("y", "x")), jm.jit(f, mesh=mesh)):
        with pytest.raises(NotImplementedError, match=collective):
            jax.jit(run)(x)


# --- the command -----------------------------------------------------------------------------------------------------


def some_rows(mesh: Any) -> list[Operation]:
    """Two rows, for the command in little time; they are of the mesh that the command makes."""
    return [o for o in operations(mesh) if o.name in ("mesh_shard devices", "pmax")]


@pytest.mark.slow
@pytest.mark.usefixtures("few_parts")
def test_a_planted_fault_ends_the_command_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix, "operations", some_rows)
    assert command.main([]) == 0
    captured = capsys.readouterr()
    assert "matrix: ok: 2 operations under 6 transformations" in captured.err
    assert f"JAX {jax.__version__}" in captured.err
    assert f"{jax.device_count()} cpu devices" in captured.err
    assert matrix.FAULT not in captured.out
    broken = lambda ct, x, **attributes: [2 * v for v in mesh_shard._transpose(ct, x, **attributes)]  # noqa: E731
    monkeypatch.setitem(ad.primitive_transposes, mesh_shard.mesh_shard_p, broken)
    assert command.main([]) == 1
    captured = capsys.readouterr()
    assert "matrix: FAILED" in captured.err
    assert re.search(
        r"mesh_shard devices, grad \(inside\): result 0 at \[\d, \d\] is \S+ where \S+ is expected", captured.err
    )
    assert matrix.FAULT in captured.out


def test_an_outcome_without_a_check_fails() -> None:
    assert "nothing: FAILED" in report([Outcome("nothing", "all", 0, (), 0.0)])


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_wrong_counts(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        random_programs.main([count])
    assert caught.value.code == 2
    assert "N" in capsys.readouterr().err


def test_the_table_of_the_readme_is_the_one_that_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells are checked one by one above; a run prints FAILED where one does not hold."""
    assert command.main(["--expected"]) == 0
    table = capsys.readouterr().out.strip()
    assert table in (ROOT / "docs" / "tables" / "transformations.md").read_text()
    assert table.splitlines()[0].count("|") == len(COLUMNS) + 2
    assert len([line for line in table.splitlines() if line.startswith("|")]) == 2 + len(rows((2, 4)))


@only_with_every
def test_the_command_prints_that_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    assert capsys.readouterr().out.strip() == matrix.expected_table(jm.make_mesh(matrix.SIZES))
