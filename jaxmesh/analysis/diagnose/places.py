"""Aligns the operations of a text with the unsharded program by source line, kind and order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxmesh.analysis.diagnose.movements import is_alike, is_collective, is_movement, is_transparent, short_name
from jaxmesh.analysis.diagnose.source_lines import line
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.dialects.program import Op
from jaxmesh.dialects.ttir.elementwise import OPS as TTIR
from jaxmesh.dialects.ttnn.elementwise import OPS as TTNN
from jaxmesh.frontends.stablehlo.call import enum_of
from jaxmesh.frontends.stablehlo.reductions import kind_of

_ELEMENTWISE = frozenset({*TTIR, *TTNN})
ALIKE = 6
"""The most values of one place."""


@dataclass
class Places:
    """The places of operations and of the values of the unsharded run: source line, kind, order."""

    track: Track
    _by_place: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _ops: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        values, stage = self.track.reference.values, self.track.stage
        for number in self.track.used:
            for key in {values[number].source, line(values[number].source), ""}:
                self._by_place[key].append(number)
        for number, op in enumerate(stage.text.program.ops):
            source = stage.source(number) if op.results else ""
            for key in {source, line(source), ""} if op.results else ():
                self._ops[key].append(number)

    def of(self, number: int, op: Op, index: int) -> list[int]:
        """Returns the values of the unsharded run in the place of a result of an operation, the likeliest first."""
        source = self.track.stage.source(number)
        order: list[int] = []
        for key in dict.fromkeys((source, line(source)) if source else ("",)):
            order += [n for n in self._in_place(number, op, index, key) if n not in order] if key or not source else ()
        return order[:ALIKE]

    def exactly(self, number: int, op: Op, index: int) -> int | None:
        """Returns the value in the place of a result, where text and program have as many of its kind there."""
        source = self.track.stage.source(number)
        for key in dict.fromkeys((source, line(source)) if source else ("",)):
            beside, alike = self._beside(number, op, index, key)
            if alike and len(beside) == len(alike):
                return alike[beside.index(number)]
        return None

    def _beside(self, number: int, op: Op, index: int, key: str) -> tuple[list[int], list[int]]:
        """Returns the operations and the values of a kind in one place."""
        values, ops = self.track.reference.values, self.track.stage.text.program.ops
        alike = [n for n in self._by_place.get(key, ()) if is_alike(op, values[n].op) and _index(values[n]) == index]
        kinds = {values[n].op for n in alike}
        beside = [n for n in self._ops.get(key, ()) if any(is_alike(ops[n], kind) for kind in kinds)]
        own, same = [n for n in beside if ops[n].name == op.name], [n for n in alike if self.is_same(op, n)]
        return (own, same) if len(own) == len(same) else (beside, alike)

    def is_same(self, op: Op, number: int) -> bool:
        """Returns True for a comparison of the same direction, and a reduction by the same operation."""
        value = self.track.reference.values[number]
        if value.op == "stablehlo.reduce":
            return kind_of(value.value.owner) == short_name(op)
        return value.op.endswith(".compare") and enum_of(
            value.value.owner, "comparison_direction"
        ).lower() == short_name(op)

    def _in_place(self, number: int, op: Op, index: int, key: str) -> list[int]:
        beside, alike = self._beside(number, op, index, key)
        if not alike:
            return []
        at = beside.index(number)
        if len(beside) == len(alike):
            return [alike[at], *[n for n in alike if n != alike[at]]]
        place = at * (len(alike) - 1) / max(1, len(beside) - 1)
        return sorted(alike, key=lambda n: abs(alike.index(n) - place))

    def is_stray(self, number: int, op: Op) -> bool:
        """Returns True for a movement of elements at the location of an operation that computes element by element:
        upstream never decomposes that into movements."""
        stage = self.track.stage
        where, ops = stage.locations.written, stage.text.program.ops
        own, rows = where(stage.text.lines[number]), zip(ops, stage.text.lines, strict=True)
        beside = [o for o, at in rows if own and o.used and o.results and o is not op and where(at) == own]
        moves = is_movement(op) and not is_transparent(op) and not is_collective(op)
        return moves and bool(beside) and all(o.name.partition(".")[2] in _ELEMENTWISE for o in beside)

    def misses(self, number: int) -> bool:
        """Returns True if no device holds a value of the program."""
        return self.track.pool.same[number] not in self.track.reproduced

    def beside(self, number: int) -> Sequence[int]:
        """Returns the values on the line of an operation."""
        source = line(self.track.stage.source(number))
        return self._by_place.get(source, ()) if source else ()

    def of_any_kind(self, number: int) -> list[int]:
        """Returns the values that no device holds, those on the line of an operation first."""
        near = self.beside(number)
        missing = [n for n in self.track.used if self.misses(n)]
        return [*[n for n in near if n in set(missing)], *[n for n in missing if n not in set(near)]]


def _index(value: Any) -> int:
    return int(getattr(value.value, "result_number", 0)) if value.operation is not None else 0
