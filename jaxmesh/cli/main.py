"""The command line: `jaxmesh demo`, `selftest`, `opt`, `run`, `translate`, `explain`, `estimate`, `record`..."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib
import importlib.metadata
import io
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NoReturn

import jaxmesh as jm
from jaxmesh.errors import JaxmeshError, printable
from jaxmesh.runtime.interrupts import INTERRUPTED, end_without_traceback, raise_interrupts
from jaxmesh.runtime.progress import VARIABLE, progress

PASSED, FAILED, USAGE, NO_READER = 0, 1, 2, 141
"""Exit codes; the last is the shell's code for a program ended by SIGPIPE."""

SYSTEM_ERRORS = (OSError, MemoryError, RuntimeError, ValueError, OverflowError)
"""Errors of the system, and of JAX and NumPy for arrays that do not fit into memory."""

SUMMARIES = {
    "demo": ("demo.command", "run a sharded transformer block and check it"),
    "selftest": ("selftest", "check jaxmesh on this machine"),
    "opt": ("opt", "verify and lower a TTIR or StableHLO file"),
    "run": ("run", "run a TTIR or StableHLO file on emulated devices"),
    "translate": ("translate", "print a TTIR or StableHLO file as TTNN, Python or C++"),
    "include-dir": ("translate", "print the folder of ttnn-precompiled.hpp, for g++ -I"),
    "explain": ("explain", "list what a file moves, and why"),
    "estimate": ("explain", "say how long a file takes at least"),
    "record": ("record", "write every value that a file makes"),
    "compare": ("record", "find where two recordings first differ"),
    "diagnose": ("diagnose", "find where a compiled program goes wrong"),
    "repair": ("repair", "change a program until it is compiled right"),
    "processes": ("processes", "run a script in several processes of this machine"),
    "ttnn-env": ("library_env", "make an environment with the real ttnn"),
    "upstream-env": ("library_env", "make an environment with Tenstorrent's compiler"),
    "chip-env": ("library_env", "make an environment with a simulated chip"),
}
"""The module of each command, which is imported if the command runs, and what it does, in the order of the help."""


def _run(command: str) -> Callable[[argparse.Namespace], int | None]:
    """Returns the function of a command; it returns the exit code, or None for success."""
    name = command.replace("-", "_")
    return lambda arguments: getattr(_module(SUMMARIES[command][0]), name)(arguments)


COMMANDS = {command: _run(command) for command in SUMMARIES}


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"jaxmesh.cli.{name}")


class _Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"jaxmesh: error: {' '.join(printable(message).split())} (see {self.prog} --help)\n")


def _parser(command: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jaxmesh",
        description="Tenstorrent's mesh sharding in JAX, on emulated devices.",
        epilog=f"{VARIABLE}=1 shows progress where standard error is no terminal, too, and 0 nowhere.",
    )
    parser.add_argument("--version", action="version", version=f"jaxmesh {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    asked, _ = SUMMARIES.get(command, ("", ""))
    for name, (module, summary) in SUMMARIES.items():
        if module != asked:
            commands.add_parser(name, help=summary)
    if asked:
        jm._start()  # pyright: ignore[reportPrivateUsage]
        _module(asked).add_commands(commands)
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("tt-jaxmesh")
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
    streams = sys
    if streams.stderr is None:
        streams.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if streams.stdout is None:
        raise JaxmeshError("standard output is closed; redirect it to a file.")
    stdout: object = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Sends standard output to the null device, because Python would fail when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None, imported: Callable[[], None] = lambda: None) -> int:
    """Runs the command line and returns the exit code; `--help` and wrong usage exit, as in argparse.

    `imported` is called when the modules of the command have been imported.
    """
    try:
        _open_streams()
        try:
            words = sys.argv[1:] if argv is None else argv
            arguments = _parser(words[0] if words else "").parse_args(words)
            imported()
            with progress(arguments.command) as shown, shown.beside_output():
                return COMMANDS[arguments.command](arguments) or PASSED
        finally:
            sys.stdout.flush()
    except JaxmeshError as error:
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
    # A process of one command leaves little garbage in cycles, which a search among all equations takes long to find.
    gc.set_threshold(50_000, 50, 1000)
    try:
        code = main(imported=raise_interrupts)
    finally:
        end_without_traceback()
    if code == INTERRUPTED:
        # A normal exit deletes the MLIR objects of an interrupted lowering, which is a segmentation fault.
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        os._exit(code)
    return code
