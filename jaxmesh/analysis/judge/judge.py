"""Judges an exported folder: starts the Python of ttnn, and builds a verdict from its report."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxmesh.analysis.account.memory import PeakMemory
from jaxmesh.analysis.account.moves import ENDLESS
from jaxmesh.analysis.cluster_description import describe_cluster
from jaxmesh.analysis.environments import cache_folder, clean_environment, private_folder
from jaxmesh.analysis.judge.environment import TTNN, Environment, find_environment
from jaxmesh.analysis.judge.runner.run import describe
from jaxmesh.analysis.judge.verdict import (
    ACCEPTED,
    DIED,
    REFUSED,
    TOO_LARGE,
    DeviceMemory,
    Leak,
    Refusal,
    ScriptLine,
    Verdict,
)
from jaxmesh.analysis.machines import Machine, machine_for, machine_named
from jaxmesh.dialects.program import Program
from jaxmesh.dialects.ttnn.forms import STAND_INS
from jaxmesh.emit.export_folder import LOCATIONS, check_folder, python_files
from jaxmesh.emit.python.printer import ENDLESS_LOOP
from jaxmesh.errors import ArgumentValueError, MissingFileError, TtnnError
from jaxmesh.runtime.progress import progress
from jaxmesh.runtime.scratch import run_in, temporary_folder

RUNNER = Path(__file__).parent / "runner"
BOARDS = Path("/dev/tenstorrent")
"""The folder in which the driver of Tenstorrent's boards lists them."""
SECONDS = 600.0
"""The default time limit of a program, in seconds."""
UNREADABLE = 2
"""The exit code of an exported program with unreadable files."""
_TYPE = re.compile(r"ttnn\.DataType\.([A-Z0-9_]+)")
_MADE = re.compile(r"utils\.arguments\(make_inputs=")
_MESH = re.compile(r"utils\.DeviceGetter\.get_device\(\(([0-9, ]+)\)")


@progress("judge")
def judge_folder(
    folder: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    shapes: bool = False,
    check: bool = False,
    timeout: float = SECONDS,
) -> Verdict:
    """Runs an exported folder on the real ttnn: on the board if one is present, else on a described cluster.

    Args:
      folder: a folder that an export wrote.
      python: the Python of ttnn; by default `JAXMESH_TTNN_PYTHON`, or the environment that `ttnn-env` created.
      cluster: the machine to describe, one of `jaxmesh.analysis.machines`, in any case; by default the board, or the
        smallest machine that has the mesh.
      shapes: True if inputs are created from their types, without the files in `tensors/`; implied for a folder that
        was exported with types.
      check: True if results are compared with the expected results; only a board computes them.
      timeout: the time limit in seconds.

    Raises:
      MissingFileError: the folder has no program in Python.
      TtnnError: ttnn was not found, or does not start.
      MeshError: no machine has the mesh.
      ArgumentValueError: no machine has this name, or `check` without a board.
    """
    folder = Path(folder)
    script = folder / "main.py"
    if not script.is_file():
        check_folder(folder, tensors=False)
        raise MissingFileError(
            f"{str(folder)!r} does not contain main.py; give a folder that an export wrote for Python."
        )
    text = script.read_text(encoding="utf-8", errors="replace")
    # A program without a device runs on any cluster.
    mesh = _MESH.search(text)
    target = _target([int(n) for n in mesh[1].split(",") if n.strip()] if mesh else (1, 1), cluster)
    if check and target is not None:
        raise ArgumentValueError(
            f"a comparison needs computed results, but {target.name} is only described: its devices run nothing; leave "
            "the check out, or run the folder on the emulated ttnn."
        )
    environment = find_environment(python)
    if target is None and environment.stand_in:
        raise TtnnError(
            f"there is a board, but {str(environment.python)!r} has a stand-in for the compiler of kernels; name a "
            "Python with the whole ttnn, or a described cluster."
        )
    shapes = shapes or _MADE.search(text) is not None
    check_folder(folder, tensors=not shapes)
    options = [name for name, on in (("--shapes", shapes), ("--board", target is None), ("--check", check)) if on]
    with temporary_folder("jaxmesh-judge-") as scratch:
        with progress("lines of main.py", text.count("\n"), lambda: _progress(scratch)):
            done = _start(environment, target, folder, scratch, options, timeout)
        endless = (ENDLESS,) if target is not None and ENDLESS_LOOP in text else ()
        verdict = _verdict(environment, target, folder, scratch, done)
        return dataclasses.replace(verdict, remarks=verdict.remarks + _replaced_types(text) + endless)


