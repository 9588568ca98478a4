"""The estimate of a program as data, text, and a picture in Jupyter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxmesh.analysis.account import Total, totals
from jaxmesh.analysis.account.memory import HeldTensor, PeakMemory, memory_of
from jaxmesh.analysis.account.moves import ENDLESS
from jaxmesh.analysis.estimate.cost import DISPATCH, PARTS, PHASES, OpCost, costs, sources
from jaxmesh.analysis.estimate.storage import check_stored
from jaxmesh.analysis.machines import Machine, machine_for
from jaxmesh.dialects.program import Program
from jaxmesh.drawing.picture import Picture
from jaxmesh.drawing.program_blocks import BlockRow, Cost, Item, ProgramBlock, ProgramValue
from jaxmesh.drawing.program_html import program_html
from jaxmesh.drawing.text_layout import align_columns, binary_bytes, duration, shorten
from jaxmesh.errors import ArgumentValueError, printable
from jaxmesh.jaxprs.source_locations import line_key, short_location
from jaxmesh.validate import quote


@dataclass(frozen=True, eq=False)
class Estimate(Picture):
    """A lower bound of the time of a program on a machine, from published rates; not a measurement.

    It prints as a table; in Jupyter, and saved as `.html`, it is drawn as bars over time.

    Attributes:
      name: the name of the function.
      mesh: axis names and sizes.
      machine: the machine, with its rates.
      ops: the costs of the ops in order, on one device; all devices do the same at the same time.
      memory: the memory of one device at its peak.
    """

    name: str
    mesh: Mapping[str, int]
    machine: Machine
    ops: Sequence[OpCost]
    memory: PeakMemory

    @property
    def missing(self) -> int:
        """The bytes of DRAM that a device lacks for the peak; 0 if it has enough."""
        return max(self.memory.peak - self.machine.dram_bytes, 0)

    def largest(self, count: int = 10) -> list[HeldTensor]:
        """Returns the largest tensors on one device at the peak, with their paths, placements and source lines."""
        return self.memory.largest(count)

    @cached_property
    def seconds(self) -> float:
        """The lower bound for ops that run one after the other, as ttnn runs them."""
        return sum(op.seconds for op in self.ops)

    @cached_property
    def overlapped_seconds(self) -> float:
        """The lower bound for ops in any order: the time of the busiest part."""
        return max(sum(op.times[part] for op in self.ops) for part in PARTS)

    @cached_property
    def programs(self) -> int:
        """The number of operations that take time: each is a program of the device, or several."""
        return sum(op.count for op in self.ops if op.seconds > 0)

    @property
    def dispatch_seconds(self) -> float:
        """The lower bound of the time of dispatch, in seconds, which `seconds` leaves out: as of empty programs."""
        return self.programs * DISPATCH[self.machine.architecture.name].value * 1e-6

    @cached_property
    def shares(self) -> dict[str, float]:
        """The fractions of `seconds` bound by compute, DRAM and links; the fraction of the links is the time of the
        collectives."""
        bound = dict.fromkeys(PARTS, 0.0)
        for op in self.ops:
            if op.bound_by:
                bound[op.bound_by] += op.seconds
        return {part: s / self.seconds if self.seconds else 0.0 for part, s in bound.items()}

    @cached_property
    def link_bytes(self) -> dict[str, int]:
        """The bytes that one device sends, by mesh axis."""
        sent = dict.fromkeys((a for a, n in self.mesh.items() if n > 1), 0)
        for op in self.ops:
            for axis, count in op.link_bytes.items():
                sent[axis] += count
        return sent

    def totals(self) -> list[Total]:
        """Sums the moves of all ops by kind and mesh axes; an explanation has the same totals."""
        return totals(move for op in self.ops for move in op.moves)

    @cached_property
    def lines(self) -> list[LineCost]:
        """The costs by source line in program order; ops without a source line are grouped by name.

        A line with over nine tenths of the flops, as where a library calls the program, is one row per scope.
        """
        groups: dict[str, dict[str, list[OpCost]]] = {}
        for op in self.ops:
            groups.setdefault(line_key(op.line) or f"({op.op})", {}).setdefault(op.scope, []).append(op)
        rows, flops = list[LineCost](), sum(op.flops for op in self.ops)
        for line, scopes in groups.items():
            parts = [LineCost.of(line, ops, scope) for scope, ops in scopes.items()]
            whole = LineCost.of(line, [op for ops in scopes.values() for op in ops])
            rows += parts if whole.flops > 0.9 * flops else [whole]
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Returns the estimate as plain data, for JSON."""
        return {
            "name": self.name, "mesh": dict(self.mesh), "cluster": self.machine.name, "seconds": self.seconds,
            "overlapped_seconds": self.overlapped_seconds, "dispatch_seconds": self.dispatch_seconds,
            "shares": self.shares, "link_bytes": self.link_bytes,
            "memory": dataclasses.asdict(self.memory), "missing": self.missing, "rates": sources(self.machine),
            "ops": [dataclasses.asdict(op) for op in self.ops],
        }  # fmt: skip

    # --- as text ---

    @property
    def heading(self) -> str:
        """The least time in one line."""
        shape = "x".join(map(str, self.mesh.values()))
        return f"{self.name} on the mesh {shape} of {self.machine.name}: at least {duration(self.seconds)}"

    def notes(self) -> list[str]:
        """Returns the parts of the time, and the costs that it leaves out."""
        shares = ", ".join(f"{part} {share:.0%}" for part, share in self.shares.items())
        sent = ", ".join(f"{axis} {amount(n)}B" for axis, n in self.link_bytes.items() if n)
        host, fits = sum(op.host_bytes for op in self.ops), not self.missing
        return [
            "a bound from published rates, and not a measurement: no real time is shorter",
            f"bound by: {shares}; the share of links is that of collectives",
            f"if all ops could overlap: at least {duration(self.overlapped_seconds)}",
            *([f"sent by each device: {sent}"] if sent else []),
            f"memory of each device: {self.memory}" + ("" if fits else f"; {binary_bytes(self.missing)} are missing"),
            *(f"largest: {tensor}" for tensor in self.largest(0 if fits else 3)),
            *filter(None, [self.memory.uncounted]),
            *([f"not in the time: {amount(host)}B between host and device"] if host else []),
            *([] if all(op.exact for op in self.ops) else [ENDLESS]),
            f"not in the time: the dispatch of {sum(op.count for op in self.ops):,} operations; "
            f"of the {self.programs:,} that compute or move, at least {duration(self.dispatch_seconds)}",
            f"rate of dispatch, from a trace: {DISPATCH[self.machine.architecture.name]}",
            "inputs are read from DRAM once, what the program computes stays in L1 as far as it fits",
            *(f"rate of {line}" for line in sources(self.machine)),
        ]

    def table(self) -> list[tuple[str, ...]]:
        """Returns the costs of the source lines that take time as rows of text, with their head."""
        head = ("line", "ops", "flops", "DRAM bytes", "link bytes", "at least", "bound by")
        return [head, *(line.cells() for line in self.lines if line.seconds)]

    def __str__(self) -> str:
        return printable("\n".join([self.heading, *align_columns(self.table()), *self.notes()]))

    def __repr__(self) -> str:
        return printable(f"Estimate({self.heading})")

    def _repr_html_(self) -> str:
        return self.to_html()

    def __rich__(self) -> str:
        return str(self).replace("[", "\\[")

    def to_html(self) -> str:
        """Returns the picture: the source lines as bars over time, for each part of a device, as a part of a page.

        One device stands for all, since all do the same.
        """
        count = math.prod(self.mesh.values())
        devices = "the device" if count == 1 else f"each of {count} devices"
        rows: list[Item] = [BlockRow(line.value, Cost(line.busy, line.by_part)) for line in self.lines if line.seconds]
        return program_html(f"{self.heading}, on {devices}", (), ProgramBlock("", rows), (), self.notes(), str(self))


