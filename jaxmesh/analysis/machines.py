"""Tenstorrent's machines: their chips, wires and published rates, each rate with its source.

Every rate is a peak, since a bound must stay below any real time, and of one device, a chip. A new machine is one
entry of `MACHINES`. Wires and places: `tests/cluster_descriptor_examples` of tt-umd, and the coordinates that
tt-metal's mesh descriptors expect. Memories: tt-mlir's system descriptors.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jaxmesh.errors import ArgumentValueError, MeshError
from jaxmesh.validate import quote

Link = tuple[int, int, int, int]
"""A wire: a chip and its channel, another chip and its channel."""

_WORMHOLE = "docs.tenstorrent.com/aibs/wormhole/specifications.html"
_BLACKHOLE = "docs.tenstorrent.com/aibs/blackhole/specifications.html"
_REPORTS = "tt-metal, tech_reports"
_BANKS = f"{_REPORTS}/Saturating_DRAM_bandwidth/Saturating_DRAM_bandwidth.md"
_ETHERNET = f"{_REPORTS}/EthernetMultichip/BasicEthernetGuide.md"


@dataclass(frozen=True, slots=True)
class Rate:
    """A number with its unit and the text that publishes it."""

    value: float
    unit: str
    source: str

    def __str__(self) -> str:
        return f"{self.value:,.10g} {self.unit} ({self.source})"


L1 = Rate(1.5 * 2**20, "bytes per core", _WORMHOLE)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A kind of chip.

    Attributes:
      name: as the libraries spell it.
      l1_for_programs: the bytes of a core's L1 that a compiled program may use.
      dram_channels: the number of DRAM channels.
      dram_channel_bytes: the bytes of each.
      grid: the rows and columns of cores that a compiled program may use.
      translation: where the coordinates of these cores begin, as the libraries translate them.
      alignments: the bytes at which transfers into L1, over PCIe, and into DRAM are aligned.
      bases: the first bytes that programs may use of a core's L1, of an Ethernet core's L1, and of a DRAM channel; and
        the end of the latter.
    """

    name: str
    l1_for_programs: int
    dram_channels: int
    dram_channel_bytes: int
    grid: tuple[int, int]
    translation: tuple[int, int]
    alignments: tuple[int, int, int]
    bases: tuple[int, int, int, int]


WORMHOLE = Architecture(
    "wormhole_b0", 1464 * 1024, 12, 2**30, (8, 8), (18, 18), (16, 32, 32), (103840, 98304, 2968640, 1073118784)
)
BLACKHOLE = Architecture(
    "blackhole", 1536 * 1024, 8, 2**32 - 2**24, (10, 11), (2, 1), (16, 64, 64), (111104, 87872, 5848704, 4276523520)
)


