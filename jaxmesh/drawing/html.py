"""HTML around pictures: fragments for notebooks, and whole pages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from jaxmesh.drawing.text_layout import escape

_TABLE = 'style="border-collapse: collapse; color: inherit; margin-top: 0.5em"'
_CELL = 'style="border: 1px solid currentColor; padding: 0.2em 0.5em; text-align: left; vertical-align: top"'


def fragment(style_of: Callable[[str], str], body: str, plain: str = "") -> str:
    """Returns a part of a page with styles that affect nothing outside it.

    It uses the page's colours (`currentColor`, translucent fills), so it suits light and dark pages. `style_of` returns
    the style sheet for a class name; an untrusted notebook, which loses its drawings, shows `plain`.
    """
    name = unique_name(body)
    style = style_of(name)
    if plain:
        lines = escape_lines(plain)
        style = f".{name}>.plain{{display:none}}.{name}>.drawn{{display:block!important}}{style}"
        body = f'<pre class="plain">{lines}</pre><div class="drawn" style="display:none">{body}</div>'
    return f'<div class="{name}"><style>{style}</style>{body}</div>'


def escape_lines(text: str) -> str:
    """Returns a text escaped line by line, for `<pre>`."""
    return "\n".join(map(escape, text.split("\n")))


def unique_name(*content: str) -> str:
    """Returns a class name that depends only on the content."""
    return "jm-" + hashlib.sha256("".join(content).encode()).hexdigest()[:10]


def table(rows: Iterable[Iterable[str]], head: Iterable[str] = ()) -> str:
    """Returns a table in the colours of the surrounding page, which suit light and dark pages."""
    tagged = [("th", head), *(("td", row) for row in rows)]
    lines = ("".join(f"<{tag} {_CELL}>{escape(cell)}</{tag}>" for cell in row) for tag, row in tagged)
    return f"<table {_TABLE}>{''.join(f'<tr>{line}</tr>' for line in lines if line)}</table>"


def framed(heading: str, *parts: str) -> str:
    """Returns a heading and parts in the colours of the surrounding page."""
    style = "color: inherit; background: transparent; overflow-x: auto"
    return f'<div style="{style}"><b>{escape(heading)}</b>{"".join(parts)}</div>'


def page(title: str, body: str) -> str:
    """Returns a page that follows the reader's light or dark theme."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>:root{{color-scheme:'
        "light dark;font-family:system-ui,sans-serif}body{margin:1.5rem}"
        "@media (prefers-color-scheme:dark){body{background:#14171a;color:#e6e8eb}}</style></head>"
        f"<body>\n{body}\n</body></html>\n"
    )
