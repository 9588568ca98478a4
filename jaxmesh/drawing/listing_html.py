"""Texts of programs as HTML: one column, or two columns side by side, aligned by source line.

The columns are a table, which is also a table where styles are taken away, as on GitHub.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxmesh.drawing.html import escape_lines, fragment
from jaxmesh.drawing.program_html import HIGHLIGHT
from jaxmesh.drawing.svg import FONT
from jaxmesh.drawing.text_layout import escape, make_safe, shorten

_LONGEST = 1500
_OP = re.compile(r'(?P<results>[%\w:#, ]*= )?"(?P<name>[\w.]+)"(?P<operands>\([^)]*\))?(?P<rest>.*)', re.DOTALL)


ListingLine = tuple[str, str]
"""The text of an operation, and its state: `kept`, `lit` (highlighted), or `soft` for memory management."""
ListingRow = tuple[str, str, Sequence[Sequence[ListingLine]]]
"""The location and the code of a source line, and its operations in each column."""


def listing_html(title: str, heads: Sequence[str], rows: Sequence[ListingRow], notes: Sequence[str] = ()) -> str:
    """Returns a program as a part of a page."""
    body = _heading(title, notes)
    tops = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body += f"<table><tr>{tops}</tr>{''.join(map(_row, rows))}</table>"
    return fragment(_style, body)


def plain_listing_html(title: str, text: str, notes: Sequence[str] = ()) -> str:
    """Returns a text, unchanged, as a part of a page."""
    body = f"{_heading(title, notes)}<pre>{escape_lines(text)}</pre>"
    return fragment(_style, body)


def _heading(title: str, notes: Sequence[str]) -> str:
    body = f'<div class="title">{escape(shorten(title, 300))}</div>'
    return body + "".join(f'<div class="end">{escape(shorten(n, 2000))}</div>' for n in notes)


def _style(name: str) -> str:
    s = f".{name}"
    return (
        f"{s}{{font:12px/1.45 {FONT};color:inherit;text-align:left}}"
        f"{s} .title{{font-weight:bold;font-size:14px;margin:.3em 0 .6em}}"
        f"{s} table{{width:100%;table-layout:fixed;border-collapse:collapse;font:inherit;color:inherit}}"
        f"{s} tr{{background:none!important}}"
        f"{s} td,{s} th{{padding:2px 7px;border:0;vertical-align:top;text-align:left;white-space:normal}}"
        f"{s} th,{s} .src td,{s} .own td{{border-top:1px solid rgba(128,128,128,.35)}}"
        f"{s} .src td{{opacity:.78;overflow-wrap:anywhere}}"
        f"{s} .op{{padding:1px 6px 1px 2.2em;text-indent:-1.6em;overflow-wrap:anywhere;white-space:pre-wrap}}"
        f"{s} .lit{{{HIGHLIGHT};box-shadow:inset 3px 0 0 #e69f00}}{s} .soft{{opacity:.74}}"
        f"{s} .op span{{opacity:.75}}{s} .soft b{{font-weight:normal}}{s} .soft span{{opacity:1}}"
        f"{s} .end{{padding:4px 6px;border-left:3px solid #d55e00;margin-bottom:6px}}"
        f"{s} pre{{font:inherit;white-space:pre-wrap;overflow-wrap:anywhere;color:inherit;background:none;margin:0}}"
    )


def _row(row: ListingRow) -> str:
    source, code, columns = row
    cells = "".join(f"<td>{''.join(map(_line, lines))}</td>" for lines in columns)
    if not source:
        return f'<tr class="own">{cells}</tr>'
    about = f"<b>{escape(source)}</b> {escape(shorten(code, 160))}"
    return f'<tr class="src"><td colspan="{len(columns)}">{about}</td></tr><tr>{cells}</tr>'


def _line(line: ListingLine) -> str:
    text, state = make_safe(line[0].strip()), line[1]
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST * 2 // 3]} ... {text[-_LONGEST // 3 :]}"
    match = _OP.fullmatch(text)
    shown = escape(text)
    if match is not None:
        after = f"{escape(match['operands'] or '')}<span>{escape(match['rest'])}</span>"
        shown = f"{escape(match['results'] or '')}<b>{escape(match['name'])}</b>{after}"
    return f'<div class="op {state}">{shown}</div>'
