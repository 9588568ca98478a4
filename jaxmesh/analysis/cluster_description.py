"""Descriptions of machines for tt-umd, in YAML; ttnn builds its devices from one without hardware.

A description names the chips, their boards, and the Ethernet wires between channels of chips.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxmesh.analysis.machines import BLACKHOLE_TRAY, TWINS, Machine


def describe_cluster(machine: Machine) -> str:
    """Returns the description of a machine, in YAML."""
    chips = range(machine.devices)
    positions = [f"{c}: [{x}, {y}, 0, 0]" for c, (x, y) in enumerate(machine.positions)]
    wires = [f"- [{{chip: {a}, chan: {p}}}, {{chip: {b}, chan: {q}}}]" for a, p, b, q in machine.links]
    on_trays = machine.board == _TRAY
    # The highest byte of a Galaxy's identifier is the tray, the others are a place on it; so it is with its PCIe bus.
    identifiers = [((1 + c // 4) << 56) + _PLACES[c % 4] if on_trays else 10_226_774_059 + 13 * c for c in chips]
    return "\n".join([
        *_section("arch", (f"{c}: {machine.architecture.name}" for c in chips)),
        *_section("chips", positions or ["{}"]),
        *_section("chip_unique_ids", (f"{c}: {identifier}" for c, identifier in enumerate(identifiers))),
        *_section("ethernet_connections", wires or ["[]"]),
        "ethernet_connections_to_remote_devices: []",
        *_section("chips_with_mmio", (f"- {c}: {c}" for c in machine.hosts)),
        *_section("harvesting", (f"{c}: {_harvesting(machine, c)}" for c in chips)),
        *_section("chip_to_bus_id", _buses(machine)),
        *_section("chip_to_boardtype", (f"{c}: {machine.board}" for c in chips)),
        *_section("asic_locations", _locations(machine)),
        *_section("boards", (_board(n, machine.board, members) for n, members in enumerate(machine.boards))),
        "",
    ])  # fmt: skip


_TRAY = "ubb"
"""The board type of a Galaxy's trays."""
_PLACES = (0x35313930303043, 0x35313930303051, 0x35313930303056, 0x3532313030314B)
"""The lower bytes of the identifiers of the four chips in one row of a Galaxy's trays."""
_BUSES = (0xC1, 0x41, 0x01, 0x81)
"""The PCIe buses of a Galaxy's four trays."""


def _buses(machine: Machine) -> list[str]:
    """Returns the PCIe buses of a Galaxy's chips."""
    if machine.board == BLACKHOLE_TRAY:
        return [f'{c}: "0x{0x40 * (c // 8) + 1 + c % 8:02x}"' for c in range(machine.devices)]
    return [f'{c}: "0x{_BUSES[c % 4] + c // 4:04x}"' for c in range(machine.devices if machine.board == _TRAY else 0)]


def _locations(machine: Machine) -> list[str]:
    """Returns the places of chips on boards and trays that have several with one address."""
    if machine.board == BLACKHOLE_TRAY:
        return [f"{chip}: {1 + chip % 8}" for chip in range(machine.devices)]
    boards = machine.boards if machine.board == TWINS else ()
    return [f"{chip}: {place}" for board in boards for place, chip in enumerate(board)]


def _harvesting(machine: Machine, chip: int) -> str:
    # The second chip of a board of two has its PCIe core on the other side.
    pcie = machine.pcie_mask >> (chip % 2 if machine.board == TWINS else 0)
    masks = {"dram": machine.dram_mask, "eth": machine.ethernet_mask, "pcie": pcie}
    off = ", ".join(f"{part}_harvesting_mask: {mask}" for part, mask in masks.items())
    return f"{{noc_translation: true, harvest_mask: {machine.harvest_mask}, {off}}}"


def _section(name: str, lines: Iterable[str]) -> list[str]:
    """Returns a section; nothing without lines."""
    found = [f"  {line}" for line in lines]
    return [f"{name}:", *found] if found else []


def _board(number: int, board: str, chips: Sequence[int]) -> str:
    identifier = 72_058_994_491_928_619 + 110 * number
    return f"- [{{board_id: {identifier}}}, {{board_type: {board}}}, {{chips: {list(chips)}}}]"
