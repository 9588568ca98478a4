"""Placements of one operation that `jax.jit` computes wrongly, and the table of them in docs/tables.

`python -m tests.generators.placements.xla_faults` writes the table, `--print` prints what this version of JAX gives.
Such placements are found by `python -m tests.generators.placements.xla`.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmesh import emulate
from tests import ROOT
from tests.generators.placements.programs import FAMILIES, Program
from tests.generators.placements.sweep import Batch, Placement, make_mesh
from tests.generators.readme_tables import write

ABORTS = "ends the process"
RIGHT = "right"
VERSIONS = ("0.10.2", "0.12.0.1")
"""The versions of JAX that the table is of."""


@dataclass(frozen=True)
class Fault:
    """A placement that XLA computes wrongly.

    Attributes:
      family: the family of the program, and the name of the program there.
      call: the number of the call.
      text: the function, as the table has it.
      mesh: the name of the mesh.
      ins: the specs of the arguments.
      out: the spec of the result.
      given: by version of JAX what `jax.jit` gives: the first values, its error, `ABORTS` or `RIGHT`.
    """

    family: tuple[str, str]
    call: int
    text: str
    mesh: str
    ins: tuple[P, ...]
    out: P
    given: tuple[str, str]

    @functools.cached_property
    def program(self) -> Program:
        """The program with the one call."""
        found = next(p for p in FAMILIES[self.family[0]]() if p.name == self.family[1])
        return Program(found.name, found.fun, found.oracle, (found.calls[self.call],))

    @property
    def batch(self) -> Batch:
        """The placement on devices, in each way to run it."""
        return Batch([Placement(self.program, make_mesh(self.mesh), self.ins, self.out)])

    @property
    def right(self) -> str:
        """The first values of the oracle."""
        return _first(self.program.wanted[0], self.program.wanted[0])

    def from_jax(self) -> str:
        """Returns what `jax.jit` gives, in the form of `given`."""
        batch = self.batch
        try:
            (got,) = jax.jit(batch.batch, **batch.options)(*batch.args(0))
            return _first(np.asarray(got), self.program.wanted[0])
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {str(error)[:60]}"

    def from_process(self) -> str:
        """Returns what `jax.jit` gives in a process of its own, which may end."""
        module = "tests.generators.placements.xla_faults"
        command = [sys.executable, "-P", "-m", module, "--row", str(ROWS.index(self))]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120)
        return ABORTS if done.returncode < 0 else done.stdout.strip()

    def show(self) -> str:
        """Returns the row of the table."""
        specs = ", ".join(f"`{_spec(s)}`" for s in self.ins)
        scalars = [int(x) for x in self.program.calls[0] if not x.ndim and x.dtype == np.int32]
        at = f" at {scalars}" if scalars else ""
        columns = f"`{self.text}`{at}", self.mesh, f"{specs} to `{_spec(self.out)}`", *self.given, self.right
        return f"| {' | '.join(columns)} |"


def _spec(spec: P) -> str:
    return f"P({', '.join(map(repr, spec))})"


def _first(got: Any, wanted: Any) -> str:
    """Returns eight values from the first wrong one on; of the right values the first."""
    if got is not wanted and np.array_equal(got, wanted):
        return RIGHT
    places = np.flatnonzero(got.ravel() != wanted.ravel()) if got is not wanted else [0]
    values = got.ravel()[places[0] : places[0] + 8]
    return f"from element {places[0]}: " * bool(places[0]) + " ".join(f"{x:g}" for x in values)


_NONE = P()
_CONV = "[2, 4, 8] by [4, 4, 3], {'padding': ((1, 1),)}"
_GROUPS = "[4, 2, 8] by [4, 2, 3], {'padding': ((1, 1),), 'batch_group_count': 2}"

ROWS: tuple[Fault, ...] = (
    Fault(
        ("dynamic_slice", "[8] of [16]"),
        4,
        "lax.dynamic_slice(x, (i,), (8,))",
        "8",
        (_NONE, _NONE),
        P("x"),
        ("16 16 16 16 16 16 16 16", RIGHT),
    ),
    Fault(
        ("dynamic_slice", "[8, 2] of [8, 4]"),
        0,
        "lax.dynamic_slice(x, (i, j), (8, 2))",
        "2x4",
        (P(None, "y"), _NONE, _NONE),
        P(None, "y"),
        ("2 2 18 18 31 31 3 3", RIGHT),
    ),
    Fault(
        ("dynamic_update_slice", "[1, 4] into [8, 4]"),
        2,
        "lax.dynamic_update_slice(x, y, (i, j))",
        "8",
        (P("x"), _NONE, _NONE, _NONE),
        _NONE,
        ("from element 28: 28 7 20 32", "from element 28: 28 7 20 32"),
    ),
    Fault(
        ("pad", "[8] by [(0, 1, 1)]"),
        0,
        "lax.pad(x, v, ((0, 1, 1),))",
        "8",
        (_NONE, _NONE),
        P("x"),
        (
            "from element 1: 6 1 1 2 2 5 5 3",
            "JaxRuntimeError: INTERNAL: Shape mismatch during ToLiteral conversion f32[1]",
        ),
    ),
    Fault(
        ("pad", "[8] by [(-2, 2, 0)]"),
        0,
        "lax.pad(x, v, ((-2, 2, 0),))",
        "8",
        (_NONE, _NONE),
        P("x"),
        ("6 1 2 5 3 7 4 8", "6 1 2 5 3 7 4 8"),
    ),
    Fault(
        ("pad", "[8] by [(-1, -7, 2)]"),
        0,
        "lax.pad(x, v, ((-1, -7, 2),))",
        "8",
        (P("x"), _NONE),
        _NONE,
        (ABORTS, ABORTS),
    ),
    Fault(
        ("gather", "take of [4, 8] along 1, clip"),
        0,
        "jnp.take(x, i, 1, mode='clip')",
        "2x4",
        (P(None, "y"), _NONE),
        P("y", "x"),
        ("31 6 0 0 45 52 0 0", "31 6 0 0 45 52 0 0"),
    ),
    Fault(
        ("gather", "windows [4, 2] of [8, 4]"),
        1,
        "windows of 4 by 2 by lax.gather(x, i, ..., mode='clip')",
        "2x4",
        (_NONE, P("x")),
        P(None, "x", "y"),
        ("1 10 23 14 23 14 20 32", RIGHT),
    ),
    Fault(
        ("conv", _CONV),
        0,
        "lax.conv_general_dilated(x, w, (1,), ((1, 1),))",
        "2x4",
        (P(None, "y"), P("x")),
        P(None, "x", "y"),
        ("-4 20 8 8 20 -68 -84 4", "-4 20 8 8 20 -68 -84 4"),
    ),
    Fault(
        ("conv", _GROUPS), 0, "the same, batch_group_count=2", "2x4", (_NONE, P("x")), P(None, "y"), (ABORTS, ABORTS)
    ),
)


def table() -> str:
    """Returns the table."""
    names = " | ".join(f"JAX {v}" for v in VERSIONS)
    head = f"| program | mesh | shardings | {names} | right |\n|{'---|' * (len(VERSIONS) + 4)}"
    return "\n".join([head, *(r.show() for r in ROWS)])


def main(arguments: list[str]) -> int:
    if "--row" in arguments:
        emulate(8)
        print(ROWS[int(arguments[-1])].from_jax())
    elif "--print" in arguments:
        print(*[f"{i}: {r.from_process()}" for i, r in enumerate(ROWS)], sep="\n", flush=True)
    else:
        write("xla_faults", table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
