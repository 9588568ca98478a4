"""The table of an explanation: its cells, as plain text and for rich."""

from __future__ import annotations

import importlib
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxmesh.analysis.explain.records import HOST_KINDS, Move, Row, Total, Value, totals
from jaxmesh.drawing.text_layout import duration

HEADER = ("value", "lives", "local", "full", "bytes", "op", "moves", "times", "line")
TIMED = (*HEADER, "at least")
"""With an estimate: the least time of the source line."""
TOTALS = ("total of", "axes", "count", "bytes per device", "bytes sent by all", "remark")
RIGHT = frozenset({"bytes", "at least", "count", "bytes per device", "bytes sent by all"})
"""Columns of numbers."""
_FILE = re.compile(r"^(.*?):(\d+)(?::\d+)?( \(.*\))?$")


def lives(value: Value) -> str:
    """Describes a value as full or sharded, with its mesh axes."""
    if value.varying:
        return f"shards over {', '.join(value.varying)}"
    return {"devices": "full on each device", "host": "full on the host"}.get(value.place, value.place)


def _shape(shape: Sequence[int] | None) -> str:
    return "?" if shape is None else f"[{','.join(map(str, shape))}]"


def move_text(move: Move) -> str:
    """Describes a move: kind, axes, groups and bytes."""
    over = f" over {', '.join(move.axes)}" if move.axes else ""
    if move.kind in HOST_KINDS:
        end = "to each device" if move.kind == "distribute" else f"from each of {move.group_size}"
        return f"{move.kind}{over}: {move.bytes} B {end}, {move.sent} B in all, {move.distinct} B distinct"
    groups = "group" if move.groups == 1 else "groups"
    return f"{move.kind}{over}: {move.bytes} B in {move.groups} {groups} of {move.group_size}, {move.sent} B sent"


def times(row: Row) -> str:
    """Describes the number of executions of a row; empty for one execution."""
    if row.cancelled:
        return "cancelled"
    if row.executions is None:
        return "unknown"
    most = "at most " if row.conditional and row.executions else ""
    return "" if row.executions == 1 and not most else f"{most}{row.executions}"


def short_location(line: str) -> str:
    """Returns a source location without the folders of its file and without its column."""
    return _FILE.sub(lambda match: f"{os.path.basename(match[1])}:{match[2]}{match[3] or ''}", line)


def header(rows: Sequence[Row]) -> tuple[str, ...]:
    """Returns the names of the columns."""
    return TIMED if any(row.seconds is not None for row in rows) else HEADER


