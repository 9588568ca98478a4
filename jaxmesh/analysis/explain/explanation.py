"""The explanation of a program, shown as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, overload

from jaxmesh.analysis.explain.html import as_html
from jaxmesh.analysis.explain.records import Row, Total, totals
from jaxmesh.analysis.explain.table import as_rich, as_text
from jaxmesh.drawing.text_layout import duration
from jaxmesh.frontends.stablehlo.decisions import Decision


class Explanation(Sequence[Row]):
    """The movement of a program's data: rows in program order.

    Shown as a table by `print`, by rich and in Jupyter.

    Attributes:
      name: the name of the function.
      mesh: axis names and sizes.
      rows: all rows.
      assumptions: the assumptions of `Traced.assumptions`: values that are taken to be replicated without a proof by
        types, as with `check_vma=False` or in a file. Every transfer that relies on an assumption, or on
        `assume_replicated`, has a remark of the kind `assumed`.
      decisions: for a program with shardings, the partitioner's decisions in program order, with reasons: shardings
        that were requested, propagated or dropped, and each reshard and collective with its op, dim and axis.
      least: with an estimate, its lower bound in one line.
    """

    def __init__(
        self,
        name: str,
        mesh: Mapping[str, int],
        rows: Sequence[Row],
        assumptions: Sequence[str] = (),
        decisions: Sequence[Decision] = (),
        least: str = "",
    ) -> None:
        self.name = name
        self.mesh = dict(mesh)
        self.rows = list(rows)
        self.assumptions = tuple(assumptions)
        self.decisions = tuple(decisions)
        self.least = least

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
        rows = [r for r in self.rows if r.moves or r.notes]
        return Explanation(self.name, self.mesh, rows, self.assumptions, self.decisions, self.least)

    def timed(self, seconds: Mapping[str, float], least: str) -> Explanation:
        """Returns the explanation with the least time of each source line at its first equation."""
        rest = dict(seconds)
        rows = [r if r.cancelled else dataclasses.replace(r, seconds=rest.pop(r.line, None)) for r in self.rows]
        others = sum(rest.values())
        note = f"; {duration(others)} of it at no line of this table" if others else ""
        return Explanation(self.name, self.mesh, rows, self.assumptions, self.decisions, least + note)

    def totals(self) -> list[Total]:
        """Sums the moves of all rows by kind and axes: between host and devices first, then among the devices."""
        return totals(self.rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Returns the rows as dicts of plain data, for JSON or a data frame."""
        return [dataclasses.asdict(row) for row in self.rows]

    def _table(self) -> tuple[str, Sequence[Row], Sequence[str]]:
        """Returns the heading, the rows, and the lines below them."""
        mesh = ", ".join(f"{a}={n}" for a, n in self.mesh.items())
        return f"{self.name} on the mesh {mesh}", self.rows, self._closing()

    def _closing(self) -> list[str]:
        least = [self.least] if self.least else []
        return [*least, *(f"assumed: {text}" for text in self.assumptions), *map(str, self.decisions)]

    def __str__(self) -> str:
        return as_text(*self._table())

    def __repr__(self) -> str:
        return f"Explanation({self.name}, mesh={self.mesh}, {len(self.rows)} rows)"

    def __rich__(self) -> Any:
        return as_rich(*self._table())

    def _repr_html_(self) -> str:
        return as_html(*self._table())
