"""A program as a list of its values: where each lives, with a small picture of who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxmesh.drawing.html import fragment
from jaxmesh.drawing.picture import Picture
from jaxmesh.drawing.placement import Holding
from jaxmesh.drawing.svg import FONT, thumbnail
from jaxmesh.drawing.text_layout import aligned, escaped, shortened

MOST_STEPS = 400
"""Of longer programs the first values are shown, and how many are left out is said."""
_DRAWN = 64
"""On a mesh of more devices a value is told in words alone."""


@dataclass(frozen=True, slots=True)
class Step:
    """One value of a program.

    Attributes:
      said: how it comes to be, as `%3 = tanh(%2)`.
      kind: its type, local of a shard.
      where: where it lives, in words.
      holding: who holds what of it, where it is on the devices.
      line: the source line.
      depth: in how many bodies of loops and calls it stands.
      moves: whether it is a transfer, or a collective.
    """

    said: str
    kind: str
    where: str
    holding: Holding | None = None
    line: str = ""
    depth: int = 0
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Flow:
    """The values of a program, in order; `left_out` of them are not listed."""

    title: str
    steps: tuple[Step, ...]
    left_out: int = 0
    notes: tuple[str, ...] = ()


class ProgramPicture(Picture):
    """The picture of a program: its values and where they live."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._title = flow.title

    def __str__(self) -> str:
        return _plain(self.flow)

    def _repr_html_(self) -> str:
        return _html(self.flow)

    def __rich__(self) -> Any:
        return _rich(self.flow)


def _endings(flow: Flow) -> list[str]:
    more = [f"{flow.left_out} more values are left out"] if flow.left_out else []
    return [*more, *(f"note: {n}" for n in flow.notes)]


def place(line: str) -> str:
    """A source line without its folders.

    >>> place("/home/me/model.py:12:8 (layer)")
    'model.py:12:8 (layer)'
    """
    return shortened(line.replace("\\", "/").rpartition("/")[2] if ":" in line else line, 60)


def _columns(step: Step) -> tuple[str, str, str, str]:
    return (
        "  " * min(step.depth, 12) + shortened(step.said, 72),
        shortened(step.kind, 60),
        shortened(step.where, 60),
        place(step.line),
    )


def _plain(flow: Flow) -> str:
    rows = [_columns(s) for s in flow.steps]
    lines = [shortened(flow.title, 300)]
    lines += [("> " if s.moves else "  ") + row for s, row in zip(flow.steps, aligned(rows), strict=True)]
    return "\n".join([*lines, *(shortened(t, 1000) for t in _endings(flow))])


def _rich(flow: Flow) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table: Any = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("value", "type", "where", "source"):
        table.add_column(name, overflow="fold")
    for step in flow.steps:
        said, kind, where, line = _columns(step)
        style = "bold #e69f00" if step.moves else ""
        table.add_row(Text(said, style), Text(kind), Text(where, "" if step.holding is None else "#56b4e9"),
                      Text(line, "dim"))  # fmt: skip
    ends = [Text(shortened(t, 1000), "italic") for t in _endings(flow)]
    return Group(Text(shortened(flow.title, 300), "bold"), table, *ends)


# --- HTML ------------------------------------------------------------------------------------------------------------

LIT = "background:rgba(230,159,0,.24)"
"""What is lit, on a light and on a dark page."""


def _html(flow: Flow) -> str:
    drawn: dict[Holding, str] = {}
    rows = "".join(_row(step, drawn) for step in flow.steps)
    ends = "".join(f'<div class="end">{escaped(shortened(t, 1000))}</div>' for t in _endings(flow))
    head = f'<div class="title">{escaped(shortened(flow.title, 300))}</div>'
    body = f'{head}<div class="rows" role="table" aria-label="values of the program">{rows}</div>{ends}'
    return fragment(_style, body, _plain(flow))


def _style(name: str) -> str:
    s = f".{name}"
    return (
        f"{s}{{font:12px/1.45 {FONT};color:inherit;max-width:1100px}}"
        f"{s} .title{{font-weight:bold;font-size:14px;margin:.3em 0 .6em}}"
        f"{s} .row{{display:grid;grid-template-columns:minmax(0,5fr) minmax(0,4fr) minmax(0,4fr);gap:2px 16px;"
        "align-items:center;padding:5px 8px;border-top:1px solid rgba(128,128,128,.35)}"
        f"{s} .moves{{{LIT};box-shadow:inset 3px 0 0 #e69f00}}"
        f"{s} .said,{s} .kind{{overflow-wrap:anywhere;min-width:0;text-align:left}}"
        f"{s} .moves b{{font-weight:bold}}{s} b{{font-weight:normal}}"
        f"{s} .soft{{opacity:.78}}{s} .end{{padding:6px 8px;opacity:.85}}"
        f"@media (max-width:640px){{{s} .row{{grid-template-columns:minmax(0,1fr)}}}}"
    )


def _row(step: Step, drawn: dict[Holding, str]) -> str:
    said, kind, where, line = _columns(step)
    picture = ""
    if step.holding is not None and len(step.holding.devices) <= _DRAWN:
        if step.holding not in drawn:
            drawn[step.holding] = thumbnail(step.holding)
        picture = drawn[step.holding]
    pad = f' style="padding-left:{min(step.depth, 12) * 16}px"' if step.depth else ""
    return (
        f'<div class="row{" moves" if step.moves else ""}" role="row"><div class="said" role="cell"{pad}>'
        f'<b>{escaped(said.strip())}</b><div class="soft">{escaped(line)}</div></div>'
        f'<div class="kind" role="cell">{escaped(kind)}<div class="soft">{escaped(where)}</div></div>'
        f'<div role="cell">{picture}</div></div>'
    )


def limited(title: str, steps: Sequence[Step], total: int, notes: Sequence[str] = ()) -> Flow:
    """A flow of the first values of `total`."""
    return Flow(title, tuple(steps[:MOST_STEPS]), max(0, total - MOST_STEPS), tuple(notes))
