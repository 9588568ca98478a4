"""Running a flat program by the meanings of the table's rows: what its text would say, without the text."""

from __future__ import annotations

from typing import Any

import jax

import jaxmesh as jm
from jaxmesh.dialects.definitions import definition_of
from jaxmesh.dialects.perform import evaluate
from jaxmesh.dialects.program import Op, Program
from jaxmesh.dialects.ttir.mesh_shard import mesh_shard
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.jaxprs import compat
from jaxmesh.passes.flatten.flatten import flatten
from jaxmesh.passes.mesh_shard.lower_mesh_shard import split_axis_indices
from jaxmesh.passes.pipeline import printed_jaxpr

_UNCHANGED = ("ttnn.to_device", "ttnn.from_device", "ttnn.to_layout", "ttnn.to_memory_config")


def flat_of(stage: Any, level: str) -> Program:
    """The flat program of a `Traced` (level `ttir`) or a `Lowered` (level `ttnn`)."""
    places = [a.varying is not None for a in stage._boundary.arguments]
    kept = [level == "ttnn" and p.name == "DEVICE" for p in stage.residency.results] if level == "ttnn" else None
    outs = kept or [bool(compat.varying_axes(a)) for a in stage.out_avals]
    mesh = stage._boundary.sizes
    return flatten(
        split_axis_indices(stage.jaxpr, mesh) if level == "ttir" else printed_jaxpr(stage.residency, mesh),
        name=stage._boundary.name,
        mesh=mesh,
        level=level,
        arguments=[(p, f"[{i}]") for i, p in enumerate(places)],
        results=[(p, f"[{i}]") for i, p in enumerate(outs)],
    )


def in_two_dims(mesh: Any) -> Any:
    """A mesh of one axis as one row of devices, as the programs of TTNN have it."""
    if len(mesh.axis_names) > 1:
        return mesh
    return jax.sharding.Mesh(mesh.devices.reshape(1, -1), ("_0", *mesh.axis_names))


def run_flat(program: Program, mesh: Any, *args: Any) -> list[Any]:
    """The results of a flat program, of either level, by the meaning of each op; full arrays or MeshTensors."""

    def function(*values: Any) -> list[Any]:
        env: dict[int, Any] = {a.value: x for a, x in zip(program.arguments, values, strict=True)}
        for op in program.ops:
            env.update(
                zip(
                    op.results, _perform(program, op, [None if v is None else env[v] for v in op.operands]), strict=True
                )
            )
        return [env[r.value] for r in program.results]

    there = in_two_dims(mesh) if len(program.mesh) > len(mesh.axis_names) else mesh
    out: list[Any] = jm.jit(function, mesh=there)(*args)
    return out


def _perform(program: Program, op: Op, operands: list[Any]) -> list[Any]:
    if op.name == "ttir.mesh_shard":
        said = dict(op.attributes)
        return [mesh_shard(operands[0], **said)]
    if op.name == "ttnn.get_device":
        return ["device"]
    if op.name == "ttnn.deallocate":
        return []
    if op.name in _UNCHANGED:
        return operands[:1]
    if op.name == "ttnn.distribute_tensor":
        return [distribute_tensor_p.bind(operands[0], mapper_config=op.attributes["mapper_config"])]
    if op.name == "ttnn.aggregate_tensor":
        return [aggregate_tensor_p.bind(operands[0], composer_config=op.attributes["composer_config"])]
    definition = definition_of(op.name)
    assert definition is not None, op.name
    tensors = [x for x in operands if x is not None and not isinstance(x, str)]
    attributes = dict(op.attributes)
    if None in operands:
        attributes["operandSegmentSizes"] = tuple(int(x is not None) for x in operands)
    kinds = [jax.ShapeDtypeStruct(program.types[v].shape, program.types[v].dtype) for v in op.results]
    return evaluate(definition, tensors, attributes, kinds, program.mesh)
