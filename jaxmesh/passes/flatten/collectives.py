"""Rules for the primitives of the mesh: sharding, transfers, collectives.

TTIR's collectives run along one mesh axis and reduce by a sum. A collective over several axes becomes one op per axis;
a maximum is gathered and computed on each device. `cluster_axis` is the number of the mesh axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs import remarks
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.primitives import COLLECTIVES, RETYPES
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.loops import count_sends, distribute, is_host
from jaxmesh.sharding.shard_attributes import FIRST_DEVICE

RULES: Rules[Rule] = Rules()

Table = np.ndarray[Any, np.dtype[np.int64]]


# --- sharding --------------------------------------------------------------------------------------------------------


@RULES.add("mesh_shard")
def _mesh_shard(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    params = {k: v.value if isinstance(v, Enum) else v for k, v in eqn.params.items()}
    if params["shard_type"] == "identity":
        return xs[0]
    if not params.get("assume_replicated"):
        params.pop("assume_replicated", None)
    x, shape = xs[0], tuple(eqn.outvars[0].aval.shape)
    extra = len(b.shape(x)) - len(shape)
    if extra and params["shard_type"] == "devices":
        # A random key is an array of words, whose dims nothing splits.
        params["shard_shape"] = (*params["shard_shape"], *[1] * extra)
    shape = (*shape, *b.shape(x)[len(shape) :])
    made = b.once(x, ("mesh_shard", *params.values()), lambda: b.op("mesh_shard", [x], shape, b.dtype(x), **params))
    if params["shard_type"] == "replicate":
        b.copy_known(made, x)
    return made


@RULES.add("distribute_tensor", "aggregate_tensor")
def _transfer(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    x, shape = xs[0], tuple(eqn.outvars[0].aval.shape)
    if eqn.params.get("composer_config") == FIRST_DEVICE and (b.is_created(x) or is_host(b, x)):
        # A value that folds to a constant is created on the host, and a loop of such values leaves them there.
        return x
    extra = b.shape(x)[len(shape) :]
    if extra and any(d < 0 for d in _cut_dims(eqn)):
        raise missing(eqn, f"its config counts dims from the end of an array of random keys: {dict(eqn.params)}")
    if eqn.primitive.name == "distribute_tensor":
        made = distribute(b, x, eqn.params["mapper_config"], (*shape, *extra))
        if b.shape(made) == b.shape(x):
            b.copy_known(made, x)
        return made
    if b.outer is not None:
        if eqn.params["composer_config"] == FIRST_DEVICE:
            return x
        raise UnsupportedError(f"a loop whose body aggregates a tensor ({b.line}) stays no loop.")
    name, kind = "ttnn.aggregate_tensor", ((*shape, *extra), b.dtype(x))
    return b.once(x, (name, *eqn.params.values()), lambda: b.ops(name, [x], [kind], **eqn.params)[0])


def _cut_dims(eqn: Eqn) -> list[int]:
    if eqn.primitive.name == "aggregate_tensor":
        return list(eqn.params["composer_config"].dims)
    return [getattr(p, "dim", 0) for p in eqn.params["mapper_config"].placements]


@RULES.add(*RETYPES)
def _typed_only(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    # It changes types alone.
    return xs


# --- axes ------------------------------------------------------------------------------------------------------------


def _names(eqn: Eqn, given: Any) -> tuple[str, ...]:
    """Returns the mesh axes of a collective, most significant first; raises for groups of devices and for dims."""
    names: tuple[Any, ...] = (given,) if isinstance(given, str) else tuple(given)
    groups = eqn.params.get("axis_index_groups")
    if groups is not None:
        why = f"TTIR's collectives run along whole mesh axes, not among axis_index_groups = {groups}"
        raise missing(eqn, f"{why}; make the groups an axis of their own of the mesh")
    for name in names:
        if not isinstance(name, str):
            raise missing(eqn, f"{name!r} is no mesh axis name; reduce over dims of the operand with jax.numpy")
    return names


def _several(b: Builder, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the axes with more than one device."""
    return tuple(a for a in names if b.mesh[a] > 1)


def _cluster(b: Builder, name: str) -> int:
    return list(b.mesh).index(name)


# --- reductions ------------------------------------------------------------------------------------------------------


def _note_axes(b: Builder, op: str, names: Sequence[str]) -> None:
    if len(_several(b, names)) > 1:
        chain = ", then ".join(_several(b, names))
        remarks.remark(b.line, "legalised", f"one {op} per mesh axis: {chain}", f"TTNN's {op} takes one cluster_axis")


