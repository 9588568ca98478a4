"""Descriptions of machines for Tenstorrent's compiler: the flatbuffer `SystemDescRoot` of tt-mlir.

The schema is in tt-mlir, `include/ttmlir/Target/Common/`: `system_desc.fbs`, `types.fbs` and `version.fbs`. Fields are
numbered here as there. A compiler takes a description only with the hash of the schema that it was built with.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from jaxmesh.analysis.machines import BLACKHOLE, Machine

NO_HASH = b"0" * 64
"""Stands for the hash of the schema, which the runner puts in."""
_TILES = ((4, 16), (16, 16), (32, 16), (4, 32), (16, 32), (32, 32))
_ELEMENT_TYPES = range(13)
"""The types that devices hold: float32 to int32 in the order of `DataType`."""
_SLOT = 8
"""The bytes of a field in a table: no number or struct of the schema is longer."""


class _Packed(NamedTuple):
    """Numbers in a form of `struct`: a field of a table, or an element of a vector."""

    form: str
    values: tuple[int, ...]

    def __bytes__(self) -> bytes:
        return struct.pack(f"<{self.form}", *self.values)


class _Table(NamedTuple):
    """A table; a field is None for its default, numbers, a text, a table, or a vector of numbers or of tables."""

    fields: tuple[_Packed | str | _Table | list[_Packed] | list[_Table] | None, ...]


def describe_system(machine: Machine) -> bytes:
    """Returns the description of a machine, without the hash of a schema."""
    data = bytearray(b"\0\0\0\0\0\0\0\0TTSY")
    texts = (NO_HASH.decode(), "unknown", machine.name)
    _refer(data, 4, _Table((_Packed("2i", (0, 0)), *texts, _system(machine))))
    struct.pack_into("<I", data, 0, len(data) - 4)
    return bytes(data)


def _refer(data: bytearray, at: int, value: Any) -> None:
    """Appends a text, a vector or a table with all that it refers to, and writes at a place how far away it is."""
    data += bytes(-len(data) % _SLOT)
    start = len(data)
    match value:
        case str():
            data += struct.pack("<I", len(value)) + value.encode() + b"\0"
        case _Table(fields):
            places = [_SLOT * n for n in range(1, len(fields) + 1)]
            held = [0 if field is None else place for field, place in zip(fields, places, strict=True)]
            data += struct.pack(f"<{len(held) + 2}H", 2 * len(held) + 4, _SLOT * (len(held) + 1), *held)
            data += bytes(-len(data) % _SLOT)
            start, table = len(data), start
            data += struct.pack("<i", start - table) + bytes(_SLOT * (len(held) + 1) - 4)
            for field, place in zip(fields, places, strict=True):
                if isinstance(field, _Packed):
                    data[start + place : start + place + len(bytes(field))] = bytes(field)
                elif field is not None:
                    _refer(data, start + place, field)
        case [_Packed(), *_]:
            data += struct.pack("<I", len(value)) + b"".join(map(bytes, value))
        case _:
            data += struct.pack("<I", len(value)) + bytes(4 * len(value))
            for n, element in enumerate(value):
                _refer(data, start + 4 + 4 * n, element)
    struct.pack_into("<I", data, at, start - at)


def _rows(form: str, rows: Iterable[tuple[int, ...]]) -> list[_Packed]:
    return [_Packed(form, row) for row in rows]


# --- the tables ------------------------------------------------------------------------------------------------------


def _system(machine: Machine) -> _Table:
    """Returns a `SystemDesc`."""
    chips = range(machine.devices)
    return _Table((
        [_Table((None, "x86_64-pc-linux"))],
        [_chip(machine) for _ in chips],
        _rows("I", ((chip,) for chip in chips)),
        _rows("I", ((int(chip in machine.hosts),) for chip in chips)),
        _rows("4i", [(0, 0, 0, 0)]),
        _rows("6i", sorted(_wire(*link) for link in machine.links)),
    ))  # fmt: skip


def _chip(machine: Machine) -> _Table:
    """Returns a `ChipDesc`."""
    chip = machine.architecture
    # The workers next to the banks depend on the rows that are switched off; the compiler needs one for each.
    workers = _rows("2i", (divmod(bank, chip.grid[1]) for bank in range(chip.dram_channels)))
    return _Table((
        _Packed("I", (int(chip.name == BLACKHOLE.name),)),
        _Packed("2i", chip.grid),
        _Packed("2i", chip.translation),
        _Packed("Q", (chip.l1_for_programs,)),
        _Packed("I", (chip.dram_channels,)),
        _Packed("Q", (chip.dram_channel_bytes,)),
        *_rows("I", ((n,) for n in (*chip.alignments, *chip.bases))),
        _rows("H", ((kind,) for kind in _ELEMENT_TYPES)),
        _rows("2i", _TILES),
        *_rows("I", ((n,) for n in (16, 64, 1, 2))),
        _Packed("2i", (1, chip.dram_channels)),
        workers,
        workers,
    ))  # fmt: skip


def _wire(a: int, p: int, b: int, q: int) -> tuple[int, ...]:
    """Returns a `ChipChannel`: for either end the chip, and the channel as a place, the lower chip first."""
    (a, p), (b, q) = sorted(((a, p), (b, q)))
    return a, p, 0, b, q, 0
