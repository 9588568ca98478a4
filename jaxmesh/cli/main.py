"""The command line: `jaxmesh demo`, `selftest`, `opt`, `run`, `translate`, `explain`, `estimate`, `record`..."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.metadata
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jaxmesh as jm
from jaxmesh.cli import diagnose, explain, library_env, opt, processes, record, repair, run, selftest, translate
from jaxmesh.cli.demo import command as demo
from jaxmesh.cli.options import SYSTEM_ERRORS
from jaxmesh.errors import printable
from jaxmesh.runtime.interrupts import INTERRUPTED, end_without_traceback, raise_interrupts
from jaxmesh.runtime.progress import VARIABLE, progress

PASSED, FAILED, USAGE, NO_READER = 0, 1, 2, 141
"""Exit codes; the last is the shell's code for a program ended by SIGPIPE."""

MODULES = (demo, selftest, opt, run, translate, explain, record, diagnose, repair, processes, library_env)
"""One module per command, in the order of `jaxmesh --help`."""

COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "demo": demo.demo,
    "selftest": selftest.selftest,
    "opt": opt.opt,
    "run": run.run,
    "translate": translate.translate,
    "include-dir": translate.show_include_dir,
    "explain": explain.explain,
    "estimate": explain.estimate,
    "record": record.record,
    "diagnose": diagnose.diagnose,
    "repair": repair.repair,
    "processes": processes.processes,
    "ttnn-env": library_env.ttnn_env,
    "upstream-env": library_env.upstream_env,
    "compare": lambda arguments: PASSED if record.compare(arguments) else FAILED,
}
"""The function of each command; it returns the exit code, or None for success."""


class _Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"jaxmesh: error: {' '.join(printable(message).split())} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jaxmesh",
        description="Tenstorrent's mesh sharding in JAX, on emulated devices.",
        epilog=f"{VARIABLE}=1 shows progress where standard error is no terminal, too, and 0 nowhere.",
    )
    parser.add_argument("--version", action="version", version=f"jaxmesh {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for module in MODULES:
        module.add_commands(commands)
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("jaxmesh")
    except importlib.metadata.PackageNotFoundError:
        return "(run from its source, not installed)"


def _complain(error: Exception) -> int:
    text = str(error) or type(error).__name__
    with contextlib.suppress(OSError):
        print(f"jaxmesh: error: {' '.join(printable(text).split())}", file=sys.stderr)
    return USAGE


def _open_streams() -> None:
    """Opens the null device in place of closed standard streams, whose numbers a written file would get.

    Characters that the encoding of standard output lacks are printed as escapes, as on standard error.

    Raises:
      JaxmeshError: standard output is closed.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    streams: Any = sys
    if streams.stderr is None:
        streams.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if streams.stdout is None:
        raise jm.JaxmeshError("standard output is closed; redirect it to a file.")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Sends standard output to the null device, because Python would fail when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code; `--help` and wrong usage exit, as in argparse."""
    try:
        _open_streams()
        try:
            arguments = _parser().parse_args(argv)
            with progress(arguments.command) as shown, shown.beside_output():
                return COMMANDS[arguments.command](arguments) or PASSED
        finally:
            sys.stdout.flush()
    except jm.JaxmeshError as error:
        return _complain(error)
    except BrokenPipeError:
        # A reader such as `head` has exited.
        _discard_output()
        return NO_READER
    except SYSTEM_ERRORS as error:
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        return _complain(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def command() -> int:
    """Runs the command line as the program of this process; an interrupt leaves no traceback at any moment."""
    raise_interrupts()
    try:
        code = main()
    finally:
        end_without_traceback()
    if code == INTERRUPTED:
        # A normal exit deletes the MLIR objects of an interrupted lowering, which is a segmentation fault.
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        os._exit(code)
    return code
