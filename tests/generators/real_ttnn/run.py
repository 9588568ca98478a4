"""Runs printed programs on the real library, which has a Python of its own, on a mock cluster."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jaxmesh as jm
from jaxmesh.dialects.program import Op, Program
from jaxmesh.dialects.ttnn.forms import stored_as
from jaxmesh.emit.languages import StoredConstants
from jaxmesh.emit.python import printer
from tests.generators.real_ttnn.process import VARIABLE, settings
from tests.generators.real_ttnn.run_worker import OTHER_DEVICE

WORKER = Path(__file__).with_name("run_worker.py")


class _Typed(printer._Module):
    """Notes the declared form of every variable."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, StoredConstants(program))
        self.types: dict[str, list[Any]] = {}

    def op(self, body: list[str], names: dict[int, str], uses: dict[int, int], op: Op) -> None:
        super().op(body, names, uses, op)
        for value in op.results:
            kind = self.program.types[value]
            if kind.kind == "tensor":
                layout = "TILE" if kind.tile else "ROW_MAJOR"
                self.types[names[value]] = [stored_as(kind.dtype), layout, list(kind.shape)]


def program_of(lowered: jm.Lowered) -> dict[str, Any]:
    """Returns the printed Python of a program, and the declared forms of its variables."""
    flat = lowered._program(True, None, True)
    module = _Typed(flat)
    module.forward()
    return {"text": printer.python_text(flat), "types": module.types}


def run(programs: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Returns for each program why the real library refuses it; empty if it runs to its end."""
    source, target = folder / "programs.jsonl", folder / "answers.jsonl"
    source.write_text("".join(json.dumps(p) + "\n" for p in programs))
    target.write_text("")
    variables = settings(folder)
    while (done := len(target.read_text().splitlines())) < len(programs):
        command = [os.environ[VARIABLE], str(WORKER), str(source), str(target), str(done)]
        ended = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)
        moved = len(target.read_text().splitlines()) > done
        if ended.returncode not in (0, OTHER_DEVICE) or not moved:
            with target.open("a") as out:
                out.write(json.dumps(f"the process ended: {ended.stderr[-400:]}") + "\n")
    return [json.loads(line) for line in target.read_text().splitlines()]
