"""The README's Python runs, and the texts it shows are what the programs print."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jaxmesh as jm
from jaxmesh.cli.main import main
from tests import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def test_the_examples_run_and_print_the_texts() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec("\n".join(blocks("python")), {"__name__": "readme"})
    printed = re.sub(r"\s+", " ", out.getvalue())
    texts = blocks("text")
    for text in (*texts[:2], texts[3], texts[6], *texts[8:11]):
        at = 0
        for part in text.split("..."):
            # In the order in which they stand.
            at = printed.index(re.sub(r"\s+", " ", part).strip(), at)


def test_the_error_is_the_one_shown() -> None:
    source = blocks("python")[0].replace('lax.psum(jnp.tanh(x @ w1) @ w2, "x")', "jnp.tanh(x @ w1) @ w2")
    with pytest.raises(jm.ReplicationError) as caught:
        exec(source, {"__name__": "readme"})
    shown = re.sub(r"\s+", " ", blocks("text")[2]).strip().removeprefix("jaxmesh.errors.ReplicationError: ")
    assert str(caught.value) == shown


def test_quick_start_has_its_two_blocks() -> None:
    section = re.search(r"^## Quick start\s*$(.*?)(?=^## )", README, re.M | re.S)
    assert section is not None
    assert len(re.findall(r"^```bash\n", section[1], re.M)) == 2


def run_file(text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    path = tmp_path / "matmul.mlir"
    path.write_text(text)
    code = main(["run", str(path), "--check"])
    captured = capfd.readouterr()
    return code, re.sub(r"\s+", " ", captured.out + captured.err).strip()


def test_the_file_runs_and_its_fault_is_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (text,) = blocks("mlir")
    good, wrong = (re.sub(r"\s+", " ", b).strip() for b in blocks("text")[4:6])
    code, printed = run_file(text, tmp_path, capfd)
    assert code == 0
    # Sums over devices may be taken in any order, so the digits are not the same each time.
    digits = r"(?<==)[-+.0-9a-f]+|(?<=difference )[-+.0-9e]+"
    assert re.sub(digits, "#", printed) == re.sub(digits, "#", good.removeprefix("$ jaxmesh run matmul.mlir --check "))
    code, printed = run_file(text.replace("cluster_axis = 1", "cluster_axis = 0"), tmp_path, capfd)
    assert code != 0
    assert printed == wrong


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_the_commands_for_cpp_work(tmp_path: Path) -> None:
    (tmp_path / "matmul.mlir").write_text(blocks("mlir")[0])
    lines = [line.removeprefix("$ ") for line in blocks("text")[7].splitlines()]
    script = "\n".join(lines).replace("jaxmesh ", f"{sys.executable} -m jaxmesh ")
    # Where the package is not installed, the child finds it as this process does.
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=around, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(": ok")
