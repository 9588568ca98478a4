"""Holds arguments on the devices between calls: they are there before the program starts, and it does not free them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from jaxmesh.dialects.program import Program, Value
from jaxmesh.dialects.ttnn.transfers import cut_axes
from jaxmesh.passes.memory import aliases
from jaxmesh.sharding.distribution import resolve_mapper


def hold_arguments(program: Program, numbers: Collection[int]) -> Program:
    """Returns a flat program of a lowered jaxpr with the shards of some arguments in place of these arguments.

    An argument that is read in another way than by one distribute stays as it is.
    """
    reads, sizes = Counter(v for op in program.ops for v in op.used), tuple(program.mesh.values())
    given = {program.arguments[i].value: i for i in numbers if not program.arguments[i].presharded}
    returned = {port.value for port in program.results}
    arguments, types, made = list(program.arguments), list(program.types), dict[Value, Value]()
    for op in program.ops:
        value = op.used[0] if op.name == "ttnn.distribute_tensor" else None
        if value not in given or reads[value] != 1 or value in returned:
            continue
        resolved = resolve_mapper(op.attributes["mapper_config"], sizes, types[value].shape)
        cut = cut_axes(resolved, program.mesh)
        varying = tuple(i for i, a in enumerate(program.mesh) if a in cut)
        arguments[given[value]] = replace(arguments[given[value]], presharded=True, varying=varying)
        types[value], made[op.results[0]] = types[op.results[0]], value
    ops = [op.reading(made) for op in program.ops if made.keys().isdisjoint(op.results)]
    results = [replace(port, value=made.get(port.value, port.value)) for port in program.results]
    return replace(program, types=types, arguments=arguments, ops=ops, results=results)


def keep_arguments(program: Program, donated: Collection[int]) -> Program:
    """Returns a flat TTNN program that frees no argument on the devices, except for the donated ones."""
    first = aliases(program.ops, program.types)
    kept = (port.value for i, port in enumerate(program.arguments) if port.presharded and i not in donated)
    held = {first.get(value, value) for value in kept}
    freed = "ttnn.deallocate"
    return program.like(
        (op for op in program.ops if op.name != freed or first.get(op.used[0], op.used[0]) not in held), program.results
    )
