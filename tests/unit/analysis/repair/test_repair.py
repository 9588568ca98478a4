"""Repairs with a stand-in for the compiler, which prints jaxmesh's own texts, with errors that a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.repair import SUBSTITUTES, with_open_results, with_whole
from jaxmesh.analysis.repair.substitutes import _with_edges, needed_here
from jaxmesh.analysis.upstream import UpstreamProgram, UpstreamRefusal
from jaxmesh.stages import upstream
from tests.generators.upstream import rows

# The stand-in reads regions whose results are equal on several devices without proof by a type.
pytestmark = pytest.mark.filterwarnings("ignore::jaxmesh.errors.AssumptionWarning")
MESH = jm.make_mesh((2, 4), ("y", "x"))
X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
ROWS = P("y")
Break = Callable[[str, str], str]
"""Changes a printed text, for the StableHLO text that it was made of."""


def stand_in(monkeypatch: pytest.MonkeyPatch, change: Break, refused: Callable[[str], str] = lambda _: "") -> list[str]:
    """Puts a compiler in place that changes texts, or refuses programs; returns the texts that it will have got."""
    asked: list[str] = []

    def compile_text(text: str, **_: Any) -> UpstreamProgram:
        asked.append(text)
        if why := refused(text):
            return UpstreamProgram({}, refusal=UpstreamRefusal(why, "file.py:1:1"), cluster="t3000")
        traced = jm.from_mlir(text)
        ttir, ttnn = traced.as_text(), traced.lower().as_text(strict=False)
        stages = {"shlo_frontend": text, "shlo_compiler": text, "ttir": change(ttir, text), "ttnn": change(ttnn, text)}
        return UpstreamProgram(stages, b"", plugin="stand-in 1", cluster="t3000")

    monkeypatch.setattr(upstream, "compile_text", compile_text)
    return asked


def compiled(fun: Callable[..., Any], spec: P = ROWS, **options: Any) -> Any:
    return jm.jit(fun, mesh=MESH, in_shardings=spec, **options).lower(X).upstream("t3000")


def is_explicit(text: str) -> bool:
    return "sdy.manual_computation" in text


def right(printed: str, _: str) -> str:
    return printed


def test_a_right_program_comes_back_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in(monkeypatch, right)
    found = (made := compiled(jnp.tanh)).repair(X)
    assert (found.verdict, found.changes, len(asked)) == ("right", (), 1)
    assert found.upstream is made
    assert found
    np.testing.assert_allclose(found.function(X), np.tanh(X), rtol=1e-6)


def test_a_wrong_program_is_partitioned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, lambda t, source: t if is_explicit(source) else t.replace(".tanh", ".sin"))
    found = compiled(lambda x: jnp.tanh(x)[::-1]).repair(X)
    assert (found.before.verdict, found.verdict) == ("wrong", "right")
    (change,) = found.changes
    assert "test_repair.py" in change.source
    np.testing.assert_allclose(found.function(X), np.tanh(X)[::-1], rtol=1e-6)
    gradient = jax.grad(lambda x: (found.function(x) * X).sum())(X)
    np.testing.assert_allclose(gradient, X[::-1] * (1 - np.tanh(X) ** 2), rtol=1e-4, atol=1e-5)
    assert {p.name for p in found.save(tmp_path)} >= {"repaired.mlir", "repair.txt", "ttir.mlir"}
    assert (tmp_path / "repaired.mlir").read_text() == found.text
    assert "wrong before, right after" in (tmp_path / "repair.txt").read_text()
    for shown in (str(found), found._repr_html_()):
        assert "wrong before, right after" in shown
        assert "among devices" in shown


def test_a_line_changes_where_that_sends_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, broken_reversal)

    def turned(x: Any) -> Any:
        return jnp.tanh(jnp.flip(x * 2, 1)) + 1

    found = compiled(turned).repair(X)
    assert (found.before.verdict, found.verdict) == ("wrong", "right")
    assert [c.what for c in found.changes] == ["rev of values that are whole along dim 1"]
    assert found.changes[0].source == found.before.source
    assert not is_explicit(found.text)
    np.testing.assert_allclose(found.function(X), turned(X), rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda x: (found.function(x) * X).sum())(X)
    np.testing.assert_allclose(gradient, jax.grad(lambda x: (turned(x) * X).sum())(X), rtol=1e-5, atol=1e-6)
    # The same of a text, with the lines that its locations name.
    text = compiled(turned).source
    again = jm.from_mlir(text).lower().upstream("t3000").repair(X)
    assert [(c.source, c.what) for c in again.changes] == [(c.source, c.what) for c in found.changes]
    assert found.changes[0].source.rpartition(":")[0].rpartition(":")[0] in again.text
    np.testing.assert_allclose(again.function(X), turned(X), rtol=1e-5, atol=1e-6)


def test_a_repaired_maximum_has_jaxs_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, right, lambda text: "" if is_explicit(text) else "refused")

    def normed(x: Any) -> Any:
        return jax.nn.softmax(x, 0) * x.max((0, 1))

    found = compiled(normed, P(("y"), "x")).repair(X)
    gradient = jax.grad(lambda x: (found.function(x) * X).sum())(X)
    np.testing.assert_allclose(gradient, jax.grad(lambda x: (normed(x) * X).sum())(X), rtol=1e-4, atol=1e-5)


def test_arguments_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda t, source: t if is_explicit(source) else t.replace(".tanh", ".sin"))
    made = jm.jit(lambda x, *, y: jnp.tanh(x) - y, mesh=MESH).lower(
        jax.device_put(X, NamedSharding(MESH, ROWS)), y=X * 2
    )
    result = made.upstream("t3000")
    assert result.diagnose(X, y=X * 2).verdict == "wrong"
    found = result.repair(X, y=X * 2)
    assert found
    np.testing.assert_allclose(found.function(X, y=X * 2), np.tanh(X) - X * 2, rtol=1e-6)


def broken_reversal(printed: str, source: str) -> str:
    """Breaks the reversal of values that are not constrained."""
    constrained = "sdy.sharding_constraint" in source or is_explicit(source)
    return printed if constrained else printed.replace("dimensions = array<i64: 1>", "dimensions = array<i64: 0>")


def test_arguments_that_show_no_error_are_not_all_that_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, broken_reversal)
    made = compiled(lambda x: jnp.flip(x, 1))
    assert made.diagnose(np.ones_like(X)).verdict == "right"
    assert made.repair(np.ones_like(X)).before.verdict == "wrong"


def test_what_no_arguments_exercise_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, right)
    found = compiled(lambda x: jnp.where(x.sum() > 1e9, -x, x)).repair(X)
    assert found.diagnosis.unexercised
    for shown in (str(found), found._repr_html_()):
        assert "not exercised" in shown


def test_explicit_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda t, source: t if is_explicit(source) else t.replace(".tanh", ".sin"))
    mesh = jm.make_mesh((2, 4), ("y", "x"), axis_types=(AxisType.Explicit,) * 2)
    found = jm.jit(jnp.tanh, mesh=mesh, in_shardings=ROWS).lower(X).upstream("t3000").repair(X)
    assert found
    np.testing.assert_allclose(found.function(X), np.tanh(X), rtol=1e-6)


def test_keys_donations_and_files_of_odd_names(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, broken_reversal)
    names: dict[str, Any] = {"jax": jax, "jnp": jnp}
    text = "def f(k, x):\n    return jnp.flip(x, 1) + jax.random.uniform(k)"
    exec(compile(text, "an (odd) file:3:4.py", "exec"), names)
    options: dict[str, Any] = {"in_shardings": (P(), ROWS), "out_shardings": ROWS, "donate_argnums": 1}
    key, x = jax.random.key(0), jax.device_put(X, NamedSharding(MESH, ROWS))
    found = jm.jit(names["f"], mesh=MESH, **options).lower(key, x).upstream("t3000").repair(key, X)
    assert found
    assert found.rows()[0][:2] == ("an (odd) file:3:4.py:2", "rev of values that are whole along dim 1")
    np.testing.assert_allclose(found.function(key, x), names["f"](key, X), rtol=1e-6)
    assert x.is_deleted()


def test_wrong_arguments_are_named_also_of_a_refused_program(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, right, lambda text: "" if is_explicit(text) else "no such reversal")
    made = compiled(lambda x: x[::-1])
    for wrong in ((X[:4],), ("text",), (X, X)):
        with pytest.raises(jm.ArgumentTypeError):
            made.repair(*wrong)
    with pytest.raises(jm.ArgumentTypeError, match="as seed"):
        made.repair(seed=-1)


def test_what_stays_wrong_is_not_called_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The explicit program is as wrong: the proof is against the user's program, not against the text."""
    stand_in(monkeypatch, lambda t, _: t.replace(".tanh", ".sin"))
    found = compiled(jnp.tanh).repair(X)
    assert (found.verdict, bool(found)) == ("wrong", False)
    assert "tir.sin" in found.reason
    assert str(found).startswith("not repaired")


