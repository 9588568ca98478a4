"""The meaning of `mesh_shard` in NumPy: plain loops over mesh coordinates, for the reference executor.

Written from the semantics of the operation alone, without the pass, its plans and its configs, so that a TTIR-level run
and a TTNN-level run can be compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.check_copies import host_bits
from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes, ShardDirection, ShardType
from jaxmesh.jaxprs.untyped import Params

Coordinate = tuple[int, ...]
Array = Any


def mesh_shard(values: Mapping[Coordinate, Array], mesh: Mapping[str, int], params: Params) -> Any:
    """Returns the result of a `mesh_shard` of one value per device: an array per device, or one full array."""
    attrs = MeshShardAttributes(**{k: v for k, v in params.items() if k != "assume_replicated"})
    if attrs.shard_type is ShardType.IDENTITY:
        return values
    sizes, dims = tuple(mesh.values()), attrs.dims_on(len(mesh))
    words, first = {c: host_bits(x) for c, x in values.items()}, next(iter(values.values()))
    if attrs.shard_direction is ShardDirection.FULL_TO_SHARD:
        windows = {c: _window(x.shape, dims, sizes, c) for c, x in words.items()}
        # Devices with the same piece of the same tensor share it.
        pieces = {(id(words[c]), str(w)): _like(words[c][w], first) for c, w in windows.items()}
        return {c: pieces[id(words[c]), str(w)] for c, w in windows.items()}
    return _like(_join(words, dims, sizes), first)


def _window(full: Coordinate, dims: Coordinate, sizes: Coordinate, coordinate: Coordinate) -> tuple[slice, ...]:
    """Returns the part of a full tensor on one device; of two axes on one dim the lower is more significant."""
    window: list[slice] = []
    for dim, size in enumerate(full):
        number, count = 0, 1
        for axis, at in enumerate(dims):
            if at == dim:
                number, count = number * sizes[axis] + coordinate[axis], count * sizes[axis]
        chunk = size // count
        window.append(slice(number * chunk, (number + 1) * chunk))
    return tuple(window)


def _join(shards: Mapping[Coordinate, Array], dims: Coordinate, sizes: Coordinate) -> Array:
    """Joins the full tensor from the devices at coordinate 0 of every axis that splits nothing."""
    first = next(iter(shards.values()))
    full = list(first.shape)
    for axis, dim in enumerate(dims):
        if dim >= 0:
            full[dim] *= sizes[axis]
    # A key's words follow the dims that the type has: `dims` never names theirs.
    out = np.empty(full, first.dtype)
    for coordinate in itertools.product(*[range(n) if d >= 0 else (0,) for n, d in zip(sizes, dims, strict=True)]):
        out[_window(tuple(full), dims, sizes, coordinate)] = shards[coordinate]
    return out


def _holds_keys(x: object) -> bool:
    return isinstance(x, jax.Array) and bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def _like(x: Array, operand: Array) -> Array:
    """Returns words as random keys if the operand holds keys."""
    wrap: Any = jax.random.wrap_key_data
    return wrap(x, impl=jax.random.key_impl(operand)) if _holds_keys(operand) else x
