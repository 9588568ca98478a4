"""The matrix of transformations: run as a whole, and as a table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from jax.sharding import Mesh

from jaxmesh.sharding.mesh import make_mesh
from tests.generators.matrix.cells import COLUMNS, REASONS, Matrix, Result, faults, reason_of
from tests.generators.matrix.operations import operations
from tests.generators.matrix.transformations import parts
from tests.generators.outcome import Outcome, Say
from tests.generators.quick_compilation import quick_compilation

SIZES = (2, 4)
"""The mesh of the table."""
FAULT = "FAILED"


def collect(say: Say, *, short: bool, sizes: Sequence[int] = SIZES) -> list[Result]:
    """Runs every cell of a mesh."""
    matrix = Matrix(short=short)
    rows = operations(make_mesh(sizes))
    results: list[Result] = []
    with quick_compilation():
        for number, operation in enumerate(rows, 1):
            say(f"matrix: {operation.name} ({number} of {len(rows)})")
            results += matrix.results(operation)
    return results


def outcome(results: Sequence[Result], seconds: float) -> Outcome:
    """What the cells prove together."""
    rows = len({r.operation for r in results})
    cells = len({(r.operation, r.column) for r in results})
    refused = sum(r.reason is not None for r in results)
    proved = (
        f"{rows} operations under {len({r.column for r in results})} transformations equal the unsharded program, "
        f"number for number, in {cells} cells ({len(results) - refused} values and derivatives; {refused} that JAX has "
        "no rule for raise its error)"
    )
    return Outcome("matrix", proved, len(results), faults(results), seconds)


def run(say: Say) -> Outcome:
    """The short form: every cell, fewer of its parts."""
    start = time.monotonic()
    results = collect(say, short=True)
    return outcome(results, time.monotonic() - start)


def run_whole(say: Say) -> tuple[str, Outcome]:
    """Every part of every cell, and the table of what came out."""
    start = time.monotonic()
    results = collect(say, short=False)
    return table(results), outcome(results, time.monotonic() - start)


# --- the table -------------------------------------------------------------------------------------------------------


def table(results: Iterable[Result]) -> str:
    """The matrix as Markdown: `ok`, the numbers of reasons, or both where parts of a cell differ."""
    return _markdown([(r.operation, r.column, FAULT if r.fault else r.reason) for r in results])


def expected_table(mesh: Mesh) -> str:
    """The table as it is when every cell holds, from the reasons alone."""
    rows: list[tuple[str, str, Any]] = []
    for operation in operations(mesh):
        rows += [(operation.name, column, None) for column in ("ahead of time", "export", "nested shard_map")]
        for part in parts():
            reason = reason_of(operation, part)
            rows.append((operation.name, part.column, None if reason is None else reason.number))
    return _markdown(rows)


def _markdown(rows: Sequence[tuple[str, str, Any]]) -> str:
    names = list(dict.fromkeys(name for name, _, _ in rows))
    known = {column for _, column, _ in rows}
    columns = [c for c in COLUMNS if c in known]
    cells: dict[tuple[str, str], set[Any]] = {}
    for name, column, said in rows:
        cells.setdefault((name, column), set()).add(said)
    lines = [_row(["operation", *columns]), "|---" * (len(columns) + 1) + "|"]
    lines += [_row([name, *[_cell(cells.get((name, c), set())) for c in columns]]) for name in names]
    lines += ["", *[f"{r.number}. {r.text}." for r in REASONS]]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(said: set[Any]) -> str:
    if not said:
        return ""
    words = ["ok"] if None in said else []
    words += [str(n) for n in sorted(s for s in said if isinstance(s, int))]
    return " ".join([FAULT] if FAULT in said else words)
