"""The result of a comparison: rows of data, shown as plain text, with rich and as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from jaxmesh.analysis.record.align import PLUMBING
from jaxmesh.analysis.record.entry import Coordinate, Entry
from jaxmesh.analysis.record.source_path import ARGUMENT, describe_path
from jaxmesh.drawing.html import table
from jaxmesh.drawing.text_layout import align_columns, escape
from jaxmesh.errors import printable

SHOWN = 20
"""The number of rows that a table shows; `.rows` has them all."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds for two floats; `rtol=None` is the square root of each dtype's rounding unit."""

    pcc: float
    rtol: float | None
    atol: float
    exact: bool

    def __str__(self) -> str:
        if self.exact:
            return "all bits equal"
        rtol = "sqrt(eps)" if self.rtol is None else f"{self.rtol:g}"
        return f"pcc >= {self.pcc:g}, rtol {rtol}, atol {self.atol:g}"


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """One value of the two recordings.

    Attributes:
      status: `"equal"` to the bit, `"close"` (floats that pass), `"different"`, `"only in a"`, `"only in b"`.
      line: `file.py:12 (function)`.
      op: the op in `a`; `other_op` is the op in `b`.
      occurrence: the index among the values of this op on this line; for an argument, its index.
      path: the path through loops and branches, e.g. `scan[2]`.
      name: line, op, occurrence and path.
      dtype: the dtype in `a`; for random keys, the dtype of their words.
      shape: the shape in `a`; the local shape on a device.
      coordinate: the first device where they differ; None for a value that is full in both.
      index: an element there: the first that differs if bits have to be equal, else the one with the largest
        difference.
      value: the element in `a`; `other` is the element in `b`.
      pcc: the smallest correlation of all devices.
      largest: the largest absolute difference on any device; `relative` is the largest relative difference.
      ulps: the largest difference in steps between neighbouring floats.
      why: the threshold that they exceed.
    """

    status: str
    line: str
    op: str
    other_op: str
    occurrence: int
    path: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    coordinate: Coordinate | None = None
    index: tuple[int, ...] | None = None
    value: Any = None
    other: Any = None
    pcc: float = 1.0
    largest: float = 0.0
    relative: float = 0.0
    ulps: int = 0
    why: str = ""

    @staticmethod
    def of(a: Entry, b: Entry, status: str, **fields: Any) -> ComparedValue:
        """Returns the row of two values; `fields` are the fields from `coordinate` on."""
        location = (a.place.line, a.place.op, b.place.op, a.place.occurrence)
        return ComparedValue(status, *location, describe_path(a.path), a.name, a.key or a.dtype.name, a.shape, **fields)


def as_number(value: object) -> Any:
    """Returns a plain Python number for dtypes that have one."""
    array = np.asarray(value)
    return array.item() if array.dtype.isbuiltin == 1 else array.astype(np.float64).item()


