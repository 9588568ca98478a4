"""Descriptions of machines for the compiler, read again field by field from their bytes."""

from __future__ import annotations

import struct
import sys
from typing import Any

import pytest

from jaxmesh.analysis.machines import MACHINES
from jaxmesh.analysis.upstream.descriptors import NO_HASH, describe_system


class Reader:
    """Reads tables, vectors and structs of a flatbuffer, by the format's specification."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def get(self, form: str, at: int) -> Any:
        values = struct.unpack_from(f"<{form}", self.data, at)
        return values[0] if len(values) == 1 else values

    def follow(self, at: int) -> int:
        return at + self.get("I", at)

    def table(self, at: int) -> list[int | None]:
        start = self.follow(at)
        fields = start - self.get("i", start)
        offsets = [self.get("H", fields + i) for i in range(4, self.get("H", fields), 2)]
        return [start + offset if offset else None for offset in offsets]

    def vector(self, at: int | None, form: str) -> list[Any]:
        assert at is not None
        start, size = self.follow(at), struct.calcsize(f"<{form}")
        return [self.get(form, start + 4 + i * size) for i in range(self.get("I", start))]

    def tables(self, at: int | None) -> list[list[int | None]]:
        assert at is not None
        start = self.follow(at)
        return [self.table(start + 4 + 4 * i) for i in range(self.get("I", start))]


@pytest.mark.parametrize("name", MACHINES)
def test_a_description_holds_the_machine(name: str) -> None:
    machine, data = MACHINES[name], describe_system(MACHINES[name])
    reader = Reader(data)
    assert (reader.get("I", 0), data[8:12], data.count(NO_HASH)) == (len(data) - 4, b"TTSY", 1)
    system = reader.table(reader.table(4)[4] or 0)
    chips = reader.tables(system[1])
    assert len(chips) == machine.devices
    assert reader.vector(system[2], "I") == list(range(machine.devices))
    assert reader.vector(system[3], "I") == [int(chip in machine.hosts) for chip in range(machine.devices)]
    wires = {tuple(sorted(((a, p), (b, q)))) for a, p, b, q in machine.links}
    assert {((a, p), (b, q)) for a, p, _, b, q, _ in reader.vector(system[5], "IiiIii")} == wires
    arch = machine.architecture
    for chip in chips:
        # Wormhole is 0, the default, and so is left out.
        assert (reader.get("I", chip[0]) if chip[0] else 0) == int(arch.name == "blackhole")
        assert reader.get("ii", chip[1] or 0) == arch.grid
        assert reader.get("Q", chip[3] or 0) == arch.l1_for_programs
        assert (reader.get("I", chip[4] or 0), reader.get("Q", chip[5] or 0)) == (
            arch.dram_channels,
            arch.dram_channel_bytes,
        )
        assert tuple(reader.get("I", at or 0) for at in chip[6:13]) == (*arch.alignments, *arch.bases)
        assert (32, 32) in reader.vector(chip[14], "ii")
        workers = reader.vector(chip[20], "ii")
        rows, columns = arch.grid
        assert len(set(workers)) == arch.dram_channels
        assert all(y < rows and x < columns for y, x in workers)


def test_a_description_needs_no_further_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    assert NO_HASH in describe_system(MACHINES["n150"])