@dataclass(frozen=True)
class Machine:
    """A board or a system of boards.

    Attributes:
      name: what its makers call it, in small letters.
      architecture: of its chips.
      board: the type of the boards that the chips sit on.
      cores: of one device.
      clock: in cycles per second.
      dram: the bytes per second of one device's DRAM.
      harvest_mask: the rows of cores that are switched off, one bit each.
      ethernet_mask: the Ethernet cores that are, `pcie_mask` the PCIe cores, and `dram_mask` the DRAM channels.
      shape: the mesh of the devices.
      wire: the bytes per second of one Ethernet wire in one direction; None for a single device.
      links: its wires.
      boards: the chips of each board.
      hosts: the chips that the host reaches itself; it reaches the others through these.
      positions: the column and row of each chip; empty on a Galaxy, where identifiers give the place.
      is_torus: True if the sides of the mesh close to rings.
    """

    name: str
    architecture: Architecture
    board: str
    cores: Rate
    clock: Rate
    dram: Rate
    harvest_mask: int = 0
    shape: tuple[int, int] = (1, 1)
    wire: Rate | None = None
    links: tuple[Link, ...] = ()
    boards: tuple[tuple[int, ...], ...] = ((0,),)
    hosts: tuple[int, ...] = (0,)
    positions: tuple[tuple[int, int], ...] = ((0, 0),)
    is_torus: bool = False
    ethernet_mask: int = 0
    pcie_mask: int = 0
    dram_mask: int = 0

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    @cached_property
    def l1_bytes(self) -> int:
        """The bytes of all cores' memories of one device."""
        return int(self.cores.value * L1.value)

    def per_second(self, rate: Rate) -> float:
        """Returns a rate per cycle and core as one per second and device.

        >>> f"{MACHINES['n150'].per_second(Rate(4096, 'FLOPs', 'an example')) / 1e12:.1f}"
        '294.9'
        """
        return rate.value * self.cores.value * self.clock.value

    def has(self, mesh: Sequence[int]) -> bool:
        """Returns True if a mesh is a part of this one, turned, or drawn out to a line, axes of one device left out.

        A mesh of more than two axes needs enough devices alone.

        >>> [MACHINES["t3000"].has(mesh) for mesh in ((4, 2), (1, 8), (3, 3), (2, 2, 2))]
        [True, True, False, True]
        """
        axes = [n for n in mesh if n > 1]
        if len(axes) > 2:
            return math.prod(axes) <= self.devices
        rows, columns = (1, 1, *axes)[-2:]
        shapes = (self.shape, self.shape[::-1], (1, self.devices), (self.devices, 1))
        return any(rows <= r and columns <= c for r, c in shapes)

    def is_ring(self, size: int) -> bool:
        """Returns True if a mesh axis of `size` devices may close to a ring: all devices, or a side of a torus.

        >>> [MACHINES["t3000"].is_ring(n) for n in (2, 4, 8)], MACHINES["galaxy"].is_ring(4)
        ([False, False, True], True)
        """
        return size > 2 and (size == self.devices or (self.is_torus and size in self.shape))

    @property
    def dram_bytes(self) -> int:
        """The bytes of one device's DRAM."""
        return self.architecture.dram_channels * self.architecture.bases[3]

    @property
    def wires(self) -> int:
        """The number of wires between neighbours, each of which carries `wire` in both directions at once.

        >>> MACHINES["t3000"].wires, MACHINES["galaxy"].wires
        (2, 4)
        """
        return max(Counter((a, b) for a, _, b, _ in self.links).values())


# --- wires -----------------------------------------------------------------------------------------------------------


def _wires(a: int, first: int, b: int, other: int, count: int) -> Iterator[Link]:
    """Yields wires between two chips, on channels one after the other."""
    return ((a, first + i, b, other + i) for i in range(count))


def _t3000_links() -> Iterator[Link]:
    pairs = ((0, 6, 2, 6), (0, 8, 4, 0), (0, 14, 1, 14), (1, 0, 3, 0), (1, 8, 5, 0), (2, 8, 6, 0), (2, 14, 3, 14))
    for a, p, b, q in (*pairs, (3, 8, 7, 0), (4, 6, 5, 6), (6, 6, 7, 6)):
        yield from _wires(a, p, b, q, 2)


def _galaxy_links() -> Iterator[Link]:
    """Yields four wires between neighbours of a torus of two halves, of sixteen chips each."""
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


def _p150x4_links() -> Iterator[Link]:
    for a, p, b in ((0, 4, 2), (0, 8, 3), (1, 4, 3), (1, 8, 2)):
        yield from _wires(a, p, b, p, 4)


def _p150x8_links() -> Iterator[Link]:
    """Yields two wires between neighbours of a cube."""
    for half in (0, 4):
        for a, p, b, q in ((0, 4, 1, 7), (0, 6, 1, 5), (0, 5, 2, 6), (0, 7, 2, 4), (1, 4, 3, 7), (1, 6, 3, 5),
                           (2, 5, 3, 6), (2, 7, 3, 4)):  # fmt: skip
            yield a + half, p, b + half, q
    for chip in range(4):
        yield from ((chip, 8, chip + 4, 11), (chip, 10, chip + 4, 9))


def _p300x2_links() -> Iterator[Link]:
    """Yields two wires between neighbours of a square; which channels join the boards, no source tells."""
    for a in (0, 2):
        yield from ((a, 2, a + 1, 9), (a, 3, a + 1, 8))
    for a in (0, 1):
        yield from _wires(a, 4, a + 2, 4, 2)


def _blackhole_galaxy_links() -> Iterator[Link]:
    """Yields two wires between neighbours of a torus of four trays, of two rows of four chips each.

    The example also has wires between other chips.
    """
    for chip in range(32):
        tray, place = divmod(chip, 8)
        if place % 4 < 3:
            yield from _wires(chip, 4, chip + 1, 2, 2)
        if place < 4:
            yield from _wires(chip, 6, chip + 4, 0, 2)
        if tray in (0, 2):
            yield from _wires(chip, 6 * (place > 3), chip + 8, 6 * (place > 3), 2)
        if tray < 2 and place % 4 in (0, 3):
            yield from _wires(chip, 2 + 2 * (place % 4 == 3), chip + (24, 8)[tray], 2 + 2 * (place % 4 == 3), 2)


