"""`jaxmesh lit`: runs the lit tests of a tt-mlir checkout with `jaxmesh opt` in place of `ttmlir-opt`."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jaxmesh as jm
from jaxmesh.cli import opt
from jaxmesh.cli.options import SYSTEM_ERRORS, add_command
from jaxmesh.cli.run_lines import Failed, LitRun, Outcome, run_lines
from jaxmesh.runtime.progress import progress

LIT = """\
Runs the lit tests of a tt-mlir checkout: their RUN lines, with jaxmesh opt in the place of ttmlir-opt and the Python
package filecheck in the place of FileCheck. Prints a line per test, and how many there are of each kind:
  passed   all that was run succeeds, and matches its CHECK lines
  differs  the first CHECK line that does not match
  refused  the error of jaxmesh opt
  not ours no RUN line of the test is; it names the first tool or option that jaxmesh opt does not have. Or the test
           says UNSUPPORTED: true, and upstream skips it, too.
A line of ttmlir-translate and the like is left out, and so is what reads its output."""

LIT_NOTES = """\
examples:
  jaxmesh lit tt-mlir/test/ttmlir/Dialect/TTNN/ccl
  jaxmesh lit tt-mlir/test/ttmlir --pipeline
                                          those of the plain --ttir-to-ttnn-backend-pipeline alone

exit codes: 0 all passed that are ours, 1 one did not, 2 wrong usage"""

_SKIPPED = re.compile(r"(?m)^[ \t]*//[ \t]*UNSUPPORTED:[ \t]*true\b")
PASSED, DIFFERS, REFUSED, NOT_OURS = "passed", "differs", "refused", "not ours"
_PLAIN = re.compile(
    r"ttmlir-opt (?=[^|]*--ttir-to-ttnn-backend-pipeline)(?:\s*"
    r"(?:--ttir-to-ttnn-backend-pipeline(?:=\"\s*(?:system-desc-path=\S+?)?\s*\")?|%s|-o \S+?|> ?\S+))+\s*(?:\||$)"
)


@dataclass(frozen=True, slots=True)
class LitResult:
    """The result of one lit test."""

    path: Path
    kind: str
    why: str = ""


def add_commands(commands: Any) -> None:
    """Adds `lit` to the parser of the command line."""
    parser = add_command(commands, "lit", "run the lit tests of a tt-mlir checkout", LIT, LIT_NOTES)
    parser.add_argument("paths", nargs="+", type=Path, metavar="DIR", help="folders of .mlir files, or such files")
    parser.add_argument("--failures", action="store_true", help="only the tests that differ or are refused")
    parser.add_argument(
        "--pipeline", action="store_true", help="only tests of --ttir-to-ttnn-backend-pipeline without options"
    )


def lit(arguments: argparse.Namespace) -> int:
    """Runs the tests and prints the table; returns the exit code."""
    counts: Counter[str] = Counter()
    for verdict in _verdicts(_files(arguments.paths), arguments.pipeline):
        counts[verdict.kind] += 1
        if not arguments.failures or verdict.kind in (DIFFERS, REFUSED):
            print(f"{verdict.kind:8} {verdict.path}{f': {verdict.why}' if verdict.why else ''}", flush=True)
    print(", ".join(f"{counts[kind]} {kind}" for kind in (PASSED, DIFFERS, REFUSED, NOT_OURS)), flush=True)
    return int(bool(counts[DIFFERS] or counts[REFUSED]))


def _files(paths: Sequence[Path]) -> list[Path]:
    tests: list[Path] = []
    for path in paths:
        if not path.exists():
            raise jm.MissingFileError(f"{str(path)!r} does not exist; give a folder of .mlir files, or such a file.")
        tests += sorted(path.rglob("*.mlir")) if path.is_dir() else [path]
    return tests


def _verdicts(files: Sequence[Path], plain: bool) -> Iterator[LitResult]:
    with tempfile.TemporaryDirectory() as folder, progress("lit, files", len(files)) as done:
        for path in files:
            done.step(path.name)
            text = path.read_text(errors="replace")
            lines = list(run_lines(text))
            if not plain or _is_plain(lines):
                yield judge(path, lines, Path(folder), unsupported=bool(_SKIPPED.search(text)))


def _is_plain(lines: Sequence[str]) -> bool:
    ours = [line for line in lines if "ttmlir-opt" in line]
    return bool(ours) and all(_PLAIN.match(line) for line in ours)


def judge(path: Path, lines: Sequence[str], folder: Path, *, unsupported: bool = False) -> LitResult:
    """Runs the RUN lines of a test until one fails; runs none of a test that upstream skips."""
    run = LitRun(path, _opt, folder)
    if unsupported:
        return LitResult(path, NOT_OURS, "UNSUPPORTED: true")
    try:
        for line in lines:
            run.line(line)
    except Failed as failed:
        return LitResult(path, failed.kind, " ".join(str(failed).split()))
    if run.ran:
        return LitResult(path, PASSED)
    return LitResult(path, NOT_OURS, run.skipped[0] if run.skipped else "no RUN line")


def _opt(arguments: Sequence[str]) -> Outcome:
    parser = argparse.ArgumentParser(prog="jaxmesh")
    opt.add_commands(parser.add_subparsers())
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            parsed = parser.parse_args(["opt", *arguments])
        except SystemExit:
            return None, "", error.getvalue().splitlines()[-1]
        try:
            opt.opt(parsed)
        except (jm.JaxmeshError, *SYSTEM_ERRORS) as refusal:
            return False, out.getvalue(), str(refusal)
    return True, out.getvalue(), ""
