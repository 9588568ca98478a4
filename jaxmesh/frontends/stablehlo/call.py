"""One StableHLO op on shards: its operands on this device, its attributes, the types of its results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from jaxmesh.dialects.imported_op import imported_op, imported_op_p
from jaxmesh.frontends.jax.retype import join_axes, spread
from jaxmesh.frontends.stablehlo.decisions import Decisions
from jaxmesh.frontends.stablehlo.shardings import Sharding
from jaxmesh.frontends.stablehlo.values import Sharded, ShardTable

Body = Callable[..., list[Any]]


@dataclass(frozen=True, slots=True)
class ShardedCall:
    """The inputs of an op's meaning.

    Attributes:
      op: the operation.
      operands: the operands' shards.
      shardings: the operands' shardings.
      results: the types of the results' shards.
      shapes: the operands' global shapes.
      sizes: the axes of the mesh.
      read: a function that converts an attribute.
      body: a function that returns a region as a function of arrays.
      decisions: a log of the collectives that the meaning inserts, with their reasons.
      keeps_ops: True if an op of TTIR stays one equation.
    """

    op: Any
    operands: list[Any]
    shardings: Sequence[Sharding]
    results: Sequence[jax.ShapeDtypeStruct]
    shapes: Sequence[tuple[int, ...]]
    sizes: Mapping[str, int]
    read: Callable[[Any], Any]
    body: Callable[[Any], Body]
    decisions: Decisions
    keeps_ops: bool = False

    def __getitem__(self, name: str) -> Any:
        """Returns the value of an attribute."""
        return self.read(self.op.attributes[name])

    def get(self, name: str, default: Any) -> Any:
        """Returns the value of an optional attribute."""
        return self[name] if name in self.op.attributes else default

    def enum(self, name: str) -> str:
        """Returns the keyword of a StableHLO enum attribute; empty if it is omitted."""
        return enum_of(self.op, name)

    def raw(self, name: str) -> Any:
        """Returns an attribute without conversion."""
        return self.op.attributes[name]


def enum_of(op: Any, name: str) -> str:
    """Returns the keyword of an attribute such as `#stablehlo<comparison_direction LT>`; empty if it is omitted."""
    return str(op.attributes[name]).rstrip(">").split(" ")[-1] if name in op.attributes else ""


Meaning = Callable[[ShardedCall], Any]
"""A function that returns the op's result on this device, or a list of results."""


class OpFamily:
    """The meanings of a family of ops, by name."""

    def __init__(self) -> None:
        self.meanings: dict[str, Meaning] = {}
        self.kinds: dict[str, Callable[[Any], str | None]] = {}

    def add(self, *names: str, kind: str | Callable[[Any], str | None] | None = None) -> Callable[[Meaning], Meaning]:
        """Registers the meaning of ops; `kind` is the reduction of their partial results, if any."""

        def register(meaning: Meaning) -> Meaning:
            for name in names:
                self.meanings[name] = meaning
                if kind is not None:
                    self.kinds[name] = kind if callable(kind) else (lambda _, fixed=kind: fixed)
            return meaning

        return register


def as_list(values: Any) -> list[Any]:
    """Returns one or several values as a list."""
    several: Any = values
    return list(several) if isinstance(values, tuple | list) else [values]


class ImportContext(Protocol):
    """The import around an op that has regions or lacks a sharding rule; see `importer.Importer`."""

    sizes: Mapping[str, int]
    decisions: Decisions
    env: ShardTable
    manual: frozenset[str]
    keeps_ops: bool
    splits: bool
    equation: Callable[[int, list[Any]], list[Any]] | None
    read: Any

    def types_of(self, operands: Any) -> list[jax.ShapeDtypeStruct]:
        """Returns the global types of values."""
        ...

    def result_shardings(self, op: Any) -> list[Sharding]:
        """Returns the shardings of an op's results."""
        ...

    def block(self, block: Any, arguments: Sequence[Sharded]) -> list[Sharded]:
        """Imports the operations of a block; returns the results of the block."""
        ...

    def inner_scope(self, *, same_trace: bool = False) -> contextlib.AbstractContextManager[None]:
        """Imports the block as an inner trace, or with different manual axes; its values must not leave it."""
        ...

    def body(self, region: Any) -> Body:
        """Returns a region of scalars as a function of arrays."""
        ...

    def reshard(self, x: Sharded, target: Sharding, why: str) -> Any:
        """Returns this device's shard of a value in another sharding."""
        ...

    def settle(self, x: Sharded) -> Sharded:
        """Performs the pending reduction of a value."""
        ...


Whole = Callable[[ImportContext, Any], list[Sharded]]
"""The import of an op that no rule computes on shards."""

# --- ops that stay one equation ---------------------------------------------------------------------------------------


def keep_op(
    keeps_ops: bool, name: str, operands: Sequence[Any], attributes: Mapping[str, Any], meaning: Callable[..., Any]
) -> list[Any]:
    """Performs the meaning of an op of TTIR on arrays; as one equation if ops are kept."""
    axes = join_axes(operands)
    arrays = [spread(x, axes) for x in operands]

    def results(*values: Any) -> list[Any]:
        return as_list(meaning(*values))

    kept = imported_op("ttir", name, attributes, operands) if keeps_ops else None
    if kept is None:
        return results(*arrays)
    return imported_op_p.bind(*arrays, jaxpr=jax.make_jaxpr(results)(*arrays), op=kept)
