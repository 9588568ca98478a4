"""The values of a right text, for the diagnosis of the next text that the compiler made of it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from jaxmesh.analysis.diagnose.replay import Replay
from jaxmesh.analysis.diagnose.rounding import EXACT, error_of, rounding_unit, tolerance
from jaxmesh.analysis.diagnose.stage import Array, Copies
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.dialects.program import Op

_SAMPLE, _MOST = 16, 6
"""How many elements of a device are compared before all, and how many operations may be the wrong one."""
_NEAR = 0.05
"""How far elements of a sample may differ, relative to the largest."""


class EarlierText:
    """The values that devices hold in a right text."""

    def __init__(self, track: Track) -> None:
        program, replay = track.stage.text.program, Replay.of(track.stage, track.placed)
        self._by_size = defaultdict[int, list[tuple[Array, Copies]]](list)
        for value in (v for op in program.ops for v in op.results if program.types[v].kind == "tensor"):
            copies = replay.copies(value)
            self._by_size[copies[min(copies)].size].append((_sample(copies), copies))

    def has(self, copies: Copies) -> bool:
        """Returns True if the devices hold a value up to rounding, in any shape with its order."""
        rows, sample = self._by_size.get(copies[min(copies)].size, ()), _sample(copies)
        scale = np.max(np.abs(sample), initial=0.0, where=np.isfinite(sample))
        with np.errstate(invalid="ignore"):
            near = [other for known, other in rows if not (np.abs(known - sample) > _NEAR * scale).any()]
        return any(_are_alike(copies, other) for other in near)

    def lacks(self, rows: Iterable[tuple[int, Op]], replay: Replay) -> list[tuple[int, Op]]:
        """Returns the first of some operations of the next text whose results the devices do not hold here."""
        new = (row for row in rows if not all(self.has(replay.copies(v)) for v in row[1].results))
        return list(itertools.islice(new, _MOST))


def _sample(copies: Copies) -> Array:
    first = copies[min(copies)].reshape(-1)
    return first[:: max(1, first.size // _SAMPLE)].astype(np.float64)


def _are_alike(copies: Copies, other: Copies) -> bool:
    """Returns True if two values are equal up to the rounding of the narrower type, on every device."""
    return copies.keys() == other.keys() and all(_is_near(x, other[c]) for c, x in copies.items())


def _is_near(x: Array, y: Array) -> bool:
    unit = max([EXACT, *(rounding_unit(z.dtype) for z in (x, y))])
    found, wanted = (z.reshape(-1).astype(np.float64) for z in (x, y))
    return error_of(found, wanted, float(np.max(np.abs(wanted), initial=0.0))) <= tolerance(unit, unit)
