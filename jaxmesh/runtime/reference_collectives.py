"""Collectives of the reference executor, in NumPy over groups of mesh coordinates: one function per primitive."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from jaxmesh.errors import UnsupportedError

Coordinate = tuple[int, ...]
Params = Mapping[str, Any]
Rule = Callable[[list[Any], Params], Sequence[Any]]
"""A function from the arrays of a group's devices to their results, both in row-major order of the named axes."""


def run_collective(
    name: str, shards: Mapping[Coordinate, Any], axis: Mapping[str, int], sizes: Sequence[int], params: Params
) -> dict[Coordinate, object]:
    """Returns the results of a collective by coordinate; in a branch, only of the active devices.

    Raises:
      UnsupportedError: only some devices of a group are active.
    """
    value = params.get("axes", params.get("axis_name"))
    names = list(cast("Iterable[str]", value)) if isinstance(value, (tuple, list, frozenset)) else [value]
    if name == "ppermute":
        # Devices are numbered in mesh order, independent of the order of the names (JAX 0.12 accepts only mesh order).
        names.sort(key=lambda n: axis[n])
    out: dict[Coordinate, object] = {}
    for group in _groups([axis[n] for n in names], sizes, params):
        here = sum(c in shards for c in group)
        if here == len(group):
            arrays = [np.asarray(shards[c]) for c in group]
            out.update(zip(group, COLLECTIVE_RULES[name](arrays, params), strict=True))
        elif here:
            raise UnsupportedError(
                f"a collective over {', '.join(names)} is reached by {here} of the {len(group)} devices {group} only; "
                "on a mesh it would deadlock."
            )
    return out


def _groups(along: Sequence[int], sizes: Sequence[int], params: Params) -> Iterator[list[Coordinate]]:
    """Yields the groups of a collective over mesh axes, each in row-major order of these axes."""
    rest = [i for i in range(len(sizes)) if i not in along]
    count = math.prod(sizes[i] for i in along)
    coordinates = np.moveaxis(np.indices(sizes), 0, -1).transpose(*rest, *along, len(sizes))
    for members in coordinates.reshape(-1, count, len(sizes)).tolist():
        for part in params.get("axis_index_groups") or [range(count)]:
            yield [tuple(members[i]) for i in part]


def _reduce(combine: Callable[[Any, Any], Any], arrays: list[Any]) -> Any:
    total = arrays[0]
    for array in arrays[1:]:
        total = combine(total, array).astype(total.dtype)
    return total


def _all_gather(arrays: list[Any], params: Params) -> list[Any]:
    join = np.concatenate if params["tiled"] else np.stack
    return [join(arrays, params["all_gather_dimension"])] * len(arrays)


def _reduce_scatter(arrays: list[Any], params: Params) -> list[Any]:
    dim = params["scatter_dimension"]
    pieces = np.split(_reduce(np.add, arrays), len(arrays), dim)
    return pieces if params["tiled"] else [p.squeeze(dim) for p in pieces]


def _all_to_all(arrays: list[Any], params: Params) -> list[object]:
    # JAX expresses the untiled form by this form and reshapes around it.
    pieces = [np.split(array, len(arrays), params["split_axis"]) for array in arrays]
    return [np.concatenate(column, params["concat_axis"]) for column in zip(*pieces, strict=True)]


def _ppermute(arrays: list[Any], params: Params) -> list[object]:
    out = [np.zeros_like(array) for array in arrays]
    for source, target in params["perm"]:
        out[target] = arrays[source]
    return out


COLLECTIVE_RULES: Mapping[str, Rule] = {
    "psum": lambda arrays, _: [_reduce(np.add, arrays)] * len(arrays),
    "psum_invariant": lambda arrays, _: [_reduce(np.add, arrays)] * len(arrays),
    "pmax": lambda arrays, _: [_reduce(np.maximum, arrays)] * len(arrays),
    "pmin": lambda arrays, _: [_reduce(np.minimum, arrays)] * len(arrays),
    "all_gather": _all_gather,
    "all_gather_invariant": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "pbroadcast": lambda arrays, params: [arrays[params["source"]]] * len(arrays),
}
