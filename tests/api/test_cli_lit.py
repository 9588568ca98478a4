"""`jaxmesh lit`, and the options of `ttmlir-opt` that `jaxmesh opt` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxmesh.cli import main

ADD = """\
func.func @add(%arg0: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %0 = "ttir.add"(%arg0, %arg0) : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<64x32xf32>
  return %0 : tensor<64x32xf32>
}
"""
LOWER = "// RUN: ttmlir-opt --ttir-to-ttnn-backend-pipeline -o %t %s\n"
CASES = {
    "passed": [
        LOWER + '// RUN: FileCheck %s --input-file=%t\n// CHECK: "ttnn.add"\n',
        '// RUN: ttmlir-opt --ttir-to-ttnn-backend-pipeline="system-desc-path=%d mesh-shape=1,2" %s | FileCheck %s\n'
        "// CHECK: 1x2\n// CHECK: ttnn.add\n",
        "// RUN: ttmlir-opt -split-input-file %s > %t.mlir\n// RUN: cat %t.mlir | FileCheck %s --check-prefix=TTIR\n"
        '// TTIR: "ttir.add"\n// CHECK: "ttnn.add"\n',
        LOWER.replace("-o %t %s", "\\\n// RUN:   -o %t %s")
        + '// RUN: FileCheck --input-file %t %s\n// CHECK: "ttnn.add"\n',
        LOWER + "// RUN: ttmlir-translate --ttnn-to-flatbuffer %t > %t.ttnn && FileCheck %s < %t.ttnn\n// CHECK: no\n",
        "// RUN: ttmlir-opt --ttir-to-ttnn-common-pipeline -o %t %s\n"
        "// RUN: ttmlir-opt --ttnn-common-to-emitc-pipeline=tuplify-input-if-empty=true -o %t2 %t\n"
        "// RUN: ttmlir-translate --mlir-to-cpp -o %t.cpp %t2\n// RUN: FileCheck %s --input-file=%t.cpp\n"
        "// CHECK: ttnn::add(v2, v2,\n// CHECK: ::add(v1);\n",
        "// RUN: ttmlir-opt --ttir-to-emitpy-pipeline=target-module=true %s | ttmlir-translate --mlir-to-python | "
        "FileCheck %s\n// CHECK: def forward(input, device):\n// CHECK: ttnn.add(\n// CHECK-NOT: def\n",
        "// RUN: not ttmlir-opt --stablehlo-to-ttir-pipeline %s 2>&1 | FileCheck %s\n"
        "// CHECK: does not contain an op of StableHLO\n",
        '// RUN: ttmlir-opt --ttir-to-emitpy-pipeline="mesh-shape=1,2 mesh-topology=linear,ring" %s | ttmlir-translate '
        "--mlir-to-python | FileCheck %s\n// CHECK: fabric_config=ttnn.FabricConfig.FABRIC_1D_RING)\n",
    ],
    "differs": [
        LOWER + '// RUN: FileCheck %s --input-file=%t\n// CHECK: "ttnn.subtract"\n',
        "// RUN: not ttmlir-opt %s 2>&1 | FileCheck %s\n// CHECK: {{.*}}\n",
    ],
    "refused": [LOWER + "%0 = nothing\n"],
    "not ours": [
        "// RUN: ttmlir-opt --d2m-allocate %s | FileCheck %s\n// CHECK: no\n",
        '// RUN: ttmlir-opt --ttir-to-ttnn-backend-pipeline="optimization-level=2" %s | FileCheck %s\n// CHECK: no\n',
        "// RUN: ttmlir-opt %s 2>&1 | FileCheck %s\n// CHECK: no\n",
        "// no line\n",
    ],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in CASES.items() for text in texts])
def test_each_verdict(kind: str, text: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.mlir").write_text(text + ADD)
    code = main.main(["lit", str(tmp_path)])
    line, counts = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{kind:8} {tmp_path / 'a.mlir'}"), line
    assert f"1 {kind}" in counts
    assert code == int(kind in ("differs", "refused"))


def test_the_first_check_that_fails_is_named(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.mlir").write_text(CASES["differs"][0] + ADD)
    main.main(["lit", str(tmp_path), "--failures"])
    line, _ = capsys.readouterr().out.splitlines()
    assert "a.mlir: 3: " in line
    assert "ttnn.subtract" in line


def test_the_tests_of_one_pipeline_can_be_chosen(tmp_path: Path, capsys: Any) -> None:
    for number, text in enumerate(t for texts in CASES.values() for t in texts):
        (tmp_path / f"{number:02}.mlir").write_text(text + ADD)
    main.main(["lit", str(tmp_path), "--pipeline"])
    assert [line[:8].strip() for line in capsys.readouterr().out.splitlines()[:-1]] == [
        *["passed"] * 3,
        "differs",
        "refused",
    ]


def test_there_must_be_files(tmp_path: Path, capsys: Any) -> None:
    assert main.main(["lit", str(tmp_path / "none")]) == main.USAGE
    assert "does not exist" in capsys.readouterr().err


# --- the options of ttmlir-opt ---------------------------------------------------------------------------------------


def test_a_text_is_written_to_a_file(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.mlir").write_text(ADD)
    printed: list[str] = []
    for options in (["--ttir-to-ttnn-backend-pipeline"], ["--ttir-to-ttnn-backend-pipeline", "-o", "-"]):
        assert main.main(["opt", *options, str(tmp_path / "a.mlir")]) == 0
        printed.append(capsys.readouterr().out)
    out = tmp_path / "out.mlir"
    assert main.main(["opt", "--ttir-to-ttnn-backend-pipeline", "-o", str(out), str(tmp_path / "a.mlir")]) == 0
    assert capsys.readouterr().out == ""
    assert '"ttnn.add"' in printed[0]
    assert {*printed} == {out.read_text()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ttcore-register-device=mesh-shape=1,2", "--mesh", "2x1"], "names the mesh 1x2, but"),
        (["--ttcore-register-device=mesh-shape=1,2", "--ttir-to-ttnn-backend-pipeline=mesh-shape=2,2"], "one mesh"),
        (["-o", "/no/such/folder/file.mlir"], "--out takes a file in a folder that exists"),
    ],
)
def test_wrong_options(options: list[str], words: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.mlir").write_text(ADD)
    assert main.main(["opt", str(tmp_path / "a.mlir"), *options]) == main.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("given", ["optimization-level=2", "enable-trace", "=", "no-such-option=1"])
def test_a_pipeline_takes_what_is_done_here(given: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.mlir").write_text(ADD)
    with pytest.raises(SystemExit):
        main.main(["opt", f"--ttir-to-ttnn-backend-pipeline={given}", str(tmp_path / "a.mlir")])
    assert "--ttir-to-ttnn-backend-pipeline" in capsys.readouterr().err
