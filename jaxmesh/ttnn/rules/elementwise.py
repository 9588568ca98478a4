"""Rules of elementwise functions, by a table of the element types, numbers and options that the library takes.

`python -m tests.generators.real_ttnn.elementwise_table` asks the library and writes the table. A row has the kinds of
each operand and option, one letter each, and the result's element type, by its letter or as the operand's (x, y, z).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from jaxmesh.dialects.ttnn.forms import B4, B8, BF16, F32, I8, I32, REALS, U8, U16, U32
from jaxmesh.ttnn.rules.given import ROWS, TILE, Form, Given, Result, Rule, checked

TABLE = Path(__file__).with_name("elementwise.txt")
TYPES = {F32: "f", BF16: "b", B8: "8", B4: "4", I32: "i", U32: "u", U16: "h", U8: "c", I8: "s"}
_NAMES = {letter: name for name, letter in TYPES.items()}
NUMBERS: Mapping[str, int | float] = {
    "A": -3, "B": 0, "C": 1, "D": 3, "E": 2**31 + 5,
    "K": -(2.0**33), "L": -3.0, "M": 0.0, "N": 1.0, "O": 3.0, "P": 2.0**31, "Q": 2.0**32, "X": 0.5,
}  # fmt: skip
"""By letter a number of each kind: integers by range, whole floats by range, other floats."""
_LETTERS = "".join(NUMBERS)
OPTIONS: Mapping[str, Mapping[Any, str]] = {
    "dtype": {None: "-", **TYPES},
    "rounding_mode": {None: "-", "floor": "F", "trunc": "T"},
    "fast_and_approximate_mode": {None: "-", True: "Y", False: "N"},
}
"""By option the letter of each value; that of others is `O`."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The calls that functions of the table accept.

    Attributes:
      operands: the number of operands.
      options: the options that a row speaks of.
      rows: by row the letters of each operand and option, and of the result.
    """

    operands: int
    options: Sequence[str]
    rows: Sequence[Sequence[str]]

    def result(self, key: Sequence[str]) -> str | None:
        """Returns the element type of the result of a call, by the letters of its parts; None if it is refused."""
        for *parts, gives in self.rows:
            if all(letter in part for letter, part in zip(key, parts, strict=True)):
                return _NAMES[key["xyz".index(gives)] if gives in "xyz" else gives]
        return None

    def instead(self, key: Sequence[str], places: Collection[int], letters: Iterable[str]) -> list[str]:
        """Returns the letters that a call is accepted with, at some places."""
        return [x for x in letters if self.result([x if i in places else k for i, k in enumerate(key)])]


@cache
def tables() -> Mapping[str, Accepted]:
    """Returns the table, by the dotted name of the function."""
    found: dict[str, Accepted] = {}
    for block in TABLE.read_text().split("\n\n")[1:]:
        head, _, body = block.partition(":")
        options, *rows = map(str.split, body.splitlines())
        found |= dict.fromkeys(head.split(), Accepted(len(rows[0]) - 1 - len(options), options, rows))
    return found


def number_kind(number: float) -> str:
    """Returns the letter of a number.

    >>> [number_kind(x) for x in (-1, 2**31, 2**32, 0.0, 7.0, 0.25)]
    ['A', 'E', 'Q', 'M', 'O', 'X']
    """
    if not np.issubdtype(type(number), np.floating) and -(2**31) <= number < 2**32:
        return _LETTERS[bisect_right((0, 1, 2, 2**31), number)]
    # Others go as floats of 32 bits, also integers of more bits.
    with np.errstate(over="ignore"):
        short = float(np.float32(number))
    return _LETTERS[5 + bisect_right((-(2**31), 0, 1, 2, 2**31, 2**32), short)] if short.is_integer() else "X"


def _kind(operand: Any) -> str:
    return TYPES[operand.dtype] if isinstance(operand, Form) else "-" if operand is None else number_kind(operand)


def _elementwise(given: Given) -> list[Result]:
    table, first = tables()[given.callee], given.tensors()[0]
    operands = list(given.values.values())[: table.operands]
    if given.callee == "ttnn.where":
        # Numbers go as floats of 32 bits.
        operands = [int(np.float32(x)) if type(x) is int and abs(x) < 2**33 else x for x in operands]
    forms = [x for x in operands if isinstance(x, Form)]
    given.on_devices(*forms)
    for a, b in combinations(forms, 2):
        _broadcast(given, a.shape, b.shape)
    key = [*map(_kind, operands), *(OPTIONS[name].get(given[name], "O") for name in table.options)]
    dtype = table.result(key)
    if dtype is None:
        _refuse(given, table, key, operands)
    computed = dtype if len(operands) > 1 else F32 if first.dtype == I8 else None
    if given.callee == "ttnn.bitwise_not":
        computed = I32 if first.dtype in REALS else None
    layout = TILE if any(form.is_tile for form in forms) else ROWS
    return checked(given, [Result(given["dtype"] or dtype, layout, computed)])


def _broadcast(given: Given, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for m, n in zip(reversed(a), reversed(b), strict=False):
        given.require(
            m == n or 1 in (m, n),
            f"broadcasts dims of size 1 only, but the shapes are {list(a)} and {list(b)}",
            "Broadcasting rule violation",
        )


def _refuse(given: Given, table: Accepted, key: Sequence[str], operands: Sequence[Any]) -> NoReturn:
    """Refuses a call, and names the part of it that another choice mends."""
    for place, name in enumerate(table.options, len(operands)):
        if taken := table.instead(key, {place}, OPTIONS[name].values()):
            values = [value for value, letter in OPTIONS[name].items() if letter in taken]
            shown = " or ".join(map(repr, values))
            given.refuse(f"takes {shown} as {name} here, not {given[name]!r}", f"unsupported {name}")
    tensors = {place: x for place, x in enumerate(operands) if isinstance(x, Form)}
    types = list(dict.fromkeys(x.dtype for x in tensors.values()))
    for place, x in enumerate(operands):
        if place not in tensors and (taken := table.instead(key, {place}, NUMBERS)):
            what = "takes one bound at least" if given.callee == "ttnn.clamp" and x is None else f"does not take {x}"
            rule = f"{what} beside {types[0]}; use {NUMBERS[taken[0]]}, for one, or ttnn.typecast"
            given.refuse(rule, "scalar does not fit the element type")
    if len(types) > 1:
        given.refuse(
            f"does not mix {' and '.join(types)}; ttnn.typecast one of them", "unsupported data type combination"
        )
    taken = table.instead(key, tensors, _NAMES)
    given.types(next(iter(tensors.values())), frozenset(map(_NAMES.__getitem__, taken)))
    given.refuse("does not take such operands", "incompatible function arguments")


def _typecast(given: Given) -> list[Result]:
    return checked(given, [Result(given["dtype"], given.tensors()[0].layout)])


RULES: Mapping[str, Rule] = {**dict.fromkeys(tables(), _elementwise), "ttnn.typecast": _typecast}
