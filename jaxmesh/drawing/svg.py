"""A picture as SVG: the tensor, the devices, and the texts around them."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmesh.drawing.colors import piece_colors, text_on
from jaxmesh.drawing.device_grid import draw_devices
from jaxmesh.drawing.html import unique_name
from jaxmesh.drawing.placement import (
    Placement,
    axis_ranges,
    describe_dims,
    holders_text,
    mesh_text,
    piece_text,
    size_text,
    summarise,
)
from jaxmesh.drawing.shapes import Block, Label, Mark, arrange
from jaxmesh.drawing.tensor_drawing import draw_tensor
from jaxmesh.drawing.text_layout import ADVANCE, LINE, cells, escape, shorten, width, wrap

WIDEST = 940.0
_MARGIN = 10.0
_LEGEND = 16
"""The number of pieces listed below the picture."""
_SHRUNK = 0.8
"""The least scale of a picture on a narrow page; below it the page scrolls, so that texts stay legible."""
_LINKED = 64
"""The largest number of pieces for which hovering over one outlines all its holders."""
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def draw_svg(holding: Placement, *, alone: bool = True) -> str:
    """Draws a placement: `alone` with a background, else in the colours of the page around it."""
    return _write(holding, _compose(holding), alone, _MARGIN, 0.0 if alone else _SHRUNK)


def draw_thumbnail(holding: Placement) -> str:
    """Draws a small picture for a row of a table: the tensor's pieces and the devices, with little text."""
    block, left = Block(), draw_tensor(holding, 150, small=True)
    block.place(left, 0, 0)
    block.place(draw_devices(holding, 240, small=True), left.w + 14 if left.w else 0, 0)
    return _write(holding, block, False, 1.0)


# --- the arrangement -------------------------------------------------------------------------------------------------


def _compose(holding: Placement) -> Block:
    made = Block()
    _heading(made, holding)
    top = made.h + 14
    devices = draw_devices(holding, WIDEST)
    if holding.shape is None and not holding.pieces:
        made.place(devices, 0, top)
    else:
        drawing, name = draw_tensor(holding, WIDEST), "tensor" if holding.shape is not None else "shards"
        beside = drawing.w + 48 + devices.w <= WIDEST
        made.label(Label(0, top + 9, name, 11, strong=True))
        made.place(drawing, 0, top + 18)
        x, y = (max(drawing.w + 48, width(name, 11) + 48), top) if beside else (0.0, made.h + 18)
        made.label(Label(x, y + 9, "devices", 11, strong=True))
        made.place(devices, x, y + 18)
    if 0 < len(holding.pieces) <= _LEGEND:
        made.place(_legend(holding, max(made.w, 760) if len(holding.pieces) <= 8 else WIDEST), 0, made.h + 16)
    elif holding.pieces:
        first, last = holding.pieces[0].label, holding.pieces[-1].label
        known = holding.shape is not None
        text = f"{first} to {last}: numbered along the tensor, row-major" if known else f"{first} to {last}: all differ"
        made.label(Label(0, made.h + 24, text, 10.5))
    for note in holding.notes:
        for i, line in enumerate(wrap(f"note: {note}", int(max(made.w, 560) / (10.5 * ADVANCE)))):
            made.label(Label(0, made.h + (17 if i else 22) - 3, line, 10.5))
    return made


def _heading(made: Block, holding: Placement) -> None:
    most = int(WIDEST / (14 * ADVANCE))
    title = holding.title if holding.pieces else "mesh"
    for i, line in enumerate(wrap(shorten(f"{title}  {holding.how}".strip(), 3 * most), most)):
        made.label(Label(0, 13 + i * 14 * LINE, line, 14, strong=True))
    for line in [f"{mesh_text(holding)}: {summarise(holding)}", *describe_dims(holding)]:
        for part in wrap(shorten(line, 400), int(WIDEST / (11 * ADVANCE))):
            made.label(Label(0, made.h + 13, part, 11))


def _legend(holding: Placement, most: float) -> Block:
    entries: list[Block] = []
    # If all pieces have one size, the line above the picture states it.
    alike = len({p.shape for p in holding.pieces}) == 1
    for number, piece in enumerate(holding.pieces):
        entry, where = Block(), axis_ranges(holding, piece)
        text = f"{shorten(piece_text(piece), 60)}  on {holders_text(holding, piece)}"
        if where and where not in text:
            text += f" ({where})"
        if not alike:
            text += f", {size_text(holding.bytes_of(piece))}"
        text = shorten(text, int((WIDEST - 40) / (10.5 * ADVANCE)))
        entry.mark(Mark("swatch", 0, 0, 22, 15, number, [piece.label], 10.5))
        entry.label(Label(29, 11.5, text, 10.5))
        entries.append(entry)
    return arrange(entries, 3, most, 22, 5)


