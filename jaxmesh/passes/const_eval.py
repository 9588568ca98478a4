"""The pass that groups what depends on parameters and constants alone into functions that run once.

tt-mlir's ConstEvalHoistTransform (lib/Transforms/ConstEvalHoist.cpp at 19c86fca) and, of arguments that only such
functions read, TTNNConstEvalInputsToSystemMemory. Operations that no activation reaches are joined where one reads
another, each group becomes a function, and a `ttcore.load_cached` stands for its call. Values keep their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import HOST_CALL, LOAD_CACHED, WEIGHTS, Op, Port, Program, Value
from jaxmesh.passes.aliases import written_by
from jaxmesh.passes.compute_on_host import compute_on_host
from jaxmesh.passes.layouts.decide_layouts import decide_layouts
from jaxmesh.passes.memory import manage_memory


def hoist_const_eval(program: Program, *, on_host: bool = False, first: int = 0) -> Program:
    """Returns a flat TTNN program with its constant operations in functions, which its first operations call.

    Args:
      program: with its memory managed; its ports say which arguments are parameters and constants.
      on_host: whether the host's processor computes what it can of the functions.
      first: the number of the first function on the host.
    """
    program = replace(program, ops=[op for op in program.ops if op.name != "ttnn.deallocate"])
    program = group_constants(_place(program, {a.value: False for a in program.arguments if a.role == "input"}))
    calls = [op for op in program.ops if op.name == LOAD_CACHED]
    if not calls:
        return manage_memory(program)
    left = [op for op in program.ops if op.name != LOAD_CACHED]
    read = {r.value for r in program.results}.union(*(op.used for op in left))
    weights = [a.value for a in program.arguments if a.role in WEIGHTS]
    host = {v: True for call in calls for v in call.used if v not in read}
    loads: list[Op] = []
    for call in calls:
        function = _moved_first(_place(call.attributes["function"], host))
        if on_host:
            function = compute_on_host(function, first)
            first += sum(op.name == HOST_CALL for op in function.ops)
        attributes = {
            "callee": function.name,
            "function": manage_memory(function, kept=[a.value for a in function.arguments]),
        }
        loads.append(replace(call, attributes=attributes))
    outer = _place(program.like([*loads, *left], program.results), host, only=True)
    # Cached values live on, and so do their sources.
    return manage_memory(outer, kept=[*weights, *(v for call in calls for v in call.results)])


def group_constants(program: Program) -> Program:
    """Returns a flat program of either dialect with its constant operations in functions, and its memory unchanged."""
    groups, moves = _groups(program)
    calls = [_call(program, ops, moves, number) for number, ops in enumerate(groups)]
    hoisted = {*moves, *(v for ops in groups for op in ops for v in op.results)}
    left = [op for op in program.ops if hoisted.isdisjoint(op.results)]
    return program.like([*calls, *_with_device(program, left)], program.results) if calls else program


def _constant_values(program: Program) -> set[Value]:
    """Returns parameters, constants, and values that depend on nothing else, unless something writes to them."""
    written = {v for op in program.ops for v in written_by(op)}
    found = {a.value for a in program.arguments if a.role in WEIGHTS} - written
    for op in program.ops:
        reads = [v for v in op.used if program.types[v].kind != "device"]
        apart = has_trait(op.name, Trait.IMPURE) or written_by(op) or not written.isdisjoint(op.results)
        if not apart and found.issuperset(reads):
            found.update(op.results)
    return found


def _groups(program: Program) -> tuple[list[list[Op]], dict[Value, Op]]:
    """Returns the constant operations, joined where one reads a result of another, by the first of each.

    An argument in another layout joins nothing: each group that reads it makes its own by the operations that are
    returned beside.
    """
    constant = _constant_values(program)
    moves: dict[Value, Op] = {}
    group_of: dict[Value, int] = {}
    groups: dict[int, list[Op]] = {}
    for number, op in enumerate(program.ops):
        if not op.results or not constant.issuperset(op.results):
            continue
        if has_trait(op.name, Trait.LAYOUT) and op.used[0] not in group_of:
            moves[op.results[0]] = op
            continue
        first, *others = sorted({group_of[v] for v in op.used if v in group_of}) or [number]
        groups.setdefault(first, []).append(op)
        for other in others:
            groups[first] += groups.pop(other)
        group_of.update((v, first) for o in groups[first] for v in o.results)
    place = {id(op): number for number, op in enumerate(program.ops)}
    needed = {v for op in program.ops if constant.isdisjoint(op.results) for v in op.used}
    needed.update(r.value for r in program.results)
    groups |= {place[id(moves[v])]: [moves[v]] for v in needed if v in moves}
    return [sorted(ops, key=lambda op: place[id(op)]) for _, ops in sorted(groups.items())], moves


def _call(program: Program, group: Sequence[Op], moves: dict[Value, Op], number: int) -> Op:
    """Returns the call of a group's function, which brings arguments to the layouts that it reads."""
    ops = list(group)
    own = {id(op) for op in ops}
    outside = {r.value for r in program.results}
    outside.update(v for op in program.ops if id(op) not in own for v in op.used)
    results = tuple(v for op in ops for v in op.results if v in outside)
    read = {v for op in ops for v in op.used}
    for value, op in reversed(moves.items()):
        if value in read and id(op) not in own:
            read.update(op.used)
            ops.insert(0, op)
    there = {a.value: a.presharded for a in program.arguments if a.value in read}
    given = tuple(there)
    function = replace(
        program,
        name=f"{program.name}_const_eval_{number}",
        types=list(program.types),
        arguments=[Port(*row) for row in there.items()],
        ops=_with_device(program, ops),
        results=[Port(v, not program.types[v].host) for v in results],
        public=False,
    )
    return Op(LOAD_CACHED, given, results, {"callee": function.name, "function": function}, ops[0].line)


def _with_device(program: Program, ops: Sequence[Op]) -> list[Op]:
    """Returns operations, preceded by `get_device` if they read the device."""
    read = {v for op in ops for v in op.used}
    makers = [op for op in program.ops if op.name == "ttnn.get_device" and read.intersection(op.results)]
    return [*makers, *(op for op in ops if op.name != "ttnn.get_device")]


def _moved_first(function: Program) -> Program:
    """Returns a function whose arguments are brought to the devices first, the last of them before the others."""
    first = [op for op in function.ops if op.name == "ttnn.get_device"]
    for port in reversed(function.arguments):
        reached = {port.value}
        for op in function.ops:
            if has_trait(op.name, Trait.LAYOUT) and op.used[0] in reached:
                reached.update(op.results)
                first.append(op)
    made = {v for op in first for v in op.results}
    return function.like([*first, *(op for op in function.ops if made.isdisjoint(op.results))], function.results)


def _place(program: Program, host: Mapping[Value, bool], *, only: bool = False) -> Program:
    """Returns the program with arguments in rows, in host memory or not, and what follows, unless their types only."""
    types = list(program.types)
    for port in program.arguments:
        kind = types[port.value]
        if port.value in host and not kind.host and not kind.layout:
            types[port.value] = replace(kind, host=host[port.value], tile=False)
    if types == program.types:
        return program
    placed = replace(program, types=types)
    return placed if only else decide_layouts(placed, strict=False)
