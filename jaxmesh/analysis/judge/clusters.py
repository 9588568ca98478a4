"""Descriptions of the clusters that stand in for a machine, as tt-umd reads them.

A description names the chips, the boards they sit on, and which Ethernet channel of a chip is wired to which of another
one. ttnn builds its devices from it without hardware.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from jaxmesh.analysis.machines import MACHINES, Machine, show_mesh, show_meshes
from jaxmesh.errors import MeshError

CLUSTERS: Mapping[str, Machine] = {name: machine for name, machine in MACHINES.items() if machine.links}
"""The machines that ttnn can be told to find: of several chips."""


def smallest_cluster(mesh: Sequence[int]) -> Machine:
    """Returns the smallest cluster that has a mesh.

    A mesh of another number of axes than two goes to the smallest cluster with enough devices: ttnn decides
    whether it opens there.

    Raises:
      MeshError: no cluster has so many devices, or not in this form.

    >>> [smallest_cluster(mesh).name for mesh in ((1, 2), (2, 1), (2, 2), (1, 8), (4, 4), (2, 2, 2))]
    ['n300', 'n300', 't3000', 't3000', 'galaxy', 't3000']
    """
    for cluster in CLUSTERS.values():
        if cluster.has(mesh) if len(mesh) == 2 else math.prod(mesh) <= cluster.devices:
            return cluster
    raise MeshError(
        f"no cluster has the mesh {show_mesh(mesh)}: there are {show_meshes(CLUSTERS.values())}, also transposed or in "
        "one line; take a mesh that is a part of one of these."
    )


def describe_cluster(machine: Machine) -> str:
    """Returns the description of a machine, in YAML."""
    chips = range(machine.devices)
    positions = [f"{c}: [{x}, {y}, 0, 0]" for c, (x, y) in enumerate(machine.positions)]
    wires = (f"- [{{chip: {a}, chan: {p}}}, {{chip: {b}, chan: {q}}}]" for a, p, b, q in machine.links)
    on_trays = machine.board == _TRAY
    return "\n".join([
        *_section("arch", (f"{c}: {machine.architecture.name}" for c in chips)),
        *_section("chips", positions or ["{}"]),
        *_section("chip_unique_ids", (f"{c}: {_tray_identifier(c) if on_trays else _identifier(c)}" for c in chips)),
        *_section("ethernet_connections", wires),
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
    off = ", ".join(f"{part}_harvesting_mask: 0" for part in ("dram", "eth", "pcie"))
    return f"{{noc_translation: true, harvest_mask: {machine.harvest_mask}, {off}}}"


def _section(name: str, lines: Iterable[str]) -> list[str]:
    return [f"{name}:", *(f"  {line}" for line in lines)]


def _board(number: int, board: str, chips: Sequence[int]) -> str:
    identifier = 72_058_994_491_928_619 + 110 * number
    return f"- [{{board_id: {identifier}}}, {{board_type: {board}}}, {{chips: {list(chips)}}}]"
