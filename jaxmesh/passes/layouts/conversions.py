"""The forms of values that ops read, and the cheapest conversion from the forms that exist to the needed form.

A value is in rows if everything that reads it wants rows, also through ops that take any layout.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from jaxmesh.dialects.definitions import DEFINITIONS
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import LOOP, Op, Program, Value, bodies, without_dead
from jaxmesh.dialects.ttnn.forms import EXACT, TILED, Forms, Occurrence, as_dtype, stored_as
from jaxmesh.dialects.ttnn.op import TtnnOp
from jaxmesh.jaxprs.untyped import DType


class StoredForm(NamedTuple):
    """Element type, layout and memory of a value."""

    dtype: DType
    tile: bool
    host: bool = False


_STEP = 10
"""The cost of a conversion; where there is a choice, types are converted in tiles."""


@functools.lru_cache(1024)
def path(have: frozenset[StoredForm], want: StoredForm) -> tuple[StoredForm, tuple[StoredForm, ...]]:
    """Returns the form to start from, and the forms on the way to the wanted form.

    >>> import numpy as np
    >>> f32, i32 = np.dtype("float32"), np.dtype("int32")
    >>> start, steps = path(frozenset({StoredForm(f32, tile=False, host=True)}), StoredForm(i32, tile=True))
    >>> [(form.dtype.name, form.tile) for form in steps]
    [('float32', False), ('float32', True), ('int32', True)]
    """
    queue: list[tuple[int, int, StoredForm, tuple[StoredForm, ...]]] = [
        (0, number, form, (form,)) for number, form in enumerate(sorted(have, key=_order))
    ]
    seen: set[StoredForm] = set()
    number = len(queue)
    while queue:
        cost, _, form, way = heapq.heappop(queue)
        if form == want:
            return way[0], way[1:]
        if form in seen:
            continue
        seen.add(form)
        for step, after in _steps(form, want.dtype):
            number += 1
            heapq.heappush(queue, (cost + step, number, after, (*way, after)))
    raise AssertionError(f"no way from {have} to {want}")


def _order(form: StoredForm) -> tuple[str, bool, bool]:
    return form.dtype.name, form.tile, form.host


def _steps(form: StoredForm, wanted: DType) -> Iterator[tuple[int, StoredForm]]:
    """Yields what one op makes of a form, and its cost."""
    stored = stored_as(form.dtype)
    if form.tile:
        yield _STEP, form._replace(tile=False)
    elif not form.host and stored in TILED:
        yield _STEP, form._replace(tile=True)
    if not form.tile:
        yield _STEP, form._replace(host=not form.host)
    cost = _STEP + 2 * form.host + (not form.tile)
    between = EXACT.get(stored, ())[:1] if stored is not None else ()
    for dtype in (wanted, *map(as_dtype, between)):
        if dtype != form.dtype:
            yield cost, form._replace(dtype=dtype)
    if stored is None:
        # Only for the emulation: a type that the real library lacks.
        yield _STEP, form._replace(tile=not form.host)


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


def taken_in_tiles(loop: Op) -> list[bool]:
    """Returns for each operand of a loop whose bodies are decided whether it is in tiles, as all states are."""
    body, *_ = bodies(loop)
    return [i < len(loop.results) or body.types[port.value].tile for i, port in enumerate(body.arguments)]


def with_arguments(body: Program, tiles: Sequence[bool]) -> Program:
    """Returns the body or the condition of a loop with its arguments in tiles or in rows."""
    made, converted, ops = replace(body, types=[*body.types]), dict[Value, Value](), list[Op]()
    for port, tile in zip(body.arguments, tiles, strict=True):
        before = body.types[port.value]
        if before.tile != tile:
            made.types[port.value], converted[port.value] = replace(before, tile=tile), made.new(before)
            layout = {"layout": "tile" if before.tile else "row_major"}
            ops.append(Op("ttnn.to_layout", (port.value,), (converted[port.value],), layout))
    if not ops:
        return body
    made.ops = [*ops, *(op.reading(converted) for op in body.ops)]
    made.results = [replace(port, value=converted.get(port.value, port.value)) for port in body.results]
    return without_dead(made)


def values_in_rows(program: Program) -> set[Value]:
    """Returns the values that something reads in rows and nothing in tiles."""
    rows: set[Value] = set()
    tiles: set[Value] = {r.value for r in program.results if program.types[r.value].tile}
    for op in reversed(program.ops):
        definition = DEFINITIONS[op.name]
        if op.name == "ttnn.from_device":
            rows.update(op.used)
        elif op.name == LOOP:
            for value, in_tiles in zip(op.used, taken_in_tiles(op), strict=True):
                (tiles if in_tiles else rows).add(value)
        elif Trait.LAYOUT in definition.traits:
            # It reads its operand as the result is.
            for wanted in (rows, tiles):
                if not wanted.isdisjoint(op.results):
                    wanted.update(op.used[:1])
        elif Trait.MEMORY in definition.traits or all(program.types[v].host for v in op.results):
            continue
        elif isinstance(definition, TtnnOp):
            _read(program, op, definition, rows, tiles)
    return rows - tiles


def _read(program: Program, op: Op, definition: TtnnOp, rows: set[Value], tiles: set[Value]) -> None:
    found = forms_of(program, op, definition)
    in_rows = bool(op.results) and op.results[0] in rows and op.results[0] not in tiles
    for number, value in enumerate(tensors(program, op)):
        if value is not None:
            layout = found.operand(number).layout
            (rows if layout == "rows" or (in_rows and layout == "either") else tiles).add(value)
