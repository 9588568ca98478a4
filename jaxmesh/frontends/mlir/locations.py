"""Where a text says that its ops and arguments come from: locations, of which MLIR's parser is given none.

The parser's own locations say on which line of the text an op stands; what the text says of an op's origin is looked
up there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxmesh.frontends.mlir.decode import Body

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_DEFINED = re.compile(r"^(\#loc\w*)\s*=\s*loc\((.*)\)\s*$", re.MULTILINE)
_BEHIND = re.compile(rf"{_STRING}|//.*|(?<![\w$.\-\#])(loc)\(")
_FILE = re.compile(rf"({_STRING}):([0-9]{{1,9}})(?::([0-9]{{1,9}}))?")
_NAME = re.compile(rf"({_STRING})(?:\((.*)\))?$", re.DOTALL)
_HEAD = re.compile(rf"{_STRING}|(%[\w$.\-]+)\s*:|(?<![\w$.\-])loc\(({_STRING}|\#loc\w*)\)")
_ESCAPE = re.compile(rb"\\(?:([0-9A-Fa-f]{2})|(.))")


@dataclass(frozen=True, slots=True)
class Written:
    """What a text says of the places of one function."""

    lines: Sequence[str]
    offset: int
    aliases: Mapping[str, str]
    first: int

    def line(self, number: int) -> str:
        """The place of the op on a line of the file, as `file:line:column`, a name, or nothing."""
        text = self._text(number)
        starts = [t.end() for t in _BEHIND.finditer(text) if t.group(1)] if "loc(" in text else []
        return self._place(text[starts[-1] :].rpartition(")")[0]) if starts else ""

    def arguments(self, otherwise: Sequence[str]) -> list[str]:
        """The places of the arguments; where the text has none, what stands for them."""
        head, places = self._text(self.first), list(otherwise)
        if "loc(" not in head:
            return places
        number = -1
        for token in _HEAD.finditer(head):
            if token.group(1) is not None:
                number += 1
            elif token.group(2) is not None and 0 <= number < len(places):
                places[number] = self._place(token.group(2))
        return places

    def _text(self, number: int) -> str:
        at = number - 1 - self.offset
        return self.lines[at] if 0 <= at < len(self.lines) else ""

    def _place(self, said: str, depth: int = 0) -> str:
        said = said.strip()
        if said in self.aliases and depth < len(self.aliases):
            return self._place(self.aliases[said], depth + 1)
        file = _FILE.search(said)
        if file is not None:
            row, column = file.group(2), file.group(3)
            return f"{_unquoted(file.group(1))}:{row}" + (f":{column}" if column and int(column) else "")
        name = _NAME.match(said)
        return "" if name is None else _unquoted(name.group(1))


def written(body: Body) -> Written:
    """The places of a function's ops and arguments."""
    piece = body.function.piece
    aliases: dict[str, str] = {}
    lines: Sequence[str] = ()
    if "loc(" in piece.text:
        aliases.update(_aliases(piece.text))
        lines = piece.text.split("\n")
    return Written(lines, piece.offset, aliases, body.function.line)


def _aliases(text: str) -> Iterator[tuple[str, str]]:
    return ((m.group(1), m.group(2)) for m in _DEFINED.finditer(text))


def _unquoted(quoted: str) -> str:
    data = _ESCAPE.sub(_character, quoted[1:-1].encode("utf-8", "surrogatepass"))
    return data.decode("utf-8", "replace")


_LETTERS = {b"n": b"\n", b"t": b"\t"}


def _character(found: re.Match[bytes]) -> bytes:
    digits, letter = found.groups()
    return bytes([int(digits, 16)]) if digits else _LETTERS.get(letter, letter)
