"""Checks whether a flat TTIR program may work in place: no op may read what an earlier one has written over."""

from __future__ import annotations

from jaxmesh.dialects.definitions import definition_of, has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Program, Value


def reads_overwritten(program: Program) -> bool:
    """Returns True if an op or a result reads a value after an op has written over its memory.

    Upstream's `ttir.fill_cache` and `ttir.update_cache` have no result: the cache itself holds it afterwards. A reshape
    may be a view, so it counts as the memory of its operand.
    """
    memory: dict[Value, Value] = {}
    sharing: dict[Value, set[Value]] = {}
    stale: set[Value] = set()

    def share(value: Value, other: Value) -> None:
        memory[value] = first = memory.get(other, other)
        sharing.setdefault(first, {first}).add(value)

    for op in program.ops:
        if not stale.isdisjoint(op.used):
            return True
        row = definition_of(op.name)
        into = None if row is None or row.writes is None else op.operands[row.writes]
        if into is not None:
            first = memory.get(into, into)
            if sum(memory.get(v, v) == first for v in op.used) > 1:
                return True
            stale |= sharing.get(first, {first})
            share(op.results[0], into)
        elif has_trait(op.name, Trait.VIEW):
            share(op.results[0], op.used[0])
    return any(r.value in stale for r in program.results)
