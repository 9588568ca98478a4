"""Groups of devices, as collectives name them, and the mesh axes that they run along."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence


def axes_of_groups(
    groups: Sequence[Sequence[int]], sizes: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[int, ...] | None] | None:
    """Returns the axes that groups of devices run along, the most significant first, and the order within each group.

    The order is the place along the axes of each device of a group: empty if devices are in the order of the axes, None
    if groups differ. Of other groups the function returns None. The groups themselves may be in any order.

    Args:
      groups: the numbers of devices, row-major over the axes.
      sizes: the axes that the devices are numbered over, with their sizes.

    >>> axes_of_groups([[0, 1], [2, 3]], {"y": 2, "x": 2}), axes_of_groups([[3, 1], [2, 0]], {"y": 2, "x": 2})
    ((('x',), ()), (('y',), (1, 0)))
    >>> axes_of_groups([[0, 1], [2, 3]], {"x": 4}) is None
    True
    """
    found, names, near = [[*map(int, group)] for group in groups], list(sizes), None
    numbers = [*itertools.product(*map(range, sizes.values()))]
    for axes in itertools.chain(*(itertools.permutations(names, n) for n in range(len(names) + 1))):
        size = math.prod(sizes[a] for a in axes)
        order = [names.index(a) for a in (*(a for a in names if a not in axes), *axes)]
        devices = sorted(range(len(numbers)), key=lambda i: [numbers[i][d] for d in order])
        rows = {frozenset(row): row for row in (devices[i : i + size] for i in range(0, len(devices), size))}
        if rows.keys() == {frozenset(group) for group in found}:
            orders = {tuple(map(rows[frozenset(group)].index, group)) for group in found}
            if orders == {(*range(size),)}:
                return axes, ()
            near = near or (axes, orders.pop() if len(orders) == 1 else None)
    return near


def of_no_axes(groups: object, sizes: Mapping[str, int]) -> str:
    """Returns why a collective among groups of devices lacks a text, and the remedy."""
    return (
        f"among the groups of devices {groups}, which do not correspond to axes of the mesh {dict(sizes)}; a text has "
        "collectives along whole axes; split an axis of the mesh into two, so that the groups run along one of these, "
        "in its order"
    )
