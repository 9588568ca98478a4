"""Moves small dims out of the last two dims of large tensors, where a tile would pad them to 32."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from jaxmesh.dialects.attributes import Attributes
from jaxmesh.dialects.program import Op, Program, Shape, Type, Value
from jaxmesh.dialects.ttir.elementwise import OPS as ELEMENTWISE
from jaxmesh.dialects.ttnn.layouts import padded_shape

LARGE = 1 << 20
"""The bytes in tiles from which padding counts: below, a move costs more."""
MUCH = 4
"""Padding is much where it makes a tensor so many times larger."""

Order = tuple[int, ...]
"""The dims of a tensor, in an order."""


def is_smaller(kind: Type, order: Order) -> bool:
    """Returns True if a tensor takes much less memory in tiles with its dims in another order.

    >>> import numpy as np
    >>> scores = Type((2, 1024, 4, 1024), np.dtype("float32"))
    >>> is_smaller(scores, (0, 2, 1, 3)), is_smaller(scores, (1, 0, 2, 3))
    (True, False)
    """
    shapes = kind.shape, _ordered(kind.shape, order)
    own, other = (math.prod(padded_shape(shape, tile=True)) for shape in shapes)
    return own * kind.dtype.itemsize >= LARGE and own >= MUCH * other


def move_small_dims(program: Program) -> Program:
    """Moves small dims to the front of the tensors that they make large, and back where an operation needs that.

    A dim of size 1 moves by a reshape. Another one moves where a permutation puts it last: the operations that follow
    take what was permuted, in its order.
    """
    if not any(_order(t) or _can_be_smaller(t) for t in program.types):
        return program
    made = replace(program, types=list(program.types), ops=[])
    mover = _SmallDims(made)
    for op in program.ops:
        mover.enter(op)
    return made.like(made.ops, [replace(port, value=mover.given(port.value)) for port in program.results])


def _order(kind: Type) -> Order:
    """Returns the order that is smaller for a tensor with a dim of size 1 before its last; else nothing."""
    shape = kind.shape
    if len(shape) < 3 or shape[-2] != 1 or shape[-1] == 1 or 0 in shape:
        return ()
    *outer, last = (d for d in range(len(shape)) if d != len(shape) - 2)
    kept = [d for d in outer if shape[d] > 1]
    order = (len(shape) - 2, *(d for d in outer if shape[d] == 1), *kept, last)
    return order if is_smaller(kind, order) else ()


def _can_be_smaller(kind: Type) -> bool:
    return len(kind.shape) > 2 and is_smaller(kind, tuple(sorted(_whole(kind.shape), key=kind.shape.__getitem__)))


def _whole(shape: Shape) -> Order:
    return tuple(range(len(shape)))


def _ordered(shape: Shape, order: Order) -> Shape:
    return tuple([shape[d] for d in order])


@dataclass(slots=True)
class _SmallDims:
    """Rewrites a program.

    Attributes:
      program: the new one.
      held: by value what it is stored as, and the order of its dims there.
      late: operations that can make their result in any order, by result; each is appended where it is read.
      made: what was appended for a value, by the order or the shape that a reader asked for.
    """

    program: Program
    held: dict[Value, tuple[Value, Order]] = field(default_factory=dict[Value, "tuple[Value, Order]"])
    late: dict[Value, Op] = field(default_factory=dict[Value, Op])
    made: dict[tuple[Value, str, Shape], Value] = field(default_factory=dict["tuple[Value, str, Shape]", Value])

    def given(self, value: Value, line: str = "", order: Order | None = None) -> Value:
        """Returns a tensor with its dims in an order; by default in its own."""
        shape = self.program.types[value].shape
        order = _whole(shape) if order is None else order
        if value in self.late:
            return self._made_late(value, order)
        source, stored = self.held.get(value, (value, _whole(shape)))
        if stored == order:
            return source
        if _without_units(shape, stored) == _without_units(shape, order):
            return self._appended(source, value, line, "reshape", _ordered(shape, order))
        dims = tuple([stored.index(d) for d in order])
        return self._appended(source, value, line, "permute", _ordered(shape, order), permutation=dims)

    def _made_late(self, value: Value, order: Order) -> Value:
        if (value, "late", order) not in self.made:
            op = self.late[value]
            operands = tuple([self.given(v, op.line, order) for v in op.used])
            shape = _ordered(self.program.types[value].shape, order)
            changed = {k: _ordered(v, order) for k, v in op.attributes.items() if k in _PER_DIM}
            name = op.name.removeprefix("ttir.")
            self.made[value, "late", order] = self._append(replace(op, operands=operands), name, shape, changed)
        return self.made[value, "late", order]

    def _appended(self, source: Value, value: Value, line: str, name: str, shape: Shape, **changed: Shape) -> Value:
        """Appends a reshape or a permutation, unless it is there."""
        if self.program.types[source].shape == shape and name == "reshape":
            return source
        attributes = changed or {"shape": shape}
        key = source, name, changed.get("permutation", shape)
        if key not in self.made:
            self.made[key] = self._append(Op("", (source,), (value,), line=line), name, shape, attributes)
        return self.made[key]

    def _append(self, like: Op, name: str, shape: Shape, changed: Attributes) -> Value:
        """Appends an operation like another one, with its first result of another shape."""
        made = self.program.new(replace(self.program.types[like.results[0]], shape=shape))
        self.program.ops.append(
            replace(like, name=f"ttir.{name}", results=(made,), attributes={**like.attributes, **changed})
        )
        return made

    def enter(self, op: Op) -> None:
        """Rewrites an operation, if it reads or computes what is stored in another order."""
        kind = self.program.types[op.results[0]] if len(op.results) == 1 else None
        if kind is not None and self._is_late(op, kind):
            self.late[op.results[0]] = op
            return
        order = _order(kind) if kind is not None else ()
        reads_moved = not (self.held.keys() | self.late.keys()).isdisjoint(op.used)
        could = kind is not None and (order or reads_moved or op.name == "ttir.permute")
        moved = self._moved(op, kind, order) if kind is not None and could else None
        if moved is not None:
            self.held[op.results[0]] = moved
            return
        operands = tuple([v if v is None else self.given(v, op.line) for v in op.operands])
        self.program.ops.append(op if operands == op.operands else replace(op, operands=operands))

    def _is_late(self, op: Op, kind: Type) -> bool:
        alike = all(len(self.program.types[v].shape) == len(kind.shape) for v in op.used)
        return op.name in ("ttir.full", "ttir.broadcast") and alike and (bool(_order(kind)) or _can_be_smaller(kind))

    def _moved(self, op: Op, kind: Type, order: Order) -> tuple[Value, Order] | None:
        """Returns what an operation computes, in the order of its dims that a result or operand is stored in."""
        name, attributes, whole = op.name.removeprefix("ttir."), op.attributes, _whole(kind.shape)
        first = op.used[0] if op.used else None
        if name == "reshape" and first is not None:
            return self._reshaped(first, op, _ordered(kind.shape, order or whole)), order or whole
        if name == "permute" and first is not None:
            return self._permuted(op, first, kind, order)
        if "dim_arg" in attributes and first in self.held:
            return self._reduced(op, *self.held[first])
        if any(len(self.program.types[v].shape) not in (0, len(whole)) for v in op.used):
            return None
        follow = next((self.held[v][1] for v in op.used if v in self.held), ())
        order = order or (follow if follow and is_smaller(kind, follow) else ())
        changed = {"dimension": order.index(attributes["dimension"])} if name == "softmax" and order else {}
        if not order or not (changed or name in ELEMENTWISE):
            return None
        # Only dims move, and a scalar is the same in any order.
        operands = tuple([self.given(v, op.line, order if self.program.types[v].shape else ()) for v in op.used])
        return self._append(replace(op, operands=operands), name, _ordered(kind.shape, order), changed), order

    def _reshaped(self, value: Value, op: Op, shape: Shape) -> Value:
        own = self.program.types[value].shape
        source, stored = self.held.get(value, (value, _whole(own)))
        if value in self.late or _without_units(own, stored) != _without_units(own, _whole(own)):
            source = self.given(value, op.line)
        return self._appended(source, op.results[0], op.line, "reshape", shape)

    def _permuted(self, op: Op, first: Value, kind: Type, order: Order) -> tuple[Value, Order] | None:
        """Returns what is permuted as it is stored where that is smaller, else a permutation of what is stored."""
        turned: Order = op.attributes["permutation"]
        source, stored = self.held.get(first, (first, _whole(kind.shape)))
        if first in self.late:
            source = self.given(first, op.line)
        kept = tuple([turned.index(d) for d in stored])
        if not order and is_smaller(kind, kept):
            return source, kept
        if not order and first not in self.held:
            return None
        order = order or _whole(kind.shape)
        dims = tuple([stored.index(turned[d]) for d in order])
        if dims == _whole(kind.shape):
            return source, order
        moved = replace(op, operands=(source,))
        return self._append(moved, "permute", _ordered(kind.shape, order), {"permutation": dims}), order

    def _reduced(self, op: Op, source: Value, stored: Order) -> tuple[Value, Order]:
        dims, keep = [d % len(stored) for d in op.attributes["dim_arg"]], op.attributes["keep_dim"]
        kept = [d for d in range(len(stored)) if keep or d not in dims]
        order = tuple([kept.index(d) for d in stored if d in kept])
        moved, places = replace(op, operands=(source,)), tuple(sorted(stored.index(d) for d in dims))
        shape = _ordered(self.program.types[op.results[0]].shape, order)
        return self._append(moved, op.name.removeprefix("ttir."), shape, {"dim_arg": places}), order


_PER_DIM = frozenset({"shape", "broadcast_dimensions"})
"""The attributes of late operations with a number for each dim."""


def _without_units(shape: Shape, order: Order) -> Order:
    return tuple([d for d in order if shape[d] != 1])
