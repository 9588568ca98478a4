"""The explanation of a program, shown as a table."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, overload

from jaxmesh.analysis.account.moves import Total, totals
from jaxmesh.analysis.explain.html import as_html
from jaxmesh.analysis.explain.records import ENDS, Line, Row, by_line, moves_of
from jaxmesh.analysis.explain.report import as_report, counted
from jaxmesh.analysis.explain.table import as_table
from jaxmesh.drawing.text_layout import duration
from jaxmesh.errors import printable
from jaxmesh.frontends.stablehlo.decisions import Decision
from jaxmesh.jaxprs.source_locations import line_key, short_location
from jaxmesh.runtime.progress import progress

if TYPE_CHECKING:
    from jaxmesh.analysis.estimate import Estimate


@dataclass(eq=False, repr=False)
class Explanation(Sequence[Row]):
    """The movement of a program's data: rows in program order.

    `print`, rich and Jupyter show the answer first: what moves, the source lines at which most bytes move, and the
    shardings that were asked for and propagated. `table()` lists every equation.

    Attributes:
      name: the name of the function.
      mesh: axis names and sizes.
      rows: all rows.
      assumptions: the assumptions of `Traced.assumptions`: values that are taken to be replicated without a proof by
        types, as with `check_vma=False` or in a file. Every transfer that relies on an assumption, or on
        `assume_replicated`, has a remark of the kind `assumed`.
      decisions: for a program with shardings, the partitioner's decisions in program order, with reasons: shardings
        that were requested, propagated or dropped, and each reshard and collective with its op, dim and axis.
      uncounted: why the program has no text, so that moves are those of the program as it runs; empty if they are those
        of the text.
      least: with an estimate, its lower bound in one line.
      estimate: returns the estimate that Jupyter shows; None for none.
    """

    name: str
    mesh: Mapping[str, int]
    rows: list[Row]
    assumptions: Sequence[str] = ()
    decisions: Sequence[Decision] = ()
    uncounted: str = ""
    least: str = ""
    estimate: Callable[[], Estimate] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return self.rows[index]

    @property
    def moving(self) -> Explanation:
        """The explanation of the rows that move data or carry a remark of a pass."""
        return replace(self, rows=[r for r in self.rows if r.moves or r.notes])

    @property
    def lines(self) -> list[Line]:
        """The rows by source line: each line once, with all its equations."""
        return by_line(self.rows)

    def at(self, line: str) -> Explanation:
        """Returns the explanation of the rows at a source line, such as `"model.py:12"` or `"line 12"` of a text."""
        ends = f"{line} ", f"{line}:"
        return replace(self, rows=[r for r in self.rows if f"{short_location(r.line)} ".startswith(ends)])

    def timed(self, seconds: Iterable[tuple[str, float]], least: str) -> Explanation:
        """Returns the explanation with the least time of each source line at its first equation."""
        rest: dict[str, float] = {}
        for line, time in seconds:
            rest[line] = rest.get(line, 0.0) + time
        rows = [r if r.cancelled else replace(r, seconds=rest.pop(line_key(r.line), None)) for r in self.rows]
        others = sum(rest.values())
        note = f"; {duration(others)} of it at no line of this program" if others else ""
        return replace(self, rows=rows, least=least + note)

    def totals(self) -> list[Total]:
        """Sums the moves of all rows by kind and axes: between host and devices first, then among the devices."""
        return totals(moves_of(self.rows))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Returns the rows as dicts of plain data, for JSON or a data frame."""
        return [asdict(row) for row in self.rows]

    @progress("explain")
    def table(self, width: int | None = None) -> str:
        """Returns every equation as text, by source line: its results, its moves and the remarks of the passes.

        Args:
          width: the columns of the text; by default those of the terminal, and 120 without a terminal.
        """
        ends = [*self._ends(), *map(str, self.decisions)]
        return as_table(self._heading(), self.rows, ends, width or _columns())

    def _heading(self) -> str:
        mesh = ", ".join(f"{a}={n}" for a, n in self.mesh.items())
        equations = sum(row.op not in ("argument", "result", "constant") for row in self.rows)
        lines = sum(line.line not in ENDS for line in self.lines)
        return f"{self.name} on the mesh {mesh}: {counted(equations, 'equation')} at {counted(lines, 'source line')}"

    def _ends(self) -> list[str]:
        runs = (
            [f"no text, so that moves are counted in the program as it runs: {self.uncounted}"]
            if self.uncounted
            else []
        )
        return [*([self.least] if self.least else []), *runs, *(f"assumed: {text}" for text in self.assumptions)]

    @progress("explain")
    def _report(self, width: int) -> str:
        return as_report(self._heading(), self.rows, self.decisions, self._ends(), width)

    def __str__(self) -> str:
        return self._report(_columns())

    def __repr__(self) -> str:
        return printable(f"Explanation({self.name}, mesh={self.mesh}, {len(self.rows)} rows)")

    def __rich_console__(self, _: object, options: Any) -> Iterator[object]:
        yield importlib.import_module("rich.text").Text(self._report(options.max_width))

    @progress("explain")
    def _repr_html_(self) -> str:
        return as_html(self._heading(), self.rows, self.decisions, self._ends(), self.estimate)


def _columns() -> int:
    """Returns the width of the terminal; 120 columns for a file or a pipe."""
    return shutil.get_terminal_size((120, 24)).columns
