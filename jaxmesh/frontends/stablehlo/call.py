"""One StableHLO op on shards: its operands on this device, its attributes, the types of its results."""

from __future__ import annotations

import abc
import contextlib
import functools
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from jaxmesh.dialects.imported_op import imported_op, imported_op_p
from jaxmesh.dialects.ttir.collectives import sum_scatter
from jaxmesh.dialects.varying import vary_alike
from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.mlir.attributes import Types, Values
from jaxmesh.frontends.mlir.preprocess import Rewritten
from jaxmesh.frontends.stablehlo import shardings, values
from jaxmesh.frontends.stablehlo.decisions import Decisions
from jaxmesh.frontends.stablehlo.shardings import Sharding, replicated
from jaxmesh.frontends.stablehlo.values import Sharded, ShardTable, added_axes, global_shape, perform, plan
from jaxmesh.jaxprs.emit import Kept
from jaxmesh.jaxprs.typed import typed


@dataclass(frozen=True, slots=True)
class ShardedCall:
    """The inputs of an op's meaning.

    Attributes:
      program: the import around the op.
      op: the operation.
      operands: the operands' shards.
      shardings: the operands' shardings.
      results: the types of the results' shards.
      shapes: the operands' global shapes.
    """

    program: ImportContext
    op: ir.Operation
    operands: list[jax.Array]
    shardings: Sequence[Sharding]
    results: Sequence[jax.ShapeDtypeStruct]
    shapes: Sequence[tuple[int, ...]]

    def __getitem__(self, name: str) -> Any:
        """Returns the value of an attribute."""
        return self.program.read(self.op.attributes[name])

    def get(self, name: str, default: Any) -> Any:
        """Returns the value of an optional attribute."""
        return self[name] if name in self.op.attributes else default


def enum_of(op: ir.Operation, name: str) -> str:
    """Returns the keyword of an attribute such as `#stablehlo<comparison_direction LT>`; empty if it is omitted."""
    return str(op.attributes[name]).rstrip(">").split(" ")[-1] if name in op.attributes else ""


Arrays = jax.Array | Sequence[jax.Array]
Meaning = Callable[[ShardedCall], Arrays]
"""A function that returns the op's result on this device, or a list of results."""


Kind = Callable[[ir.Operation], str | None]
"""A function that returns the reduction of an op's partial results; None if they cannot be reduced."""


class OpFamily:
    """The meanings of a family of ops, by name."""

    def __init__(self) -> None:
        self.meanings: dict[str, Meaning] = {}
        self.kinds: dict[str, Kind] = {}

    def add(self, name: str, kind: Kind | None = None) -> Callable[[Meaning], Meaning]:
        """Registers the meaning of an op; `kind` tells the reduction of its partial results, if any."""

        def register(meaning: Meaning) -> Meaning:
            self.meanings[name] = meaning
            if kind is not None:
                self.kinds[name] = kind
            return meaning

        return register


def sums(_: ir.Operation) -> str:
    """Returns the reduction of partial results of a sum of products."""
    return "sum"


def as_list(values: Arrays) -> list[jax.Array]:
    """Returns one or several values as a list."""
    return list(values) if isinstance(values, Sequence) else [values]


Equation = Callable[[int, list[Any]], list[Any]]
"""A function that performs, by number, an equation without an op of StableHLO; see `keep_equations`."""


