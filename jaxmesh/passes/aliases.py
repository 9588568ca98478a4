"""Finds the values of a flat program that share memory: views, and results of ops that work in place.

A reshape is a view where no element has to move: the last dim stays, and rows lie one after the other or the tiles of
the last two dims stay whole. The rule is tt-metal's own (`ttnn.reshape`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxmesh.dialects.definitions import definition_of, has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Type, Value

_TILE = 32
_RESHAPE = "ttnn.reshape"


def is_view(before: Type, after: Type) -> bool:
    """Returns True if a reshape from one type to another moves no element.

    >>> import numpy as np
    >>> def tiles(*shape): return Type(shape, np.dtype("float32"), tile=True)
    >>> is_view(tiles(64, 32), tiles(2, 32, 32)), is_view(tiles(4, 32), tiles(2, 2, 32))
    (True, False)
    """
    (rows, last), (rows_after, last_after) = _last_two(before), _last_two(after)
    if last != last_after:
        return False
    return not before.tile or rows == rows_after or (rows % _TILE == 0 and rows_after % _TILE == 0)


def _last_two(tensor: Type) -> tuple[int, int]:
    rows, last = (1, 1, *tensor.shape)[-2:]
    return rows, last


def aliases(ops: Iterable[Op], types: Sequence[Type]) -> dict[Value, Value]:
    """Returns, for every value that shares the buffer of earlier ones, the first of them."""
    first: dict[Value, Value] = {}
    for op in ops:
        number = _shared_operand(op)
        source = None if number is None or number >= len(op.operands) else op.operands[number]
        if source is None or (op.name == _RESHAPE and not is_view(types[source], types[op.results[0]])):
            continue
        first.update((v, first.get(source, source)) for v in op.results)
    return first


def _shared_operand(op: Op) -> int | None:
    """Returns the number of the operand whose buffer the results of an op may share."""
    definition = definition_of(op.name)
    return 0 if op.name == _RESHAPE else None if definition is None else definition.in_place


def reads_overwritten(program: Program) -> bool:
    """Returns True if an op or a result reads a value after an op has written over its memory.

    Upstream's `ttir.fill_cache` and `ttir.update_cache` lack a result: the cache itself holds it afterwards. A reshape
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
        definition = definition_of(op.name)
        number = None if definition is None else definition.overwritten
        into = None if number is None else op.operands[number]
        if into is not None:
            first = memory.get(into, into)
            if sum(memory.get(v, v) == first for v in op.used) > 1:
                return True
            stale |= sharing.get(first, {first})
            share(op.results[0], into)
        elif has_trait(op.name, Trait.VIEW):
            share(op.results[0], op.used[0])
    return any(r.value in stale for r in program.results)