def test_a_refused_program(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, right, lambda text: "" if is_explicit(text) else "no such permute")
    found = compiled(lambda x: x * 2, out_shardings=P("x")).repair(X)
    assert (found.before.verdict, found.verdict) == ("refused", "right")
    assert found.changes[0].source == "file.py:1:1"
    stand_in(monkeypatch, right, lambda _: "nothing is taken")
    found = compiled(lambda x: x * 2).repair(X)
    assert (found.verdict, bool(found)) == ("refused", False)
    assert "nothing is taken" in found.reason


@pytest.mark.parametrize("gap", [1, 3])
def test_an_operation_is_replaced_where_it_is_refused_alone(monkeypatch: pytest.MonkeyPatch, gap: int) -> None:
    def refused(text: str) -> str:
        return "failed to legalize operation 'stablehlo.reduce_window'" if "reduce_window" in text else ""

    asked = stand_in(monkeypatch, right, refused)

    def pool(x: Any) -> Any:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3), (1, 2), "SAME", window_dilation=(1, gap))

    found = compiled(pool).repair(X)
    assert (found.verdict, len(asked)) == ("right", 3)
    assert [c.what.partition(":")[0] for c in found.changes[1:]] == ["window of one dim"]
    np.testing.assert_array_equal(found.function(X), pool(X))


