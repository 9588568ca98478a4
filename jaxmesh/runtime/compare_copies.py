"""Compares copies on the host, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.dialects.replication import Claim, Difference, error

Coordinate = tuple[int, ...]


def first_difference(shards: Mapping[Coordinate, Any], claim: Claim) -> Difference | None:
    """Returns the first shard, row-major over the mesh, that differs from the copy it is claimed to equal, or None.

    Skips coordinates that are missing from `shards`.
    """
    axes = list(claim.mesh)
    limits = {axes.index(a): n for a, n in claim.limits}
    for coordinate in sorted(shards):
        other = tuple(0 if a in claim.axes else i for a, i in zip(axes, coordinate, strict=True))
        if coordinate == other or other not in shards or any(coordinate[a] >= n for a, n in limits.items()):
            continue
        difference = _compare(shards[coordinate], shards[other])
        if difference is not None:
            return Difference(claim, coordinate, other, *difference)
    return None


def _compare(x: Any, y: Any) -> tuple[tuple[int, ...], Any, Any] | None:
    """Returns the first index at which two shards differ, and both elements."""
    if not np.size(x):
        return None
    a, b = host_bits(x), host_bits(y)
    differs = (_bytes(a) != _bytes(b)).reshape(*np.shape(x), -1).any(-1)
    if not differs.any():
        return None
    index = tuple(int(i) for i in np.argwhere(differs)[0])
    return index, a[index], b[index]


def host_bits(x: Any) -> np.ndarray[Any, Any]:
    """Returns an array, or the key data of random keys, as NumPy array."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        x = jax.random.key_data(x)
    return np.asarray(x)


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the bytes of each element along a last dim; elements narrower than a byte become whole bytes."""
    if jnp.issubdtype(array.dtype, jnp.integer) and jnp.iinfo(array.dtype).bits < 8:
        array = array.astype(np.int8)
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.dtype.itemsize)


def reference_rule(
    shards: Mapping[Coordinate, Any], mesh: Mapping[str, int], params: Mapping[str, Any]
) -> dict[Coordinate, Any]:
    """Checks copies in the reference executor; returns the shards unchanged."""
    difference = first_difference(shards, params["claim"])
    if difference is not None:
        raise error([difference])
    return dict(shards)


REFERENCE_RULES = {"check_copies": reference_rule}
