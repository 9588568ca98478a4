"""The data of an explanation: values, rows and source lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxmesh.analysis.account.moves import Move, totals
from jaxmesh.jaxprs.remarks import Remark
from jaxmesh.jaxprs.source_locations import line_key


@dataclass(frozen=True, slots=True)
class Value:
    """One value.

    Attributes:
      name: its name in the jaxpr's text (`as_text("jaxpr")` of the lowered program); `_` for a dropped result.
      place: `host` (one full tensor), `devices`, or `anywhere` (depends on no input; each use recomputes it).
      varying: the mesh axes over which its shards differ; empty for a full value, which on the devices is replicated.
      shape: the shape on one device, or on the host.
      full_shape: the global shape; None for shards without a distribute or an aggregate that states it.
      dtype: the element type.
      bytes: the bytes on one device, or on the host.
    """

    name: str
    place: str
    varying: tuple[str, ...]
    shape: tuple[int, ...]
    full_shape: tuple[int, ...] | None
    dtype: str
    bytes: int

    @property
    def sharded(self) -> bool:
        """True if the devices hold different data."""
        return bool(self.varying)


@dataclass(frozen=True, slots=True)
class Row:
    """One argument, equation or result, or an equation that a pass removed.

    Attributes:
      op: the primitive; `argument`, `constant`, `result`.
      path: the bodies around it, outermost first, such as `scan of 3`.
      operands: the names of its operands; literals as numbers.
      values: its results.
      moves: the moves of its ops in the program that is printed, all executions together.
      notes: the remarks of passes, with their rules.
      executions: the number of its executions per launch; None inside a loop of unknown length.
      conditional: True inside a branch; `executions` is then an upper bound.
      cancelled: True if a pass removed it.
      line: the user's source line.
      scope: the `jax.named_scope` blocks around it, outermost first.
      seconds: with an estimate, the lower bound of all ops of a source line, at its first equation; else None.
    """

    op: str
    path: tuple[str, ...]
    operands: tuple[str, ...]
    values: tuple[Value, ...]
    moves: tuple[Move, ...] = ()
    notes: tuple[Remark, ...] = ()
    executions: int | None = 1
    conditional: bool = False
    cancelled: bool = False
    line: str = ""
    scope: tuple[str, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """The rows of one source line.

    Attributes:
      line: `file:line (function)`, or one of `ENDS` for rows without a source line.
      rows: its rows in program order.
    """

    line: str
    rows: tuple[Row, ...]

    @property
    def sent(self) -> int:
        """The bytes that all devices send, all executions together."""
        return sum(t.sent for t in totals(moves_of(self.rows)))

    @property
    def seconds(self) -> float:
        """With an estimate, the lower bound of all its ops; else 0."""
        return sum(row.seconds or 0.0 for row in self.rows)


ENDS = ("arguments", "results", "no source line")
"""The groups of rows without a source line: arguments and constants, results, and all others, each with its
transfers."""
_GROUPS = {
    "argument": ENDS[0], "constant": ENDS[0], "distribute_tensor": ENDS[0],
    "result": ENDS[1], "aggregate_tensor": ENDS[1],
}  # fmt: skip


def by_line(rows: Iterable[Row]) -> list[Line]:
    """Groups rows by source line, in the order of the first row of each line; results come last."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(line_key(row.line) or _GROUPS.get(row.op, ENDS[2]), []).append(row)
    return [Line(line, tuple(group)) for line, group in sorted(groups.items(), key=lambda g: g[0] == ENDS[1])]


def moves_of(rows: Iterable[Row]) -> Iterator[Move]:
    """Yields the moves of rows."""
    return (move for row in rows for move in row.moves)
