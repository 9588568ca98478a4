"""Legal names from arbitrary names: function names, MLIR symbols and tree paths may contain any text and inject
nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set as AbstractSet

LONGEST = 60
_ILLEGAL = re.compile(r"[^A-Za-z0-9]+")


def identifier(text: str, taken: AbstractSet[str] = frozenset()) -> str:
    """Returns a legal ASCII identifier like `text` that is not taken: letters, digits and single underscores between
    them.

    >>> identifier("<lambda>"), identifier("a.b['c']"), identifier("1st"), identifier("for", {"for"})
    ('lambda', 'a_b_c', 'f_1st', 'for_0')
    """
    # Read only the start: a text may be of any length.
    plain = _ILLEGAL.sub("_", text[: 8 * LONGEST]).strip("_")[:LONGEST].rstrip("_") or "f"
    if plain[0].isdigit():
        plain = f"f_{plain}"
    name, number = plain, 0
    while name in taken:
        name, number = f"{plain}_{number}", number + 1
    return name


def comment(text: str) -> str:
    """Returns text for one line of a comment: printable ASCII, no line breaks, no backslash at the end, no nested
    markers.

    >>> comment("a\\nb */ c")
    'a b * / c'
    """
    ascii_only = "".join(c if 32 <= ord(c) < 127 else " " for c in text)
    return " ".join(ascii_only.replace("*/", "* /").replace("/*", "/ *").split()).rstrip("\\ ")


def inputs_function(name: str, load: bool) -> str:
    """Returns the name of the emitted function that creates or loads the inputs of the function `name`."""
    return f"{'load' if load else 'create'}_inputs_for_{name}"


class Variables:
    """Names of variables: the callee that produced the value, and a counter per callee over the whole text.

    >>> names = Variables({"ttnn_add_1"})
    >>> [names.fresh("ttnn.add") for _ in range(3)]
    ['ttnn_add_0', 'ttnn_add_1_0', 'ttnn_add_2']
    """

    __slots__ = ("_counts", "_taken")

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def fresh(self, callee: str) -> str:
        """Returns the next name for a result of `callee`."""
        base = callee.replace(".", "_").replace("::", "_")
        number = self._counts.get(base, 0)
        self._counts[base] = number + 1
        return self.take(f"{base}_{number}")

    def take(self, name: str) -> str:
        """Returns this name, with a suffix if it is taken."""
        while name in self._taken:
            name += "_0"
        self._taken.add(name)
        return name
