"""The pass that moves what is computed once to the host's processor.

tt-mlir's CPUHoistConstEvalTransform (lib/Dialect/TTIR/Transforms/HoistCPUOps/CPUHoistConstEval.cpp at 19c86fca): the
operations of a function between two collectives become one call, if `ttir_cpu` has a function for each. Operations that
only create a result stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jaxmesh.dialects.definitions import DEFINITIONS, has_trait
from jaxmesh.dialects.host_calls import host_function_of
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import HOST_CALL, Op, Port, Program, Value
from jaxmesh.passes.def_use import DefUse
from jaxmesh.passes.layouts.decide_layouts import decide_layouts

_TRANSPARENT = frozenset({
    "ttnn.reshape", "ttnn.typecast", *(name for name, d in DEFINITIONS.items() if Trait.LAYOUT in d.traits),
})  # fmt: skip


def compute_on_host(function: Program, first: int = 0) -> Program:
    """Returns a function whose computation is one call, or several around collectives, of functions on the host.

    Args:
      function: a flat TTNN program that is called once, before its memory is managed.
      first: the number in the name of the first function on the host.
    """
    segments = [s for s in _segments(function) if all(host_function_of(function, op) for op in s)]
    if not segments:
        return function
    made = replace(function, types=list(function.types), ops=[])
    last = {id(s[-1]): (number, s) for number, s in enumerate(segments, first)}
    inside = {id(op) for s in segments for op in s}
    for op in function.ops:
        if id(op) in last:
            made.ops += _call(function, made, *last[id(op)])
        elif id(op) not in inside:
            made.ops.append(op)
    return decide_layouts(made, strict=False)


def _segments(function: Program) -> Iterator[list[Op]]:
    """Yields the operations between collectives, without operations that create a result or move tensors."""
    created = _created(function)
    segment: list[Op] = []
    for op in function.ops:
        if has_trait(op.name, Trait.COLLECTIVE):
            if segment:
                yield segment
            segment = []
        elif not has_trait(op.name, Trait.LAYOUT) and op.name != "ttnn.get_device" and id(op) not in created:
            segment.append(op)
    if segment:
        yield segment


def _created(function: Program) -> set[int]:
    """Returns the operations that create results from nothing."""
    maker = DefUse.of(function.ops).makers
    found: set[int] = set()
    for port in function.results:
        chain = [maker[port.value]] if port.value in maker else []
        while chain and chain[-1].name in _TRANSPARENT and chain[-1].used[0] in maker:
            chain.append(maker[chain[-1].used[0]])
        if chain and not _tensors(function, chain[-1]):
            found.update(map(id, chain))
    return found


def _tensors(function: Program, op: Op) -> list[Value]:
    return [v for v in op.used if function.types[v].kind == "tensor"]


def _call(function: Program, made: Program, number: int, ops: Sequence[Op]) -> Iterator[Op]:
    """Yields the call of a segment, and what brings each of its results to where it was."""
    place = {id(op) for op in ops}
    stored = {op.results[0]: op.used[0] for op in function.ops if has_trait(op.name, Trait.LAYOUT)}

    def source(value: Value) -> Value:
        while value in stored:
            value = stored[value]
        return value

    own = {v for op in ops for v in op.results}
    inner = [replace(op, operands=tuple(source(v) for v in _tensors(function, op))) for op in ops]
    given = tuple(dict.fromkeys(v for op in inner for v in op.used if v not in own))
    readers = [op for op in function.ops if id(op) not in place and not has_trait(op.name, Trait.LAYOUT)]
    read = {source(v) for op in readers for v in op.used}
    read.update(source(r.value) for r in function.results)
    results = [v for op in ops for v in op.results if v in read]
    computed = [made.new(replace(function.types[v], host=True, tile=False)) for v in results]
    name = f"cpu_hoisted_const_eval_{number}"
    body = replace(
        function,
        name=name,
        arguments=[Port(v, presharded=False) for v in given],
        ops=inner,
        results=[Port(v, presharded=False) for v in results],
    )
    yield Op(HOST_CALL, given, tuple(computed), {"callee": name, "function": body}, ops[0].line)
    for value, host in zip(results, computed, strict=True):
        yield Op("ttnn.to_layout", (host,), (value,), {"layout": "tile"}, ops[-1].line)
