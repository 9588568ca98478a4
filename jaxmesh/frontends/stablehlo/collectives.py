"""Shardy's ops, and the collectives in hand-written regions (`shard_map`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NoReturn

import numpy as np
from jaxlib.mlir import ir

from jaxmesh.dialects.quoting import axis_names
from jaxmesh.dialects.ttir.collectives import apply_collective, exchange, sum_scatter
from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.jax.retype import in_order, spread, varying
from jaxmesh.frontends.mlir.attributes import Array
from jaxmesh.frontends.stablehlo import shardings, values
from jaxmesh.frontends.stablehlo.call import ImportContext, Whole
from jaxmesh.frontends.stablehlo.custom_calls import bind_op, prove_equal
from jaxmesh.frontends.stablehlo.reductions import kind_of
from jaxmesh.frontends.stablehlo.shardings import WRITTEN, Sharding, axes_of
from jaxmesh.frontends.stablehlo.values import Sharded
from jaxmesh.jaxprs.untyped import lax
from jaxmesh.sharding.groups import axes_of_groups, of_no_axes

_SUM = 0
"""The number of the sum among Shardy's reductions."""


# --- Shardy's ops ----------------------------------------------------------------------------------------------------


def _reshard(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    x, (target,) = program.env[op.operands[0]], program.result_shardings(op)
    return [Sharded(program.reshard(x, target, _users(op)), target)]


def _users(op: ir.Operation) -> str:
    names = dict.fromkeys(use.owner.name for use in op.results[0].uses)
    return f"for {', '.join(names)}" if names else "for nothing"


def _all_reduce(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports Shardy's all_reduce of partial results; an all_reduce in the source text sums any value."""
    x = _to_sum(program, op, "reduction_axes", written=WRITTEN in op.attributes)
    uses = list(op.results[0].uses)
    # A sum that is used only in part becomes a reduce_scatter.
    if len(uses) == 1 and uses[0].owner.name in ("sdy.reshard", "sdy.all_slice", "sdy.all_reduce", "func.return"):
        return [x]
    return [program.settle(x)]


def _to_sum(program: ImportContext, op: ir.Operation, name: str, *, written: bool) -> Sharded:
    """Returns an operand whose shards are pending summation over the axes of an attribute, as the text requests."""
    x, axes = program.env[op.operands[0]], axis_names(str(op.attributes[name]))
    if not written or set(axes) <= set(x.partial):
        return x
    if "reduction_op" in op.attributes and program.read(op.attributes["reduction_op"]) != _SUM:
        raise UnsupportedError(f"{op.name} with a reduction other than a sum; reduce, and reshard the result.")
    x = program.settle(x)
    _note_redundant(program, x, axes)
    return Sharded(spread(x.array, axes), x.sharding, tuple(axes), "sum", op)


def _note_redundant(program: ImportContext, x: Sharded, axes: Sequence[str]) -> None:
    extra = [a for a in axes if a not in varying(x.array) and program.sizes[a] > 1]
    if extra and x.array.ndim:
        program.decisions.add("redundant", f"a sum over {', '.join(extra)} of a value that does not vary over it")


def _reduce_scatter(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports Shardy's reduce_scatter, which only a text contains: a sum over the axes, and a slice of it."""
    x, (target,) = _to_sum(program, op, "reduce_scatter_axes", written=True), program.result_shardings(op)
    return [Sharded(program.reshard(x, target, _users(op)), target)]


def _named(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    return program.block(op.regions[0].blocks[0], [program.env[v] for v in op.operands])


def _same(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    return [program.settle(program.env[v]) for v in op.operands]


def _manual(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports a region that the user wrote for one device, with its operands in the requested shardings."""
    manual = axis_names(str(op.attributes["manual_axes"]))
    free = frozenset(program.sizes) - set(manual)
    block = op.regions[0].blocks[0]
    arguments: list[Sharded] = []
    for value, attribute in zip(op.operands, shardings.listed(op, "in_shardings"), strict=True):
        target = shardings.read(attribute)
        x = spread(program.reshard(program.env[value], target, "for a shard_map"), axes_of(target))
        arguments.append(Sharded(x, _only(target, free)))
    outer, program.manual = program.manual, program.manual | set(manual)
    try:
        with program.inner_scope(same_trace=True):
            results = program.block(block, arguments)
    finally:
        program.manual = outer
    targets = [shardings.read(a) for a in shardings.listed(op, "out_shardings")]
    return [_leave(program, y, t, free) for y, t in zip(results, targets, strict=True)]


def _only(sharding: Sharding, axes: frozenset[str]) -> Sharding:
    return tuple(tuple(a for a in dim_axes if a in axes) for dim_axes in sharding)


def _leave(program: ImportContext, y: Sharded, target: Sharding, free: frozenset[str]) -> Sharded:
    x = program.reshard(y, _only(target, free), "of a shard_map")
    return Sharded(prove_equal(program, x, target, "shard_map: a result"), target)


# --- collectives by groups -------------------------------------------------------------------------------------------


def _table(program: ImportContext, op: ir.Operation, name: str) -> Array:
    """Returns a table of device ids, which is read as one number where all are equal, as on a mesh of one device."""
    written = op.attributes[name]
    return np.broadcast_to(program.read(written), written.type.shape)


def _axes_of_groups(program: ImportContext, op: ir.Operation) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Returns what `axes_of_groups` does of an op's replica groups.

    Raises:
      UnsupportedError: the groups do not correspond to mesh axes.
    """
    text = str(op.attributes["replica_groups"])
    if "replica_group_mesh_axes" in text or "mesh_axes" in text:
        return tuple(a for a in axis_names(text) if a in program.sizes), ()
    return axes_of_groups(_groups(program, op), program.sizes) or _refuse(program, op)


def _groups(program: ImportContext, op: ir.Operation) -> list[list[int]]:
    return _table(program, op, "replica_groups").tolist()


def _refuse(program: ImportContext, op: ir.Operation) -> NoReturn:
    raise UnsupportedError(f"a collective {of_no_axes(_groups(program, op), program.sizes)}.")


def _axes(program: ImportContext, op: ir.Operation) -> tuple[str, ...]:
    """Returns the mesh axes that correspond to an op's replica groups, device by device; raises for other groups."""
    axes, order = _axes_of_groups(program, op)
    return axes if order == () else _refuse(program, op)


def _operands(program: ImportContext, op: ir.Operation, axes: Collection[str], *dims: int) -> list[Sharded]:
    """Returns operands whole along the dims that a collective takes apart or joins; others stay split over axes that
    are not its own."""
    return [_whole_along(program, x, op, axes, dims) for x in _same(program, op)]


def _whole_along(
    program: ImportContext, x: Sharded, op: ir.Operation, axes: Collection[str], dims: Collection[int]
) -> Sharded:
    kept = tuple(() if i in dims or set(a) & set(axes) else a for i, a in enumerate(x.sharding))
    return Sharded(program.reshard(x, kept, f"for {op.name}"), kept)


def _reduce(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    kind = kind_of(op)
    if kind is None:
        raise UnsupportedError("an all_reduce whose body is not a sum, product, minimum, maximum, and, or.")
    axes, _ = _axes_of_groups(program, op)
    operands = _same(program, op)
    if kind == "sum":
        for x in operands:
            _note_redundant(program, x, axes)
    # Element by element: shards over the axes of the outer region are unchanged.
    return [Sharded(values.reduce_over(x.array, axes, kind) if axes else x.array, x.sharding) for x in operands]


def _gather(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    dim = program.read(op.attributes["all_gather_dim"])
    axes, order = _axes_of_groups(program, op)
    outs = _operands(program, op, axes, dim)
    for axis in reversed(axes):
        outs = [Sharded(values.all_gather(x.array, axis, dim), x.sharding) for x in outs]
    order = _refuse(program, op) if order is None else order
    return [Sharded(in_order(x.array, order, dim), x.sharding) for x in outs]


def _scatter(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    dim = program.read(op.attributes["scatter_dimension"])
    if kind_of(op) != "sum":
        raise UnsupportedError("a reduce_scatter whose body is not a sum.")
    axes = _axes(program, op)
    (x,) = _operands(program, op, axes, dim)
    for axis in axes:
        x = Sharded(sum_scatter(x.array, axis, dim), x.sharding)
    return [x]


def _exchange(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    split, join = (program.read(op.attributes[n]) for n in ("split_dimension", "concat_dimension"))
    axes = _axes(program, op)
    outs = _operands(program, op, axes, split, join)
    return [Sharded(exchange(x.array, axes, split, join), x.sharding) for x in outs]


def _permute(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    pairs = _table(program, op, "source_target_pairs").tolist()
    axes = tuple(program.sizes)
    ends = np.unravel_index(np.reshape(pairs, (-1, 2)), tuple(program.sizes.values()))
    crossed = [a for a, numbers in zip(axes, ends, strict=True) if (numbers[:, 0] != numbers[:, 1]).any()]
    (x,) = _operands(program, op, crossed)
    moved = apply_collective(x.array, axes, lambda y: lax.ppermute(y, axes, [tuple(p) for p in pairs]))
    return [Sharded(moved, x.sharding)]


def _broadcast(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports a collective_broadcast: each device of a group receives the value of the first device."""
    groups = {"replica_groups": _table(program, op, "replica_groups")}
    arrays = [x.array for x in _operands(program, op, tuple(program.sizes))]
    outs = bind_op(program, "collective_broadcast", arrays, groups, program.types_of(op.results))
    return [Sharded(x, shardings.replicated(x.ndim)) for x in outs]


OPS: dict[str, Whole] = {
    **dict.fromkeys(shardings.COLLECTIVES, _reshard),
    "sdy.reduce_scatter": _reduce_scatter,
    "sdy.reshard": _reshard,
    "sdy.sharding_constraint": _reshard,
    "sdy.all_reduce": _all_reduce,
    "sdy.manual_computation": _manual,
    "sdy.named_computation": _named,
    "sdy.propagation_barrier": _same,
    "sdy.data_flow_edge": _same,
    "stablehlo.all_reduce": _reduce,
    "stablehlo.all_gather": _gather,
    "stablehlo.reduce_scatter": _scatter,
    "stablehlo.all_to_all": _exchange,
    "stablehlo.collective_permute": _permute,
    "stablehlo.collective_broadcast": _broadcast,
}
