"""Runs command lines under conditions of a terminal, each in a forked process: `python -m` reads cases.

A case is `{"arguments": [...], "condition": "..."}`; a result has the exit code and both streams. The imports are done
once, so that a case takes the time of its command. `CONDITIONS` are streams that are closed, full or without a reader,
an encoding without most characters, and an interrupt.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from typing import Any

CONDITIONS = ("plain", "no input", "no output", "no errors", "no reader", "full", "interrupt")
SECONDS = 120
_LATER = 0.4
"""The seconds after which a command is interrupted."""


def commands() -> dict[str, argparse.ArgumentParser]:
    """Returns the parser of each command, as the command line has them."""
    from jaxmesh.cli import main

    def choices(command: str) -> Any:
        parser = main._parser(command)
        return next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))

    return {command: choices(command)[command] for command in main.COMMANDS}


def filled(parser: argparse.ArgumentParser, path: str) -> list[str]:
    """Returns arguments for everything that a command needs, a path in the place of each file."""
    made: list[str] = []
    for action in parser._actions:
        value = str(next(iter(action.choices))) if action.choices else "1" if action.type is int else path
        if action.required and action.option_strings:
            made += [action.option_strings[-1], value if action.choices else f"{path}.out"]
        elif not action.option_strings and (action.required or action.nargs == "?"):
            made.append(value)
    return made


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Runs a case; returns its exit code and what it printed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _child(case, out.fileno(), err.fileno())
        if case["condition"] == "interrupt":
            time.sleep(_LATER)
            os.kill(child, signal.SIGINT)
        end, ended = time.monotonic() + SECONDS, (0, 0)
        while ended[0] == 0 and time.monotonic() < end:
            ended = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if ended[0] == 0:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
        texts = {}
        for name, file in (("out", out), ("err", err)):
            file.seek(0)
            texts[name] = file.read().decode("ascii", "surrogateescape")
        return {"code": os.waitstatus_to_exitcode(ended[1]), **texts}


def _child(case: dict[str, Any], out: int, err: int) -> None:
    from jaxmesh.cli.main import main
    from jaxmesh.runtime.interrupts import raise_interrupts

    condition, code = case["condition"], 99
    # A shell starts what runs in the background with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if condition == "no reader":
        reader, out = os.pipe()
        os.close(reader)
    elif condition == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    streams: Any = sys
    streams.stdout = open(1, "w", encoding="ascii")  # noqa: SIM115
    streams.stderr = open(2, "w", encoding="ascii", errors="replace")  # noqa: SIM115
    closed = {"no input": (0, "stdin"), "no output": (1, "stdout"), "no errors": (2, "stderr")}.get(condition)
    if closed is not None:
        # Python complains about a stream that it deletes after its number was closed.
        streams.kept = getattr(streams, closed[1])
        os.close(closed[0])
        setattr(streams, closed[1], None)
    try:
        # As the command starts it: a callback of the garbage collector would lose the interrupt.
        code = main(case["arguments"], imported=raise_interrupts)
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        os.write(err, traceback.format_exc().encode("ascii", "replace"))
    try:
        atexit._run_exitfuncs()
        for stream in (streams.stdout, streams.stderr):
            stream.flush() if stream is not None else None
    except BaseException:
        os.write(err, traceback.format_exc().encode("ascii", "replace"))
        code = 99
    os._exit(code)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # The imports of each case.
    commands()
    print(json.dumps([run(case) for case in json.load(sys.stdin)]))
