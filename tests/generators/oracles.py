"""What several suites share: the oracle and the number of random cases."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import numpy as np

EVERY = "JAXMESH_EVERY" in os.environ
"""Whether `--every` was given: all programs in all ways, all meshes, where the suite otherwise takes a part of them."""


def cases(default: int) -> Any:
    """Settings for a random test of so many cases with `--every`, of half as many without, or of as many as `--cases`
    asks for."""
    count = int(os.environ.get("JAXMESH_CASES", default if EVERY else -(-default // 2)))
    return hypothesis.settings(max_examples=count, deadline=None, derandomize="JAXMESH_CASES" not in os.environ)


def oracle_shard(
    full: np.ndarray, dims: Sequence[Sequence[int]], mesh: Sequence[int], coordinate: Sequence[int]
) -> np.ndarray:
    """The piece of `full` at one mesh coordinate; `dims[d]` lists the mesh axes on dim d, most significant first.

    Written from the meaning alone: no function of the package is used.
    """
    index = []
    for d, axes in enumerate(dims):
        count = math.prod(mesh[a] for a in axes)
        place = 0
        for a in axes:
            place = place * mesh[a] + coordinate[a]
        size = full.shape[d] // count
        index.append(slice(place * size, (place + 1) * size))
    return full[tuple(index)]


def coordinates(mesh: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, mesh)))


def same_bits(a: Any, b: Any) -> bool:
    """Equal shape, dtype and bytes."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def calls_made(work: Callable[[], Any]) -> int:
    """How many calls Python makes, of its own and of built-in functions: a measure of work that no load changes."""
    made = 0

    def counted(frame: object, event: str, _: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return made
