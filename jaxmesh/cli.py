"""The command line: `jaxmesh demo`."""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from jax.sharding import Mesh

import jaxmesh as jm
from jaxmesh.demo import report
from jaxmesh.demo.model import dims_for
from jaxmesh.demo.run import run

MAX_DEVICES = 64
"""Emulated devices share this machine's cores; with more the demo takes minutes."""

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
  jaxmesh demo --mesh 1x2 --out DIR  also writes ttir.txt, ttnn.txt, hlo.txt and report.txt

exit codes: 0 all comparisons pass, 1 one fails, 2 wrong usage"""


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
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("jaxmesh")
    except importlib.metadata.PackageNotFoundError:
        return "(run from its source, not installed)"


def parse_mesh(text: str) -> tuple[int, ...]:
    """The sizes in `2x4`.

    Raises:
      MeshError: it is no mesh, or has more than `MAX_DEVICES` devices.

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


def _mesh(shape: tuple[int, ...]) -> Mesh:
    # CPU devices even where there is an accelerator: its arithmetic would need another tolerance.
    return jm.make_mesh(shape, devices=jm.emulate(math.prod(shape)))


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
    mesh = _mesh(shape)
    outcome = run(mesh, dims_for(mesh), lambda step: _say(step, start))
    written = [] if out is None else report.write(outcome, out)
    _say("done", start)
    report.show(outcome, sys.stdout)
    if written:
        print(f"wrote {', '.join(map(str, written))}", flush=True)
    return PASSED if outcome.passed else FAILED


def _complain(error: Exception) -> int:
    print(f"jaxmesh: error: {error}", file=sys.stderr)
    return USAGE


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and gives the exit code; `--help` and wrong usage exit, as argparse does."""
    arguments = _parser().parse_args(argv)
    try:
        return _demo(arguments.mesh, arguments.out)
    except jm.JaxmeshError as error:
        return _complain(error)
    except BrokenPipeError:
        # A reader such as `head` went away; Python would complain when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    except OSError as error:
        return _complain(error)
    except KeyboardInterrupt:
        return INTERRUPTED
