"""Imports a partitioned function, op by op, as JAX operations on this device's shards inside a typed trace."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxlib.mlir import ir

from jaxmesh.errors import InexpressibleError, JaxmeshError, MissingRuleError
from jaxmesh.frontends.stablehlo import (
    collectives,
    control_flow,
    custom_calls,
    elementwise,
    indexing,
    reductions,
    shapes,
    windows,
)
from jaxmesh.frontends.stablehlo.as_xla import without_cut_dims
from jaxmesh.frontends.stablehlo.call import Arrays, ImportContext, Kind, Meaning, ShardedCall, Whole, as_list
from jaxmesh.frontends.stablehlo.gspmd import operations
from jaxmesh.frontends.stablehlo.rules import Shapes, Splitting, read_rule, split, split_op
from jaxmesh.frontends.stablehlo.shardings import RULE, Sharding, axes_of, local_shape
from jaxmesh.frontends.stablehlo.values import Import, Repeat, Sharded
from jaxmesh.jaxprs.caches import Cache, settings
from jaxmesh.jaxprs.emit import current_source
from jaxmesh.jaxprs.untyped import lax

_FAMILIES = (elementwise.OPS, shapes.OPS, reductions.OPS, indexing.OPS, windows.OPS)
_MEANINGS: dict[str, Meaning] = {k: m for family in _FAMILIES for k, m in family.meanings.items()}
_KINDS: dict[str, Kind] = {k: m for family in _FAMILIES for k, m in family.kinds.items()}
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
_PURE = frozenset({*elementwise.OPS.meanings, *shapes.OPS.meanings, "stablehlo.dot_general"})
"""Ops whose meaning depends only on their attributes, the shardings, and the types of operands and results."""
_REDUCE = "stablehlo.reduce"
_REPEATED = _PURE - {"stablehlo.optimization_barrier"} | {"stablehlo.constant", _REDUCE}
"""Ops of one result that are imported like equal ops before them."""


@dataclass(frozen=True, slots=True, eq=False)
class _ShardPlan:
    """The computation of an op on shards.

    Attributes:
      splitting: the shardings of its operands and results during the computation.
      wanted: the final shardings of its results.
      results: the types of the results' shards.
      shapes: the global shapes of its operands.
      kind: the reduction of partial results; None if they cannot be reduced.
      pure: True if the meaning depends only on the plan and the operands.
    """

    splitting: Splitting
    wanted: list[Sharding]
    results: list[jax.ShapeDtypeStruct]
    shapes: list[tuple[int, ...]]
    kind: str | None
    pure: bool


_shared = Cache[_ShardPlan](2048, "plans of ops on shards")


@dataclass(eq=False)
class Importer(ImportContext):
    """The import of one module: its ops, one by one."""

    def __post_init__(self) -> None:
        ImportContext.__post_init__(self)
        # The layers of a model repeat the same ops, and MLIR stores each attribute once.
        self._plans: dict[object, _ShardPlan] = {}
        self._settings = tuple(self.sizes.items()), settings()
        self._text: Callable[[object], str] = functools.cache(str)
        self.computes = False

    # --- blocks -------------------------------------------------------------------------------------------------------

    def block(self, block: ir.Block, arguments: Sequence[Sharded]) -> list[Sharded]:
        """Imports the operations of a block; returns the results of the block."""
        for value, x in zip(block.arguments, arguments, strict=True):
            self.env.define(self.scope, value, x)
        owner = block.owner.operation
        *body, end = operations(owner) if len(owner.regions) == 1 else [o.operation for o in block.operations]
        source = current_source()
        for op in body:
            name = op.name
            if name not in _REPEATED or not self._repeat(op, name, source):
                self.perform(op)
        return [self.env[v] for v in end.operands]

    def _repeat(self, op: ir.Operation, name: str, source: object) -> bool:
        """Imports an op like an equal op before it; returns True if the scope has such an op."""
        rows = self.env.rows
        operands = [row for v in op.operands if (row := rows.get(v)) is not None]
        kind = _KINDS[name](op) if name == _REDUCE else ""
        if kind is None or len(operands) < len(op.operands):
            return False
        value = op.results[0]
        known = self.env.repeats.get(self.env.key(self.scope, op, kind, operands))
        if known is None:
            return False
        if isinstance(known, Repeat):
            self.splits = self.splits or known.splits
            atoms = [row[1] for row in operands]
            at = self.decisions.sources.source(op.location, name, source)
            known = known.mark, known.steps.repeat(known.trace, atoms, at)[0], known, atoms[0]
        rows[value] = known
        self.env.pop(value, None)
        self.computes = True
        return True

    def perform(self, op: ir.Operation) -> None:
        """Imports one operation: adds its results to the values."""
        with self.decisions.at(op):
            try:
                results, repeat = self._results(op)
            except (JaxmeshError, RecursionError):
                raise
            except (TypeError, ValueError, KeyError, NotImplementedError, AssertionError) as error:
                raise InexpressibleError(
                    f"{self.decisions.sources.inexpressible(op.name, self.decisions.line)}: {error}"
                ) from error
        for value, result in zip(op.results, results, strict=True):
            row = self.env.define(self.scope, value, result)
            if repeat is not None:
                self.env.remember(self.scope, op, row, repeat)
            if op.name == "stablehlo.constant" and isinstance(result.array, np.ndarray):
                # A number makes no equation, so that all ops can read the same.
                self.env.repeats[self.env.key(self.scope, op, "", ())] = row
            self.computes = True
            self.splits = self.splits or (result.make is None and bool(axes_of(result.sharding) or result.partial))

    def _results(self, op: ir.Operation) -> tuple[list[Sharded], Import | None]:
        whole = _WHOLE.get(op.name)
        if whole is not None:
            return whole(self, op), None
        meaning = _MEANINGS.get(op.name)
        if meaning is None:
            raise MissingRuleError(
                f"the StableHLO op {op.name!r} ({self.decisions.line}) is not supported. Add its meaning in "
                "jaxmesh/frontends/stablehlo/."
            )
        return self._local(op, meaning)

    # --- ops on shards ------------------------------------------------------------------------------------------------

    def _local(self, op: ir.Operation, meaning: Meaning) -> tuple[list[Sharded], Import | None]:
        operands = [self.env[v] for v in op.operands]
        plan = self._plan(op, operands)
        splitting, wanted = plan.splitting, plan.wanted
        why = f"for {op.name}"
        xs = [self.reshard(x, s, why) for x, s in zip(operands, splitting.operands, strict=True)]
        self.splits = self.splits or any(map(axes_of, splitting.operands))

        def compute(*shards: jax.Array) -> Arrays:
            return meaning(ShardedCall(self, op, list(shards), splitting.operands, plan.results, plan.shapes))

        make, steps = None, None
        # The meaning of a reduction depends on the constant that it starts from.
        pure = plan.pure and (op.name != _REDUCE or isinstance(operands[1].array, np.ndarray))
        computed, steps = self.kept.made((plan, self.keeps_ops), compute, *xs) if pure else (compute(*xs), None)
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
            make = functools.partial(self._broadcast, tuple(op.results[0].type.shape))
            results_of[0].make = functools.partial(make, xs[0])
        arrays = [*xs, *as_list(computed)], [x.array for x in (*operands, *results_of)]
        if steps is None or results_of != outs or not all(map(operator.is_, *arrays)):
            return results_of, None
        splits = any(map(axes_of, [*splitting.operands, *([] if make else splitting.results)]))
        return results_of, Import((plan.kind or "") if op.name == _REDUCE else "", steps, make, splits)

    def _broadcast(self, shape: tuple[int, ...], scalar: jax.Array, sharding: Sharding) -> jax.Array:
        return lax.broadcast(scalar, local_shape(shape, sharding, self.sizes))

    def _plan(self, op: ir.Operation, operands: Sequence[Sharded]) -> _ShardPlan:
        """Returns the plan of an op on shards; equal ops on operands of equal types and shardings share a plan."""
        kind = _KINDS[op.name](op) if op.name in _KINDS else None
        joins_parts = indexing.scatter_reduces(op) or reductions.extreme_of(op) is not None
        reduces = kind is not None or joins_parts
        types = tuple([v.type for v in op.operands]), tuple([v.type for v in op.results])
        operand_shardings = tuple([x.sharding for x in operands])
        key = op.name, tuple(op.attributes.items()), kind, reduces, types, operand_shardings, self.manual
        plan = self._plans.get(key)
        if plan is None:
            written = [(name, self._text(a)) for name, a in key[1]], [[*map(self._text, row)] for row in types]
            anywhere = repr((op.name, *written, kind, reduces, operand_shardings, sorted(self.manual))), self._settings
            plan = _shared.get(anywhere)
            if plan is None:
                before = len(self.decisions.log)
                plan = self._new_plan(op, operand_shardings, kind, reduces=reduces)
                # A plan with dropped shardings is not cached or repeated, so that every op reports them.
                if len(self.decisions.log) > before:
                    return dataclasses.replace(plan, pure=False)
                _shared.put(anywhere, plan)
            self._plans[key] = plan
        return plan

    def _new_plan(
        self, op: ir.Operation, operand_shardings: tuple[Sharding, ...], kind: str | None, *, reduces: bool
    ) -> _ShardPlan:
        shapes_of, result_types = [t.shape for t in self.types_of(op.operands)], self.types_of(op.results)
        wanted = self.result_shardings(op)
        both = shapes_of, [t.shape for t in result_types]
        splitting = self._splitting(op, operand_shardings, both, wanted, reduces=reduces)
        results = [
            jax.ShapeDtypeStruct(local_shape(t.shape, s, self.sizes), t.dtype)
            for t, s in zip(result_types, splitting.results, strict=True)
        ]
        pure = op.name in _PURE or (op.name == _REDUCE and kind is not None)
        return _ShardPlan(splitting, wanted, results, shapes_of, kind, pure)

    def _splitting(
        self, op: ir.Operation, given: tuple[Sharding, ...], shapes_of: Shapes, wanted: list[Sharding], *, reduces: bool
    ) -> Splitting:
        if not any(map(axes_of, wanted)) and not any(map(axes_of, given)):
            return Splitting(given, tuple(wanted), ())
        if op.name == "stablehlo.optimization_barrier":
            # Shardy lacks a rule for it: each result is its operand.
            return Splitting(tuple(wanted), tuple(wanted), ())
        if (own := shapes.SPLIT.get(op.name)) is not None:
            kept = own(op, wanted[0], self.sizes, self.read)
            return Splitting((kept, ())[: len(op.operands)], (kept,), ())
        if op.name == "stablehlo.dynamic_slice":
            cut = without_cut_dims(given[0], shapes_of[0][0], shapes_of[1][0])
            if cut != given[0]:
                return Splitting(given, (cut,), ())
        if op.name == "stablehlo.dynamic_update_slice":
            # Each device writes its own part; Shardy's rule differs between versions.
            new = without_cut_dims(wanted[0], *shapes_of[0][:2])
            return Splitting((wanted[0], new, *given[2:]), (wanted[0],), ())
        if RULE not in op.attributes:
            return split_op(op, shapes_of, given, wanted, self.sizes)
        rule = read_rule(op.attributes[RULE])
        if op.name == "stablehlo.reduce_window":
            dims = windows.separate_dims(op, self.read)
            free = {f for d in dims for f in rule.results[0][d]}
            rule = dataclasses.replace(rule, local=rule.local - free)
        if op.name == "stablehlo.reshape":
            # A part of such a dim of the result has elements of all parts of the operand.
            rule = dataclasses.replace(rule, local=rule.local | rule.new())
        return split(rule, shapes_of, given, wanted, self.sizes, reduces=reduces)


def _cast_type(y: jax.Array, expected: jax.ShapeDtypeStruct) -> jax.Array:
    """Checks the shape of a shard, and casts it to the dtype of its StableHLO type."""
    if y.shape != expected.shape:
        raise AssertionError(f"a shard of {list(y.shape)} was computed where {list(expected.shape)} was expected")
    return y if y.dtype == expected.dtype else lax.convert_element_type(y, expected.dtype)
