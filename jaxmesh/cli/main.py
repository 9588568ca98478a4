"""The command line: `jaxmesh demo`, `selftest`, `opt`, `run`, `translate`, `explain`, `record`, `compare`..."""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import jaxmesh as jm
from jaxmesh.cli import explain, mlir, record, translate
from jaxmesh.cli.demo import report
from jaxmesh.cli.demo.model import dims_for
from jaxmesh.cli.demo.run import run
from jaxmesh.cli.mlir import emulated_mesh
from jaxmesh.cli.options import parse_mesh, seed_of

PASSED, FAILED, USAGE, INTERRUPTED, NO_READER = 0, 1, 2, 130, 141
"""Exit codes; the last two are the shell's for a program ended by SIGINT and by SIGPIPE."""

DEMO = """\
Runs a Llama-style transformer block (RMSNorm, rotary attention with grouped heads, SwiGLU MLP) over a mesh of emulated
devices, tensor parallel over the last mesh axis and data parallel over the others. Prints its TTIR-level and TTNN-level
programs, compares output and gradients with the unsharded model, and lists what each device holds."""

DEMO_NOTES = """\
examples:
  jaxmesh demo                       2 x 4 devices: batch over 2, heads over 4
  jaxmesh demo --mesh 8              tensor parallel alone
  jaxmesh demo --mesh 2x2x2          batch over the first two axes
  jaxmesh demo --mesh 1x2 --out DIR  also writes ttir.mlir, ttnn.mlir, hlo.txt and report.txt

exit codes: 0 all comparisons pass, 1 one fails, 2 wrong usage"""


SELFTEST = """\
Shows, with this machine's Python and JAX and emulated devices, that sharded programs mean what the unsharded ones do:
every operation under every transformation of JAX, random programs in every form they have, and every assumption that
copies are equal."""

SELFTEST_NOTES = """\
examples:
  jaxmesh selftest                      the short form, about a minute and a half
  jaxmesh selftest --programs 2000      more random programs
  jaxmesh selftest --matrix             the whole matrix, as a Markdown table; some minutes

exit codes: 0 everything holds, 1 something does not, 2 wrong usage"""

PROGRAMS = 24
"""Random programs in the short form."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"jaxmesh: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="jaxmesh", description="Tenstorrent's mesh sharding in JAX, on emulated devices.")
    parser.add_argument("--version", action="version", version=f"jaxmesh {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    demo = commands.add_parser(
        "demo",
        help="run a sharded transformer block and check it",
        description=DEMO,
        epilog=DEMO_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--mesh", default="2x4", metavar="AxB", help="sizes of the mesh axes, joined by x (default: 2x4)")
    demo.add_argument("--out", type=Path, metavar="DIR", help="also write the programs and the report into DIR")
    _add_selftest(commands)
    mlir.add_commands(commands)
    translate.add_commands(commands)
    explain.add_commands(commands)
    record.add_commands(commands)
    return parser


def _add_selftest(commands: Any) -> None:
    selftest = commands.add_parser(
        "selftest",
        help="show on this machine that sharded programs mean what unsharded ones do",
        description=SELFTEST,
        epilog=SELFTEST_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    selftest.add_argument("--matrix", action="store_true", help="print the whole transformation matrix, and no more")
    selftest.add_argument(
        "--programs", type=_count, default=PROGRAMS, metavar="N", help=f"random programs (default: {PROGRAMS})"
    )
    selftest.add_argument("--seed", type=seed_of, default=0, metavar="S", help="of the random programs (default: 0)")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"--programs takes a positive number of programs, got {text!r}")
    return int(text)


def _version() -> str:
    try:
        return importlib.metadata.version("jaxmesh")
    except importlib.metadata.PackageNotFoundError:
        return "(run from its source, not installed)"


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise jm.JaxmeshError(
            f"--out takes a folder that exists or can be made, got {str(path)!r} ({error.strerror}); name another."
        ) from None


def _say(text: str, start: float) -> None:
    print(f"[{time.monotonic() - start:6.2f} s] {text}", file=sys.stderr, flush=True)


def _demo(mesh_text: str, out: Path | None) -> int:
    start = time.monotonic()
    shape = parse_mesh(mesh_text)
    if out is not None:
        # Before the work, so that a wrong folder is known at once.
        _folder(out)
    _say(f"emulate {math.prod(shape)} devices", start)
    mesh = emulated_mesh(shape)
    outcome = run(mesh, dims_for(mesh), lambda step: _say(step, start))
    written = [] if out is None else report.write(outcome, out)
    _say("done", start)
    report.show(outcome, sys.stdout)
    if written:
        print(f"wrote {', '.join(map(str, written))}", flush=True)
    return PASSED if outcome.passed else FAILED


def _selftest(arguments: argparse.Namespace) -> int:
    # Only this command reads what it needs.
    from jaxmesh.cli import selftest as selftest

    start = time.monotonic()

    def say(step: str) -> None:
        _say(step, start)

    if arguments.matrix:
        table, outcome = selftest.run_matrix(say)
        print(table)
        outcomes = [outcome]
        # The table is what was asked for, alone, so that it can be written to a file.
        print(selftest.report(outcomes, start), file=sys.stderr, flush=True)
    else:
        outcomes = selftest.run(arguments.programs, arguments.seed, say)
        print(selftest.report(outcomes, start), flush=True)
    return PASSED if all(o.passed for o in outcomes) else FAILED


def _complain(error: Exception) -> int:
    text = str(error) or type(error).__name__
    print(f"jaxmesh: error: {' '.join(text.split())}", file=sys.stderr)
    return USAGE


def _command(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "selftest":
            return _selftest(arguments)
        case "opt":
            mlir.opt(arguments)
            return PASSED
        case "run":
            return mlir.run(arguments)
        case "translate":
            translate.translate(arguments)
            return PASSED
        case "explain":
            explain.explain(arguments)
            return PASSED
        case "record":
            record.record(arguments)
            return PASSED
        case "compare":
            return PASSED if record.compare(arguments) else FAILED
        case "include-dir":
            translate.show_include_dir()
            return PASSED
        case _:
            return _demo(arguments.mesh, arguments.out)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and gives the exit code; `--help` and wrong usage exit, as argparse does."""
    arguments = _parser().parse_args(argv)
    try:
        return _command(arguments)
    except jm.JaxmeshError as error:
        return _complain(error)
    except BrokenPipeError:
        # A reader such as `head` went away; Python would complain when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    except (OSError, MemoryError, RuntimeError, ValueError, OverflowError) as error:
        # Beside the system's errors those of JAX and NumPy, for arrays that no machine holds.
        return _complain(error)
    except KeyboardInterrupt:
        return INTERRUPTED
