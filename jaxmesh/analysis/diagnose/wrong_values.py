"""The elements of a value on the devices that differ from the unsharded run, and their correlation."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmesh.analysis.diagnose.matching import Globals
from jaxmesh.analysis.diagnose.rounding import as_numbers
from jaxmesh.analysis.diagnose.stage import Array, Coordinate, Copies
from jaxmesh.analysis.record.metrics import pcc_of_parts
from jaxmesh.frontends.stablehlo.shardings import Sharding, local_shape


@dataclass(frozen=True, slots=True)
class WrongElements:
    """The wrong elements of one device.

    Attributes:
      device: its mesh coordinate.
      count: their number, of `size` elements.
      box: the smallest box around them, start and stop of each local dim.
      index: the element with the largest difference, in the local value.
      found: the number there.
      wanted: the number that should be there.
    """

    device: Coordinate
    count: int
    size: int
    box: tuple[tuple[int, int], ...]
    index: tuple[int, ...]
    found: float
    wanted: float

    @property
    def shown_box(self) -> str:
        """The box, as slices."""
        return ", ".join(f"{a}:{b}" for a, b in self.box)

    @property
    def text(self) -> str:
        """The wrong elements, without the device."""
        return (
            f"{self.count} of {self.size} elements, in [{self.shown_box}]; at {list(self.index)} is {self.found:.6g}, "
            f"should be {self.wanted:.6g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the elements as data; numbers that are not finite are None."""
        found, wanted = (x if math.isfinite(x) else None for x in (self.found, self.wanted))
        rows = {"device": list(self.device), "count": self.count, "size": self.size, "index": list(self.index)}
        return {**rows, "box": [list(row) for row in self.box], "found": found, "wanted": wanted}

    def __str__(self) -> str:
        return f"device {self.device}: {self.text}"


@dataclass(frozen=True, slots=True)
class WrongValue:
    """A value on the devices beside the global value that it should be.

    Attributes:
      wanted: the global value of the unsharded run.
      placement: the placement with the fewest wrong elements.
      found: the value of each device.
      blocks: the value that each device should hold.
      wrong: the wrong elements of each device, as booleans.
    """

    wanted: Array
    placement: Sharding
    found: Copies
    blocks: Copies
    wrong: Copies

    @property
    def devices(self) -> tuple[Coordinate, ...]:
        """The mesh coordinates of the devices with wrong elements."""
        return tuple(c for c, wrong in self.wrong.items() if wrong.any())

    @property
    def pcc(self) -> float:
        """The correlation over all devices, as Tenstorrent's tools report it."""
        places = {c: (self._place(self.found[c]), self._place(self.blocks[c])) for c in self.found}
        # Devices with one array count once where as many devices have each.
        even = len(set(Counter(places.values()).values())) == 1 and not self.devices
        devices = list({place: c for c, place in places.items()}.values() if even else self.found)
        value, defined = pcc_of_parts([(self.blocks[c], self.found[c]) for c in devices])
        # The correlation of constants is not defined.
        return value if defined or self.devices else 1.0

    @staticmethod
    def _place(x: Array) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        return int(x.__array_interface__["data"][0]), x.shape, x.strides

    def elements(self) -> tuple[WrongElements, ...]:
        """Returns the wrong elements of each device that has some."""
        return tuple(self._of_device(c) for c in self.devices)

    def _of_device(self, device: Coordinate) -> WrongElements:
        wrong, found, wanted = self.wrong[device], self.found[device], self.blocks[device]
        at = [
            np.flatnonzero(np.moveaxis(wrong, d, 0).reshape(n, -1).any(1)).tolist() for d, n in enumerate(wrong.shape)
        ]
        box = tuple((min(positions), max(positions) + 1) for positions in at)
        with np.errstate(invalid="ignore"):
            gap = np.abs(np.asarray(found, np.complex128) - np.asarray(wanted, np.complex128))
        gap = np.where(wrong, np.nan_to_num(gap, nan=np.inf), -1.0)
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(gap)), gap.shape))
        elements: tuple[Any, Any] = found[index], wanted[index]
        numbers = float(elements[0].real), float(elements[1].real)
        return WrongElements(device, int(wrong.sum()), int(wrong.size), box, index, *numbers)


def compare_with(pool: Globals, copies: Copies, number: int, rounding: float) -> WrongValue | None:
    """Compares a value on the devices with a global value; None if no placement has shards of its size."""
    once = {id(x): as_numbers(x) for x in copies.values()}
    found = {c: once[id(x)] for c, x in copies.items()}
    wanted, first = as_numbers(pool.arrays[number]), next(iter(found.values()))
    limit, scale = pool.limit(number, rounding, 0.0), pool.scale(number)
    best: tuple[int, WrongValue] | None = None
    apart = tuple((a,) for a in pool.apart.get(number, ()))
    shaped_alike = list(pool.placements(number, first.shape))
    for placement in shaped_alike or pool.placements(number, first.shape, any_shape=True):
        local = local_shape(pool.shape(number), placement, pool.mesh)
        shaped = {c: x.reshape(local) for c, x in found.items()}
        blocks = {c: pool.block(number, placement, c, wanted) for c in found}
        wrong = {c: _differs(x, blocks[c], limit, scale) for c, x in shaped.items()}
        count = sum(int(w.sum()) for w in wrong.values())
        if best is None or count < best[0]:
            best = count, WrongValue(wanted, (*apart, *placement), shaped, blocks, wrong)
    return None if best is None else best[1]


def compare_parts(found: Copies, right: Copies, rounding: float) -> WrongValue | None:
    """Compares a value on the devices with what each should hold; None if the shapes differ."""
    pairs = {c: (as_numbers(found[c]), as_numbers(x)) for c, x in right.items()}
    if any(x.shape != y.shape for x, y in pairs.values()):
        return None
    wrong = {
        c: _differs(x, y, max(_ROUNDINGS * rounding, _LEAST), float(np.abs(y).max(initial=0)))
        for c, (x, y) in pairs.items()
    }
    shards, blocks = {c: x for c, (x, _) in pairs.items()}, {c: y for c, (_, y) in pairs.items()}
    first = blocks[min(blocks)]
    return WrongValue(first, ((),) * first.ndim, shards, blocks, wrong)


_ROUNDINGS, _LEAST = 8, 1e-6
"""How many rounding units of the largest number two parts may differ, and at least which part of it."""


def _differs(found: Array, wanted: Array, limit: float, scale: float) -> Array:
    with np.errstate(invalid="ignore"):
        if found.dtype.kind not in "fc":
            return found != wanted
        far = limit * np.maximum(np.abs(wanted), scale)
        return ~((np.abs(found - wanted) <= far) | (found == wanted) | (np.isnan(found) & np.isnan(wanted)))
