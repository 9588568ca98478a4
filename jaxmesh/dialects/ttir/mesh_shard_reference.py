"""What `mesh_shard` means, in NumPy: plain loops over mesh coordinates, for the reference executor.

Written from the semantics of the operation alone. The pass, its plans and its configs are not used, so that a
TTIR-level run and a TTNN-level run can be held against each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes, ShardDirection, ShardType

Coordinate = tuple[int, ...]
Array = Any


def mesh_shard(values: Mapping[Coordinate, Array], mesh: Mapping[str, int], params: Mapping[str, Any]) -> Any:
    """The result of a `mesh_shard`: an array per device where it splits, one full array where it joins.

    Args:
      values: the operand as each device sees it; of a full tensor all are equal.
      mesh: axis names and sizes.
      params: the attributes, as the primitive has them.
    """
    attrs = MeshShardAttributes(**{k: v for k, v in params.items() if k != "assume_replicated"})
    if attrs.shard_type is ShardType.IDENTITY:
        return values
    sizes, dims = tuple(mesh.values()), attrs.dims_on(len(mesh))
    keys = {c: _unkeyed(x) for c, x in values.items()}
    again = _rekeyed(next(iter(values.values())))
    if attrs.shard_direction is ShardDirection.FULL_TO_SHARD:
        return {c: again(x[_window(x.shape, dims, sizes, c)]) for c, x in keys.items()}
    return again(_joined(keys, dims, sizes))


def _window(full: Coordinate, dims: Coordinate, sizes: Coordinate, place: Coordinate) -> tuple[slice, ...]:
    """Which part of a full tensor the device at a place holds; of two axes on one dim the lower is more significant."""
    window: list[slice] = []
    for dim, size in enumerate(full):
        number, count = 0, 1
        for axis, at in enumerate(dims):
            if at == dim:
                number, count = number * sizes[axis] + place[axis], count * sizes[axis]
        chunk = size // count
        window.append(slice(number * chunk, (number + 1) * chunk))
    return tuple(window)


def _joined(shards: Mapping[Coordinate, Array], dims: Coordinate, sizes: Coordinate) -> Array:
    """The full tensor, from the devices at coordinate 0 of every axis that splits nothing."""
    first = next(iter(shards.values()))
    full = list(first.shape)
    for axis, dim in enumerate(dims):
        if dim >= 0:
            full[dim] *= sizes[axis]
    # A key's words follow the dims that the type has: `dims` never names theirs.
    out = np.empty(full, first.dtype)
    for place in itertools.product(*[range(n) if d >= 0 else (0,) for n, d in zip(sizes, dims, strict=True)]):
        out[_window(tuple(full), dims, sizes, place)] = shards[place]
    return out


def _unkeyed(x: Any) -> Array:
    keys = isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if keys else x)


def _rekeyed(like: Any) -> Callable[[Array], Any]:
    """What makes words the keys that an operand is of; nothing of any other operand."""
    keys = isinstance(like, jax.Array) and jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key)
    kind: Any = jax.random.key_impl(like) if keys else None

    wrap: Any = jax.random.wrap_key_data

    def again(x: Array) -> Any:
        return wrap(x, impl=kind) if keys else x

    return again
