"""Finds placements that `jax.jit` computes wrongly, refuses, or ends the process on.

`python -m tests.generators.placements.xla FAMILY...` compiles them in forked processes. A process that ends is repeated
with each half of its placements, until one is left.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxmesh import emulate
from tests.generators.placements import programs, sweep

Row = tuple[int, str, str]
"""The number of a placement, the kind of its fault, and both values or a message."""


def placed(family: str, mesh_name: str, stride: int, offset: int, inside: bool) -> list[sweep.Placement]:
    mesh: Any = jax.sharding.AbstractMesh(*sweep.MESHES[mesh_name])
    every = (p for program in programs.FAMILIES[family]() for p in sweep.placements(program, mesh, inside=inside))
    return list(itertools.islice(every, offset, None, stride))


def faults(rows: Sequence[sweep.Placement], numbers: Sequence[int], mesh_name: str, way: str) -> Iterator[Row]:
    """Runs placements in a forked process; yields those with faults."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        child = os.fork()
        if not child:
            _run(rows, numbers, mesh_name, way, out, err)
        _, status = os.waitpid(child, 0)
        if not status:
            yield from map(tuple, json.loads(out.read_text()))
            return
        if len(numbers) == 1:
            lines = [
                s for s in err.read_text(errors="replace").splitlines() if "Check failed" in s or s.startswith("F")
            ]
            yield numbers[0], "ends the process", (lines or ["signal " + str(status)])[0]
            return
    middle = len(numbers) // 2
    yield from faults(rows, numbers[:middle], mesh_name, way)
    yield from faults(rows, numbers[middle:], mesh_name, way)


def _run(
    rows: Sequence[sweep.Placement], numbers: Sequence[int], mesh_name: str, way: str, out: Path, err: Path
) -> None:
    with err.open("w") as log:
        os.dup2(log.fileno(), 2)
    emulate(8)
    mesh = sweep.make_mesh(mesh_name)
    batch = [sweep.Placement(rows[i].program, mesh, rows[i].ins, rows[i].out, rows[i].inside) for i in numbers]
    found = list(sweep.findings(batch, [way]))
    places = {id(p): i for p, i in zip(batch, numbers, strict=True)}
    out.write_text(json.dumps([(places[id(f.placement)], f.kind, f.text[:600]) for f in found]))
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="+")
    parser.add_argument("--mesh", default="2x4")
    parser.add_argument("--way", default="jax.jit")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--chunk", type=int, default=64)
    o = parser.parse_args()
    for mesh_name, family in itertools.product(o.mesh.split(","), o.families):
        rows = placed(family, mesh_name, o.stride, o.offset, o.inside)
        counts: collections.Counter[Any] = collections.Counter()
        for first in range(0, len(rows), o.chunk):
            for i, kind, text in faults(rows, range(first, min(first + o.chunk, len(rows))), mesh_name, o.way):
                counts[kind, rows[i].program.name] += 1
                if counts[kind, rows[i].program.name] <= 2:
                    print("   ", kind, rows[i], "|", text, flush=True)
        print(f"JAX {jax.__version__}", mesh_name, family, len(rows), dict(counts), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
