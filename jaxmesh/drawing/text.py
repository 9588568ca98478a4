"""A placement as text: plain text for any terminal, and a table for `rich` in the colours of the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxmesh.drawing.colors import piece_colors, text_on
from jaxmesh.drawing.placement import (
    LONELY,
    Device,
    Piece,
    Placement,
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
"""The number of pieces listed; of more only the first ones and the last are."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A table of devices: its coordinate on the earlier axes, the column heads, and rows with their heads."""

    head: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Device]]]


def panels(holding: Placement, across: int) -> list[Panel]:
    """Returns the mesh as tables of at most `across` columns; longer rows are folded."""
    names, columns = [shorten(n, 16) for n, _ in holding.axes], holding.axes[-1][1]
    heads = [f"{names[-1]}={j}" for j in range(columns)] if columns <= across and holding.axes != LONELY else []
    made: list[Panel] = []
    for front, rows in device_panels(holding, across):
        lines: list[tuple[str, Sequence[Device]]] = []
        for r in rows:
            head = [f"{names[-2]}={r.row}"] if len(names) > 1 else []
            head += [f"{names[-1]}={r.first}-{r.first + len(r.devices) - 1}"] if columns > across else []
            lines.append((", ".join(head), r.devices))
        made.append(Panel(", ".join(f"{n}={at}" for n, at in zip(names, front, strict=False)), heads, lines))
    return made


def head_lines(holding: Placement) -> list[str]:
    """Returns the lines above the table."""
    title = f"{holding.title}  {holding.how}".strip() if holding.pieces else ""
    lines = [title] if title else []
    return [shorten(t, 400) for t in [*lines, f"{mesh_text(holding)}: {summarise(holding)}", *describe_dims(holding)]]


def piece_rows(holding: Placement) -> list[tuple[int | None, Piece | None]]:
    """Returns the pieces to list, by number; None for those left out."""
    rows: list[tuple[int | None, Piece | None]] = list(enumerate(holding.pieces))
    return rows if len(rows) <= _LISTED else [*rows[:8], (None, None), rows[-1]]


def piece_words(holding: Placement, piece: Piece) -> tuple[str, str, str]:
    """Returns the box of a piece, its holders and its size."""
    where, who = axis_ranges(holding, piece), holders_text(holding, piece)
    at = f" ({where})" if where and where != who else ""
    return shorten(piece_text(piece), 80), shorten(who + at, 120), size_text(holding.bytes_of(piece))


def plain_text(holding: Placement) -> str:
    """Returns the placement as plain text."""
    short = len(holding.devices) > _IN_FULL
    wide = max(cells(_cell(holding, d, short)) for d in holding.devices)
    found = panels(holding, max(1, (_WIDEST - 12) // (max(wide, 4) + 2)))
    lines = head_lines(holding)
    for panel in found:
        lines += ["", *([panel.head] if panel.head else []), *_table(holding, panel, short)]
    if holding.pieces:
        listed = [p for _, p in piece_rows(holding)]
        texts = align_columns([(p.label, *piece_words(holding, p)) for p in listed if p is not None])
        if None in listed:
            texts.insert(listed.index(None), f"... {len(holding.pieces) - len(texts)} more")
        lines += ["", *texts]
    lines += [f"note: {shorten(n, 1000)}" for n in holding.notes]
    return "\n".join(lines)


def _cell(holding: Placement, device: Device, short: bool) -> str:
    name = "" if device.id is None else str(device.id)
    if device.piece is None:
        text = "-" if holding.pieces else name or "."
        return text if short else f"{name} -".strip() if holding.pieces else text
    label = holding.pieces[device.piece].label
    return label if short else f"{name} {label}".strip()


def _table(holding: Placement, panel: Panel, short: bool) -> list[str]:
    rows = [[head, *(_cell(holding, d, short) for d in devices)] for head, devices in panel.rows]
    rows = [["", *panel.columns], *rows] if panel.columns else rows
    count = max(map(len, rows))
    width = [max((cells(r[i]) for r in rows if i < len(r)), default=0) for i in range(count)]
    # All columns of devices are as wide as the widest.
    width = [width[0], *[max(width[1:])] * (count - 1)]
    lines = ["  ".join(t + " " * (n - cells(t)) for t, n in zip(r, width, strict=False)).rstrip() for r in rows]
    return lines if width[0] else [line[2:] for line in lines]


# --- colours ---------------------------------------------------------------------------------------------------------


def rich_group(holding: Placement) -> Any:
    """Returns the placement for `rich`: a coloured table of the devices, and a list of the pieces."""
    from rich.console import Group
    from rich.text import Text

    fills = piece_colors(len(holding.pieces))
    first, *rest = head_lines(holding)
    parts: list[Any] = [Text(first, "bold"), *map(Text, rest)]
    short = len(holding.devices) > _IN_FULL
    across = 16 if short else 8
    parts += [_rich_panel(holding, panel, short, fills) for panel in panels(holding, across)]
    if holding.pieces:
        parts.append(_rich_pieces(holding, fills))
    parts += [Text(f"note: {shorten(n, 1000)}", "italic") for n in holding.notes]
    return Group(*parts)


def _style(number: int | None, fills: Sequence[str]) -> str:
    return "" if number is None else f"{text_on(fills[number])} on {fills[number]}"


def _rich_panel(holding: Placement, panel: Panel, short: bool, fills: Sequence[str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    made: Any = Table(title=Text(panel.head) if panel.head else None, title_justify="left", show_lines=not short,
                      show_header=bool(panel.columns), padding=(0, 0) if short else (0, 1))  # fmt: skip
    headed = any(head for head, _ in panel.rows)
    if headed:
        made.add_column("", justify="right")
    for j in range(max(len(devices) for _, devices in panel.rows)):
        made.add_column(Text(panel.columns[j]) if panel.columns else "", justify="center", no_wrap=True)
    for head, devices in panel.rows:
        row: list[Any] = [Text(head)] if headed else []
        for device in devices:
            made_of = _rich_lines(holding, device, short)
            row.append(Text("\n".join(f" {line} " if not short else line for line in made_of),
                            _style(device.piece, fills), justify="center"))  # fmt: skip
        made.add_row(*row)
    return made


def _rich_lines(holding: Placement, device: Device, short: bool) -> list[str]:
    if short or device.id is None:
        return [_cell(holding, device, short)]
    name = f"device {device.id}"
    if device.piece is None:
        return [name, "-"] if holding.pieces else [name]
    piece = holding.pieces[device.piece]
    what = piece_text(piece)
    return [name, f"{piece.label} {what}" if len(what) <= 24 else piece.label]


def _rich_pieces(holding: Placement, fills: Sequence[str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    made: Any = Table(show_header=True, box=None, pad_edge=False, header_style="dim")
    for name in ("piece", "slice" if holding.shape is not None else "shard", "held by", "size"):
        made.add_column(name)
    for number, piece in piece_rows(holding):
        if piece is None:
            made.add_row("...", f"{len(holding.pieces) - 9} more", "", "")
            continue
        what, who, size = piece_words(holding, piece)
        made.add_row(Text(f" {piece.label} ", _style(number, fills)), Text(what), Text(who), Text(size))
    return made
