"""The command `jaxmesh explain`: the moves of a file's functions, and their reasons."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import jaxmesh as jm
from jaxmesh.cli.inputs import abstract_mesh, chosen_functions, read_file
from jaxmesh.cli.options import add_command, cluster_option, common_options
from jaxmesh.errors import printable
from jaxmesh.stages.read_mlir import decode_function, import_program

if TYPE_CHECKING:
    from jaxmesh.analysis.explain import Explanation

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


def add_commands(commands: Any) -> None:
    """Adds `explain` to the parser of the command line."""
    parser = add_command(commands, "explain", "list what a file moves, and why", EXPLAIN, EXPLAIN_NOTES)
    common_options(parser)
    cluster_option(parser, "add the least time of each source line on a machine")
    parser.add_argument("--full", action="store_true", help="list every equation, by source line")
    parser.add_argument("--moving", action="store_true", help="list the rows that move data or that a pass has changed")
    parser.add_argument("--json", action="store_true", help="print the rows as data")


def explain(arguments: argparse.Namespace) -> None:
    """Prints the explanations."""
    explanations: dict[str, Explanation] = {}
    with read_file(arguments) as (file, sizes):
        for function in chosen_functions(file, arguments.func):
            program = decode_function(file, function)
            traced = import_program(file, program, abstract_mesh(sizes), jm.Traced, strict=arguments.strict)
            explanation = traced.explain(arguments.cluster)
            name = function.name if function.name not in explanations else f"{function.name}@{function.line}"
            explanations[name] = explanation.moving if arguments.moving else explanation
    if arguments.json:
        print(json.dumps({name: e.to_dicts() for name, e in explanations.items()}, indent=1), flush=True)
    else:
        full = arguments.full or arguments.moving
        texts = (e.table() if full else str(e) for e in explanations.values())
        print(printable("\n\n".join(texts)), flush=True)
