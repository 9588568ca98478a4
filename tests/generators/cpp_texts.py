"""Emitted C++ of many programs in one file, each in a namespace of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping

_INCLUDE = '#include "ttnn-precompiled.hpp"\n'


def joined(texts: Mapping[str, str]) -> tuple[str, list[str]]:
    """Returns one text without the functions `main`, and for each of its lines the name of the program."""
    lines, names = [_INCLUDE.strip()], [""]
    for number, (name, text) in enumerate(texts.items()):
        body = re.split(r"^int32_t main\(", text, maxsplit=1, flags=re.MULTILINE)[0].replace(_INCLUDE, "")
        part = [f"namespace p{number} {{", *body.splitlines(), "}"]
        lines += part
        names += [name] * len(part)
    return "\n".join(lines), names
