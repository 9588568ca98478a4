"""The user's source lines of the operations of a text, from its MLIR locations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from jaxmesh.jaxprs.user_frames import PARSED, name_of

_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)\s*$", re.MULTILINE)
_USED = re.compile(r"#loc\d*")
_TRAILING = re.compile(r"\bloc\((.*)\)$")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(?::(\d+):(\d+))?')
"""A string, and the line and column of a file. A search for files alone would begin anew at each quote of a string."""
_NAMELESS = "-:"
"""How a line of a text begins that MLIR parsed without a name."""
_DEEPEST = 64
"""The most aliases inside of each other."""


@dataclass(slots=True)
class SourceLines:
    """The locations of one text.

    >>> SourceLines.of('%0 = x loc(#loc1)\\n#loc1 = loc("f"(#loc2))\\n#loc2 = loc("a.py":3:4)').at(1)
    'a.py:3:4'
    """

    lines: list[str]
    aliases: dict[str, str]
    known: dict[int, str]

    @classmethod
    def of(cls, text: str) -> SourceLines:
        """Reads the aliases of a text."""
        return cls(text.splitlines(), dict(_ALIAS.findall(text)), {})

    def at(self, line: int) -> str:
        """Returns `file:line:column` of the operation on a line of the text, or its name, or nothing."""
        if line not in self.known:
            self.known[line] = self._resolve(self.written(line), _DEEPEST)
        return self.known[line]

    def written(self, line: int) -> str:
        """Returns the location that the text writes on a line, or nothing."""
        last = self._end(line).rstrip() if 0 < line <= len(self.lines) else ""
        found = _TRAILING.search(last) if last.endswith(")") else None
        return "" if found is None else found[1]

    def _end(self, line: int) -> str:
        """Returns the line on which an operation ends, whose regions may open on `line`."""
        first = self.lines[line - 1]
        head = first[: len(first) - len(first.lstrip())] + "}"
        opens = first.endswith("{") or "stablehlo.while(" in first
        rest = map(self.lines.__getitem__, range(line, len(self.lines) if opens else line))
        return next((r for r in rest if r.startswith(head) and not r.endswith("{")), "") if opens else first

    def of_operation(self, location: Any, offset: int) -> str:
        """Returns the same of an operation of a text that MLIR parsed; of an inlined one, the line of the call."""
        found = [self.at(int(n) + offset) for n, _ in PARSED.findall(str(location))]
        return next((f for f in found if _is_line(f)), next(filter(None, found), ""))

    def _resolve(self, location: str, depth: int) -> str:
        """Returns the first location with a file, following aliases in their order; else the first one in a text
        without a name; else the first name."""
        own = [f"{name_of(m[1])}:{m[2]}:{m[3]}" for m in _STRING.finditer(location) if m[2]]
        if own and not own[0].startswith(_NAMELESS):
            return own[0]
        inner = [self._resolve(self.aliases.get(a, ""), depth - 1) for a in _USED.findall(location)] if depth else []
        files = [f for f in (*own, *inner) if _is_line(f)]
        name = _STRING.match(location)
        first = next((f for f in files if not f.startswith(_NAMELESS)), next(iter(files), ""))
        return first or (name[1] if name else next(filter(None, inner), ""))


def _is_line(text: str) -> bool:
    return re.search(r":\d+:\d+$", text) is not None


def line(source: str) -> str:
    """Returns a source line without its column, which some texts lack."""
    return source.rpartition(":")[0]
