"""Windows over the height and width of an image: strides, dilations and paddings as TTIR writes them."""

from __future__ import annotations

from typing import Any, cast

from jaxmesh.dialects.op import Call
from jaxmesh.dialects.ttir.helpers import require, rule_error

Pair = tuple[int, int]

FLATTENED = "flattened_compat_info"
"""The attribute by which an op says that batch, height and width of its image are one dim; frontends take it off."""


def _numbers(call: Call, name: str, lengths: tuple[int, ...]) -> tuple[int, ...]:
    value: Any = call[name]
    items: Any = (value,) if isinstance(value, int) else value
    if not isinstance(items, (list, tuple)) or not all(type(v) is int for v in cast("tuple[Any, ...]", items)):
        raise rule_error(call, f"{name} is an integer or a row of integers, got {value!r}")
    row = tuple(cast("tuple[int, ...]", items))
    require(call, len(row) in lengths, f"{name} has {' or '.join(map(str, lengths))} entries, got {list(row)}")
    return row


def read_pair(call: Call, name: str, least: int = 1) -> Pair:
    """Reads and checks height and width from an attribute; one number is both."""
    row = _numbers(call, name, (1, 2))
    require(call, min(row) >= least, f"{name} is at least {least}, got {list(row)}")
    return row[0], row[-1]


def read_padding(call: Call) -> tuple[Pair, Pair]:
    """Reads and checks low and high padding of height and width, from 1, 2 or 4 (top, left, bottom, right) numbers."""
    row = _numbers(call, "padding", (1, 2, 4))
    require(call, min(row) >= 0, f"padding is at least 0, got {list(row)}")
    top, left, bottom, right = row if len(row) == 4 else (row[0], row[-1], row[0], row[-1])
    return (top, bottom), (left, right)