# --- the machines ----------------------------------------------------------------------------------------------------

_GHZ = Rate(1e9, "cycles per second", _WORMHOLE)
_N300_CORES = Rate(64, "cores", _WORMHOLE)
_GDDR6 = Rate(288e9, "bytes per second", _WORMHOLE)
_LINE = Rate(12.5e9, "bytes per second", _ETHERNET)
_TWO_ROWS = 0b1000000001

_QSFP = Rate(50e9, "bytes per second", _BLACKHOLE)
"""A wire of Blackholes: a port of 800 Gbit/s has two."""


def _blackhole(name: str, shape: tuple[int, int], **facts: Any) -> Machine:
    """Returns a machine of Blackholes, on boards of one chip unless it says otherwise."""
    chips = tuple(range(math.prod(shape)))
    known: dict[str, Any] = {
        "board": "p150", "cores": Rate(140, "cores", _BLACKHOLE), "boards": tuple((c,) for c in chips),
        "positions": () if len(chips) > 1 else ((0, 0),), "wire": _QSFP if len(chips) > 1 else None, "pcie_mask": 0b10,
        "architecture": BLACKHOLE, "dram": Rate(512e9, "bytes per second", _BLACKHOLE), "ethernet_mask": 0b100100000,
    }  # fmt: skip
    clock = Rate(1.35e9, "cycles per second", _BLACKHOLE)
    return Machine(name, clock=clock, shape=shape, hosts=chips, **known | facts)


BLACKHOLE_TRAY = "ubb_blackhole"
_EXAMPLES = "tt-umd, tests/cluster_descriptor_examples/blackhole_galaxy.yaml"
TWINS = "p300"
"""The machine and board type of two Blackholes, which have one address and differ in their location on the board."""
MACHINES: Mapping[str, Machine] = {
    machine.name: machine
    for machine in (
        Machine("n150", WORMHOLE, "n150", Rate(72, "cores", _WORMHOLE), _GHZ, _GDDR6, harvest_mask=0b1000000000),
        Machine(
            "n300", WORMHOLE, "n300", _N300_CORES, _GHZ, _GDDR6, _TWO_ROWS, (1, 2), _LINE,
            links=tuple(_wires(0, 8, 1, 0, 2)), boards=((0, 1),), positions=((0, 0), (1, 0)),
        ),
        Machine(
            "t3000", WORMHOLE, "n300", _N300_CORES, _GHZ, _GDDR6, _TWO_ROWS, (2, 4), _LINE, links=tuple(_t3000_links()),
            boards=((4, 0), (5, 1), (6, 2), (7, 3)), hosts=(0, 1, 2, 3),
            positions=((1, 0), (1, 1), (2, 0), (2, 1), (0, 0), (0, 1), (3, 0), (3, 1)),
        ),
        # The sources do not tell a Galaxy's: all cores that a Wormhole has, and its fastest memory.
        Machine(
            "galaxy", WORMHOLE, "ubb", Rate(80, "cores", _WORMHOLE), _GHZ, Rate(336e9, "bytes per second", _BANKS),
            0, (8, 4), _LINE, links=tuple(_galaxy_links()), boards=(tuple(range(32)),), hosts=tuple(range(32)),
            positions=(), is_torus=True,
        ),
        _blackhole(
            "p100", (1, 1), architecture=replace(BLACKHOLE, dram_channels=7), board="p100", dram_mask=0b1000,
            cores=Rate(120, "cores", _BLACKHOLE), dram=Rate(448e9, "bytes per second", _BLACKHOLE),
            harvest_mask=0b11000000, ethernet_mask=0b11111111111111,
        ),
        _blackhole("p150", (1, 1)),
        _blackhole("p150x2", (1, 2), links=tuple(_wires(0, 4, 1, 4, 4))),
        _blackhole("p150x4", (2, 2), links=tuple(_p150x4_links())),
        _blackhole("p150x8", (2, 4), links=tuple(_p150x8_links()), is_torus=True),
        _blackhole(
            TWINS, (1, 2), board=TWINS, cores=Rate(120, "cores", _BLACKHOLE), links=((0, 2, 1, 9), (0, 3, 1, 8)),
            boards=((0, 1),), harvest_mask=0b100010000,
        ),
        _blackhole(
            "p300x2", (2, 2), board=TWINS, cores=Rate(120, "cores", _BLACKHOLE), links=tuple(_p300x2_links()),
            boards=((0, 1), (2, 3)), harvest_mask=0b100010000,
        ),
        _blackhole(
            "blackhole-galaxy", (8, 4), board=BLACKHOLE_TRAY, cores=Rate(130, "cores", _EXAMPLES), harvest_mask=0b1,
            pcie_mask=0b1, links=tuple(_blackhole_galaxy_links()), boards=(tuple(range(32)),), is_torus=True,
        ),
    )
}  # fmt: skip
"""The machines by name, Wormholes from small to large; where no name is given, the first that has the mesh is taken."""


