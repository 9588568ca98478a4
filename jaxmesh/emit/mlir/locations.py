"""Locations of MLIR text: source locations and argument paths, numbered and defined as by MLIR's printer."""

from __future__ import annotations

import re

from jaxmesh.emit.mlir.spelling import string

_LINE = re.compile(r"(.+?):([0-9]{1,9})(?::([0-9]{1,9}))?(?: \((.*)\))?", re.DOTALL)
UNKNOWN = "loc(unknown)"


def source(line: str) -> str:
    """Returns a source line `file:line (function)` as a location; any other text as a named location.

    >>> source("model.py:12 (f)"), source("model.py:12:5 (f)"), source("")
    ('loc("model.py":12:0)', 'loc("model.py":12:5)', 'loc(unknown)')
    """
    match = _LINE.fullmatch(line)
    if match is None:
        return named(line)
    file, line_number, column = match.group(1), int(match.group(2)), int(match.group(3) or 0)
    return f"loc({string(file)}:{line_number}:{column})"


def named(name: str) -> str:
    """Returns a name as a location."""
    return f"loc({string(name)})" if name else UNKNOWN


class Locations:
    """The locations of one text, numbered in the order of their first use; all are empty unless `written`."""

    def __init__(self, *, written: bool) -> None:
        self._written = written
        self._numbers: dict[str, int] = {}
        self._first: set[str] = set()
        self._of_line: dict[str, str] = {}

    def op(self, line: str) -> str:
        """Returns the location of an operation, a function or the module."""
        suffix = self._of_line.get(line) if self._written else ""
        if suffix is None:
            number = self._numbers.setdefault(source(line), len(self._numbers))
            suffix = self._of_line[line] = f" loc({_alias(number)})"
        return suffix

    def argument(self, path: str) -> str:
        """Returns the location of an argument: MLIR writes it inline, and defines it before the module."""
        if not self._written:
            return ""
        location = named(path)
        self._numbers.setdefault(location, len(self._numbers))
        self._first.add(location)
        return f" {location}"

    def definitions(self) -> tuple[list[str], list[str]]:
        """Returns the lines before and after the module."""
        lines = {location: f"{_alias(number)} = {location}" for location, number in self._numbers.items()}
        first = [line for location, line in lines.items() if location in self._first]
        return first, [line for location, line in lines.items() if location not in self._first]


def _alias(number: int) -> str:
    return f"#loc{number or ''}"
