"""The results of the hunt: a table of docs/tables, and what no row explains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests import ROOT
from tests.generators.upstream.judge import (
    LESS_PRECISE,
    NOT_COMPARABLE,
    NOT_LOWERED,
    REFUSED,
    RIGHT,
    WRONG,
    Judged,
    normalised,
)
from tests.generators.upstream.rows import PLUGIN, ROWS, Row, row_of

COUNTS = ROOT / "tests" / "data" / "upstream_hunt.json"
"""How many programs had each verdict, and each cause."""
VERDICTS = (RIGHT, LESS_PRECISE, WRONG, REFUSED, NOT_COMPARABLE, NOT_LOWERED)


@dataclass(frozen=True)
class Counts:
    """How many programs had each verdict, and each cause, by the name of its row."""

    verdicts: dict[str, int]
    causes: dict[str, int]

    @property
    def programs(self) -> int:
        """How many programs were compiled."""
        return sum(self.verdicts.values())


def count(found: Iterable[Judged]) -> Counts:
    """Counts results."""
    every = list(found)
    verdicts = Counter(j.verdict for j in every)
    causes = Counter(row.name for j in every if (row := row_of(j)) is not None)
    return Counts(
        {v: verdicts[v] for v in VERDICTS if verdicts[v]}, {r.name: causes[r.name] for r in ROWS if causes[r.name]}
    )


def stored_counts() -> Counts:
    """Returns the counts of the last whole hunt."""
    return Counts(**json.loads(COUNTS.read_text()))


def store(counts: Counts) -> None:
    """Keeps the counts of a whole hunt."""
    about: dict[str, Any] = {"verdicts": counts.verdicts, "causes": counts.causes}
    COUNTS.write_text(json.dumps(about, indent=1) + "\n")


def with_new_rows(counts: Counts, rows: Sequence[Row] = ROWS) -> Counts:
    """Returns the counts with the smallest program of each row that they lack; a whole hunt counts anew."""
    verdicts = Counter(counts.verdicts) + Counter(r.verdict for r in rows if r.name not in counts.causes)
    causes = {r.name: counts.causes.get(r.name, 1) for r in rows}
    return Counts({v: verdicts[v] for v in VERDICTS if verdicts[v]}, causes)


def table(counts: Counts, rows: Sequence[Row] = ROWS) -> str:
    """Returns the table of docs/tables/upstream.md, the causes with most programs first."""
    lines = ["| cause | smallest program | upstream | right | repaired | programs |", "|---" * 6 + "|"]
    ordered = sorted(rows, key=lambda r: (r.verdict != WRONG, -counts.causes.get(r.name, 0)))
    for row in ordered:
        prints = f"{row.verdict}: {row.prints}"
        cells = (row.name, f"`{_cell(row.program)}`", _cell(prints), _cell(row.right))
        repaired = f"no: {row.stays}" if row.stays else "yes"
        lines.append(f"| {' | '.join(cells)} | {repaired} | {counts.causes.get(row.name, 0)} |")
    parts = ", ".join(f"{n:,} {v}" for v, n in counts.verdicts.items())
    lines += ["", f"{PLUGIN}, a described T3000, mesh `y=2, x=4`. {counts.programs:,} programs: {parts}."]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|")


def unexplained(found: Iterable[Judged]) -> list[str]:
    """Returns what no row explains: a wrong or refused program of a new cause, and two comparisons that differ."""
    lines = list[str]()
    for j in found:
        if j.verdict in (WRONG, REFUSED) and row_of(j) is None:
            lines.append(f"new cause: {j.text}: {j.verdict} {j.op} {normalised(j.cause)}")
        if j.verdict in (NOT_COMPARABLE, NOT_LOWERED):
            lines.append(f"{j.verdict}: {j.text}: {next(iter(j.unread.values()), j.cause)}")
        if j.verdict in (RIGHT, LESS_PRECISE) and j.diagnosis == WRONG and row_of(j) is None:
            lines.append(f"flagged: {j.text}: {j.verdict} {j.errors} {j.op} {j.cause}")
        if j.verdict == WRONG and j.diagnosis != WRONG:
            lines.append(f"missed: {j.text}: {j.diagnosis} {j.errors}")
    return lines
