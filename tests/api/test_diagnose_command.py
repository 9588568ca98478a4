"""`jaxmesh diagnose`: verdicts, data, pictures and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from jaxmesh.cli.main import USAGE, main
from tests.generators.diagnosed import exported, write_folder
from tests.generators.plain_programs import CASES

TEXTS = exported(next(c for c in CASES if c.name == "tensor and data parallel mlp"))
WRONG = {**TEXTS, "ttir": re.sub(r"(all_reduce.*cluster_axis = )1", r"\g<1>0", TEXTS["ttir"])}
KEYS = {"verdict", "op", "source", "axes", "devices", "pcc", "cause"}


def test_a_right_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(write_folder(TEXTS, tmp_path))]) == 0
    assert capsys.readouterr().out.startswith("verdict: right\n")


def test_a_wrong_program_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "wrong.html"
    folder = str(write_folder(WRONG, tmp_path))
    assert main(["diagnose", folder, "--json", "--minimize", "--out", str(out)]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data.keys() >= KEYS
    assert (data["verdict"], data["op"]) == ("wrong", "ttir.all_reduce")
    assert "plain_programs.py" in data["source"]
    assert "stablehlo" in data["minimized"]["stablehlo"]
    assert "<svg" in out.read_text()


def test_a_text_that_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {**TEXTS, "ttir": TEXTS["ttir"].replace("ttir.all_reduce", "ttir.unheard_of")}
    assert main(["diagnose", str(write_folder(texts, tmp_path)), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["verdict"] == "not comparable"


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(tmp_path)]) == USAGE
    assert "shlo_frontend" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path / "none")]) == USAGE
