"""The demo's results as text and as files."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from jaxmesh.cli.demo.checks import Check
from jaxmesh.cli.demo.placement import Holding, show_slices
from jaxmesh.cli.demo.run import DemoOutcome


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table of text; `right` names the columns of numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str]

    def plain(self) -> str:
        """Returns the table in plain text."""
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]

        def line(cells: Iterable[str]) -> str:
            fitted = [
                c.rjust(w) if name in self.right else c.ljust(w)
                for name, c, w in zip(self.columns, cells, widths, strict=True)
            ]
            return "  ".join(fitted).rstrip()

        rule = "  ".join("-" * w for w in widths)
        return "\n".join([self.title, line(self.columns), rule, *map(line, self.rows)])

    def rich(self) -> Any:
        """Returns the table as a `rich.table.Table`; raises ImportError if rich is not installed."""
        # Imported by name, so that type checking does not depend on an optional package.
        table = importlib.import_module("rich.table").Table(title=self.title, title_justify="left")
        escape = importlib.import_module("rich.markup").escape
        for name in self.columns:
            table.add_column(name, justify="right" if name in self.right else "left")
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table


def checks_table(checks: Sequence[Check]) -> Table:
    """Returns a table with one row per comparison."""
    rows = tuple((c.name, f"{c.error:.1e}", f"{c.tolerance:.0e}", c.verdict + _note(c)) for c in checks)
    title = "Against the unsharded model: largest difference relative to the largest magnitude"
    return Table(title, ("comparison", "error", "tolerance", "result"), rows, frozenset({"error", "tolerance"}))


def _note(check: Check) -> str:
    return f" ({check.note})" if check.note else ""


def holdings_table(holdings: Sequence[Holding], axes: Sequence[str]) -> Table:
    """Returns a table with one row per device and tensor."""
    device = f"device ({', '.join(axes)})"
    rows = tuple(
        (
            f"({', '.join(map(str, h.coordinate))})",
            h.tensor,
            str(list(h.shape)),
            show_slices(h.slices),
            f"{h.nbytes:,}",
            "yes" if h.exact else "FAIL",
        )
        for h in holdings
    )
    columns = (device, "tensor", "local shape", "slice of the full tensor", "bytes", "bit-equal")
    return Table("What each device holds", columns, rows, frozenset({"bytes"}))


def summary(outcome: DemoOutcome) -> str:
    """Returns the mesh, the sizes, and the verdict with its numbers."""
    checks, holdings = outcome.checks, outcome.holdings
    good, exact = sum(c.passed for c in checks), sum(h.exact for h in holdings)
    per_device = {c: sum(h.nbytes for h in holdings if h.coordinate == c) for c in {h.coordinate for h in holdings}}
    axes = ", ".join(f"{name}={size}" for name, size in outcome.mesh.shape.items())
    return (
        f"mesh ({axes}): {outcome.mesh.devices.size} devices, at most {max(per_device.values()):,} bytes on each\n"
        f"{outcome.dims}\n"
        f"{'PASS' if outcome.passed else 'FAIL'}: {good} of {len(checks)} comparisons within tolerance, "
        f"{exact} of {len(holdings)} shards bit-equal to their slice"
    )


def tables(outcome: DemoOutcome) -> list[Table]:
    """Returns the table of comparisons, then the table of shards per device."""
    return [checks_table(outcome.checks), holdings_table(outcome.holdings, outcome.mesh.axis_names)]


def report_text(outcome: DemoOutcome) -> str:
    """Returns the report in plain text, without the programs."""
    return "\n\n".join([*[t.plain() for t in tables(outcome)], summary(outcome)]) + "\n"


def show(outcome: DemoOutcome, out: TextIO) -> None:
    """Prints programs and tables, with rich if it is installed and `out` is a terminal."""
    print(f"TTIR program\n{outcome.ttir}\n\nTTNN program\n{outcome.ttnn}\n", file=out)
    try:
        console = importlib.import_module("rich.console").Console(file=out) if out.isatty() else None
    except ImportError:
        console = None
    if console is None:
        print(report_text(outcome), end="", file=out, flush=True)
        return
    for table in tables(outcome):
        console.print(table.rich())
    print(summary(outcome), file=out, flush=True)


def write(outcome: DemoOutcome, folder: Path) -> list[Path]:
    """Writes the programs and the report into an existing folder."""
    texts = {
        "ttir.mlir": outcome.ttir + "\n",
        "ttnn.mlir": outcome.ttnn + "\n",
        "hlo.txt": outcome.hlo,
        "report.txt": report_text(outcome),
    }
    for name, text in texts.items():
        # JAX colours the text of a program if it runs in a terminal.
        (folder / name).write_text(re.sub(r"\x1b\[[0-9;]*m", "", text), encoding="utf-8")
    return [folder / name for name in texts]
