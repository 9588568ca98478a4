"""The commands `jaxmesh explain` and `jaxmesh estimate`: what a file's functions move and why, and their least time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jaxmesh as jm
from jaxmesh.cli import options
from jaxmesh.cli.options import Commands
from jaxmesh.drawing.html import page
from jaxmesh.errors import printable
from jaxmesh.stages.read_mlir import decode_function, import_program
from jaxmesh.validate import write_whole

T = TypeVar("T")
EXPLAIN = """\
Lowers a TTIR or StableHLO file, every function or --func NAME, and prints what moves, by kind and mesh axes; the lines
at which most bytes move; the shardings that were asked for and propagated. --full lists every value and equation: full
or sharded, over which mesh axes, local and full shape, bytes; what the passes cancelled, hoisted or legalised, and by
which rule; where copies are taken to be equal. Nothing runs. FILE may be - for standard input."""

EXPLAIN_NOTES = """\
examples:
  jaxmesh explain model.mlir
  jaxmesh explain model.mlir --full        every equation, by source line
  jaxmesh explain model.mlir --moving      of these, what moves, or what a pass has changed
  jaxmesh explain model.mlir --json        the rows as data, a list per function, by its name

exit codes: 0 done, 2 an error (one line on standard error), or wrong usage"""

ESTIMATE = """\
Lowers a TTIR or StableHLO file, every function or --func NAME, and prints the least time that it can take on a machine:
by source line the operations, the bytes of DRAM and of links on each device, the least time at published rates, and
what bounds it. It is a bound and not a measurement. Nothing runs. FILE may be - for standard input."""

ESTIMATE_NOTES = """\
examples:
  jaxmesh estimate model.mlir
  jaxmesh estimate model.mlir --cluster t3000 --stored bfloat8_b
  jaxmesh estimate model.mlir --out time.html    bars over time, for a browser
  jaxmesh estimate model.mlir --json             every op as data, by the function's name

exit codes: 0 done, 2 an error (one line on standard error), or wrong usage"""


def add_commands(commands: Commands) -> None:
    """Adds `explain` and `estimate` to the parser of the command line."""
    parser = options.add_command(commands, "explain", EXPLAIN, EXPLAIN_NOTES)
    options.common_options(parser)
    options.cluster_option(parser, "add the least time of each source line on a machine")
    parser.add_argument("--full", action="store_true", help="list every equation, by source line")
    parser.add_argument("--moving", action="store_true", help="list the rows that move data or that a pass has changed")
    parser.add_argument("--json", action="store_true", help="print the rows as data")
    parser = options.add_command(commands, "estimate", ESTIMATE, ESTIMATE_NOTES)
    options.common_options(parser)
    options.cluster_option(parser, "the machine (default: the smallest with the mesh)")
    parser.add_argument("--stored", metavar="TYPE", help="element type of arguments in DRAM, such as bfloat8_b")
    parser.add_argument("--fidelity", metavar="NAME", help="math fidelity of all products, such as LoFi")
    parser.add_argument("--out", type=Path, metavar="HTML", help="also draw bars over time into a file")
    parser.add_argument("--json", action="store_true", help="print every op as data")


def _by_name(arguments: argparse.Namespace, ask: Callable[[jm.Traced], T]) -> dict[str, T]:
    """Returns what is asked of each function of a file, by its name; by `name@line` where another has the name."""
    answers: dict[str, T] = {}
    with options.read_file(arguments) as (file, sizes):
        for function in options.chosen_functions(file, arguments.func):
            program = decode_function(file, function)
            traced = import_program(file, program, options.abstract_mesh(sizes), jm.Traced, strict=arguments.strict)
            name = function.name if function.name not in answers else f"{function.name}@{function.line}"
            answers[name] = ask(traced)
    return answers


def explain(arguments: argparse.Namespace) -> None:
    """Prints the explanations."""
    explanations = _by_name(arguments, lambda traced: traced.explain(arguments.cluster))
    if arguments.moving:
        explanations = {name: e.moving for name, e in explanations.items()}
    if arguments.json:
        print(json.dumps({name: e.to_dicts() for name, e in explanations.items()}, indent=1), flush=True)
    else:
        full = arguments.full or arguments.moving
        texts = (e.table() if full else str(e) for e in explanations.values())
        print(printable("\n\n".join(texts)), flush=True)


def estimate(arguments: argparse.Namespace) -> None:
    """Prints the estimates."""
    if arguments.out is not None:
        options.check_out(arguments.out)
    how = {name: getattr(arguments, name) for name in ("cluster", "stored", "fidelity")}
    estimates = _by_name(arguments, lambda traced: traced.lower().estimate(**how))
    if arguments.out is not None:
        drawn = "\n".join(e.to_html() for e in estimates.values())
        write_whole(arguments.out, page("jaxmesh estimate", drawn))
    if arguments.json:
        print(json.dumps({name: e.to_dict() for name, e in estimates.items()}, indent=1), flush=True)
    else:
        print(printable("\n\n".join(map(str, estimates.values()))), flush=True)
