"""The tensor with its pieces: the last two dims as rows and columns, earlier dims as panels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxmesh.drawing.placement import Placement, Shape, TensorPiece, index_text
from jaxmesh.drawing.shapes import Block, Label, Mark, arrange
from jaxmesh.drawing.text_layout import cells, fit_texts, shorten, width

Interval = tuple[int, int]
MOST_COLUMNS = 32
_MOST_ROWS = 32
_GAP = 16.0
_SMALL_GAP = 5.0


def draw_tensor(placement: Placement, most: float, *, small: bool = False) -> Block:
    """Draws the full tensor and its pieces, to scale; draws shards of unknown boxes side by side."""
    if placement.shape is None:
        return _shards(placement, most, small)
    rank = len(placement.shape)
    parts = [placement.intervals(d) or [(0, n)] for d, n in enumerate(placement.shape)]
    rows = parts[-2] if rank > 1 else [(0, 1)]
    columns = parts[-1] if rank else [(0, 1)]
    panels = [
        _TensorPanel(front, r, c)
        for front in itertools.product(*parts[:-2])
        for r in _blocks(rows, _MOST_ROWS)
        for c in _blocks(columns, MOST_COLUMNS)
    ]
    scale = _scale(placement, panels, most, small)
    if small and len(panels) > 16:
        return Block()
    numbers: dict[object, int] = {p.box: i for i, p in enumerate(placement.pieces)}
    blocks = [_draw(placement, panel, len(panels) > 1 or rank > 2, scale, numbers) for panel in panels]
    inner = math.prod(map(len, parts[1:-2]))
    wanted = (inner if inner > 1 else len(parts[0]) if rank > 2 else 1) * len(_blocks(columns, MOST_COLUMNS))
    if len(rows) > _MOST_ROWS:
        wanted = len(blocks)
    gap = _SMALL_GAP if small else _GAP
    drawing = arrange(blocks, wanted, most, gap, even=rank > 2 and wanted <= 8)
    _write(drawing, {i: _choices(placement, p) for i, p in enumerate(placement.pieces)})
    return drawing


@dataclass(frozen=True, slots=True)
class _TensorPanel:
    """One panel: an interval of each earlier dim, and the intervals of rows and columns."""

    front: tuple[Interval, ...]
    rows: Sequence[Interval]
    columns: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class _Scale:
    """The size of the largest panel, its rows and columns in elements, and True if panels are labelled."""

    w: float
    h: float
    rows: int
    columns: int
    named: bool


def _blocks(parts: list[Interval], most: int) -> list[list[Interval]]:
    return [parts[i : i + most] for i in range(0, len(parts), most)]


def _scale(placement: Placement, panels: Sequence[_TensorPanel], most: float, small: bool) -> _Scale:
    shape = placement.shape or ()
    rows, columns = max(len(p.rows) for p in panels), max(len(p.columns) for p in panels)
    spans = max(_length(p.rows) for p in panels), max(_length(p.columns) for p in panels)
    if small:
        side = 44.0 if len(panels) == 1 else 26.0
    else:
        side = 200.0 if len(panels) == 1 else 150.0 if len(panels) <= 4 else 96.0 if len(panels) <= 16 else 40.0
    if len(shape) < 2:
        flat = 16.0 if small else 36.0 if len(panels) == 1 else 20.0
        least = 2.2 * side if shape else 0.5 * side
        w = min(max(least, columns * _least_width(placement, small)), most - 30)
        return _Scale(w, max(flat, 44.0 if not shape and not small else 0), *spans, not small)
    # True proportions within limits.
    aspect = min(max((shape[-2] or 1) / (shape[-1] or 1), 0.4), 1.5)
    w = max(side / math.sqrt(aspect), columns * _least_width(placement, small))
    h = max(side * math.sqrt(aspect), rows * (15.0 if not small else 6.0))
    return _Scale(min(w, most - 30), h, *spans, not small)


def _least_width(placement: Placement, small: bool) -> float:
    return max((cells(p.label) for p in placement.pieces), default=1) * 4.7 + 5 if not small else 6.0


def _draw(placement: Placement, panel: _TensorPanel, titled: bool, scale: _Scale, numbers: dict[object, int]) -> Block:
    block = Block()
    shape = placement.shape or ()
    left = top = 0.0
    y0, x0 = panel.rows[0][0], panel.columns[0][0]
    # One scale for all panels, even if the last has fewer rows.
    across, down = scale.w / max(scale.columns, 1), scale.h / max(scale.rows, 1)
    if scale.named:
        extent = _length(panel.columns) * across or scale.w, _length(panel.rows) * down or scale.h
        left, top = _frame(block, placement, panel, titled, extent)
    for r, c in itertools.product(panel.rows, panel.columns):
        box = (*panel.front, r, c)[-len(shape) or 99 :]
        corner = left + (c[0] - x0) * across, top + (r[0] - y0) * down
        size = ((c[1] - c[0]) * across or scale.w), ((r[1] - r[0]) * down or scale.h)
        empty = math.prod(b - a for a, b in box) == 0
        number = None if empty else numbers.get(box)
        if number is None:
            hint = [f"{index_text(box)}: {'no elements' if empty else 'on no device'}"]
        else:
            hint = hover(placement, placement.pieces[number])
        block.mark(Mark("region", *corner, *size, number, (), 0, hint))
    return block


def _write(block: Block, texts: dict[int, list[list[str]]]) -> None:
    """Writes the texts that fit into the boxes, with one font size for boxes of one size."""
    sizes: dict[tuple[int, int], list[int]] = {}
    for i, mark in enumerate(block.marks):
        sizes.setdefault((round(mark.w), round(mark.h)), []).append(i)
    for indices in sizes.values():
        wide, high = min(block.marks[i].w for i in indices), min(block.marks[i].h for i in indices)
        marks = [block.marks[i] for i in indices]
        choices = [[[m.hover[0].rpartition(": ")[2]], ["-"]] if m.piece is None else texts[m.piece] for m in marks]
        lines, font = fit_texts(choices, wide, high, 12, 6.5)
        for i, shown in zip(indices, lines, strict=True):
            block.marks[i] = replace(block.marks[i], lines=shown, size=font)


def _length(parts: Sequence[Interval]) -> int:
    return parts[-1][1] - parts[0][0]


def _choices(placement: Placement, piece: TensorPiece) -> list[list[str]]:
    """Returns the possible texts of a piece, the longest first."""
    count = len(piece.holders)
    copies = f"{count} copies" if count > 1 else placement.holders_text(piece)
    what = piece.text(placement.shape)
    full = [[piece.label, what, copies], [piece.label, what]] if what != "[]" else []
    return [*full, [piece.label, copies], [piece.label]]


def hover(placement: Placement, piece: TensorPiece) -> list[str]:
    """Returns the tooltip of a piece."""
    where = placement.axis_ranges(piece)
    return [
        f"{piece.label}: {piece.text()}",
        placement.type_of(piece),
        f"on {placement.holders_text(piece)}" + (f" ({where})" if where else ""),
    ]


# --- titles and ticks ------------------------------------------------------------------------------------------------


def _frame(
    block: Block, placement: Placement, panel: _TensorPanel, titled: bool, extent: tuple[float, float]
) -> tuple[float, float]:
    """Writes the labels above and beside a panel, and returns the panel's corner."""
    shape: Shape = placement.shape or ()
    if not shape:
        return 0.0, 0.0
    size, top = 8.5, 0.0
    edges = [panel.rows[0][0], *(b for _, b in panel.rows)] if len(shape) > 1 else []
    rows = _ticks(edges, extent[1], size * 1.15, sideways=False)
    left = max((width(str(n), size) for n, _ in rows), default=0) + 4 if rows else 0.0
    # The first number above the columns is centred on their left edge.
    left = max(left, width(str(panel.columns[0][0]), size) / 2)
    if titled:
        text = _title(placement, panel)
        font = min(10.0, extent[0] / max(1.0, width(text, 1)))
        if font < 6.5:
            # A narrow panel names only the intervals of its first dims.
            text = shorten(",".join(f"{a}:{b}" for a, b in panel.front), 24)
            font = min(10.0, extent[0] / max(1.0, width(text, 1)))
        if text and font >= 5.5:
            block.label(Label(left, 10, text, int(font * 10) / 10))
        top += 15
    top += 13
    for n, y in rows:
        block.label(Label(left - 4, top + y + size * 0.35, str(n), size, "end"))
    edges = [panel.columns[0][0], *(b for _, b in panel.columns)]
    for n, x in _ticks(edges, extent[0], size, sideways=True):
        block.label(Label(left + x, top - 5, str(n), size, "middle"))
    block.w = max(block.w, left + extent[0] + width(str(edges[-1]), size) / 2)
    return left, top


