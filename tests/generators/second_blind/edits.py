"""Writes operations anew in a text: with other operands, attributes or names, or with operations before them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.generators.blind.texts import Op, Text

SHAPE = re.compile(r"tensor<((?:\d+x)*)(\w+)")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Edit:
    """A text with an error.

    Attributes:
      lines: of the text.
      wrong: the indices of the lines that are wrong.
      at: the index of the operation that now makes the wrong value.
    """

    lines: tuple[str, ...]
    wrong: frozenset[int]
    at: int


def shape(tensor: str) -> tuple[int, ...]:
    """Returns the shape of a tensor type.

    >>> shape("tensor<8x16xf32, #ttnn_layout>")
    (8, 16)
    """
    found = SHAPE.match(tensor)
    return tuple(int(x) for x in found[1].split("x")[:-1]) if found else ()


def element(tensor: str) -> str:
    """Returns the element type of a tensor type.

    >>> element("tensor<8x16xf32, #ttnn_layout>")
    'f32'
    """
    found = SHAPE.match(tensor)
    return found[2] if found else ""


def is_float(tensor: str) -> bool:
    return element(tensor) in ("f32", "bf16")


def made(op: Op, name: str = "", **parts: str | Sequence[str]) -> str:
    """Returns the line of an operation with other `results`, `operands`, `attributes`, `types` or type `made`."""
    lead = op.line[: len(op.line) - len(op.line.lstrip())]
    got: dict[str, str | Sequence[str]] = {
        "results": op.line.strip().split(" = ")[0],
        "operands": op.operands,
        "attributes": op.attributes,
        "types": op.types,
        "made": op.made,
    }
    text = {k: v if isinstance(v, str) else ", ".join(v) for k, v in (got | parts).items()}
    about = f" <{{{text['attributes']}}}>" if text["attributes"] else ""
    tail = re.search(r" loc\(.*\)$", op.line)
    head = f'{lead}{text["results"]} = "{op.dialect}.{name or op.name}"({text["operands"]}){about}'
    return f"{head} : ({text['types']}) -> {text['made']}{tail[0] if tail else ''}"


def placed(text: Text, op: Op, *lines: str, wrong: Sequence[int] = (0,), at: int = 0) -> Edit:
    """Returns a text with `lines` in place of an operation; `wrong` and `at` count from the first."""
    whole = (*text.lines[: op.at], *lines, *text.lines[op.at + 1 :])
    return Edit(whole, frozenset(op.at + i for i in wrong), op.at + at)


def numbers(attributes: str, key: str) -> list[int] | None:
    """Returns the integers of an attribute, or None.

    >>> numbers("dim = 1 : si32, begins = [0 : i32, 4 : i32]", "begins")
    [0, 4]
    >>> numbers("permutation = array<i64: 1, 0>", "permutation")
    [1, 0]
    """
    found = re.search(rf"\b{key} = (?:\[(.*?)\]|array<i\d+(?:: (.*?))?>|(-?\d+))", attributes)
    if found is None:
        return None
    inner = next((x for x in found.groups() if x is not None), "")
    return [int(re.match(r"-?\d+", x.strip())[0]) for x in inner.split(",") if x.strip()]  # pyright: ignore


def set_numbers(attributes: str, key: str, values: Sequence[int]) -> str:
    """Returns attributes with other integers.

    >>> set_numbers("dim = 1 : si32, begins = [0 : i32, 4 : i32]", "begins", [1, 5])
    'dim = 1 : si32, begins = [1 : i32, 5 : i32]'
    """
    found = re.search(rf"\b{key} = (\[.*?\]|array<i\d+(?:: .*?)?>|-?\d+)", attributes)
    assert found is not None
    old, rest = found[1], iter(values)
    prefix = re.match(r"array<i\d+: ", old)
    start = prefix[0] if prefix else ""
    body = re.sub(r"(?<![\w.])-?\d+", lambda _: str(next(rest)), old[len(start) :])
    return attributes[: found.start(1)] + start + body + attributes[found.end(1) :]
