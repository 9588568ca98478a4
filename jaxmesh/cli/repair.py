"""The command `jaxmesh repair`: a program that Tenstorrent's compiler compiles right."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from jaxmesh.analysis.diagnose.texts import texts_of
from jaxmesh.analysis.machines import DEFAULT
from jaxmesh.analysis.upstream.environment import find_plugin
from jaxmesh.cli.options import Commands, add_command, check_out, cluster_option, seed_of
from jaxmesh.errors import UpstreamError, printable
from jaxmesh.frontends.mlir.attributes import x64_for
from jaxmesh.frontends.mlir.source import read
from jaxmesh.runtime.progress import progress
from jaxmesh.stages.from_mlir import from_mlir
from jaxmesh.stages.repair import candidate_of
from jaxmesh.validate import write_whole

REPAIR = """\
Compiles a program with Tenstorrent's compiler, and where that is wrong or refused, changes the program until it is
right: jaxmesh partitions it, with every placement and every collective explicit, and replaces operations by equal ones.
Each attempt is compiled, run on emulated devices and compared with the program unsharded. SOURCE is a StableHLO file
with Shardy's or GSPMD's shardings, or a folder that tt-xla wrote with export_path. Without the compiler the program is
partitioned, and nothing is proved (see `jaxmesh upstream-env`)."""

REPAIR_NOTES = """\
examples:
  jaxmesh repair model.mlir -o right.mlir       StableHLO for tt-xla; what was changed, and why, is printed
  jaxmesh repair export/                        the program of compiler_options={"export_path": "export"}

exit codes: 0 right or less precise, 1 wrong, 2 an error (one line on standard error), or wrong usage, 3 refused by the
compiler, 4 not comparable, or not proved, 130 interrupted"""
UNPROVED = 4
_THEIRS = re.compile(
    r'\b(?:ttcore|ttir|tt)\.\w+(?: = (?:#\w+\.\w+<[^>\n]*>|"[^"\n]*"|[\w.]+(?: : \w+)?))?(?:, )?(?=[^\n]*\})'
)


def add_commands(commands: Commands) -> None:
    """Adds `repair` to the parser of the command line."""
    parser = add_command(commands, "repair", REPAIR, REPAIR_NOTES)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a StableHLO file, or a folder of export_path")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="where the StableHLO text goes")
    cluster_option(parser, f"the machine (default: {DEFAULT})", DEFAULT)
    parser.add_argument("--seed", type=seed_of, default=0, metavar="N", help="seed of random inputs (default: 0)")


def repair(arguments: argparse.Namespace) -> int:
    """Prints what was changed, writes the program, and returns the exit code of its verdict."""
    if arguments.out is not None:
        check_out(arguments.out)
    folder = arguments.source.is_dir()
    text = without_theirs(texts_of(arguments.source)[0].frontend) if folder else read(arguments.source)
    with x64_for(text):
        lowered = from_mlir(text).lower()
        try:
            find_plugin(None)
        except UpstreamError as error:
            with progress("partition"):
                made = candidate_of(lowered)
            _write(arguments.out, made.text)
            print(f"jaxmesh: not proved: {printable(str(error))}", file=sys.stderr)
            return UNPROVED
        found = lowered.upstream(arguments.cluster).repair(seed=arguments.seed)
    if found:
        _write(arguments.out, found.text)
    print(printable(str(found)), file=sys.stderr if found and arguments.out is None else sys.stdout, flush=True)
    return found.diagnosis.exit_code


def without_theirs(text: str) -> str:
    """Removes the attributes that tt-xla adds to arguments and results, and which its parser of StableHLO refuses.

    >>> without_theirs("{ttcore.argument_type = #ttcore.argument_type<input>, sdy.sharding = 1}")
    '{sdy.sharding = 1}'
    """
    text = _THEIRS.sub("", text)
    return re.sub(r"(?:, )+\}", "}", text)


def _write(out: Path | None, text: str) -> None:
    if out is None:
        print(text, flush=True)
    else:
        write_whole(out, text)
