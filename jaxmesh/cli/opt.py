"""`jaxmesh opt`: verifies a TTIR or StableHLO file, and lowers it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import jaxmesh as jm
from jaxmesh.cli import options
from jaxmesh.cli.options import Commands
from jaxmesh.emit.targets import emit
from jaxmesh.frontends.mlir.text import Text
from jaxmesh.frontends.stablehlo.text import StablehloText
from jaxmesh.stages.read_mlir import decode_function, import_program
from jaxmesh.validate import write_whole

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
  jaxmesh opt model.mlir --ttir-to-ttnn --layouts -o lowered.mlir
                                          with layouts in types, as the tools of tt-mlir read them
  jaxmesh opt model.mlir --strict         a wrong shard_shape is an error, not a warning

exit codes: 0 legal, 2 an error (one line on standard error), or wrong usage"""


def add_commands(commands: Commands) -> None:
    """Adds `opt` to the parser of the command line."""
    parser = options.add_command(commands, "opt", OPT, OPT_NOTES)
    options.common_options(parser)
    parser.add_argument("--stablehlo-to-ttir", action="store_true", help="partition StableHLO; refuse other files")
    parser.add_argument("--ttir-to-ttnn", action="store_true", help="lower to distribute_tensor and aggregate_tensor")
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("-"), metavar="FILE", help="write to a file; - or none: standard output"
    )
    parser.add_argument(
        "--unroll-limit", type=int, metavar="N", help="unroll loops to N operations in all; by default 2048"
    )
    parser.add_argument("--layouts", action="store_true", help="types of a lowered program have layouts")
    options.emulation_option(parser)


def opt(arguments: argparse.Namespace) -> None:
    """Prints the verified program, lowered on request."""
    out: Path | None = None if str(arguments.out) == "-" else arguments.out
    if out is not None:
        options.check_out(out)
    texts = _texts(arguments)
    if out is not None:
        write_whole(out, "".join(f"{text}\n" for text in texts))
        return
    for text in texts:
        print(text, flush=True)


def _texts(arguments: argparse.Namespace) -> Iterator[str]:
    """Yields the printed text of each function."""
    with options.read_file(arguments) as (file, sizes):
        sources, functions = [file], [*options.chosen_functions(file, arguments.func)]
        several, between = len(functions) > 1, ""
        del file
        while functions:
            file, function = sources[0], functions.pop(0)
            heading = f"{between}// @{function.name} (line {function.line})\n" if several else ""
            # The separator keeps the functions apart when the text is imported again.
            between = "// -----\n\n"
            program = decode_function(file, function)
            if arguments.stablehlo_to_ttir and not isinstance(program, StablehloText):
                raise jm.ParseError(
                    f"line {function.line}: @{function.name} does not contain an op of StableHLO, which "
                    "--stablehlo-to-ttir reads; leave the option out."
                )
            traced = import_program(file, program, options.abstract_mesh(sizes), jm.Traced, strict=arguments.strict)
            has_layouts = isinstance(program, Text) and program.has_layouts
            if not functions:
                # The modules of MLIR take more memory than their text.
                sources.clear()
            del file, function, program
            imported = None if traced.imported is None else traced.imported.program("ttnn")
            limit = arguments.unroll_limit
            if arguments.ttir_to_ttnn:
                strict, layouts = not arguments.for_emulation, arguments.layouts
                body = traced.lower().as_text(strict=strict, layouts=layouts, unroll_limit=limit)
            elif imported is not None:
                body = emit("ttnn", imported, layouts=has_layouts)
            else:
                body = traced.as_text(unroll_limit=limit)
            del traced, imported
            # An f-string would copy it.
            yield heading + body
