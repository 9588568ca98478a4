"""Replaces every `mesh_shard` by a transfer of TTNN: the only pass that reads a direction.

Each becomes a `distribute_tensor` or an `aggregate_tensor`, with reshapes where upstream's configs would be illegal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from jaxmesh.dialects.residency import DEVICE, HOST, Residency, of_result
from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes, ShardDirection, ShardType, mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p, first_copy
from jaxmesh.jaxprs import compat, remarks, walk
from jaxmesh.jaxprs.caches import lru_cached
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.control_flow import is_imported_op
from jaxmesh.jaxprs.rewrite import at_every_depth, map_sub_jaxprs, with_operands
from jaxmesh.jaxprs.typed import typed, with_axis_types
from jaxmesh.jaxprs.untyped import Shape, lax
from jaxmesh.sharding.distribution import mesh_axis_dims, resolve_mapper
from jaxmesh.sharding.shard_attributes import FIRST_DEVICE, plan_aggregate, plan_distribute

Emit = Callable[[compat.Primitive | Shape, Atom, Mapping[str, Any]], Atom]
_plan_distribute, _plan_aggregate = lru_cached(256)(plan_distribute), lru_cached(256)(plan_aggregate)


def lower_mesh_shards(program: Jaxpr, inputs: Sequence[Residency], mesh: Mapping[str, int]) -> Jaxpr:
    """Replaces every `mesh_shard` at every depth.

    Args:
      program: the traced program, typed by varying axes.
      inputs: the residency of each argument.
      mesh: axis names and sizes.
    """
    sizes = tuple(mesh.values())
    change = at_every_depth(lambda inner, change: _lower_body(inner, sizes, change, {}))
    known = zip(walk.open_jaxpr(program).invars, inputs, strict=True)
    return _lower_body(program, sizes, change, dict(known))


def _lower_body(
    jaxpr: Jaxpr, mesh: Shape, change: Callable[[Jaxpr], Jaxpr], residencies: dict[compat.Var, Residency]
) -> Jaxpr:
    swap: dict[compat.Var, Atom] = {}
    eqns: list[Eqn] = []
    count = 0

    def known(atom: Atom) -> Residency:
        return residencies.get(atom, HOST) if isinstance(atom, Var) else HOST

    def is_on_device(atom: Atom) -> bool:
        # Few mesh_shards ask. Bodies are not looked into.
        nonlocal count
        for made in eqns[count:]:
            residencies.update(dict.fromkeys(made.outvars, of_result(made, [*map(known, made.invars)])))
        count = len(eqns)
        return known(atom) is DEVICE

    for eqn in jaxpr.eqns:
        if swap:
            eqn = with_operands(eqn, swap)
        if eqn.primitive is mesh_shard_p:
            start = len(eqns)
            swap[eqn.outvars[0]] = _lower_mesh_shard(eqn, mesh, functools.partial(_emit, eqns, eqn), is_on_device)
            _remark(eqn, eqns[start:])
        else:
            eqns.append(eqn if is_imported_op(eqn) else map_sub_jaxprs(eqn, change))
    return walk.with_eqns(jaxpr, eqns, walk.substitute(jaxpr.outvars, swap))


def _emit(
    eqns: list[Eqn], like: Eqn, op: compat.Primitive | Shape, operand: Atom, params: Mapping[str, object]
) -> Atom:
    if isinstance(op, tuple):
        eqns.append(walk.reshape_eqn(operand, op, like))
    else:
        eqns.append(walk.new_eqn(op, [operand], params, like))
    return eqns[-1].outvars[0]


def _lower_mesh_shard(eqn: Eqn, mesh: Shape, emit: Emit, is_on_device: Callable[[Atom], bool]) -> Atom:
    """Lowers one `mesh_shard`: folds it, or dispatches on its direction.

    A `shard_to_full` of one shard still transfers a device tensor to the host, so it is not folded there.
    """
    params = {k: v for k, v in eqn.params.items() if k != "assume_replicated"}
    attrs = MeshShardAttributes(**params)
    (operand,) = eqn.invars
    is_full = attrs.shard_direction is ShardDirection.FULL_TO_SHARD or attrs.shard_type is ShardType.IDENTITY
    if _folds(attrs, operand, mesh) and (is_full or not is_on_device(operand)):
        return operand
    dims = attrs.dims_on(len(mesh))
    if attrs.shard_direction is ShardDirection.FULL_TO_SHARD:
        return _lower_full_to_shard(operand, dims, mesh, emit)
    return _lower_shard_to_full(operand, attrs, dims, mesh, emit)


def _folds(attrs: MeshShardAttributes, operand: Atom, mesh: Shape) -> bool:
    """Returns True if tt-mlir folds it: it splits nothing. One of a value that varies between devices stays."""
    if attrs.shard_type is ShardType.IDENTITY:
        return True
    if attrs.shard_type is ShardType.REPLICATE or compat.varying_axes(operand.aval):
        return False
    return all(d < 0 or n == 1 for d, n in zip(attrs.shard_dims, mesh, strict=True))


def _lower_full_to_shard(operand: Atom, dims: Shape, mesh: Shape, emit: Emit) -> Atom:
    plan = _plan_distribute(operand.aval.shape, dims, mesh)
    full = operand if plan.before is None else emit(plan.before, operand, {})
    shard = emit(distribute_tensor_p, full, {"mapper_config": plan.config})
    _remark_legal(shard, plan.before is not None, False, plan.config.mesh_shape_override, mesh)
    return shard if plan.after is None else emit(plan.after, shard, {})


def _lower_shard_to_full(operand: Atom, attrs: MeshShardAttributes, dims: Shape, mesh: Shape, emit: Emit) -> Atom:
    if attrs.shard_type is ShardType.REPLICATE:
        return emit(aggregate_tensor_p, operand, {"composer_config": FIRST_DEVICE})
    plan = _plan_aggregate(operand.aval.shape, dims, mesh)
    shard = operand if plan.before is None else emit(plan.before, operand, {})
    full = emit(aggregate_tensor_p, shard, {"composer_config": plan.config})
    joined = [d for d in dims if d >= 0]
    factored = plan.before is not None and len(set(joined)) < len(joined)
    override = plan.config.mesh_shape_override
    _remark_legal(full, factored, plan.before is not None and not factored, override, mesh)
    return full if plan.after is None else emit(plan.after, full, {})


# --- remarks ---------------------------------------------------------------------------------------------------------


def _remark(eqn: Eqn, made: Sequence[Eqn]) -> None:
    log = remarks.COLLECTED.get()
    if log is None:
        return
    params = eqn.params
    op = f"mesh_shard {params['shard_direction'].value} {params['shard_type'].value}"
    for new in made:
        if new.primitive in (distribute_tensor_p, aggregate_tensor_p):
            text = f"{op}, shard_dims {list(params['shard_dims'])}, is {new.primitive.name}"
            rule = "full_to_shard is a distribute_tensor, shard_to_full an aggregate_tensor"
            log.add(new.outvars[0], "lowered", text, rule)
    if not made:
        rule = "a mesh_shard that splits nothing, or of type identity, is its input"
        log.remove(eqn, eqn.invars[0], f"{op} is folded", rule)


_UNIQUE = "TTNN's mapper and composer name each tensor dim once"


def _remark_legal(out: Atom, factored: bool, lead: bool, override: Any, mesh: Shape) -> None:
    log = remarks.COLLECTED.get()
    if log is None:
        return
    if factored:
        log.add(out, "legalised", "a dim that several mesh axes split is reshaped into its factors", _UNIQUE)
    elif lead:
        rule = "TTNN's composer has a dim of its own for each axis, also for one that it drops"
        log.add(out, "legalised", "dims of 1 are put before, and taken away after", rule)
    elif len(tuple(override)) != len(mesh):
        text = f"adjacent mesh axes that split one dim are merged: mesh_shape_override {list(override)}"
        log.add(out, "legalised", text, _UNIQUE)


# --- indices of mesh axes ---------------------------------------------------------------------------------------------

# Neither TTIR nor TTNN has an op for the coordinate of a device. A program that runs keeps JAX's own.


def split_axis_indices(program: Jaxpr, mesh: Mapping[str, int]) -> Jaxpr:
    """Returns the program with a `mesh_shard` in place of every `axis_index`, at every depth."""

    def body(jaxpr: Jaxpr, change: Callable[[Jaxpr], Jaxpr]) -> Jaxpr:
        eqns: list[Eqn] = []
        for eqn in jaxpr.eqns:
            is_index = eqn.primitive.name == "axis_index"
            eqns += _index(eqn, mesh) if is_index else [map_sub_jaxprs(eqn, change)]
        return walk.with_eqns(jaxpr, eqns, jaxpr.outvars)

    return at_every_depth(body)(program)


def distribute_axis_indices(program: Jaxpr, inputs: Sequence[Residency], mesh: Mapping[str, int]) -> Jaxpr:
    """Returns a lowered program with a `distribute_tensor` in place of every `axis_index`, at every depth."""
    split = split_axis_indices(program, mesh)
    return program if split is program else lower_mesh_shards(split, inputs, mesh)


def _index(eqn: Eqn, mesh: Mapping[str, int]) -> list[Eqn]:
    """Returns the equations of one index; the last has its result."""
    index, axis = eqn.outvars[0], eqn.params["axis_name"]
    size = mesh[axis]
    numbers = compat.Literal(np.arange(size, dtype=index.aval.dtype), compat.retype(index.aval, (size,), ()))
    made: list[Eqn] = []
    if size > 1:
        dims = tuple([0 if a == axis else -1 for a in mesh])
        attributes = MeshShardAttributes(ShardType.DEVICES, ShardDirection.FULL_TO_SHARD, (size,), dims)
        made.append(walk.new_eqn(mesh_shard_p, [numbers], attributes._asdict(), eqn))
    made.append(walk.reshape_eqn(made[0].outvars[0] if made else numbers, (), eqn))
    made[-1] = made[-1].replace(outvars=eqn.outvars)
    return made


# --- a replicated device tensor ---------------------------------------------------------------------------------------

# TTNN's `distribute_tensor` takes a host tensor, so upstream cannot distribute a tensor that is on the devices
# already. Every device holds all of it, so each slices its own shard; texts print one `mesh_partition` per axis.


def reshard_locally(distribute: Eqn) -> list[Eqn]:
    """Returns the equations that slice a device tensor into the shards of a distribute.

    The last one has the result of the distribute; copies for all devices are a reshape to the same shape. Empty if it
    does not split by whole mesh axes, or if the types do not prove the copies equal.
    """
    mesh = walk.mesh_of(distribute)
    sizes, operand = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)), distribute.invars[0]
    cut = resolve_mapper(distribute.params["mapper_config"], tuple(sizes.values()), operand.aval.shape)
    dims = mesh_axis_dims(cut.landing, cut.dims, drop_single=False)
    if dims is None:
        return []
    if all(d is None for d in dims):
        same = compat.varying_axes(operand.aval) == compat.varying_axes(distribute.outvars[0].aval)
        kept = walk.reshape_eqn(operand, operand.aval.shape, distribute)
        return [kept.replace(outvars=distribute.outvars)] if same else []
    split = [(axis, d) for axis, d in zip(sizes, dims, strict=True) if d is not None]

    # The type may vary over axes of size 1.
    alone = tuple(a for a in mesh.axis_names if a in compat.varying_axes(operand.aval))

    def piece(x: jax.Array) -> Any:
        x = first_copy(x, alone)
        # The lower mesh axis is the more significant, so it is sliced first.
        for axis, dim in split:
            shape, starts = list(x.shape), [0] * x.ndim
            shape[dim] //= sizes[axis]
            starts[dim] = lax.axis_index(axis) * np.int32(shape[dim])
            x = lax.dynamic_slice(x, starts, shape, allow_negative_indices=False)
        return x

    auto = with_axis_types(mesh, AxisType.Auto)
    # The spec names the axes that the shards vary over; the dim does not matter.
    spec = PartitionSpec(tuple(axis for axis, _ in split))
    whole = PartitionSpec(alone) if alone else PartitionSpec()
    mapped = compat.shard_map(piece, mesh=auto, in_specs=whole, out_specs=spec, check_vma=True)
    traced = typed.make_jaxpr(mapped)(jax.ShapeDtypeStruct(operand.aval.shape, operand.aval.dtype))
    (call,) = traced.eqns
    inner = call.params["jaxpr"]
    made = _inline(inner.eqns, {inner.invars[0]: operand}, distribute)
    made[-1] = made[-1].replace(outvars=distribute.outvars)
    return made


def _inline(eqns: Sequence[Eqn], swap: dict[Var, Atom], like: Eqn) -> list[Eqn]:
    made: list[Eqn] = []
    for eqn in eqns:
        outvars = [walk.fresh_var(v.aval) for v in eqn.outvars]
        invars = walk.substitute(eqn.invars, swap)
        made.append(eqn.replace(invars=invars, outvars=outvars, source_info=like.source_info, ctx=like.ctx))
        swap.update(zip(eqn.outvars, outvars, strict=True))
    return made