def estimate_program(
    program: Program,
    cluster: str | None = None,
    stored: str | Mapping[str, str] | None = None,
    fidelity: str | None = None,
    deployed: Program | None = None,
    paths: Sequence[str] = (),
) -> Estimate:
    """Estimates a flat TTNN program; `Lowered.estimate` describes the arguments and errors.

    `deployed` is the program with its resident arguments on the devices, whose memory counts; `paths` name them.
    """
    machine = machine_for(cluster, list(program.mesh.values()))
    if fidelity is not None and (not isinstance(fidelity, str) or fidelity not in PHASES):
        raise ArgumentValueError(f"estimate takes a fidelity of {', '.join(PHASES)}, got {quote(fidelity)}.")
    widths = check_stored(stored)
    op_costs, memory = costs(program, machine, widths, fidelity), memory_of(deployed or program, paths, widths)
    return Estimate(program.name, program.mesh, machine, list(op_costs), memory)


@dataclass(frozen=True, slots=True)
class LineCost:
    """The costs of all ops of one source line, all executions together.

    Attributes:
      line: the source line; an op in brackets for those without one.
      scope: the named scopes of its ops, if it is one of several rows of the line.
      ops: the number of ops.
      seconds: the sum of their lower bounds.
      by_part: the sum by the part that bounds each op.
      busy: the time that each part works.
    """

    line: str
    ops: int
    flops: int
    dram_bytes: int
    link_bytes: int
    seconds: float
    by_part: Mapping[str, float]
    busy: Mapping[str, float]
    scope: str = ""

    @staticmethod
    def of(line: str, ops: Sequence[OpCost], scope: str = "") -> LineCost:
        """Adds up the costs of the ops of a line."""
        by_part = {part: sum(op.seconds for op in ops if op.bound_by == part) for part in PARTS}
        sent = sum(sum(op.link_bytes.values()) for op in ops)
        flops, dram = sum(op.flops for op in ops), sum(op.dram_bytes for op in ops)
        busy = {part: sum(op.times[part] for op in ops) for part in PARTS}
        count, seconds = sum(op.count for op in ops), sum(by_part.values())
        return LineCost(line, count, flops, dram, sent, seconds, by_part, busy, scope)

    @property
    def bound_by(self) -> str:
        """The part that bounds most of the time; empty if the line takes 0 seconds."""
        return max(self.by_part, key=lambda part: self.by_part[part]) if self.seconds else ""

    @property
    def place(self) -> str:
        """The line without the folders of its file, and the scope."""
        return " in ".join(filter(None, (short_location(self.line), self.scope)))

    @property
    def value(self) -> ProgramValue:
        """Its row of the picture."""
        ops = "1 operation" if self.ops == 1 else f"{self.ops:,} operations"
        return ProgramValue(self.place, ops, f"bound by {self.bound_by}")

    def cells(self) -> tuple[str, ...]:
        """Returns its row of the table."""
        counts = (amount(self.flops), amount(self.dram_bytes), amount(self.link_bytes))
        return (shorten(self.place, 72), str(self.ops), *counts, duration(self.seconds), self.bound_by)


def amount(count: float) -> str:
    """Returns a count with a decimal prefix.

    >>> amount(999), amount(4_194_304), amount(8.03e9)
    ('999 ', '4.19 M', '8.03 G')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} "
