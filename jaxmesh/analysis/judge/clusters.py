"""Descriptions of the clusters that stand in for a machine: an N300, a T3000 and a Galaxy, as tt-umd reads them.

A description names the chips, the boards they sit on, and which Ethernet channel of a chip is wired to which of another
one. Facts: `tests/cluster_descriptor_examples` of tt-umd, and the coordinates that tt-metal's mesh descriptors expect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxmesh.errors import MeshError

Link = tuple[int, int, int, int]
"""A wire: a chip and its channel, another chip and its channel."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A machine that is only described.

    Attributes:
      name: what its makers call it, in small letters.
      shape: its mesh.
      links: its wires.
      boards: the chips of each board.
      hosts: the chips that the host reaches itself; it reaches the others through these.
      galaxy: whether its chips sit on Galaxy's trays, else on N300 boards.
      positions: the column and row of each chip; none on a Galaxy, where identifiers give the place.
    """

    name: str
    shape: tuple[int, int]
    links: tuple[Link, ...]
    boards: tuple[tuple[int, ...], ...]
    hosts: tuple[int, ...]
    galaxy: bool = False
    positions: tuple[tuple[int, int], ...] = ()

    def has(self, mesh: Sequence[int]) -> bool:
        """Returns True if a mesh of two axes is a part of this one, turned, or drawn out to a line."""
        rows, columns = mesh
        count = math.prod(self.shape)
        shapes = (self.shape, self.shape[::-1], (1, count), (count, 1))
        return any(rows <= r and columns <= c for r, c in shapes)

    def text(self) -> str:
        """Returns the description, in YAML."""
        chips = range(math.prod(self.shape))
        positions = [f"{c}: [{x}, {y}, 0, 0]" for c, (x, y) in enumerate(self.positions)]
        wires = (f"- [{{chip: {a}, chan: {p}}}, {{chip: {b}, chan: {q}}}]" for a, p, b, q in self.links)
        board = "ubb" if self.galaxy else "n300"
        return "\n".join([
            *_section("arch", (f"{c}: wormhole_b0" for c in chips)),
            *_section("chips", positions or ["{}"]),
            *_section("chip_unique_ids", (f"{c}: {self._identifier(c)}" for c in chips)),
            *_section("ethernet_connections", wires),
            "ethernet_connections_to_remote_devices: []",
            *_section("chips_with_mmio", (f"- {c}: {c}" for c in self.hosts)),
            *_section("harvesting", (f"{c}: {self._harvesting()}" for c in chips)),
            *(_section("chip_to_bus_id", (f'{c}: "0x{_bus(c):04x}"' for c in chips)) if self.galaxy else ()),
            *_section("chip_to_boardtype", (f"{c}: {board}" for c in chips)),
            *_section("boards", (_board(number, board, members) for number, members in enumerate(self.boards))),
            "",
        ])  # fmt: skip

    def _identifier(self, chip: int) -> int:
        """A chip's number, unique; on a Galaxy its highest byte is the tray, the others a place on it."""
        if not self.galaxy:
            return 10_226_774_059 + 13 * chip
        return ((1 + chip // 4) << 56) + _PLACES[chip % 4]

    def _harvesting(self) -> str:
        # An N300's chips have two of ten rows of cores switched off, a Galaxy's here none.
        rows = 0 if self.galaxy else 0b1000000001
        off = ", ".join(f"{part}_harvesting_mask: 0" for part in ("dram", "eth", "pcie"))
        return f"{{noc_translation: true, harvest_mask: {rows}, {off}}}"


_PLACES = (0x35313930303043, 0x35313930303051, 0x35313930303056, 0x3532313030314B)
"""The lower bytes of the identifiers of the four chips in one row of a Galaxy's trays."""
_BUSES = (0xC1, 0x41, 0x01, 0x81)
"""The PCIe buses of a Galaxy's four trays."""


def _bus(chip: int) -> int:
    """The PCIe bus of a Galaxy's chip: the tray, and the place on it."""
    return _BUSES[chip % 4] + chip // 4


def _section(name: str, lines: Iterable[str]) -> list[str]:
    return [f"{name}:", *(f"  {line}" for line in lines)]


def _board(number: int, kind: str, chips: Sequence[int]) -> str:
    identifier = 72_058_994_491_928_619 + 110 * number
    return f"- [{{board_id: {identifier}}}, {{board_type: {kind}}}, {{chips: {list(chips)}}}]"


def _wires(a: int, first: int, b: int, other: int, count: int) -> Iterator[Link]:
    """Wires between two chips, on channels one after the other."""
    return ((a, first + i, b, other + i) for i in range(count))


def _t3000_links() -> Iterator[Link]:
    pairs = ((0, 6, 2, 6), (0, 8, 4, 0), (0, 14, 1, 14), (1, 0, 3, 0), (1, 8, 5, 0), (2, 8, 6, 0), (2, 14, 3, 14))
    for a, p, b, q in (*pairs, (3, 8, 7, 0), (4, 6, 5, 6), (6, 6, 7, 6)):
        yield from _wires(a, p, b, q, 2)


def _galaxy_links() -> Iterator[Link]:
    """Four wires between neighbours of a torus of two halves, of sixteen chips each."""
    for half in (0, 16):
        for chip in range(half, half + 12):
            yield from _wires(chip, 8, chip + 4, 4, 4)
        for chip in (half + 12, half + 14):
            yield from _wires(chip, 8, chip + 1, 8, 4)
    for chip in range(16):
        yield from _wires(chip, 12, chip + 16, 0, 4)
    for chip in range(16, 32, 4):
        for other in (chip, chip + 1):
            yield from _wires(other, 12, other + 2, 12, 4)


CLUSTERS = {
    cluster.name: cluster
    for cluster in (
        Cluster("n300", (1, 2), tuple(_wires(0, 8, 1, 0, 2)), ((0, 1),), (0,), positions=((0, 0), (1, 0))),
        Cluster(
            "t3000", (2, 4), tuple(_t3000_links()), ((4, 0), (5, 1), (6, 2), (7, 3)), (0, 1, 2, 3),
            positions=((1, 0), (1, 1), (2, 0), (2, 1), (0, 0), (0, 1), (3, 0), (3, 1)),
        ),
        Cluster("galaxy", (8, 4), tuple(_galaxy_links()), (tuple(range(32)),), tuple(range(32)), galaxy=True),
    )
}  # fmt: skip
"""The clusters by name, from small to large."""


def smallest_cluster(mesh: Sequence[int]) -> Cluster:
    """Returns the smallest cluster that has a mesh.

    A mesh of another number of axes than two goes to the smallest cluster with enough devices: ttnn decides
    whether it opens there.

    Raises:
      MeshError: no cluster has so many devices, or not in this form.

    >>> [smallest_cluster(mesh).name for mesh in ((1, 2), (2, 1), (2, 2), (1, 8), (4, 4), (2, 2, 2))]
    ['n300', 'n300', 't3000', 't3000', 'galaxy', 't3000']
    """
    for cluster in CLUSTERS.values():
        if cluster.has(mesh) if len(mesh) == 2 else math.prod(mesh) <= math.prod(cluster.shape):
            return cluster
    known = ", ".join(f"{c.name} {'x'.join(map(str, c.shape))}" for c in CLUSTERS.values())
    raise MeshError(
        f"no cluster has the mesh {'x'.join(map(str, mesh))}: there are {known}, also transposed or in one line; "
        "take a mesh that is a part of one of these."
    )
