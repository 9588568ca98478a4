"""Values of a partitioned program: this device's shard, the global sharding, pending reductions, repeated ops."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

from jaxmesh.dialects.ttir.collectives import exchange, gather
from jaxmesh.frontends.jax.retype import spread
from jaxmesh.frontends.stablehlo.shardings import Sharding
from jaxmesh.jaxprs.emit import Steps, as_tracer, current_trace, type_in_trace

_lax: Any = jax.lax


@dataclass(slots=True, eq=False)
class Sharded:
    """A value inside the region of all devices.

    Attributes:
      array: this device's shard, `[local shape]`.
      sharding: per dim the mesh axes that split the global value.
      partial: the mesh axes with a pending reduction of the shards, by `kind`.
      kind: `sum`, `max`, `min`, `prod`, `and` or `or`.
      source: the op that produced a partial value.
      known: cached reshards and reductions of this value, per scope.
    """

    array: Any
    sharding: Sharding
    partial: tuple[str, ...] = ()
    kind: str = ""
    source: Any = None
    known: dict[Any, Sharded] = field(default_factory=dict[Any, "Sharded"])
    make: Callable[[Sharding], Any] | None = None
    """A function that creates the shard in another sharding without communication, for a value such as a constant."""


def axis_position(axes: Sequence[str], sizes: Mapping[str, int]) -> Any:
    """Returns the row-major position of this device along mesh axes, an int32."""
    position: Any = None
    for axis in axes:
        index = _lax.axis_index(axis)
        position = index if position is None else position * np.int32(sizes[axis]) + index
    return np.int32(0) if position is None else position


def reduce_over(x: Any, axes: Sequence[str], kind: str) -> Any:
    """Reduces a value over mesh axes; the result is replicated along them."""
    names = tuple(axes)
    x = spread(x, names)
    small = x.dtype == np.bool_ or (jnp.issubdtype(x.dtype, jnp.integer) and jnp.iinfo(x.dtype).bits < 8)
    if small:
        wide = reduce_over(_lax.convert_element_type(x, np.int32), names, _OF_BOOLS.get(kind, kind))
        return _lax.convert_element_type(wide, x.dtype)
    match kind:
        case "sum":
            return _lax.psum(x, names)
        case "max" | "or" if not (kind == "or" and x.dtype != np.bool_):
            return _lax.pmax(x, names)
        case "min":
            return _lax.pmin(x, names)
        case _:
            return _gather_and_reduce(x, names, kind)


_OF_BOOLS = {"sum": "max", "or": "max", "and": "min", "prod": "min"}
"""Reductions of booleans, as reductions of the integers 0 and 1."""


def _gather_and_reduce(x: Any, axes: tuple[str, ...], kind: str) -> Any:
    # Reduce after each axis, so that the next all_gather receives one value per device.
    for axis in reversed(axes):
        x = COMBINE_DIMS[kind](all_gather(_lax.expand_dims(x, (0,)), axis, 0), (0,))
    return x


COMBINE_DIMS: dict[str, Any] = {
    "sum": _lax.reduce_sum,
    "max": _lax.reduce_max,
    "min": _lax.reduce_min,
    "prod": _lax.reduce_prod,
    "and": _lax.reduce_and,
    "or": _lax.reduce_or,
}
"""Reductions over tensor dims, by kind."""

COMBINE: dict[str, Any] = {
    "sum": _lax.add,
    "max": _lax.max,
    "min": _lax.min,
    "prod": _lax.mul,
    "and": _lax.bitwise_and,
    "or": _lax.bitwise_or,
}
"""Reductions of two values, by kind."""


def all_gather(x: Any, axis: str, dim: int) -> Any:
    """Joins the shards along a mesh axis; the result is equal along it."""
    return gather(_as_numbers(x), axis, dim, tiled=True).astype(x.dtype)


def _as_numbers(x: Any) -> Any:
    """Converts truth values to bytes."""
    return x.astype(np.uint8) if x.dtype == np.bool_ else x


def own_slice(x: Any, axis: str, dim: int, sizes: Mapping[str, int]) -> Any:
    """Returns this device's part of a dim along a mesh axis."""
    shape, starts = list(x.shape), [np.int32(0)] * x.ndim
    shape[dim] //= sizes[axis]
    starts[dim] = _lax.axis_index(axis) * np.int32(shape[dim])
    return _lax.dynamic_slice(spread(x, (axis,)), starts, shape, allow_negative_indices=False)


def all_to_all(x: Any, axis: str, split: int, join: int) -> Any:
    """Moves a mesh axis from the dim `join` to the dim `split`."""
    return exchange(_as_numbers(x), (axis,), split, join).astype(x.dtype)


def reorder(x: Any, dim: int, sizes: Sequence[int]) -> Any:
    """Orders the parts of a dim that was joined along axes of some sizes, so that the first axis is major."""
    count = len(sizes)
    parts = [*reversed(sizes), x.shape[dim] // math.prod(sizes)]
    apart = _lax.reshape(x, (*x.shape[:dim], *parts, *x.shape[dim + 1 :]))
    order = [*range(dim), *reversed(range(dim, dim + count)), *range(dim + count, apart.ndim)]
    return _lax.reshape(_lax.transpose(apart, order), x.shape)


# --- repeated ops -----------------------------------------------------------------------------------------------------


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