@dataclass(eq=False)
class ImportContext(abc.ABC):
    """The import of one module, around an op that has regions or lacks a sharding rule; see `importer.Importer`.

    Attributes:
      sizes: the axes of the mesh.
      decisions: a log of the decisions, with their reasons.
      env: the shard of every value of the function.
      keeps_ops: True if an op of TTIR stays one equation, as it can outside loops and branches.
      equation: a function that performs, by number, an equation without a StableHLO op.
    """

    sizes: Mapping[str, int]
    decisions: Decisions
    env: ShardTable = field(default_factory=ShardTable)
    keeps_ops: bool = False
    equation: Equation | None = None

    def __post_init__(self) -> None:
        self._types = Types(lambda _: None, wide=True)
        self.read = Values(self._types, Rewritten("", {}, {}, {}))
        self._nearest: dict[object, tuple[Sharding, bool]] = {}
        self.kept = Kept()
        self._moves = functools.cache(functools.partial(plan, sizes=self.sizes))
        self.scope: object = object()
        self.splits = False
        self.manual: frozenset[str] = frozenset()

    # --- types and shardings ------------------------------------------------------------------------------------------

    def types_of(self, operands: Iterable[ir.Value]) -> list[jax.ShapeDtypeStruct]:
        """Returns the global types of values."""
        return [self._type(v.type) for v in operands]

    def _type(self, written: ir.Type) -> jax.ShapeDtypeStruct:
        value_type = self._types(written)
        narrow = jax.dtypes.canonicalize_dtype(value_type.dtype)
        if narrow == value_type.dtype:
            return value_type
        if narrow != np.uint32:
            raise UnsupportedError(
                f"the type {written} is 64 bits wide, and JAX supports it only in its x64 mode; enable it with "
                'jax.config.update("jax_enable_x64", True).'
            )
        # JAX counts the elements of random arrays in 64 bits.
        if math.prod(value_type.shape) >= 2**32:
            raise UnsupportedError(
                f"an array {list(value_type.shape)} of 64-bit numbers, which JAX supports only in its x64 mode; enable "
                'it with jax.config.update("jax_enable_x64", True).'
            )
        return jax.ShapeDtypeStruct(value_type.shape, narrow)

    def result_shardings(self, op: ir.Operation) -> list[Sharding]:
        """Returns the shardings of an op's results over the axes that are not manual here."""
        written = shardings.per_value(op)
        if written is None:
            return [replicated(len(v.type.shape)) for v in op.results]
        kept: list[Sharding] = []
        for attribute, value in zip(written, op.results, strict=True):
            key = attribute, value.type, self.manual
            nearest = self._nearest.get(key)
            if nearest is None:
                nearest = shardings.read_nearest(attribute, value.type.shape, self.sizes, self.manual)
                self._nearest[key] = nearest
            sharding, dropped = nearest
            if dropped:
                self.decisions.add(
                    "dropped", f"{shardings.show_attribute(attribute)} became {shardings.show(sharding)}"
                )
            kept.append(sharding)
        return kept

    # --- blocks -------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def block(self, block: ir.Block, arguments: Sequence[Sharded]) -> list[Sharded]:
        """Imports the operations of a block; returns the results of the block."""

    @contextlib.contextmanager
    def inner_scope(self, *, same_trace: bool = False) -> Generator[None]:
        """Imports the block as an inner trace, or with different manual axes; its values must not leave it."""
        outer = self.scope, self.keeps_ops
        self.scope, self.keeps_ops = object(), self.keeps_ops and same_trace
        try:
            yield
        finally:
            self.scope, self.keeps_ops = outer

    def body(self, region: ir.Region) -> Callable[..., list[jax.Array]]:
        """Returns a region of scalars as a function of arrays."""

        def run(*args: jax.Array) -> list[jax.Array]:
            with self.inner_scope():
                outs = self.block(region.blocks[0], [Sharded(x, ()) for x in args])
            return [y.array for y in outs]

        return run

    # --- communication ------------------------------------------------------------------------------------------------

    def settle(self, x: Sharded) -> Sharded:
        """Performs the pending reduction of a value."""
        if not x.partial:
            return x
        key = (self.scope, "settled")
        if key not in x.known:
            assert x.source is not None
            with self.decisions.at(x.source):
                self.decisions.reduction(x, x.partial)
                sum_up = functools.partial(values.reduce_over, axes=x.partial, kind=x.kind)
                x.known[key] = Sharded(self.kept(("reduced", x.partial, x.kind), sum_up, x.array), x.sharding)
        return x.known[key]

    def reshard(self, x: Sharded, target: Sharding, why: str) -> jax.Array:
        """Returns this device's shard of a value in another sharding."""
        if x.partial and x.kind == "sum" and x.array.dtype != np.bool_:
            added = added_axes(x.sharding, target) or []
            if len(added) == 1 and added[0][0] in x.partial:
                return self._reduce_scatter(x, *added[0], why)
        x = self.settle(x)
        if x.sharding == target:
            return x.array
        if x.make is not None:
            return x.make(target)
        key = (self.scope, target)
        if key not in x.known:
            shape = global_shape(x.array.shape, x.sharding, self.sizes)
            moves = self._moves(x.sharding, target, shape)
            for move in (m for m in moves if self.sizes[m.axis] > 1):
                self.decisions.moved(move, x, target, why, self.sizes)
            move_all = functools.partial(perform, moves=moves, sizes=self.sizes)
            x.known[key] = Sharded(self.kept(("reshard", *moves), move_all, x.array), target)
        return x.known[key].array

    def _reduce_scatter(self, x: Sharded, axis: str, dim: int, why: str) -> jax.Array:
        rest = tuple(a for a in x.partial if a != axis)
        assert x.source is not None
        with self.decisions.at(x.source):
            array = values.reduce_over(x.array, rest, x.kind) if rest else x.array
            if rest:
                self.decisions.reduction(x, rest)
            self.decisions.collective("reduce_scatter", (axis,), f"a sum whose dim {dim} is wanted split, {why}")
            return sum_scatter(array, axis, dim)


Whole = Callable[[ImportContext, ir.Operation], list[Sharded]]
"""The import of an op that no rule computes on shards."""

# --- ops that stay one equation ---------------------------------------------------------------------------------------


def keep_op(
    keep: bool, name: str, operands: list[jax.Array], attributes: Mapping[str, object], meaning: Callable[..., Arrays]
) -> list[jax.Array]:
    """Performs the meaning of an op of TTIR on arrays; as one equation if ops are kept."""
    arrays = vary_alike(*operands)

    def results(*values: jax.Array) -> list[jax.Array]:
        return as_list(meaning(*values))

    kept = imported_op("ttir", name, attributes, operands) if keep else None
    if kept is None:
        return results(*arrays)
    return imported_op_p.bind(*arrays, jaxpr=typed.make_jaxpr(results)(*arrays), op=kept)
