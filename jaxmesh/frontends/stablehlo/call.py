"""One StableHLO op on shards: its operands on this device, its attributes, and the types of its results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from jaxmesh.frontends.stablehlo.decisions import Decisions
from jaxmesh.frontends.stablehlo.shardings import Sharding
from jaxmesh.frontends.stablehlo.values import Sharded

Body = Callable[..., list[Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of the meaning of an op.

    Attributes:
      op: the operation.
      operands: the shards of its operands.
      shardings: how they are split.
      results: the types of its results on one device.
      result_shardings: how they are split.
      shapes: the global shapes of its operands.
      sizes: the axes of the mesh.
      read: converts an attribute.
      body: returns a region as a function of arrays.
      decisions: receives the collectives that the meaning itself makes, and why.
      keeps_ops: whether an op of TTIR stays one equation.
    """

    op: Any
    operands: list[Any]
    shardings: Sequence[Sharding]
    results: Sequence[jax.ShapeDtypeStruct]
    result_shardings: Sequence[Sharding]
    shapes: Sequence[tuple[int, ...]]
    sizes: Mapping[str, int]
    read: Callable[[Any], Any]
    body: Callable[[Any], Body]
    decisions: Decisions
    keeps_ops: bool = False

    @property
    def name(self) -> str:
        """The name of the op."""
        return self.op.name

    def __getitem__(self, name: str) -> Any:
        """The value of an attribute."""
        return self.read(self.op.attributes[name])

    def get(self, name: str, default: Any) -> Any:
        """The value of an attribute that may be left out."""
        return self[name] if name in self.op.attributes else default

    def enum(self, name: str) -> str:
        """The word that an attribute of StableHLO's own kind stands for; empty if it is left out."""
        return enum_of(self.op, name)

    def raw(self, name: str) -> Any:
        """An attribute itself."""
        return self.op.attributes[name]


def enum_of(op: Any, name: str) -> str:
    """Returns the word of an attribute such as `#stablehlo<comparison_direction LT>`; empty if it is left out."""
    return str(op.attributes[name]).rstrip(">").split(" ")[-1] if name in op.attributes else ""


Meaning = Callable[[Call], Any]
"""Returns the op's result on this device, or a list of several."""


class Ops:
    """The meanings of a family of ops, by name."""

    def __init__(self) -> None:
        self.meanings: dict[str, Meaning] = {}
        self.kinds: dict[str, Callable[[Any], str | None]] = {}

    def add(self, *names: str, kind: str | Callable[[Any], str | None] | None = None) -> Callable[[Meaning], Meaning]:
        """Registers the meaning of ops, and the kind in which partial results of them are reduced, if they can be."""

        def register(meaning: Meaning) -> Meaning:
            for name in names:
                self.meanings[name] = meaning
                if kind is not None:
                    self.kinds[name] = kind if callable(kind) else (lambda _, given=kind: given)
            return meaning

        return register


def as_list(made: Any) -> list[Any]:
    """Returns one or several values as a list."""
    several: Any = made
    return list(several) if isinstance(made, tuple | list) else [made]


class Program(Protocol):
    """The import that an op with regions, or without a sharding rule, is a part of; see `importer.Importer`."""

    sizes: Mapping[str, int]
    decisions: Decisions
    env: dict[Any, Sharded]
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
        """Imports the operations of a block; returns what it returns."""
        ...

    def inner_scope(self, *, same_trace: bool = False) -> contextlib.AbstractContextManager[None]:
        """Runs its body as an inner trace, or with other manual axes; its values must not leave it."""
        ...

    def body(self, region: Any) -> Body:
        """Returns a region of scalars as a function of arrays."""
        ...

    def reshard(self, x: Sharded, target: Sharding, why: str) -> Any:
        """Returns this device's shard of a value in another sharding."""
        ...

    def settle(self, x: Sharded) -> Sharded:
        """Makes the reduction of a value that is still to be made."""
        ...


Whole = Callable[[Program, Any], list[Sharded]]
"""The import of an op that is not computed on shards by a rule."""
