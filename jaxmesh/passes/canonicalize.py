"""Canonicalises a flat program as upstream's dialects do: one form where several mean the same, nothing undone.

The patterns are those of tt-mlir 19c86fca (lib/Dialect/TTIR/IR/TTIROps.cpp, lib/Dialect/TTNN/IR/TTNNOps.cpp) that need
no arithmetic: constants are not folded. None changes a value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxmesh.dialects.definitions import definition_of, has_trait
from jaxmesh.dialects.op import Trait, Write
from jaxmesh.dialects.program import Op, Program, Shape, Value, without_dead
from jaxmesh.passes.aliases import written_by
from jaxmesh.passes.rules import Rules


def canonicalize(program: Program) -> Program:
    """Returns the program with every op in its canonical form."""
    mutated = {v for op in program.ops for v in written_by(op, (Write.BESIDE_RESULTS,))}
    read = Counter([*(v for op in program.ops for v in op.used), *(r.value for r in program.results)])
    state = _State(replace(program, types=list(program.types), ops=[], results=[]), mutated, read)
    for op in program.ops:
        state.take(op)
    state.made.results = [replace(r, value=state.now(r.value)) for r in program.results]
    return without_dead(state.made)


@dataclass(slots=True)
class _State:
    """The program so far.

    Attributes:
      made: it.
      mutated: values that an op changes where they are.
      read: how often each value of the program that comes in is read.
      makers: by value the op that makes it.
      same: by value of the program that comes in the value that it is.
    """

    made: Program
    mutated: set[Value]
    read: Counter[Value]
    makers: dict[Value, Op] = field(default_factory=dict[Value, Op])
    same: dict[Value, Value] = field(default_factory=dict[Value, Value])

    def now(self, value: Value) -> Value:
        return self.same.get(value, value)

    def take(self, op: Op) -> None:
        """Appends an op in its canonical form, or takes an earlier value for its result."""
        if not self.same.keys().isdisjoint(op.operands):
            operands = tuple([None if v is None else self.now(v) for v in op.operands])
            op = Op(op.name, operands, op.results, op.attributes, op.line)
        while (found := self._simpler(op)) is not None and found is not op:
            if isinstance(found, int):
                self.same[op.results[0]] = found
                return
            op = found
        self.made.ops.append(op)
        for value in op.results:
            self.makers[value] = op

    def _simpler(self, op: Op) -> Op | Value | None:
        dialect, _, name = op.name.partition(".")
        pattern = _PATTERNS[dialect].get(name) if dialect in _PATTERNS else None
        return None if pattern is None else pattern(self, op)

    def type(self, value: Value) -> tuple[Shape, np.dtype[Any]]:
        """Returns the shape and the element type of a value; where it is no op of TTIR says."""
        kind = self.made.types[value]
        return kind.shape, kind.dtype

    def shape(self, value: Value) -> Shape:
        return self.made.types[value].shape

    def maker(self, value: Value, name: str) -> Op | None:
        """Returns the op that makes a value, if it is one of a name."""
        op = self.makers.get(value)
        return op if op is not None and op.name.partition(".")[2] == name else None

    def number(self, value: Value) -> float | None:
        """Returns the number that all elements of a value are; None if it is not known."""
        op = self.makers.get(value)
        while op is not None and (has_trait(op.name, Trait.VIEW) or op.name == "ttir.broadcast"):
            op = self.makers.get(op.used[0])
        if op is None:
            return None
        match op.name:
            case "ttir.zeros" | "ttir.ones":
                return float(op.name == "ttir.ones")
            case "ttir.full":
                return op.attributes["fill_value"]
            case "ttir.constant" if np.ptp(np.asarray(op.attributes["value"], np.float64)) == 0:
                return float(np.asarray(op.attributes["value"]).flat[0])
            case _:
                return None


Pattern = Callable[[_State, Op], "Op | Value | None"]
"""Returns a simpler op of the same result, a value that is the result, or None."""

PATTERNS: Rules[Pattern] = Rules()
TTNN_PATTERNS: Rules[Pattern] = Rules()
_PATTERNS: Mapping[str, Mapping[str, Pattern]] = {"ttir": PATTERNS, "ttnn": TTNN_PATTERNS}


def _renamed(op: Op, name: str, operands: tuple[Value | None, ...], attributes: Mapping[str, Any] | None = None) -> Op:
    dialect = op.name.partition(".")[0]
    return Op(f"{dialect}.{name}", operands, op.results, op.attributes if attributes is None else attributes, op.line)


def _attribute(op: Op, name: str) -> Any:
    definition = definition_of(op.name)
    assert definition is not None
    return op.attributes.get(name, definition.by_name[name].default)


def _unchanged(state: _State, op: Op) -> bool:
    return state.type(op.used[0]) == state.type(op.results[0])


# --- twice is once, or nothing ---------------------------------------------------------------------------------------


@PATTERNS.add("relu", "abs", "ceil", "floor", "sign")
def _idempotent(state: _State, op: Op) -> Value | None:
    twice = state.maker(op.used[0], op.name.removeprefix("ttir."))
    return op.used[0] if twice is not None and _unchanged(state, op) and _unchanged(state, twice) else None


@PATTERNS.add("neg", "bitwise_not")
def _involution(state: _State, op: Op) -> Value | None:
    twice = state.maker(op.used[0], op.name.removeprefix("ttir."))
    return twice.used[0] if twice is not None and state.type(twice.used[0]) == state.type(op.results[0]) else None


@PATTERNS.add("maximum", "minimum", "bitwise_and", "bitwise_or")
def _of_itself(state: _State, op: Op) -> Value | None:
    a, b = op.used
    return a if a == b and _unchanged(state, op) else None


@PATTERNS.add("logical_and", "logical_or")
def _logical(state: _State, op: Op) -> Value | Op | None:
    """An operand that is known to be true or false decides, or leaves the other."""
    a, b = op.used
    decides = op.name == "ttir.logical_or"
    for value, other in ((a, b), (b, a)):
        # Of numbers the op gives 0 or 1.
        kept = state.type(other) == state.type(op.results[0]) and state.type(other)[1] == np.bool_
        if kept and value == other:
            return other
        number = state.number(value)
        if number is not None and bool(number) != decides and kept:
            return other
        if number is not None and bool(number) == decides:
            return _renamed(op, "ones" if decides else "zeros", (), {"shape": state.shape(op.results[0])})
    return None


# --- moves -----------------------------------------------------------------------------------------------------------


@TTNN_PATTERNS.add("typecast")
@PATTERNS.add("typecast")
def _typecast(state: _State, op: Op) -> Value | None:
    return op.used[0] if _unchanged(state, op) else None


@PATTERNS.add("squeeze", "unsqueeze")
def _as_reshape(state: _State, op: Op) -> Op:
    return _renamed(op, "reshape", op.operands, {"shape": state.shape(op.results[0])})


@TTNN_PATTERNS.add("reshape")
@PATTERNS.add("reshape")
def _reshape(state: _State, op: Op) -> Op | Value | None:
    (x,) = op.used
    if _unchanged(state, op):
        return x
    earlier = state.maker(x, "reshape")
    return None if earlier is None or x in state.mutated else _renamed(op, "reshape", earlier.operands)


@PATTERNS.add("transpose")
def _transpose(state: _State, op: Op) -> Op:
    order = list(range(len(state.shape(op.used[0]))))
    a, b = _attribute(op, "dim0"), _attribute(op, "dim1")
    order[a], order[b] = order[b], order[a]
    return _renamed(op, "permute", op.operands, {"permutation": tuple(order)})


@PATTERNS.add("permute")
def _permute(state: _State, op: Op) -> Op | Value | None:
    (x,), order = op.used, tuple(_attribute(op, "permutation"))
    if order == tuple(range(len(order))):
        return x
    earlier = state.maker(x, "permute")
    if earlier is None or (op.name == "ttnn.permute" and state.read[x] > 1):
        return None
    first = _attribute(earlier, "permutation")
    return _renamed(op, "permute", earlier.operands, {"permutation": tuple(first[d] for d in order)})


@TTNN_PATTERNS.add("permute")
def _permute_of_ones(state: _State, op: Op) -> Op | Value | None:
    """One that moves dims of size 1 alone is a reshape."""
    (x,) = op.used
    shape, order = state.shape(x), tuple(_attribute(op, "permutation"))
    moved = [d for d in order if shape[d] != 1]
    if moved == sorted(moved) and order != tuple(range(len(order))):
        return _renamed(op, "reshape", op.operands, {"shape": state.shape(op.results[0])})
    return _permute(state, op)


@TTNN_PATTERNS.add("matmul")
def _matmul(state: _State, op: Op) -> Op | None:
    """TTNN repeats the second dim of four of a single matrix by itself."""
    a, b = op.used
    repeat = state.maker(b, "repeat")
    if repeat is None or not len(state.shape(a)) == len(state.shape(b)) == 4:
        return None
    counts = _attribute(repeat, "repeat_dims")
    alone = [n != 1 for n in counts] == [False, True, False, False]
    shared = state.shape(b)[0] == 1 and state.shape(a)[1] == state.shape(b)[1]
    return _renamed(op, "matmul", (a, repeat.used[0])) if alone and shared else None


@PATTERNS.add("reverse")
def _reverse(state: _State, op: Op) -> Op | Value | None:
    (x,), dims = op.used, tuple(_attribute(op, "dimensions"))
    if not dims:
        return x
    earlier = state.maker(x, "reverse")
    if earlier is None:
        return None
    left = {*dims} ^ {*_attribute(earlier, "dimensions")}
    return _renamed(op, "reverse", earlier.operands, {"dimensions": tuple(sorted(left))})


@PATTERNS.add("broadcast", "repeat")
def _repeated(state: _State, op: Op) -> Value | None:
    return op.used[0] if _unchanged(state, op) else None


@PATTERNS.add("concat")
def _concat(state: _State, op: Op) -> Op | Value | None:
    full = tuple([v for v in op.used if math.prod(state.shape(v))])
    if len(full) <= 1:
        return (full or op.used)[0]
    return None if len(full) == len(op.used) else _renamed(op, "concat", full)


# --- one form of several ---------------------------------------------------------------------------------------------


@PATTERNS.add("le", "lt")
def _swapped(state: _State, op: Op) -> Op:
    a, b = op.used
    return _renamed(op, "ge" if op.name == "ttir.le" else "gt", (b, a))


@PATTERNS.add("where")
def _where(state: _State, op: Op) -> Value | None:
    """A condition that is known chooses."""
    condition, *choices = op.used
    number = state.number(condition)
    chosen = None if number is None else choices[0 if number else 1]
    return chosen if chosen is not None and state.type(chosen) == state.type(op.results[0]) else None
