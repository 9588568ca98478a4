"""Finds the values that everything that reads them wants in rows, looking through ops that take any layout."""

from __future__ import annotations

from math import prod

from jaxmesh.dialects.definitions import DEFINITIONS
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Program, Value
from jaxmesh.dialects.ttnn.forms import Forms, Occurrence
from jaxmesh.dialects.ttnn.op import TtnnOp


def tensors(program: Program, op: Op) -> tuple[Value | None, ...]:
    """Returns the operands of an op without the device, which stands last."""
    last = op.operands[-1] if op.operands else None
    return op.operands[:-1] if last is not None and program.types[last].kind == "device" else op.operands


def forms_of(program: Program, op: Op, definition: TtnnOp) -> Forms:
    """Returns what the real function takes and gives in one occurrence of an op."""
    types = program.types
    if isinstance(definition.accepts, Forms):
        return definition.accepts
    operands = tuple([None if v is None else types[v] for v in tensors(program, op)])
    single = prod(program.mesh.values()) == 1
    return definition.forms_of(Occurrence(op.attributes, operands, tuple([types[v] for v in op.results]), single))


def values_in_rows(program: Program) -> set[Value]:
    """Returns the values that something reads in rows and nothing in tiles."""
    rows: set[Value] = set()
    tiles: set[Value] = {r.value for r in program.results if program.types[r.value].tile}
    for op in reversed(program.ops):
        definition = DEFINITIONS[op.name]
        if op.name == "ttnn.from_device":
            rows.update(op.used)
        elif Trait.LAYOUT in definition.traits:
            _pass_on(op, rows, tiles)
        elif isinstance(definition, TtnnOp) and not _is_on_host(program, op, definition):
            _read(program, op, definition, rows, tiles)
    return rows - tiles


def _is_on_host(program: Program, op: Op, definition: TtnnOp) -> bool:
    return Trait.MEMORY in definition.traits or all(program.types[v].host for v in op.results)


def _pass_on(op: Op, rows: set[Value], tiles: set[Value]) -> None:
    """Reads the operand as the result is."""
    for wanted in (rows, tiles):
        if not wanted.isdisjoint(op.results):
            wanted.update(op.used[:1])


def _read(program: Program, op: Op, definition: TtnnOp, rows: set[Value], tiles: set[Value]) -> None:
    found = forms_of(program, op, definition)
    in_rows = bool(op.results) and op.results[0] in rows and op.results[0] not in tiles
    for number, value in enumerate(tensors(program, op)):
        if value is not None:
            layout = found.operand(number).layout
            (rows if layout == "rows" or (in_rows and layout == "either") else tiles).add(value)
