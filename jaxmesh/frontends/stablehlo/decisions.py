"""The partitioner's decisions for each value, with reasons, at source locations."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxlib.mlir import ir

from jaxmesh.frontends.stablehlo.shardings import Sharding, count, show
from jaxmesh.frontends.stablehlo.values import ReshardStep, Sharded
from jaxmesh.jaxprs.source_locations import Sources


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of the partitioner.

    Attributes:
      kind: `asked`, `propagated`, `dropped`, or a collective: `all_reduce`, `all_gather`, `all_to_all`,
        `reduce_scatter`, `slice`.
      line: `file:line (function)` of the user's source; empty if it is unknown.
      op: the StableHLO op.
      text: the decision, and its reason.
      bytes: the bytes on one device after a collective.
    """

    kind: str
    line: str
    op: str
    text: str
    bytes: int = 0

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        return f"{self.kind}: {self.op}{where}: {self.text}"


@dataclass(eq=False)
class Decisions:
    """The decisions of one import, in the order of the program."""

    sources: Sources
    log: list[Decision] = field(default_factory=list[Decision])
    assumptions: dict[str, None] = field(default_factory=dict[str, None])
    op: str = ""
    line: str = ""

    @contextlib.contextmanager
    def at(self, op: ir.Operation) -> Generator[None]:
        """Enters the source location of an op; a reshard of an argument is at its first use."""
        before, placed = (self.op, self.line), op
        if op.name == "sdy.reshard" and '":' not in str(op.location):
            placed = next((use.owner for use in op.results[0].uses), op)
        with self.sources.at(placed.location, op.name) as line:
            self.op, self.line = op.name, line
            try:
                yield
            finally:
                self.op, self.line = before

    def add(self, kind: str, text: str, size: int = 0, op: str = "") -> None:
        """Adds a decision on the current op."""
        self.log.append(Decision(kind, self.line, op or self.op, text, size))

    def value(self, number: int, sharding: Sharding, asked: bool, what: str) -> None:
        """Adds the sharding of an argument or a result."""
        self.add("asked" if asked else "propagated", show(sharding), op=f"{what} {number}")

    def moved(self, move: ReshardStep, x: Sharded, target: Sharding, why: str, sizes: Mapping[str, int]) -> None:
        """Adds a step of a reshard."""
        whole = x.array.size * x.array.dtype.itemsize * count([a for axes in x.sharding for a in axes], sizes)
        source = f" from dim {move.source}" if move.source >= 0 else ""
        how = ", by point_to_point" if move.kind == "all_to_all" else ""
        shardings = f"the value is {show(x.sharding)}, wanted {show(target)}, {why}"
        text = f"over {move.axis}, dim {move.dim}{source}{how}: {shardings}"
        self.add(move.kind, text, whole // count([a for axes in target for a in axes], sizes))

    def collective(self, kind: str, axes: Sequence[str], why: str) -> None:
        """Adds a collective over mesh axes."""
        self.add(kind, f"over {', '.join(axes)}: {why}")

    def reduction(self, x: Sharded, axes: Sequence[str]) -> None:
        """Adds the reduction of partial values over mesh axes."""
        summed = x.kind == "sum" and x.array.dtype != np.bool_
        why = "" if summed else ", computed on each device, since TTNN's all_reduce gives sums only"
        self.collective("all_reduce" if summed else "all_gather", axes, f"{x.kind} over shards of a reduced dim{why}")

    def assume(self, text: str) -> None:
        """Adds a point where copies are assumed to be equal."""
        self.assumptions[f"{self.line}: {text}" if self.line else text] = None
