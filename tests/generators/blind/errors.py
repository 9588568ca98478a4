"""Plants errors in TTIR and TTNN texts: one operation is changed so that its types stay as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tests.generators.blind.kinds import KINDS, Change
from tests.generators.blind.texts import Op, Text, parsed


@dataclass(frozen=True)
class Planted:
    """A text with an error.

    Attributes:
      kind: of the error.
      op: the changed operation.
      line: the number of its line.
      text: the text with the error.
      exact: the numbers of the lines at which it is named exactly: its own; of a dropped one that of the operand.
      readers: the numbers of the lines that read its result.
      later: these, and those that read it through operations that only move values.
    """

    kind: str
    op: str
    line: int
    text: str
    exact: frozenset[int]
    readers: frozenset[int]
    later: frozenset[int]


def distance(planted: Planted, line: int) -> int:
    """Returns how many operations a line is behind an error, along the values that it changes; 0 if none reaches it."""
    text, far, depth = parsed(planted.text), set(planted.readers), 1
    by_line, seen = {x.at + 1: x for x in text.ops}, set[int]()
    while far and line not in far:
        seen |= far
        far = {r for x in far if x in by_line for r in text.readers(by_line[x])} - seen
        depth += 1
    return depth if far else 0


def plant(text: str, rng: np.random.Generator) -> Planted:
    """Returns the text with one error, of a kind and at an operation drawn from those that are possible."""
    source = parsed(text)
    changes = {k: [(op, c) for op in source.ops for c in make(op, source, rng)] for k, make in KINDS.items()}
    possible = [k for k, rows in changes.items() if rows]
    kind = possible[rng.integers(len(possible))]
    op, change = changes[kind][rng.integers(len(changes[kind]))]
    return _planted(kind, source, op, change)


def _planted(kind: str, source: Text, op: Op, change: Change) -> Planted:
    line, lines = op.at + 1, list(source.lines)
    exact, readers, later = {line}, source.readers(op), source.later(op)
    if kind == "collective dropped":
        old, new = change
        for at in range(op.at + 1, len(lines)):
            if "func.func" in lines[at]:
                break
            lines[at] = re.sub(rf"{old}\b(?!#)", new, lines[at])
        for at, row in enumerate(lines):
            lines[at] = "" if at > op.function and "deallocate" in row and f"({new})" in row else row
        lines[op.at] = ""
        exact |= source.makers(op)
    else:
        lines[op.at : op.at + 1] = change
        if kind == "index shifted":
            readers, later = {line + 1}, {line + 1} | {x + 1 for x in later}
        elif kind == "collective doubled":
            line, readers, later = line + 1, {x + 1 for x in readers}, {x + 1 for x in later}
            exact = {line}
            for at in range(op.at + 2, len(lines)):
                if "func.func" in lines[at]:
                    break
                lines[at] = re.sub(rf"{op.results[0]}\b(?!#)", "%9001", lines[at])
    found = (frozenset(x) for x in (exact, readers, later))
    return Planted(kind, f"{op.dialect}.{op.name}", line, "\n".join(lines) + "\n", *found)
