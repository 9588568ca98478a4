"""Collectives of the reference executor, in NumPy over groups of mesh coordinates: one function per primitive."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from jaxmesh.errors import UnsupportedError

Coordinate = tuple[int, ...]
Shards = Mapping[Coordinate, Any]
Axis = Mapping[str, int]
Sizes = tuple[int, ...]
Rule = Callable[[Shards, Axis, Sizes, Mapping[str, Any]], dict[Coordinate, Any]]


def _names(value: Any) -> tuple[str, ...]:
    return tuple(cast("Iterable[str]", value)) if isinstance(value, (tuple, list, frozenset)) else (value,)


def _groups(
    shards: Shards, names: Sequence[str], axis: Axis, sizes: Sizes, params: Mapping[str, Any]
) -> Iterator[list[Coordinate]]:
    """Yields the groups of a collective, each in row-major order of the named axes.

    In a branch that not all devices take, yields the groups of the active devices.

    Raises:
      UnsupportedError: only a part of a group is active.
    """
    for group in _all_groups(names, axis, sizes, params):
        here = sum(c in shards for c in group)
        if here == len(group):
            yield group
        elif here:
            raise UnsupportedError(
                f"a collective over {', '.join(names)} is reached by {here} of the {len(group)} devices {group} only; "
                "on a mesh it would wait for the others for ever."
            )


def _all_groups(
    names: Sequence[str], axis: Axis, sizes: Sizes, params: Mapping[str, Any]
) -> Iterator[list[Coordinate]]:
    along = [axis[n] for n in names]
    rest = [i for i in range(len(sizes)) if i not in along]
    parts = params.get("axis_index_groups")
    for fixed in itertools.product(*[range(sizes[i]) for i in rest]):
        members: list[Coordinate] = []
        for moving in itertools.product(*[range(sizes[i]) for i in along]):
            coordinate = [0] * len(sizes)
            for i, v in (*zip(rest, fixed, strict=True), *zip(along, moving, strict=True)):
                coordinate[i] = v
            members.append(tuple(coordinate))
        if parts is None:
            yield members
        else:
            yield from ([members[i] for i in part] for part in parts)


def _reduction(combine: Callable[[Any, Any], Any]) -> Rule:
    def rule(shards: Shards, axis: Axis, sizes: Sizes, params: Mapping[str, Any]) -> dict[Coordinate, Any]:
        out: dict[Coordinate, Any] = {}
        for group in _groups(shards, _names(params["axes"]), axis, sizes, params):
            total = np.asarray(shards[group[0]])
            for c in group[1:]:
                total = combine(total, np.asarray(shards[c])).astype(total.dtype)
            out.update(dict.fromkeys(group, total))
        return out

    return rule


def _all_gather(shards: Shards, axis: Axis, sizes: Sizes, params: Mapping[str, Any]) -> dict[Coordinate, Any]:
    out: dict[Coordinate, Any] = {}
    for group in _groups(shards, _names(params["axis_name"]), axis, sizes, params):
        rows = [np.asarray(shards[c]) for c in group]
        dim = params["all_gather_dimension"]
        full = np.concatenate(rows, dim) if params["tiled"] else np.stack(rows, dim)
        out.update(dict.fromkeys(group, full))
    return out


def _reduce_scatter(shards: Shards, axis: Axis, sizes: Sizes, params: Mapping[str, Any]) -> dict[Coordinate, Any]:
    out: dict[Coordinate, Any] = {}
    dim = params["scatter_dimension"]
    for group in _groups(shards, _names(params["axis_name"]), axis, sizes, params):
        rows = [np.asarray(shards[c]) for c in group]
        total = rows[0]
        for row in rows[1:]:
            total = (total + row).astype(total.dtype)
        pieces = np.split(total, len(group), dim)
        out.update({c: p if params["tiled"] else p.squeeze(dim) for c, p in zip(group, pieces, strict=True)})
    return out


def _all_to_all(shards: Shards, axis: Axis, sizes: Sizes, params: Mapping[str, Any]) -> dict[Coordinate, Any]:
    # JAX expresses the untiled form by this one and reshapes around it.
    split, join = params["split_axis"], params["concat_axis"]
    out: dict[Coordinate, Any] = {}
    for group in _groups(shards, _names(params["axis_name"]), axis, sizes, params):
        pieces = [np.split(np.asarray(shards[c]), len(group), split) for c in group]
        for k, c in enumerate(group):
            out[c] = np.concatenate([row[k] for row in pieces], join)
    return out


def _ppermute(shards: Shards, axis: Axis, sizes: Sizes, params: Mapping[str, Any]) -> dict[Coordinate, Any]:
    out: dict[Coordinate, Any] = {c: np.zeros_like(np.asarray(x)) for c, x in shards.items()}
    # Devices are numbered in mesh order, whatever the order of the names (JAX 0.12 accepts no other order).
    names = sorted(_names(params["axis_name"]), key=lambda n: axis[n])
    for group in _groups(shards, names, axis, sizes, params):
        for source, target in params["perm"]:
            out[group[target]] = np.asarray(shards[group[source]])
    return out


def _refuse_ragged(*_: Any) -> dict[Coordinate, Any]:
    raise UnsupportedError("the reference executor has no rule for ragged_all_to_all; use all_to_all.")


COLLECTIVES: Mapping[str, Rule] = {
    "psum": _reduction(np.add),
    "psum_invariant": _reduction(np.add),
    "pmax": _reduction(np.maximum),
    "pmin": _reduction(np.minimum),
    "all_gather": _all_gather,
    "all_gather_invariant": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "ragged_all_to_all": _refuse_ragged,
}
