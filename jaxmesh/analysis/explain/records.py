"""The data of an explanation: values, moves, rows and totals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jaxmesh.jaxprs.remarks import Remark
from jaxmesh.jaxprs.source_locations import line_key

HOST_KINDS = ("distribute", "aggregate")
"""The kinds of moves between the host and the devices; all other kinds are among the devices."""


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
class Move:
    """One exchange of data, executed once.

    Attributes:
      kind: `distribute`, `aggregate`; `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `collective_permute`,
        `collective_broadcast`; in TTNN also `point_to_point`.
      axes: the mesh axes along which it runs; for a distribute or an aggregate, the sharded axes.
      group_size: the number of devices in a group that exchanges data.
      groups: the number of groups.
      bytes: the payload on one device: of its result for an all_gather, of its operand for all others, which is the
        larger side of every collective; of a distribute or aggregate the shard.
      sent: the bytes that all devices send together if no byte is sent twice (a ring, for groups of n devices with S
        bytes each): all_reduce 2(n-1)S, all_gather n(n-1)S, reduce_scatter and all_to_all (n-1)S per group,
        collective_permute S for each pair of different devices. For a distribute, the bytes that the host sends, one
        copy for each device; for an aggregate, the bytes that it receives.
      distinct: for a distribute or aggregate, the bytes of the global tensor without copies; else None.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    groups: int
    bytes: int
    sent: int
    distinct: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One argument, equation or result, or an equation that a pass removed.

    Attributes:
      op: the primitive; `argument`, `constant`, `result`.
      path: the bodies around it, outermost first, such as `scan of 3`.
      operands: the names of its operands; literals as numbers.
      values: its results.
      moves: its moves in one execution.
      ttnn: its moves in the flat TTNN program, if they differ.
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
    ttnn: tuple[Move, ...] = ()
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
        return sum(t.sent for t in totals(self.rows))

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


@dataclass(frozen=True, slots=True)
class Total:
    """All moves of one kind along the same axes.

    Attributes:
      count: the number of executions.
      bytes: the payloads on one device, all executions together.
      sent: the bytes that all devices send, all executions together.
      exact: False where some stand in a branch, which may not be taken, or in a loop of unknown length, which is
        counted as one iteration.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    sent: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.moves}: {self.bytes:,} bytes per device"

    @property
    def moves(self) -> str:
        """The number of moves, their kind and their axes, such as `2 all_reduce over x`."""
        return f"{self.count:,} {self.kind}" + (f" over {', '.join(self.axes)}" if self.axes else "")


def totals(rows: Iterable[Row]) -> list[Total]:
    """Sums the moves of rows by kind and axes: between host and devices first, then among the devices."""
    added: dict[tuple[str, tuple[str, ...]], Total] = {}
    for row in rows:
        times = 1 if row.executions is None else row.executions
        exact = row.executions is not None and not row.conditional
        for move in row.moves if times else ():
            key = (move.kind, move.axes)
            old = added.get(key, Total(*key, 0, 0, 0, True))
            count, size, sent = old.count + times, old.bytes + times * move.bytes, old.sent + times * move.sent
            added[key] = Total(*key, count, size, sent, old.exact and exact)
    return sorted(added.values(), key=lambda t: t.kind not in HOST_KINDS)
