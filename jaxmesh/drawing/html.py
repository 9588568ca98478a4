"""HTML around pictures: what a notebook shows, and pages of their own."""

from __future__ import annotations

from jaxmesh.drawing.text_layout import escaped


def fragment(name: str, style: str, body: str, plain: str = "") -> str:
    """A part of a page whose styles touch nothing outside: `style` speaks of `.name`.

    Colours are the page's own (`currentColor`, translucent fills), so it suits light and dark pages alike. Notebooks
    that nobody trusts yet lose their styles and drawings: what is seen there is `plain`, if it is given.
    """
    if not plain:
        return f'<div class="{name}"><style>{style}</style>{body}</div>'
    lines = "\n".join(map(escaped, plain.split("\n")))
    style = f".{name}>.plain{{display:none}}.{name}>.drawn{{display:block!important}}{style}"
    return (
        f'<div class="{name}"><style>{style}</style><pre class="plain">{lines}</pre>'
        f'<div class="drawn" style="display:none">{body}</div></div>'
    )


def page(title: str, body: str) -> str:
    """A page that follows the reader's light or dark theme."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escaped(title)}</title><style>:root{{color-scheme:'
        "light dark;font-family:system-ui,sans-serif}body{margin:1.5rem}"
        "@media (prefers-color-scheme:dark){body{background:#14171a;color:#e6e8eb}}</style></head>"
        f"<body>\n{body}\n</body></html>\n"
    )
