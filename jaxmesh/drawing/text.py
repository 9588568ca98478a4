"""A placement as text: plain, or in the colours of the picture."""

from __future__ import annotations

from collections.abc import Callable

from jaxmesh.drawing.colors import piece_colors, rgb, text_on
from jaxmesh.drawing.placement import LONELY, PlacedDevice, Placement, TensorPiece, row_head, size_text
from jaxmesh.drawing.text_layout import align_columns, cells, pad, shorten

_WIDEST = 100
_IN_FULL = 64
"""The size of the largest mesh whose cells show more than the piece."""
_LISTED = 32
"""The number of pieces listed; of a longer list, only the first pieces and the last are shown."""


Paint = Callable[[str, int | None], str]
"""Colours a text by the number of its piece, None without one."""


def plain_text(placement: Placement, paint: Paint = lambda text, _: text) -> str:
    """Returns the placement as plain text; `paint` colours the name of each piece."""
    title = f"{placement.title}  {placement.how}".strip() if placement.pieces else ""
    head = [title] if title else []
    head += [f"{placement.mesh_text}: {placement.summary}", *placement.dims]
    lines = [shorten(line, 400) for line in head] + _grid(placement, paint)
    if placement.pieces:
        lines += ["", *_legend(placement, paint)]
    return "\n".join(lines + [f"note: {shorten(n, 1000)}" for n in placement.notes])


def _grid(placement: Placement, paint: Paint) -> list[str]:
    """Returns the devices in rows of the last mesh axis, which are folded where they are too long."""
    short = len(placement.devices) > _IN_FULL
    names, columns = [shorten(n, 16) for n, _ in placement.axes], placement.axes[-1][1]
    wide = max(cells(_cell(placement, d, short)) for d in placement.devices)
    across = max(1, (_WIDEST - 12) // (max(wide, 4) + 2))
    tops = [f"{names[-1]}={j}" for j in range(columns)] if columns <= across and placement.axes != LONELY else []
    wide = max(wide, *map(cells, tops)) if tops else wide
    lines: list[str] = []
    for front, rows in placement.panels(across):
        panel = ", ".join(f"{n}={at}" for n, at in zip(names, front, strict=False))
        heads = [row_head(names, row, columns > across) for row in rows]
        left = max(map(cells, heads))
        left += 2 if left else 0
        lines += ["", *([panel] if panel else [])]
        lines += [(" " * left + "  ".join(pad(t, wide) for t in tops)).rstrip()] if tops else []
        for head, row in zip(heads, rows, strict=True):
            texts = [(_cell(placement, d, short), d.piece) for d in row.devices]
            line = "  ".join(paint(t, piece) + " " * (wide - cells(t)) for t, piece in texts)
            lines.append((pad(head, left) + line).rstrip())
    return lines


def _cell(placement: Placement, device: PlacedDevice, short: bool) -> str:
    name = "" if device.id is None else str(device.id)
    if device.piece is None:
        text = "-" if placement.pieces else name or "."
        return text if short else f"{name} -".strip() if placement.pieces else text
    label = placement.pieces[device.piece].label
    return label if short else f"{name} {label}".strip()


def _legend(placement: Placement, paint: Paint) -> list[str]:
    """Returns a line for each piece: its box, its holders and its size; of many, the first and the last."""
    pieces, cut = list(enumerate(placement.pieces)), len(placement.pieces) > _LISTED
    listed = [*pieces[:8], pieces[-1]] if cut else pieces
    texts = align_columns([(piece.label, *_words(placement, piece)) for _, piece in listed])
    lines = [
        paint(piece.label, number) + text[len(piece.label) :]
        for (number, piece), text in zip(listed, texts, strict=True)
    ]
    return [*lines[:-1], f"... {len(pieces) - len(listed)} more", lines[-1]] if cut else lines


def _words(placement: Placement, piece: TensorPiece) -> tuple[str, str, str]:
    where, who = placement.axis_ranges(piece), placement.holders_text(piece)
    at = f" ({where})" if where and where != who else ""
    return shorten(piece.text(), 80), shorten(who + at, 120), size_text(placement.bytes_of(piece))


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
