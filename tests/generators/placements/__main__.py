"""`python -m tests.generators.placements FAMILY...`: sweeps families, and prints the counts."""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import sys
import time

from jaxmesh import emulate
from tests.generators.placements import programs, sweep
from tests.generators.quick_compilation import quick_compilation


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", default=list(programs.FAMILIES))
    parser.add_argument("--ways", default="call,reference")
    parser.add_argument("--mesh", default=",".join(sweep.MESHES))
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--uneven", action="store_true")
    parser.add_argument("--batch", type=int, default=sweep.BATCH)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--optimized", action="store_true")
    parser.add_argument("--show", type=int, default=2)
    o = parser.parse_args()
    emulate(8)
    for name in o.mesh.split(","):
        mesh = sweep.make_mesh(name)
        for family in o.families:
            every = (
                p
                for program in programs.FAMILIES[family]()
                for p in sweep.placements(program, mesh, inside=o.inside, uneven=o.uneven)
            )
            rows = list(itertools.islice(every, o.offset, None, o.stride))
            if o.count:
                print(name, family, len(rows))
                continue
            begin = time.process_time()
            with contextlib.nullcontext() if o.optimized else quick_compilation():
                found = list(sweep.findings(rows, o.ways.split(","), o.batch))
            counts = collections.Counter((f.way, f.kind) for f in found)
            print(name, family, len(rows), dict(counts), f"{time.process_time() - begin:.1f} s", flush=True)
            shown: collections.Counter[tuple[str, str, str]] = collections.Counter()
            for f in found:
                key = f.way, f.kind, f.text[:60] if f.kind != "wrong" else f.placement.program.name
                shown[key] += 1
                if shown[key] <= o.show:
                    print("   ", f.way, f.kind, f.placement, "|", f.text[:400], flush=True)
            for key, n in shown.items():
                print("   #", n, key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
