"""The ways to cut a global shape into a local one, and back; the dims that an operation does not treat alike."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxmesh.analysis.diagnose.movements import short_name
from jaxmesh.dialects.program import Op
from jaxmesh.frontends.stablehlo.shardings import Sharding, local_shape

WINDOWS = ("conv", "max_pool", "avg_pool", "reduce_window", "pad", "cumsum", "cumprod")
CUTS = ("slice", "index", "concat", "split", "chunk")
"""How the names of operations begin that read a window of each position, or a part of a dim."""
_INDEXED = ("scatter", "gather", "dynamic", "embedding")


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


def touched_dims(op: Op, shape: Sequence[int]) -> list[int]:
    """Returns the dims of the operand along which an operation reads other positions than its result's."""
    attributes: Any = op.attributes
    name, every = short_name(op), range(len(shape))
    if name.startswith(CUTS) and "begins" in attributes:
        rows = zip(attributes["begins"], attributes["ends"], shape, strict=True)
        return [d for d, (b, e, n) in enumerate(rows) if (b, e) != (0, n)]
    if name.startswith(CUTS):
        dim = int(attributes.get("dim", -1))
        return [dim % len(shape)] if shape and dim >= 0 else list(every)
    if name in ("reverse", "flip"):
        return [int(d) for d in attributes.get("dimensions", every)]
    if name == "pad":
        padding = attributes.get("padding", ())
        return [d for d in every if any(padding[2 * d : 2 * d + 2])]
    # A window spans the dims between the batch and the channels.
    inner = every[1:-1] if name.startswith(WINDOWS[:3]) else every
    return list(inner) if name.startswith(WINDOWS) else []


def of_shards(op: Op, axes: Sequence[str], dims: Sequence[int]) -> str:
    """Returns what an operation of each shard lacks, whose operand is split along some dims."""
    name, split = short_name(op), f"dim {', '.join(map(str, dims))} of the operand is split over {', '.join(axes)}"
    if any(part in name for part in _INDEXED):
        split = f"the operand of {op.name} is split over {', '.join(axes)}"
        return f"indices of the whole array: {split}, and each device applies them to its own shard"
    if dims and name.startswith(CUTS):
        return f"slice across shards: {split}, and each device cuts its own shard as if it were the whole"
    if dims and name in ("reverse", "flip"):
        return f"reversal of each shard alone: {split}, and the shards are not exchanged"
    if dims and name.startswith(WINDOWS):
        return f"window without its neighbours: {split}, and no device has the border of the next shard"
    return ""