@RULES.add("psum", "psum_invariant")
def _psum(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    # Never folded: equal values are added, too.
    op, names = COLLECTIVES[eqn.primitive.name], _names(eqn, eqn.params["axes"])
    _note_axes(b, op, names)
    for name in _several(b, names):
        xs = [b.same(op, [x], reduce_type="sum", cluster_axis=_cluster(b, name)) for x in xs]
    return xs


def _extreme(kind: str) -> Rule:
    def rule(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
        remarks.remark(
            b.line, "legalised", f"all_gather, and a {kind} on each device", "TTNN's all_reduce gives sums only"
        )
        _note_axes(b, "all_gather", _names(eqn, eqn.params["axes"]))
        for name in _several(b, _names(eqn, eqn.params["axes"])):
            xs = [b.reduce(kind, _stack(b, x, name), (0,)) for x in xs]
        return xs

    return rule


RULES.update({"pmax": _extreme("max"), "pmin": _extreme("min")})


def _gather(b: Builder, x: Value, dim: int, name: str) -> Value:
    shape = list(b.shape(x))
    shape[dim] *= b.mesh[name]
    return b.op("all_gather", [x], shape, b.dtype(x), all_gather_dim=dim, cluster_axis=_cluster(b, name))


def _stack(b: Builder, x: Value, name: str) -> Value:
    """Returns the values stacked along a mesh axis along a new first dim."""
    return _gather(b, b.reshape(x, (1, *b.shape(x))), 0, name)


@RULES.add("all_gather", "all_gather_invariant")
def _all_gather(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    params = eqn.params
    dim, names = int(params["all_gather_dimension"]), _names(eqn, params["axis_name"])
    made: list[Value] = []
    for x in xs:
        shape = b.shape(x)
        x = x if params["tiled"] else b.reshape(x, (*shape[:dim], 1, *shape[dim:]))
        _note_axes(b, "all_gather", tuple(reversed(names)))
        for name in reversed(_several(b, names)):
            x = _gather(b, x, dim, name)
        made.append(x)
    return made


@RULES.add("reduce_scatter")
def _reduce_scatter(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    params = eqn.params
    dim, names = int(params["scatter_dimension"]), _names(eqn, params["axis_name"])
    _note_axes(b, "reduce_scatter", names)
    made: list[Value] = []
    for x in xs:
        for name in _several(b, names):
            shape = list(b.shape(x))
            shape[dim] //= b.mesh[name]
            attributes = {"reduce_type": "sum", "scatter_dim": dim, "cluster_axis": _cluster(b, name)}
            x = b.op("reduce_scatter", [x], shape, b.dtype(x), **attributes)
        shape = b.shape(x)
        made.append(x if params["tiled"] else b.reshape(x, (*shape[:dim], *shape[dim + 1 :])))
    return made


# --- between devices -------------------------------------------------------------------------------------------------


def device_rows(b: Builder, names: Sequence[str]) -> Table:
    """Returns the device ids along some axes, the first the most significant: one row per coordinate of the others."""
    axes = [_cluster(b, n) for n in names]
    sizes = tuple(b.mesh.values())
    ids = np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes)
    rest = [a for a in range(len(sizes)) if a not in axes]
    return np.transpose(ids, [*rest, *axes]).reshape(-1, math.prod(sizes[a] for a in axes))


@RULES.add("all_to_all")
def _all_to_all(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    # JAX adds and drops dims around the primitive where the call was not `tiled`, so that here it always is.
    names = _several(b, _names(eqn, eqn.params["axis_name"]))
    if not names:
        return xs
    split, concat = int(eqn.params["split_axis"]), int(eqn.params["concat_axis"])
    rows = device_rows(b, names)
    count_sends(b, eqn)
    attributes = {"split_dim": split, "concat_dim": concat, "split_count": rows.shape[1], "replica_groups": rows}
    return [
        b.op("all_to_all", [x], out.aval.shape, b.dtype(x), **attributes)
        for x, out in zip(xs, eqn.outvars, strict=True)
    ]


@RULES.add("ppermute")
def _ppermute(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    # JAX numbers the places on several axes in the order of the mesh here, whatever order they are named in.
    names = sorted(_names(eqn, eqn.params["axis_name"]), key=list(b.mesh).index)
    perm: Sequence[tuple[int, int]] = eqn.params["perm"]
    pairs = sorted((int(row[s]), int(row[t])) for row, (s, t) in itertools.product(device_rows(b, names), perm))
    if len(pairs) == math.prod(b.mesh.values()) and all(s == t for s, t in pairs):
        return xs
    table = np.array(pairs, np.int64).reshape(-1, 2)
    count_sends(b, eqn)
    return [b.same("collective_permute", [x], source_target_pairs=table) for x in xs]


@RULES.add("pbroadcast")
def _pbroadcast(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    names, source = _names(eqn, eqn.params["axis_name"]), int(eqn.params["source"])
    if not _several(b, names):
        return xs
    rows = device_rows(b, names)
    count_sends(b, eqn)
    # The first device of a group sends.
    order = [source, *(i for i in range(rows.shape[1]) if i != source)]
    return [b.same("collective_broadcast", [x], replica_groups=rows[:, order]) for x in xs]
