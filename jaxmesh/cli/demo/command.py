"""`jaxmesh demo`: a sharded transformer block, checked against the unsharded one."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import jaxmesh as jm
from jaxmesh.cli.demo import report
from jaxmesh.cli.demo.model import dims_for
from jaxmesh.cli.demo.run import run
from jaxmesh.cli.options import Commands, add_command, emulated_mesh, parse_mesh, say_step

DEMO = """\
Runs a Llama-style transformer block (RMSNorm, rotary attention with grouped heads, SwiGLU MLP) over a mesh of emulated
devices, tensor parallel over the last mesh axis and data parallel over the others. Compares output and gradients with
the unsharded model, and prints the verdicts and what moved."""

DEMO_NOTES = """\
examples:
  jaxmesh demo                       2 x 4 devices: batch over 2, heads over 4
  jaxmesh demo --mesh 8              tensor parallel alone
  jaxmesh demo --mesh 2x2x2          batch over the first two axes
  jaxmesh demo --verbose             every comparison, what each device holds, the TTIR and TTNN programs
  jaxmesh demo --mesh 1x2 --out DIR  also writes ttir.mlir, ttnn.mlir, hlo.txt and report.txt

exit codes: 0 all comparisons pass, 1 one fails, 2 wrong usage"""


def add_commands(commands: Commands) -> None:
    """Adds `demo` to the parser of the command line."""
    parser = add_command(commands, "demo", DEMO, DEMO_NOTES)
    parser.add_argument(
        "--mesh", default="2x4", metavar="AxB", help="sizes of the mesh axes, joined by x (default: 2x4)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write the programs and the report into DIR")
    parser.add_argument("--verbose", action="store_true", help="print the programs and all tables, too")


def demo(arguments: argparse.Namespace) -> int:
    """Runs the demo and prints its report; returns the exit code: 1 if a comparison fails."""
    start = time.monotonic()
    shape, out = parse_mesh(arguments.mesh), arguments.out
    if out is not None:
        # Before the run, so that a wrong folder is reported at once.
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise jm.JaxmeshError(
                f"--out takes a folder that exists or can be made, got {str(out)!r} ({error.strerror}); name another."
            ) from None
    say_step(f"emulate {math.prod(shape)} devices", start)
    mesh = emulated_mesh(shape)
    outcome = run(mesh, dims_for(mesh), lambda step: say_step(step, start))
    written = [] if out is None else report.write(outcome, out)
    say_step("done", start)
    print(report.whole_text(outcome) if arguments.verbose else report.summary(outcome), flush=True)
    if written:
        print(f"wrote {', '.join(map(str, written))}", flush=True)
    return 0 if outcome.passed else 1
