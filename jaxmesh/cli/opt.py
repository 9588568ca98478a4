"""`jaxmesh opt`: verifies a TTIR or StableHLO file, and lowers it."""

from __future__ import annotations

import argparse
from typing import Any

import jaxmesh as jm
from jaxmesh.cli.inputs import abstract_mesh, chosen_functions, read_file
from jaxmesh.cli.options import add_command, common_options, emulation_option
from jaxmesh.frontends.stablehlo.text import StablehloText
from jaxmesh.stages.from_mlir import decode_function, import_program

OPT = """\
Verifies a TTIR file: every function (or --func NAME), every op, its types, and that no shard is used as a full tensor.
Prints the program; with --ttir-to-ttnn the lowered one, in which every transfer is a distribute_tensor or an
aggregate_tensor. A StableHLO file is partitioned first, by its sdy or GSPMD shardings, and printed as TTIR. FILE may
be - for standard input."""

OPT_NOTES = """\
examples:
  jaxmesh opt model.mlir                  verify, print
  jaxmesh opt model.mlir --ttir-to-ttnn   lower, print
  jaxmesh opt model.mlir --stablehlo-to-ttir
                                          the same of a StableHLO file, and of no other
  jaxmesh opt model.mlir --mesh 2x4       for a file that names no mesh
  jaxmesh opt model.mlir --strict         a wrong shard_shape is an error, not a warning

exit codes: 0 legal, 2 an error (one line on standard error), or wrong usage"""


def add_commands(commands: Any) -> None:
    """Adds `opt` to the parser of the command line."""
    parser = add_command(commands, "opt", "verify and lower a TTIR or StableHLO file", OPT, OPT_NOTES)
    common_options(parser)
    parser.add_argument("--stablehlo-to-ttir", action="store_true", help="partition StableHLO; refuse other files")
    parser.add_argument("--ttir-to-ttnn", action="store_true", help="lower to distribute_tensor and aggregate_tensor")
    emulation_option(parser)


def opt(arguments: argparse.Namespace) -> None:
    """Verifies, and lowers where it is asked for."""
    with read_file(arguments) as (file, sizes):
        functions = chosen_functions(file, arguments.func)
        for function in functions:
            program = decode_function(file, function)
            if arguments.stablehlo_to_ttir and not isinstance(program, StablehloText):
                raise jm.ParseError(
                    f"line {function.line}: @{function.name} holds no op of StableHLO, which --stablehlo-to-ttir "
                    "reads; leave the option out."
                )
            traced = import_program(file, program, abstract_mesh(sizes), strict=arguments.strict)
            lowers = arguments.ttir_to_ttnn
            shown = traced.lower().as_text(strict=not arguments.for_emulation) if lowers else traced.as_text()
            heading = f"// @{function.name} (line {function.line})\n" if len(functions) > 1 else ""
            print(f"{heading}{shown}", flush=True)
