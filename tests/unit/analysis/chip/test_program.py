"""Programs that run call by call on a chip; a `ttnn` in NumPy plays it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.chip import ChipRun, trust
from jaxmesh.analysis.chip.environment import CHIP as ENVIRONMENT
from jaxmesh.analysis.chip.result import CHIP, TRANSFER

RANDOM = np.random.default_rng(0)


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return jnp.asarray(RANDOM.standard_normal(shape), dtype)


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return jax.nn.silu(x @ w1) @ w2


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T * q.shape[-1] ** -0.5) @ v


def rms_norm(x: Any, w: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w


def run_of(function: Any, *values: Any, python: Path, shape: tuple[int, int] = (1, 1), **shardings: Any) -> ChipRun:
    lowered = jm.jit(function, mesh=jm.make_mesh(shape, ("y", "x")), **shardings).lower(*values)
    return lowered.run_on_chip(*values, python=python)


def of_run(run: ChipRun) -> Counter[tuple[str, str]]:
    return Counter((v.call[0].removeprefix("ttnn."), v.place) for v in run.values)


def check(run: ChipRun, wanted: Any, shape: tuple[int, int]) -> None:
    """The results, and the values of each device, are those of the unsharded program, to the rounding of float32."""
    np.testing.assert_allclose(np.asarray(run.results[0]), wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    for value in run.values:
        assert value.values.shape[0] == shape[0] * shape[1]
        assert value.emulated.pcc > 0.99999 or value.emulated.same, value
        assert value.exact.pcc > 0.99999 or not value.exact.defined, value
        assert 0 <= value.loss < 1e-5


@pytest.mark.parametrize("shape", [(1, 1), (2, 4)])
@pytest.mark.parametrize(
    ("function", "args", "specs", "on_chip"),
    [
        (mlp, ((64, 64), (64, 128), (128, 64)), (P("y"), P(None, "x"), P("x")), {"matmul", "silu"}),
        (attention, ((64, 64), (64, 64), (64, 64)), (P("y"), P(), P()), {"matmul", "multiply", "softmax"}),
        (rms_norm, ((64, 64), (64,)), (P("y"), P()), {"rms_norm"}),
    ],
    ids=["mlp", "attention", "rms_norm"],
)
@pytest.mark.slow(but_one_in=6)
def test_programs(
    function: Any, args: Any, specs: Any, on_chip: set[str], shape: tuple[int, int], python: Path
) -> None:
    values = [array(*a) for a in args]
    run = run_of(function, *values, python=python, shape=shape, in_shardings=specs, out_shardings=P("y"))
    check(run, np.asarray(function(*values)), shape)
    assert on_chip <= {v.call[0].removeprefix("ttnn.") for v in run.on_chip}, of_run(run)
    text = str(run)
    assert text.startswith(f"ChipRun({len(run.on_chip)} of {len(run.values)} values from the simulated chip)")
    assert "ttnn 0.81.1, wolfpine 2.2, sfpi 7.87.0" in text


def test_devices_with_equal_operands_run_once(calls: Path, python: Path) -> None:
    x = array(64, 64)
    for specs, wanted in ((P(), 1), (P("y"), 2), (P("y", "x"), 4)):
        calls.unlink(missing_ok=True)
        run = run_of(jnp.tanh, x, python=python, shape=(2, 2), in_shardings=(specs,), out_shardings=specs)
        assert run.on_chip[-1].call[0] in ("ttnn.tanh", "ttnn.to_layout")
        assert calls.read_text().split().count("tanh") == wanted
        (tanh,) = (v for v in run.values if v.call[0] == "ttnn.tanh")
        assert tanh.values.shape[0] == 4
        np.testing.assert_allclose(np.asarray(run.results[0]), np.tanh(x), rtol=0, atol=1e-6)


def test_a_wrong_result_is_replaced_and_told(monkeypatch: pytest.MonkeyPatch, python: Path) -> None:
    monkeypatch.setenv("SCALE_exp", "1.01")
    x = array(32, 32)
    run = run_of(lambda x: jnp.tanh(jnp.exp(x)), x, python=python)
    places = {v.call[0]: v.place for v in run.values}
    assert places["ttnn.exp"] == "wrong: no rounding explains it"
    assert places["ttnn.tanh"] == CHIP
    np.testing.assert_allclose(np.asarray(run.results[0]), np.tanh(np.exp(x)), rtol=0, atol=1e-6)
    assert "emulated, 1 of ttnn.exp: wrong: no rounding explains it" in str(run)


@pytest.mark.parametrize("name", ["add", "matmul", "softmax"])
def test_a_result_of_float32_that_is_rounded_to_bfloat16_is_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch, python: Path
) -> None:
    monkeypatch.setenv(f"ROUND_{name}", "1")
    x = array(32, 32)
    run = run_of({"add": jnp.add, "matmul": jnp.matmul, "softmax": lambda x, _: jax.nn.softmax(x)}[name], x, x.T,
                 python=python)  # fmt: skip
    assert of_run(run)[name, "wrong: no rounding explains it"] == 1


def test_a_table_of_other_versions_is_told(monkeypatch: pytest.MonkeyPatch, python: Path, tmp_path: Path) -> None:
    x = array(32, 32)
    assert "the table of trusted calls" not in str(run_of(jnp.tanh, x, python=python))
    (tmp_path / "table").write_text(trust.TABLE.read_text().replace("wolfpine 2.2", "wolfpine 2.1", 1))
    monkeypatch.setattr(trust, "TABLE", tmp_path / "table")
    run = run_of(jnp.tanh, x, python=python)
    assert of_run(run)["tanh", CHIP] == 1
    assert str(run).splitlines()[-1] == (
        "the table of trusted calls is of ttnn 0.81.1, wolfpine 2.1, sfpi 7.87.0; "
        "this run, of ttnn 0.81.1, wolfpine 2.2, sfpi 7.87.0, may differ from it"
    )


def test_the_types_of_a_call_are_in_the_order_of_its_operands(python: Path) -> None:
    """Whatever the names of its operands are."""
    x = array(32, 32)
    run = run_of(lambda x: (jnp.where(x > 0, jnp.exp(x), x), jnp.where(jnp.exp(x) > 1, x, 2 * x)), x, python=python)
    assert {v.call[1] for v in run.values if v.call[0] == "ttnn.where"} == {"bool+float32"}


def test_functions_of_submodules_are_calls(python: Path) -> None:
    q, k, v = (array(32, 32, dtype=jnp.bfloat16) for _ in range(3))
    run = run_of(attention, q, k, v, python=python)
    (fused,) = (v for v in run.values if v.call[0] == "ttnn.transformer.scaled_dot_product_attention")
    assert fused.place != CHIP
    assert fused.exact.pcc > 0.999
    wanted = attention(*(x.astype(jnp.float32) for x in (q, k, v)))
    np.testing.assert_allclose(np.asarray(run.results[0], np.float32), wanted, rtol=0, atol=3e-2)


def test_a_wrong_comparison_is_told(monkeypatch: pytest.MonkeyPatch, python: Path) -> None:
    """No rounding explains a truth value."""
    monkeypatch.setenv("SCALE_lt", "0")
    x = array(32, 32)
    run = run_of(lambda x: x < x.T, x, python=python)
    assert of_run(run)["lt", "wrong: no rounding explains it"] == 1
    np.testing.assert_array_equal(np.asarray(run.results[0]), np.asarray(x) < np.asarray(x).T)


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("raise ValueError('no such shape')", "refused: ValueError: no such shape"),
        ("os._exit(1)", "ended"),
        ("args[0].array = args[0].array[:1]", "wrong: no rounding explains it"),
    ],
)
@pytest.mark.slow(but_one_in=3)
def test_a_failed_call_is_emulated(fault: str, place: str, monkeypatch: pytest.MonkeyPatch, python: Path) -> None:
    monkeypatch.setenv("FAULT_exp", fault)
    x = array(32, 32)
    run = run_of(lambda x: jnp.tanh(jnp.exp(x)), x, python=python)
    places = {v.call[0]: v.place for v in run.values}
    assert places["ttnn.exp"].startswith(place)
    assert places["ttnn.tanh"] == CHIP
    np.testing.assert_allclose(np.asarray(run.results[0]), np.tanh(np.exp(x)), rtol=0, atol=1e-6)


def test_what_is_not_trusted_stays(calls: Path, python: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In this table a sum of float32 is wrong; integers, odd sizes and cosines were not tried."""
    (tmp_path / "table").write_text(
        "ttnn.sum | float32 | - | - | wrong 3.0 | -\nttnn.add | float32 | exact 1.0 | - | - | -\n"
        "ttnn.tanh | float32 | float32 1.0 | - | - | -\n"
    )
    monkeypatch.setattr(trust, "TABLE", tmp_path / "table")
    monkeypatch.setattr(trust, "_table", trust._table.__wrapped__)
    x = array(32, 32)
    n, y = jnp.arange(1024).reshape(32, 32), array(40, 70)
    run = run_of(lambda x, n, y: (x.sum(0), n + n, jnp.tanh(y), jnp.cos(x)), x, n, y, python=python)
    stays = of_run(run)
    assert stays["sum", "wrong"] == 1
    assert all(stays[name, "not tried"] == 1 for name in ("add", "tanh", "cos"))
    assert not calls.exists() or not {"sum", "add", "tanh", "cos"} & set(calls.read_text().split())
    np.testing.assert_allclose(np.asarray(run.results[0]), x.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(run.results[1]), 2 * np.arange(1024).reshape(32, 32))


