"""Bytes that plain programs with shardings move, beside those of XLA's partitioner: a table of docs/tables.

`python -m tests.generators.plain_traffic` writes it; `--print` prints it and writes nothing. Both columns are read from
optimized HLO. A program that moves more than `MOST` times as much as XLA's needs a reason, and a reason needs such a
program: else the command ends with 1.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax

from jaxmesh import errors
from jaxmesh.sharding.mesh import emulate
from tests.generators.outcome import DEVICES
from tests.generators.readme_tables import write

MOST = 2

UNCOUNTED = {"while_loop": "a loop of unknown trip count"}

_PAIRS = "a permute in TTNN is one point_to_point per pair of devices and axis between them"
_HALO = f"edges of neighbour shards are wanted: XLA permutes them, the import gathers the dim; {_PAIRS}"
_ORDER = (
    "a dim goes from one axis to another: XLA slices first and permutes shards among all devices, the import gathers "
    f"and takes its own slice; {_PAIRS}"
)
REASONS = {
    "product over a split dim": "JAX has no product over devices: partial products are gathered",
    "and, or over a split dim": "JAX has no `and`, `or` over devices: truth values go as 32-bit integers",
    "convolution, split window dims": _HALO,
    "pad": _HALO,
    "a slice that crosses shards": _HALO,
    "reshard at the end": _ORDER,
    "jax.jit inside": _ORDER,
    "jm.jit inside": _ORDER,
}
"""By program, why it moves more than `MOST` times as much as XLA's."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one program moves among all devices, in bytes."""

    name: str
    xla: int
    ours: int

    @property
    def needs_reason(self) -> bool:
        return self.ours > MOST * self.xla

    def __str__(self) -> str:
        ratio = f"{self.ours / self.xla:.2f}" if self.xla else ("" if not self.ours else "∞")
        return f"| {self.name} | {self.xla:,} | {self.ours:,} | {ratio} | {REASONS.get(self.name, '')} |"


def rows() -> Iterator[Row]:
    """Compiles every program both ways."""
    # Its meshes need the devices.
    from tests.generators.hlo_traffic import Moved, moved
    from tests.generators.plain_programs import CASES, jitted

    def sent(found: Moved) -> int:
        return sum(by_all for _, by_all in found.values())

    for case in CASES:
        if case.name in UNCOUNTED:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.ShardingWarning)
            theirs = jax.jit(case.fun, **case.jax_options()).lower(*case.args).compile().as_text()
            ours = jitted(case).lower(*case.args).compile().as_text()
        sizes = dict(case.mesh.shape)
        yield Row(case.name, sent(moved(theirs or "", sizes)), sent(moved(ours, sizes)))


def faults(found: Sequence[Row]) -> list[str]:
    """Returns the programs without a reason, and the reasons without a program."""
    needed = {r.name for r in found if r.needs_reason}
    missing = [f"{r.name}: {r.ours} bytes, XLA {r.xla}, and no reason" for r in found if r.name in needed - {*REASONS}]
    stale = [f"{name}: has a reason, and moves at most {MOST} times as much as XLA's" for name in {*REASONS} - needed]
    return missing + sorted(stale)


def table(found: Sequence[Row]) -> str:
    """Returns the table, with the JAX version that XLA's column is of."""
    head = "| program | XLA | jaxmesh | ratio | why more |\n|---|---|---|---|---|"
    left_out = "; ".join(f"{name}: {why}" for name, why in UNCOUNTED.items())
    return "\n".join([head, *map(str, found), "", f"JAX {jax.__version__}. Not counted: {left_out}."])


def main(arguments: Sequence[str]) -> int:
    emulate(DEVICES)
    found = list(rows())
    if "--print" in arguments:
        print(table(found))
    else:
        write("plain_traffic", table(found))
    wrong = faults(found)
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
