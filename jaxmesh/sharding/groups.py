"""Groups of devices, as collectives name them, and the mesh axes that they run along."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence


def axes_of_groups(groups: Sequence[Sequence[int]], sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """Returns the axes that groups of devices run along, the most significant first; None for other groups.

    Args:
      groups: the numbers of devices, row-major over the axes.
      sizes: the axes that the devices are numbered over, with their sizes.

    >>> axes_of_groups([[0, 1], [2, 3]], {"y": 2, "x": 2}), axes_of_groups([[0, 2], [1, 3]], {"y": 2, "x": 2})
    (('x',), ('y',))
    >>> axes_of_groups([[0, 1], [2, 3]], {"x": 4}) is None
    True
    """
    found, names = [[*map(int, group)] for group in groups], list(sizes)
    numbers = [*itertools.product(*map(range, sizes.values()))]
    for axes in itertools.chain(*(itertools.permutations(names, n) for n in range(len(names) + 1))):
        if math.prod(sizes[a] for a in axes) != len(found[0]):
            continue
        rest = [a for a in names if a not in axes]
        order = [names.index(a) for a in (*rest, *axes)]
        rows = sorted(range(len(numbers)), key=lambda i: [numbers[i][d] for d in order])
        if [rows[i : i + len(found[0])] for i in range(0, len(rows), len(found[0]))] == found:
            return axes
    return None


def of_no_axes(groups: object, sizes: Mapping[str, int]) -> str:
    """Returns why a collective among groups of devices lacks a text, and the remedy."""
    return (
        f"among the groups of devices {groups}, which do not correspond to axes of the mesh {dict(sizes)}; a text has "
        "collectives along whole axes; split an axis of the mesh into two, so that the groups run along one of these"
    )
