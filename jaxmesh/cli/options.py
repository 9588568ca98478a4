"""Options shared by several commands, and their valid values."""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import jaxmesh as jm
from jaxmesh.analysis.machines import MACHINES, machine_named, one_of
from jaxmesh.emit.languages import MADE
from jaxmesh.runtime.progress import note_step

MAX_DEVICES = 256
"""The maximum number of devices that commands emulate: they share this machine's cores, and each has threads and
buffers.

On two busy cores `run --check` of a matmul takes 4 seconds on 64 devices (0.4 GB) and on 1024 (0.7 GB), the `demo` 26
seconds on 64 and 38 seconds on 256 (0.9 GB).
"""


SYSTEM_ERRORS = (OSError, MemoryError, RuntimeError, ValueError, OverflowError)
"""Errors of the system, and of JAX and NumPy for arrays that do not fit into memory."""


def add_command(commands: Any, name: str, summary: str, description: str, notes: str) -> argparse.ArgumentParser:
    """Adds a command whose texts keep their line breaks; returns its parser."""
    raw = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=summary, description=description, epilog=notes, formatter_class=raw)


def input_options(
    parser: argparse.ArgumentParser, when: str = "", made: str = "how inputs are made (default: random)"
) -> None:
    """Adds the options for the arguments of the program."""
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--inputs", type=Path, metavar="NPZ", help=f"{when}the arguments: arg0, arg1, ...")
    inputs.add_argument(
        "--seed", type=seed_of, default=0, metavar="N", help=f"{when}seed of random inputs (default: 0)"
    )
    parser.add_argument("--make-inputs", choices=MADE, help=f"{when}{made}")


def common_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every command that reads a TTIR or StableHLO file."""
    parser.add_argument("file", metavar="FILE", help="TTIR or StableHLO text, or - for standard input")
    parser.add_argument("--mesh", metavar="AxB", help="sizes of the mesh axes, joined by x (default: the file's)")
    parser.add_argument("--func", metavar="NAME", help="the function; NAME@LINE where a file has several of one name")
    parser.add_argument("--strict", action="store_true", help="make errors of warnings")


def cluster_option(parser: argparse.ArgumentParser, when: str, default: str | None = None) -> None:
    """Adds the option for a machine, named in any case."""
    parser.add_argument(
        "--cluster", metavar="NAME", type=_machine_name, default=default, help=f"{when}: {one_of(MACHINES)}"
    )


def _machine_name(text: str) -> str:
    try:
        return machine_named(text).name
    except jm.ArgumentValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def emulation_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option to print types and meshes that the real library cannot run."""
    parser.add_argument(
        "--for-emulation", action="store_true", help="print element types and meshes that the real ttnn lacks, too"
    )


def seed_of(text: str) -> int:
    """Returns a seed from the text of an option."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"a seed is a non-negative integer, got {text!r}")
    return int(text)


def parse_mesh(text: str) -> tuple[int, ...]:
    """Returns the sizes in a text such as `2x4`, of at most `MAX_DEVICES` devices.

    >>> parse_mesh("2x4")
    (2, 4)
    """
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise jm.MeshError(f"--mesh takes positive integers joined by 'x', got {text!r}; write for example --mesh 2x4.")
    sizes = tuple(map(int, text.split("x")))
    if min(sizes) < 1:
        raise jm.MeshError(f"--mesh takes sizes of at least 1, got {text!r}; leave the axis out, or write 1 for it.")
    if math.prod(sizes) > MAX_DEVICES:
        raise jm.MeshError(
            f"--mesh takes at most {MAX_DEVICES} devices, as all of them share this machine's cores, got {text!r} with "
            f"{math.prod(sizes)}; write a smaller mesh, for example --mesh 2x4."
        )
    return sizes


def check_out(path: Path) -> None:
    """Checks the path of an output file before the run, so that a wrong path is reported at once."""
    if path.is_dir() or not path.parent.is_dir():
        raise jm.JaxmeshError(f"--out takes a file in a folder that exists, got {str(path)!r}; name another.")


def say_step(text: str, start: float) -> None:
    """Prints a step on standard error, with the seconds since `start`."""
    print(f"[{time.monotonic() - start:6.2f} s] {text}", file=sys.stderr, flush=True)
    note_step(text)
