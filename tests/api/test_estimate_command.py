"""`jaxmesh estimate`: texts, data, drawings and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxmesh.cli.main import USAGE, main

TEXT = """\
module {
  func.func @f(%a: tensor<64x4096xbf16>, %b: tensor<4096x4096xbf16>) -> tensor<64x4096xbf16> {
    %0 = "ttir.matmul"(%a, %b) <{transpose_a = false, transpose_b = false}>
        : (tensor<64x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<64x4096xbf16>
    return %0 : tensor<64x4096xbf16>
  }
  func.func @g(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
    %0 = "ttir.exp"(%a) : (tensor<64x64xf32>) -> tensor<64x64xf32>
    return %0 : tensor<64x64xf32>
  }
}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "model.mlir"
    path.write_text(TEXT)
    return str(path)


def test_every_function_is_estimated(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", file, "--mesh", "1x1", "--cluster", "p150"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("f on the mesh 1x1 of p150: at least 66.6 µs")
    assert second.startswith("g on the mesh 1x1 of p150: at least ")
    assert "not a measurement" in first


def test_options_change_the_estimate(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = list[float]()
    for options in ([], ["--stored", "bfloat8_b"], ["--stored", "bfloat4_b", "--fidelity", "HiFi4"]):
        assert main(["estimate", file, "--func", "f", "--mesh", "1x1", "--json", *options]) == 0
        data = json.loads(capsys.readouterr().out)["f"]
        assert data["cluster"] == "n150"
        seconds.append(data["seconds"])
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) == 3


def test_bars_go_into_a_file(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "time.html"
    assert main(["estimate", file, "--mesh", "1x1", "--out", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert page.count('class="row head"') == 2
    assert page.count('<i class="p') >= 2
    assert "f on the mesh" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mesh", "2x4", "--cluster", "n300"], "n300 does not have the mesh 2x4"),
        (["--stored", "int4"], "got 'int4'"),
        (["--out", "/nowhere/time.html"], "--out takes a file in a folder that exists"),
    ],
)
def test_wrong_options_are_one_line(
    file: str, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", file, *([] if "--mesh" in options else ["--mesh", "1x1"]), *options]) == USAGE
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert words in printed.err
