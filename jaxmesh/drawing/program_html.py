"""The HTML of a program: rows that fold, each with its placement before and after and its place on a timeline."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxmesh.drawing.colors import PALETTE
from jaxmesh.drawing.html import fragment
from jaxmesh.drawing.placement import Placement
from jaxmesh.drawing.program_blocks import BlockRest, BlockRow, Cost, ProgramBlock, ProgramValue, count_text
from jaxmesh.drawing.svg import FONT, draw_glyph, draw_thumbnail
from jaxmesh.drawing.text_layout import cells, duration, escape, make_safe, shorten

_DRAWN = 64
"""The size of the largest mesh with pictures of values."""
_LISTED = 100
"""The number of equations that a block lists."""
_SOURCE = 18
"""The most columns of a source location."""
_TICKS = 5
"""The least number of times that the scale of the timeline names."""
HIGHLIGHT = "background:rgba(230,159,0,.24)"
"""The style of highlighted rows, on light and dark pages."""


def program_html(
    heading: str, facts: Sequence[str], block: ProgramBlock, opened: Container[int], notes: Sequence[str], plain: str
) -> str:
    """Draws a program, or its source lines, as a part of a page; an untrusted notebook shows `plain`."""
    drawing = _Drawing(opened, block.cost.seconds)
    top = f'<div class="title">{escape(heading)}</div>' + "".join(f'<div class="end">{escape(t)}</div>' for t in facts)
    rows = drawing.head() + "".join(drawing.items(block, 0.0, 0, 1))
    ends = "".join(f'<div class="end">{escape(t)}</div>' for t in notes)
    return fragment(_style, f'{top}<div class="rows">{rows}</div>{ends}', plain)


def short_source(line: str) -> str:
    """Returns the file, without its folders, and the line of a source location.

    >>> short_source("/home/ada/model.py:12:8 (layer)"), short_source("line 3: ttir.add")
    ('model.py:12', 'line 3: ttir.add')
    """
    found = re.match(r"(?:.*[\\/])?([^\\/:]+:\d+)(?::\d+)?(?: \(|$)", line)
    text = make_safe(found[1] if found else line)
    return text if cells(text) <= _SOURCE else f"...{text[3 - _SOURCE :]}"


@dataclass(slots=True)
class _Drawing:
    """Draws the rows of a program whose timeline ends at `total` seconds."""

    opened: Container[int]
    total: float
    drawn: dict[tuple[bool, Placement], str] = field(default_factory=dict[tuple[bool, Placement], str])

    def head(self) -> str:
        """Draws the names of the columns, with the parts of the timeline and its scale."""
        if not self.total:
            return ""
        parts = "".join(f'<span><i class="key {c}"></i>{t}</span>' for t, c in _PARTS.items())
        marks = "".join(
            f'<span class="tick" style="left:{at / self.total:.1%}">{escape(duration(at))}</span>'
            for at in ticks(self.total)
        )
        return (
            f'<div class="row head"><div></div><div class="wide"></div><div class="right">at least</div>'
            f'<div class="scale"><div>{parts}</div><div class="time">{marks}</div></div></div>'
        )

    def items(self, block: ProgramBlock, start: float, depth: int, times: int) -> Iterator[str]:
        """Draws the contents of a block."""
        for item in block.items:
            match item:
                case BlockRow():
                    yield self.row(item, start, depth)
                case BlockRest():
                    yield self.rest(item, start, depth)
                case ProgramBlock():
                    yield self.block(item, start, depth, times)
            start += item.cost.seconds

    def block(self, block: ProgramBlock, start: float, depth: int, times: int) -> str:
        """Draws a block, which opens and closes."""
        count = count_text(block.times, times)
        name = f'<b>{escape(shorten(block.name, 60))}</b><span class="soft">{count}</span>'
        about = escape(block.summary)
        cells = self.columns(name, f'<span title="{about}">{about}</span>', "", start, block.cost, depth)
        state = " open" if id(block) in self.opened else ""
        inner = "".join(self.items(block, start, depth + 1, block.times))
        return f'<details{state}><summary class="row">{cells}</summary>{inner}</details>'

    def rest(self, rest: BlockRest, start: float, depth: int) -> str:
        """Draws the values whose placement stays, closed."""
        cells = self.columns(f'<span class="soft">{rest.text}</span>', "", "", start, rest.cost, depth)
        listed = "".join(self.row(BlockRow(v, Cost()), start, depth + 1, small=True) for v in rest.values[:_LISTED])
        more = len(rest.values) - _LISTED
        if more > 0:
            listed += f'<div class="end">{more:,} more: visualize(..., whole=True)</div>'
        return f'<details><summary class="row">{cells}</summary>{listed}</details>'

    def row(self, row: BlockRow, start: float, depth: int, *, small: bool = False) -> str:
        """Draws a value: in a folded picture its change, else its definition."""
        value, change = row.value, row.value.change
        text, where = (value.text, value.where) if change is None else (change.name, change.where)
        count = f'<span class="soft">{count_text(row.times)}</span>'
        strong = f"<b>{escape(shorten(text, 72))}</b>" if value.moves else escape(shorten(text, 72))
        name = f'{strong}{count} <span class="soft src">{escape(short_source(value.line))}</span>'
        about = f'{escape(shorten(value.type_text, 60))} <span class="soft">{escape(shorten(where, 60))}</span>'
        picture = "" if small else self.pictures(value)
        cells = self.columns(name, about, picture, start, row.cost, depth + value.depth)
        tip = f' title="{escape(value.line)}"' if value.line else ""
        return f'<div class="row{" moves" if value.is_lit else ""}"{tip}>{cells}</div>'

    def pictures(self, value: ProgramValue) -> str:
        """Draws the placement of a value, small, before and after; of a plain value, with its tensor."""
        if value.change is None:
            return self.picture(value.placement, small=False)
        both = self.picture(value.change.before), self.picture(value.placement)
        return '<span class="soft">→</span>'.join(p for p in both if p)

    def picture(self, placement: Placement | None, *, small: bool = True) -> str:
        """Draws a placement."""
        if placement is None or len(placement.devices) > _DRAWN:
            return ""
        if (small, placement) not in self.drawn:
            self.drawn[small, placement] = (draw_glyph if small else draw_thumbnail)(placement)
        return self.drawn[small, placement]

    def columns(self, name: str, about: str, picture: str, start: float, cost: Cost, depth: int) -> str:
        """Draws the cells of a row."""
        pad = f' style="padding-left:{min(depth, 12) * 16}px"' if depth else ""
        time = ""
        if self.total:
            seconds = duration(cost.seconds) if cost.seconds else ""
            bars = "".join(self.bars(start, cost))
            time = f'<div class="right">{escape(seconds)}</div><div class="time">{bars}</div>'
        wide = f'<div class="pic">{picture}</div>' if picture else ""
        about = f'<div class="about{"" if picture else " wide"}">{about}</div>{wide}'
        return f'<div class="name"{pad}>{name}</div>{about}{time}'

    def bars(self, start: float, cost: Cost) -> Iterable[str]:
        """Draws a bar for each part of the device."""
        for part, seconds in cost.busy.items():
            if seconds:
                left, wide = start / self.total, seconds / self.total
                yield (
                    f'<i class="{_PARTS[part]}" style="left:{left:.2%};width:max({wide:.2%},1px)" '
                    f'title="{part} {escape(duration(seconds))}"></i>'
                )


def ticks(end: float) -> list[float]:
    """Returns round times from 0 to `end`, in seconds.

    >>> ticks(23.0), ticks(0.0)
    ([0.0, 5.0, 10.0, 15.0, 20.0], [])
    """
    step = _step(end)
    return [number * step for number in range(int(end / step) + 1)] if step else []


def _step(end: float) -> float:
    """Returns a round step that fits about `_TICKS` times below `end`.

    >>> [_step(end) for end in (10, 23, 0)]
    [2.0, 5.0, 0.0]
    """
    if not end:
        return 0.0
    power = 10.0 ** math.floor(math.log10(end / _TICKS))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= end / _TICKS)


_PARTS = {"compute": "p0", "DRAM": "p1", "links": "p2"}
"""The parts of a device, with the classes of their bars."""


def _style(name: str) -> str:
    s = f".{name}"
    colors = "".join(f"{s} .p{i}{{background:{PALETTE[i]};top:{2 + 6 * i}px}}" for i in range(len(_PARTS)))
    return (
        f"{s}{{font:12px/1.45 {FONT};color:inherit;max-width:1400px}}"
        f"{s} .title{{font-weight:bold;font-size:14px;margin:.3em 0 .3em}}"
        f"{s} .row{{display:grid;grid-template-columns:minmax(0,7fr) minmax(0,6fr) minmax(0,4fr) 6em minmax(0,6fr);"
        "gap:2px 12px;align-items:center;padding:2px 8px;border-top:1px solid rgba(128,128,128,.3)}"
        f"{s} summary{{cursor:pointer;list-style:none}}{s} summary::-webkit-details-marker{{display:none}}"
        f'{s} summary .name::before{{content:"▸";display:inline-block;width:1.1em;opacity:.7}}'
        f'{s} details[open]>summary .name::before{{content:"▾"}}'
        f"{s} div.row>.name{{text-indent:1.1em}}"
        f"{s} .moves{{{HIGHLIGHT};box-shadow:inset 3px 0 0 #e69f00}}"
        f"{s} .name,{s} .about{{overflow-wrap:anywhere;min-width:0;text-align:left}}"
        f"{s} .about{{white-space:nowrap;overflow:hidden;text-overflow:ellipsis}}"
        f"{s} .wide{{grid-column:span 2}}"
        f"{s} .pic{{display:flex;gap:6px;flex-wrap:wrap;align-items:center;min-width:0}}{s} .pic svg{{flex:none}}"
        f"{s} .soft{{opacity:.78}}{s} .src{{font-size:11px}}{s} .end{{padding:2px 8px;opacity:.85}}"
        f"{s} .right{{text-align:right;white-space:nowrap}}"
        f"{s} .time{{position:relative;height:20px;border-left:1px solid rgba(128,128,128,.4);"
        "border-right:1px solid rgba(128,128,128,.4)}"
        f"{s} .time i{{position:absolute;height:5px;border-radius:1px}}"
        f"{s} .tick{{position:absolute;white-space:nowrap;transform:translateX(-50%)}}"
        f"{s} .tick:first-child{{transform:none}}"
        f"{s} .key{{display:inline-block;width:10px;height:10px;margin:0 4px 0 10px}}{colors}"
        f"@media (max-width:800px){{{s} .row{{grid-template-columns:minmax(0,1fr)}}}}"
    )
