"""The texts of a program as notebooks show them: TTIR, or TTIR and TTNN side by side, what the pass changed lit.

Nothing is decided here: what stands in a line is what the printer says, rows are aligned by the source lines that the
operations carry, and an operation counts as kept if the other side has one of its name in the same row.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program
from jaxmesh.dialects.ttnn.memory import MEMORY_OPS
from jaxmesh.drawing.listing_html import Line, Row, listing, plain_listing
from jaxmesh.drawing.text_layout import shortened
from jaxmesh.emit.targets import emit
from jaxmesh.errors import JaxmeshError
from jaxmesh.passes.ttir_to_ttnn.shapes import RENAMED

Make = Callable[[], Program]
MOST_OPS = 400
"""Of longer programs the first operations are shown."""
_LINE = re.compile(r"(.+?):([0-9]{1,9})(?::[0-9]{1,9})?(?: \((.*)\))?", re.DOTALL)


def one(title: str, program: Make, jaxpr: Callable[[], str]) -> str:
    """A program as HTML, the operations that move tensors between host and devices lit."""
    try:
        made = program()
        level = "TTNN" if any(op.name.startswith("ttnn.") for op in made.ops) else "TTIR"
        side = _Side(made, level.lower())
    except JaxmeshError as error:
        return _unsaid(title, jaxpr, error)
    rows = [side.head()]
    for run in side.runs:
        lines = [Line(text, _alone(op)) for op, text in run.ops]
        rows.append(Row(*_source(run.line), (lines,)))
    return listing(title, [level], [*rows, side.end()], side.notes)


def two(title: str, above: Make, below: Make, jaxpr: Callable[[], str]) -> str:
    """A program before and after the pass as HTML, side by side, what has changed lit."""
    try:
        left, right = _Side(above(), "ttir"), _Side(below(), "ttnn")
    except JaxmeshError as error:
        return _unsaid(title, jaxpr, error)
    rows: list[Row] = []
    for line, before, after in _aligned(left.runs, right.runs):
        rows.append(Row(*_source(line), _compared(before, after)))
    ends = [
        Row("", "", (a.columns[0], b.columns[0])) for a, b in ((left.head(), right.head()), (left.end(), right.end()))
    ]
    return listing(title, ["TTIR", "TTNN"], [ends[0], *rows, ends[1]], [*left.notes, *right.notes])


def _unsaid(title: str, jaxpr: Callable[[], str], error: JaxmeshError) -> str:
    """A program that has no text of its dialects: JAX's own, and why."""
    return plain_listing(title, jaxpr(), [f"{type(error).__name__}: {error}"])


# --- one side --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """Operations of one source line that stand together, each with its text."""

    line: str
    ops: list[tuple[Op, str]]


class _Side:
    """A program's text, line by line."""

    def __init__(self, program: Program, name: str) -> None:
        lines = emit(name, program).rstrip("\n").split("\n")
        # The module, the function, one line per operation, what is returned, and two closing brackets.
        self._head, self._end = lines[:2], lines[len(lines) - 3 : -2]
        texts = lines[2:-3]
        self.notes = [f"{name}: the first {MOST_OPS} of {len(texts)} operations."] if len(texts) > MOST_OPS else []
        self.runs: list[_Run] = []
        for op, text in list(zip(program.ops, texts, strict=True))[:MOST_OPS]:
            line = _without_column(op.line)
            if not self.runs or self.runs[-1].line != line:
                self.runs.append(_Run(line, []))
            self.runs[-1].ops.append((op, text))

    def head(self) -> Row:
        """The lines before the operations."""
        return Row("", "", ([Line(text, "soft") for text in self._head],))

    def end(self) -> Row:
        """The line after them."""
        return Row("", "", ([Line(text) for text in self._end],))


def _name(op: Op) -> str:
    """The name of an operation as TTNN has it, without the dialect."""
    name = op.name.partition(".")[2]
    return RENAMED.get(name, name)


def _alone(op: Op) -> str:
    return "lit" if has_trait(op.name, Trait.TRANSFERS) else "soft" if _is_memory(op) else "kept"


def _is_memory(op: Op) -> bool:
    """Returns True for ops about devices, layouts and memory that transfer nothing."""
    return op.name.removeprefix("ttnn.") in MEMORY_OPS and not has_trait(op.name, Trait.TRANSFERS)


# --- two sides -------------------------------------------------------------------------------------------------------

Ops = Sequence[tuple[Op, str]]


def _aligned(left: Sequence[_Run], right: Sequence[_Run]) -> list[tuple[str, Ops, Ops]]:
    """Rows of both sides; runs of the same source line stand in one."""
    rows: list[tuple[str, Ops, Ops]] = []
    matcher = SequenceMatcher(None, [r.line for r in left], [r.line for r in right], autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            rows += [(a.line, a.ops, b.ops) for a, b in zip(left[a0:a1], right[b0:b1], strict=True)]
        else:
            rows += [(a.line, a.ops, []) for a in left[a0:a1]]
            rows += [(b.line, [], b.ops) for b in right[b0:b1]]
    return rows


def _compared(before: Ops, after: Ops) -> tuple[Sequence[Line], ...]:
    """The lines of a row: those that the other side has no operation for are lit, what keeps memory is soft."""
    common = Counter(_name(op) for op, _ in before) & Counter(_name(op) for op, _ in after)
    sides: list[list[Line]] = []
    for ops in (before, after):
        left, lines = Counter(common), list[Line]()
        for op, text in ops:
            name = _name(op)
            kept = left[name] > 0
            left[name] -= kept
            lines.append(Line(text, "kept" if kept else "soft" if _is_memory(op) else "lit"))
        sides.append(lines)
    return tuple(sides)


def _without_column(line: str) -> str:
    """A source line as one place: `file:line`; what is none as it is."""
    found = _LINE.fullmatch(line)
    return line if found is None else f"{found[1]}:{found[2]}"


def _source(line: str) -> tuple[str, str]:
    """A source line for a reader: the file without its folders, and the code there, where it can be read."""
    found = _LINE.fullmatch(line)
    if found is None:
        return shortened(line, 80), ""
    file, number = found[1], int(found[2])
    return f"{shortened(file.replace(chr(92), '/').rpartition('/')[2], 40)}:{number}", linecache.getline(
        file, number
    ).strip()
