"""Attributes the moves of a program's text to the rows of an explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from jaxmesh.analysis.account.moves import HOST_KINDS, Move, merge
from jaxmesh.analysis.account.sends import OpMoves
from jaxmesh.analysis.explain.records import Row
from jaxmesh.jaxprs.remarks import Remark, Remarks
from jaxmesh.jaxprs.source_locations import line_key

_INSERTED = Remark("inserted", "TTNN alone moves it", "the host computes when a program runs, and TTNN on the devices")


@dataclass
class Attribution:
    """Attributes each move to a row: of the same origin, of the same line, or a new one.

    Attributes:
      rows: the rows, to which new ones are added before the results.
      origins: by the number of a row, the origin of its equation.
      own: by the number of a row, the moves of its equation as it runs.
      lines: by origin, the source line.
      log: the remarks of the passes, by origin.
    """

    rows: list[Row]
    origins: Mapping[int, str]
    own: Mapping[int, tuple[Move, ...]]
    lines: Mapping[str, str]
    log: Remarks
    moves: dict[int, list[Move]] = field(default_factory=dict[int, "list[Move]"])
    given: Counter[tuple[int, str]] = field(default_factory=Counter["tuple[int, str]"])

    def add(self, entries: Iterable[OpMoves]) -> None:
        """Adds the moves of the ops of a flat program, each with an origin as its line, and the remarks."""
        by_origin, by_line = dict[str, list[int]](), dict[str, list[int]]()
        for number, key in self.origins.items():
            by_origin.setdefault(key, []).append(number)
            by_line.setdefault(line_key(self.rows[number].line), []).append(number)
        missing: dict[tuple[str, str], list[Move]] = {}
        for entry in entries:
            for move in entry.moves:
                key = entry.op.line
                line = self.lines.get(key, key)
                found = by_origin.get(key) or by_line.get(line_key(line))
                if found:
                    number = min(found, key=lambda n: self._distance(n, move))
                    self.given[number, move.kind] += 1
                    self.moves.setdefault(number, []).append(move)
                else:
                    missing.setdefault((line, _op(move)), []).append(move)
        for number, key in self.origins.items():
            moved, notes = self.moves.get(number, ()), self.log.at(key)
            if moved or notes:
                notes = dict.fromkeys([*self.rows[number].notes, *notes])
                self.rows[number] = replace(self.rows[number], moves=merge(moved), notes=tuple(notes))
        end = next((i for i, row in enumerate(self.rows) if row.op == "result"), len(self.rows))
        self.rows[end:end] = [
            Row(op, (), (), (), merge(moved), (_INSERTED,), line=line) for (line, op), moved in missing.items()
        ]

    def _distance(self, number: int, move: Move) -> tuple[bool, bool, bool, int]:
        """Returns how a move differs from the moves of a row, and the number of moves of its kind in the row."""
        row, own = self.rows[number], self.own[number]
        if move.kind in HOST_KINDS:
            alike = row.op == _op(move) or (row.op == "axis_index" and move.kind == "distribute")
        else:
            alike = any(m.kind not in HOST_KINDS for m in own)
        axes = any(set(move.axes) <= set(m.axes) for m in own)
        return (
            not alike or row.executions == 0,
            not axes,
            all(move.bytes != m.bytes for m in own),
            self.given[number, move.kind],
        )


def _op(move: Move) -> str:
    """Returns the name of the equation that makes a move, unless the equation does more."""
    return f"{move.kind}_tensor" if move.kind in HOST_KINDS else move.kind
