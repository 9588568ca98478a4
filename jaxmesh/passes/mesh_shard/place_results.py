"""Distributes results of a flat TTIR program that are declared presharded and that no operation distributes.

The residency of a result of a traced program is static. A loop without iterations, or a branch that returns an
argument, may leave such a result on the host, and a flat program holds neither loop nor branch. In a lowered program
the transfer is explicit in the loop or the branch.
"""

from __future__ import annotations

import math
from dataclasses import replace

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Port, Program, Value


def place_results(program: Program) -> Program:
    """Returns a TTIR program whose presharded results are on the devices."""
    if not any(port.presharded for port in program.results):
        return program
    placed_values = _on_devices(program)
    if all(port.value in placed_values for port in program.results if port.presharded):
        return program
    ops, moved = list(program.ops), dict[Value, Value]()
    results = [_place(program, port, placed_values, ops, moved) for port in program.results]
    return program.like(ops, results)


def _on_devices(program: Program) -> set[Value]:
    """Returns the values that live on the devices."""
    placed_values = {port.value for port in program.arguments if port.presharded}
    for op in program.ops:
        if _puts_there(op, placed_values):
            placed_values.update(op.results)
    return placed_values


def _puts_there(op: Op, placed_values: set[Value]) -> bool:
    if op.name == "ttnn.aggregate_tensor":
        return False
    if op.name == "ttir.mesh_shard":
        if not _is_folded(op):
            return op.attributes["shard_direction"] == "full_to_shard"
    elif has_trait(op.name, Trait.COLLECTIVE):
        return True
    return any(v in placed_values for v in op.used)


def _is_folded(op: Op) -> bool:
    """Returns True if a mesh_shard is its input, by the fold of TTIR."""
    kind = op.attributes["shard_type"]
    return kind == "identity" or (kind != "replicate" and math.prod(op.attributes["shard_shape"]) == 1)


def _place(program: Program, port: Port, placed_values: set[Value], ops: list[Op], moved: dict[Value, Value]) -> Port:
    if not port.presharded or port.value in placed_values:
        return port
    if port.value not in moved:
        moved[port.value] = program.new(program.types[port.value])
        ops.append(_replicate(port.value, moved[port.value]))
    return replace(port, value=moved[port.value])


def _replicate(value: Value, out: Value) -> Op:
    attributes = {
        "shard_dims": (-1,), "shard_direction": "full_to_shard", "shard_shape": (1,), "shard_type": "replicate",
    }  # fmt: skip
    return Op("ttir.mesh_shard", (value,), (out,), attributes)
