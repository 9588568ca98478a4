"""Published rates of Tenstorrent's boards and systems, each with its source.

Every rate is a peak, since a bound must stay below any real time, and one device's: a chip's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxmesh.analysis.judge.clusters import CLUSTERS
from jaxmesh.errors import ArgumentValueError, MeshError
from jaxmesh.validate import quote

_WORMHOLE = "docs.tenstorrent.com/aibs/wormhole/specifications.html"
_BLACKHOLE = "docs.tenstorrent.com/aibs/blackhole/specifications.html"
_REPORTS = "tt-metal, tech_reports"
_ENGINE = f"{_REPORTS}/matrix_engine/matrix_engine.md"
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


PRODUCT = Rate(4096, "FLOPs per cycle and core at LoFi", _ENGINE)
"""A product of 8x16 by 16x16 in a cycle; a multiplication and an addition count as two."""
REDUCTION = Rate(256, "elements per cycle and core", _ENGINE)
ELEMENTWISE = Rate(128, "operations per cycle and core", _ENGINE)
L1 = Rate(1.5 * 2**20, "bytes per core", _WORMHOLE)
PHASES: Mapping[str, int] = {"LoFi": 1, "HiFi2": 2, "HiFi3": 3, "HiFi4": 4}
"""By math fidelity: how often the engine passes over a product, as the source of `PRODUCT` says."""


@dataclass(frozen=True)
class Machine:
    """A board or a system of boards.

    Attributes:
      name: what its makers call it, in small letters.
      cores: of one device.
      clock: in cycles per second.
      dram: the bytes per second of one device's DRAM.
      wire: the bytes per second of one Ethernet wire in one direction; None for a single device.
    """

    name: str
    cores: Rate
    clock: Rate
    dram: Rate
    wire: Rate | None = None

    @cached_property
    def shape(self) -> tuple[int, int]:
        """The mesh of the devices."""
        return CLUSTERS[self.name].shape if self.wire else (1, 1)

    @cached_property
    def l1_bytes(self) -> int:
        """The bytes of all cores' memories of one device."""
        return int(self.cores.value * L1.value)

    def per_second(self, rate: Rate) -> float:
        """Returns a rate per cycle and core as one per second and device.

        >>> f"{MACHINES['n150'].per_second(PRODUCT) / 1e12:.1f}"
        '294.9'
        """
        return rate.value * self.cores.value * self.clock.value

    def has(self, mesh: Sequence[int]) -> bool:
        """Returns True if a mesh fits, axes of one device left out."""
        axes = [n for n in mesh if n > 1]
        if self.wire is None or len(axes) > 2:
            return math.prod(axes) <= math.prod(self.shape)
        rows, columns = (1, 1, *axes)[-2:]
        return CLUSTERS[self.name].has((rows, columns))

    def is_ring(self, size: int) -> bool:
        """Returns True if a mesh axis of `size` devices may close to a ring: all devices, or a side of a torus.

        >>> [MACHINES["t3000"].is_ring(n) for n in (2, 4, 8)], MACHINES["galaxy"].is_ring(4)
        ([False, False, True], True)
        """
        cluster = CLUSTERS[self.name]
        return size > 2 and (size == math.prod(cluster.shape) or (cluster.galaxy and size in cluster.shape))

    def wires(self, size: int) -> int:
        """Returns how many wires bring data to a device along a mesh axis of `size` devices.

        On a ring, they are those of two neighbours; on a line, the device at its end has one, and all others wait.

        >>> MACHINES["t3000"].wires(4), MACHINES["t3000"].wires(8), MACHINES["galaxy"].wires(4)
        (2, 4, 8)
        """
        between = max(Counter((a, b) for a, _, b, _ in CLUSTERS[self.name].links).values())
        return between * (2 if self.is_ring(size) else 1)

    def sources(self) -> list[str]:
        """Returns the rates as lines of text."""
        rates = {
            "cores": self.cores, "clock": self.clock, "products": PRODUCT, "reductions": REDUCTION,
            "elementwise": ELEMENTWISE, "L1": L1, "DRAM": self.dram, "a wire, in one direction": self.wire,
        }  # fmt: skip
        return [f"{name}: {rate}" for name, rate in rates.items() if rate]


_GHZ = Rate(1e9, "cycles per second", _WORMHOLE)
_N300 = Rate(64, "cores", _WORMHOLE)
_GDDR6 = Rate(288e9, "bytes per second", _WORMHOLE)
_LINE = Rate(12.5e9, "bytes per second", _ETHERNET)

MACHINES: Mapping[str, Machine] = {
    machine.name: machine
    for machine in (
        Machine("n150", Rate(72, "cores", _WORMHOLE), _GHZ, _GDDR6),
        Machine("n300", _N300, _GHZ, _GDDR6, _LINE),
        Machine("t3000", _N300, _GHZ, _GDDR6, _LINE),
        # The sources do not tell a Galaxy's: all cores that a Wormhole has, and its fastest memory.
        Machine("galaxy", Rate(80, "cores", _WORMHOLE), _GHZ, Rate(336e9, "bytes per second", _BANKS), _LINE),
        Machine(
            "p150",
            Rate(140, "cores", _BLACKHOLE),
            Rate(1.35e9, "cycles per second", _BLACKHOLE),
            Rate(512e9, "bytes per second", _BLACKHOLE),
        ),
    )
}
"""The machines by name, those of Wormholes from small to large."""


def machine_for(name: str | None, mesh: Sequence[int]) -> Machine:
    """Returns the machine of a name; without one, the smallest of Wormholes that has the mesh.

    Raises:
      ArgumentValueError: no machine has this name.
      MeshError: the machine does not have the mesh.

    >>> [machine_for(None, mesh).name for mesh in ((1, 1), (1, 2), (2, 4), (4, 8), (2, 2, 2))]
    ['n150', 'n300', 't3000', 'galaxy', 't3000']
    """
    if name is not None and (not isinstance(name, str) or name not in MACHINES):
        raise ArgumentValueError(f"estimate takes a cluster of {', '.join(MACHINES)}, got {quote(name)}.")
    machines = list(MACHINES.values())
    for machine in machines if name is None else [MACHINES[name]]:
        if machine.has(mesh):
            return machine
    which = "no cluster has" if name is None else f"{name} does not have"
    known = ", ".join(f"{m.name} {_by(m.shape)}" for m in machines)
    raise MeshError(
        f"{which} the mesh {_by(mesh)}: there are {known}, which also turn, and lie in one line; name a cluster that "
        "the mesh is a part of, or take another mesh."
    )


def _by(mesh: Sequence[int]) -> str:
    return "x".join(map(str, mesh))
