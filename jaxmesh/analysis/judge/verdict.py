"""The verdict of the real ttnn on a program: data, shown as text and as a table in Jupyter."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from textwrap import shorten
from typing import Any

from jaxmesh.drawing.html import table
from jaxmesh.drawing.text_layout import align_columns, escape

ACCEPTED, REFUSED, DIED = "accepted", "refused", "died"
LAYOUT_CHANGES = ("Tilize", "Untilize")
"""Prefixes of ttnn's device operations that change a layout between tiles and rows, and nothing else."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a program.

    Attributes:
      line: the line of `main.py`; 0 if none was reached.
      text: the line.
      source: the user's line from which its operation came, as `file:line:column (function)`; empty if there is none.
    """

    line: int = 0
    text: str = ""
    source: str = ""

    def __str__(self) -> str:
        there = f"main.py, line {self.line}" if self.line else "before the first line"
        return f"{self.source}, which is {there}" if self.source else there


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why and where the library refused.

    Attributes:
      place: the line.
      kind: `"arguments"` (an argument that the function does not have, or one of another type), `"DRAM"`, `"L1"` (the
        memory is too small), `"rule"` (a rule of the operation), `"other"`.
      reason: the library's, in one line.
      rule: the place in the library's own source, and the condition; empty if the message has none.
      text: the library's whole message, without its backtrace.
    """

    place: Place
    kind: str
    reason: str
    rule: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory of each device; all sizes are bytes.

    Attributes:
      name: `"DRAM"` or `"L1"`.
      banks: how many there are: of L1 the cores.
      bank_bytes: the size of one.
      peak: the most that tensors take on one bank.
      peak_place: where that is.
      end: what they take on one bank when the function ends, its results included.
      kernel: of L1, the most that the buffers of one operation take on one core; None if ttnn did not report it.
      kernel_place: where that is.
    """

    name: str
    banks: int
    bank_bytes: int
    peak: int
    peak_place: Place
    end: int
    kernel: int | None = None
    kernel_place: Place = field(default_factory=Place)

    @property
    def device_peak(self) -> int:
        """The peak on one device: over all banks."""
        return self.peak * self.banks

    @property
    def device_bytes(self) -> int:
        """The size of the memory of one device."""
        return self.bank_bytes * self.banks


@dataclass(frozen=True, slots=True)
class Leak:
    """A tensor that is left on the devices when the function ends, and is no result.

    Attributes:
      place: the line that made it.
      name: its variable in `main.py`.
      shape: on one device.
      bytes: on one device.
    """

    place: Place
    name: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, eq=False)
class Verdict:
    """The verdict of the real ttnn on a program; true if it is accepted.

    Attributes:
      outcome: `"accepted"` to its end, `"refused"`, or `"died"`: the library ended the process.
      version: of ttnn.
      target: `"board"`, or the name of the described cluster.
      mesh: the sizes of the mesh; empty if none was opened.
      refusal: why and where; None of an accepted program.
      memories: DRAM and L1; empty if no mesh was opened, or the process died.
      leaks: the tensors that are left.
      operations: per line of `main.py` the device operations that it became, by kind.
      places: per line of `main.py` its place.
      exit_code: of an accepted program, what it ended with; 1 if its results are not as expected, on a board.
      output: what the program printed.
      remarks: further notes, for example that this version of ttnn is not the tested one.
    """

    outcome: str
    version: str
    target: str
    mesh: tuple[int, ...] = ()
    refusal: Refusal | None = None
    memories: tuple[Memory, ...] = ()
    leaks: tuple[Leak, ...] = ()
    operations: Mapping[int, Mapping[str, int]] = field(default_factory=dict[int, Mapping[str, int]])
    places: Mapping[int, Place] = field(default_factory=dict[int, Place])
    exit_code: int = 0
    output: str = ""
    remarks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.outcome == ACCEPTED

    @cached_property
    def counts(self) -> dict[str, int]:
        """The device operations by kind, the most frequent first."""
        counts: dict[str, int] = {}
        for kinds in self.operations.values():
            for kind, count in kinds.items():
                counts[kind] = counts.get(kind, 0) + count
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def layout_changes(self) -> int:
        """The number of device operations that only change a layout."""
        return sum(n for kind, n in self.counts.items() if kind.startswith(LAYOUT_CHANGES))

    def memory(self, name: str) -> Memory | None:
        """Returns the memory of a name, `"DRAM"` or `"L1"`; None if no mesh was opened."""
        return next((m for m in self.memories if m.name == name), None)

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
        how = {ACCEPTED: "accepted to its end by", REFUSED: "refused by", DIED: "the process died in"}[self.outcome]
        return f"{how} ttnn {self.version}{mesh} of {where}"

    def rows(self) -> list[tuple[str, str]]:
        """Returns the rows of the table, as names and texts."""
        rows = [] if self.refusal is None else _refusal_rows(self.refusal)
        for memory in self.memories:
            rows += _memory_rows(memory)
        if self.outcome == ACCEPTED:
            rows.append(("left at the end", "nothing" if not self.leaks else _bytes(sum(k.bytes for k in self.leaks))))
            rows += [("", f"{k.name} {list(k.shape)}, {_bytes(k.bytes)}, of {k.place}") for k in self.leaks]
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
        frame = 'style="color: inherit; background: transparent; overflow-x: auto"'
        return f"<div {frame}><b>{escape(self.heading)}</b>{table(self.rows())}</div>"


def _refusal_rows(refusal: Refusal) -> list[tuple[str, str]]:
    rows = [("where", str(refusal.place))]
    rows += [("", shorten(refusal.place.text, 160, placeholder=" ..."))] if refusal.place.text else []
    rows.append(("reason", refusal.reason))
    return rows + ([("rule", refusal.rule)] if refusal.rule else [])


def _memory_rows(memory: Memory) -> Sequence[tuple[str, str]]:
    part = memory.peak / memory.bank_bytes if memory.bank_bytes else 0
    each = f"peak {_bytes(memory.device_peak)} of {_bytes(memory.device_bytes)} ({part:.1%}) on each device"
    place = f", at {memory.peak_place}" if memory.peak_place.line else ""
    rows = [(memory.name, each + place)]
    if memory.kernel is not None:
        place = f", at {memory.kernel_place}" if memory.kernel_place.line else ""
        rows.append(
            ("", f"kernels take at most {_bytes(memory.kernel)} of {_bytes(memory.bank_bytes)} on a core{place}")
        )
    return rows


def _bytes(count: int) -> str:
    """Returns a number of bytes in the unit that suits it.

    >>> _bytes(512), _bytes(65_536), _bytes(12 * 1_072_693_184)
    ('512 B', '64.0 KiB', '11.99 GiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.{2 if power > 2 else 1}f} {_UNITS[power - 1]}"


_UNITS = ("KiB", "MiB", "GiB", "TiB")
