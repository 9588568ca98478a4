"""Bars over time as SVG: a row for each part of a device, with the ops that keep it busy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxmesh.drawing.colors import PALETTE
from jaxmesh.drawing.html import fragment
from jaxmesh.drawing.text_layout import duration, escape, shorten, width

WIDE, HIGH, GAP, SIZE = 760.0, 22.0, 8.0, 11.0
_LEAST = 1.0
"""The minimum width of a bar; narrower bars are joined with the next."""
_TICKS = 5
_TITLES = 3
"""The maximum number of joined bars that a tooltip names."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a row: its start, its length, its text, and True if all other rows wait for it."""

    start: float
    length: float
    text: str
    strong: bool = True


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A row of bars, in order, which do not overlap."""

    name: str
    bars: Sequence[Bar]


def draw_timeline(heading: str, rows: Sequence[TimelineRow], end: float, notes: Sequence[str], plain: str) -> str:
    """Draws rows of bars from 0 to `end`, in seconds, as a part of a page.

    An untrusted notebook shows `plain`.
    """
    left = max((width(row.name, SIZE) for row in rows), default=0) + 2 * GAP
    body: list[str] = []
    for number, row in enumerate(rows):
        y = number * (HIGH + GAP)
        body.append(f'<text x="{left - GAP:.1f}" y="{y + HIGH * 0.68:.1f}" text-anchor="end">{escape(row.name)}</text>')
        body.append(f'<rect class="row" x="{left:.1f}" y="{y:.1f}" width="{WIDE:.1f}" height="{HIGH}"/>')
        color = PALETTE[number % len(PALETTE)]
        body += [_bar(group, end, left, y, color) for group in _drawn(row.bars, end)]
    base = len(rows) * (HIGH + GAP)
    body += _axis(end, left, base)
    wide, high = left + WIDE + 60, base + 26 + GAP
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(shorten(heading, 300))}" '
        f'viewBox="0 {-GAP} {wide:.1f} {high:.1f}" width="{wide:.1f}" height="{high:.1f}" font-size="{SIZE}" '
        f'fill="currentColor">{"".join(body)}</svg>'
    )
    lines = "".join(f"<div>{escape(note)}</div>" for note in notes)
    return fragment(_style, f"<div><b>{escape(heading)}</b></div>{svg}{lines}", plain)


def _style(name: str) -> str:
    return (
        f".{name}{{overflow-x:auto;color:inherit;font-family:system-ui,sans-serif;font-size:12px}}"
        f".{name} .row{{fill:none;stroke:currentColor;stroke-opacity:.25}}.{name} .weak{{opacity:.4}}"
        f".{name} g>rect{{stroke:currentColor;stroke-opacity:.35;stroke-width:.5}}"
        f".{name} g:hover>rect{{stroke-opacity:1;stroke-width:1.5}}"
    )


def _drawn(bars: Iterable[Bar], end: float) -> Iterator[Sequence[Bar]]:
    """Joins neighbours that are narrower than the minimum width of a bar."""
    joined: list[Bar] = []
    for bar in bars:
        if joined and (bar.strong != joined[0].strong or bar.start - joined[0].start >= _LEAST * end / WIDE):
            yield joined
            joined = []
        if bar.length:
            joined.append(bar)
    if joined:
        yield joined


def _bar(group: Sequence[Bar], end: float, left: float, y: float, color: str) -> str:
    length = sum(bar.length for bar in group)
    longest = sorted(group, key=lambda bar: -bar.length)[:_TITLES]
    more = len(group) - len(longest)
    titles = [f"{bar.text}: {duration(bar.length)}" for bar in longest] + ([f"and {more} more"] if more else [])
    x, w = left + group[0].start / end * WIDE, max(length / end * WIDE, _LEAST / 2)
    title = "&#10;".join(escape(shorten(text, 120)) for text in titles)
    strength = "" if group[0].strong else ' class="weak"'
    return (
        f'<g{strength}><title>{title}</title><rect x="{x:.2f}" y="{y:.1f}" width="{w:.2f}" height="{HIGH}" '
        f'fill="{color}"/></g>'
    )


def _axis(end: float, left: float, base: float) -> Iterator[str]:
    for at in ticks(end):
        x = left + at / end * WIDE
        yield f'<text x="{x:.1f}" y="{base + 12:.1f}" text-anchor="middle">{escape(duration(at))}</text>'


def ticks(end: float) -> list[float]:
    """Returns round times from 0 to `end`, in seconds.

    >>> ticks(23.0), ticks(0.0)
    ([0.0, 5.0, 10.0, 15.0, 20.0], [])
    """
    step = _step(end)
    return [number * step for number in range(int(end / step) + 1)] if step else []


def _step(end: float) -> float:
    """Returns a round step that fits about `_TICKS` times below `end`.

    >>> [_step(end) for end in (10, 23, 0)]
    [2.0, 5.0, 0.0]
    """
    if not end:
        return 0.0
    power = 10.0 ** math.floor(math.log10(end / _TICKS))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= end / _TICKS)
