"""Descriptions of machines for Tenstorrent's compiler: the flatbuffer `SystemDescRoot` of tt-mlir.

The schema is in tt-mlir, `include/ttmlir/Target/Common/`: `system_desc.fbs`, `types.fbs` and `version.fbs`. Fields are
numbered here as there. A compiler takes a description only with the hash of the schema that it was built with.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from jaxmesh.analysis.machines import BLACKHOLE, Machine
from jaxmesh.errors import UpstreamError

NO_HASH = b"0" * 64
"""Stands for the hash of the schema, which the runner puts in."""
_TILES = ((4, 16), (16, 16), (32, 16), (4, 32), (16, 32), (32, 32))
_ELEMENT_TYPES = range(13)
"""The types that devices hold: float32 to int32 in the order of `DataType`."""


def describe_system(machine: Machine) -> bytes:
    """Returns the description of a machine, without the hash of a schema.

    Raises:
      UpstreamError: the package flatbuffers is not installed.
    """
    return _DescriptionWriter().root(machine)


def _builder() -> Any:
    try:
        return importlib.import_module("flatbuffers").Builder(1024)
    except ImportError:
        raise UpstreamError(
            "a description of a machine for Tenstorrent's compiler is a flatbuffer; install the package that writes it "
            "with `pip install 'jaxmesh[upstream]'` (or `pip install flatbuffers`)."
        ) from None


class _DescriptionWriter:
    """Writes one description; a flatbuffer is written from its leaves to its root."""

    def __init__(self) -> None:
        self.b = _builder()

    def table(self, *fields: tuple[str, Any] | None) -> int:
        """Writes a table of fields, each a kind and a value; None leaves a field at its default."""
        b = self.b
        b.StartObject(len(fields))
        for number, field in enumerate(fields):
            match field:
                case None:
                    pass
                case ("offset", value):
                    b.PrependUOffsetTRelativeSlot(number, value, 0)
                case ("point", (y, x)):
                    b.PrependStructSlot(number, self.words(y, x), 0)
                case ("version", patch):
                    b.PrependStructSlot(number, self.words(0, patch), 0)
                case (kind, value):
                    getattr(b, f"Prepend{kind}Slot")(number, value, 0)
        return b.EndObject()

    def words(self, *values: int) -> int:
        """Writes a struct of 32-bit integers."""
        self.b.Prep(4, 4 * len(values))
        for value in reversed(values):
            self.b.PrependInt32(value)
        return self.b.Offset()

    def vector(self, size: int, count: int, write: Callable[[int], Any]) -> tuple[str, int]:
        """Writes a vector of elements of `size` bytes; `write` writes the element of an index."""
        self.b.StartVector(size, count, min(size, 4))
        for index in reversed(range(count)):
            write(index)
        return "offset", self.b.EndVector()

    def offsets(self, values: Sequence[int]) -> tuple[str, int]:
        return self.vector(4, len(values), lambda i: self.b.PrependUOffsetTRelative(values[i]))

    def integers(self, values: Sequence[int]) -> tuple[str, int]:
        return self.vector(4, len(values), lambda i: self.b.PrependUint32(values[i]))

    def points(self, values: Sequence[tuple[int, int]]) -> tuple[str, int]:
        return self.vector(8, len(values), lambda i: self.words(*values[i]))

    def text(self, value: str) -> tuple[str, int]:
        return "offset", self.b.CreateString(value)

    # --- the tables ---------------------------------------------------------------------------------------------------

    def root(self, machine: Machine) -> bytes:
        texts = [self.text(t) for t in (NO_HASH.decode(), "unknown", machine.name)]
        root = self.table(("version", 0), *texts, ("offset", self.system(machine)))
        self.b.FinishSizePrefixed(root, b"TTSY")
        return bytes(self.b.Output())

    def system(self, machine: Machine) -> int:
        wires = sorted(_wire(*link) for link in machine.links)
        host = self.table(None, self.text("x86_64-pc-linux"))
        chips = [self.chip(machine) for _ in range(machine.devices)]
        return self.table(
            self.offsets([host]),
            self.offsets(chips),
            self.integers(range(machine.devices)),
            self.integers([int(chip in machine.hosts) for chip in range(machine.devices)]),
            self.vector(16, 1, lambda _: self.words(0, 0, 0, 0)),
            self.vector(24, len(wires), lambda i: self.words(*wires[i])),
        )

    def chip(self, machine: Machine) -> int:
        """Writes a `ChipDesc`."""
        chip = machine.architecture
        types = self.vector(2, len(_ELEMENT_TYPES), lambda i: self.b.PrependUint16(_ELEMENT_TYPES[i]))
        tiles = self.points(_TILES)
        # The workers next to the banks depend on the rows that are switched off; the compiler needs one for each.
        workers = [divmod(bank, chip.grid[1]) for bank in range(chip.dram_channels)]
        first, second = self.points(workers), self.points(workers)
        unsigned = [("Uint32", n) for n in (*chip.alignments, *chip.bases)]
        return self.table(
            ("Uint32", int(chip == BLACKHOLE)),
            ("point", chip.grid),
            ("point", chip.translation),
            ("Uint64", chip.l1_for_programs),
            ("Uint32", chip.dram_channels),
            ("Uint64", chip.dram_channel_bytes),
            *unsigned,
            types,
            tiles,
            *(("Uint32", n) for n in (16, 64, 1, 2)),
            ("point", (1, chip.dram_channels)),
            first,
            second,
        )


def _wire(a: int, p: int, b: int, q: int) -> tuple[int, ...]:
    """Returns a `ChipChannel`: for either end the chip, and the channel as a place, the lower chip first."""
    (a, p), (b, q) = sorted(((a, p), (b, q)))
    return a, p, 0, b, q, 0
