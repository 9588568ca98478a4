"""Memory of a flat TTNN program: copies before in-place ops, deallocations after last uses.

Values share memory as views, and as results of ops that work in place. A reshape is a view where no element has to
move: the last dim stays, and rows lie one after the other or the tiles of the last two dims stay whole. The rule is
tt-metal's own (`ttnn.reshape`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from jaxmesh.dialects.definitions import definition_of, has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import LOOP, Op, Program, Type, Value
from jaxmesh.dialects.ttnn.layouts import is_view
from jaxmesh.passes.ttir_to_ttnn.builder import with_defaults

RESHAPE = "ttnn.reshape"


def aliases(ops: Iterable[Op], types: Sequence[Type]) -> dict[Value, Value]:
    """Returns, for every value that shares the buffer of earlier ones, the first of them."""
    first: dict[Value, Value] = {}
    for op in ops:
        if op.name == LOOP:
            for value, other in _shared_by_loop(op):
                _join(first, value, other)
            continue
        number = _shared_operand(op)
        source = None if number is None or number >= len(op.operands) else op.operands[number]
        if source is None:
            continue
        if op.name == RESHAPE and not is_view(types[source].shape, types[op.results[0]].shape, types[source].tile):
            continue
        first.update((v, first.get(source, source)) for v in op.results)
    return first


def _join(first: dict[Value, Value], value: Value, other: Value) -> None:
    """Makes two values share a buffer, with all values that share one with either."""
    late, kept = first.get(value, value), first.get(other, other)
    if late != kept:
        first.update(dict.fromkeys((late, *(v for v, known in first.items() if known == late)), kept))


def _shared_by_loop(loop: Op) -> Iterator[tuple[Value, Value]]:
    """Yields each result of a loop with a state before it, or an earlier result, whose buffer it may have.

    A body may give back its arguments, also in another order, and a value twice. A loop under a condition may end after
    any number of iterations.
    """
    body, trips = loop.attributes.get("body"), loop.attributes.get("trips")
    if body is None:
        yield from zip(loop.results, loop.used, strict=False)
        return
    first, numbers = aliases(body.ops, body.types), {port.value: i for i, port in enumerate(body.arguments)}
    # Behind its states, a loop has operands that stay.
    given = [first.get(p.value, p.value) for p in (*body.results, *body.arguments[len(body.results) :])]
    made: dict[tuple[int, Value | None], Value] = {}
    for i, value in enumerate(loop.results):
        # By iterations back from the end: the state that becomes this result.
        path = [i]
        while (number := numbers.get(given[path[-1]])) is not None and number not in path:
            path.append(number)
        if not trips:
            yield from ((value, loop.used[number]) for number in path)
        elif trips < len(path):
            yield value, loop.used[path[trips]]
        elif number is not None:
            start = path.index(number)
            yield value, loop.used[path[start + (trips - start) % (len(path) - start)]]
        if number is None and len(path) <= (trips or len(path)):
            yield value, made.setdefault((len(path), given[path[-1]]), value)


def _shared_operand(op: Op) -> int | None:
    """Returns the number of the operand whose buffer the results of an op may share."""
    definition = definition_of(op.name)
    return 0 if op.name == RESHAPE else None if definition is None else definition.in_place


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


def manage_memory(program: Program) -> Program:
    """Returns the program with every necessary copy, and every possible deallocation."""
    in_place = any(_written(op) is not None for op in program.ops)
    copied = program.like(list(_insert_copies(program)), program.results) if in_place else program
    return copied.like(list(_insert_deallocations(copied)), copied.results)


def _written(op: Op) -> int | None:
    """Returns the number of the operand that an op overwrites; an op without a meaning writes where its text says."""
    definition = definition_of(op.name)
    return None if definition is None or Trait.OPAQUE in definition.traits else definition.in_place


class _Memory:
    """Values that may share memory: a reshape may be a view, and an in-place op returns the memory it wrote to."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.last = {v: i for i, op in enumerate(program.ops) for v in op.used}
        self.kept = {p.value for p in (*program.arguments, *program.results)}
        self._first: dict[Value, Value] = {}
        self._until: dict[Value, int] = {}
        """By the first value in a memory: the last read of a value in it, so far."""

    def first(self, value: Value) -> Value:
        """Returns the first value in the memory of a value."""
        return self._first.get(value, value)

    def free(self, value: Value, op: Op, number: int) -> bool:
        """Returns True if the op of this number may overwrite an operand, whose memory nothing reads then or later."""
        first = self.first(value)
        shared = sum(self.first(v) == first for v in op.used)
        return shared == 1 and self._until.get(first, self._read(value)) <= number

    def add(self, op: Op, into: Value | None) -> None:
        """Records an op, which wrote to `into` if it works in place."""
        for value, state in _shared_by_loop(op) if op.name == LOOP else ():
            self._share(value, state)
        own = into if into is not None else op.operands[0] if self._views(op) else None
        for value in op.results if own is not None else ():
            assert own is not None
            self._share(value, own)

    def _share(self, value: Value, own: Value) -> None:
        until = (self._until.get(first, self._read(first)) for first in (self.first(value), self.first(own)))
        self._until[self.first(own)] = max(*until, self._read(value))
        _join(self._first, value, own)

    def _views(self, op: Op) -> bool:
        types = self.program.types
        x = op.operands[0] if op.operands and op.results else None
        if x is None:
            return False
        unchanged = types[x] == types[op.results[0]]
        return has_trait(op.name, Trait.VIEW) or (unchanged and has_trait(op.name, Trait.RETURNS_OPERAND))

    def _read(self, value: Value) -> int:
        return len(self.program.ops) if value in self.kept else self.last.get(value, -1)


def _insert_copies(program: Program) -> Iterator[Op]:
    """Inserts copies of operands that an in-place op must not overwrite: arguments, results, values used later."""
    memory = _Memory(program)
    for i, op in enumerate(program.ops):
        number = _written(op)
        value = None if number is None or number >= len(op.operands) else op.operands[number]
        if value is None or number is None or memory.free(value, op, i):
            memory.add(op, value)
            yield op
            continue
        copy = program.new(program.types[value])
        yield Op("ttnn.assign", (value,), (copy,), with_defaults("assign", {}), op.line)
        operands = (*op.operands[:number], copy, *op.operands[number + 1 :])
        memory.add(op, copy)
        yield Op(op.name, operands, op.results, op.attributes, op.line)


_ALONE, _SHARED = {"force": False}, {"force": True}
"""The attributes of deallocating the memory of one value, and that of several values at once."""


def _insert_deallocations(program: Program) -> Iterator[Op]:
    first = aliases(program.ops, program.types)
    shared = {*first.values()}
    returned = {first.get(r.value, r.value) for r in program.results}
    # By the first value in each memory: the last op that reads or writes it.
    last = {first.get(v, v): i for i, op in enumerate(program.ops) for v in (*op.results, *op.used)}
    for i, op in enumerate(program.ops):
        yield op
        # Some of several results may be unused.
        for memory, value in {first.get(v, v): v for v in (*op.used, *op.results)}.items():
            if last[memory] == i and memory not in returned and program.types[value].kind == "tensor":
                yield Op("ttnn.deallocate", (value,), (), _SHARED if memory in shared else _ALONE, op.line)
