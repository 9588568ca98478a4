"""A placement as text: plain, or in the colours of the picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxmesh.drawing.colors import piece_colors, rgb, text_on
from jaxmesh.drawing.placement import (
    LONELY,
    PlacedDevice,
    Placement,
    TensorPiece,
    axis_ranges,
    describe_dims,
    device_panels,
    holders_text,
    mesh_text,
    piece_text,
    size_text,
    summarise,
)
from jaxmesh.drawing.text_layout import align_columns, cells, shorten

_WIDEST = 100
_IN_FULL = 64
"""The size of the largest mesh whose cells show more than the piece."""
_LISTED = 32
"""The number of pieces listed; of a longer list, only the first pieces and the last are shown."""


Paint = Callable[[str, int | None], str]
"""Colours a text by the number of its piece, None without one."""


def _leave(text: str, piece: int | None) -> str:
    del piece
    return text


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """A table of devices: its coordinate on the earlier axes, the column heads, and rows with their heads."""

    head: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[PlacedDevice]]]


def panels(placement: Placement, across: int) -> list[DeviceTable]:
    """Returns the mesh as tables of at most `across` columns; longer rows are folded."""
    names, columns = [shorten(n, 16) for n, _ in placement.axes], placement.axes[-1][1]
    heads = [f"{names[-1]}={j}" for j in range(columns)] if columns <= across and placement.axes != LONELY else []
    tables: list[DeviceTable] = []
    for front, rows in device_panels(placement, across):
        lines: list[tuple[str, Sequence[PlacedDevice]]] = []
        for r in rows:
            head = [f"{names[-2]}={r.row}"] if len(names) > 1 else []
            head += [f"{names[-1]}={r.first}-{r.first + len(r.devices) - 1}"] if columns > across else []
            lines.append((", ".join(head), r.devices))
        tables.append(DeviceTable(", ".join(f"{n}={at}" for n, at in zip(names, front, strict=False)), heads, lines))
    return tables


def head_lines(placement: Placement) -> list[str]:
    """Returns the lines above the table."""
    title = f"{placement.title}  {placement.how}".strip() if placement.pieces else ""
    lines = [title] if title else []
    return [
        shorten(t, 400) for t in [*lines, f"{mesh_text(placement)}: {summarise(placement)}", *describe_dims(placement)]
    ]


def piece_rows(placement: Placement) -> list[tuple[int | None, TensorPiece | None]]:
    """Returns the pieces to list, by number; None stands for the pieces left out."""
    numbered: list[tuple[int | None, TensorPiece | None]] = list(enumerate(placement.pieces))
    return numbered if len(numbered) <= _LISTED else [*numbered[:8], (None, None), numbered[-1]]


def piece_words(placement: Placement, piece: TensorPiece) -> tuple[str, str, str]:
    """Returns the box of a piece, its holders and its size."""
    where, who = axis_ranges(placement, piece), holders_text(placement, piece)
    at = f" ({where})" if where and where != who else ""
    return shorten(piece_text(piece), 80), shorten(who + at, 120), size_text(placement.bytes_of(piece))


def plain_text(placement: Placement, paint: Paint = _leave) -> str:
    """Returns the placement as plain text; `paint` colours the name of each piece."""
    short = len(placement.devices) > _IN_FULL
    wide = max(cells(_cell(placement, d, short)) for d in placement.devices)
    tables = panels(placement, max(1, (_WIDEST - 12) // (max(wide, 4) + 2)))
    lines = head_lines(placement)
    for panel in tables:
        lines += ["", *([panel.head] if panel.head else []), *_table(placement, panel, short, paint)]
    if placement.pieces:
        listed = piece_rows(placement)
        texts = align_columns([(p.label, *piece_words(placement, p)) for _, p in listed if p is not None])
        if (None, None) in listed:
            texts.insert(listed.index((None, None)), f"... {len(placement.pieces) - len(texts)} more")
        lines.append("")
        for (number, piece), text in zip(listed, texts, strict=True):
            lines.append(text if piece is None else paint(piece.label, number) + text[len(piece.label) :])
    lines += [f"note: {shorten(n, 1000)}" for n in placement.notes]
    return "\n".join(lines)


def coloured_text(placement: Placement) -> str:
    """Returns the placement as text for a terminal, in the colours of the picture."""
    fills = piece_colors(len(placement.pieces))

    def paint(text: str, piece: int | None) -> str:
        return text if piece is None else ansi(text, text_on(fills[piece]), fills[piece])

    return plain_text(placement, paint)


def ansi(text: str, ink: str, fill: str = "") -> str:
    """Returns a text for a terminal with colours of `#rrggbb`.

    >>> ansi("A", "#000000", "#56b4e9")
    '\\x1b[38;2;0;0;0;48;2;86;180;233mA\\x1b[0m'
    """
    codes = [f"{code};2;{';'.join(map(str, rgb(color)))}" for code, color in ((38, ink), (48, fill)) if color]
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m"


def _cell(placement: Placement, device: PlacedDevice, short: bool) -> str:
    name = "" if device.id is None else str(device.id)
    if device.piece is None:
        text = "-" if placement.pieces else name or "."
        return text if short else f"{name} -".strip() if placement.pieces else text
    label = placement.pieces[device.piece].label
    return label if short else f"{name} {label}".strip()


def _table(placement: Placement, panel: DeviceTable, short: bool, paint: Paint) -> list[str]:
    cells_of = [[(_cell(placement, d, short), d.piece) for d in devices] for _, devices in panel.rows]
    heads, names = [head for head, _ in panel.rows], panel.columns
    wide = max(cells(t) for t in (*names, *(text for row in cells_of for text, _ in row)))
    left = max(map(cells, heads))
    pad = " " * (left + 2) if left else ""
    lines = [pad + "  ".join(n + " " * (wide - cells(n)) for n in names).rstrip()] if names else []
    for head, row in zip(heads, cells_of, strict=True):
        before = head + " " * (left - cells(head) + 2) if left else ""
        texts = [paint(text, piece) + " " * (wide - cells(text)) for text, piece in row]
        lines.append((before + "  ".join(texts)).rstrip())
    return lines
