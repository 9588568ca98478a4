"""The dataflow of a flat program for patterns: backwards from a result, through moves and exact casts.

Everything here is filled in while the program is walked once, so that looking costs the same anywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmesh.dialects.program import Op, Shape, Value
from jaxmesh.jaxprs.untyped import DType, numpy as _np
from jaxmesh.passes.def_use import DefUse, created_number

F16, F32 = np.dtype("float16"), np.dtype("float32")
BF16: DType = np.dtype(jax.numpy.bfloat16)
FLOATS: Mapping[DType, tuple[int, int]] = {
    F16: (10, 5),
    BF16: (7, 8),
    F32: (23, 8),
    np.dtype("float64"): (52, 11),
}
"""Bits of the fraction and of the exponent of the element types in which groups are looked for."""


@functools.lru_cache(256)
def holds(wide: DType, narrow: DType) -> bool:
    """Returns True if one float type holds every number of another."""
    if wide not in FLOATS or narrow not in FLOATS:
        return False
    return all(w >= n for w, n in zip(FLOATS[wide], FLOATS[narrow], strict=True))


# --- constants -------------------------------------------------------------------------------------------------------


def _itself(x: object) -> object:
    return x


def _over_one(x: object) -> object:
    return _np.divide(_np.ones_like(x), x)


_FOLDED: Mapping[str, Callable[..., Any]] = {
    "add": _np.add, "subtract": _np.subtract, "multiply": _np.multiply, "div": _np.divide, "divide": _np.divide,
    "neg": _np.negative, "sqrt": _np.sqrt, "reciprocal": _over_one, "gt": _np.greater, "ge": _np.greater_equal,
    "lt": _np.less, "le": _np.less_equal, "eq": _np.equal, "ne": _np.not_equal, "typecast": _itself,
    "reshape": _itself, "broadcast": _itself, "permute": _itself,
}  # fmt: skip
"""Operations that turn tensors of one number into such a tensor."""


def _fold(name: str, dtype: DType, numbers: Sequence[Any]) -> object:
    """Folds an operation on tensors of one number; None if the result is unknown."""
    function = _FOLDED.get(name)
    if function is None or dtype.kind == "c" or any(n.dtype.kind == "c" for n in numbers):
        return None
    if dtype.kind in "iu" and (function in (_np.divide, _over_one) or any(n.dtype.kind not in "iub" for n in numbers)):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(*numbers)).astype(dtype)[()]


# --- views -----------------------------------------------------------------------------------------------------------


class View(NamedTuple):
    """A value aligned to a frame, the shape of something computed from it.

    Attributes:
      value: its number.
      dims: per dim of the frame the dim of the value that runs along it; None where the frame has size 1, or all that
        stands along the dim is alike.
    """

    value: Value
    dims: tuple[int | None, ...]

    def of(self, inner: View) -> View:
        """Returns this view composed with the view behind it."""
        dims = inner.dims
        return View(inner.value, tuple([None if d is None else dims[d] for d in self.dims]))


def _unit_dims_aside(old: Shape, new: Shape) -> tuple[int | None, ...] | None:
    """Returns the dims of `old` along the dims of `new`, if a reshape only adds or drops dims of size 1."""
    sized = [d for d, n in enumerate(old) if n != 1]
    if [old[d] for d in sized] != [n for n in new if n != 1]:
        return None
    rest = iter(sized)
    return tuple(None if n == 1 else next(rest) for n in new)


@dataclass(slots=True)
class Flow(DefUse):
    """The state of a walk: the operation behind each value, what it is a view of, and the tensors of one number.

    Attributes:
      uses: how often each value is read, or returned, in the program as it was.
      kinds: the name of the operation that computes a value, without the dialect, if it is one of TTIR with one result.
      numbers: the number that a tensor is filled with, by value.
      moved: per value that only moves another one's elements, what it is a view of.
      exact: the same, also through casts to a wider float type, which change no number.
      shared: the values that something else reads, too, and those that are views of one of them.
    """

    uses: Mapping[Value, int]
    kinds: dict[Value, str] = field(default_factory=dict[Value, str])
    numbers: dict[Value, Any] = field(default_factory=dict[Value, Any])
    moved: dict[Value, View] = field(default_factory=dict[Value, View])
    exact: dict[Value, View] = field(default_factory=dict[Value, View])
    shared: set[Value] = field(default_factory=set[Value])

    def align(self, value: Value, frame: Shape) -> View:
        """Returns a value aligned to a shape by NumPy's rules of broadcasting."""
        dims = tuple([None if n == 1 else d for d, n in enumerate(self.shape(value))])
        return View(value, (None,) * (len(frame) - len(dims)) + dims)

    def enter(self, op: Op) -> None:
        """Records an operation, or its replacement."""
        DefUse.enter(self, op)
        for value in op.results:
            for known in (self.kinds, self.numbers, self.moved, self.exact):
                known.pop(value, None)
            if self.uses.get(value, 1) > 1:
                self.shared.add(value)
        if len(op.results) != 1 or not op.name.startswith("ttir."):
            return
        (value,) = op.results
        self.kinds[value] = name = op.name.removeprefix("ttir.")
        number = self._number(name, op, value)
        if number is not None:
            self.numbers[value] = number
        source = self._source(name, op, value)
        if source is not None:
            cast = self.dtype(source.value) != self.dtype(value)
            if source.value in self.shared:
                self.shared.add(value)
            self.exact[value] = source.of(self.exact.get(source.value) or self._own(source.value))
            if not cast:
                self.moved[value] = source.of(self.moved.get(source.value) or self._own(source.value))

    def _own(self, value: Value) -> View:
        return self.align(value, self.shape(value))

    def _number(self, name: str, op: Op, value: Value) -> object:
        dtype = self.dtype(value)
        if (number := created_number(op)) is not None:
            return None if dtype.kind == "c" else np.asarray(number).astype(dtype)[()]
        known = [self.numbers.get(v) for v in op.used]
        return None if None in known or not known else _fold(name, dtype, known)

    def _source(self, name: str, op: Op, value: Value) -> View | None:
        """Returns what the result of an operation is a view of; None unless it is a view."""
        match name:
            case "reshape" | "squeeze" | "unsqueeze" | "broadcast" | "permute":
                return self._of_move(name, op, value)
            case "typecast":
                (x,) = op.used
                exact = self.dtype(x) == self.dtype(value) or holds(self.dtype(value), self.dtype(x))
                return self.align(x, self.shape(value)) if exact else None
            case "maximum" if self.dtype(value) in FLOATS:
                # JAX writes the maximum of nothing, which changes no number and keeps NaN.
                return self._beside(op, value, -np.inf)
            case "where":
                chosen = self.numbers.get(op.used[0])
                return None if chosen is None else self._align_to(op.operands[1 if chosen else 2], value)
            case _:
                return None

    def _of_move(self, name: str, op: Op, value: Value) -> View | None:
        (x,) = op.used
        if name == "broadcast":
            return self.align(x, self.shape(value))
        if name == "permute":
            sizes = self.shape(value)
            return View(
                x, tuple(None if n == 1 else d for d, n in zip(op.attributes["permutation"], sizes, strict=True))
            )
        dims = _unit_dims_aside(self.shape(x), self.shape(value))
        return None if dims is None else View(x, dims)

    def _beside(self, op: Op, value: Value, number: float) -> View | None:
        for x, other in (op.operands, op.operands[::-1]):
            if other is not None and self.numbers.get(other) == number:
                return self._align_to(x, value)
        return None

    def _align_to(self, x: Value | None, value: Value) -> View | None:
        """Returns an operand of an elementwise operation aligned to its result, not through a cast."""
        same = x is not None and self.dtype(x) == self.dtype(value)
        return self.align(x, self.shape(value)) if x is not None and same else None

    def follow(self, view: View, known: Mapping[Value, View]) -> View:
        """Follows a view to the source of its elements."""
        inner = known.get(view.value)
        return view if inner is None else view.of(inner)

    def reduced_dims(self, op: Op) -> tuple[int, ...]:
        """Returns the dims of a reduction, in order."""
        rank = len(self.shape(op.used[0]))
        dims = op.attributes.get("dim_arg")
        return tuple(range(rank)) if dims is None else tuple(sorted(int(d) % rank for d in dims))


