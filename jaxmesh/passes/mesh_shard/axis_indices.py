"""Replaces every `axis_index` of a program that is printed: the numbers from 0 on are split over the mesh axis.

Neither TTIR nor TTNN has an op for the coordinate of a device. A program that runs keeps JAX's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxmesh.dialects.residency import Residency
from jaxmesh.dialects.ttir.mesh_shard import MeshShardAttributes, ShardDirection, ShardType, mesh_shard_p
from jaxmesh.jaxprs import compat, remarks, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs
from jaxmesh.passes.mesh_shard.lower_mesh_shard import lower_mesh_shards


def split_axis_indices(program: Jaxpr, mesh: Mapping[str, int]) -> Jaxpr:
    """Returns the program with a `mesh_shard` in place of every `axis_index`, at every depth."""
    memo = walk.Memo[Jaxpr]()

    def change(jaxpr: Jaxpr) -> Jaxpr:
        return memo.get(jaxpr, lambda: body(jaxpr))

    def body(jaxpr: Jaxpr) -> Jaxpr:
        eqns: list[Eqn] = []
        for eqn in jaxpr.eqns:
            is_index = eqn.primitive.name == "axis_index"
            eqns += _index(eqn, mesh) if is_index else [map_sub_jaxprs(eqn, change)]
        if len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return jaxpr
        return walk.with_eqns(jaxpr, eqns, jaxpr.outvars)

    return change(program)


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
        rule = "TTNN has no op for the coordinate of a device"
        remarks.remark("legalised", "the numbers from 0 on are distributed along the axis", rule)
        dims = tuple([0 if a == axis else -1 for a in mesh])
        attributes = MeshShardAttributes(ShardType.DEVICES, ShardDirection.FULL_TO_SHARD, (size,), dims)
        made.append(walk.new_eqn(mesh_shard_p, [numbers], attributes._asdict(), eqn))
    made.append(walk.reshape_eqn(made[0].outvars[0] if made else numbers, (), eqn))
    made[-1] = made[-1].replace(outvars=eqn.outvars)
    return made
