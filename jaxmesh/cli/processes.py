"""`jaxmesh processes`: runs a script in several processes of this machine."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from jaxmesh.cli.options import Commands
from jaxmesh.runtime.distributed.launcher import interrupted, run_processes
from jaxmesh.validate import regular_file


def add_commands(commands: Commands) -> None:
    """Adds `processes` to the parser of the command line."""
    parser = commands.add_parser(
        "processes",
        description="Runs a script in several processes of this machine, and ends all of them when one fails.",
        epilog="exit code: that of the first process that failed, or 0",
    )
    parser.add_argument("count", type=int, help="how many processes")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="devices each emulates (default: 1)")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds for all of it (default: 600)")
    parser.add_argument("script", help="the script, which calls jaxmesh.initialize_processes()")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def processes(arguments: argparse.Namespace) -> int:
    """Runs the script; returns the exit code of the first process that failed, or 0."""
    lock, signals, failures = threading.Lock(), list[int](), list[OSError]()

    def say(number: int, line: str) -> None:
        with lock:
            try:
                print(f"[{number}] {line.rstrip()}", flush=True)
            except OSError as error:
                # A full disk, or a reader such as `head` that has exited.
                failures.append(error)
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                interrupted.set()

    def interrupt(number: int, _: object) -> None:
        signals.append(number)
        interrupted.set()

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    command = [str(regular_file(Path(arguments.script))), *arguments.arguments]
    ended = run_processes(arguments.count, command, devices=arguments.devices, timeout=arguments.timeout, say=say)
    if failures:
        raise failures[0]
    if signals:
        return 128 + signals[0]
    for number, e in enumerate(ended):
        if e.stopped:
            print(f"[{number}] stopped: it did not end by itself.", file=sys.stderr)
    # A process stopped by the runner did not fail first.
    codes = [e.code for e in sorted(ended, key=lambda e: e.stopped) if e.code]
    return 0 if not codes else codes[0] if codes[0] > 0 else 128 - codes[0]
