"""Finds the values that everything that reads them wants in rows, looking through ops that take any layout."""

from __future__ import annotations

from math import prod

from jaxmesh.dialects import textual, ttnn
from jaxmesh.dialects.program import Op, Program, Value
from jaxmesh.dialects.ttnn.forms import Forms, Occurrence
from jaxmesh.dialects.ttnn.memory import LAYOUT_ONLY, MEMORY_OPS
from jaxmesh.dialects.ttnn.op import TtnnOp


def tensors(program: Program, op: Op) -> tuple[Value | None, ...]:
    """Returns the operands of an op without the device, which stands last."""
    last = op.operands[-1] if op.operands else None
    return op.operands[:-1] if last is not None and program.types[last].kind == "device" else op.operands


def forms_of(program: Program, op: Op, row: TtnnOp | None) -> Forms:
    """Returns what the real function takes and gives for an op; an op without a definition is never called."""
    types = program.types
    if row is None:
        return textual.forms_of(op.name, len(op.operands))
    if isinstance(row.forms, Forms):
        return row.forms
    operands = tuple([None if v is None else types[v] for v in tensors(program, op)])
    single = prod(program.mesh.values()) == 1
    return row.forms_of(Occurrence(op.attributes, operands, tuple([types[v] for v in op.results]), single))


def values_in_rows(program: Program) -> set[Value]:
    """Returns the values that something reads in rows and nothing in tiles."""
    rows: set[Value] = set()
    tiles: set[Value] = {r.value for r in program.results if program.types[r.value].tile}
    for op in reversed(program.ops):
        name = op.name.removeprefix("ttnn.")
        if op.name == "ttnn.from_device":
            rows.update(op.used)
        elif op.name in LAYOUT_ONLY:
            _pass_on(op, rows, tiles)
        elif name not in MEMORY_OPS and not all(program.types[v].host for v in op.results):
            _read(program, op, ttnn.OPS.get(name), rows, tiles)
    return rows - tiles


def _pass_on(op: Op, rows: set[Value], tiles: set[Value]) -> None:
    """Reads the operand as the result is."""
    for wanted in (rows, tiles):
        if not wanted.isdisjoint(op.results):
            wanted.update(op.used[:1])


def _read(program: Program, op: Op, row: TtnnOp | None, rows: set[Value], tiles: set[Value]) -> None:
    found = forms_of(program, op, row)
    in_rows = bool(op.results) and op.results[0] in rows and op.results[0] not in tiles
    for number, value in enumerate(tensors(program, op)):
        if value is not None:
            layout = found.operand(number).layout
            (rows if layout == "rows" or (in_rows and layout == "either") else tiles).add(value)
