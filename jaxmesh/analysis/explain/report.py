"""The answer of an explanation on one screen: what moves, at which lines, and what was asked and propagated."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass

from jaxmesh.analysis.account.moves import totals
from jaxmesh.analysis.explain.records import ENDS, Row, by_line, moves_of
from jaxmesh.drawing.text_layout import align_columns, duration, shorten
from jaxmesh.frontends.stablehlo.decisions import Decision
from jaxmesh.jaxprs.source_locations import short_location

MOST_LINES, MOST = 10, 8
"""The rows of the section of source lines, and of the other sections: all fit 60 lines."""
_LONGEST = 300
"""The columns of a list of paths."""
_NUMBER = re.compile(r"[0-9,.]+( [a-zµ]+)?")
_VALUES = ("asked", "propagated")
"""The kinds of decisions on arguments and results."""
_DOUBT = "branches count as taken, loops of unknown length as one iteration"


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A small table: its title, the head of its columns, its rows, and a line below them."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""

    def text(self, width: int) -> list[str]:
        """Returns the section as lines of at most `width` columns; columns of numbers are aligned to the right."""
        most, used = max(width // 3, 12), without_empty_columns([self.head, *self.rows])
        rows = [[*(shorten(cell, most) for cell in row[:-1]), row[-1]] for row in used]
        right = [all(map(_NUMBER.fullmatch, column[1:])) for column in zip(*rows, strict=True)]
        noted = [self.note] if self.note else []
        return ["", *(shorten(line, width) for line in (*align_columns(rows, right), *noted))]


def without_empty_columns(table: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns a table, which begins with its head, without the columns that no row fills."""
    filled = [any(column) for column in zip(*table[1:], strict=True)]
    return [list(itertools.compress(row, filled)) for row in table]


