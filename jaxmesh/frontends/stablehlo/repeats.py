"""Imports an op like an equal op before it that needed no communication: the layers of a model repeat their ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from jaxmesh.frontends.stablehlo.shardings import Sharding
from jaxmesh.frontends.stablehlo.values import Sharded
from jaxmesh.jaxprs.emit import Steps, as_tracer, current_trace, type_in_trace


class ValueRow(NamedTuple):
    """A value.

    Attributes:
      mark: an object that values of one trace share if ops treat them alike; None for a value without equals.
      atom: the variable or the constant of a value with a mark.
      shard: the shard, or the repeated op whose result it is.
      operand: the first operand of the repeated op.
    """

    mark: object
    atom: Any
    shard: Sharded | Repeat
    operand: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """The import of an op without communication, for equal ops on operands with the same marks.

    Attributes:
      trace: the trace of its operands and its result.
      steps: its equations.
      mark: the mark of its result.
      sharding: the sharding of its result.
      splits: True if an operand or the result is sharded.
      make: a function of the first operand that returns `Sharded.make` of the result; None for a result without it.
    """

    trace: Any
    steps: Steps
    mark: object
    sharding: Sharding
    splits: bool
    make: Callable[[Any], Callable[[Sharding], Any]] | None

    def row(self, operands: Sequence[ValueRow], source: Any) -> ValueRow:
        """Adds the equations of an equal op at a source location; returns its result."""
        atoms = [x.atom for x in operands]
        variable = self.steps.repeat(self.trace, [a for a in atoms if type(a) is not np.ndarray], source)
        return ValueRow(self.mark, variable, self, atoms[0])

    def result(self, row: ValueRow) -> Sharded:
        """Returns the shard of a result."""
        x = row.operand
        make = None if self.make is None else self.make(x if type(x) is np.ndarray else as_tracer(self.trace, x))
        return Sharded(as_tracer(self.trace, row.atom), self.sharding, make=make)


@dataclass(slots=True, eq=False)
class ImportScope:
    """The marks of the values of one trace over the same manual axes, and what can be repeated, by `ShardTable.key`."""

    marks: dict[Any, object] = field(default_factory=dict[Any, object])
    repeats: dict[Any, ValueRow | Repeat] = field(default_factory=dict[Any, "ValueRow | Repeat"])


class ShardTable:
    """The shard of every value of a function; the shard of a repeated op's result is created when it is read."""

    def __init__(self) -> None:
        self.rows: dict[Any, ValueRow] = {}

    def __getitem__(self, value: Any) -> Sharded:
        row = self.rows[value]
        if isinstance(row.shard, Sharded):
            return row.shard
        x = row.shard.result(row)
        self.rows[value] = ValueRow(row.mark, row.atom, x)
        return x

    def __setitem__(self, value: Any, x: Sharded) -> None:
        self.rows[value] = ValueRow(None, None, x)

    def define(self, value: Any, x: Sharded, scope: ImportScope) -> ValueRow:
        """Adds a value, with a mark if ops on it can be repeated."""
        known = None if x.partial else type_in_trace(x.array)
        mark = None if known is None else scope.marks.setdefault((value.type, x.sharding, known), object())
        row = self.rows[value] = ValueRow(mark, getattr(x.array, "val", x.array), x)
        return row

    def remember(
        self,
        op: Any,
        y: Sharded,
        scope: ImportScope,
        steps: Steps,
        *,
        splits: bool,
        make: Callable[[Any], Callable[[Sharding], Any]] | None,
    ) -> None:
        """Keeps the import of an op without communication, for equal ops; see `Repeat`."""
        operands = [self.rows[v] for v in op.operands]
        mark = self.define(op.results[0], y, scope).mark
        if mark is not None and all(x.mark is not None for x in operands):
            repeat = Repeat(current_trace(), steps, mark, y.sharding, splits, make)
            scope.repeats[self.key(op, operands)] = repeat

    def key(self, op: Any, operands: Sequence[ValueRow]) -> Any:
        """Returns a key that is equal for equal ops on operands with the same marks."""
        return op.name, tuple(op.attributes.items()), op.results[0].type, *[x.mark for x in operands]