def test_collectives_are_transfers(python: Path) -> None:
    x, w = array(64, 64), array(64, 64)
    specs = {"in_shardings": (P(None, "x"), P("x")), "out_shardings": P()}
    run = run_of(lambda x, w: x @ w, x, w, python=python, shape=(1, 2), **specs)
    stays = of_run(run)
    assert stays["matmul", CHIP] == 1
    assert any(place == TRANSFER and "reduce" in name for name, place in stays)
    np.testing.assert_allclose(np.asarray(run.results[0]), x @ w, rtol=0, atol=1e-4)


def test_the_worst_come_first_with_the_line_of_the_user(monkeypatch: pytest.MonkeyPatch, python: Path) -> None:
    """A product of bfloat16 loses more than float32 does, and its line is named."""
    x = array(32, 32)

    def program(x: Any) -> Any:
        y = jnp.tanh(x)
        z = x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16)
        return y, z

    run = run_of(program, x, python=python)
    worst = run.worst()
    assert [v.loss for v in worst] == sorted((v.loss for v in run.values if v.loss), reverse=True)
    assert run.worst(1) == worst[:1]
    matmul = next(v for v in worst if v.call[0] == "ttnn.matmul")
    tanh = next(v for v in worst if v.call[0] == "ttnn.tanh")
    assert matmul.loss > 1e-4 > 1e-6 > tanh.loss
    assert (matmul.call[1], matmul.outcome, tanh.outcome) == ("bfloat16", "bfloat16", "float32")
    assert f"{Path(__file__).name}:{program.__code__.co_firstlineno + 2}" in matmul.source
    assert "matmul" in str(run)


