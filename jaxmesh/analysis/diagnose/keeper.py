"""Runs a program unsharded and keeps every value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.analysis.diagnose.in_numpy import perform
from jaxmesh.analysis.diagnose.reference_value import Reference, ReferenceValue, Rounds
from jaxmesh.analysis.diagnose.region import (
    REGION,
    WrittenLoop,
    branch_of,
    keep_region,
    outer_operands,
    whole,
    write_out,
)
from jaxmesh.analysis.diagnose.stage import Array
from jaxmesh.analysis.record.metrics import rounding_unit
from jaxmesh.frontends.stablehlo import shardings
from jaxmesh.frontends.stablehlo.importer import Importer
from jaxmesh.frontends.stablehlo.reductions import kind_of
from jaxmesh.frontends.stablehlo.shardings import OWN
from jaxmesh.frontends.stablehlo.values import Sharded

_UNROUNDED = frozenset({
    "argument", *(f"stablehlo.{name}" for name in (
        "constant", "iota", "reshape", "broadcast_in_dim", "transpose", "slice", "dynamic_slice", "gather", "pad",
        "dynamic_update_slice", "concatenate", "reverse", "select", "clamp", "maximum", "minimum", "abs", "negate",
        "sign", "floor", "ceil", "round_nearest_even", "round_nearest_afz", "convert", "sort", "compare",
    )),
})  # fmt: skip
"""Operations whose results no rounding changes."""
SAME = frozenset({*OWN, "stablehlo.optimization_barrier"})
"""Operations whose results are their operands: of a value with a sharding constraint the unsharded program has one
copy."""


def is_unrounded(name: str, value: Any) -> bool:
    """Returns True if no rounding changes what an operation makes of its operands; `value` is its result."""
    chooses = name in ("stablehlo.reduce", "stablehlo.reduce_window") and kind_of(value.owner) in ("max", "min")
    return chooses or name in _UNROUNDED


@dataclass(slots=True)
class Keeper:
    """A run that keeps every value.

    Attributes:
      reference: the unsharded run, whose values are appended.
      importer: performs the operations.
      source: returns the user's source line of an operation.
      held: values to go on with in place of those that operations give, by number.
      inside: whether the values of loops and branches are kept, of each iteration.
      tests: whether the values of the conditions of loops are kept, too.
      unit: the rounding unit by up to which results of arithmetic differ at random.
      random: draws these differences.
      numbers: by value of the module, its number.
      depth: how many loops and branches are around the operation.
    """

    reference: Reference
    importer: Importer
    source: Callable[[Any], str]
    held: Mapping[int, Array]
    inside: bool
    tests: bool
    unit: float
    random: np.random.Generator
    numbers: dict[Any, int] = field(default_factory=dict[Any, int])
    depth: int = 0

    def run(self, inputs: Iterable[Any]) -> None:
        """Runs the program for arguments."""
        block = self.reference.block
        for number, (value, x) in enumerate(zip(block.arguments, inputs, strict=True)):
            self.importer.env[value] = whole(x)
            self._keep(value, "argument", f"argument {number}", ())
        *body, end = [o.operation for o in block.operations]
        for op in body:
            self._perform(op, op)
        self.reference.outputs = [self.numbers[v] for v in end.operands]

    def _keep(self, value: Any, op: str, line: str, operands: Sequence[Any], operation: Any = None) -> None:
        known = tuple(self.numbers[v] for v in operands)
        number = self.numbers[value] = len(self.reference.values)
        if number in self.held:
            self.importer.env[value] = whole(self.held[number])
        array = np.asarray(self.importer.env[value].array)
        # A text of narrower types rounds the arguments, too.
        is_rounded = rounding_unit(array.dtype) < self.unit if op == "argument" else not is_unrounded(op, value)
        if self.unit and is_rounded:
            self.importer.env[value] = whole(self._rounded(array))
        array = np.asarray(self.importer.env[value].array)
        self.reference.values.append(ReferenceValue(op, line, known, array, value, operation))

    def _rounded(self, x: Array) -> Array:
        """Returns a result as another rounding of it may be."""
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        draw: Any = self.random
        return np.asarray(x * draw.uniform(1 - self.unit, 1 + self.unit, x.shape), x.dtype)

    def _perform(self, op: Any, outermost: Any) -> None:
        """Performs an operation, which may be within a loop or a branch of the function."""
        if op.name == REGION:
            written = list[list[WrittenLoop]]()
            if self.inside:
                arrays = [self.importer.env[v].array for v in op.operands]
                written = write_out(op, arrays, self.reference.axes or {}, self.tests)
            keep_region(self.reference, self.importer, op, self.numbers, self.source)
            for depth, loops in enumerate(written, self.depth):
                self._rounds(depth).extend(Rounds(w.rounds, [self.numbers[v] for v in w.tests]) for w in loops)
                self.reference.longest = max([self.reference.longest, *(w.most for w in loops)])
        elif self.inside and op.name == "stablehlo.while":
            self._loop(op, outermost)
        elif self.inside and op.name in ("stablehlo.case", "stablehlo.if"):
            index = int(np.asarray(self.importer.env[op.operands[0]].array))
            self.depth += 1
            taken = self._block(op.regions[branch_of(op, index)].blocks[0], [], outermost)
            self.depth -= 1
            self._set(op.results, [(self.importer.env[v], self.numbers[v]) for v in taken])
        else:
            _import(self.importer, op)
            for value in op.results:
                self._keep(value, op.name, self.source(op), outer_operands(op, self.numbers), outermost)

    def _loop(self, op: Any, outermost: Any) -> None:
        condition, body = (r.blocks[0] for r in op.regions)
        states, rounds, count = list(op.operands), Rounds(), 0
        self._rounds(self.depth).append(rounds)
        self.depth += 1
        kept = [(self.importer.env[v], self.numbers[v]) for v in states]
        while self._goes_on(condition, kept, rounds, outermost):
            results = self._block(body, kept, outermost)
            kept = [(self.importer.env[v], self.numbers[v]) for v in results]
            count += 1
        self.depth -= 1
        rounds.count, self.reference.longest = count, max(self.reference.longest, count)
        self._set(op.results, kept)

    def _rounds(self, depth: int) -> list[Rounds]:
        """Returns how often the loops within so many others go round."""
        known = self.reference.rounds
        known += [list[Rounds]() for _ in range(len(known), depth + 1)]
        return known[depth]

    def _goes_on(self, block: Any, states: Sequence[tuple[Any, int]], rounds: Rounds, outermost: Any) -> bool:
        self._set(block.arguments, states)
        *body, end = [o.operation for o in block.operations]
        for op in body:
            if self.tests:
                self._perform(op, outermost)
            else:
                _import(self.importer, op)
        if self.tests:
            rounds.tests.append(self.numbers[end.operands[0]])
        return bool(np.asarray(self.importer.env[end.operands[0]].array))

    def _block(self, block: Any, states: Sequence[tuple[Any, int]], outermost: Any) -> list[Any]:
        self._set(block.arguments, states)
        *body, end = [o.operation for o in block.operations]
        for op in body:
            self._perform(op, outermost)
        return list(end.operands)

    def _set(self, values: Sequence[Any], states: Sequence[tuple[Any, int]]) -> None:
        for value, (array, number) in zip(values, states, strict=True):
            self.importer.env[value], self.numbers[value] = array, number


def _import(importer: Importer, op: Any) -> None:
    if op.name in SAME:
        for value, operand in zip(op.results, op.operands, strict=True):
            importer.env[value] = importer.env[operand]
        return
    if len(op.results) == 1:
        (result,) = importer.types_of(op.results)
        array = perform(op, [importer.env[v].array for v in op.operands], result.shape, result.dtype)
        if array is not None:
            importer.env[op.results[0]] = Sharded(cast("jax.Array", array), shardings.replicated(array.ndim))
            return
    importer.perform(op)