def test_an_order_of_axes_that_is_asked_for_becomes_that_of_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, right, lambda text: "" if is_explicit(text) else "no such order")
    found = compiled(lambda x: x * 2, P(("x", "y"))).repair(X)
    assert found
    assert [c.what for c in found.changes[1:]] == ["result 0 is split by P(('y', 'x'), None), not P(('x', 'y'), None)"]
    np.testing.assert_array_equal(found.function(X), X * 2)


def test_an_argument_that_nothing_reads_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, right, lambda text: "" if is_explicit(text) else "refused")
    made = jm.jit(lambda x, y: x * 2, mesh=MESH, in_shardings=(P("y"), P("x", "y"))).lower(X, X).upstream("t3000")
    found = made.repair(X, X)
    assert found.changes[1].what == "argument 1 is passed whole"
    np.testing.assert_array_equal(found.function(X, X), X * 2)
    text = '%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@m, [{"y"}]>, a.b = 1 : i32}'
    assert with_whole(text, [0]) == "%arg0: tensor<4xf32> {a.b = 1 : i32}"


def test_a_report_has_the_smallest_program_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda t, source: t if is_explicit(source) else t.replace(".tanh", ".sin"))
    text = compiled(lambda x: jnp.tanh(x * 2) + 1).report(X)
    assert text.startswith("# wrong: ttir.sin")
    for part in ("stand-in 1", "lax.tanh", "stablehlo.tanh", "compiled again, it is right"):
        assert part in text


def test_a_report_of_a_refusal_has_the_program_in_jax_and_no_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, right, lambda text: "" if is_explicit(text) else "no such reversal")
    text = compiled(lambda x: x[::-1] * 2).report(X)
    assert text.startswith("# refused: file.py:1:1: no such reversal")
    for part in ("lax.rev(", "in_shardings", "compiled again, it is right"):
        assert part in text
    assert __file__ not in text
    assert "loc(" not in text


def test_each_substitute_is_a_row_of_the_hunt() -> None:
    assert {c.row for c in SUBSTITUTES} <= {r.name for r in rows.ROWS}
    assert {c.plugin for c in SUBSTITUTES} == {rows.PLUGIN.split()[-1]}


@pytest.mark.parametrize(("version", "needed"), [("0.1.2", True), ("0.1.3", True), ("0.1.4", False), ("1.0", False)])
def test_a_newer_compiler_on_a_board_needs_no_substitutes(
    monkeypatch: pytest.MonkeyPatch, version: str, needed: bool
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    assert needed_here() == (SUBSTITUTES if needed else ())


def test_a_result_in_an_order_that_was_asked_for_is_right_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = P(None, ("x", "y"))
    stand_in(monkeypatch, right, lambda text: "" if is_explicit(text) else "no such order")
    found = compiled(lambda x: x * 2, P("y"), out_shardings=asked).repair(X)
    assert (found.before.verdict, found.verdict) == ("refused", "right")
    assert [c.what for c in found.changes[1:]] == ["result 0 is split by P(None, ('y', 'x')), not P(None, ('x', 'y'))"]
    np.testing.assert_array_equal(found.function(X), X * 2)
    # The sharding that other results are asked for still counts.
    text = "func.func public @main(%a: tensor<4xf32>) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@m, [{}]>}, i1) {"
    assert with_open_results(text, [1]) == text
    assert "sdy.sharding" not in with_open_results(text, [0])


@pytest.mark.parametrize("size", [0, 1, 3])
def test_edges_are_cut_and_added(size: int) -> None:
    for low in range(-4, 3):
        for high in range(max(-4, -low - size), 3):
            wanted = [i if 0 <= i < size else 9 for i in range(-low, size + high)]
            np.testing.assert_array_equal(_with_edges(jnp.arange(size), 9, [(low, high)]), wanted)
