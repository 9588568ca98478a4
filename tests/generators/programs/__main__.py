"""Runs random programs in every way and compares them: `python -m tests.generators.programs N [SEED]`.

With `--shardings`: plain programs with shardings, partitioned, against the same programs unsharded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jaxmesh.sharding.mesh import emulate
from tests.generators import sharded_programs
from tests.generators.outcome import DEVICES, report, say
from tests.generators.programs import run


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, got {text!r}")
    return number


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.generators.programs", description=__doc__)
    parser.add_argument("count", type=positive, metavar="N", help="how many programs")
    parser.add_argument("seed", type=int, nargs="?", default=0, help="seed of the first program; default: 0")
    parser.add_argument("--shardings", action="store_true", help="plain programs with shardings instead")
    options = parser.parse_args(arguments)
    emulate(DEVICES)
    kind = sharded_programs if options.shardings else run
    outcome = kind.run(options.count, options.seed, say)
    print(report([outcome]))
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
