"""The command `jaxmesh diagnose`: whether Tenstorrent's compile of a program is right, and where it first is not."""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path

from jaxmesh.analysis.diagnose import Diagnosis, argument_types, diagnose as find, minimize
from jaxmesh.analysis.diagnose.diagnosis import WRONG
from jaxmesh.analysis.machines import DEFAULT
from jaxmesh.analysis.upstream import compile_text
from jaxmesh.cli.options import Commands, add_command, check_out, cluster_option, seed_of
from jaxmesh.drawing.html import page
from jaxmesh.errors import printable
from jaxmesh.runtime.npz import read_inputs
from jaxmesh.validate import write_whole

DIAGNOSE = """\
Runs what Tenstorrent's compiler printed, TTIR and TTNN, on emulated devices, and the program with global shapes
unsharded. Prints the first operation whose operands are right and whose result is wrong, with your source line, the
mesh axes, the wrong elements and the cause. SOURCE is a folder that tt-xla wrote with export_path, which needs no
plugin; or a StableHLO file, which is compiled first (see `jaxmesh upstream-env`)."""

DIAGNOSE_NOTES = """\
examples:
  jaxmesh diagnose export/                      the folder of compiler_options={"export_path": "export"}
  jaxmesh diagnose export/ --json               the verdict with lines, elements, devices and the proof
  jaxmesh diagnose export/ --out wrong.html     which device holds which wrong elements, for a browser
  jaxmesh diagnose export/ --args args.npz      with your arguments: arg0, arg1, ... as np.savez stores them
  jaxmesh diagnose export/ --graph 2            the second of several graphs; --func NAME by the name of its function
  jaxmesh diagnose model.mlir --minimize        a small program with the error, as StableHLO and as JAX

exit codes: 0 right or less precise, 1 wrong, 2 an error (one line on standard error), or wrong usage, 3 refused by the
compiler, 4 a text is not read, or not comparable, 130 interrupted"""


def add_commands(commands: Commands) -> None:
    """Adds `diagnose` to the parser of the command line."""
    parser = add_command(commands, "diagnose", DIAGNOSE, DIAGNOSE_NOTES)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a folder of export_path, or a StableHLO file")
    cluster_option(parser, f"the machine of a file (default: {DEFAULT})")
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--args", type=Path, metavar="NPZ", help="the arguments, of global shapes: arg0, arg1, ...")
    inputs.add_argument("--seed", type=seed_of, default=0, metavar="N", help="seed of drawn arguments (default: 0)")
    parser.add_argument("--func", metavar="NAME", help="the one function to compare, of several")
    parser.add_argument(
        "--graph", type=int, metavar="N", help="the graph of a file or a folder with several, from 1 on"
    )
    parser.add_argument("--out", type=Path, metavar="HTML", help="also draw the wrong value into a file")
    parser.add_argument("--minimize", action="store_true", help="cut the program to the operations with the error")
    parser.add_argument("--json", action="store_true", help="print the verdict as data")


def diagnose(arguments: argparse.Namespace) -> int:
    """Prints a diagnosis and returns the exit code of its verdict."""
    if arguments.out is not None:
        check_out(arguments.out)
    compiler = (
        functools.partial(compile_text, cluster=arguments.cluster or DEFAULT) if arguments.source.is_file() else None
    )
    graph = {"graph": arguments.graph, "function": arguments.func}
    given = arguments.args is not None
    args = read_inputs(arguments.args, argument_types(arguments.source, **graph), "--args") if given else []
    found: Diagnosis = find(arguments.source, *args, seed=arguments.seed, cluster=arguments.cluster, **graph)
    if arguments.out is not None:
        write_whole(arguments.out, page("jaxmesh diagnose", found.to_html()))
    wanted, cuts = arguments.minimize, arguments.minimize and found.culprit is not None
    small = minimize(found, compiler=compiler, seed=arguments.seed) if cuts else None
    if arguments.json:
        more = {"minimized": None if small is None else small.to_dict()} if wanted else {}
        print(json.dumps({**found.to_dict(), **more}, indent=1), flush=True)
    else:
        none = "no smaller program was seen to have the same error" if cuts else _why_not_cut(found)
        more = f"\n\n{small or none}" if wanted else ""
        print(printable(f"{found}{more}"), flush=True)
    return found.exit_code


def _why_not_cut(found: Diagnosis) -> str:
    """Returns why a program cannot be cut down."""
    why = "no operation computes a wrong value" if found.verdict == WRONG else f"the verdict is {found.verdict}"
    return f"no smaller program is made: {why}"