def judge_program(program: Program, held: PeakMemory | None = None, **options: Any) -> Verdict:
    """Judges a flat program of TTNN ops, with inputs created from their types; see `judge_folder` for options and
    errors. Runs nothing if the memory `held` exceeds the DRAM of a device."""
    machine = _target(tuple(program.mesh.values()), options.get("cluster"))
    missing = 0 if held is None or machine is None else max(held.peak - machine.dram_bytes, 0)
    if machine is not None and missing:
        return Verdict(TOO_LARGE, "", machine.name, tuple(program.mesh.values()), held=held, missing=missing)
    with temporary_folder("jaxmesh-judge-") as folder:
        for name, text in python_files(program, [False] * len(program.results)).items():
            (folder / name).write_text(text, encoding="utf-8")
        verdict = judge_folder(folder, shapes=True, **options)
        uncounted = () if held is None or not held.uncounted else (held.uncounted,)
        return dataclasses.replace(verdict, held=held, remarks=verdict.remarks + uncounted)


def _replaced_types(text: str) -> tuple[str, ...]:
    """Returns a remark on the element types of a `main.py` that others replace, in an order of their names.

    >>> _replaced_types("ttnn.DataType.FLOAT64, ttnn.DataType.INT64, ttnn.DataType.UINT8")
    ('ttnn lacks element types of the program: FLOAT32 replaces float64, INT32 replaces int64',)
    """
    used = {name.lower() for name in _TYPE.findall(text)}
    replaced = [f"{other} replaces {name}" for name, other in sorted(STAND_INS.items()) if name in used]
    return (f"ttnn lacks element types of the program: {', '.join(replaced)}",) if replaced else ()


def _target(mesh: Sequence[int], cluster: str | None) -> Machine | None:
    """Returns the cluster to describe, or None for the board."""
    if cluster is not None:
        return machine_named(cluster)
    return None if BOARDS.is_dir() and any(BOARDS.iterdir()) else machine_for(None, mesh)


