"""Quotes strings for MLIR, Python and C++, the languages of printed programs.

Printers quote attributes, symbols, argument names, source locations, paths and mesh axes by these functions, because a
text of a stranger may contain any string. HTML and SVG have `jaxmesh.drawing.text_layout.escape`.
"""

from __future__ import annotations

import re

_ESCAPED = re.compile(rb"[^ -!#-\[\]-~]")
"""Bytes that a string escapes: all but printable ASCII, quotes and backslashes."""


def mlir_string(text: str) -> str:
    """Returns text as a string of MLIR, as MLIR's printer writes it.

    >>> print(mlir_string('a"b' + chr(10) + 'é'))
    "a\\22b\\0A\\C3\\A9"
    """
    data = text.encode("utf-8", "replace")
    return '"' + _ESCAPED.sub(_escape, data).decode("ascii") + '"'


def _escape(match: re.Match[bytes]) -> bytes:
    byte = match.group()
    return rb"\\" if byte == b"\\" else b"\\%02X" % byte[0]


def axis_names(text: str) -> list[str]:
    """Returns the names of mesh axes in a text of MLIR; names have neither quotes nor backslashes.

    >>> axis_names('#sdy<manual_axes{"data-parallel", "x"}>')
    ['data-parallel', 'x']
    """
    return re.findall(r'"([^"]*)"', text)


def python_string(text: str) -> str:
    """Returns text as a string of Python in double quotes, as EmitPy prints it.

    >>> print(python_string("zeros"), python_string('a"b'))
    "zeros" "a\\"b"
    """
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def cpp_string(text: str) -> str:
    """Returns text as a string of C++; bytes other than plain characters are written in octal.

    >>> print(cpp_string('a"b?'))
    "a\\042b\\077"
    """
    data = text.encode("utf-8", "replace")
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in data)
    return f'"{"".join(plain)}"'
