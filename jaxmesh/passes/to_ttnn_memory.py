"""Memory of a flat TTNN program: copies before ops that work in place, deallocations after last uses."""

from __future__ import annotations

from collections.abc import Iterator

from jaxmesh.ops.ttnn_table import TTNN
from jaxmesh.passes.to_ttnn_ops import written
from jaxmesh.program import Op, Program


def manage_memory(program: Program) -> Program:
    """The program with every copy that is needed, and every deallocation that is allowed."""
    copied = program.like(list(_copied(program)), program.results) if _in_place(program) else program
    return copied.like(list(_deallocated(copied)), copied.results)


def _in_place(program: Program) -> bool:
    return any(op.name in _IN_PLACE for op in program.ops)


_IN_PLACE = frozenset({f"ttnn.{name}" for name, row in TTNN.items() if row.in_place is not None})


def _copied(program: Program) -> Iterator[Op]:
    """An op that works in place gets a copy of what is not its own: arguments, results, and what is used again."""
    last = program.last_uses()
    kept = {p.value for p in (*program.arguments, *program.results)}
    for i, op in enumerate(program.ops):
        row = TTNN.get(op.name.removeprefix("ttnn."))
        number = None if row is None else row.in_place
        value = None if number is None or number >= len(op.operands) else op.operands[number]
        if (
            value is None
            or number is None
            or (value not in kept and last[value] == i and op.operands.count(value) == 1)
        ):
            yield op
            continue
        copy = program.new(program.types[value])
        yield Op("ttnn.assign", (value,), (copy,), written("assign", {}), op.line)
        operands = (*op.operands[:number], copy, *op.operands[number + 1 :])
        yield Op(op.name, operands, op.results, op.attributes, op.line)


def _deallocated(program: Program) -> Iterator[Op]:
    last = program.last_uses()
    returned = {r.value for r in program.results}
    for i, op in enumerate(program.ops):
        yield op
        done = [v for v in op.operands if v is not None and last[v] == i]
        # Of several results some may be of no use to anyone.
        done += [v for v in op.results if v not in last]
        for value in done if len(done) < 2 else dict.fromkeys(done):
            if value not in returned and program.types[value].kind == "tensor":
                yield Op("ttnn.deallocate", (value,), (), {"force": False}, op.line)
