"""The commands `jaxmesh record` and `jaxmesh compare`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import jaxmesh as jm
from jaxmesh.cli import options
from jaxmesh.cli.options import Commands
from jaxmesh.errors import printable

RECORD = """\
Runs one function of a TTIR or StableHLO file and writes every value it makes, on every device, keyed by its line in
the file. The levels are the reference executor before the pass (ttir) and after it (ttnn), and the compiled program on
emulated devices (devices, the default). FILE may be - for standard input."""

RECORD_NOTES = """\
examples:
  jaxmesh record model.mlir --out a.npz
  jaxmesh record model.mlir --level ttir --out b.npz     then: jaxmesh compare b.npz a.npz
  jaxmesh record model.mlir --inputs in.npz --only 'dot*' --out a.npz

exit codes: 0 done, 2 an error (one line on standard error), or wrong usage"""

COMPARE = """\
Compares two recordings, of which A is taken to be right: prints the first equation and device where they differ, with
the correlation (PCC) and the largest differences, and a table of all that differ."""

COMPARE_NOTES = """\
examples:
  jaxmesh compare a.npz b.npz                 integers and moved data to the bit, floats by PCC and tolerance
  jaxmesh compare a.npz b.npz --pcc 0.999
  jaxmesh compare a.npz b.npz --rtol inf      floats by PCC alone
  jaxmesh compare a.npz b.npz --exact         all bits

exit codes: 0 equal, 1 something differs, 2 an error (one line on standard error), or wrong usage"""


def add_commands(commands: Commands) -> None:
    """Adds `record` and `compare` to the parser of the command line."""
    record = options.add_command(commands, "record", RECORD, RECORD_NOTES)
    options.common_options(record)
    options.input_options(record)
    record.add_argument("--level", choices=("ttir", "ttnn", "devices"), default="devices", help="what to run")
    record.add_argument("--only", action="append", metavar="PATTERN", help="an op such as 'dot*'; may be repeated")
    record.add_argument("--max-bytes", type=_bytes, metavar="N", help="how much to write at most (default: 1 GiB)")
    record.add_argument("--out", type=Path, metavar="NPZ", required=True, help="the file to write")
    compare = options.add_command(commands, "compare", COMPARE, COMPARE_NOTES)
    compare.add_argument("a", metavar="A", help="a recording, taken to be right")
    compare.add_argument("b", metavar="B", help="another one")
    compare.add_argument("--pcc", type=_number, default=0.99, help="the least correlation (default: 0.99)")
    compare.add_argument(
        "--rtol", type=_number, help="of the largest magnitude (default: sqrt of the unit of rounding)"
    )
    compare.add_argument("--atol", type=_number, default=0.0, help="a difference that is allowed (default: 0)")
    compare.add_argument("--exact", action="store_true", help="all bits have to be equal")


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise argparse.ArgumentTypeError(f"a threshold is a number, got {text!r}")
    return number


def _bytes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"--max-bytes takes a non-negative number of bytes, got {text!r}")
    return int(text)


def record(arguments: argparse.Namespace) -> None:
    """Runs one function and writes its recording."""
    options.check_out(arguments.out)
    with options.read_file(arguments) as (file, sizes):
        traced = options.import_function(file, sizes, arguments)
        args = options.inputs_of(traced, arguments)
        stage = traced if arguments.level == "ttir" else traced.lower()
        stage = stage.compile() if arguments.level == "devices" and isinstance(stage, jm.Lowered) else stage
        recording = stage.record(*args, only=arguments.only, max_bytes=arguments.max_bytes)
    recording.save(arguments.out)
    print(printable(f"wrote {arguments.out}: {recording}"), flush=True)


def compare(arguments: argparse.Namespace) -> int:
    """Compares two files and returns 1 if they differ."""
    a, b = (jm.Recording.load(path) for path in (arguments.a, arguments.b))
    thresholds = {"pcc": arguments.pcc, "rtol": arguments.rtol, "atol": arguments.atol}
    comparison = jm.compare(a, b, **thresholds, exact=arguments.exact)
    print(printable(str(comparison)), flush=True)
    return 0 if comparison else 1
