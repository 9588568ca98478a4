"""The demo command: its files, its comparisons on meshes of every rank, its failures and its errors."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.cli import main
from jaxmesh.cli.demo import checks, command as demo_command, model, report
from jaxmesh.cli.demo.checks import compare
from jaxmesh.cli.demo.run import DemoOutcome, run
from tests import ROOT

TINY = model.Dims(batch=1, sequence=4, width=8, kv_heads=1, queries_per_kv=2, head=4, hidden=4)
COMPARISONS = 2 + 3 * 11
TENSORS = 10
SCREEN = 40
"""The lines of one screen."""


def tiny(mesh: Any) -> model.Dims:
    return model.dims_for(mesh, TINY)


def run_tiny(*shape: int) -> DemoOutcome:
    mesh = jm.make_mesh(shape)
    return run(mesh, tiny(mesh), lambda _: None)


# --- the command ------------------------------------------------------------------------------------------------------


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "jaxmesh", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path, **env},
    )


@pytest.mark.slow
def test_the_command_prints_and_writes_programs_comparisons_and_table(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    done = command("demo", "--mesh", "2x4", "--out", str(out))
    assert done.returncode == 0, done.stderr
    texts = {p.name: p.read_text() for p in out.iterdir()}
    assert set(texts) == {"ttir.mlir", "ttnn.mlir", "hlo.txt", "report.txt"}
    assert "mesh_shard" in texts["ttir.mlir"]
    assert "distribute_tensor" not in texts["ttir.mlir"]
    assert "mesh_shard" not in texts["ttnn.mlir"]
    assert texts["ttnn.mlir"].count("distribute_tensor") == TENSORS
    assert texts["ttnn.mlir"].count("aggregate_tensor") == 1
    assert "all-reduce" in texts["hlo.txt"]
    # What is printed is the last part of the report, and fits one screen with the steps.
    screen, _, wrote = done.stdout.rstrip().rpartition("\n")
    assert texts["report.txt"].strip().endswith(screen)
    assert (
        wrote == f"wrote {', '.join(str(out / name) for name in ('ttir.mlir', 'ttnn.mlir', 'hlo.txt', 'report.txt'))}"
    )
    assert len(done.stdout.splitlines() + done.stderr.splitlines()) <= SCREEN
    assert max(map(len, screen.splitlines())) <= 120
    assert f"PASS: {COMPARISONS} of {COMPARISONS} comparisons" in texts["report.txt"]
    assert f"{8 * TENSORS} of {8 * TENSORS} shards" in texts["report.txt"]
    assert re.search(r"^ +\(1, 3\) +x +\[2, 32, 64\] +\[2:4, :, :\] +16,384  yes$", texts["report.txt"], re.M)
    assert re.search(r"^jax\.grad\(jm\.jit\(loss\)\) +\d\.\de-07 +1e-05 +PASS 11 of 11$", screen, re.M)
    assert re.search(r"^all_reduce +x +2 +32,768$", screen, re.M)
    steps = done.stderr.splitlines()
    assert len(steps) > 10
    assert all(re.match(r"\[ *\d+\.\d\d s\] \w", line) for line in steps)


def test_the_command_writes_one_line_when_there_are_too_few_devices() -> None:
    done = command("demo", "--mesh", "2x4", XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert done.returncode == 2
    assert done.stdout == ""
    complaint = done.stderr.splitlines()[-1]
    assert re.match(r"jaxmesh: error: 8 devices are wanted, but only 2 exist", complaint)


@pytest.mark.slow
def test_a_reader_that_goes_away_leaves_no_traceback() -> None:
    code = (
        "import sys; from jaxmesh.cli import main as cli\n"
        "def broken(*_): raise BrokenPipeError\n"
        "cli.COMMANDS['demo'] = broken\n"
        "sys.exit(cli.main(['demo']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (main.NO_READER, "")


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("2y4", "--mesh takes positive integers joined by 'x', got '2y4'; write for example --mesh 2x4."),
        ("", "--mesh takes positive integers joined by 'x', got ''; write for example --mesh 2x4."),
        ("2x", "--mesh takes positive integers joined by 'x', got '2x'; write for example --mesh 2x4."),
        ("2x٣", "--mesh takes positive integers joined by 'x', got '2x٣'; write for example --mesh 2x4."),
        ("0x2", "--mesh takes sizes of at least 1, got '0x2'; leave the axis out, or write 1 for it."),
        ("256x2", "--mesh takes at most 256 devices, .* got '256x2' with 512; write a smaller mesh, .*"),
    ],
)
def test_a_bad_mesh_is_one_line_and_exit_code_2(mesh: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["demo", f"--mesh={mesh}"]) == 2
    said = capsys.readouterr()
    assert re.fullmatch(f"jaxmesh: error: {message}\n", said.err)
    assert said.out == ""


def test_an_impossible_folder_is_known_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "file"
    taken.touch()
    assert main.main(["demo", "--out", str(taken)]) == 2
    assert capsys.readouterr().err == (
        f"jaxmesh: error: --out takes a folder that exists or can be made, got '{taken}' (File exists); name another.\n"
    )


@pytest.mark.parametrize("arguments", [[], ["demo", "--bogus"], ["nothing"], ["demo", "--mesh"]])
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(arguments)
    assert end.value.code == 2
    assert re.fullmatch(r"jaxmesh: error: .*--help\)\n", capsys.readouterr().err)


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"]])
def test_help_and_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(arguments)
    assert end.value.code == 0
    assert "jaxmesh" in capsys.readouterr().out


# --- the comparisons --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 2), (8,), (2, 2, 2), (1, 2, 2, 2)], ids=str)
def test_output_and_gradients_equal_the_unsharded_ones(shape: tuple[int, ...]) -> None:
    outcome = run_tiny(*shape)
    assert len(outcome.checks) == COMPARISONS
    assert [c for c in outcome.checks if not c.passed] == []
    assert len(outcome.holdings) == TENSORS * math.prod(shape)
    assert outcome.passed


@pytest.mark.slow
def test_a_wrong_all_reduce_fails_and_the_exit_code_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = model.all_reduce
    monkeypatch.setattr(model, "all_reduce", lambda x, mesh, axes: right(x, mesh, axes) * 1.001)
    monkeypatch.setattr(demo_command, "dims_for", tiny)
    assert main.main(["demo", "--mesh", "1x2"]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"^forward, compiled on the mesh +\d\.\de-0[34] +1e-05 +FAIL 0 of 1$", printed, re.M)
    assert re.search(r"^FAIL: \d+ of 35 comparisons within tolerance", printed, re.M)


@pytest.mark.slow
def test_a_wrong_gradient_alone_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = model.all_reduce

    def half_gradient(x: jax.Array, mesh: Any, axes: Any) -> jax.Array:
        half = right(x, mesh, axes) / 2
        return half + jax.lax.stop_gradient(half)

    monkeypatch.setattr(model, "all_reduce", half_gradient)
    outcome = run_tiny(1, 2)
    wrong = {c.name for c in outcome.checks if not c.passed}
    gradients = {c.name for c in outcome.checks if ": d " in c.name}
    assert len(gradients) == 3 * TENSORS
    assert wrong == gradients
    assert not outcome.passed


def test_a_shard_that_is_another_slice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = jm.make_mesh((2, 2))
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    right = checks.slices_of
    assert all(h.exact for h in checks.list_holdings({"x": jax.numpy.asarray(x)}, {"x": P("y", "x")}, mesh))
    monkeypatch.setattr(checks, "slices_of", lambda shape, spec, mesh, at: right(shape, spec, mesh, at[::-1]))
    found = checks.list_holdings({"x": jax.numpy.asarray(x)}, {"x": P("y", "x")}, mesh)
    assert [h.exact for h in found] == [True, False, False, True]


@pytest.mark.parametrize(
    ("got", "expected", "error", "passed"),
    [
        (np.float32([1, 2]), np.float32([1, 2]), 0.0, True),
        (np.float32([1, 2.5]), np.float32([1, 2]), 0.25, False),
        (np.float32([0, 0]), np.float32([0, 0]), 0.0, True),
        (np.float32([1e-3]), np.float32([0]), 1e-3, False),
        (np.float32([np.nan]), np.float32([np.nan]), math.nan, False),
        (np.float32([np.inf]), np.float32([np.inf]), math.nan, False),
        (np.float32([1]), np.float32([1, 1]), math.inf, False),
        (np.float64([1]), np.float32([1]), math.inf, False),
    ],
)
def test_a_comparison_fails_on_anything_but_a_small_difference(
    got: Any, expected: Any, error: float, passed: bool
) -> None:
    check = compare("it", got, expected)
    np.testing.assert_allclose(check.error, error, rtol=1e-6)
    assert check.passed is passed


# --- the model and the table ------------------------------------------------------------------------------------------


def by_hand(w: dict[str, np.ndarray], x: np.ndarray, head: int) -> np.ndarray:
    """The block for one sequence, head by head and position by position, in float64."""

    def norm(v: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return v / np.sqrt((v**2).mean(-1, keepdims=True) + 1e-5) * scale

    def turned(v: np.ndarray, position: int) -> np.ndarray:
        half = head // 2
        pairs = (v[:half] + 1j * v[half:]) * np.exp(1j * position * 10_000.0 ** (-np.arange(half) / half))
        return np.concatenate([pairs.real, pairs.imag])

    h = norm(x, w["attention_norm"])
    q, k, v = ((h @ w[n]).reshape(len(x), -1, head) for n in ("wq", "wk", "wv"))
    group = q.shape[1] // k.shape[1]
    mixed = np.zeros_like(q)
    for i in range(len(x)):
        for n in range(q.shape[1]):
            scores = [turned(q[i, n], i) @ turned(k[j, n // group], j) / np.sqrt(head) for j in range(i + 1)]
            shares = np.exp(scores) / np.exp(scores).sum()
            mixed[i, n] = shares @ v[: i + 1, n // group]
    x = x + mixed.reshape(len(x), -1) @ w["wo"]
    h = norm(x, w["mlp_norm"])
    gate = h @ w["w_gate"]
    return x + (gate / (1 + np.exp(-gate)) * (h @ w["w_up"])) @ w["w_down"]


def test_the_unsharded_model_is_a_transformer_block() -> None:
    dims = model.Dims(batch=2, sequence=5, width=6, kv_heads=2, queries_per_kv=3, head=4, hidden=7)
    weights, x, _ = model.make_inputs(dims)
    wide = {name: np.asarray(w, np.float64) for name, w in weights.items()}
    want = np.stack([by_hand(wide, s, dims.head) for s in np.asarray(x, np.float64)])
    np.testing.assert_allclose(model.unsharded_model(dims).forward(weights, x), want, rtol=1e-4, atol=1e-4)


def test_sizes_divide_by_any_mesh() -> None:
    for shape in [(3,), (5, 7), (3, 1, 2), (1, 2, 3, 5)]:
        mesh = jax.sharding.AbstractMesh(shape, jm.make_mesh((1,) * len(shape)).axis_names)
        dims = model.dims_for(mesh)
        assert dims.kv_heads % shape[-1] == dims.hidden % shape[-1] == 0
        assert dims.batch % math.prod(shape[:-1]) == 0


def test_two_axes_on_one_dim_are_placed_first_axis_first() -> None:
    mesh = jm.make_mesh((2, 4))
    assert checks.slices_of((16, 3), P(("y", "x")), mesh, (1, 2)) == (slice(12, 14), slice(None))
    assert checks.slices_of((16, 3), P(("x", "y")), mesh, (1, 2)) == (slice(10, 12), slice(None))


@pytest.fixture(scope="module")
def outcome() -> DemoOutcome:
    return run_tiny(1, 2)


@pytest.mark.slow
def test_files_hold_no_colour_codes(outcome: DemoOutcome, tmp_path: Path) -> None:
    report.write(replace(outcome, ttir="{ \x1b[34;1mlambda \x1b[39;22m; a }", ttnn="\x1b[35m:f32[2]\x1b[39m"), tmp_path)
    assert (tmp_path / "ttir.mlir").read_text() == "{ lambda ; a }\n"
    assert (tmp_path / "ttnn.mlir").read_text() == ":f32[2]\n"


@pytest.mark.slow
def test_verbose_prints_what_the_files_hold(
    outcome: DemoOutcome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_command, "run", lambda *_: outcome)
    assert main.main(["demo", "--mesh", "1x2", "--verbose", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in ("ttir.mlir", "ttnn.mlir", "report.txt"):
        assert (tmp_path / name).read_text().strip() in printed


@pytest.mark.slow
def test_the_screen_counts_the_bytes_of_the_fullest_device(outcome: DemoOutcome) -> None:
    sums: Counter[Any] = Counter()
    for holding in outcome.holdings:
        sums[holding.coordinate] += holding.nbytes
    assert len(sums) == outcome.mesh.devices.size > 1
    assert f"at most {max(sums.values()):,} bytes on each device" in report.summary(outcome)


@pytest.mark.slow
def test_the_screen_names_what_went_wrong_most(outcome: DemoOutcome) -> None:
    """Of several failures of a program a value that is no number comes first, and no other program is blamed."""
    first, *rest = outcome.checks
    wrong = [replace(c, error=error) for c, error in zip(rest[-3:], (0.5, math.nan, 1e-9), strict=True)]
    screen = report.summary(replace(outcome, checks=(first, *rest[:-3], *wrong)))
    assert "FAIL: 33 of 35 comparisons" in screen
    assert re.search(r"reference executor +nan +1e-05 +FAIL 9 of 11$", screen, re.M)
    assert screen.count("FAIL") == 2


def test_the_places_to_look_at_exist(capsys: pytest.CaptureFixture[str]) -> None:
    options = [name.split()[-1] for name, _ in report.NEXT]
    with pytest.raises(SystemExit):
        main.main(["demo", "--help"])
    shown = capsys.readouterr().out
    for name in options:
        assert (ROOT / name).exists() if "/" in name else name in shown
