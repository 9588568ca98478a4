"""The signatures of the real `ttnn`, read from `signatures.txt`.

The table first declares parameters that many functions share, as `name: type = default`. Then come groups: the names
of functions, and indented one line per overload. There a bare name is a parameter as declared; a line that begins with
a release holds in that release alone. The default `...` marks an argument that is needed, although one before it has a
default; `Any` stands for a type that the library does not declare.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("signatures.txt")
NEWEST, OLDEST = "0.81.1", "0.77.0"
"""The releases of the table; tt-mlir builds against the second."""

NEEDED: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a real function.

    Attributes:
      name, type: as the library declares them; `type` is a Python expression such as `DataType | None`.
      default: its default; `NEEDED` if there is none, and a `Name` for an object such as `DataType.BFLOAT16`.
      keyword: True if the argument must be given by name.
    """

    name: str
    type: str
    default: Any
    keyword: bool


class Name(str):
    """The name of a default that is not a literal, such as `DataType.BFLOAT16`."""

    __slots__ = ()


@functools.cache
def table(release: str = NEWEST) -> Mapping[str, Sequence[str]]:
    """Returns the signatures of each function in a release, as the table has them."""
    rows: dict[str, list[str]] = {}
    group: list[str] = []
    inside = False
    for line in TABLE.read_text().splitlines():
        if line.startswith("    "):
            first, _, rest = line.strip().partition(" (")
            if not first.startswith("("):
                if first != release:
                    continue
                line = f"({rest}"
            for callee in group:
                rows[callee].append(line.strip())
            inside = False
        elif line.startswith("ttnn."):
            group = [*group, *line.split()] if inside else line.split()
            inside = True
            rows |= {callee: [] for callee in group}
    return rows


@functools.cache
def _declared() -> Mapping[str, str]:
    """Returns the declarations at the head of the table."""
    lines = TABLE.read_text().split("\n\n")[0].splitlines()
    return {line.partition(":")[0].partition(" =")[0]: line for line in lines if not line.startswith("#")}


@functools.cache
def signatures(callee: str, release: str = NEWEST) -> tuple[tuple[Parameter, ...], ...]:
    """Returns the overloads of a function in a release, in the library's order; none if it does not exist there.

    >>> [p.name for p in signatures("ttnn.abs")[0]]
    ['input_tensor', 'memory_config', 'output_tensor', 'sub_core_grids']
    """
    return tuple(_parse(expand(row)) for row in table(release).get(callee, ()))


def expand(row: str) -> str:
    """Returns a signature with the declarations of its parameters in place of their bare names."""
    declared = _declared()
    parts = [declared.get(part, part) for part in _split(row[1:-1])]
    return f"({', '.join(parts)})"


def _split(text: str) -> list[str]:
    """Splits a list of parameters at its outer commas."""
    parts, depth, begin = list[str](), 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[begin:i].strip())
            begin = i + 1
    rest = text[begin:].strip()
    return [*parts, rest] if rest else parts


def _parse(row: str) -> tuple[Parameter, ...]:
    node: Any = ast.parse(f"def f{row}: 0").body[0]
    found = node.args
    places = [*found.posonlyargs, *found.args]
    defaults = [*[None] * (len(places) - len(found.defaults)), *found.defaults, *found.kw_defaults]
    return tuple(
        Parameter(a.arg, "Any" if a.annotation is None else ast.unparse(a.annotation), _value(d), i >= len(places))
        for i, (a, d) in enumerate(zip([*places, *found.kwonlyargs], defaults, strict=True))
    )


def _value(node: ast.expr | None) -> Any:
    if node is None:
        return NEEDED
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return Name(ast.unparse(node))
    return NEEDED if value is ... else value
