"""The tensor with its pieces: the last two dims as rows and columns, earlier dims as panels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxmesh.drawing.placement import (
    Piece,
    Placement,
    Shape,
    axis_ranges,
    holders_text,
    index_text,
    piece_text,
    piece_type,
)
from jaxmesh.drawing.shapes import Block, Label, Mark, arrange
from jaxmesh.drawing.text_layout import cells, fit_texts, shorten, width

Interval = tuple[int, int]
MOST_COLUMNS = 32
_MOST_ROWS = 32
_GAP = 16.0
_SMALL_GAP = 5.0


def draw_tensor(holding: Placement, most: float, *, small: bool = False) -> Block:
    """Draws the full tensor in its pieces, to scale; shards of unknown boxes are drawn side by side."""
    if holding.shape is None:
        return _shards(holding, most, small)
    rank = len(holding.shape)
    parts = [holding.intervals(d) or [(0, n)] for d, n in enumerate(holding.shape)]
    rows = parts[-2] if rank > 1 else [(0, 1)]
    columns = parts[-1] if rank else [(0, 1)]
    panels = [
        _Panel(front, r, c)
        for front in itertools.product(*parts[:-2])
        for r in _blocks(rows, _MOST_ROWS)
        for c in _blocks(columns, MOST_COLUMNS)
    ]
    scale = _scale(holding, panels, most, small)
    if small and len(panels) > 16:
        return Block()
    found: dict[object, int] = {p.box: i for i, p in enumerate(holding.pieces)}
    blocks = [_draw(holding, panel, len(panels) > 1 or rank > 2, scale, found) for panel in panels]
    inner = math.prod(map(len, parts[1:-2]))
    wanted = (inner if inner > 1 else len(parts[0]) if rank > 2 else 1) * len(_blocks(columns, MOST_COLUMNS))
    if len(rows) > _MOST_ROWS:
        wanted = len(blocks)
    gap = _SMALL_GAP if small else _GAP
    made = arrange(blocks, wanted, most, gap, even=rank > 2 and wanted <= 8)
    _write(made, {i: _choices(holding, p) for i, p in enumerate(holding.pieces)})
    return made


@dataclass(frozen=True, slots=True)
class _Panel:
    """One panel: an interval of each earlier dim, and the intervals of rows and columns."""

    front: tuple[Interval, ...]
    rows: Sequence[Interval]
    columns: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class _Scale:
    """The size of the largest panel, its rows and columns in elements, and whether panels are labelled."""

    w: float
    h: float
    rows: int
    columns: int
    named: bool


def _blocks(parts: list[Interval], most: int) -> list[list[Interval]]:
    return [parts[i : i + most] for i in range(0, len(parts), most)]


def _scale(holding: Placement, panels: Sequence[_Panel], most: float, small: bool) -> _Scale:
    shape = holding.shape or ()
    rows, columns = max(len(p.rows) for p in panels), max(len(p.columns) for p in panels)
    spans = max(_length(p.rows) for p in panels), max(_length(p.columns) for p in panels)
    if small:
        side = 44.0 if len(panels) == 1 else 26.0
    else:
        side = 200.0 if len(panels) == 1 else 150.0 if len(panels) <= 4 else 96.0 if len(panels) <= 16 else 40.0
    if len(shape) < 2:
        flat = 16.0 if small else 36.0 if len(panels) == 1 else 20.0
        least = 2.2 * side if shape else 0.5 * side
        w = min(max(least, columns * _least_width(holding, small)), most - 30)
        return _Scale(w, max(flat, 44.0 if not shape and not small else 0), *spans, not small)
    # True proportions within limits.
    aspect = min(max((shape[-2] or 1) / (shape[-1] or 1), 0.4), 1.5)
    w = max(side / math.sqrt(aspect), columns * _least_width(holding, small))
    h = max(side * math.sqrt(aspect), rows * (15.0 if not small else 6.0))
    return _Scale(min(w, most - 30), h, *spans, not small)


def _least_width(holding: Placement, small: bool) -> float:
    return max((cells(p.label) for p in holding.pieces), default=1) * 4.7 + 5 if not small else 6.0


def _draw(holding: Placement, panel: _Panel, titled: bool, scale: _Scale, found: dict[object, int]) -> Block:
    made = Block()
    shape = holding.shape or ()
    left = top = 0.0
    y0, x0 = panel.rows[0][0], panel.columns[0][0]
    # One scale for all panels, also where the last has fewer rows.
    across, down = scale.w / max(scale.columns, 1), scale.h / max(scale.rows, 1)
    if scale.named:
        extent = _length(panel.columns) * across or scale.w, _length(panel.rows) * down or scale.h
        left, top = _frame(made, holding, panel, titled, extent)
    for r, c in itertools.product(panel.rows, panel.columns):
        box = (*panel.front, r, c)[-len(shape) or 99 :]
        at = left + (c[0] - x0) * across, top + (r[0] - y0) * down
        size = ((c[1] - c[0]) * across or scale.w), ((r[1] - r[0]) * down or scale.h)
        empty = math.prod(b - a for a, b in box) == 0
        number = None if empty else found.get(box)
        if number is None:
            hint = [f"{index_text(box)}: {'no elements' if empty else 'on no device'}"]
        else:
            hint = hover(holding, holding.pieces[number])
        made.mark(Mark("region", *at, *size, number, (), 0, hint))
    return made


def _write(block: Block, texts: dict[int, list[list[str]]]) -> None:
    """Writes the texts that fit into the boxes, with one font size for boxes of one size."""
    sizes: dict[tuple[int, int], list[int]] = {}
    for i, mark in enumerate(block.marks):
        sizes.setdefault((round(mark.w), round(mark.h)), []).append(i)
    for row in sizes.values():
        wide, high = min(block.marks[i].w for i in row), min(block.marks[i].h for i in row)
        marks = [block.marks[i] for i in row]
        choices = [[[m.hover[0].rpartition(": ")[2]], ["-"]] if m.piece is None else texts[m.piece] for m in marks]
        lines, font = fit_texts(choices, wide, high, 12, 6.5)
        for i, shown in zip(row, lines, strict=True):
            block.marks[i] = replace(block.marks[i], lines=shown, size=font)


def _length(parts: Sequence[Interval]) -> int:
    return parts[-1][1] - parts[0][0]


def _choices(holding: Placement, piece: Piece) -> list[list[str]]:
    """Returns the possible texts of a piece, the longest first."""
    count = len(piece.holders)
    copies = f"{count} copies" if count > 1 else holders_text(holding, piece)
    what = index_text(piece.box, holding.shape) if piece.box is not None else piece.which
    full = [[piece.label, what, copies], [piece.label, what]] if what != "[]" else []
    return [*full, [piece.label, copies], [piece.label]]


def hover(holding: Placement, piece: Piece) -> list[str]:
    """Returns the tooltip of a piece."""
    where = axis_ranges(holding, piece)
    return [
        f"{piece.label}: {piece_text(piece)}",
        piece_type(holding, piece),
        f"on {holders_text(holding, piece)}" + (f" ({where})" if where else ""),
    ]


# --- titles and ticks ------------------------------------------------------------------------------------------------


def _frame(
    made: Block, holding: Placement, panel: _Panel, titled: bool, extent: tuple[float, float]
) -> tuple[float, float]:
    """Writes the labels above and beside a panel, and returns the panel's corner."""
    shape: Shape = holding.shape or ()
    if not shape:
        return 0.0, 0.0
    size, top = 8.5, 0.0
    edges = [panel.rows[0][0], *(b for _, b in panel.rows)] if len(shape) > 1 else []
    rows = _ticks(edges, extent[1], size * 1.15, sideways=False)
    left = max((width(str(n), size) for n, _ in rows), default=0) + 4 if rows else 0.0
    # The first number above the columns is centred on their left edge.
    left = max(left, width(str(panel.columns[0][0]), size) / 2)
    if titled:
        text = _title(holding, panel)
        font = min(10.0, extent[0] / max(1.0, width(text, 1)))
        if font < 6.5:
            # A narrow panel names the intervals of its first dims alone.
            text = shorten(",".join(f"{a}:{b}" for a, b in panel.front), 24)
            font = min(10.0, extent[0] / max(1.0, width(text, 1)))
        if text and font >= 5.5:
            made.label(Label(left, 10, text, int(font * 10) / 10))
        top += 15
    top += 13
    for n, y in rows:
        made.label(Label(left - 4, top + y + size * 0.35, str(n), size, "end"))
    edges = [panel.columns[0][0], *(b for _, b in panel.columns)]
    for n, x in _ticks(edges, extent[0], size, sideways=True):
        made.label(Label(left + x, top - 5, str(n), size, "middle"))
    made.w = max(made.w, left + extent[0] + width(str(edges[-1]), size) / 2)
    return left, top


