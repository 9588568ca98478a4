"""A program as jaxmesh and as Tenstorrent's compiler compile it, side by side.

`explain` yields the moves and `estimate` the times; the real ttnn measures memory and device operations.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from jaxmesh.analysis.account import HOST_KINDS, Move, OpMoves, Total, entries, totals
from jaxmesh.analysis.diagnose.stage import StageProgram
from jaxmesh.analysis.estimate import Estimate
from jaxmesh.analysis.judge.verdict import Verdict
from jaxmesh.analysis.side_by_side import without_column
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Program
from jaxmesh.drawing.html import framed, table
from jaxmesh.drawing.text_layout import align_columns, duration, escape, shorten, wrap
from jaxmesh.errors import JaxmeshError
from jaxmesh.jaxprs.source_locations import short_location
from jaxmesh.passes.hold_arguments import keep_arguments
from jaxmesh.passes.memory import manage_memory

T = TypeVar("T")
NAME = "jaxmesh"
OURS, THEIRS = "ours", "theirs"
LABEL, CELL = 24, 36
"""The columns of a row's name, and of each side."""
MOST_LINES = 5
"""The number of source lines that the table lists."""
_FREES = "ttnn.deallocate"
_FOLDERS = re.compile(r"(?:/[^\s/:]+)+/(?=[^\s/:]+:[0-9])")
"""The folders of a source location in a message."""


@dataclass(frozen=True, eq=False)
class CompiledSide:
    """A program as one compiler compiled or refused it.

    Attributes:
      compiler: its name and version.
      refusal: why there is no program, and the other fields are empty: the compiler refused it, or printed a text that
        jaxmesh does not read. Empty if it compiled the program.
      moves: the collectives by kind and mesh axes: counts, payloads on one device, bytes that all devices send.
      sent_by_line: the bytes that all devices send, by source line as `file:line`.
      operations: the counts of TTNN operations on the devices, by name; those of a loop count once.
      layout_changes: the operations among them that only change how a tensor is stored.
      element_types: of the values on the devices.
      estimate: the lower bound of its time; None if there is none, for a reason in `remarks`.
      verdict: the verdict of the real ttnn, with the peak memory; None if it was not asked.
      remarks: what could not be found out, and why.
    """

    compiler: str
    refusal: str = ""
    moves: Sequence[Total] = ()
    sent_by_line: Mapping[str, int] = field(default_factory=dict[str, int])
    operations: Mapping[str, int] = field(default_factory=dict[str, int])
    element_types: Sequence[str] = ()
    estimate: Estimate | None = None
    verdict: Verdict | None = None
    remarks: Sequence[str] = ()

    @property
    def sent(self) -> int:
        """The bytes that all devices send together."""
        return sum(m.sent for m in self.moves)

    @property
    def layout_changes(self) -> dict[str, int]:
        """The counts of operations that only change how a tensor is stored, by name."""
        return {k: n for k, n in self.operations.items() if k == "typecast" or has_trait(f"ttnn.{k}", Trait.LAYOUT)}

    @property
    def peak_bytes(self) -> int | None:
        """The peak of DRAM on one device, as the real ttnn measured it; None if it did not."""
        return self._peak("DRAM")

    def _peak(self, name: str) -> int | None:
        memory = None if self.verdict is None or not self.verdict else self.verdict.memory(name)
        return None if memory is None else memory.device_peak

    def cells(self) -> dict[str, str]:
        """Returns the cells of its column, by the names of their rows."""
        if self.refusal:
            return {"outcome": shorten(f"no program: {_FOLDERS.sub('', self.refusal)}", 6 * CELL)}
        cells = {"outcome": "compiled"}
        cells |= {_name(m): f"{m.count}, {m.sent:,} B{'' if m.exact else ', not exact'}" for m in self.moves}
        cells["sent by all devices"] = f"{self.sent:,} B"
        cells["layout changes"] = ", ".join(f"{n} {name}" for name, n in self.layout_changes.items()) or "none"
        cells["operations"] = str(sum(self.operations.values()))
        cells["element types"] = ", ".join(self.element_types)
        if self.verdict is not None:
            counts = f"{sum(self.verdict.counts.values())}, {self.verdict.layout_changes} of them layout changes"
            cells["on the real ttnn"] = counts if self.verdict else self.verdict.outcome
        for name in ("DRAM", "L1"):
            peak = self._peak(name)
            cells[f"peak of {name}"] = "unknown" if peak is None else f"{peak:,} B on each device"
        if self.estimate is not None:
            held = self.estimate.memory
            cells["arguments that stay"] = f"{held.arguments:,} B on each device"
            cells["with all tensors"] = f"{held.peak:,} B on each device"
            host = sum(op.host_bytes for op in self.estimate.ops)
            cells["from and to the host"] = f"{host:,} B of each device"
        cells["at least"] = "unknown" if self.estimate is None else duration(self.estimate.seconds)
        return cells


