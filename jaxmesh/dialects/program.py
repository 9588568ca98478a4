"""Flat programs, which the emitters print: one list of operations over numbered values, calls inlined.

A loop is unrolled, or one operation that has the program of its body.

`passes/flatten` builds a program from a jaxpr: at TTIR level (`ttir.*`, `ttir.mesh_shard`) from a traced one, or with
the two transfers of TTNN from a lowered one. `passes/ttir_to_ttnn` then lowers every other operation to TTNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxmesh.dialects.attributes import Attributes
from jaxmesh.jaxprs.untyped import DType, Shape

Value = int
"""A value is its number; `Program.types` has its type."""
NO_ATTRIBUTES: Attributes = {}
"""The attributes of operations that have none, which share it."""
LOOP = "ttcore.while_loop"
"""A loop. Its operands are the states and what stays the same; its results the states after it. Its attributes are the
programs `body` and, of all these or `trips`, `condition`; their arguments are its operands."""
SHORT = 2048
"""The operations of all unrolled loops of a program above which its larger loops stay loops, by default."""
UNROLL_LIMIT = 200_000
"""The operations that loops may become that cannot stay loops, by default."""


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value.

    Attributes:
      shape: local (per device) of a shard, full otherwise.
      dtype: a NumPy dtype, those of `ml_dtypes` included.
      kind: `tensor`, `device` for the result of `ttnn.get_device`, or `global_semaphore`.
      host: at TTNN level, whether the tensor is in host memory. At TTIR level nothing reads it.
      tile: at TTNN level, whether it is laid out in tiles; else row by row.
      layout: at TTNN level, the layout that a text gives it, where that is not the one that host and tile say.
    """

    shape: Shape
    dtype: DType
    kind: str = "tensor"
    host: bool = False
    tile: bool = False
    layout: str = ""


@dataclass(slots=True)
class Op:
    """One operation; immutable (not frozen, because programs have tens of thousands of them).

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
    attributes: Attributes = field(default_factory=dict[str, Any])
    line: str = ""

    @property
    def used(self) -> tuple[Value, ...]:
        """The operands that are there."""
        given: Any = self.operands
        # The common case: none is left out.
        return tuple([v for v in given if v is not None]) if None in given else given

    def reading(self, made: Mapping[Value, Value]) -> Op:
        """Returns the operation with other values in place of some that it reads."""
        if made.keys().isdisjoint(self.used):
            return self
        return replace(self, operands=tuple([v if v is None else made.get(v, v) for v in self.operands]))


@dataclass(frozen=True, slots=True)
class Port:
    """An argument or a result of a program.

    Attributes:
      value: its number.
      presharded: whether it lives on the devices, its type being local; else it is a full host tensor.
      varying: of a presharded argument the numbers of the mesh axes over which its shards may differ; None for all.
      path: its path in the caller's tree, as `jax.tree_util.keystr` writes it; untrusted.
      role: of an argument what a text says that it is: `input`, `parameter`, `constant`, or nothing.
    """

    value: Value
    presharded: bool
    path: str = ""
    varying: tuple[int, ...] | None = None
    role: str = ""


@dataclass(slots=True)
class Program:
    """A flat program.

    Attributes:
      name: the function's name; untrusted.
      mesh: axis names and sizes.
      types: the type of every value, by number.
      arguments: the first values, in order.
      ops: in order; every value is defined before it is used.
      results: may name an argument, or a value twice.
      public: whether the text says of the function that it is public, as it is without that, too.
    """

    name: str
    mesh: dict[str, int]
    types: list[Type] = field(default_factory=list[Type])
    arguments: list[Port] = field(default_factory=list[Port])
    ops: list[Op] = field(default_factory=list[Op])
    results: list[Port] = field(default_factory=list[Port])
    public: bool = False

    def new(self, kind: Type) -> Value:
        """Adds a value of a type; returns its number."""
        self.types.append(kind)
        return len(self.types) - 1

    def like(self, ops: Iterable[Op], results: Sequence[Port]) -> Program:
        """Returns a program of the same signature and values with other operations."""
        return replace(self, ops=list(ops), results=list(results))

    def programs(self) -> Iterator[Program]:
        """Yields the program, and the bodies and conditions of its loops."""
        yield self
        for op in self.ops:
            for body in bodies(op):
                yield from body.programs()

    def with_bodies(self, change: Callable[[Program], Program]) -> Program:
        """Returns the program with other bodies of its loops."""
        if not any(op.name == LOOP for op in self.ops):
            return self
        ops = [op if op.name != LOOP else replace(op, attributes={
            k: change(v) if isinstance(v, Program) else v for k, v in op.attributes.items()
        }) for op in self.ops]  # fmt: skip
        return replace(self, ops=ops)


def bodies(op: Op) -> tuple[Program, ...]:
    """Returns the body of a loop, and its condition if it has one; nothing for another operation."""
    return tuple(x for x in op.attributes.values() if isinstance(x, Program)) if op.name == LOOP else ()


def without_dead(program: Program) -> Program:
    """Returns the program without the operations whose results nothing reads."""
    live: set[Value | None] = {r.value for r in program.results}
    kept: list[Op] = []
    for op in reversed(program.ops):
        if not op.results or not live.isdisjoint(op.results):
            live.update(op.operands)
            kept.append(op)
    if len(kept) == len(program.ops):
        return program
    return program.like(reversed(kept), program.results)
