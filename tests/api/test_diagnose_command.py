"""`jaxmesh diagnose`: verdicts, data, pictures and exit codes."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxmesh.analysis.upstream import UpstreamProgram, UpstreamRefusal
from jaxmesh.cli.main import USAGE, main
from jaxmesh.errors import ParseError
from tests.generators.diagnosed import exported, write_folder
from tests.generators.plain_programs import CASES

TEXTS = exported(next(c for c in CASES if c.name == "tensor and data parallel mlp"))
WRONG = {**TEXTS, "ttir": re.sub(r"(all_reduce.*cluster_axis = )1", r"\g<1>0", TEXTS["ttir"])}
KEYS = {
    "verdict", "stage", "op", "line", "between", "iteration", "source", "expected", "axes", "dims", "devices",
    "elements", "pcc", "cause", "proof", "stages", "unexplained",
}  # fmt: skip


def changed_lines() -> Iterator[str]:
    rows = zip(TEXTS["ttir"].split("\n"), WRONG["ttir"].split("\n"), strict=True)
    return (after for before, after in rows if before != after)


def test_a_right_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(write_folder(TEXTS, tmp_path))]) == 0
    assert capsys.readouterr().out.startswith("right\n")


def test_a_wrong_program_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "wrong.html"
    folder = str(write_folder(WRONG, tmp_path))
    assert main(["diagnose", folder, "--json", "--minimize", "--out", str(out)]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data.keys() == KEYS | {"minimized"}
    assert (data["verdict"], data["op"]) == ("wrong", "ttir.all_reduce")
    assert "plain_programs.py" in data["source"]
    assert (data["stage"], data["line"]) == ("ttir", 1 + WRONG["ttir"].split("\n").index(next(changed_lines())))
    assert data["expected"].startswith("stablehlo.dot_general")
    assert max(data["proof"]["before"]) > 1e-3 > max(data["proof"]["after"])
    assert {tuple(row["device"]) for row in data["elements"]} == {tuple(c) for c in data["devices"]}
    assert "stablehlo" in data["minimized"]["stablehlo"]
    assert "<svg" in out.read_text()


def test_a_text_that_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The result itself is taken as given."""
    texts = {**TEXTS, "ttir": TEXTS["ttir"].replace("ttir.all_reduce", "ttir.unheard_of")}
    assert main(["diagnose", str(write_folder(texts, tmp_path)), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["verdict"] == "not comparable"


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(tmp_path)]) == USAGE
    assert "shlo_frontend" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path / "none")]) == USAGE


