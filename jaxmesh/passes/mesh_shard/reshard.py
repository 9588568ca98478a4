"""Reshards a replicated device tensor on the devices.

TTNN's `distribute_tensor` takes a host tensor, so upstream cannot distribute a tensor that is on the devices
already. Every device holds all of it, so each slices its own shard; texts print one `mesh_partition` per axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from jaxmesh.dialects.ttnn.transfers import first_copy
from jaxmesh.jaxprs import compat, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Var
from jaxmesh.sharding.distribution import mesh_axis_dims, resolve_mapper

_lax: Any = jax.lax


def reshard_locally(distribute: Eqn) -> list[Eqn]:
    """Returns the equations that slice a device tensor into the shards of a distribute.

    The last one has the result of the distribute. Empty if the distribute splits nothing, or not by whole mesh axes.
    """
    mesh = walk.mesh_of(distribute)
    sizes, operand = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)), distribute.invars[0]
    cut = resolve_mapper(distribute.params["mapper_config"], tuple(sizes.values()), operand.aval.shape)
    dims = mesh_axis_dims(cut.landing, cut.dims, drop_single=False)
    if dims is None or all(d is None for d in dims):
        return []
    split = [(axis, d) for axis, d in zip(sizes, dims, strict=True) if d is not None]

    # The type may vary over axes of size 1.
    alone = tuple(a for a in mesh.axis_names if a in compat.varying_axes(operand.aval))

    def piece(x: Any) -> Any:
        x = first_copy(x, alone)
        # The lower mesh axis is the more significant, so it is sliced first.
        for axis, dim in split:
            shape, starts = list(x.shape), [0] * x.ndim
            shape[dim] //= sizes[axis]
            starts[dim] = _lax.axis_index(axis) * np.int32(shape[dim])
            x = _lax.dynamic_slice(x, starts, shape, allow_negative_indices=False)
        return x

    auto = mesh.update(axis_types=(AxisType.Auto,) * len(sizes))
    # The spec names the axes that the shards vary over; the dim does not matter.
    spec = PartitionSpec(tuple(axis for axis, _ in split))
    whole = PartitionSpec(alone) if alone else PartitionSpec()
    mapped: Any = compat.shard_map(piece, mesh=auto, in_specs=whole, out_specs=spec, check_vma=True)
    traced = jax.make_jaxpr(mapped)(jax.ShapeDtypeStruct(operand.aval.shape, operand.aval.dtype))
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
