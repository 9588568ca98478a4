"""What every command keeps to, also a new one: exit codes, one line for an error, no traceback, whatever its streams.

The commands are those of the parser. Each runs in a process of its own that has only ASCII for its locale, in a folder
with modules that would be imported from where one stands.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.cli import main
from jaxmesh.runtime.interrupts import INTERRUPTED
from tests import ROOT
from tests.generators.command_contract import CONDITIONS, commands, filled
from tests.generators.faults.wrong_calls import TEXT
from tests.generators.oracles import EVERY

NAMES = list(commands())
WHOLE_MODELS = ("demo", "selftest")
"""They read no file and take long; they are interrupted, or used wrongly."""
CODES = {0, 1, main.USAGE, 3, 4, INTERRUPTED, main.NO_READER}
X = np.arange(64, dtype=np.float32).reshape(8, 8)
SHADOWS = ("json", "platform", "venv", "subprocess", "numpy", "jax", "jaxlib", "ttnn", "resource", "signal", "zipfile")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("contract")
    (made / "good.mlir").write_text(TEXT)
    (made / "odd.mlir").write_text(TEXT.replace("@main", '@"mäin\x1b[31m"'))
    (made / "binary").write_bytes(bytes(range(128, 256)) * 9)
    (made / "empty").touch()
    (made / "folder").mkdir()
    (made / "loop").symlink_to(made / "loop")
    (made / "zero").symlink_to("/dev/zero")
    os.mkfifo(made / "pipe")
    (made / "script.py").write_text("print('from the script')\n")
    stage = jm.from_mlir(TEXT)
    stage.record(X).save(made / "a.npz")
    for name in SHADOWS:
        (made / f"{name}.py").write_text(f"open({str(made / 'pwned')!r}, 'w')\n")
    return made


def arguments(name: str, folder: Path, file: str = "good.mlir") -> list[str]:
    """A command line that does its work where the file is good."""
    path = str(folder / file)
    if file == "good.mlir":
        if name == "compare":
            return [name, str(folder / "a.npz"), str(folder / "a.npz")]
        if name == "processes":
            return [name, "2", str(folder / "script.py")]
    return [name, *filled(commands()[name], path)]


def run(folder: Path, cases: list[tuple[list[str], str]]) -> list[dict[str, Any]]:
    kept = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS" and not k.startswith(("LC_", "JAXMESH_"))}
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.generators.command_contract"],
        input=json.dumps([{"arguments": a, "condition": c} for a, c in cases]),
        env={**kept, **ascii_only, **dict.fromkeys(("HOME", "PYENV_ROOT", "XDG_CACHE_HOME"), str(folder)), "PATH": ""},
        cwd=folder, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (folder / "pwned").exists()
    return json.loads(done.stdout)


def check(arguments: list[str], condition: str, result: dict[str, Any], said: bool = True) -> None:
    """The contract; `said` if an error is the command's own."""
    code, err = result["code"], result["err"]
    about = arguments, condition, result
    assert code in CODES, about
    assert "Traceback" not in err, about
    assert "\x1b" not in err + result["out"], about
    if said and code == main.USAGE and condition != "no errors":
        (line,) = [x for x in err.splitlines() if "error: " in x]
        assert line.startswith("jaxmesh: error: "), about
        assert len(line) < 3000, about
    if condition == "no errors":
        assert "error: " not in result["out"], about


FILES = ("absent", "folder", "binary", "empty", "loop", "good.mlir/x", "a\x1b[31mb", "\udcff", "x" * 300, "a\nb")
ENDLESS = ("pipe", "zero")
"""Reading one would never end, so that each command refuses both."""


@pytest.mark.slow
def test_wrong_files_are_named(folder: Path) -> None:
    wrong: list[list[str]] = []
    for number, name in enumerate(NAMES):
        files = (*ENDLESS, *(FILES if EVERY else FILES[number % 5 :: 5]))
        wrong += [arguments(name, folder, file) for file in files if filled(commands()[name], "")]
        wrong += [[name, "--no-such-option\x1b[31m"], [name, *["\x1b[31m"] * 9]]
    for case, result in zip(wrong, run(folder, [(w, "plain") for w in wrong]), strict=True):
        # The script of `processes` says for itself what is wrong.
        endless = case[-1].endswith(ENDLESS)
        check(case, "plain", result, said=case[0] != "processes" or endless)
        if endless or case[0] not in ("processes", *WHOLE_MODELS):
            assert result["code"] == main.USAGE, (case, result)


@pytest.mark.slow(but_one_in=14)
@pytest.mark.parametrize("name", NAMES)
def test_streams_and_interrupts(name: str, folder: Path) -> None:
    line = arguments(name, folder)
    conditions = ("interrupt",) if name in WHOLE_MODELS else CONDITIONS
    results = dict(zip(conditions, run(folder, [(line, c) for c in conditions]), strict=True))
    for condition, result in results.items():
        check(line, condition, result)
    if name in WHOLE_MODELS:
        assert results["interrupt"]["code"] == INTERRUPTED
        return
    assert results["no output"]["code"] == main.USAGE
    assert "standard output is closed" in results["no output"]["err"]
    plain = results["plain"]
    # Commands that need what is not there end before they print.
    if plain["code"] != main.USAGE:
        assert results["no input"]["code"] == plain["code"]
        assert results["no errors"]["out"] == plain["out"] or name == "processes"
        if name != "processes":
            assert results["no reader"]["code"] == main.NO_READER
            assert results["full"]["code"] == main.USAGE
            assert "No space left on device" in results["full"]["err"]


def test_a_closed_input_is_named_and_other_characters_are_escaped(folder: Path) -> None:
    cases = [(["opt", "-"], "no input"), (["explain", str(folder / "odd.mlir")], "plain"), (["--help"], "no reader")]
    closed, escaped, unread = run(folder, cases)
    for (case, condition), result in zip(cases, (closed, escaped, unread), strict=True):
        check(case, condition, result)
    assert "standard input is closed; name a file" in closed["err"]
    assert escaped["code"] == 0
    assert re.search(r"m\\xe4in\\x1b\[31m", escaped["out"])
    assert unread["code"] == main.NO_READER


def test_a_pipe_that_a_shell_has_opened_is_read(folder: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m jaxmesh opt <(cat {shlex.quote(str(folder / 'good.mlir'))})"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "func.func" in done.stdout) == (0, True), done.stderr
