"""The full listing of an explanation as plain text: source lines, each with its equations, moves and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jaxmesh.analysis.account.moves import HOST_KINDS, SEND, Move
from jaxmesh.analysis.explain.records import Row, Value, by_line
from jaxmesh.drawing.text_layout import duration, wrap
from jaxmesh.jaxprs.source_locations import short_location


def _shape(shape: Sequence[int] | None) -> str:
    return "?" if shape is None else f"[{','.join(map(str, shape))}]"


def value_text(value: Value) -> str:
    """Describes a value: its type, the global shape of a shard, its residency and its bytes."""
    places = {"devices": "full on each device", "host": "full on the host"}
    over = f"shards over {', '.join(value.varying)}" if value.varying else places.get(value.place, value.place)
    whole = f" of {_shape(value.full_shape)}" if value.varying and value.full_shape is not None else ""
    return f"{value.dtype}{_shape(value.shape)}{whole}, {over}, {value.bytes:,} B"


def move_text(move: Move) -> str:
    """Describes a move: kind, axes, groups and bytes."""
    over = f" over {', '.join(move.axes)}" if move.axes else ""
    over = f"{over}, {move.count} times" if move.count > 1 else over
    if move.kind in HOST_KINDS:
        end = "to each device" if move.kind == "distribute" else f"from each of {move.group_size}"
        return f"{move.kind}{over}: {move.bytes:,} B {end}, {move.sent:,} B in all, {move.distinct:,} B distinct"
    if move.kind == SEND:
        return f"{move.groups:,} {move.kind}{over}: {move.bytes:,} B by the busiest device, {move.sent:,} B sent"
    groups = "group" if move.groups == 1 else "groups"
    return f"{move.kind}{over}: {move.bytes:,} B in {move.groups} {groups} of {move.group_size}, {move.sent:,} B sent"


def times(row: Row) -> str:
    """Describes the number of executions of a row; empty for one execution."""
    if row.cancelled:
        return "cancelled"
    if row.executions is None:
        return "an unknown number of times"
    most = "at most " if row.conditional and row.executions else ""
    return "" if row.executions == 1 and not most else f"{most}{row.executions} times"


def equation(row: Row) -> str:
    """Returns the op of a row with its path and its operands; the path of an argument or a result."""
    if row.op in ("argument", "result"):
        return row.operands[0]
    return " > ".join((*row.path, row.op)) + (f"({', '.join(row.operands)})" if row.operands else "")


def about(row: Row) -> str:
    """Returns the scope of a row, how often it runs, and its least time."""
    least = "" if row.seconds is None else f"its line takes at least {duration(row.seconds)}"
    return "; ".join(filter(None, ("/".join(row.scope), times(row), least)))


def remarks(row: Row, rules: dict[str, int]) -> list[str]:
    """Returns the remarks of a row, one line each, with the numbers of their rules; adds new rules to `rules`."""
    return [f"{n.kind}: {n.text} [{rules.setdefault(n.rule, len(rules) + 1)}]" for n in row.notes]


def closing(rules: Mapping[str, int], ends: Sequence[str]) -> list[str]:
    """Returns the rules by number, and the lines that follow them."""
    return [*(f"[{number}] {rule}" for rule, number in rules.items()), *ends]


def as_table(heading: str, rows: Sequence[Row], ends: Sequence[str], width: int) -> str:
    """Returns the listing, wrapped to `width` columns."""
    rules: dict[str, int] = {}
    lines = list(_wrapped(heading, 0, width))
    for line in by_line(rows):
        lines += ["", *_wrapped(short_location(line.line), 0, width)]
        for row in line.rows:
            lines += _row(row, rules, width)
    after = closing(rules, ends)
    return "\n".join([*lines, *([""] if after else []), *(part for text in after for part in _wrapped(text, 0, width))])


def _row(row: Row, rules: dict[str, int], width: int) -> Iterator[str]:
    names = ", ".join(v.name for v in row.values)
    values = "; ".join(dict.fromkeys(map(value_text, row.values)))
    text = f"{names} = {equation(row)}" if names and row.op != "result" else equation(row)
    yield from _wrapped("; ".join(filter(None, (f"{text}: {values}" if values else text, about(row)))), 2, width)
    for line in (*map(move_text, row.moves), *remarks(row, rules)):
        yield from _wrapped(line, 6, width)


def _wrapped(text: str, indent: int, width: int) -> Iterator[str]:
    """Yields a text as indented lines; lines after the first are indented by two more columns."""
    first, *rest = wrap(text, max(width - indent - 2, 8)) or [""]
    yield " " * indent + first
    for line in rest:
        yield " " * (indent + 2) + line
