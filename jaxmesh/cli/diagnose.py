"""The command `jaxmesh diagnose`: whether Tenstorrent's compile of a program is right, and where it first is not."""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

from jaxmesh.analysis.diagnose import Diagnosis, diagnose as find, minimize
from jaxmesh.analysis.machines import DEFAULT
from jaxmesh.analysis.upstream import compile_text
from jaxmesh.cli.options import add_command, check_out, cluster_option, seed_of
from jaxmesh.drawing.html import page
from jaxmesh.errors import printable
from jaxmesh.validate import write_whole

DIAGNOSE = """\
Runs what Tenstorrent's compiler printed, TTIR and TTNN, on emulated devices, and the program with global shapes
unsharded. Prints the first operation whose operands are right and whose result is wrong, with your source line, the
mesh axes, the wrong elements and the cause. SOURCE is a folder that tt-xla wrote with export_path, which needs no
plugin; or a StableHLO file, which is compiled first (see `jaxmesh upstream-env`)."""

DIAGNOSE_NOTES = """\
examples:
  jaxmesh diagnose export/                      the folder of compiler_options={"export_path": "export"}
  jaxmesh diagnose export/ --json               {"verdict", "op", "source", "axes", "devices", "pcc", "cause"}
  jaxmesh diagnose export/ --out wrong.html     which device holds which wrong elements, for a browser
  jaxmesh diagnose model.mlir --minimize        a small program with the error, as StableHLO and as JAX

exit codes: 0 right or less precise, 1 wrong, 2 an error (one line on standard error), or wrong usage, 3 refused by the
compiler, 4 a text is not read, or not comparable"""


def add_commands(commands: Any) -> None:
    """Adds `diagnose` to the parser of the command line."""
    parser = add_command(commands, "diagnose", "find where a compiled program goes wrong", DIAGNOSE, DIAGNOSE_NOTES)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a folder of export_path, or a StableHLO file")
    cluster_option(parser, f"the machine of a file (default: {DEFAULT})", DEFAULT)
    parser.add_argument("--seed", type=seed_of, default=0, metavar="N", help="seed of random inputs (default: 0)")
    parser.add_argument("--out", type=Path, metavar="HTML", help="also draw the wrong value into a file")
    parser.add_argument("--minimize", action="store_true", help="cut the program to the operations with the error")
    parser.add_argument("--json", action="store_true", help="print the verdict as data")


def diagnose(arguments: argparse.Namespace) -> int:
    """Prints a diagnosis and returns the exit code of its verdict."""
    if arguments.out is not None:
        check_out(arguments.out)
    compiler = functools.partial(compile_text, cluster=arguments.cluster) if arguments.source.is_file() else None
    found: Diagnosis = find(arguments.source, seed=arguments.seed, cluster=arguments.cluster)
    if arguments.out is not None:
        write_whole(arguments.out, page("jaxmesh diagnose", found.to_html()))
    small = minimize(found, compiler=compiler, seed=arguments.seed) if arguments.minimize and found.culprit else None
    if arguments.json:
        more = {} if small is None else {"minimized": small.to_dict()}
        print(json.dumps({**found.to_dict(), **more}, indent=1), flush=True)
    else:
        print(printable(str(found) if small is None else f"{found}\n\n{small}"), flush=True)
    return found.exit_code
