"""Imports a partitioned function, op by op, as JAX operations on this device's shards inside a typed trace."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.ttir.collectives import sum_scatter
from jaxmesh.errors import InexpressibleError, JaxmeshError, MissingRuleError, UnsupportedError
from jaxmesh.frontends.mlir.attributes import Types, Values
from jaxmesh.frontends.mlir.preprocess import Rewritten
from jaxmesh.frontends.stablehlo import (
    collectives,
    control_flow,
    custom_calls,
    elementwise,
    indexing,
    reductions,
    shapes,
    shardings,
    values,
    windows,
)
from jaxmesh.frontends.stablehlo.call import Meaning, ShardedCall, Whole, as_list
from jaxmesh.frontends.stablehlo.decisions import Decisions
from jaxmesh.frontends.stablehlo.rules import Splitting, read_rule, split, split_op
from jaxmesh.frontends.stablehlo.shardings import RULE, Sharding, axes_of, local_shape, replicated
from jaxmesh.frontends.stablehlo.values import Repeat, Sharded, ShardTable, added_axes, global_shape, perform, plan
from jaxmesh.jaxprs.emit import Kept, current_source

_FAMILIES = (elementwise.OPS, shapes.OPS, reductions.OPS, indexing.OPS, windows.OPS)
_MEANINGS: dict[str, Meaning] = {k: m for family in _FAMILIES for k, m in family.meanings.items()}
_KINDS: dict[str, Callable[[Any], str | None]] = {k: m for family in _FAMILIES for k, m in family.kinds.items()}
_WHOLE: dict[str, Whole] = {
    "stablehlo.constant": shapes.constant,
    "sdy.constant": shapes.constant,
    "arith.constant": shapes.constant,
    "stablehlo.get_dimension_size": shapes.dimension_size,
    "stablehlo.iota": shapes.iota,
    "stablehlo.dynamic_iota": shapes.iota,
    "stablehlo.partition_id": shapes.partition_id,
    "stablehlo.rng": shapes.random,
    **control_flow.OPS,
    **collectives.OPS,
    **custom_calls.OPS,
    **reductions.TOP_K,
}
_lax: Any = jax.lax
_PURE = frozenset({*elementwise.OPS.meanings, *shapes.OPS.meanings, "stablehlo.dot_general"})
"""Ops whose meaning depends only on their attributes, the shardings, and the types of operands and results."""
_REPEATED = _PURE - {"stablehlo.optimization_barrier"} | {"stablehlo.constant"}
"""Ops of one result that are imported like equal ops before them."""


@dataclass(frozen=True, slots=True, eq=False)
class _ShardPlan:
    """The computation of an op on shards.

    Attributes:
      splitting: the shardings of its operands and results during the computation.
      wanted: the final shardings of its results.
      results: the types of the results' shards.
      shapes: the global shapes of its operands.
      global_shapes: the global shapes of its results.
      kind: the reduction of partial results; None if they cannot be reduced.
      pure: True if the meaning depends only on the plan and the operands.
    """

    splitting: Splitting
    wanted: list[Sharding]
    results: list[jax.ShapeDtypeStruct]
    shapes: list[tuple[int, ...]]
    global_shapes: list[tuple[int, ...]]
    kind: str | None
    pure: bool


@dataclass(eq=False)
class Importer:
    """The import of one module.

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
    equation: Callable[[int, list[Any]], list[Any]] | None = None

    def __post_init__(self) -> None:
        self._types = Types(lambda _: None, wide=True)
        self.read = Values(self._types, Rewritten("", {}, {}, {}))
        # The layers of a model repeat the same ops, and MLIR stores each attribute once.
        self._plans: dict[Any, _ShardPlan] = {}
        self._nearest: dict[Any, tuple[Sharding, bool]] = {}
        self._kept = Kept()
        self._moves = functools.cache(functools.partial(plan, sizes=self.sizes))
        self.scope: object = object()
        self.splits = self.computes = False
        self.manual: frozenset[str] = frozenset()

    # --- types and shardings ------------------------------------------------------------------------------------------

    def types_of(self, operands: Any) -> list[jax.ShapeDtypeStruct]:
        """Returns the global types of values."""
        return [self._type(v.type) for v in operands]

    def _type(self, written: Any) -> jax.ShapeDtypeStruct:
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
        shapes.check_wide(value_type.shape)
        return jax.ShapeDtypeStruct(value_type.shape, narrow)

    def result_shardings(self, op: Any) -> list[Sharding]:
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

    def block(self, block: Any, arguments: Sequence[Sharded]) -> list[Sharded]:
        """Imports the operations of a block; returns the results of the block."""
        for value, x in zip(block.arguments, arguments, strict=True):
            self.env.define(self.scope, value, x)
        *body, end = [o.operation for o in block.operations]
        sources: dict[Any, Any] = {}
        for op in body:
            if op.name not in _REPEATED or not self._repeat(op, sources):
                self.perform(op)
        return [self.env[v] for v in end.operands]

    def _repeat(self, op: Any, sources: dict[Any, Any]) -> bool:
        """Imports an op like an equal op before it; returns True if the scope has such an op."""
        rows = self.env.rows
        operands = [rows[v] for v in op.operands if v in rows]
        known = self.env.repeats.get(self.env.key(self.scope, op, operands))
        if known is None or len(operands) < len(op.operands):
            return False
        if isinstance(known, Repeat):
            at = op.location.attr, op.name
            if at not in sources:
                with self.decisions.at(op):
                    sources[at] = current_source()
            self.splits = self.splits or known.splits
            atoms = [row[1] for row in operands]
            known = known.mark, known.steps.repeat(known.trace, atoms, sources[at]), known, atoms[0]
        value = op.results[0]
        rows[value] = known
        self.env.pop(value, None)
        self.computes = True
        return True

    @contextlib.contextmanager
    def inner_scope(self, *, same_trace: bool = False) -> Generator[None]:
        """Imports the block as an inner trace, or with different manual axes; its values must not leave it."""
        outer = self.scope, self.keeps_ops
        self.scope, self.keeps_ops = object(), self.keeps_ops and same_trace
        try:
            yield
        finally:
            self.scope, self.keeps_ops = outer

    def body(self, region: Any) -> Callable[..., list[Any]]:
        """Returns a region of scalars as a function of arrays."""

        def run(*args: Any) -> list[Any]:
            with self.inner_scope():
                outs = self.block(region.blocks[0], [Sharded(x, ()) for x in args])
            return [y.array for y in outs]

        return run

    def perform(self, op: Any) -> None:
        """Imports one operation: adds its results to the values."""
        with self.decisions.at(op):
            try:
                results = self._results(op)
            except (JaxmeshError, RecursionError):
                raise
            except (TypeError, ValueError, KeyError, NotImplementedError, AssertionError) as error:
                raise InexpressibleError(
                    f"{self.decisions.sources.inexpressible(op.name, self.decisions.line)}: {error}"
                ) from error
        for value, result in zip(op.results, results, strict=True):
            row = self.env.define(self.scope, value, result)
            if op.name == "stablehlo.constant" and isinstance(result.array, np.ndarray):
                # A number makes no equation, so that all ops can read the same.
                self.env.repeats[self.env.key(self.scope, op, ())] = row
            self.computes = True
            self.splits = self.splits or (result.make is None and bool(axes_of(result.sharding) or result.partial))

    def _results(self, op: Any) -> list[Sharded]:
        whole = _WHOLE.get(op.name)
        if whole is not None:
            return whole(self, op)
        meaning = _MEANINGS.get(op.name)
        if meaning is None:
            raise MissingRuleError(
                f"the StableHLO op {op.name!r} ({self.decisions.line}) is not supported. Add its meaning in "
                "jaxmesh/frontends/stablehlo/."
            )
        return self._local(op, meaning)

    # --- ops on shards ------------------------------------------------------------------------------------------------

    def _local(self, op: Any, meaning: Meaning) -> list[Sharded]:
        operands = [self.env[v] for v in op.operands]
        plan = self._plan(op, operands)
        splitting, wanted = plan.splitting, plan.wanted
        why = f"for {op.name}"
        xs = [self.reshard(x, s, why) for x, s in zip(operands, splitting.operands, strict=True)]
        self.splits = self.splits or any(map(axes_of, splitting.operands))

        def compute(*shards: Any) -> Any:
            inputs = op, list(shards), splitting.operands, plan.results, plan.shapes
            return meaning(ShardedCall(*inputs, self.sizes, self.read, self.body, self.decisions, self.keeps_ops))

        key, make = (plan, self.keeps_ops), None
        computed = self._kept(key, compute, *xs) if plan.pure else compute(*xs)
        partial = splitting.partial if plan.kind is not None else ()
        outs = [
            Sharded(_cast_type(y, t), s, partial, plan.kind or "", op)
            for y, t, s in zip(as_list(computed), plan.results, splitting.results, strict=True)
        ]
        results_of = [
            y if y.sharding == w else Sharded(self.reshard(y, w, f"of {op.name}"), w)
            for y, w in zip(outs, wanted, strict=True)
        ]
        if op.name == "stablehlo.broadcast_in_dim" and not xs[0].ndim:
            make = functools.partial(self._broadcast, plan.global_shapes[0])
            results_of[0].make = functools.partial(make, xs[0])
        arrays = [*xs, *as_list(computed)], [x.array for x in (*operands, *results_of)]
        steps = self._kept.steps(key, *xs) if plan.pure and results_of == outs else None
        if steps and all(map(operator.is_, *arrays)):
            splits = any(map(axes_of, [*splitting.operands, *([] if make else splitting.results)]))
            self.env.remember(self.scope, op, outs[0], steps, make, splits)
        return results_of

    def _broadcast(self, shape: tuple[int, ...], scalar: Any, sharding: Sharding) -> Any:
        return _lax.broadcast(scalar, local_shape(shape, sharding, self.sizes))

    def _plan(self, op: Any, operands: Sequence[Sharded]) -> _ShardPlan:
        """Returns the plan of an op on shards; equal ops on operands of equal types and shardings share a plan."""
        kind = _KINDS[op.name](op) if op.name in _KINDS else None
        joins_parts = indexing.scatter_reduces(op) or reductions.extreme_of(op) is not None
        reduces = kind is not None or joins_parts
        types = tuple([v.type for v in op.operands]), tuple([v.type for v in op.results])
        operand_shardings = tuple([x.sharding for x in operands])
        key = op.name, tuple(op.attributes.items()), kind, reduces, types, operand_shardings, self.manual
        plan = self._plans.get(key)
        if plan is None:
            before = len(self.decisions.log)
            plan = self._new_plan(op, operand_shardings, kind, reduces=reduces)
            # A plan with dropped shardings is not cached or repeated, so that every op reports them.
            if len(self.decisions.log) > before:
                return dataclasses.replace(plan, pure=False)
            self._plans[key] = plan
        return plan

    def _new_plan(
        self, op: Any, operand_shardings: tuple[Sharding, ...], kind: str | None, *, reduces: bool
    ) -> _ShardPlan:
        shapes_of, result_types = [t.shape for t in self.types_of(op.operands)], self.types_of(op.results)
        wanted = self.result_shardings(op)
        result_shapes = [t.shape for t in result_types]
        splitting = self._splitting(op, operand_shardings, (shapes_of, result_shapes), wanted, reduces=reduces)
        results = [
            jax.ShapeDtypeStruct(local_shape(t.shape, s, self.sizes), t.dtype)
            for t, s in zip(result_types, splitting.results, strict=True)
        ]
        return _ShardPlan(splitting, wanted, results, shapes_of, result_shapes, kind, op.name in _PURE)

    def _splitting(
        self, op: Any, operand_shardings: tuple[Sharding, ...], shapes_of: Any, wanted: list[Sharding], *, reduces: bool
    ) -> Splitting:
        if not any(map(axes_of, wanted)) and not any(map(axes_of, operand_shardings)):
            return Splitting(operand_shardings, tuple(wanted), ())
        if op.name == "stablehlo.optimization_barrier":
            # Shardy lacks a rule for it: each result is its operand.
            return Splitting(tuple(wanted), tuple(wanted), ())
        if op.name == "stablehlo.slice":
            kept = shapes.split_slice(op, wanted[0], self.sizes, self.read)
            return Splitting((kept,), (kept,), ())
        if op.name == "stablehlo.pad":
            kept = shapes.split_pad(op, wanted[0], self.sizes, self.read)
            return Splitting((kept, ()), (kept,), ())
        if RULE not in op.attributes:
            return split_op(op, shapes_of, operand_shardings, wanted, self.sizes)
        rule = read_rule(op.attributes[RULE])
        if op.name == "stablehlo.reduce_window":
            dims = windows.separate_dims(op, self.read)
            free = {f for d in dims for f in rule.results[0][d]}
            rule = dataclasses.replace(rule, local=rule.local - free)
        if op.name == "stablehlo.reshape":
            # A part of such a dim of the result has elements of all parts of the operand.
            rule = dataclasses.replace(rule, local=rule.local | rule.new())
        return split(rule, shapes_of, operand_shardings, wanted, self.sizes, reduces=reduces)

    # --- communication ------------------------------------------------------------------------------------------------

    def settle(self, x: Sharded) -> Sharded:
        """Performs the pending reduction of a value."""
        if not x.partial:
            return x
        key = (self.scope, "settled")
        if key not in x.known:
            with self.decisions.at(x.source):
                self.decisions.reduced(x.partial, f"{x.kind} over shards of a reduced dim")
                sum_up = functools.partial(values.reduce_over, axes=x.partial, kind=x.kind)
                x.known[key] = Sharded(self._kept(("reduced", x.partial, x.kind), sum_up, x.array), x.sharding)
        return x.known[key]

    def reshard(self, x: Sharded, target: Sharding, why: str) -> Any:
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
            x.known[key] = Sharded(self._kept(("reshard", *moves), move_all, x.array), target)
        return x.known[key].array

    def _reduce_scatter(self, x: Sharded, axis: str, dim: int, why: str) -> Any:
        rest = tuple(a for a in x.partial if a != axis)
        with self.decisions.at(x.source):
            array = values.reduce_over(x.array, rest, x.kind) if rest else x.array
            if rest:
                self.decisions.reduced(rest, f"{x.kind} over shards of a reduced dim")
            self.decisions.collective("reduce_scatter", (axis,), f"a sum whose dim {dim} is wanted split, {why}")
            return sum_scatter(array, axis, dim)


def _cast_type(y: Any, expected: jax.ShapeDtypeStruct) -> Any:
    """Checks the shape of a shard, and casts it to the dtype of its StableHLO type."""
    if y.shape != expected.shape:
        raise AssertionError(f"a shard of {list(y.shape)} was computed where {list(expected.shape)} was expected")
    return y if y.dtype == expected.dtype else _lax.convert_element_type(y, expected.dtype)
