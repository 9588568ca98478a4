"""Holds arguments on the devices between calls: they are there before the program starts, and it does not free them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from jaxmesh.dialects.program import Op, Program, Type, Value
from jaxmesh.dialects.ttnn.transfers import cut_axes
from jaxmesh.passes.memory import aliases
from jaxmesh.sharding.distribution import resolve_mapper

_RESHAPE, _DISTRIBUTE = "ttir.reshape", "ttnn.distribute_tensor"


def hold_arguments(program: Program, numbers: Collection[int]) -> Program:
    """Returns a flat program of a lowered jaxpr with the shards of some arguments in place of these arguments.

    An argument that is read in another way than by equal distributes stays as it is. One that the host reshapes before
    its copies are distributed is reshaped by the devices. Split over axes in another order than the mesh's, an argument
    is reshaped before and after its distribute, and is there in the shape of its shards.
    """
    given = {program.arguments[i].value: i for i in numbers if not program.arguments[i].presharded}
    program, readers = _distribute_first(program, given), dict[Value, list[Op]]()
    for op in program.ops:
        for value in op.used:
            readers.setdefault(value, []).append(op)
    sizes, returned = tuple(program.mesh.values()), {port.value for port in program.results}
    arguments, types, made = list(program.arguments), list(program.types), dict[Value, Value]()
    gone = set[Value]()
    for value, i in given.items():
        chains = [chain for op in readers.get(value, ()) for chain in _chains(op, readers, returned)]
        kinds = {_kind(chain, types) for chain in chains}
        if value in returned or len(kinds) != 1 or None in kinds:
            continue
        transfer = next(op for op in chains[0] if op.name == _DISTRIBUTE)
        resolved = resolve_mapper(transfer.attributes["mapper_config"], sizes, types[transfer.used[0]].shape)
        cut = cut_axes(resolved, program.mesh)
        varying = tuple(i for i, a in enumerate(program.mesh) if a in cut)
        arguments[i] = replace(arguments[i], presharded=True, varying=varying)
        types[value] = types[chains[0][-1].results[0]]
        made.update((chain[-1].results[0], value) for chain in chains)
        gone.update(op.results[0] for chain in chains for op in chain)
    ops = [op.reading(made) for op in program.ops if gone.isdisjoint(op.results)]
    results = [replace(port, value=made.get(port.value, port.value)) for port in program.results]
    return replace(program, types=types, arguments=arguments, ops=ops, results=results)


def _chains(op: Op, readers: Mapping[Value, Sequence[Op]], returned: Collection[Value]) -> Iterator[tuple[Op, ...]]:
    """Yields the ops that make shards of an argument that an op reads: a distribute, or one between two reshapes.

    Yields no op where the argument is read in another way.
    """
    transfers = readers.get(op.results[0], ()) if op.name == _RESHAPE else ()
    if not transfers or op.results[0] in returned:
        yield (op,) if op.name == _DISTRIBUTE else ()
        return
    for transfer in transfers:
        after = readers.get(transfer.results[0], ()) if transfer.name == _DISTRIBUTE else ()
        whole = after and transfer.results[0] not in returned and all(last.name == _RESHAPE for last in after)
        yield from ((op, transfer, last) for last in after) if whole else [()]


def _kind(chain: Sequence[Op], types: Sequence[Type]) -> tuple[object, ...] | None:
    """Returns what two chains have in common that make the same shards; None for no chain."""
    found = [(op.attributes.get("mapper_config"), types[op.results[0]].shape) for op in chain]
    return tuple(found) or None


def _distribute_first(program: Program, given: Collection[Value]) -> Program:
    """Returns a program with the reshapes of some arguments after the distributes of their copies."""
    kept = {v for op in program.ops if not _copies(op, program) for v in op.used}
    kept |= {port.value for port in program.results}
    shapes = {op.results[0]: op for op in program.ops if op.name == _RESHAPE and op.used[0] in given}
    shapes = {value: op for value, op in shapes.items() if value not in kept}
    types, ops = list(program.types), list[Op]()
    for op in program.ops:
        reshape = shapes.get(op.used[0]) if op.used else None
        if reshape is None:
            ops.append(op)
            continue
        source, copy = reshape.used[0], len(types)
        types.append(replace(types[op.results[0]], shape=types[source].shape))
        ops.append(replace(op, operands=(source, *op.operands[1:]), results=(copy,)))
        ops.append(replace(reshape, operands=(copy, *reshape.operands[1:]), results=op.results))
    return replace(program, types=types, ops=[op for op in ops if shapes.keys().isdisjoint(op.results)])


def _copies(op: Op, program: Program) -> bool:
    """Returns True if an op distributes a full tensor to each device."""
    if op.name != _DISTRIBUTE:
        return False
    sizes, shape = tuple(program.mesh.values()), program.types[op.used[0]].shape
    return not cut_axes(resolve_mapper(op.attributes["mapper_config"], sizes, shape), program.mesh)


def keep_arguments(program: Program, donated: Collection[int]) -> Program:
    """Returns a flat TTNN program that frees no argument on the devices, except for the donated ones."""
    first = aliases(program.ops, program.types)
    kept = (port.value for i, port in enumerate(program.arguments) if port.presharded and i not in donated)
    held = {first.get(value, value) for value in kept}
    freed = "ttnn.deallocate"
    return program.like(
        (op for op in program.ops if op.name != freed or first.get(op.used[0], op.used[0]) not in held), program.results
    )