# --- writing ---------------------------------------------------------------------------------------------------------


def _write(holding: Placement, block: Block, alone: bool, margin: float, shrunk: float = 0.0) -> str:
    fills = piece_colors(len(holding.pieces))
    body = [_mark(m, fills) for m in block.marks]
    body += [_text(t.x, t.y, t.text, t.size, t.anchor, "currentColor", t.strong) for t in block.labels]
    w, h = block.w + 2 * margin, block.h + 2 * margin
    name = unique_name(*body, str(alone))
    back = f'<rect class="bg" x="0" y="0" width="{_n(w)}" height="{_n(h)}" fill="#ffffff"/>' if alone else ""
    label = escape(shorten(f"{holding.title} {holding.how} on {mesh_text(holding)}", 300))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" role="img" aria-label="{label}" '
        f'viewBox="0 0 {_n(w)} {_n(h)}" width="{_n(w)}" height="{_n(h)}" color="{"#1b1f24" if alone else "inherit"}" '
        f'font-family="{FONT}"{"" if alone else " fill=" + chr(34) + "currentColor" + chr(34)}>'
        f"<style>{_style(name, alone, len(holding.pieces), shrunk * w)}</style>{back}"
        f'<g transform="translate({_n(margin)} {_n(margin)})">{"".join(body)}</g></svg>'
    )


def _style(name: str, alone: bool, pieces: int, least: float) -> str:
    s = f".{name}"
    bound = f"min-width:{_n(least)}px;" if least else ""
    rules = [
        f"{s}{{max-width:100%;{bound}height:auto;display:block}}",
        f"{s} rect{{stroke:currentColor;stroke-opacity:.5;stroke-width:.8}}",
        f"{s} .none rect{{stroke-dasharray:3 3}}" if pieces else "",
        f"{s} g:hover>rect{{stroke-opacity:1;stroke-width:2.2}}",
    ]
    if pieces <= _LINKED:
        linked = ",".join(f"{s}:has(.p{i}:hover) .p{i}>rect" for i in range(pieces))
        rules += [f"{linked}{{stroke-opacity:1;stroke-width:2.2}}"] if linked else []
    if alone:
        rules += [
            f"{s} .bg{{stroke:none}}",
            f"@media (prefers-color-scheme:dark){{{s}{{color:#e6e8eb}}{s} .bg{{fill:#14171a}}}}",
        ]
    return "".join(rules)


def _mark(m: Mark, fills: Sequence[str]) -> str:
    fill = "none" if m.piece is None else fills[m.piece]
    ink = "currentColor" if m.piece is None else text_on(fill)
    hover = f"<title>{'&#10;'.join(map(escape, m.hover))}</title>" if m.hover else ""
    drawing = "none" if m.piece is None else f"p{m.piece}"
    rect = f'<rect x="{_n(m.x)}" y="{_n(m.y)}" width="{_n(m.w)}" height="{_n(m.h)}" fill="{fill}"/>'
    middle = m.y + m.h / 2 - (len(m.lines) - 1) * m.size * LINE / 2
    texts = [
        _text(m.x + m.w / 2, middle + i * m.size * LINE + m.size * 0.35, line, m.size, "middle", ink, i == _name_of(m))
        for i, line in enumerate(m.lines)
    ]
    return f'<g class="{m.kind} {drawing}">{hover}{rect}{"".join(texts)}</g>'


def _name_of(m: Mark) -> int:
    """Returns the index of the bold line of a mark, its label."""
    if m.kind != "device":
        return 0
    named = m.hover and m.hover[0].startswith("device")
    return (1 if named and len(m.lines) > 1 else 0) if m.piece is not None else -1


def _text(x: float, y: float, text: str, size: float, anchor: str, ink: str, strong: bool) -> str:
    if not cells(text):
        return ""
    bold = ' font-weight="bold"' if strong else ""
    return (
        f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" text-anchor="{anchor}" fill="{ink}"{bold} '
        f'xml:space="preserve">{escape(text)}</text>'
    )


def _n(value: float) -> str:
    """Formats a number with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
