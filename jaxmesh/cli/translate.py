"""The commands `jaxmesh translate` and `jaxmesh include-dir`: programs in other languages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jaxmesh as jm
from jaxmesh.cli import options
from jaxmesh.cli.options import Commands
from jaxmesh.emit.cpp import printer
from jaxmesh.emit.languages import CONSTANT_LIMIT, EXPORTED, LOWERED, TRACED
from jaxmesh.validate import write_whole

TRANSLATE = """\
Lowers one function of a TTIR or StableHLO file and prints it: as TTNN (MLIR), as Python or as C++, each as tt-mlir
emits it. With --out DIR writes a folder instead that holds the program, its inputs and expected results, and runs. FILE
may be - for standard input; a TTNN file is read too."""

TRANSLATE_NOTES = """\
examples:
  jaxmesh translate model.mlir --to ttnn
  jaxmesh translate model.mlir --to python --out DIR    then: jaxmesh run DIR --check
  jaxmesh translate model.mlir --to cpp --out DIR       then, in DIR:
      g++ -std=c++20 -I "$(jaxmesh include-dir)" main.cpp -o main && ./main --check

exit codes: 0 done, 1 refused by --check-api, 2 an error (one line on standard error), or wrong usage"""


def add_commands(commands: Commands) -> None:
    """Adds `translate` and `include-dir` to the parser of the command line."""
    translate = options.add_command(commands, "translate", TRANSLATE, TRANSLATE_NOTES)
    options.common_options(translate)
    translate.add_argument("--to", required=True, choices=(*TRACED, *LOWERED), help="the language")
    translate.add_argument("--out", type=Path, metavar="DIR", help="write a folder that runs, instead of printing")
    made = "write neither inputs nor results; the program makes inputs when it runs"
    options.input_options(translate, "with --out: ", made)
    translate.add_argument(
        "--constant-limit", type=options.seed_of, default=CONSTANT_LIMIT, metavar="N",
        help=f"the most elements of a constant that the text spells (default: {CONSTANT_LIMIT})",
    )  # fmt: skip
    translate.add_argument(
        "--check-api",
        action="store_true",
        help="hold the C++ to ttnn's declarations; needs upstream-env",
    )
    translate.add_argument("--debug-info", action="store_true", help="print locations (ttir, ttnn)")
    translate.add_argument("--no-groups", action="store_true", help="do not recognise softmax, linear and their like")
    options.emulation_option(translate)
    commands.add_parser(
        "include-dir",
        description="Prints the folder of ttnn-precompiled.hpp, against which emitted C++ compiles.",
    )


def translate(arguments: argparse.Namespace) -> None:
    """Prints the text, or writes the folder."""
    if arguments.out is None and (arguments.inputs is not None or arguments.seed or arguments.make_inputs):
        raise jm.ArgumentTypeError(
            "--inputs, --seed and --make-inputs are of the program that --out writes; give --out DIR, too."
        )
    with options.read_file(arguments) as (file, sizes):
        traced = options.import_function(file, sizes, arguments)
        if arguments.check_api:
            _check_api(traced, arguments)
        if arguments.out is None:
            print(_print_text(traced, arguments), end="", flush=True)
            return
        args = () if arguments.make_inputs and arguments.inputs is None else options.inputs_of(traced, arguments)
        for path in _write(traced, args, arguments):
            print(path, flush=True)


def _check_api(traced: jm.Traced, arguments: argparse.Namespace) -> None:
    if arguments.to != "cpp":
        raise jm.ArgumentTypeError(f"--check-api is of --to cpp, got --to {arguments.to}.")
    verdict = traced.lower().judge(language="cpp", groups=not arguments.no_groups)
    print(verdict, file=sys.stderr, flush=True)
    if not verdict:
        sys.exit(1)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "groups": not arguments.no_groups,
        "strict": not arguments.for_emulation,
        "constant_limit": arguments.constant_limit,
    }


def _print_text(traced: jm.Traced, arguments: argparse.Namespace) -> str:
    stage = traced if arguments.to == "ttir" else traced.lower()
    text = stage.as_text(arguments.to, debug_info=arguments.debug_info, **_options(arguments))
    return text if text.endswith("\n") else f"{text}\n"


def _write(traced: jm.Traced, args: Sequence[object], arguments: argparse.Namespace) -> list[Path]:
    if arguments.to in EXPORTED:
        how = {**_options(arguments), "make_inputs": arguments.make_inputs}
        return traced.lower().export(arguments.out, *args, languages=(arguments.to,), **how)
    path: Path = arguments.out / f"{arguments.to}.mlir"
    if arguments.out.exists() and not arguments.out.is_dir():
        raise jm.JaxmeshError(f"--out takes a folder, but {str(arguments.out)!r} is a file; name another.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_whole(path, _print_text(traced, arguments))
    return [path]


def include_dir(_: argparse.Namespace) -> None:
    """Prints the folder of `ttnn-precompiled.hpp`."""
    print(printer.include_dir(), flush=True)