SOLD_AS = {
    "t3k": "t3000", "loudbox": "t3000", "quietbox": "t3000", "wormhole loudbox": "t3000", "wormhole quietbox": "t3000",
    "wormhole galaxy": "galaxy", "blackhole quietbox": "p150x4", "quietbox 2": "p300x2",
    "blackhole quietbox 2": "p300x2", "blackhole loudbox": "p150x8",
}  # fmt: skip
"""Further names of machines, as their maker sells them, and its documents call them."""
DEFAULT = "t3000"
"""The machine that programs are compiled for if none is named."""


def machine_named(name: object) -> Machine:
    """Returns the machine of a name, also of one in `SOLD_AS`, in any case, with spaces and hyphens or without.

    Boards may be counted first, and `TT` may precede the name.

    Raises:
      ArgumentValueError: no machine has this name.

    >>> [machine_named(name).name for name in ("T3000", "QuietBox 2", "TT-LoudBox", "2 x P150")]
    ['t3000', 'p300x2', 't3000', 'p150x2']
    """
    machine = _BY_SPELLING.get(_spelled(name)) if isinstance(name, str) else None
    if machine is None:
        raise ArgumentValueError(f"the machines are {one_of(MACHINES)}, got {quote(name)}; give the name of a machine.")
    return machine


def _spelled(name: str) -> str:
    """Returns a name in one spelling.

    >>> _spelled("TT-QuietBox (Blackhole)"), _spelled("4xP150")
    ('blackholequietbox', 'p150x4')
    """
    plain = re.sub(r"[\s_()-]", "", name.lower()).removeprefix("tt")
    plain = re.sub(r"(.+)(blackhole|wormhole)$", r"\2\1", plain)
    return re.sub(r"(\d+)x([a-z]\w*)$", r"\2x\1", plain)


_BY_SPELLING: Mapping[str, Machine] = {
    _spelled(name): MACHINES[machine] for name, machine in ({name: name for name in MACHINES} | SOLD_AS).items()
}


def machine_for(name: str | None, mesh: Sequence[int]) -> Machine:
    """Returns the machine of a name, in any case; without one, the first that has the mesh.

    Raises:
      ArgumentValueError: no machine has this name.
      MeshError: the machine does not have the mesh, or no machine has it.

    >>> [machine_for(None, mesh).name for mesh in ((1, 1), (2, 1), (2, 2), (1, 8), (4, 8), (2, 2, 2))]
    ['n150', 'n300', 't3000', 't3000', 'galaxy', 't3000']
    """
    named = None if name is None else machine_named(name)
    for machine in MACHINES.values() if named is None else (named,):
        if machine.has(mesh):
            return machine
    refusal, remedy = "no machine has", "take a mesh that is a part of one of these"
    if named is not None:
        refusal = f"{named.name} does not have"
        remedy = "name a machine that the mesh is a part of, or take another mesh"
    meshes = ", ".join(f"{m.name} {show_mesh(m.shape)}" for m in MACHINES.values())
    raise MeshError(
        f"{refusal} the mesh {show_mesh(mesh)}: there are {meshes}, also transposed or in one line; {remedy}."
    )


def one_of(names: Iterable[str]) -> str:
    """Returns the names as a choice.

    >>> one_of(["n150", "n300", "t3000"])
    'n150, n300 or t3000'
    """
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def show_mesh(mesh: Sequence[int]) -> str:
    """Returns the sizes of a mesh.

    >>> show_mesh((2, 4))
    '2x4'
    """
    return "x".join(map(str, mesh))