def _ticks(edges: Sequence[int], length: float, size: float, *, sideways: bool) -> list[tuple[int, float]]:
    """Returns the positions of the numbers at the edges that fit; keeps the first and the last edge if possible."""
    if not edges:
        return []
    span = max(edges[-1] - edges[0], 1)
    ticks = [(n, (n - edges[0]) / span * length) for n in dict.fromkeys(edges)]

    def room(n: int) -> float:
        return width(str(n), size) + 4 if sideways else size

    # The smallest stride with enough room between its edges.
    for stride in (1, 2, 4, 8, 16, 32):
        kept = ticks[::stride]
        steps = [(b[1] - a[1], (room(a[0]) + room(b[0])) / 2) for a, b in itertools.pairwise(kept)]
        if all(free >= needed for free, needed in steps):
            break
    last = ticks[-1]
    while len(kept) > 1 and kept[-1] != last and last[1] - kept[-1][1] < (room(last[0]) + room(kept[-1][0])) / 2:
        kept.pop()
    fits = last[1] - kept[-1][1] >= (room(last[0]) + room(kept[-1][0])) / 2
    return [*kept, last] if kept[-1] != last and fits else kept


def _title(placement: Placement, panel: _TensorPanel) -> str:
    shape: Shape = placement.shape or ()
    spans = [*panel.front, *((parts[0][0], parts[-1][1]) for parts in (panel.rows, panel.columns))]
    return index_text(tuple(spans[-len(shape) :]), shape)


# --- shards with unknown boxes --------------------------------------------------------------------------------------


def _shards(placement: Placement, most: float, small: bool) -> Block:
    """Draws pieces of unknown boxes side by side."""
    w, h = (18.0, 14.0) if small else (96.0, 44.0) if len(placement.pieces) <= 32 else (34.0, 20.0)
    marks = [Mark("region", 0, 0, w, h, i, (), 0, hover(placement, p)) for i, p in enumerate(placement.pieces)]
    blocks = [Block(w, h, [mark]) for mark in marks]
    gap = 2.0 if small else 8.0
    drawing = arrange(blocks, 4 if len(blocks) <= 16 else 16, most, gap)
    shown = {
        i: [[p.label, p.which, str(list(p.shape))], [p.label, p.which], [p.label]]
        for i, p in enumerate(placement.pieces)
    }
    _write(drawing, shown)
    return drawing
