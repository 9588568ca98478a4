"""The moves of the flat TTNN program for one collective: runs the pipeline on its equation alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from jaxmesh.analysis.explain.records import Move
from jaxmesh.analysis.explain.traffic import exchange
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program
from jaxmesh.dialects.residency import DEVICE
from jaxmesh.errors import JaxmeshError
from jaxmesh.jaxprs import remarks, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.remarks import Remark
from jaxmesh.passes.flatten.flatten import flatten_on_devices
from jaxmesh.passes.mesh_shard.lower_mesh_shard import distribute_axis_indices
from jaxmesh.passes.pipeline import FUSE, run_passes, ttnn_pipeline


def ttnn_moves(eqn: Eqn, body: Jaxpr, mesh: Mapping[str, int]) -> tuple[list[Move], list[Remark]]:
    """Returns the moves of the TTNN ops of one collective in `body`, and the remarks of the passes."""
    with remarks.collect() as log:
        try:
            alone = walk.alone(eqn, body)
            alone = distribute_axis_indices(alone, [DEVICE] * len(alone.in_avals), mesh)
            program = run_passes(ttnn_pipeline(strict=False), flatten_on_devices(alone, mesh), without=(FUSE,))
        except JaxmeshError as error:
            return [], [Remark("no TTNN", str(error), "what has no rule is an error when the text is asked for")]
    return _merge(m for op in program.ops for m in op_moves(op, program)), log.general


def _merge(moves: Iterable[Move]) -> list[Move]:
    """Merges equal moves from one device to another."""
    merged: dict[object, Move] = {}
    for number, move in enumerate(moves):
        key = (move.axes, move.bytes) if move.kind == "point_to_point" else number
        old = merged.get(key)
        merged[key] = move if old is None else replace(old, groups=old.groups + 1, sent=old.sent + move.sent)
    return list(merged.values())


def op_moves(op: Op, program: Program) -> list[Move]:
    """Returns the moves of one op of a flat TTNN program among the devices."""
    name, mesh = op.name.removeprefix("ttnn."), program.mesh
    names, devices = list(mesh), math.prod(mesh.values())
    if name == "point_to_point":
        pair = zip(names, op.attributes["sender_coord"], op.attributes["receiver_coord"], strict=True)
        axes = tuple(a for a, s, t in pair if s != t)
        sent = _bytes(program, op.used[0])
        return [Move(name, axes, 2, 1, sent, sent)] if sent else []
    if not has_trait(op.name, Trait.SENDS):
        return []
    number: int = op.attributes["cluster_axis"]
    axis = names[number]
    operand, result = _bytes(program, op.used[0]), _bytes(program, op.results[0])
    return exchange(name.removesuffix("_async"), (axis,), mesh[axis], devices // mesh[axis], operand, result)


def _bytes(program: Program, value: int) -> int:
    tensor_type = program.types[value]
    return math.prod(tensor_type.shape) * np.dtype(tensor_type.dtype).itemsize
