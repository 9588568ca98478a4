"""A placement as text: plain text for any terminal, and a table for `rich` in the colours of the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxmesh.drawing.colors import piece_colors, text_on
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


def plain_text(placement: Placement) -> str:
    """Returns the placement as plain text."""
    short = len(placement.devices) > _IN_FULL
    wide = max(cells(_cell(placement, d, short)) for d in placement.devices)
    tables = panels(placement, max(1, (_WIDEST - 12) // (max(wide, 4) + 2)))
    lines = head_lines(placement)
    for panel in tables:
        lines += ["", *([panel.head] if panel.head else []), *_table(placement, panel, short)]
    if placement.pieces:
        listed = [p for _, p in piece_rows(placement)]
        texts = align_columns([(p.label, *piece_words(placement, p)) for p in listed if p is not None])
        if None in listed:
            texts.insert(listed.index(None), f"... {len(placement.pieces) - len(texts)} more")
        lines += ["", *texts]
    lines += [f"note: {shorten(n, 1000)}" for n in placement.notes]
    return "\n".join(lines)


def _cell(placement: Placement, device: PlacedDevice, short: bool) -> str:
    name = "" if device.id is None else str(device.id)
    if device.piece is None:
        text = "-" if placement.pieces else name or "."
        return text if short else f"{name} -".strip() if placement.pieces else text
    label = placement.pieces[device.piece].label
    return label if short else f"{name} {label}".strip()


def _table(placement: Placement, panel: DeviceTable, short: bool) -> list[str]:
    rows = [[head, *(_cell(placement, d, short) for d in devices)] for head, devices in panel.rows]
    rows = [["", *panel.columns], *rows] if panel.columns else rows
    count = max(map(len, rows))
    width = [max((cells(r[i]) for r in rows if i < len(r)), default=0) for i in range(count)]
    # All columns of devices are as wide as the widest.
    width = [width[0], *[max(width[1:])] * (count - 1)]
    lines = ["  ".join(t + " " * (n - cells(t)) for t, n in zip(r, width, strict=False)).rstrip() for r in rows]
    return lines if width[0] else [line[2:] for line in lines]


# --- colours ---------------------------------------------------------------------------------------------------------


def rich_group(placement: Placement) -> Any:
    """Returns the placement for `rich`: a coloured table of the devices, and a list of the pieces."""
    from rich.console import Group
    from rich.text import Text

    fills = piece_colors(len(placement.pieces))
    first, *rest = head_lines(placement)
    parts: list[Any] = [Text(first, "bold"), *map(Text, rest)]
    short = len(placement.devices) > _IN_FULL
    across = 16 if short else 8
    parts += [_rich_panel(placement, panel, short, fills) for panel in panels(placement, across)]
    if placement.pieces:
        parts.append(_rich_pieces(placement, fills))
    parts += [Text(f"note: {shorten(n, 1000)}", "italic") for n in placement.notes]
    return Group(*parts)


def _style(number: int | None, fills: Sequence[str]) -> str:
    return "" if number is None else f"{text_on(fills[number])} on {fills[number]}"


def _rich_panel(placement: Placement, panel: DeviceTable, short: bool, fills: Sequence[str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table: Any = Table(title=Text(panel.head) if panel.head else None, title_justify="left", show_lines=not short,
                      show_header=bool(panel.columns), padding=(0, 0) if short else (0, 1))  # fmt: skip
    headed = any(head for head, _ in panel.rows)
    if headed:
        table.add_column("", justify="right")
    for j in range(max(len(devices) for _, devices in panel.rows)):
        table.add_column(Text(panel.columns[j]) if panel.columns else "", justify="center", no_wrap=True)
    for head, devices in panel.rows:
        row: list[Any] = [Text(head)] if headed else []
        for device in devices:
            lines = _rich_lines(placement, device, short)
            row.append(Text("\n".join(f" {line} " if not short else line for line in lines),
                            _style(device.piece, fills), justify="center"))  # fmt: skip
        table.add_row(*row)
    return table


def _rich_lines(placement: Placement, device: PlacedDevice, short: bool) -> list[str]:
    if short or device.id is None:
        return [_cell(placement, device, short)]
    name = f"device {device.id}"
    if device.piece is None:
        return [name, "-"] if placement.pieces else [name]
    piece = placement.pieces[device.piece]
    what = piece_text(piece)
    return [name, f"{piece.label} {what}" if len(what) <= 24 else piece.label]


def _rich_pieces(placement: Placement, fills: Sequence[str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table: Any = Table(show_header=True, box=None, pad_edge=False, header_style="dim")
    for name in ("piece", "slice" if placement.shape is not None else "shard", "held by", "size"):
        table.add_column(name)
    for number, piece in piece_rows(placement):
        if piece is None:
            table.add_row("...", f"{len(placement.pieces) - 9} more", "", "")
            continue
        what, who, size = piece_words(placement, piece)
        table.add_row(Text(f" {piece.label} ", _style(number, fills)), Text(what), Text(who), Text(size))
    return table