def cells(row: Row, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the lines of a row, one per value and one per move."""
    op = " > ".join((*row.path, row.op)) + (f"({', '.join(row.operands)})" if row.operands else "")
    values = [(v.name, lives(v), f"{v.dtype}{_shape(v.shape)}", _shape(v.full_shape), str(v.bytes)) for v in row.values]
    first = [(op, times(row), short_location(row.line))]
    lines: list[tuple[str, ...]] = []
    for value, about, move in itertools.zip_longest(values, first, map(move_text, row.moves)):
        op, often, line = about or ("", "", "")
        lines.append((*(value or ("",) * 5), op, move or "", often, line, ""))
    if row.seconds is not None:
        lines[0] = (*lines[0][:-1], duration(row.seconds))
    return [line[: len(columns)] for line in lines]


def remarks(row: Row, rules: dict[str, int]) -> list[str]:
    """Returns the remarks of a row, one line each, with the numbers of their rules; adds new rules to `rules`."""
    notes = [f"{n.kind}: {n.text} [{rules.setdefault(n.rule, len(rules) + 1)}]" for n in row.notes]
    return [*notes, *(f"in TTNN: {move_text(m)}" for m in row.ttnn)]


def total_cells(total: Total) -> tuple[str, ...]:
    """Returns one line of the table of totals."""
    numbers = (str(total.count), str(total.bytes), str(total.sent))
    doubt = "" if total.exact else "branches count as taken, loops of unknown length as one iteration"
    return (total.kind, ", ".join(total.axes), *numbers, doubt)


def closing(rules: Mapping[str, int], assumptions: Sequence[str]) -> list[str]:
    """Returns the rules by number, the assumptions, and the decisions of the partitioner."""
    lines = [f"[{number}] {rule}" for rule, number in rules.items()]
    return [*lines, *assumptions]


# --- plain text ------------------------------------------------------------------------------------------------------


def as_text(heading: str, rows: Sequence[Row], assumptions: Sequence[str]) -> str:
    """Returns the table as plain text."""
    rules: dict[str, int] = {}
    columns = header(rows)
    lines: list[tuple[str, ...] | str] = []
    for row in rows:
        lines += cells(row, columns)
        lines += [f"    {text}" for text in remarks(row, rules)]
    sums = [total_cells(t) for t in totals(rows)]
    parts = [heading, *_align(columns, lines)]
    if sums:
        parts += ["", *_align(TOTALS, sums)]
    ends = closing(rules, assumptions)
    return "\n".join([*parts, *([""] if ends else []), *ends])


def _align(header: tuple[str, ...], lines: Sequence[tuple[str, ...] | str]) -> list[str]:
    rows = [header, *[line for line in lines if not isinstance(line, str)]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: tuple[str, ...] | str) -> str:
        if isinstance(row, str):
            return row
        padded = [c.rjust(w) if h in RIGHT else c.ljust(w) for c, w, h in zip(row, widths, header, strict=True)]
        return "  ".join(padded).rstrip()

    return [line(header), "  ".join("-" * w for w in widths).rstrip(), *map(line, lines)]


# --- rich ------------------------------------------------------------------------------------------------------------

_STYLES = {"devices": "cyan", "anywhere": "dim"}


def as_rich(heading: str, rows: Sequence[Row], assumptions: Sequence[str]) -> Any:
    """Returns the table for rich, which the caller has installed; four columns fit a terminal."""
    console, tables, text = (importlib.import_module(f"rich.{n}") for n in ("console", "table", "text"))
    rules: dict[str, int] = {}
    main = tables.Table(title=text.Text(heading), title_justify="left", show_lines=True, expand=True)
    for name, ratio in (("value", 2), ("lives", None), ("op, moves, notes", 4), ("line", 2)):
        main.add_column(name, overflow="fold", no_wrap=ratio is None, ratio=ratio)
    for row in rows:
        value, where = _values(row)
        op, often = cells(row, HEADER)[0][5], times(row)
        often = ", ".join(filter(None, (often, _least(row))))
        lines = [f"{op}, {often}" if often else op, *map(move_text, row.moves), *remarks(row, rules)]
        main.add_row(*map(text.Text, (value, where, "\n".join(lines), short_location(row.line))), style=_style(row))
    sums = tables.Table(title=text.Text("totals"), title_justify="left")
    for name in TOTALS:
        sums.add_column(name, justify="right" if name in RIGHT else "left", overflow="fold")
    for total in totals(rows):
        sums.add_row(*map(text.Text, total_cells(total)))
    return console.Group(main, sums, *map(text.Text, closing(rules, assumptions)))


def _least(row: Row) -> str:
    return "" if row.seconds is None else f"at least {duration(row.seconds)}"


def _values(row: Row) -> tuple[str, str]:
    """Returns the values of a row, and their residencies."""
    texts = [
        f"{v.name} {v.dtype}{_shape(v.shape)}, {v.bytes} B"
        + (f" of {_shape(v.full_shape)}" if v.full_shape is not None and v.full_shape != v.shape else "")
        for v in row.values
    ]
    return "\n".join(texts), "\n".join(dict.fromkeys(map(lives, row.values)))


def _style(row: Row) -> str:
    if row.cancelled:
        return "dim strike"
    if not row.values:
        return ""
    value = row.values[0]
    return "magenta" if value.varying else _STYLES.get(value.place, "")
