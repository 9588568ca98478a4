"""Moves dims of size 1 out of the last two dims of large tensors, where a tile would pad them to 32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxmesh.dialects.program import Op, Program, Shape, Type, Value
from jaxmesh.dialects.ttir.elementwise import OPS as ELEMENTWISE
from jaxmesh.passes.hold_arguments import padded_shape

LARGE = 1 << 20
"""The bytes in tiles from which padding counts: below, a move costs more."""
MUCH = 4
"""Padding is much where it makes a tensor more than so many times larger."""

Order = tuple[int, ...]
"""The dims of a tensor, in an order."""


def move_unit_dims(program: Program) -> Program:
    """Moves dims of size 1 to the front of the tensors that they make large, and back where an operation needs that."""
    if not any(_order(t) for t in program.types):
        return program
    made = replace(program, types=list(program.types), ops=[])
    mover = _UnitDims(made)
    for op in program.ops:
        mover.enter(op)
    return made.like(made.ops, [replace(port, value=mover.given(port.value)) for port in program.results])


def _order(kind: Type) -> Order:
    """Returns the order of the dims that makes the tensor much smaller in tiles; nothing for its own order."""
    shape, width = kind.shape, kind.dtype.itemsize
    if len(shape) < 3 or shape[-2] != 1 or shape[-1] == 1 or 0 in shape:
        return ()
    *outer, last = (d for d in range(len(shape)) if d != len(shape) - 2)
    kept = [d for d in outer if shape[d] > 1]
    order = (len(shape) - 2, *(d for d in outer if shape[d] == 1), *kept, last)
    sizes = [math.prod(padded_shape(Type(s, kind.dtype, tile=True))) for s in (shape, _ordered(shape, order))]
    return order if sizes[0] * width >= LARGE and sizes[0] > MUCH * sizes[1] else ()


def _ordered(shape: Shape, order: Order) -> Shape:
    return tuple([shape[d] for d in order])


@dataclass(slots=True)
class _UnitDims:
    """Rewrites a program.

    Attributes:
      program: the new one.
      held: by value what it is stored as, the same elements in the same order, and its dims in the order there.
      shaped: the reshapes, by operand and shape.
    """

    program: Program
    held: dict[Value, tuple[Value, Order]] = field(default_factory=dict[Value, "tuple[Value, Order]"])
    shaped: dict[tuple[Value, Shape], Value] = field(default_factory=dict["tuple[Value, Shape]", Value])

    def given(self, value: Value, line: str = "", shape: Shape | None = None) -> Value:
        """Returns a tensor in its own shape, or in a shape with other dims of size 1."""
        types = self.program.types
        shape = types[value].shape if shape is None else shape
        source = self.held[value][0] if value in self.held else value
        if types[source].shape == shape:
            return source
        if (source, shape) not in self.shaped:
            self.shaped[source, shape] = self._append(
                Op("", (source,), (value,), line=line), "reshape", shape, {"shape": shape}
            )
        return self.shaped[source, shape]

    def _append(self, like: Op, name: str, shape: Shape, changed: Mapping[str, Any]) -> Value:
        """Appends an operation like another one, with its first result of another shape."""
        made = self.program.new(replace(self.program.types[like.results[0]], shape=shape))
        self.program.ops.append(
            replace(like, name=f"ttir.{name}", results=(made,), attributes={**like.attributes, **changed})
        )
        return made

    def enter(self, op: Op) -> None:
        """Rewrites an operation, if it reads or computes what is stored in another order."""
        order = _order(self.program.types[op.results[0]]) if len(op.results) == 1 else ()
        moved = self._moved(op, order) if order or not self.held.keys().isdisjoint(op.used) else None
        if moved is not None:
            self.held[op.results[0]] = moved
            return
        operands = tuple([v if v is None else self.given(v, op.line) for v in op.operands])
        self.program.ops.append(op if operands == op.operands else replace(op, operands=operands))

    def _moved(self, op: Op, order: Order) -> tuple[Value, Order] | None:
        """Returns what an operation computes, in the order of its dims that a result or operand is stored in."""
        name, attributes = op.name.removeprefix("ttir."), op.attributes
        shapes = [self.program.types[v].shape for v in (*op.used, *op.results)]
        shape, whole = _ordered(shapes[-1], order), tuple(range(len(shapes[-1])))
        source, stored = self.held.get(op.used[0], (op.used[0], ())) if op.used else (0, ())
        stored = stored or tuple(range(len(shapes[0])))
        if name == "reshape":
            return self.given(op.used[0], op.line, shape if order else shapes[-1]), order or whole
        if name == "permute":
            order = order or whole
            dims = tuple([stored.index(attributes["permutation"][d]) for d in order])
            if dims == whole:
                return source, order
            moved = replace(op, operands=(source,))
            return self._append(moved, name, _ordered(shapes[-1], order), {"permutation": dims}), order
        if "dim_arg" in attributes and op.used[0] in self.held:
            dims, keep = [d % len(stored) for d in attributes["dim_arg"]], attributes["keep_dim"]
            kept = [d for d in range(len(stored)) if keep or d not in dims]
            order = tuple([kept.index(d) for d in stored if d in kept])
            moved, places = replace(op, operands=(source,)), tuple(sorted(stored.index(d) for d in dims))
            return self._append(moved, name, _ordered(shapes[-1], order), {"dim_arg": places}), order
        if not order or any(len(s) != len(order) for s in shapes):
            return None
        changed: dict[str, Any] = {}
        if name == "full":
            changed = {"shape": shape}
        elif name == "broadcast":
            changed = {"broadcast_dimensions": _ordered(attributes["broadcast_dimensions"], order)}
        elif name == "softmax":
            changed = {"dimension": order.index(attributes["dimension"])}
        elif name not in ELEMENTWISE:
            return None
        operands = [self.given(v, op.line, _ordered(self.program.types[v].shape, order)) for v in op.used]
        return self._append(replace(op, operands=tuple(operands)), name, shape, changed), order
