"""The command `jaxmesh estimate`: a lower bound of the time of a file's functions on Tenstorrent's machines."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxmesh as jm
from jaxmesh.cli.inputs import abstract_mesh, chosen_functions, read_file
from jaxmesh.cli.options import add_command, check_out, cluster_option, common_options
from jaxmesh.drawing.html import page
from jaxmesh.errors import printable
from jaxmesh.stages.read_mlir import decode_function, import_program
from jaxmesh.validate import write_whole

if TYPE_CHECKING:
    from jaxmesh.analysis.estimate import Estimate

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


def add_commands(commands: Any) -> None:
    """Adds `estimate` to the parser of the command line."""
    parser = add_command(commands, "estimate", "say how long a file takes at least", ESTIMATE, ESTIMATE_NOTES)
    common_options(parser)
    cluster_option(parser, "the machine (default: the smallest with the mesh)")
    parser.add_argument("--stored", metavar="TYPE", help="element type of arguments in DRAM, such as bfloat8_b")
    parser.add_argument("--fidelity", metavar="NAME", help="math fidelity of all products, such as LoFi")
    parser.add_argument("--out", type=Path, metavar="HTML", help="also draw bars over time into a file")
    parser.add_argument("--json", action="store_true", help="print every op as data")


def estimate(arguments: argparse.Namespace) -> None:
    """Prints the estimates."""
    if arguments.out is not None:
        check_out(arguments.out)
    options = {name: getattr(arguments, name) for name in ("cluster", "stored", "fidelity")}
    estimates: dict[str, Estimate] = {}
    with read_file(arguments) as (file, sizes):
        for function in chosen_functions(file, arguments.func):
            program = decode_function(file, function)
            lowered = import_program(file, program, abstract_mesh(sizes), jm.Traced, strict=arguments.strict).lower()
            name = function.name if function.name not in estimates else f"{function.name}@{function.line}"
            estimates[name] = lowered.estimate(**options)
    if arguments.out is not None:
        drawn = "\n".join(e.to_html() for e in estimates.values())
        write_whole(arguments.out, page("jaxmesh estimate", drawn))
    if arguments.json:
        print(json.dumps({name: e.to_dict() for name, e in estimates.items()}, indent=1), flush=True)
    else:
        print(printable("\n\n".join(map(str, estimates.values()))), flush=True)
