"""A picture as SVG: the tensor, the devices, and the texts around them."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmesh.drawing.colors import piece_colors, text_on
from jaxmesh.drawing.device_grid import draw_devices
from jaxmesh.drawing.html import unique_name
from jaxmesh.drawing.placement import Placement, size_text
from jaxmesh.drawing.shapes import Block, Label, Mark, arrange
from jaxmesh.drawing.tensor_drawing import draw_tensor
from jaxmesh.drawing.text_layout import ADVANCE, LINE, cells, escape, shorten, width, wrap

WIDEST = 940.0
_MARGIN = 10.0
_LEGEND = 16
"""The largest number of pieces that are listed below the picture."""
_SHRUNK = 0.8
"""The minimum scale of a picture on a narrow page; below it the page scrolls, so that texts stay legible."""
_LINKED = 64
"""The largest number of pieces with linked outlines: hovering over a piece outlines all its holders."""
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def draw_svg(placement: Placement, *, alone: bool = True) -> str:
    """Draws a placement: with a background if `alone`, else in the colours of the surrounding page."""
    return _write(placement, _compose(placement), alone, _MARGIN, 0.0 if alone else _SHRUNK)


def draw_thumbnail(placement: Placement) -> str:
    """Draws a small picture for a row of a table: the tensor's pieces and the devices, with little text."""
    block, left = Block(), draw_tensor(placement, 150, small=True)
    block.place(left, 0, 0)
    block.place(draw_devices(placement, 240, small=True), left.w + 14 if left.w else 0, 0)
    return _write(placement, block, False, 1.0)


def draw_glyph(placement: Placement) -> str:
    """Draws the devices alone, for a line of text: equal colours and letters hold equal data."""
    block, fills = draw_devices(placement, 240, small=True), piece_colors(len(placement.pieces))
    body: list[str] = []
    for m in block.marks:
        fill, x = "none" if m.piece is None else fills[m.piece], m.x + m.w / 2
        body.append(f'<rect x="{_n(m.x)}" y="{_n(m.y)}" width="{_n(m.w)}" height="{_n(m.h)}" fill="{fill}"/>')
        if m.piece is not None and m.lines:
            body.append(f'<text x="{_n(x)}" y="{_n(m.y + 9)}" fill="{text_on(fill)}">{escape(m.lines[0])}</text>')
    label, w, h = escape(shorten(placement.summary, 200)), _n(block.w), _n(block.h)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" width="{w}" height="{h}" '
        f'font-size="8" font-weight="bold" text-anchor="middle"><title>{label}</title>{"".join(body)}</svg>'
    )


# --- the arrangement -------------------------------------------------------------------------------------------------


def _compose(placement: Placement) -> Block:
    block = Block()
    _heading(block, placement)
    top = block.h + 14
    devices = draw_devices(placement, WIDEST)
    if placement.shape is None and not placement.pieces:
        block.place(devices, 0, top)
    else:
        drawing, name = draw_tensor(placement, WIDEST), "tensor" if placement.shape is not None else "shards"
        beside = drawing.w + 48 + devices.w <= WIDEST
        block.label(Label(0, top + 9, name, 11, strong=True))
        block.place(drawing, 0, top + 18)
        x, y = (max(drawing.w + 48, width(name, 11) + 48), top) if beside else (0.0, block.h + 18)
        block.label(Label(x, y + 9, "devices", 11, strong=True))
        block.place(devices, x, y + 18)
    if 0 < len(placement.pieces) <= _LEGEND:
        block.place(_legend(placement, max(block.w, 760) if len(placement.pieces) <= 8 else WIDEST), 0, block.h + 16)
    elif placement.pieces:
        first, last = placement.pieces[0].label, placement.pieces[-1].label
        known = placement.shape is not None
        text = f"{first} to {last}: numbered along the tensor, row-major" if known else f"{first} to {last}: all differ"
        block.label(Label(0, block.h + 24, text, 10.5))
    for note in placement.notes:
        for i, line in enumerate(wrap(f"note: {note}", int(max(block.w, 560) / (10.5 * ADVANCE)))):
            block.label(Label(0, block.h + (17 if i else 22) - 3, line, 10.5))
    return block


def _heading(block: Block, placement: Placement) -> None:
    most = int(WIDEST / (14 * ADVANCE))
    title = placement.title if placement.pieces else "mesh"
    for i, line in enumerate(wrap(shorten(f"{title}  {placement.how}".strip(), 3 * most), most)):
        block.label(Label(0, 13 + i * 14 * LINE, line, 14, strong=True))
    for line in [f"{placement.mesh_text}: {placement.summary}", *placement.dims]:
        for part in wrap(shorten(line, 400), int(WIDEST / (11 * ADVANCE))):
            block.label(Label(0, block.h + 13, part, 11))


def _legend(placement: Placement, most: float) -> Block:
    entries: list[Block] = []
    # If all pieces have one size, the line above the picture states it.
    alike = len({p.shape for p in placement.pieces}) == 1
    for number, piece in enumerate(placement.pieces):
        entry, where = Block(), placement.axis_ranges(piece)
        text = f"{shorten(piece.text(), 60)}  on {placement.holders_text(piece)}"
        if where and where not in text:
            text += f" ({where})"
        if not alike:
            text += f", {size_text(placement.bytes_of(piece))}"
        text = shorten(text, int((WIDEST - 40) / (10.5 * ADVANCE)))
        entry.mark(Mark("swatch", 0, 0, 22, 15, number, [piece.label], 10.5))
        entry.label(Label(29, 11.5, text, 10.5))
        entries.append(entry)
    return arrange(entries, 3, most, 22, 5)


# --- writing ---------------------------------------------------------------------------------------------------------


def _write(placement: Placement, block: Block, alone: bool, margin: float, shrunk: float = 0.0) -> str:
    fills = piece_colors(len(placement.pieces))
    body = [_mark(m, fills) for m in block.marks]
    body += [_text(t.x, t.y, t.text, t.size, t.anchor, "currentColor", t.strong) for t in block.labels]
    w, h = block.w + 2 * margin, block.h + 2 * margin
    name = unique_name(*body, str(alone))
    back = f'<rect class="bg" x="0" y="0" width="{_n(w)}" height="{_n(h)}" fill="#ffffff"/>' if alone else ""
    label = escape(shorten(f"{placement.title} {placement.how} on {placement.mesh_text}", 300))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" role="img" aria-label="{label}" '
        f'viewBox="0 0 {_n(w)} {_n(h)}" width="{_n(w)}" height="{_n(h)}" color="{"#1b1f24" if alone else "inherit"}" '
        f'font-family="{FONT}"{"" if alone else " fill=" + chr(34) + "currentColor" + chr(34)}>'
        f"<style>{_style(name, alone, len(placement.pieces), shrunk * w)}</style>{back}"
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