def as_report(heading: str, rows: Sequence[Row], decisions: Sequence[Decision], ends: Sequence[str], width: int) -> str:
    """Returns the sections as plain text of at most `width` columns; `ends` are the lines below them."""
    body = [line for section in sections(rows, decisions) for line in section.text(width)]
    more = _rest(ends, MOST // 2, "assumptions")
    last = [*remark_counts(rows), *ends[: MOST // 2], *([more] if more else [])]
    last.append("table() lists every equation, in the shell --full; lines, totals() and decisions are data")
    return "\n".join([shorten(heading, width), *body, "", *(shorten(line, width) for line in last)])


def sections(rows: Sequence[Row], decisions: Sequence[Decision]) -> list[ReportSection]:
    """Returns the sections that are not empty, each with its first rows."""
    found = _moves(rows), _lines(rows), _shardings(rows, decisions), _reasons(decisions), _padded(rows)
    return [section for section in found if section.rows]


def counted(number: int, noun: str) -> str:
    """Returns a number and its noun.

    >>> counted(1, "row"), counted(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def remark_counts(rows: Sequence[Row]) -> list[str]:
    """Returns the number of remarks of the passes by kind, in at most one line."""
    counts = Counter(note.kind for row in rows for note in row.notes)
    return ["remarks of the passes: " + ", ".join(f"{n} {kind}" for kind, n in counts.items())] if counts else []


def _moves(rows: Sequence[Row]) -> ReportSection:
    head = ("what moves", "axes", "times", "bytes per device", "bytes sent by all")
    added = totals(moves_of(rows))
    doubt = "" if all(t.exact for t in added) else _DOUBT
    cut = [(t.kind, ", ".join(t.axes) or "none", *(f"{n:,}" for n in (t.count, t.bytes, t.sent))) for t in added[:MOST]]
    return ReportSection("what moves", head, cut, "; ".join(filter(None, (_rest(added, MOST, "totals()"), doubt))))


def _lines(rows: Sequence[Row]) -> ReportSection:
    """Returns the source lines at which most bytes move or, with an estimate, that take most of the time."""
    timed = any(row.seconds is not None for row in rows)
    found = [line for line in by_line(rows) if line.line not in ENDS and (line.sent or line.seconds)]
    found.sort(key=lambda line: (-line.seconds, -line.sent))
    title = "where most time passes" if timed else "where most bytes move"
    head = (title, *(["at least"] if timed else []), "bytes sent by all", "moves", "scopes")
    cut: list[tuple[str, ...]] = []
    for line in found[:MOST_LINES]:
        time = [duration(line.seconds)] if timed else []
        moves = ", ".join(t.moves for t in totals(moves_of(line.rows)))
        scopes = patterns("/".join(row.scope) for row in line.rows if row.moves and row.scope)
        cut.append((short_location(line.line), *time, f"{line.sent:,}", moves, scopes))
    return ReportSection(title, head, cut, _rest(found, MOST_LINES, "lines"))


def patterns(paths: Iterable[str]) -> str:
    """Merges paths that differ in numbers alone: `*` stands for the numbers that differ.

    >>> patterns(["state[0].layers[0].w", "state[0].layers[1].w", "head[0].w"])
    'state[0].layers[*].w, head[0].w'
    """
    groups: dict[str, list[list[str]]] = {}
    for path in paths:
        groups.setdefault(re.sub(r"\d+", "*", path), []).append(re.split(r"(\d+)", path))
    merged = (zip(*group, strict=True) for group in groups.values())
    texts = ("".join(parts[0] if len(set(parts)) == 1 else "*" for parts in columns) for columns in merged)
    return shorten(", ".join(texts), _LONGEST)


def _shardings(rows: Sequence[Row], decisions: Sequence[Decision]) -> ReportSection:
    """Returns the shardings of arguments and results, asked for and propagated."""
    paths = {what: [row.operands[0] for row in rows if row.op == what] for what in ("argument", "result")}
    groups: dict[tuple[str, str, str], list[str]] = {}
    for d in decisions:
        if d.kind in _VALUES:
            what, number = d.op.split(" ")
            known = paths[what][int(number) :]
            groups.setdefault((d.kind, what, d.text), []).append(known[0] if known else d.op)
    found = sorted(groups.items(), key=lambda group: -len(group[1]))
    # As many that were asked for as were propagated.
    firsts = [group for how in _VALUES for group in [g for g in found if g[0][0] == how][: MOST_LINES // 2]]
    cut = [(how, counted(len(names), what), spec, patterns(names)) for (how, what, spec), names in firsts]
    head = ("shardings", "of", "as", "which")
    return ReportSection("asked and propagated shardings", head, cut, _rest(found, len(firsts), "decisions"))


def _reasons(decisions: Sequence[Decision]) -> ReportSection:
    """Returns the collectives, slices and drops of the partitioner by reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for d in decisions:
        if d.kind not in _VALUES:
            groups.setdefault((d.kind, d.text), []).append(short_location(d.line) or d.op)
    found = sorted(groups.items(), key=lambda group: (group[0][0] != "dropped", -len(group[1])))
    cut: list[tuple[str, ...]] = []
    for (kind, text), lines in found[:MOST]:
        lines_at = list(dict.fromkeys(lines))
        where = lines_at[0] + (f" and {len(lines_at) - 1} more" if len(lines_at) > 1 else "")
        cut.append((kind, f"{len(lines):,}", where, text))
    head = ("why", "times", "at", "reason")
    return ReportSection("why the partitioner moves data", head, cut, _rest(found, MOST, "decisions"))


def _padded(rows: Sequence[Row]) -> ReportSection:
    """Returns the arguments, and the results of operations, that tiles make much larger, the largest first."""
    groups: dict[tuple[int, str], list[str]] = {}
    for row in rows:
        for note in row.notes:
            if note.bytes:
                at = f" at {short_location(row.line)}" if row.line else ""
                where = row.operands[0] if row.op == "argument" else f"{row.op}{at}"
                groups.setdefault((-note.bytes, note.text), []).append(where)
    cut: list[tuple[str, ...]] = []
    for (_, text), where in sorted(groups.items())[: MOST // 2]:
        sizes, _, helps = text.partition("; ")
        cut += [(patterns(where), sizes), *([("", helps)] if helps else [])]
    return ReportSection("padded in tiles", ("padded in tiles", "bytes"), cut, _rest(groups, MOST // 2, "padded"))


def _rest(rows: Sized, most: int, name: str) -> str:
    return f"and {len(rows) - most:,} more: {name}" if len(rows) > most else ""