@dataclass(frozen=True, eq=False)
class CompilerComparison:
    """A program as jaxmesh and as Tenstorrent's compiler compile it; shows as a table.

    Attributes:
      ours: the program of jaxmesh.
      theirs: the program of Tenstorrent's compiler.
      cluster: the machine of the estimates.
    """

    ours: CompiledSide
    theirs: CompiledSide
    cluster: str

    @property
    def moves_less(self) -> str:
        """The side whose devices send less, `"ours"` or `"theirs"`; empty if they send as much, or one refused."""
        if self.ours.refusal or self.theirs.refusal or self.ours.sent == self.theirs.sent:
            return ""
        return OURS if self.ours.sent < self.theirs.sent else THEIRS

    @property
    def differences(self) -> list[tuple[str, int, int]]:
        """The source lines at which the sides send a different number of bytes, with both; the largest first."""
        if self.ours.refusal or self.theirs.refusal:
            return []
        ours, theirs = self.ours.sent_by_line, self.theirs.sent_by_line
        lines = [(line, ours.get(line, 0), theirs.get(line, 0)) for line in dict.fromkeys([*ours, *theirs])]
        return sorted((row for row in lines if row[1] != row[2]), key=lambda row: -abs(row[1] - row[2]))

    @property
    def heading(self) -> str:
        """The outcome in one line."""
        if self.ours.refusal or self.theirs.refusal:
            refused = [s.compiler for s in (self.ours, self.theirs) if s.refusal]
            return f"no program of {' and '.join(refused)} to compare"
        if not self.moves_less:
            return f"devices send {self.ours.sent:,} B with either compiler"
        less, more = self.ours, self.theirs
        if self.moves_less == THEIRS:
            less, more = more, less
        return f"{less.compiler} sends {more.sent - less.sent:,} B less: {less.sent:,} B, not {more.sent:,} B"

    def rows(self) -> list[tuple[str, str, str]]:
        """Returns the rows of the table: a name and the text of each side."""
        ours, theirs = self.ours.cells(), self.theirs.cells()
        # Collectives of either side stand together, before the sums.
        order = list(dict.fromkeys([*ours, *theirs]))
        moves = [_name(m) for side in (self.ours, self.theirs) for m in side.moves]
        names = dict.fromkeys(["outcome", *moves, *order])
        rows = [(name, ours.get(name, ""), theirs.get(name, "")) for name in names]
        lines = [(short_location(line), f"{a:,} B", f"{b:,} B") for line, a, b in self.differences[:MOST_LINES]]
        return rows + lines

    def notes(self) -> list[str]:
        """Returns what could not be found out, and what the times are."""
        bounds = [f"times are bounds of {self.cluster} from published rates, and not measurements"]
        found = {s.compiler: s.remarks for s in (self.ours, self.theirs)}
        left = len(self.differences) - MOST_LINES
        more = [f"{left} more source lines differ"] if left > 0 else []
        return [*more, *(f"{name}: {text}" for name, texts in found.items() for text in texts), *bounds]

    def __str__(self) -> str:
        head = ("", self.ours.compiler, self.theirs.compiler)
        lines = [line for row in [head, *self.rows()] for line in _wrapped(row)]
        notes = [line for note in self.notes() for line in wrap(note, LABEL + 2 * CELL + 4)]
        return "\n".join([self.heading, *align_columns(lines), *notes])

    def __repr__(self) -> str:
        return f"CompilerComparison({self.heading})"

    def _repr_html_(self) -> str:
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes())
        body = table(self.rows(), ("", self.ours.compiler, self.theirs.compiler))
        return framed(self.heading, body, notes)


@dataclass(frozen=True, eq=False)
class CompilerText:
    """A TTNN text of Tenstorrent's compiler, with its arguments on the devices before it starts and after it ends.

    Attributes:
      program: the operations as they are written.
      moved: the moves, each with its source line.
      called: returns the program that is judged and estimated.
      remarks: which operations ttnn cannot be called for, and why.
    """

    program: Program
    moved: Sequence[tuple[str, Move]]
    called: Callable[[], Program]
    remarks: tuple[str, ...]


