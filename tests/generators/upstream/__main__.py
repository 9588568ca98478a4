"""Runs the hunt for wrong compilations: `python -m tests.generators.upstream [COUNT]`.

The results file has a line for each program, and a program that it has is not compiled again. After all programs the
table of docs/tables is written. What no row of `rows.py` explains is printed: a new cause, a text that jaxmesh does
not run, a diagnosis that differs from the plain comparison; then the command ends with 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxmesh.sharding.mesh import emulate
from tests.generators.outcome import DEVICES, say
from tests.generators.readme_tables import write


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.generators.upstream", description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", metavar="COUNT", help="how many programs; default: all")
    parser.add_argument("--results", type=Path, default=Path("upstream.jsonl"), help="default: upstream.jsonl")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="compile every Nth program alone, from the Ith on")
    parser.add_argument("--repair", action="store_true", help="repair the programs, and count what is right then")
    parser.add_argument("--pages", nargs="*", metavar="ROW", help="write the pages of rows, or all, and count new rows")
    options = parser.parse_args(arguments)
    emulate(DEVICES)
    # Their meshes need the devices.
    from tests.generators.upstream.hunt import hunt, read
    from tests.generators.upstream.pages import write_pages
    from tests.generators.upstream.repaired import hunt_repairs, read_repairs, repair_table, unrepaired
    from tests.generators.upstream.report import count, store, stored_counts, table, unexplained, with_new_rows

    part, parts = (int(n) for n in options.part.split("/"))
    if options.pages is not None:
        write_pages(options.pages, say)
        store(counts := with_new_rows(stored_counts()))
        write("upstream", table(counts))
        return 0
    if options.repair:
        hunt_repairs(options.results, options.count, part, parts, say)
        repairs = list(read_repairs(options.results))
        print(*(stays := unrepaired(repairs)), repair_table(repairs), sep="\n")
        if options.count is None and parts == 1:
            write("repairs", repair_table(repairs))
        return 1 if stays else 0
    hunt(options.results, options.count, part, parts, say)
    found = list(read(options.results))
    counts, left = count(found), unexplained(found)
    print(*left, f"{counts.programs:,} programs: {counts.verdicts}", *counts.causes.items(), sep="\n")
    if options.count is None and parts == 1:
        store(counts)
        write("upstream", table(counts))
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