def _start(
    environment: Environment,
    target: Machine | None,
    folder: Path,
    scratch: Path,
    options: Sequence[str],
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    variables = clean_environment()
    if target is not None:
        description = scratch / f"{target.name}.yaml"
        description.write_text(describe_cluster(target))
        kernels = private_folder(cache_folder() / "kernels")
        variables |= {
            "TT_METAL_MOCK_CLUSTER_DESC_PATH": str(description),
            # With fast dispatch, a described cluster has fewer worker cores than a real one.
            "TT_METAL_SLOW_DISPATCH_MODE": "1",
            "TT_METAL_CACHE": str(kernels),
        }
    # Temporary files of ttnn's libraries go with the folder.
    # NumPy would start a thread for each core.
    defaults = {"TT_LOGGER_LEVEL": "off", "LOGURU_LEVEL": "ERROR", "OPENBLAS_NUM_THREADS": "1"}
    variables = defaults | variables | {"TMPDIR": str(scratch)}
    command = [environment.python, RUNNER, folder.resolve(), scratch / "report.json", *options]
    try:
        # ttnn writes a folder `generated` into the working directory.
        return run_in(scratch, command, timeout, cwd=scratch, env=variables)
    except subprocess.TimeoutExpired:
        line = _progress(scratch)
        raise TtnnError(
            f"the program ran for {timeout:g} s on ttnn {environment.version} and was at line {line} of main.py; in "
            "Python, timeout= allows more."
        ) from None


def _progress(scratch: Path) -> int:
    """Returns the line of `main.py` that runs."""
    try:
        return int((scratch / "report.line").read_text() or 0)
    except (OSError, ValueError):
        return 0


class _Script:
    """The lines of a `main.py`, with their source locations in the user's code."""

    def __init__(self, folder: Path) -> None:
        self._lines = (folder / "main.py").read_text(encoding="utf-8", errors="replace").splitlines()
        self._sources: Mapping[str, str] = {}
        self.remarks: tuple[str, ...] = ()
        locations = folder / LOCATIONS
        try:
            sources: Any = json.loads(locations.read_text(encoding="utf-8"))
            self._sources = dict(sources.items())
        except FileNotFoundError:
            self.remarks = (f"the folder has no {LOCATIONS}: the user's lines are not known; export writes one",)
        except (OSError, ValueError, AttributeError) as error:
            self.remarks = (f"{LOCATIONS} cannot be read ({error}): the user's lines are not known; export it again",)

    def __call__(self, line: int) -> ScriptLine:
        text = self._lines[line - 1].strip() if 0 < line <= len(self._lines) else ""
        return ScriptLine(line, text, str(self._sources.get(str(line), "")))

    def of_variable(self, name: str) -> ScriptLine:
        """Returns the script line that sets a variable."""
        line_numbers = (i for i, text in enumerate(self._lines, 1) if text.strip().startswith(f"{name} = "))
        return self(next(line_numbers, 0))


def _verdict(
    environment: Environment,
    target: Machine | None,
    folder: Path,
    scratch: Path,
    done: subprocess.CompletedProcess[str],
) -> Verdict:
    places = _Script(folder)
    try:
        report: dict[str, Any] = json.loads((scratch / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        report = {}
    if "unusable" in report:
        raise TtnnError(
            f"ttnn {environment.version} of {str(environment.python)!r} cannot judge: {report['unusable']}; jaxmesh is "
            f"tested with ttnn {TTNN.tested}: {TTNN.get}."
        )
    if "broken" in report:
        raise MissingFileError(
            f"{str(folder)!r} does not contain a program that Python can load: {report['broken']}; export it again."
        )
    other = f"ttnn {environment.version} judged; jaxmesh is tested with {TTNN.tested}, and other versions may say "
    about: dict[str, Any] = {
        "version": environment.version,
        "target": "board" if target is None else target.name,
        "output": done.stdout,
        "remarks": (() if environment.version == TTNN.tested else (f"{other}otherwise",)) + places.remarks,
    }
    if "code" not in report:
        return _dead(environment, places(_progress(scratch)), done, about)
    if report["code"] == UNREADABLE:
        raise MissingFileError(" ".join(done.stderr.split()) or f"{str(folder)!r} has files that cannot be read.")
    findings: dict[str, Any] = {
        "mesh": tuple(report.get("mesh", ())),
        "memories": tuple(_memory(name, m, report, places) for name, m in report.get("memories", {}).items()),
        "operations": {int(line): kinds for line, kinds in report["operations"].items()},
        "places": {int(line): places(int(line)) for line in report["operations"]},
    }
    if report["code"] is None:
        refusal = report["refusal"]
        why = Refusal(places(refusal.pop("line")), **refusal)
        return Verdict(REFUSED, refusal=why, **findings, **about)
    leaks = tuple(Leak(places.of_variable(x["name"]), x["name"], tuple(x["shape"]), x["bytes"]) for x in report["left"])
    return Verdict(ACCEPTED, leaks=leaks, exit_code=report["code"], **findings, **about)


def _memory(name: str, measured: Mapping[str, int], report: Mapping[str, Any], places: _Script) -> DeviceMemory:
    kernels = {int(line): size for line, size in report.get("kernels", {}).items()} if name == "L1" else {}
    line = max(kernels, key=lambda n: kernels[n], default=0)
    banks, size, peak, end = (measured[key] for key in ("banks", "bank_bytes", "peak", "end"))
    return DeviceMemory(name, banks, size, peak, places(measured["peak_line"]), end, kernels.get(line), places(line))


def _dead(
    environment: Environment, place: ScriptLine, done: subprocess.CompletedProcess[str], about: Mapping[str, Any]
) -> Verdict:
    """Returns the verdict on a program that ended the process.

    Raises:
      TtnnError: the process ended before the program began.
    """
    how = f"signal {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"exit code {done.returncode}"
    words = done.stderr.strip()
    if not place.line:
        last = words.splitlines()[-1] if words else "it printed nothing"
        raise TtnnError(
            f"ttnn {environment.version} of {str(environment.python)!r} ended with {how} before the program began: "
            f"{last.strip()}; {TTNN.get}."
        )
    # C++ reports an uncaught exception after "what():".
    why = describe(RuntimeError(words.partition("what():")[2].strip())) if "what():" in words else {"reason": ""}
    reason = f"the process ended with {how}" + (f": {why['reason']}" if why["reason"] else "")
    return Verdict(DIED, refusal=Refusal(place, "died", reason, why.get("rule", ""), words), **about)
