"""Writes `jaxmesh/ttnn/signatures.txt` from installed releases of the real `ttnn`.

`python -m tests.generators.real_ttnn.signature_table NEWEST_PYTHON OLDEST_PYTHON [NAME ...]` asks both for the
functions of the table, and for further names such as `ttnn.cumprod`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from jaxmesh.ttnn.signatures import TABLE, table
from tests.generators.real_ttnn.process import VARIABLE, run_jobs
from tests.generators.real_ttnn.signatures import split

HEAD = """\
# The signatures of the functions of ttnn that jaxmesh has or prints, in the releases {newest} and {oldest}.
# Written by tests/generators/real_ttnn/signature_table.py from the installed library; signatures.py reads it.
"""
Signatures = Mapping[str, Sequence[str]]


def read(python: str, callees: Sequence[str]) -> tuple[str, dict[str, list[str]]]:
    """Returns the release of an installed library, and its signatures of the functions it has."""
    os.environ[VARIABLE] = python
    found = run_jobs("signatures", [{"callee": c} for c in callees])
    return found[0]["release"], {o["callee"]: o["signatures"] or [] for o in found}


def write(releases: Sequence[tuple[str, Signatures]]) -> str:
    """Returns the table of some releases, the newest first."""
    counts: Counter[str] = Counter()
    for _, signatures in releases:
        for rows in signatures.values():
            counts.update(p for row in rows for p in split(row[1:-1]) if p[0] not in "*/")
    common: dict[str, str] = {}
    for part, _ in counts.most_common():
        common.setdefault(part.partition(":")[0].partition(" =")[0], part)
    common = {n: p for n, p in common.items() if counts[p] > 2}
    lines = [HEAD.format(newest=releases[0][0], oldest=releases[-1][0])]
    lines += [f"{p}\n" for _, p in sorted(common.items())]
    groups: dict[tuple[str, ...], list[str]] = {}
    for callee in sorted(releases[0][1]):
        rows = tuple(_rows([(r, s[callee]) for r, s in releases], common))
        groups.setdefault(rows, []).append(callee)
    for rows, callees in groups.items():
        lines += ["\n", *_wrap(callees), *(f"    {row}\n" for row in rows)]
    return "".join(lines)


def _rows(by_release: Sequence[tuple[str, Sequence[str]]], common: Mapping[str, str]) -> list[str]:
    short = [(r, [_shorten(row, common) for row in rows]) for r, rows in by_release]
    if all(rows == short[0][1] for _, rows in short):
        return short[0][1]
    return [f"{release} {row}" for release, rows in short for row in rows]


def _shorten(row: str, common: Mapping[str, str]) -> str:
    declared = set(common.values())
    parts = split(row[1:-1])
    short = [p.partition(":")[0].partition(" =")[0] if p in declared else typed(p) for p in parts]
    return f"({', '.join(short)})"


def typed(part: str) -> str:
    """Returns a parameter that the head does not declare; a bare name would be one that it does."""
    name, equals, default = part.partition(" = ")
    return part if ":" in part or part[0] in "*/" else f"{name}: Any{equals}{default}"


def _wrap(callees: Sequence[str]) -> list[str]:
    lines, line = list[str](), ""
    for callee in callees:
        if line and len(line) + len(callee) > 118:
            lines.append(f"{line}\n")
            line = ""
        line += f"{' ' if line else ''}{callee}"
    return [*lines, f"{line}\n"]


if __name__ == "__main__":
    pythons, names = sys.argv[1:3], sys.argv[3:]
    known = sorted({*names, *(table() if TABLE.exists() else ())})
    TABLE.write_text(write([read(python, known) for python in pythons]))
