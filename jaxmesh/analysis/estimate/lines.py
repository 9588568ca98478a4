"""The costs of a program by source line, as data and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxmesh.analysis.estimate.cost import PARTS, OpCost
from jaxmesh.analysis.explain.table import short_location
from jaxmesh.drawing.text_layout import duration, shorten


@dataclass(frozen=True, slots=True)
class LineCost:
    """The costs of all ops of one source line, loops unrolled.

    Attributes:
      line: the source line; an op in brackets for those without one.
      ops: the number of ops.
      seconds: the sum of their lower bounds.
      by_part: the sum by the part that bounds each op.
    """

    line: str
    ops: int
    flops: int
    dram_bytes: int
    link_bytes: int
    seconds: float
    by_part: Mapping[str, float]

    @property
    def bound_by(self) -> str:
        """The part that bounds most of the time; empty if the line takes 0 seconds."""
        return max(self.by_part, key=lambda part: self.by_part[part]) if self.seconds else ""


def by_line(ops: Iterable[OpCost]) -> list[LineCost]:
    """Adds up the costs of ops by source line."""
    groups: dict[str, list[OpCost]] = {}
    for op in ops:
        groups.setdefault(op.line or f"({op.op})", []).append(op)
    return [_line(line, members) for line, members in groups.items()]


def _line(line: str, ops: Sequence[OpCost]) -> LineCost:
    by_part = {part: sum(op.seconds for op in ops if op.bound_by == part) for part in PARTS}
    sent = sum(sum(op.link_bytes.values()) for op in ops)
    flops, dram = sum(op.flops for op in ops), sum(op.dram_bytes for op in ops)
    return LineCost(line, len(ops), flops, dram, sent, sum(by_part.values()), by_part)


def cells(lines: Sequence[LineCost]) -> list[tuple[str, ...]]:
    """Returns a table of the lines that take time, with its head."""
    head = ("line", "ops", "flops", "DRAM bytes", "link bytes", "at least", "bound by")
    return [head, *(_cells(line) for line in lines if line.seconds)]


def _cells(line: LineCost) -> tuple[str, ...]:
    counts = (amount(line.flops), amount(line.dram_bytes), amount(line.link_bytes))
    return (shorten(short_location(line.line), 72), str(line.ops), *counts, duration(line.seconds), line.bound_by)


def amount(count: float) -> str:
    """Returns a count with a decimal prefix.

    >>> amount(999), amount(4_194_304), amount(8.03e9)
    ('999 ', '4.19 M', '8.03 G')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} "
