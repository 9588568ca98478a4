"""Locations of MLIR text: source lines and argument paths, numbered and defined as MLIR's printer does."""

from __future__ import annotations

import re

from jaxmesh.emit.mlir.spelling import string

_LINE = re.compile(r"(.+?):([0-9]{1,9})(?::([0-9]{1,9}))?(?: \((.*)\))?", re.DOTALL)
UNKNOWN = "loc(unknown)"


def source(line: str) -> str:
    """A source line `file:line (function)` as a location; anything else as a name.

    >>> source("model.py:12 (f)"), source("model.py:12:5 (f)"), source("")
    ('loc("model.py":12:0)', 'loc("model.py":12:5)', 'loc(unknown)')
    """
    found = _LINE.fullmatch(line)
    if found is None:
        return named(line)
    file, row, column = found.group(1), int(found.group(2)), int(found.group(3) or 0)
    return f"loc({string(file)}:{row}:{column})"


def named(name: str) -> str:
    """A name as a location."""
    return f"loc({string(name)})" if name else UNKNOWN


class Locations:
    """The locations of one text, in the order they are met: that is their number. Unless written, all are empty."""

    def __init__(self, *, written: bool) -> None:
        self._written = written
        self._numbers: dict[str, int] = {}
        self._first: set[str] = set()
        self._of_line: dict[str, str] = {}

    def op(self, line: str) -> str:
        """Returns the location behind an operation, a function or the module."""
        found = self._of_line.get(line) if self._written else ""
        if found is None:
            number = self._numbers.setdefault(source(line), len(self._numbers))
            found = self._of_line[line] = f" loc({_alias(number)})"
        return found

    def argument(self, path: str) -> str:
        """Returns the location behind an argument: MLIR writes it out there, and defines it before the module."""
        if not self._written:
            return ""
        place = named(path)
        self._numbers.setdefault(place, len(self._numbers))
        self._first.add(place)
        return f" {place}"

    def definitions(self) -> tuple[list[str], list[str]]:
        """The lines before and after the module."""
        lines = {place: f"{_alias(number)} = {place}" for place, number in self._numbers.items()}
        first = [line for place, line in lines.items() if place in self._first]
        return first, [line for place, line in lines.items() if place not in self._first]


def _alias(number: int) -> str:
    return f"#loc{number or ''}"
