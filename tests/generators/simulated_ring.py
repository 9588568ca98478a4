"""Collectives on a ring or a line of devices, piece by piece: who sends how many bytes to which neighbour.

A ring sends one half of each piece round one way and the other half round the other; nothing of the package is used.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

Sent = tuple[int, int, float]
"""A device, the neighbour that it sends to, and the bytes."""


def loads(kind: str, count: int, size: int, ring: bool) -> np.ndarray:
    """Returns the bytes that each device sends to each other one; `size` is what one device holds before."""
    sent = np.zeros((count, count))
    for source, target, amount in traffic(kind, count, size, ring):
        sent[source, target] += amount
    return sent


def traffic(kind: str, count: int, size: int, ring: bool) -> Iterator[Sent]:
    if kind == "all_gather":
        yield from _spread(count, size, ring)
    elif kind == "reduce_scatter":
        # The way back: each piece comes to its owner from all others, and is added up where they meet.
        yield from ((target, source, amount) for source, target, amount in _spread(count, size / count, ring))
    elif kind == "all_reduce" and ring:
        yield from traffic("reduce_scatter", count, size, ring)
        yield from traffic("all_gather", count, size // count, ring)
    elif kind == "all_reduce":
        # Partial sums run to the last device, and finished ones back from it.
        for i in range(count - 1):
            yield i, i + 1, size
            yield i + 1, i, size


def _spread(count: int, piece: float, ring: bool) -> Iterator[Sent]:
    """Sends each device's piece to all others."""
    for owner in range(count):
        for hop in range(count - 1) if ring else ():
            yield (owner + hop) % count, (owner + hop + 1) % count, piece / 2
            yield (owner - hop) % count, (owner - hop - 1) % count, piece / 2
        for i in range(count - 1) if not ring else ():
            yield (i, i + 1, piece) if i >= owner else (i + 1, i, piece)
