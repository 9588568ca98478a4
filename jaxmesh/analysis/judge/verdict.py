"""The verdict of the real ttnn on a program as data, text, and a table in Jupyter."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from textwrap import shorten
from typing import Any

from jaxmesh.analysis.account.memory import HeldTensor, PeakMemory
from jaxmesh.drawing.html import framed, table
from jaxmesh.drawing.text_layout import align_columns, binary_bytes

ACCEPTED, REFUSED, DIED, TOO_LARGE = "accepted", "refused", "died", "does not fit"
LAYOUT_CHANGES = ("Tilize", "Untilize")
"""Prefixes of ttnn's device operations that only change the layout between tiles and rows."""


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A line of `main.py`, with its source location in the user's code.

    Attributes:
      line: the line of `main.py`; 0 if the program did not start.
      text: the text of the line.
      source: the source location, as `file:line:column (function)`; empty if unknown.
    """

    line: int = 0
    text: str = ""
    source: str = ""

    def __str__(self) -> str:
        there = f"main.py, line {self.line}" if self.line else "before the first line"
        return f"{self.source}, which is {there}" if self.source else there


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason and location of a refusal by the library.

    Attributes:
      place: the line.
      kind: `"arguments"` (an argument that the function does not have, or one of another type), `"DRAM"`, `"L1"` (the
        memory is too small), `"rule"` (a rule of the operation), `"other"`.
      reason: the library's reason, in one line.
      rule: the location in the library's source, and the condition; empty if the message has none.
      text: the library's whole message, without its backtrace.
    """

    place: ScriptLine
    kind: str
    reason: str
    rule: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A memory of each device; all sizes are bytes.

    Attributes:
      name: `"DRAM"` or `"L1"`.
      banks: the number of banks; for L1, the number of cores.
      bank_bytes: the size of one bank.
      peak: the largest total of the tensors on one bank.
      peak_place: the line of the peak.
      end: the total of the tensors on one bank when the function ends, including its results.
      kernel: for L1, the largest total of one operation's buffers on one core; None if ttnn did not report it.
      kernel_place: the line of `kernel`.
    """

    name: str
    banks: int
    bank_bytes: int
    peak: int
    peak_place: ScriptLine
    end: int
    kernel: int | None = None
    kernel_place: ScriptLine = field(default_factory=ScriptLine)

    @property
    def device_peak(self) -> int:
        """The peak on one device, over all banks."""
        return self.peak * self.banks

    @property
    def device_bytes(self) -> int:
        """The size of the memory of one device."""
        return self.bank_bytes * self.banks


@dataclass(frozen=True, slots=True)
class Leak:
    """A tensor that stays on the devices when the function ends, and is not a result.

    Attributes:
      place: the line that created it.
      name: its variable in `main.py`.
      shape: the local shape.
      bytes: the bytes on one device.
    """

    place: ScriptLine
    name: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, eq=False)
class Verdict:
    """The verdict of the real ttnn on a program; true if the program is accepted.

    Attributes:
      outcome: `"accepted"` to its end, `"refused"`, `"died"`: the library ended the process, or `"does not fit"`: the
        tensors of one device take more than its DRAM, so that nothing was run.
      version: the version of ttnn; empty if nothing was run.
      target: `"board"`, or the name of the described cluster.
      mesh: the sizes of the mesh; empty if the program opened no mesh.
      refusal: the reason and the line; None for an accepted program.
      memories: DRAM and L1; empty if the program opened no mesh, or the process died.
      leaks: the tensors that stay on the devices.
      operations: per line of `main.py` the counts of device operations by name.
      places: per line of `main.py` its text and source location.
      exit_code: the exit code of an accepted program; 1 if results on a board differ from the expected results.
      output: the standard output of the program.
      held: the peak of one device's DRAM by its parts, counted in the program; None for an exported folder.
      missing: the bytes of DRAM that a device lacks; 0 if it has enough.
      remarks: further notes, for example that this version of ttnn is not the tested one.
    """

    outcome: str
    version: str
    target: str
    mesh: tuple[int, ...] = ()
    refusal: Refusal | None = None
    memories: tuple[DeviceMemory, ...] = ()
    leaks: tuple[Leak, ...] = ()
    operations: Mapping[int, Mapping[str, int]] = field(default_factory=dict[int, Mapping[str, int]])
    places: Mapping[int, ScriptLine] = field(default_factory=dict[int, ScriptLine])
    exit_code: int = 0
    output: str = ""
    held: PeakMemory | None = None
    missing: int = 0
    remarks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.outcome == ACCEPTED

    @cached_property
    def counts(self) -> dict[str, int]:
        """The counts of device operations by name, the most frequent first."""
        counts = Counter[str]()
        for kinds in self.operations.values():
            counts.update(kinds)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def layout_changes(self) -> int:
        """The number of device operations that only change a layout."""
        return sum(n for kind, n in self.counts.items() if kind.startswith(LAYOUT_CHANGES))

    def memory(self, name: str) -> DeviceMemory | None:
        """Returns the memory named `"DRAM"` or `"L1"`; None if the program opened no mesh."""
        return next((m for m in self.memories if m.name == name), None)

    def largest(self, count: int = 10) -> list[HeldTensor]:
        """Returns the largest tensors on one device at the peak, with their paths, placements and source lines."""
        return [] if self.held is None else self.held.largest(count)

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict as plain data, for JSON."""
        return dataclasses.asdict(self)

    # --- as text ---

    @property
    def heading(self) -> str:
        """The outcome in one line."""
        shape = "x".join(map(str, self.mesh))
        mesh = f" on the mesh {shape}" if shape else ""
        where = "the board" if self.target == "board" else f"a described {self.target}"
        if self.outcome == TOO_LARGE:
            return f"does not fit{mesh} of {where}: {binary_bytes(self.missing)} of DRAM are missing on each device"
        how = {ACCEPTED: "accepted to its end by", REFUSED: "refused by", DIED: "the process died in"}[self.outcome]
        return f"{how} ttnn {self.version}{mesh} of {where}"

    def rows(self) -> list[tuple[str, str]]:
        """Returns the rows of the table, as names and texts."""
        rows: list[tuple[str, str]] = []
        if self.refusal is not None:
            text, rule = shorten(self.refusal.place.text, 160, placeholder=" ..."), self.refusal.rule
            rows += [("where", str(self.refusal.place)), *([("", text)] if text else [])]
            rows += [("reason", self.refusal.reason), *([("rule", rule)] if rule else [])]
        for memory in self.memories:
            part = memory.peak / memory.bank_bytes if memory.bank_bytes else 0
            of_all = f"{binary_bytes(memory.device_peak)} of {binary_bytes(memory.device_bytes)}"
            rows.append((memory.name, f"peak {of_all} ({part:.1%}) on each device{_at(memory.peak_place)}"))
            if memory.kernel is not None:
                of_all = f"{binary_bytes(memory.kernel)} of {binary_bytes(memory.bank_bytes)}"
                rows.append(("", f"kernels take at most {of_all} on a core{_at(memory.kernel_place)}"))
        if self.held is not None:
            rows += [("tensors", str(self.held)), *(("", str(t)) for t in self.largest(3))]
        if self.outcome == ACCEPTED:
            left = sum(k.bytes for k in self.leaks)
            rows.append(("left at the end", binary_bytes(left) if self.leaks else "nothing"))
            rows += [("", f"{k.name} {list(k.shape)}, {binary_bytes(k.bytes)}, of {k.place}") for k in self.leaks]
        if self.counts:
            total, changes = sum(self.counts.values()), self.layout_changes
            rows.append(("device operations", f"{total}; layout changes: {changes}"))
            rows.append(("", ", ".join(f"{n} {kind}" for kind, n in self.counts.items())))
        return rows + [("remark", text) for text in self.remarks]

    def __str__(self) -> str:
        return "\n".join([self.heading, *(f"  {line}" for line in align_columns(self.rows()))])

    def __repr__(self) -> str:
        return f"Verdict({self.heading})"

    def _repr_html_(self) -> str:
        return framed(self.heading, table(self.rows()))


def _at(place: ScriptLine) -> str:
    return f", at {place}" if place.line else ""
