"""Flat programs: what the emitters print. One list of operations over numbered values, calls inlined, loops unrolled.

A program is built from a jaxpr by `passes/flatten/`, at TTIR level (`ttir.*`, `ttir.mesh_shard`) from a traced
one, or with the two transfers of TTNN from a lowered one; `passes/ttir_to_ttnn` lowers every
other operation to TTNN too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Value = int
"""A value is its number; `Program.types` has its type."""
UNROLL_LIMIT = 200_000
"""How many operations loops may make, all in all, when they are unrolled, if nothing else is said."""


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value.

    Attributes:
      shape: local (per device) of a shard, full otherwise.
      dtype: a NumPy dtype, those of `ml_dtypes` included.
      kind: `tensor`, or `device` for the handle that `ttnn.get_device` gives.
      host: at TTNN level, whether the tensor is in host memory. At TTIR level nothing reads it.
      tile: at TTNN level, whether it is laid out in tiles; else row by row.
    """

    shape: Shape
    dtype: np.dtype[Any]
    kind: str = "tensor"
    host: bool = False
    tile: bool = False


@dataclass(slots=True)
class Op:
    """One operation; never changed once it is made (not frozen, because programs have tens of thousands of them).

    Attributes:
      name: with its dialect, `ttir.add`.
      operands: values; None for an optional operand that is left out.
      results: values, defined here and nowhere else.
      attributes: by the dialect's name; Python numbers, strings, tuples, NumPy arrays (constants), and for the two
        transfers of TTNN a `MeshMapperConfig` or `MeshComposerConfig`. Those that are unset are left out.
      line: the user's source line as `file:line (function)`, or empty.
    """

    name: str
    operands: tuple[Value | None, ...]
    results: tuple[Value, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    line: str = ""

    @property
    def used(self) -> tuple[Value, ...]:
        """The operands that are there."""
        given: Any = self.operands
        # A row of plain numbers, as most are, is given as it is.
        return tuple([v for v in given if v is not None]) if None in given else given


@dataclass(frozen=True, slots=True)
class Port:
    """An argument or a result of a program.

    Attributes:
      value: its number.
      presharded: whether it lives on the devices, its type being local; else it is a full host tensor.
      varying: of a presharded argument the numbers of the mesh axes over which its shards differ; None where nothing is
        known, so that it may be all.
      path: where it stands in the caller's tree, as `jax.tree_util.keystr` writes it; from outside, not to be trusted.
    """

    value: Value
    presharded: bool
    path: str = ""
    varying: tuple[int, ...] | None = None


@dataclass(slots=True)
class Program:
    """A flat program.

    Attributes:
      name: the function's name; from outside, not to be trusted.
      mesh: axis names and sizes.
      types: the type of every value, by number.
      arguments: the first values, in order.
      ops: in order; every value is defined before it is used.
      results: may name an argument, or a value twice.
    """

    name: str
    mesh: dict[str, int]
    types: list[Type] = field(default_factory=list[Type])
    arguments: list[Port] = field(default_factory=list[Port])
    ops: list[Op] = field(default_factory=list[Op])
    results: list[Port] = field(default_factory=list[Port])

    def new(self, kind: Type) -> Value:
        """A fresh value of a type."""
        self.types.append(kind)
        return len(self.types) - 1

    def last_uses(self) -> dict[Value, int]:
        """The number of the last op that reads each value that an op reads."""
        return {v: i for i, op in enumerate(self.ops) for v in op.used}

    def like(self, ops: Iterable[Op], results: Sequence[Port]) -> Program:
        """The same boundary and values with other operations."""
        return Program(self.name, self.mesh, self.types, self.arguments, list(ops), list(results))


def without_dead(program: Program) -> Program:
    """The program without the operations whose results nothing reads."""
    live = {r.value for r in program.results}
    kept: list[Op] = []
    for op in reversed(program.ops):
        if not op.results or live.intersection(op.results):
            live.update(op.used)
            kept.append(op)
    return program.like(reversed(kept), program.results)
