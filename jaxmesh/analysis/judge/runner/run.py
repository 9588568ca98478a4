"""Runs `main.py` of an exported folder, and writes a report: accepted, or refused and where, and the memory used."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxmesh.analysis.judge.runner.shapes import Shapes, use_shapes
from jaxmesh.analysis.judge.runner.watch import ENTER, LEAVE, TRIPS, Marks, Watch


def main(argv: Sequence[str]) -> None:
    """Runs the program and writes the report; exits with 0 once a report is written."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--shapes", action="store_true", help="inputs have a shape and no values")
    parser.add_argument("--board", action="store_true", help="the devices are real, and so are the results")
    parser.add_argument("--check", action="store_true", help="compare the results with the expected ones")
    options = parser.parse_args(argv)
    write = Report(options.report)
    ttnn = _import_ttnn(write)
    try:
        program = LoadedScript(options.folder, ttnn, options.shapes, options.board)
    except Exception as error:
        write(broken=f"{type(error).__name__}: {error}")
        raise SystemExit(0) from None
    sys.argv = ["main.py", *(["--check"] if options.check else [])]
    utils: Any = sys.modules["utils"]
    if not options.board:
        # A described device computes no results, and stays open for the queries below.
        def report_nothing(*_: object) -> int:
            return 0

        utils.report = report_nothing

    devices = Watch(ttnn, options.report.with_suffix(".line"), lambda: utils.DeviceGetter._device)
    if program.shapes is not None:
        program.shapes.plan_for(devices)
    code = program.run(devices, write)
    write(code=code, **devices.findings())
    if code == 0 and devices.kernels is not None:
        write(kernels=devices.kernels)
    utils.DeviceGetter.close()
    sys.stdout.flush()
    # Skip ttnn's destructors, which may fail after a refusal.
    os._exit(0)


class Report:
    """The report; the file is complete after each call."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._fields: dict[str, Any] = {}

    def __call__(self, **fields: Any) -> None:
        """Adds fields and rewrites the file."""
        self._fields |= fields
        if self._path is not None:
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(self._fields))
            new.replace(self._path)


def _import_ttnn(write: Report) -> object:
    try:
        ttnn = importlib.import_module("ttnn")
        missing = [n for n in ("graph", "get_memory_view", "open_mesh_device", "Tensor") if n not in vars(ttnn)]
        if not missing and "disable_python_io_recording" not in vars(ttnn.graph):
            missing = ["graph.disable_python_io_recording"]
        if missing:
            raise ImportError(f"it does not have ttnn.{missing[0]}")
    except BaseException as error:
        write(unusable=f"{type(error).__name__}: {error}")
        raise SystemExit(0) from None
    return ttnn


class LoadedScript:
    """A loaded `main.py` whose lines a `Watch` observes; `shapes` replaces its `ttnn` if inputs are created from
    types."""

    def __init__(self, folder: Path, ttnn: Any, shapes: bool, board: bool = False) -> None:
        self._script = str(folder.resolve() / "main.py")
        tree = ast.parse(Path(self._script).read_text(encoding="utf-8"))
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        sys.path.insert(0, str(folder.resolve()))
        sys.dont_write_bytecode = True
        self._names: dict[str, Any] = {"__name__": "exported", "__file__": self._script}
        exec(compile(Marks(functions[0], not board).visit(tree), self._script, "exec"), self._names)
        self.shapes = None if board else Shapes(ttnn)
        if self.shapes is not None:
            self._names["ttnn"] = self.shapes
        if self.shapes is not None and shapes:
            use_shapes(sys.modules["utils"], self.shapes)

    def run(self, watch: Watch, write: Report) -> int | None:
        """Runs the program; returns its exit code, or None if it was refused."""
        self._names |= {ENTER: watch.enter_line, LEAVE: watch.leave_function, TRIPS: watch.trips}
        try:
            with contextlib.closing(watch):
                return self._names["main"]()
        except BaseException as error:
            if isinstance(error, SystemExit) and error.code not in (0, None):
                # The program's files cannot be read; standard error has the reason.
                return error.code if isinstance(error.code, int) else 2
            lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == self._script]
            write(refusal={"line": lines[-1] if lines else watch.line, **describe(error)})
            return None


# --- refusals ---------------------------------------------------------------------------------------------------------


_PLACE = re.compile(r"TT_\w+ @ (?:/project/)?(\S+):(\d+): (.*)")
_KEYWORD = re.compile(r"[(,]\s*(\w+)\s*=")
_SHARDS = re.compile(r"(?:device_id: \d+, MeshCoordinate ttnn\.Tensor\s?)+")
"""A tensor on a mesh, which ttnn shows as its shards."""
_PARAMETER = re.compile(r"[(,]\s*\*?\s*(\w+):")


def describe(error: BaseException) -> dict[str, str]:
    """Returns an error's kind, its reason in one line, its location in the library, and its text without the
    backtrace."""
    text = str(error).partition("\nbacktrace:")[0].strip()
    place = _PLACE.match(text)
    if place is None:
        reason = _binding(text) if isinstance(error, TypeError) else f"{type(error).__name__}: {' '.join(text.split())}"
        kind = "arguments" if isinstance(error, TypeError) else "other"
        return {"kind": kind, "reason": reason, "rule": "", "text": text}
    information = text.partition("\ninfo:\n")[2]
    reason = " ".join((information or place[3]).split())
    return {"kind": _kind(reason), "reason": reason, "rule": f"{place[1]}:{place[2]}: {place[3]}", "text": text}


def _kind(reason: str) -> str:
    """Returns the memory that is too small, `DRAM` or `L1`; else `rule`."""
    if reason.startswith("Out of Memory"):
        return "DRAM" if " DRAM buffer" in reason else "L1"
    return "L1" if "L1 buffers" in reason or "beyond max L1 size" in reason else "rule"


def _binding(text: str) -> str:
    """Returns why arguments do not fit a bound function: the unknown keyword, else the call."""
    head, _, rest = text.partition("Called with:")
    called, _, signatures = rest.partition("Available signatures:")
    called = " ".join(called.split())
    known = set(_PARAMETER.findall(_outermost(signatures)))
    unknown = [k for k in _KEYWORD.findall(_outermost(called)) if k not in known]
    if known and unknown:
        function = head.strip().partition("(")[0]
        return f"{function} has no argument {unknown[0]!r}; it has {', '.join(sorted(known))}"
    shown = _SHARDS.sub("ttnn.Tensor", _outermost(called))
    return " ".join(head.split()) + (f" Called with {shown}" if called else "")


def _outermost(text: str) -> str:
    """Returns the text of calls without nested brackets, that is, without the arguments of arguments.

    >>> _outermost("f(a, b=C(d=1, e=[2]), g=3)")
    'f(a, b=C, g=3)'
    """
    kept, depth = "", 0
    for character in text:
        depth += character in "(["
        kept += character if depth <= 1 else ""
        depth -= character in ")]"
    return kept
