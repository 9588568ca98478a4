"""HTML around pictures: fragments for notebooks, and whole pages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from jaxmesh.drawing.text_layout import escape


def fragment(style_of: Callable[[str], str], body: str, plain: str = "") -> str:
    """Returns a part of a page whose styles affect nothing outside it.

    Colours are the page's own (`currentColor`, translucent fills), so it suits light and dark pages. `style_of` returns
    the style sheet for a class name; `plain` is shown where a notebook is not trusted, and so loses its drawings.
    """
    name = unique_name(body)
    style = style_of(name)
    if plain:
        lines = "\n".join(map(escape, plain.split("\n")))
        style = f".{name}>.plain{{display:none}}.{name}>.drawn{{display:block!important}}{style}"
        body = f'<pre class="plain">{lines}</pre><div class="drawn" style="display:none">{body}</div>'
    return f'<div class="{name}"><style>{style}</style>{body}</div>'


def unique_name(*content: str) -> str:
    """Returns a class name that depends on the content alone."""
    return "jm-" + hashlib.sha256("".join(content).encode()).hexdigest()[:10]


def page(title: str, body: str) -> str:
    """Returns a page that follows the reader's light or dark theme."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>:root{{color-scheme:'
        "light dark;font-family:system-ui,sans-serif}body{margin:1.5rem}"
        "@media (prefers-color-scheme:dark){body{background:#14171a;color:#e6e8eb}}</style></head>"
        f"<body>\n{body}\n</body></html>\n"
    )