Operand = tuple[Value, Shape]
"""A value, and the shape in which a group takes it: its own but for dims of size 1."""


@dataclass(slots=True)
class Node:
    """A value inside a possible group, in the frame of the group's result.

    The operations that a node steps through are computed in a type that has every number of the result's type: a
    group computed in the result's type is then as exact.
    """

    flow: Flow
    frame: Shape
    """The shape of the group's result."""
    dtype: DType
    """The element type of the group's result."""
    view: View
    steps: dict[View, tuple[Node, ...]]
    """The operands found so far in the group: several patterns ask for the same ones."""

    @staticmethod
    def at(flow: Flow, op: Op) -> Node:
        """Returns the node of the result of an operation."""
        (value,) = op.results
        frame = flow.shape(value)
        return Node(flow, frame, flow.dtype(value), flow.align(value, frame), {})

    def _see(self, value: Value, shape: Shape, view: View | None = None) -> Node:
        """Returns the node of a value aligned to a shape, seen by a view."""
        aligned = self.flow.align(value, shape)
        return Node(self.flow, self.frame, self.dtype, aligned if view is None else view.of(aligned), self.steps)

    @property
    def number(self) -> float | None:
        """The number that fills it; None if it varies."""
        found = self.flow.numbers.get(self.view.value)
        return None if found is None else float(found)

    @property
    def sole(self) -> bool:
        """True if nothing else reads it, so that fusing computes nothing twice."""
        return self.view.value not in self.flow.shared

    def same(self, other: Node) -> bool:
        """Returns True if both hold the same numbers, element by element of the frame."""
        flow = self.flow
        return flow.follow(self.view, flow.exact) == flow.follow(other.view, flow.exact)

    def _maker(self, names: Sequence[str]) -> tuple[Op, View] | None:
        """Returns the operation behind it, if it has a name among these, and its result."""
        flow, exact = self.flow, self.flow.exact.get(self.view.value)
        value = self.view.value if exact is None else exact.value
        if flow.kinds.get(value) not in names or not holds(flow.dtype(value), self.dtype):
            return None
        return flow.makers[value], self.view if exact is None else self.view.of(exact)

    def inputs(self, *names: str) -> tuple[Node, ...]:
        """Returns the operands of the elementwise operation behind it, if it has a name among these."""
        found = self._maker(names)
        if found is None:
            return ()
        op, view = found
        known = self.steps.get(view)
        if known is None:
            shape = self.flow.shape(view.value)
            known = self.steps[view] = tuple([self._see(v, shape, view) for v in op.used])
        return known

    def pairs(self, *names: str) -> Iterator[tuple[Node, Node]]:
        """Yields both orders of the operands of a commutative operation."""
        found = self.inputs(*names)
        if found:
            a, b = found
            yield a, b
            yield b, a

    def quotients(self) -> Iterator[tuple[Node, Node]]:
        """Yields its forms as a quotient, also from a product with a reciprocal."""
        divided = self.inputs("div", "divide")
        if divided:
            yield divided[0], divided[1]
        for a, b in self.pairs("multiply"):
            below = b.inverse()
            if below:
                yield a, below

    def inverse(self) -> Node | None:
        """Returns the denominator of a reciprocal."""
        for below in self.inputs("reciprocal"):
            return below
        divided = self.inputs("div", "divide")
        return divided[1] if divided and divided[0].number == 1 else None

    def before_cast(self) -> Node:
        """Returns its value before a cast to the result's type from a wider one; itself without a cast."""
        found = self._maker(["typecast"])
        if found is None:
            return self
        op, view = found
        (x,) = op.used
        wider = holds(self.flow.dtype(x), self.flow.dtype(view.value))
        return self._see(x, self.flow.shape(x), view) if wider else self

    def reduction(self, kind: str) -> tuple[Node, tuple[int, ...]] | None:
        """Returns the operand of a reduction, and the dims of the frame along which its dims of more than one element
        run that are reduced: those along which the result is the same.

        A sum in float16 is left out: it overflows long before a sum in the wider type that a group may take.
        """
        found = self._maker([kind])
        if found is None:
            return None
        op, view = found
        (x,) = op.used
        sizes, over = self.flow.shape(x), self.flow.reduced_dims(op)
        if kind != "max" and self.flow.dtype(view.value) == F16:
            return None
        kept = [d for d in range(len(sizes)) if op.attributes.get("keep_dim", False) or d not in over]
        dims = [None if d is None else kept[d] for d in view.dims]
        free = tuple([d for d, n in enumerate(self.frame) if n > 1 and view.dims[d] is None])
        inner = [d for d in over if sizes[d] > 1]
        if [self.frame[d] for d in free] != [sizes[d] for d in inner]:
            return None
        for d, along in zip(free, inner, strict=True):
            dims[d] = along
        return Node(self.flow, self.frame, self.dtype, View(x, tuple(dims)), self.steps), free

    def as_operand(self) -> Operand | None:
        """Returns it as an operand, if it has the frame's shape and the result's type."""
        return self.last(len(self.frame))

    def last(self, count: int) -> Operand | None:
        """Returns it as an operand of the last dims of the frame, if it varies along exactly these."""
        flow, first = self.flow, len(self.frame) - count
        for base in (flow.follow(self.view, flow.moved), self.view):
            along = [d for d in base.dims if d is not None]
            full = all(n == 1 or d is not None for d, n in zip(base.dims[first:], self.frame[first:], strict=True))
            alone = all(d is None for d in base.dims[:first])
            if full and alone and along == sorted(along) and flow.dtype(base.value) == self.dtype:
                # Where it is there in that shape already, no reshape is needed.
                there = flow.shape(self.view.value) == self.frame[first:]
                return self.view.value if there else base.value, self.frame[first:]
        return None


def close(number: float, wanted: float, dtype: DType) -> bool:
    """Returns True if two numbers are equal up to rounding in a type."""
    return abs(number - wanted) <= 2.0 ** -FLOATS[dtype][0] * abs(wanted)
