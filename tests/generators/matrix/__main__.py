"""Prints the matrix of operations under transformations: `python -m tests.generators.matrix`.

Every cell is run, in every form. `--expected` prints the table as it is when every cell holds, without running one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxmesh.sharding.mesh import emulate, make_mesh
from tests.generators.matrix import table
from tests.generators.outcome import DEVICES, report, say


def main(arguments: Sequence[str]) -> int:
    emulate(DEVICES)
    if "--expected" in arguments:
        print(table.expected_table(make_mesh(table.SIZES)))
        return 0
    text, outcome = table.run_whole(say)
    print(text)
    print(report([outcome]), file=sys.stderr)
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