@dataclass(frozen=True, eq=False)
class Comparison:
    """The differences between two recordings; true if all common values agree.

    Attributes:
      name: the name of the program.
      level: the level of `a`; `other_level` is the level of `b`.
      mesh: the size of each mesh axis.
      thresholds: the limits.
      rows: every value, in program order.
    """

    name: str
    level: str
    other_level: str
    mesh: Mapping[str, int]
    thresholds: Thresholds
    rows: tuple[ComparedValue, ...]

    def __bool__(self) -> bool:
        return self.first is None

    @cached_property
    def first(self) -> ComparedValue | None:
        """The first difference in program order; None if all values agree."""
        return next(iter(self.different), None)

    @cached_property
    def different(self) -> tuple[ComparedValue, ...]:
        """The values that differ."""
        return tuple(r for r in self.rows if r.status == "different")

    @cached_property
    def unmatched(self) -> tuple[ComparedValue, ...]:
        """The values in only one recording."""
        return tuple(r for r in self.rows if r.status.startswith("only"))

    @cached_property
    def strange(self) -> tuple[ComparedValue, ...]:
        """The unmatched values that no pass inserts or removes.

        A `mesh_shard` of a tensor that is already on the devices becomes slices on its line: these are left out, too.
        """
        split = {(r.line, r.status) for r in self.unmatched if r.op == "mesh_shard"}
        other = {"only in a": "only in b", "only in b": "only in a"}
        return tuple(r for r in self.unmatched if r.op not in PLUMBING and (r.line, other[r.status]) not in split)

    @cached_property
    def before(self) -> tuple[ComparedValue, ...]:
        """Values that only one recording computes, just before the first difference: for example a missing op."""
        if self.first is None:
            return ()
        only_one, strange = list[ComparedValue](), {*map(id, self.strange)}
        for row in reversed(self.rows[: self.rows.index(self.first)]):
            if id(row) in strange:
                only_one.append(row)
            elif only_one:
                break
        return tuple(reversed(only_one))

    def count(self, status: str) -> int:
        """Returns the number of values with a status."""
        return sum(r.status == status for r in self.rows)

    # --- as text ---

    def _summary(self) -> list[str]:
        mesh = ", ".join(f"{a}={n}" for a, n in self.mesh.items())
        counts = [f"{self.count(s)} {s}" for s in ("equal", "close", "different", "only in a", "only in b")]
        lines = [
            f"{self.name}: a ({self.level}) and b ({self.other_level}) on mesh {mesh}; {self.thresholds}",
            ", ".join(counts),
        ]
        if self.first is None:
            apart = {r.status for r in self.strange}
            scope = " in the values that both have; others have no partner" if len(apart) > 1 else ""
            return [*lines, f"no difference{scope}"]
        return [
            *lines,
            f"first difference: {_sentence(self.first)}",
            *[f"  before it, {r.status}: {r.name}" for r in self.before],
        ]

    def __str__(self) -> str:
        lines = self._summary()
        if self.different:
            lines += ["", *align_columns([_HEAD, *[_cells(r) for r in self.different[:SHOWN]]])]
            lines += [f"... and {len(self.different) - SHOWN} more"] if len(self.different) > SHOWN else []
        return printable("\n".join(lines))

    def __repr__(self) -> str:
        return printable(f"Comparison({self.name}, {self.level}, {self.other_level}: {self._summary()[1]})")

    def __rich__(self) -> object:
        from rich.text import Text

        return Text(str(self))

    def _repr_html_(self) -> str:
        lines = "".join(f"<div>{escape(line)}</div>" for line in self._summary())
        if not self.different:
            return f"<div {_FRAME}>{lines}</div>"
        return f"<div {_FRAME}>{lines}{table(map(_cells, self.different[:SHOWN]), _HEAD)}</div>"


_HEAD = ("where", "op", "device", "index", "a", "b", "pcc", "largest", "relative", "ulps", "why")
# The page's own colours, which suit light and dark pages.
_STYLE = "color: inherit; background: transparent; font-family: monospace; overflow-x: auto; white-space: nowrap"
_FRAME = f'style="{_STYLE}"'


def _cells(row: ComparedValue) -> tuple[str, ...]:
    where = f"{row.line} in {row.path}" if row.path else row.line
    op = row.op if row.op == row.other_op else f"{row.op} / {row.other_op}"
    if row.op == ARGUMENT:
        op = f"{op} {row.occurrence}"
    elif row.occurrence:
        op = f"{op} #{row.occurrence + 1}"
    device = "" if row.coordinate is None else str(row.coordinate)
    index = "" if row.index is None else str(list(row.index))
    values = ("", "") if row.index is None else (_show(row.value), _show(row.other))
    numbers = (f"{row.pcc:.6g}", f"{row.largest:.3g}", f"{row.relative:.3g}", str(row.ulps))
    return (where, op, device, index, *values, *(numbers if row.index is not None else ("",) * 4), row.why)


def _show(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, (float, complex)) else str(value)


def _sentence(row: ComparedValue) -> str:
    at = f" on device {row.coordinate}" if row.coordinate is not None else ""
    other = f" (in b {row.other_op})" if row.other_op != row.op else ""
    if row.index is None:
        return f"{row.name}{other}{at}: {row.why}"
    values = f"index {list(row.index)}: {_show(row.value)} in a, {_show(row.other)} in b"
    return f"{row.name}{other}{at}, {values}: {row.why}; pcc {row.pcc:.6g}, largest difference {row.largest:.3g}"
