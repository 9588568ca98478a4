"""Descriptions of the clusters that stand in for a machine, as tt-umd reads them.

A description names the chips, the boards they sit on, and which Ethernet channel of a chip is wired to which of another
one. ttnn builds its devices from it without hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxmesh.analysis.machines import Machine


def describe_cluster(machine: Machine) -> str:
    """Returns the description of a machine, in YAML."""
    chips = range(machine.devices)
    positions = [f"{c}: [{x}, {y}, 0, 0]" for c, (x, y) in enumerate(machine.positions)]
    wires = [f"- [{{chip: {a}, chan: {p}}}, {{chip: {b}, chan: {q}}}]" for a, p, b, q in machine.links]
    on_trays = machine.board == _TRAY
    return "\n".join([
        *_section("arch", (f"{c}: {machine.architecture.name}" for c in chips)),
        *_section("chips", positions or ["{}"]),
        *_section("chip_unique_ids", (f"{c}: {_tray_identifier(c) if on_trays else _identifier(c)}" for c in chips)),
        *_section("ethernet_connections", wires or ["[]"]),
        "ethernet_connections_to_remote_devices: []",
        *_section("chips_with_mmio", (f"- {c}: {c}" for c in machine.hosts)),
        *_section("harvesting", (f"{c}: {_harvesting(machine)}" for c in chips)),
        *(_section("chip_to_bus_id", (f'{c}: "0x{_bus(c):04x}"' for c in chips)) if on_trays else ()),
        *_section("chip_to_boardtype", (f"{c}: {machine.board}" for c in chips)),
        *_section("boards", (_board(n, machine.board, members) for n, members in enumerate(machine.boards))),
        "",
    ])  # fmt: skip


_TRAY = "ubb"
"""The board type of a Galaxy's trays."""
_PLACES = (0x35313930303043, 0x35313930303051, 0x35313930303056, 0x3532313030314B)
"""The lower bytes of the identifiers of the four chips in one row of a Galaxy's trays."""
_BUSES = (0xC1, 0x41, 0x01, 0x81)
"""The PCIe buses of a Galaxy's four trays."""


def _identifier(chip: int) -> int:
    """Returns a chip's unique number."""
    return 10_226_774_059 + 13 * chip


def _tray_identifier(chip: int) -> int:
    """Returns the unique number of a Galaxy's chip: its highest byte is the tray, the others a place on it."""
    return ((1 + chip // 4) << 56) + _PLACES[chip % 4]


def _bus(chip: int) -> int:
    """Returns the PCIe bus of a Galaxy's chip: the tray, and the place on it."""
    return _BUSES[chip % 4] + chip // 4


def _harvesting(machine: Machine) -> str:
    masks = {"dram": 0, "eth": machine.ethernet_mask, "pcie": machine.pcie_mask}
    off = ", ".join(f"{part}_harvesting_mask: {mask}" for part, mask in masks.items())
    return f"{{noc_translation: true, harvest_mask: {machine.harvest_mask}, {off}}}"


def _section(name: str, lines: Iterable[str]) -> list[str]:
    return [f"{name}:", *(f"  {line}" for line in lines)]


def _board(number: int, board: str, chips: Sequence[int]) -> str:
    identifier = 72_058_994_491_928_619 + 110 * number
    return f"- [{{board_id: {identifier}}}, {{board_type: {board}}}, {{chips: {list(chips)}}}]"
