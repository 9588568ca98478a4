"""The picture of a program: its blocks and the values whose placement changes, or every value, over a timeline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxmesh.drawing import program_blocks
from jaxmesh.drawing.picture import Picture
from jaxmesh.drawing.program_blocks import BOUNDARY, BlockRest, BlockRow, Cost, ProgramBlock, ProgramValue, count_text
from jaxmesh.drawing.program_html import program_html, short_source
from jaxmesh.drawing.text import ansi
from jaxmesh.drawing.text_layout import align_columns, cells, duration, pad, shorten
from jaxmesh.runtime.progress import progress

_PAGE = 48
"""The number of rows that a picture shows before a block is opened by hand."""
_WIDE = 100
"""The columns of a terminal."""
_BAR = 6
"""The least columns of the timeline."""
_NAME, _ABOUT = 34, 30
"""The most columns of a name, and of what a line says about it."""
_NOTABLE = 0.01
"""The fraction of the time from which on values whose placement stays have a line."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The least time of a program on a machine: in words, and the costs of its values by their origin."""

    text: str
    costs: Mapping[str, Cost] = field(default_factory=dict[str, Cost])


@dataclass(frozen=True, slots=True)
class ProgramValues:
    """The values of a program, in order."""

    title: str
    steps: tuple[ProgramValue, ...]
    notes: tuple[str, ...] = ()


class ProgramPicture(Picture):
    """The picture of a program: its blocks, its values and their residencies.

    A program of more values than fit on a page is folded, unless `whole`.
    """

    def __init__(self, flow: ProgramValues, time: Callable[[], Timing] | None = None, whole: bool = False) -> None:
        self.flow = flow
        self._time = time
        self._title = flow.title
        self._whole = whole or len(flow.steps) <= _PAGE

    @functools.cached_property
    def timing(self) -> Timing:
        """The least time of the program, or in words why it is unknown."""
        return Timing("") if self._time is None else self._time()

    @functools.cached_property
    def block(self) -> ProgramBlock:
        """The program as a block of blocks and values."""
        make = program_blocks.list_values if self._whole else program_blocks.fold
        return make(self.flow.steps, self.timing.costs)

    @functools.cached_property
    def opened(self) -> set[int]:
        """The identities of the blocks that are open at first."""
        return program_blocks.choose_open(self.block, _PAGE, BOUNDARY)

    @progress("picture")
    def __str__(self) -> str:
        total = self.block.cost.seconds
        table = _table(list(_lines(self.block, self.opened, total)), total)
        return "\n".join([self._heading, *self._facts(), *table, *self._notes()])

    @progress("picture")
    def _repr_html_(self) -> str:
        return program_html(self._heading, self._facts(), self.block, self.opened, self._notes(), str(self))

    def _coloured(self) -> str:
        return "\n".join(ansi(line, "#e69f00") if line.startswith(">") else line for line in str(self).split("\n"))

    @property
    def _heading(self) -> str:
        return shorten(self.flow.title, _WIDE)

    def _facts(self) -> list[str]:
        """Returns the lines below the heading."""
        count = self.block.equations
        folded = [] if self._whole else [f"{count:,} equations in blocks; visualize(..., whole=True) lists all values"]
        return [*folded, *([self.timing.text] if self.timing.text else [])]

    def _notes(self) -> list[str]:
        return [shorten(f"note: {note}", 1000) for note in self.flow.notes]


# --- text ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TableLine:
    """A line of the table: its name, its type if it is a value, the rest, its source, and its place on the timeline."""

    name: str
    type_text: str
    about: str
    source: str
    start: float
    cost: Cost


def _lines(
    block: ProgramBlock, opened: Container[int], total: float, start: float = 0.0, depth: int = 0, times: int = 1
) -> Iterator[_TableLine]:
    now, inset = start, "  " * min(depth, 8)
    for item in block.items:
        cost = item.cost
        match item:
            case BlockRow():
                yield _row_line(item, inset, now)
            case BlockRest():
                if cost.seconds > _NOTABLE * total:
                    yield _TableLine(f"  {inset}{item.text}", "", "", "", now, cost)
            case ProgramBlock():
                count = count_text(item.times, times)
                is_open = id(item) in opened
                name = f"{'  ' if is_open else '+ '}{inset}{shorten(item.name, _NAME - len(inset) - len(count))}{count}"
                about = (is_open and program_blocks.equations_text(item.equations)) or item.summary
                yield _TableLine(name, "", shorten(about, _ABOUT), "", now, cost)
                if is_open:
                    yield from _lines(item, opened, total, now, depth + 1, item.times)
        now += cost.seconds


def _row_line(row: BlockRow, inset: str, start: float) -> _TableLine:
    value, change = row.value, row.value.change
    name, where = (value.text, value.where) if change is None else (change.name, change.where)
    count = count_text(row.times)
    inset += "  " * min(value.depth, 8)
    name = f"{'> ' if value.is_lit else '  '}{inset}{shorten(name, _NAME - len(inset) - len(count))}{count}"
    return _TableLine(name, shorten(value.type_text, 18), shorten(where, 20), short_source(value.line), start, row.cost)


def _table(lines: Sequence[_TableLine], total: float) -> list[str]:
    types = max((cells(line.type_text) for line in lines), default=0)
    rows = [(x.name, pad(x.type_text, types) + f"  {x.about}" if x.type_text else x.about, x.source) for x in lines]
    texts = align_columns(rows) if rows else []
    wide = max(map(cells, texts), default=0)
    bar = min(_WIDE - wide - 11, 24)
    if not total or bar < 0:
        return texts
    bars = [_bar(x, total, bar) if bar >= _BAR else "" for x in lines]
    times = [f"{duration(x.cost.seconds) if x.cost.seconds else '':>7}  {b}" for x, b in zip(lines, bars, strict=True)]
    return [f"{pad(text, wide)}  {time}".rstrip() for text, time in zip(texts, times, strict=True)]


def _bar(line: _TableLine, total: float, wide: int) -> str:
    """Returns a bar at the place of a line on the timeline, a letter for each part that bounds it.

    >>> _bar(_TableLine("", "", "", "", 1.0, Cost(bound={"compute": 1.0, "links": 2.0})), 4.0, 8)
    '  ccllll'
    """
    edges, now = list[tuple[str, int]](), line.start
    for part, seconds in line.cost.bound.items():
        now += seconds
        edges.append((part[0].lower(), round(now / total * wide)))
    text = " " * round(line.start / total * wide)
    for letter, end in edges:
        text += letter * (end - len(text))
    return text
