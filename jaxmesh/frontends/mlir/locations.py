"""Locations that a text gives to its ops and arguments, as `file:line:column` or as a name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from jaxmesh.jaxprs.user_frames import is_installed, name_of

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_FILE = re.compile(rf"({_STRING}):([0-9]{{1,9}})(?::([0-9]{{1,9}}))?")
_NAME = re.compile(rf"({_STRING})(?:\((.*)\))?$", re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:([0-9A-Fa-f]{2})|(.))")
_LETTERS = {b"n": b"\n", b"t": b"\t"}


def resolve(location: str, aliases: Mapping[str, str]) -> str:
    """Returns a location as `file:line:column` or as a name; empty if it is unknown.

    Of a composed location it is the first part that names a file of the user's, as in a traceback of JAX.

    >>> resolve("#loc1", {"#loc1": 'callsite("f"("g.py":2:0) at "h.py":4:0)'}), resolve("unknown", {})
    ('g.py:2', '')
    """
    for _ in range(len(aliases)):
        if location not in aliases:
            break
        location = aliases[location]
    files = list(_FILE.finditer(location))
    if files:
        file = next((f for f in files if not is_installed(f.group(1)[1:-1])), files[-1])
        line, column = file.group(2), file.group(3)
        return f"{name_of(_unquote(file.group(1)))}:{line}" + (f":{column}" if column and int(column) else "")
    name = _NAME.match(location)
    return "" if name is None else _unquote(name.group(1))


def of_argument(location: str) -> str:
    """Returns the location of an argument, from MLIR's text; empty if the program does not name it.

    >>> of_argument('loc("x")'), of_argument('loc("-":3:4)')
    ('x', '')
    """
    # The parser adds locations in a file of this name.
    return "" if location.startswith('loc("-":') else resolve(location[len("loc(") : -1], {})


def _unquote(quoted: str) -> str:
    data = _ESCAPE.sub(_unescape, quoted[1:-1].encode("utf-8", "surrogatepass"))
    return data.decode("utf-8", "replace")


def _unescape(found: re.Match[bytes]) -> bytes:
    digits, letter = found.groups()
    return bytes([int(digits, 16)]) if digits else _LETTERS.get(letter, letter)
