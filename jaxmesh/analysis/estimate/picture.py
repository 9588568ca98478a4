"""The picture of an estimate: the ops as bars over time, in one row per busy part of a device."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmesh.analysis.estimate.cost import LINKS, PARTS, OpCost
from jaxmesh.drawing.timeline import Bar, TimelineRow, draw_timeline


def draw(heading: str, ops: Sequence[OpCost], notes: Sequence[str], plain: str) -> str:
    """Draws ops one after the other as part of a page; one device stands for all, since all do the same."""
    bars: dict[str, list[Bar]] = {}
    now = 0.0
    for op in ops:
        for part, seconds in op.times.items():
            name = f"{part} ({', '.join(op.link_bytes)})" if part == LINKS and op.link_bytes else part
            if seconds:
                text = f"{op.op} {op.line}".strip()
                bars.setdefault(name, []).append(Bar(now, seconds, text, strong=part == op.bound_by))
        now += op.seconds
    rows: Sequence[TimelineRow] = [TimelineRow(name, part_bars) for name, part_bars in sorted(bars.items(), key=_place)]
    return draw_timeline(heading, rows, now, notes, plain)


def _place(item: tuple[str, object]) -> tuple[int, str]:
    return PARTS.index(item[0].split(" ")[0]), item[0]