def test_a_loop_whose_end_only_the_devices_know(python: Path) -> None:
    x = jnp.full((32, 32), 0.5)
    run = run_of(lambda x: lax.while_loop(lambda c: c[0, 0] > 0.2, jnp.tanh, x), x, python=python)
    wanted, times = np.full((32, 32), 0.5), 0
    while wanted[0, 0] > 0.2:
        wanted, times = np.tanh(wanted), times + 1
    np.testing.assert_allclose(np.asarray(run.results[0]), wanted, rtol=0, atol=1e-5)
    assert of_run(run)["tanh", CHIP] == times > 1


@pytest.mark.slow
@pytest.mark.skipif(ENVIRONMENT.variable not in os.environ, reason="no Python with the simulated chip")
def test_the_simulated_chip_multiplies() -> None:
    x, w = array(32, 64), array(64, 32)
    run = jm.jit(lambda x, w: x @ w, mesh=jm.make_mesh((1, 1), ("y", "x"))).lower(x, w).run_on_chip(x, w)
    assert of_run(run)["matmul", CHIP] == 1
    # The chip's own rounding of both operands: ten bits each.
    most = 2 * 2.0**-10 * (np.abs(np.asarray(x)) @ np.abs(np.asarray(w)))
    assert (np.abs(np.asarray(run.results[0]) - x @ w) <= most).all()


def exact_attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.T * q.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.slow
@pytest.mark.skipif(ENVIRONMENT.variable not in os.environ, reason="no Python with the simulated chip")
@pytest.mark.parametrize(
    ("function", "exact", "shapes"),
    [
        (attention, exact_attention, [(32, 32)] * 3),
        (rms_norm, lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w, [(32, 32), (32,)]),
    ],
    ids=["attention", "rms_norm"],
)
def test_the_simulated_chip_computes_a_whole_program(function: Any, exact: Any, shapes: Any) -> None:
    """Every call runs there, and the result is within the rounding of the operands to TF32."""
    values = [array(*shape) for shape in shapes]
    run = jm.jit(function, mesh=jm.make_mesh((1, 1), ("y", "x"))).lower(*values).run_on_chip(*values)
    assert {v.place for v in run.values} == {CHIP, TRANSFER}, of_run(run)
    operands, found = [np.float64(x) for x in values], np.asarray(run.results[0])
    wanted = exact(*operands)
    assert np.abs(found - wanted).max() > 1e-6  # It is the chip's arithmetic, and not the emulation's.
    assert trust.are_right(found, wanted, "tf32", lambda change: exact(*map(change, operands))).all()
