"""Imports an op without communication like an equal op before it: the layers of a model repeat their ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxlib.mlir import ir

from jaxmesh.frontends.stablehlo.shardings import Sharding
from jaxmesh.frontends.stablehlo.values import Sharded
from jaxmesh.jaxprs.emit import Steps, as_tracer, current_trace, type_in_trace

_ir: Any = ir


class Repeat(NamedTuple):
    """The import of an op: its equations, and its result; `make` takes the operand and the sharding."""

    steps: Steps
    trace: Any
    mark: object
    sharding: Sharding
    make: Callable[[Any, Sharding], Any] | None
    splits: bool


Row = tuple[object, Any, Repeat | Sharded, Any]
"""A value: its mark, its variable or constant, the shard or its import, and the first operand of the import.

Values of one scope share a mark if ops treat them alike; the mark of other values is None.
"""


class ShardTable(dict[Any, Sharded]):
    """The shards of values; the shard of a repeated result is created when it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[Any, Row] = {}
        self.repeats: dict[Any, Repeat | Row] = {}
        self._marks: dict[Any, object] = {}

    def __missing__(self, value: Any) -> Sharded:
        _, atom, x, operand = self.rows[value]
        if isinstance(x, Repeat):
            make = x.make and functools.partial(x.make, as_tracer(x.trace, operand))
            x = Sharded(as_tracer(x.trace, atom), x.sharding, make=make)
        self[value] = x
        return x

    def define(self, scope: object, value: Any, x: Sharded) -> Row:
        """Adds a value of a scope."""
        known = None if x.partial else type_in_trace(x.array)
        key = scope, value.type, x.sharding, known
        mark = None if known is None else self._marks.setdefault(key, object())
        self[value] = x
        row = self.rows[value] = mark, getattr(x.array, "val", x.array), x, None
        return row

    def key(self, scope: object, op: Any, operands: Sequence[Row]) -> Any:
        """Returns a key that is equal for equal ops on operands with the same marks."""
        kind = op.results[0].type
        # MLIR's bindings cannot read complex constants; no two have one key.
        unread = op.name == "stablehlo.constant" and isinstance(kind.element_type, _ir.ComplexType)
        attributes = object() if unread else tuple(op.attributes.items())
        return scope, op.name, attributes, kind, *[row[0] for row in operands]

    def remember(self, scope: object, op: Any, y: Sharded, steps: Steps, make: Any, splits: bool) -> None:
        """Keeps the import of an op without communication, for equal ops of the scope; see `Repeat`."""
        operands, mark = [self.rows[v] for v in op.operands if v in self.rows], self.define(scope, op.results[0], y)[0]
        if len(operands) == len(op.operands) and mark and all(row[0] for row in operands):
            repeat = Repeat(steps, current_trace(), mark, y.sharding, make, splits)
            self.repeats[self.key(scope, op, operands)] = repeat
