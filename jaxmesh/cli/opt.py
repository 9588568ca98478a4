"""`jaxmesh opt`: verifies a TTIR or StableHLO file, and lowers it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import jaxmesh as jm
from jaxmesh.cli.inputs import abstract_mesh, chosen_functions, read_file
from jaxmesh.cli.options import add_command, check_out, common_options, emulation_option
from jaxmesh.cli.pipelines import add_pipelines, apply_pipelines
from jaxmesh.dialects.program import HOST_CALL, Op, Program
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.emit.targets import emit, emit_module
from jaxmesh.frontends.stablehlo.text import StablehloText
from jaxmesh.passes.canonicalize import canonicalize
from jaxmesh.passes.const_eval import group_constants, hoist_const_eval
from jaxmesh.passes.ttnn_to_ttir import convert_marked_ops
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
  jaxmesh opt --ttir-to-ttnn-backend-pipeline="mesh-shape=2,4" -o lowered.mlir model.mlir
                                          the options of ttmlir-opt, as its RUN lines have them
  jaxmesh opt model.mlir --strict         a wrong shard_shape is an error, not a warning

exit codes: 0 legal, 2 an error (one line on standard error), or wrong usage"""


def add_commands(commands: Any) -> None:
    """Adds `opt` to the parser of the command line."""
    parser = add_command(commands, "opt", "verify and lower a TTIR or StableHLO file", OPT, OPT_NOTES)
    common_options(parser)
    parser.add_argument("--stablehlo-to-ttir", action="store_true", help="partition StableHLO; refuse other files")
    parser.add_argument("--ttir-to-ttnn", action="store_true", help="lower to distribute_tensor and aggregate_tensor")
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("-"), metavar="FILE", help="write to a file; - or none: standard output"
    )
    emulation_option(parser)
    add_pipelines(parser)


def opt(arguments: argparse.Namespace) -> None:
    """Prints the verified program, lowered on request."""
    apply_pipelines(arguments)
    out: Path | None = None if str(arguments.out) == "-" else arguments.out
    if out is not None:
        check_out(out)
    texts = _texts(arguments)
    if out is not None:
        write_whole(out, "".join(f"{text}\n" for text in texts))
        return
    for text in texts:
        print(text, flush=True)


def _texts(arguments: argparse.Namespace) -> Iterator[str]:
    """Yields the printed text of each function."""
    emitted: list[Program] = []
    with read_file(arguments) as (file, sizes):
        functions = chosen_functions(file, arguments.func)
        for function in functions:
            program = decode_function(file, function, promotes=arguments.promotes)
            if arguments.stablehlo_to_ttir and not isinstance(program, StablehloText):
                raise jm.ParseError(
                    f"line {function.line}: @{function.name} does not contain an op of StableHLO, which "
                    "--stablehlo-to-ttir reads; leave the option out."
                )
            mesh, upstream = abstract_mesh(sizes), arguments.upstream
            layouts = not isinstance(program, StablehloText) and program.has_layouts
            traced = import_program(
                file, program, mesh, jm.Traced, strict=arguments.strict, unannotated_on_devices=upstream
            )
            if arguments.language:
                flat = _program(traced, upstream, lowers=arguments.promotes)
                if arguments.const_eval:
                    first = sum(op.name == HOST_CALL for p in emitted for f in p.functions() for op in f.ops)
                    flat = hoist_const_eval(flat, on_host=arguments.on_host, first=first)
                elif not isinstance(program, StablehloText) and program.has_cached_calls:
                    # Importing has inlined the functions of the text.
                    flat = hoist_const_eval(flat)
                emitted.append(replace(flat, ring=arguments.ring))
                continue
            lowers: bool = arguments.ttir_to_ttnn
            body = _lowered(traced, arguments, upstream) if lowers else _printed(traced, arguments, layouts)
            # The separator keeps the functions apart when the text is imported again.
            between = "// -----\n\n" if function is not functions[0] else ""
            heading = f"{between}// @{function.name} (line {function.line})\n" if len(functions) > 1 else ""
            yield f"{heading}{body}"
    if emitted:
        yield emit_module(
            arguments.language,
            emitted,
            target_module=arguments.target_module,
            split_files=arguments.split_files,
            load=arguments.load,
        )


def _program(traced: jm.Traced, upstream: bool, *, lowers: bool) -> Program:
    """Returns the flat TTNN program of a function; an imported TTNN program is unchanged unless it is to be lowered."""
    imported = None if lowers or traced.imported is None else traced.imported.program("ttnn")
    return traced.lower().flat_program(upstream=upstream) if imported is None else imported


def _printed(traced: jm.Traced, arguments: argparse.Namespace, layouts: bool) -> str:
    """Returns the text of a program that is not lowered; an imported TTNN program is unchanged."""
    imported = None if traced.imported is None else traced.imported.program("ttnn")
    converted = arguments.stablehlo_to_ttir_pipeline is not None
    if arguments.canonicalize is None and imported is None and not converted and not arguments.hoists:
        return traced.as_text()
    program = imported or traced.default_program()
    if arguments.ttnn_to_ttir and imported is not None:
        return mlir_text(convert_marked_ops(program), layouts=layouts, stored=False)
    if arguments.canonicalize is not None:
        program = canonicalize(program)
    if arguments.hoists:
        program = group_constants(program)
    if converted:
        program = program.like([_as_constant(op, program) for op in program.ops], program.results)
    return emit("ttir" if imported is None else "ttnn", program, layouts=layouts or converted)


def _as_constant(op: Op, program: Program) -> Op:
    """Returns a `ttir.full` as the constant that upstream's conversion of StableHLO creates."""
    if op.name != "ttir.full":
        return op
    result_type = program.types[op.results[0]]
    number = np.asarray(op.attributes["fill_value"]).astype(result_type.dtype)
    return replace(op, name="ttir.constant", attributes={"value": np.broadcast_to(number, result_type.shape)})


def _lowered(traced: jm.Traced, arguments: argparse.Namespace, upstream: bool) -> str:
    if not upstream:
        return traced.lower().as_text(strict=not arguments.for_emulation)
    # Upstream's pipeline does not check what the library accepts.
    program = traced.lower().flat_program(upstream=True)
    return emit("ttnn", hoist_const_eval(program) if arguments.const_eval else program, layouts=True)
