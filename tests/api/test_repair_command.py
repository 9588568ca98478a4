"""`jaxmesh repair`: what it writes, without the compiler and with a stand-in; files that are no programs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.upstream import UpstreamProgram, UpstreamRefusal
from jaxmesh.cli import repair
from jaxmesh.cli.main import USAGE, main
from jaxmesh.stages import upstream
from tests.generators.diagnosed import write_folder

pytestmark = pytest.mark.filterwarnings("ignore::jaxmesh.errors.AssumptionWarning")
MESH = jm.make_mesh((2, 4), ("y", "x"))
X = np.arange(128, dtype=np.float32).reshape(8, 16)


def program() -> str:
    jitted: Any = jax.jit(lambda x: x[::-1] * 2, in_shardings=NamedSharding(MESH, P("y")))
    return jitted.lower(X).as_text("stablehlo")


def without_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delenv("JAXMESH_UPSTREAM_PYTHON", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "none"))


def with_stand_in(monkeypatch: pytest.MonkeyPatch, refuses: str) -> None:
    def compile_text(text: str, **_: Any) -> UpstreamProgram:
        if refuses in text:
            return UpstreamProgram({}, refusal=UpstreamRefusal("not this"), cluster="t3000")
        traced = jm.from_mlir(text)
        stages = {"shlo_compiler": text, "ttir": traced.as_text(), "ttnn": traced.lower().as_text(strict=False)}
        return UpstreamProgram(stages, b"", plugin="stand-in", cluster="t3000")

    monkeypatch.setattr(repair, "find_plugin", lambda _: None)
    monkeypatch.setattr(upstream, "compile_text", compile_text)


def test_without_the_compiler_the_text_comes_without_a_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_compiler(monkeypatch, tmp_path)
    (tmp_path / "program.mlir").write_text(program())
    out = tmp_path / "right.mlir"
    assert main(["repair", str(tmp_path / "program.mlir"), "-o", str(out)]) == repair.UNPROVED
    assert "not proved" in capsys.readouterr().err
    made = jm.from_mlir(str(out)).lower().compile()
    np.testing.assert_array_equal(made(X), X[::-1] * 2)


@pytest.mark.parametrize("command", [["repair"], ["diagnose"], ["translate", "--to", "cpp", "--check-api"]])
def test_without_the_compiler_remedies_are_those_of_the_command(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_compiler(monkeypatch, tmp_path)
    (tmp_path / "program.mlir").write_text(program())
    assert main([*command, str(tmp_path / "program.mlir")]) in (USAGE, repair.UNPROVED)
    said = capsys.readouterr().err
    assert "`jaxmesh upstream-env`" in said
    assert "JAXMESH_UPSTREAM_PYTHON" in said
    with pytest.raises(SystemExit):
        main([command[0], "--help"])
    assert set(re.findall(r"--[a-z][\w-]*|\w+=", said)) <= set(re.findall(r"--[a-z][\w-]*", capsys.readouterr().out))


def test_a_folder_is_repaired_from_its_program_with_global_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_stand_in(monkeypatch, "dims = [0] : tensor<8x16xf32>\n    %")
    theirs = program().replace("{sdy.", "{ttcore.argument_type = #ttcore.argument_type<input>, sdy.")
    assert "ttcore" in theirs
    folder = write_folder({"shlo_frontend": theirs, "ttir": "module {}"}, tmp_path / "export")
    out = tmp_path / "right.mlir"
    assert main(["repair", str(folder), "-o", str(out)]) == 0
    assert capsys.readouterr().out.startswith("repaired: refused before, right after")
    assert "manual_computation" in out.read_text()


def test_what_stays_refused_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_stand_in(monkeypatch, "module")
    (tmp_path / "program.mlir").write_text(program())
    out = tmp_path / "right.mlir"
    assert main(["repair", str(tmp_path / "program.mlir"), "-o", str(out)]) == 3
    assert "what stays: not this" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.parametrize("content", [b"", b"module {", bytes(range(256)), b"module { func.func @f() { stablehlo.x } }"])
def test_files_that_are_no_programs(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.mlir"
    path.write_bytes(content)
    assert main(["repair", str(path)]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith("jaxmesh: error: ")
    assert error.count("\n") == 1


def test_places_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", str(tmp_path)]) == USAGE
    assert main(["repair", str(tmp_path / "none")]) == USAGE
    (tmp_path / "program.mlir").write_text(program())
    assert main(["repair", str(tmp_path / "program.mlir"), "-o", str(tmp_path / "no" / "folder.mlir")]) == USAGE
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            '{ttcore.argument_type = #ttcore.argument_type<input>, sdy.sharding = 1, ttir.name = "x"}',
            "{sdy.sharding = 1}",
        ),
        ("(%a: tensor<4xf32> {ttcore.argument_type = #ttcore.argument_type<input>}) {\n", "(%a: tensor<4xf32> {}) {\n"),
    ],
)
def test_their_attributes_are_removed(text: str, left: str) -> None:
    assert repair.without_theirs(text) == left