def command(source: Path | str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    """Returns the exit code of the command, and its one line of error."""
    code = main(["diagnose", str(source), *more])
    return code, capsys.readouterr().err


def test_folders_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {**TEXTS, "ttnn": TEXTS["ttnn"]}
    (write_folder(texts, tmp_path / "two") / "irs" / "ttnn_99999999.mlir").write_text(TEXTS["ttnn"])
    (tmp_path / "irs").mkdir()
    torn = write_folder({**TEXTS, "shlo_frontend": TEXTS["shlo_frontend"][:900]}, tmp_path / "torn")
    binary = write_folder(TEXTS, tmp_path / "binary")
    next((binary / "irs").glob("ttir*")).write_bytes(bytes(range(256)) * 9)
    for folder, reason in {
        tmp_path: "shlo_frontend",
        tmp_path / "two": "but other numbers of",
        torn: "",
        binary: "",
    }.items():
        code, error = command(folder, capsys)
        assert code == USAGE, folder
        assert reason in error
        assert error.startswith("jaxmesh: ")
        assert "Traceback" not in error


def test_a_torn_text_with_local_shapes_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder({**TEXTS, "ttnn": TEXTS["ttnn"][: len(TEXTS["ttnn"]) // 2]}, tmp_path)
    assert main(["diagnose", str(folder), "--json"]) == 4
    data = json.loads(capsys.readouterr().out)
    assert (data["verdict"], data["op"]) == ("not comparable", "")


@pytest.mark.slow
def test_files_that_are_no_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in {"empty": b"", "text": b"module {", "binary": bytes(range(256))}.items():
        path = tmp_path / f"{name}.mlir"
        path.write_bytes(content)
        code, error = command(path, capsys)
        assert code == USAGE, name
        assert "Traceback" not in error
        assert error.startswith("jaxmesh: ")


@pytest.mark.parametrize(("refusal", "code"), [("", 1), ("f.py:3:1: no rule", 3)])
def test_a_file_is_compiled_first(
    refusal: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = SimpleNamespace(refusal=refusal, stages={}, ttir=WRONG["ttir"], ttnn="")
    module = importlib.import_module("jaxmesh.analysis.diagnose.diagnose")
    monkeypatch.setattr(module, "compile_text", lambda *_, meanwhile, **__: meanwhile() or answer)
    path = tmp_path / "model.mlir"
    path.write_text(TEXTS["shlo_frontend"])
    assert main(["diagnose", str(path), "--json"]) == code
    data = json.loads(capsys.readouterr().out)
    assert data.keys() == KEYS
    assert data["cause"] == refusal if refusal else data["op"] == "ttir.all_reduce"


def test_an_error_of_a_file_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ParseError("line 6: custom op 'stablehlo.tanhh' is unknown")

    monkeypatch.setattr(importlib.import_module("jaxmesh.analysis.diagnose.diagnose"), "compile_text", refuse)
    path = tmp_path / "typo.mlir"
    path.write_text("module {}")
    assert command(path, capsys) == (
        USAGE,
        "jaxmesh: error: typo.mlir: line 6: custom op 'stablehlo.tanhh' is unknown\n",
    )


def test_a_folder_has_been_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = command(write_folder(TEXTS, tmp_path), capsys, "--cluster", "galaxy")
    assert code == USAGE
    assert "cluster='galaxy' (--cluster)" in error
    assert "leave it out" in error


def test_arguments_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_folder(WRONG, tmp_path))
    shapes = re.findall(r"%arg\d+: tensor<(\d+)x(\d+)xf32>", WRONG["shlo_frontend"].split("->")[0])
    rng = np.random.default_rng(0)
    given = {f"arg{i}": rng.random((int(a), int(b)), np.float32) for i, (a, b) in enumerate(shapes)}
    path = tmp_path / "args.npz"

    def run(**arrays: np.ndarray[Any, Any]) -> str:
        np.savez(path, **arrays)
        assert main(["diagnose", folder, "--args", str(path)]) == USAGE
        return capsys.readouterr().err

    assert "--args lacks arg0" in run(**{k: v for k, v in given.items() if k != "arg0"})
    assert "--args has an array 'arg9'" in run(**given, arg9=given["arg0"])
    assert "--args: arg0 is float32[1]" in run(**{**given, "arg0": np.ones(1, np.float32)})
    assert "--args: arg0 is int32" in run(**{**given, "arg0": given["arg0"].astype(np.int32)})
    assert "elements of object" in run(**{**given, "arg0": np.array([{}], object)})
    np.savez(path, **given)
    assert main(["diagnose", folder, "--args", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["op"] == "ttir.all_reduce"
    np.savez(path, **{k: v * 0 for k, v in given.items()})
    # Zeros do not show the error.
    assert main(["diagnose", folder, "--args", str(path)]) == 0


def test_a_graph_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_folder({k: TEXTS[k] + WRONG[k] for k in TEXTS}, tmp_path))
    assert [main(["diagnose", folder, "--graph", n]) for n in ("1", "2", "3")] == [0, 1, USAGE]
    assert main(["diagnose", folder, "--func", "none"]) == USAGE
    assert "has no function @none" in capsys.readouterr().err


def test_a_saved_refusal_stays_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "saved"
    texts = {"shlo_frontend": TEXTS["shlo_frontend"]}
    UpstreamProgram(texts, refusal=UpstreamRefusal("no rule", "f.py:3:1")).save(folder)
    assert main(["diagnose", str(folder)]) == 3
    assert capsys.readouterr().out == "refused: f.py:3:1: no rule\n"
    assert main(["diagnose", str(folder), "--minimize"]) == 3
    assert "no smaller program is made: the verdict is refused" in capsys.readouterr().out
    # A later program in its place is compiled.
    UpstreamProgram(TEXTS).save(folder)
    assert main(["diagnose", str(folder)]) == 0


def test_a_read_of_a_deallocated_value_is_no_right_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = TEXTS["ttnn"].split("\n")
    number = next(n for n, row in enumerate(rows) if '"ttnn.deallocate"' in row)
    rows[number - 1 : number + 1] = reversed(rows[number - 1 : number + 1])
    folder = str(write_folder({**TEXTS, "ttnn": "\n".join(rows)}, tmp_path))
    assert main(["diagnose", folder, "--minimize"]) == 1
    out = capsys.readouterr().out
    assert re.search(rf"\n  ttnn: wrong, ttnn\.\w+ \(line {number + 1}\) reads a value that line {number} dea", out)
    assert "nan" not in out
    assert out.endswith("\n\nno smaller program is made: no operation computes a wrong value\n")


def test_a_reproduction_that_was_not_seen_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.import_module("jaxmesh.cli.diagnose"), "minimize", lambda *_, **__: None)
    folder = str(write_folder(WRONG, tmp_path))
    assert main(["diagnose", folder, "--minimize"]) == 1
    assert "no smaller program was seen to have the same error" in capsys.readouterr().out
    assert main(["diagnose", folder, "--minimize", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["minimized"] is None
