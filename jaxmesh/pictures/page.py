"""HTML around pictures: what a notebook shows, and pages of their own."""

from __future__ import annotations

from jaxmesh.pictures.fitting import escaped


def fragment(name: str, style: str, body: str) -> str:
    """A part of a page whose styles touch nothing outside: `style` speaks of `.name`.

    Colours are the page's own (`currentColor`, translucent fills), so it suits light and dark pages alike.
    """
    return f'<div class="{name}"><style>{style}</style>{body}</div>'


def page(title: str, body: str) -> str:
    """A page that follows the reader's light or dark theme."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escaped(title)}</title><style>:root{{color-scheme:'
        "light dark;font-family:system-ui,sans-serif}body{margin:1.5rem}"
        "@media (prefers-color-scheme:dark){body{background:#14171a;color:#e6e8eb}}</style></head>"
        f"<body>\n{body}\n</body></html>\n"
    )
