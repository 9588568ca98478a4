"""Canonicalises a flat program as upstream's dialects do: one form where several mean the same, nothing undone.

They are the patterns of tt-mlir 19c86fca (lib/Dialect/TTIR/IR/TTIROps.cpp, lib/Dialect/TTNN/IR/TTNNOps.cpp) that need
no arithmetic: constants are not folded. None changes a value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxmesh.dialects.definitions import definition_of
from jaxmesh.dialects.op import Write
from jaxmesh.dialects.program import Op, Program, Shape, Value, without_dead
from jaxmesh.passes.aliases import written_by
from jaxmesh.passes.def_use import DefUse, created_number, use_counts
from jaxmesh.passes.rules import Rules


def canonicalize(program: Program) -> Program:
    """Returns the program with every op in its canonical form."""
    mutated = {v for op in program.ops for v in written_by(op, (Write.BESIDE_RESULTS,))}
    state = _State(replace(program, types=list(program.types), ops=[], results=[]), mutated, use_counts(program))
    for op in program.ops:
        state.take(op)
    state.made.results = [replace(r, value=state.now(r.value)) for r in program.results]
    return without_dead(state.made)


@dataclass(slots=True)
class _State(DefUse):
    """The program so far.

    Attributes:
      made: it.
      mutated: values that an op changes where they are.
      read: how often each value of the program that comes in is read.
      same: by value of the program that comes in the value that it is.
    """

    made: Program
    mutated: set[Value]
    read: Counter[Value]
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
        self.enter(op)

    def _simpler(self, op: Op) -> Op | Value | None:
        dialect, _, name = op.name.partition(".")
        pattern = _PATTERNS[dialect].get(name) if dialect in _PATTERNS else None
        return None if pattern is None else pattern(self, op)

    def type(self, value: Value) -> tuple[Shape, np.dtype[Any]]:
        """Returns the shape and the element type of a value."""
        kind = self.made.types[value]
        return kind.shape, kind.dtype

    def shape(self, value: Value) -> Shape:
        return self.made.types[value].shape

    def number(self, value: Value) -> float | None:
        """Returns the number that fills a value, behind views and broadcasts; None if it is not known."""
        op = self.behind(value, "ttir.broadcast")
        return None if op is None or not op.name.startswith("ttir.") else created_number(op)


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
    """Folds: an operand that is known to be true or false decides, or leaves the other."""
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
    """Replaces a move of dims of size 1 alone by a reshape."""
    (x,) = op.used
    shape, order = state.shape(x), tuple(_attribute(op, "permutation"))
    moved = [d for d in order if shape[d] != 1]
    if moved == sorted(moved) and order != tuple(range(len(order))):
        return _renamed(op, "reshape", op.operands, {"shape": state.shape(op.results[0])})
    return _permute(state, op)


@TTNN_PATTERNS.add("matmul")
def _matmul(state: _State, op: Op) -> Op | None:
    """Drops a repeat: TTNN repeats the second dim of four of a single matrix by itself."""
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
    """Replaces a choice by a known condition."""
    condition, *choices = op.used
    number = state.number(condition)
    chosen = None if number is None else choices[0 if number else 1]
    return chosen if chosen is not None and state.type(chosen) == state.type(op.results[0]) else None
