"""A program as a list of its values, each with its residency and a small picture of its placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxmesh.drawing.html import fragment
from jaxmesh.drawing.picture import Picture
from jaxmesh.drawing.placement import Placement
from jaxmesh.drawing.svg import FONT, draw_thumbnail
from jaxmesh.drawing.text_layout import align_columns, escape, shorten

MAX_VALUES = 400
"""The number of values shown; a note states how many more were left out."""
_DRAWN = 64
"""The size of the largest mesh with pictures of values."""


@dataclass(frozen=True, slots=True)
class ProgramValue:
    """One value of a program.

    Attributes:
      text: its definition, such as `%3 = tanh(%2)`.
      type_text: its type; the local type of a shard.
      where: a description of its residency.
      placement: its placement, if it is on the devices.
      depth: the number of loops and calls around it.
      moves: True for a transfer or a collective.
    """

    text: str
    type_text: str
    where: str
    placement: Placement | None = None
    line: str = ""
    depth: int = 0
    moves: bool = False


@dataclass(frozen=True, slots=True)
class ProgramValues:
    """The values of a program, in order; `left_out` further values are not listed."""

    title: str
    steps: tuple[ProgramValue, ...]
    left_out: int = 0
    notes: tuple[str, ...] = ()


class ProgramPicture(Picture):
    """The picture of a program: its values and their residencies."""

    def __init__(self, flow: ProgramValues) -> None:
        self.flow = flow
        self._title = flow.title

    def __str__(self) -> str:
        rows = align_columns([_columns(s) for s in self.flow.steps])
        lines = [("> " if s.moves else "  ") + row for s, row in zip(self.flow.steps, rows, strict=True)]
        return "\n".join([self._heading, *lines, *self._endings()])

    def _repr_html_(self) -> str:
        drawn: dict[Placement, str] = {}
        rows = "".join(_row(step, drawn) for step in self.flow.steps)
        ends = "".join(f'<div class="end">{escape(t)}</div>' for t in self._endings())
        head = f'<div class="title">{escape(self._heading)}</div>'
        body = f'{head}<div class="rows" role="table" aria-label="values of the program">{rows}</div>{ends}'
        return fragment(_style, body, str(self))

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table: Any = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("value", "type", "where", "source"):
            table.add_column(name, overflow="fold")
        for step in self.flow.steps:
            text, type_text, where, line = _columns(step)
            style = "bold #e69f00" if step.moves else ""
            table.add_row(Text(text, style), Text(type_text), Text(where, "" if step.placement is None else "#56b4e9"),
                          Text(line, "dim"))  # fmt: skip
        return Group(Text(self._heading, "bold"), table, *(Text(t, "italic") for t in self._endings()))

    @property
    def _heading(self) -> str:
        return shorten(self.flow.title, 300)

    def _endings(self) -> list[str]:
        more = [f"{self.flow.left_out} more values are left out"] if self.flow.left_out else []
        return [shorten(t, 1000) for t in (*more, *(f"note: {n}" for n in self.flow.notes))]


def without_folders(line: str) -> str:
    """Returns a source location without its folders.

    >>> without_folders("/home/me/model.py:12:8 (layer)")
    'model.py:12:8 (layer)'
    """
    return shorten(line.replace("\\", "/").rpartition("/")[2] if ":" in line else line, 60)


def _columns(step: ProgramValue) -> tuple[str, str, str, str]:
    return (
        "  " * min(step.depth, 12) + shorten(step.text, 72),
        shorten(step.type_text, 60),
        shorten(step.where, 60),
        without_folders(step.line),
    )


# --- HTML ------------------------------------------------------------------------------------------------------------

HIGHLIGHT = "background:rgba(230,159,0,.24)"
"""The style of highlighted rows, on light and dark pages."""


def _style(name: str) -> str:
    s = f".{name}"
    return (
        f"{s}{{font:12px/1.45 {FONT};color:inherit;max-width:1100px}}"
        f"{s} .title{{font-weight:bold;font-size:14px;margin:.3em 0 .6em}}"
        f"{s} .row{{display:grid;grid-template-columns:minmax(0,5fr) minmax(0,4fr) minmax(0,4fr);gap:2px 16px;"
        "align-items:center;padding:5px 8px;border-top:1px solid rgba(128,128,128,.35)}"
        f"{s} .moves{{{HIGHLIGHT};box-shadow:inset 3px 0 0 #e69f00}}"
        f"{s} .label,{s} .kind{{overflow-wrap:anywhere;min-width:0;text-align:left}}"
        f"{s} .moves b{{font-weight:bold}}{s} b{{font-weight:normal}}"
        f"{s} .soft{{opacity:.78}}{s} .end{{padding:6px 8px;opacity:.85}}"
        f"@media (max-width:640px){{{s} .row{{grid-template-columns:minmax(0,1fr)}}}}"
    )


def _row(step: ProgramValue, drawn: dict[Placement, str]) -> str:
    label, type_text, where, line = _columns(step)
    picture = ""
    if step.placement is not None and len(step.placement.devices) <= _DRAWN:
        if step.placement not in drawn:
            drawn[step.placement] = draw_thumbnail(step.placement)
        picture = drawn[step.placement]
    pad = f' style="padding-left:{min(step.depth, 12) * 16}px"' if step.depth else ""
    return (
        f'<div class="row{" moves" if step.moves else ""}" role="row"><div class="label" role="cell"{pad}>'
        f'<b>{escape(label.strip())}</b><div class="soft">{escape(line)}</div></div>'
        f'<div class="kind" role="cell">{escape(type_text)}<div class="soft">{escape(where)}</div></div>'
        f'<div role="cell">{picture}</div></div>'
    )