def _ticks(edges: Sequence[int], length: float, size: float, *, sideways: bool) -> list[tuple[int, float]]:
    """Returns the positions of the numbers at the edges that fit; the first and the last come first."""
    if not edges:
        return []
    span = max(edges[-1] - edges[0], 1)
    found = [(n, (n - edges[0]) / span * length) for n in dict.fromkeys(edges)]

    def room(n: int) -> float:
        return width(str(n), size) + 4 if sideways else size

    # Every edge, or every second, fourth, ...: the first of those that have room.
    for stride in (1, 2, 4, 8, 16, 32):
        kept = found[::stride]
        steps = [(b[1] - a[1], (room(a[0]) + room(b[0])) / 2) for a, b in itertools.pairwise(kept)]
        if all(free >= needed for free, needed in steps):
            break
    last = found[-1]
    while len(kept) > 1 and kept[-1] != last and last[1] - kept[-1][1] < (room(last[0]) + room(kept[-1][0])) / 2:
        kept.pop()
    fits = last[1] - kept[-1][1] >= (room(last[0]) + room(kept[-1][0])) / 2
    return [*kept, last] if kept[-1] != last and fits else kept


def _title(holding: Placement, panel: _Panel) -> str:
    shape: Shape = holding.shape or ()
    spans = [*panel.front, *((parts[0][0], parts[-1][1]) for parts in (panel.rows, panel.columns))]
    return index_text(tuple(spans[-len(shape) :]), shape)


# --- shards that nothing puts together -------------------------------------------------------------------------------


def _shards(holding: Placement, most: float, small: bool) -> Block:
    """Draws pieces of unknown boxes side by side."""
    w, h = (18.0, 14.0) if small else (96.0, 44.0) if len(holding.pieces) <= 32 else (34.0, 20.0)
    marks = [Mark("region", 0, 0, w, h, i, (), 0, hover(holding, p)) for i, p in enumerate(holding.pieces)]
    blocks = [Block(w, h, [mark]) for mark in marks]
    gap = 2.0 if small else 8.0
    made = arrange(blocks, 4 if len(blocks) <= 16 else 16, most, gap)
    shown = {
        i: [[p.label, p.which, str(list(p.shape))], [p.label, p.which], [p.label]] for i, p in enumerate(holding.pieces)
    }
    _write(made, shown)
    return made
