"""A run on the simulated chip: every value on every device, where it was computed, and how far it is from the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmesh.analysis.chip import trust
from jaxmesh.analysis.record.metrics import Apart
from jaxmesh.drawing.text_layout import align_columns, duration, shorten
from jaxmesh.jaxprs.source_locations import short_location

CHIP, TRANSFER = "chip", "a transfer between devices or the host"


@dataclass(frozen=True, eq=False)
class ChipValue:
    """One result of one call on the devices.

    Attributes:
      call: the function of ttnn, the element types of its operands, and the class of its shapes.
      source: the line of the user's program, as `file:line:column (function)`.
      place: `"chip"`, or why the emulation computed it.
      outcome: of a call that ran on the chip, `"exact"`, the format whose rounding explains the difference to the exact
        result for the same operands (`"float32"`, `"polynomial"`, `"tf32"`, `"bfloat16"`), or `"wrong"`.
      loss: the largest error of this call alone, for the same operands, as a part of the largest magnitude.
      seconds: on the chip, for all devices together.
      values: an array [devices, *local shape], in row-major order of the mesh.
      emulated, exact: the differences to the same program in the emulation, and in double precision.
    """

    call: tuple[str, str, str]
    source: str
    place: str
    outcome: str
    loss: float
    seconds: float
    values: np.ndarray[Any, Any]
    emulated: Apart
    exact: Apart


@dataclass(frozen=True, eq=False)
class ChipRun:
    """A program that ran call by call on the simulated chip: its results, the values of all calls on the devices in
    order, the versions of ttnn, simulator and compiler of kernels, and the seconds. It shows what loses most."""

    results: Sequence[Any]
    values: Sequence[ChipValue]
    versions: str
    seconds: float

    @property
    def on_chip(self) -> list[ChipValue]:
        """The values that the chip computed; of the others, `place` says why."""
        return [v for v in self.values if v.place == CHIP]

    def worst(self, count: int = 10) -> list[ChipValue]:
        """Returns the values whose own call loses most, the largest loss first."""
        return sorted((v for v in self.values if v.loss > 0), key=lambda v: -v.loss)[:count]

    def __str__(self) -> str:
        others = Counter((v.call[0], v.place) for v in self.values if v.place != CHIP)
        notes = [shorten(f"emulated, {n} of {name}: {why}", 118) for (name, why), n in others.items()]
        if (known := trust.versions()) != self.versions:
            notes.append(f"the table of trusted calls is of {known}; this run, of {self.versions}, may differ from it")
        rows: list[tuple[str, ...]] = [("line", "operation", "rounding", "own error", "PCC, error: emulated", "exact")]
        for v in self.worst():
            far = [f"{d.pcc:.6f}  {d.largest:.1e}" for d in (v.emulated, v.exact)]
            rows.append((short_location(v.source), v.call[0], v.outcome or "emulated", f"{v.loss:.1e}", *far))
        return "\n".join([f"{self!r}, {self.versions}, {duration(self.seconds)}", *align_columns(rows), *notes])

    def __repr__(self) -> str:
        return f"ChipRun({len(self.on_chip)} of {len(self.values)} values from the simulated chip)"
