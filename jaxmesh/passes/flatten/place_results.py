"""Results that stay on the devices, in flat form: a value that no operation put there is given the one that does.

Types say where a value of a traced program lives, and a loop or a branch may say "on the devices" of a value that the
steps it takes leave on the host: no step at all, or the branch that returns an argument. So may a collective of one
device that gives a constant. In flat form only what is done is there, so a result that is declared presharded has to be
put on the devices by an operation; a mesh_shard into one piece, other than the replicating one, is none.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Port, Program, Value
from jaxmesh.sharding.shard_attributes import replicate_mapper


def placed_results(program: Program, level: str) -> Program:
    """A program, its ops not yet TTNN's, in which every result that is declared presharded is on the devices."""
    if not any(port.presharded for port in program.results):
        return program
    held = _on_devices(program)
    if all(port.value in held for port in program.results if port.presharded):
        return program
    ops, moved = list(program.ops), dict[Value, Value]()
    results = [_placed(program, port, held, ops, moved, level) for port in program.results]
    return program.like(ops, results)


def _on_devices(program: Program) -> set[Value]:
    """The values that live on the devices."""
    held = {port.value for port in program.arguments if port.presharded}
    for op in program.ops:
        if _puts_there(op, held):
            held.update(op.results)
    return held


def _puts_there(op: Op, held: set[Value]) -> bool:
    if op.name == "ttnn.aggregate_tensor":
        return False
    if op.name == "ttir.mesh_shard":
        if not _is_folded(op):
            return op.attributes["shard_direction"] == "full_to_shard"
    elif has_trait(op.name, Trait.COLLECTIVE):
        return True
    return any(v in held for v in op.used)


def _is_folded(op: Op) -> bool:
    """Whether a mesh_shard is its input, by the fold of TTIR."""
    kind = op.attributes["shard_type"]
    return kind == "identity" or (kind != "replicate" and math.prod(op.attributes["shard_shape"]) == 1)


def _placed(
    program: Program, port: Port, held: set[Value], ops: list[Op], moved: dict[Value, Value], level: str
) -> Port:
    if not port.presharded or port.value in held:
        return port
    if port.value not in moved:
        moved[port.value] = program.new(program.types[port.value])
        ops.append(_replicates(program, port.value, moved[port.value], level))
    return replace(port, value=moved[port.value])


def _replicates(program: Program, value: Value, out: Value, level: str) -> Op:
    if level == "ttnn":
        said: dict[str, Any] = {"mapper_config": replicate_mapper(tuple(program.mesh.values()))}
        return Op("ttnn.distribute_tensor", (value,), (out,), said)
    said = {"shard_dims": (-1,), "shard_direction": "full_to_shard", "shard_shape": (1,), "shard_type": "replicate"}
    return Op("ttir.mesh_shard", (value,), (out,), said)
