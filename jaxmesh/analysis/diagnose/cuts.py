"""The ways to cut a global shape into a local one, and back."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from jaxmesh.frontends.stablehlo.shardings import Sharding, local_shape


def placements(local: Sequence[int], full: Sequence[int], mesh: Mapping[str, int]) -> Iterator[Sharding]:
    """Yields every placement that cuts a global shape into a local shape."""
    yield from _placements(tuple(local), tuple(full), tuple(mesh.items()))


@functools.lru_cache(1 << 14)
def _placements(
    local: tuple[int, ...], full: tuple[int, ...], mesh: tuple[tuple[str, int], ...]
) -> tuple[Sharding, ...]:
    if len(local) != len(full) or any(not n or m % n for n, m in zip(local, full, strict=True)):
        return ()
    return tuple(_split([m // n for n, m in zip(local, full, strict=True)], dict(mesh), ()))


def _split(factors: list[int], mesh: Mapping[str, int], used: tuple[str, ...]) -> Iterator[Sharding]:
    if not factors:
        yield ()
        return
    free = [a for a, n in mesh.items() if n > 1 and a not in used]
    for length in range(len(free) + 1):
        for axes in itertools.permutations(free, length):
            if math.prod(mesh[a] for a in axes) == factors[0]:
                yield from ((axes, *rest) for rest in _split(factors[1:], mesh, (*used, *axes)))


def placements_of_size(local: Sequence[int], full: Sequence[int], mesh: Mapping[str, int]) -> Iterator[Sharding]:
    """Yields every placement that cuts a global shape into shapes of the size of a local shape."""
    axes = [a for a, n in mesh.items() if n > 1]
    shapes: set[tuple[int, ...]] = set()
    for dims in itertools.product(range(-1, len(full)), repeat=len(axes)):
        sharding = tuple(tuple(a for a, d in zip(axes, dims, strict=True) if d == dim) for dim in range(len(full)))
        shapes.add(local_shape(full, sharding, mesh))
    for shape in sorted(s for s in shapes if math.prod(s) == math.prod(local)):
        yield from placements(shape, full, mesh)


def global_shapes(local: Sequence[int], axes: Sequence[str], mesh: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """Yields the global shapes whose pieces along some axes have a local shape."""
    free = [a for a in axes if mesh[a] > 1]
    seen: set[tuple[int, ...]] = set()
    for dims in itertools.product(range(-1, len(local)), repeat=len(free)):
        shape = list(local)
        for axis, dim in zip(free, dims, strict=True):
            if dim >= 0:
                shape[dim] *= mesh[axis]
        if tuple(shape) not in seen:
            seen.add(tuple(shape))
            yield tuple(shape)