def read_text(stage: StageProgram, lower: Callable[[], Any], donated: Collection[int] = ()) -> CompilerText:
    """Reads a TTNN text of Tenstorrent's compiler.

    As its runtime does, the program frees a tensor after the last read of the tensor and of its views.

    Args:
      stage: the text.
      lower: returns the text as a lowered program, for what loops and branches hide.
      donated: the numbers of the arguments that the program frees.
    """
    ops = [replace(op, line=stage.source(i)) for i, op in enumerate(stage.text.program.ops)]
    program = replace(stage.text.program, mesh=dict(stage.mesh), ops=ops)
    if not any(has_trait(op.name, Trait.CONTROL_FLOW) for op in ops):
        moved = list(moves_of(program))
    else:
        # Only a traced loop tells how often it runs.
        moved = [(_source(stage, row.line), move) for row in lower().explain() for move in row.moves]
    printed = stage.printed_program(program.like((op for op in ops if op.name != _FREES), program.results))
    others = [(i, op) for i, op in enumerate(ops) if not op.name.startswith("ttnn.")]
    remarks = [f"{op.name} at {stage.source(i) or 'no line'} is no function of ttnn" for i, op in others]
    remarks += [] if printed else ["judged and estimated as jaxmesh lowers the text, without its layouts"]

    @functools.cache
    def called() -> Program:
        return keep_arguments(manage_memory(printed) if printed else lower().default_program(), donated)

    return CompilerText(program, moved, called, tuple(dict.fromkeys(remarks)))


def moves_of(program: Program) -> Iterator[tuple[str, Move]]:
    """Yields the moves of a flat TTNN program, each with its source line, or with its op."""
    for entry in entries(program):
        yield from ((entry.op.line or f"({entry.op.name})", move) for move in entry.moves)


def our_side(lowered: Any, cluster: str, judge: bool) -> CompiledSide:
    """Describes a lowered program of jaxmesh."""
    try:
        program: Program = lowered.default_program()
    except JaxmeshError as error:
        return CompiledSide(NAME, str(error))
    return describe(NAME, lowered, (program, list(moves_of(program)), ()), cluster, judge)


def describe(
    compiler: str,
    asked: Any,
    known: tuple[Program, Sequence[tuple[str, Move]], Sequence[str]],
    cluster: str,
    judge: bool,
) -> CompiledSide:
    """Describes a compiled program.

    Args:
      compiler: its name and version.
      asked: what estimates and judges it for a machine.
      known: the flat TTNN program, its moves with their source lines, and remarks.
      cluster: the machine.
      judge: whether the real ttnn is asked.
    """
    program, moved, remarks = known
    found = list(remarks)
    among = [(line, move) for line, move in moved if move.kind not in HOST_KINDS]
    sent = Counter[str]()
    for line, move in among:
        sent[without_column(line)] += move.count * move.sent
    ops = list(_on_devices(program))
    names = Counter[str]()
    for entry in ops:
        names[entry.op.name.partition(".")[2]] += entry.times
    results = [e.program.types[v] for e in ops for v in e.op.results]
    types = {t.dtype.name for t in results if t.kind == "tensor"}
    bound: Estimate | None = _ask(lambda: asked.estimate(cluster), "no least time", found)
    verdict: Verdict | None = _ask(lambda: asked.judge(cluster), "no peak memory", found) if judge else None
    if verdict is not None and verdict.refusal is not None:
        found.append(f"the real ttnn {verdict.outcome} it: {verdict.refusal.reason}")
    lines = {line: n for line, n in sent.items() if n}
    moves, kinds = totals(move for _, move in among), dict(names.most_common())
    return CompiledSide(compiler, "", moves, lines, kinds, sorted(types), bound, verdict, found)


def _source(stage: StageProgram, line: str) -> str:
    """Returns the user's source line of a line of the text, written as `line 12: ttnn.add`."""
    number = re.match(r"line ([0-9]+)", line)
    return stage.locations.at(int(number[1])) if number else line


def _on_devices(program: Program) -> Iterator[OpMoves]:
    """Yields the operations of a program, and of the functions that it calls, that make a tensor on the devices."""
    for entry in entries(program):
        op, types = entry.op, entry.program.types
        kinds = [types[v] for v in op.results]
        changes = has_trait(op.name, Trait.LAYOUT) and not types[op.used[0]].host
        memory = has_trait(op.name, Trait.MEMORY) and not changes
        if any(t.kind == "tensor" and not t.host for t in kinds) and not memory:
            yield entry


def _ask(make: Callable[[], T], what: str, remarks: list[str]) -> T | None:
    """Returns what `make` returns; None after an error, which becomes a remark."""
    try:
        return make()
    except JaxmeshError as error:
        remarks.append(f"{what}: {error}")
        return None


def _name(move: Total) -> str:
    return f"{move.kind} over {', '.join(move.axes)}"


def _wrapped(row: tuple[str, str, str]) -> list[tuple[str, str, str]]:
    """Returns the lines of a row; its cells are wrapped to the width of their columns."""
    columns = [[shorten(row[0], LABEL)], wrap(row[1], CELL), wrap(row[2], CELL)]
    count = max(map(len, columns))
    first, second, third = (lines + [""] * (count - len(lines)) for lines in columns)
    return list(zip(first, second, third, strict=True))
