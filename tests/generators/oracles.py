"""What several suites share: the oracle and the number of random cases."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest

EVERY = "JAXMESH_EVERY" in os.environ
"""Whether `--every` was given: all programs in all ways, all meshes, where the suite otherwise takes a part of them."""
only_with_every = pytest.mark.skipif(not EVERY, reason="only with --every")


def some(all_cases: Iterable[Any], one_in: int) -> list[Any]:
    """Returns all cases with `--every`, one in n without."""
    return list(all_cases)[:: 1 if EVERY else one_in]


def count_of(every: int, otherwise: int) -> int:
    """Returns how many cases a random test has with `--every` or without, or as many as `--cases` asks for."""
    return int(os.environ.get("JAXMESH_CASES", every if EVERY else otherwise))


def cases(every: int) -> Any:
    """Settings for a random test of so many cases with `--every`, and of half as many without."""
    count = count_of(every, -(-every // 2))
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
