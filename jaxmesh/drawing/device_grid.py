"""The device grid: the last two mesh axes as rows and columns, earlier axes as panels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxmesh.drawing.placement import LONELY, DeviceRow, PlacedDevice, Placement, row_head
from jaxmesh.drawing.shapes import Block, Label, Mark, arrange
from jaxmesh.drawing.text_layout import cells, fit_texts, shorten, width

MOST_COLUMNS = 32
"""The number of devices in a row; longer rows are folded."""
_MOST_ROWS = 32
"""The number of rows in a block; further rows continue beside the first rows."""
_GAP = 18.0
_NAME = 18


@dataclass(frozen=True, slots=True)
class _Look:
    """The size of a cell, the gap between cells, True if axes are named, and the texts of each cell."""

    w: float
    h: float
    gap: float
    named: bool
    texts: dict[tuple[int, ...], Sequence[str]]
    font: float


def draw_devices(placement: Placement, most: float, *, small: bool = False) -> Block:
    """Draws the devices in the colours of their pieces; `small` is for a row of a table: no axes, little text."""
    size = (14.0, 12.0, 1.5) if small else _cell_size(placement, most)
    texts, font = fit_texts([_texts(placement, d) for d in placement.devices], *size[:2], 9 if small else 11.5, 6.5)
    texts_of = {d.coordinate: lines for d, lines in zip(placement.devices, texts, strict=True)}
    look = _Look(*size, not small, texts_of, font)
    panels = placement.panels(MOST_COLUMNS)
    split: list[Block] = []
    for front, rows in panels:
        # A panel of many rows becomes several blocks.
        head = ", ".join(f"{shorten(n, _NAME)}={at}" for (n, _), at in zip(placement.axes, front, strict=False))
        split += [_block(placement, head, rows[i : i + _MOST_ROWS], look) for i in range(0, len(rows), _MOST_ROWS)]
    wanted = placement.axes[-3][1] if len(placement.axes) > 2 else 1
    if len(split) > len(panels):
        wanted = len(split)
    gap = 5.0 if small else _GAP
    return arrange(split, wanted, most, gap, even=wanted <= 8)


def _cell_size(placement: Placement, most: float) -> tuple[float, float, float]:
    """Returns width and height of a cell, and the gap between cells."""
    sizes = [size for _, size in placement.axes]
    columns = min(sizes[-1], MOST_COLUMNS)
    count = math.prod(sizes)
    beside = sizes[-3] if len(sizes) > 2 else 1
    # The width without gaps and row names.
    room = (most - (beside - 1) * _GAP - 40 * beside) / (columns * beside) - 3
    longest = max((cells(line) for d in placement.devices for line in _texts(placement, d)[0]), default=6)
    if count <= 16:
        return max(52.0, min(longest * 6.2 + 10, 132.0, max(room, 62.0))), 52, 4
    label = max((cells(p.label) for p in placement.pieces), default=2)
    if count <= 64:
        return max(label * 4.1 + 7, min(longest * 5.2 + 8, 84.0, room)), 34, 3
    return max(label * 4.1 + 6.5, min(label * 5.2 + 5, 30.0, room)), 17, 1.5


def _block(placement: Placement, head: str, rows: Sequence[DeviceRow], look: _Look) -> Block:
    block = Block()
    folded = len({r.first for r in rows}) > 1
    columns = max(len(r.devices) for r in rows)
    names = [shorten(n, _NAME) for n, _ in placement.axes[-2:]]
    heads = [row_head(names, r, folded) for r in rows] if look.named else []
    size = 10.0 if look.h > 20 else 8.5
    left = max((width(t, size) for t in heads), default=0) + 6 if any(heads) else 0.0
    top = 0.0
    if look.named:
        if head:
            block.label(Label(left, 11, head, 11, strong=True))
            top += 18
        top += _column_heads(block, placement, columns, folded, left, top, look)
    for i, row in enumerate(rows):
        y = top + i * (look.h + look.gap)
        if heads and heads[i]:
            block.label(Label(left - 6, y + look.h / 2 + size * 0.35, heads[i], size, "end"))
        for j, device in enumerate(row.devices):
            corner = left + j * (look.w + look.gap), y
            lines = look.texts[device.coordinate]
            block.mark(
                Mark("device", *corner, look.w, look.h, device.piece, lines, look.font, _hover(placement, device))
            )
    return block


def _column_heads(
    block: Block, placement: Placement, columns: int, folded: bool, left: float, top: float, look: _Look
) -> float:
    """Writes the coordinates of the last axis above the columns, and returns their height."""
    if folded or placement.axes == LONELY:
        return 0.0
    name = shorten(placement.axes[-1][0], _NAME)
    texts = [f"{name}={j}" for j in range(columns)]
    if max(width(t, 10) for t in texts) <= look.w:
        size = 10.0
    else:
        # Write the name once, then numbers only.
        block.label(Label(left, top + 9, f"{name}=", 10))
        top, texts, size = top + 13, list(map(str, range(columns))), 8.5
    every = next((n for n in (1, 2, 4, 8, 16) if max(width(t, size) for t in texts) <= look.w * n), 32)
    for j in range(0, columns, every):
        block.label(Label(left + j * (look.w + look.gap) + look.w / 2, top + 9, texts[j], size, "middle"))
    return 14.0 + (13.0 if size < 10 else 0.0)


def _texts(placement: Placement, device: PlacedDevice) -> list[list[str]]:
    """Returns the possible texts of a cell, the longest first."""
    name, number = device.name, "" if device.id is None else str(device.id)
    if device.piece is None:
        nothing = ["nothing"] if placement.pieces else []
        return [[name, *nothing], [name], [number, "-"], [number or "-"], ["-"]]
    piece = placement.pieces[device.piece]
    text = shorten(piece.text(placement.shape), 24)
    choices = [[name, piece.label, text]] if text not in ("", "[]") else []
    choices += [[name, piece.label], [number, piece.label], [piece.label]]
    return [[line for line in lines if line] for lines in choices]


def _hover(placement: Placement, device: PlacedDevice) -> list[str]:
    """Returns the tooltip of a device."""
    lines = [f"{device.name} at {placement.coordinate_text(device)}".lstrip()]
    if device.note:
        lines.append(device.note)
    if device.piece is None:
        return [*lines, "holds nothing"] if placement.pieces else lines
    piece = placement.pieces[device.piece]
    lines += [f"holds {piece.label}: {piece.text()}", placement.type_of(piece)]
    if len(piece.holders) > 1:
        lines.append(f"the same on {placement.holders_text(piece)} ({placement.axis_ranges(piece)})".replace(" ()", ""))
    return lines
