"""The texts of a program in a notebook: TTIR, or TTIR and TTNN side by side with the changes of the pass highlighted.

The printer writes the lines. Rows are aligned by the source locations of operations. An operation counts as unchanged
if the row has an operation of the same name on the other side.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program
from jaxmesh.drawing.listing_html import ListingLine, ListingRow, listing_html, plain_listing_html
from jaxmesh.drawing.text_layout import shorten
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.errors import JaxmeshError
from jaxmesh.jaxprs.user_frames import source_code
from jaxmesh.passes.ttir_to_ttnn.shapes import RENAMED
from jaxmesh.runtime.progress import progress

Make = Callable[[], Program]
MOST_OPS = 400
"""The number of operations shown; longer programs are cut off."""
_LINE = re.compile(r"(.+?):([0-9]{1,9})(?::[0-9]{1,9})?(?: \((.*)\))?", re.DOTALL)


@progress("text")
def single_column(title: str, program: Make, jaxpr: Callable[[], str]) -> str:
    """Returns a program as HTML, with the transfers between host and devices highlighted."""
    try:
        flat = program()
        side = _ProgramText(flat, "ttnn" if any(op.name.startswith("ttnn.") for op in flat.ops) else "ttir")
    except JaxmeshError as error:
        return _fallback(title, jaxpr, error)
    rows = [(*_source(line), [[(text, _state(op)) for op, text in ops]]) for line, ops in side.runs]
    return _listing(title, [side], rows)


@progress("texts")
def two_columns(title: str, above: Make, below: Make, jaxpr: Callable[[], str]) -> str:
    """Returns a program before and after the pass as HTML, side by side, with the changes highlighted."""
    try:
        left, right = _ProgramText(above(), "ttir"), _ProgramText(below(), "ttnn")
    except JaxmeshError as error:
        return _fallback(title, jaxpr, error)
    rows = [(*_source(line), _compare(*ops)) for line, *ops in _align(left.runs, right.runs)]
    return _listing(title, [left, right], rows)


def _listing(title: str, sides: Sequence[_ProgramText], rows: Sequence[ListingRow]) -> str:
    """Returns rows as HTML, between the lines before and after the operations."""
    head: ListingRow = "", "", [[(text, "soft") for text in side.head] for side in sides]
    end: ListingRow = "", "", [[(text, "kept") for text in side.end] for side in sides]
    names = [side.name.upper() for side in sides]
    return listing_html(title, names, [head, *rows, end], [note for side in sides for note in side.notes])


def _fallback(title: str, jaxpr: Callable[[], str], error: JaxmeshError) -> str:
    """Returns the jaxpr of a program that its dialect cannot express, and the error."""
    return plain_listing_html(title, jaxpr(), [f"{type(error).__name__}: {error}"])


# --- one side --------------------------------------------------------------------------------------------------------


class _ProgramText:
    """A program's text, line by line."""

    def __init__(self, program: Program, name: str) -> None:
        lines = mlir_text(program, resources=False).rstrip("\n").split("\n")
        # The module, the function, one line per operation, the return, and two closing brackets.
        self.name, self.head, self.end = name, lines[:2], lines[len(lines) - 3 : -2]
        texts = lines[2:-3]
        self.notes = [f"{name}: the first {MOST_OPS} of {len(texts)} operations."] if len(texts) > MOST_OPS else []
        shown = list(zip(program.ops, texts, strict=True))[:MOST_OPS]
        self.runs = [(line, list(ops)) for line, ops in itertools.groupby(shown, lambda o: without_column(o[0].line))]
        """The adjacent operations of each source line, each with its text."""


def _name(op: Op) -> str:
    """Returns the TTNN name of an operation, without the dialect."""
    name = op.name.partition(".")[2]
    return RENAMED.get(name, name)


def _state(op: Op) -> str:
    return "lit" if has_trait(op.name, Trait.TRANSFERS) else "soft" if _is_memory(op) else "kept"


def _is_memory(op: Op) -> bool:
    """Returns True for ops on devices, layouts and memory that transfer nothing."""
    return has_trait(op.name, Trait.MEMORY) and not has_trait(op.name, Trait.TRANSFERS)


# --- two sides -------------------------------------------------------------------------------------------------------

Ops = Sequence[tuple[Op, str]]
Runs = Sequence[tuple[str, Ops]]


def _align(left: Runs, right: Runs) -> list[tuple[str, Ops, Ops]]:
    """Aligns both sides in rows; runs of the same source line share a row."""
    rows: list[tuple[str, Ops, Ops]] = []
    matcher = SequenceMatcher(None, [line for line, _ in left], [line for line, _ in right], autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            rows += [(line, ops, other) for (line, ops), (_, other) in zip(left[a0:a1], right[b0:b1], strict=True)]
        else:
            rows += [(line, ops, []) for line, ops in left[a0:a1]]
            rows += [(line, [], ops) for line, ops in right[b0:b1]]
    return rows


def _compare(before: Ops, after: Ops) -> list[list[ListingLine]]:
    """Returns the lines of a row: changed operations are highlighted, memory management is soft."""
    common = Counter(_name(op) for op, _ in before) & Counter(_name(op) for op, _ in after)
    sides: list[list[ListingLine]] = []
    for ops in (before, after):
        left, lines = Counter(common), list[ListingLine]()
        for op, text in ops:
            name = _name(op)
            unchanged = left[name] > 0
            left[name] -= unchanged
            lines.append((text, "kept" if unchanged else "soft" if _is_memory(op) else "lit"))
        sides.append(lines)
    return sides


def without_column(line: str) -> str:
    """Returns a source location without its column: `file:line`; returns any other text unchanged."""
    match = _LINE.fullmatch(line)
    return line if match is None else f"{match[1]}:{match[2]}"


def _source(line: str) -> tuple[str, str]:
    """Returns a source location without folders, and its line of code if the file can be read."""
    match = _LINE.fullmatch(line)
    if match is None:
        return shorten(line, 80), ""
    file, number = match[1], int(match[2])
    name = shorten(file.rpartition("/")[2], 40)
    return f"{name}:{number}", source_code(file, number).strip()
