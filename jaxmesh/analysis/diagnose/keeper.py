"""Runs a program unsharded and keeps every value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec
from jaxlib.mlir import ir

from jaxmesh.analysis.diagnose.in_numpy import perform
from jaxmesh.analysis.diagnose.reference_value import Reference, ReferenceValue
from jaxmesh.analysis.diagnose.rounding import rounding_unit
from jaxmesh.analysis.diagnose.stage import Array, without_equal
from jaxmesh.analysis.reference_rules import RULES
from jaxmesh.dialects.quoting import axis_names
from jaxmesh.dialects.residency import HOST
from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, shard_to_full
from jaxmesh.frontends.jax.retype import spread
from jaxmesh.frontends.stablehlo import shardings
from jaxmesh.frontends.stablehlo.control_flow import find_counter
from jaxmesh.frontends.stablehlo.decisions import Decisions
from jaxmesh.frontends.stablehlo.gspmd import walk
from jaxmesh.frontends.stablehlo.importer import Importer
from jaxmesh.frontends.stablehlo.reductions import kind_of
from jaxmesh.frontends.stablehlo.shardings import OWN
from jaxmesh.frontends.stablehlo.values import Sharded
from jaxmesh.jaxprs.evaluate import trace_typed
from jaxmesh.jaxprs.source_locations import Sources
from jaxmesh.runtime.reference import run_reference

_MOST = 1000
"""The most operations of a region that a loop becomes."""
REGION = "sdy.manual_computation"
INSIDE = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if"})
"""The operations whose values within may be kept, and rounded otherwise."""
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
    unit: float
    random: np.random.Generator
    numbers: dict[Any, int] = field(default_factory=dict[Any, int])
    depth: int = 0

    def run(self, inputs: Iterable[Any]) -> None:
        """Runs the program for arguments."""
        block = self.reference.block
        for number, (value, x) in enumerate(zip(block.arguments, inputs, strict=True)):
            self.importer.env[value] = _whole(x)
            self._keep(value, "argument", f"argument {number}", ())
        *body, end = [o.operation for o in block.operations]
        for op in body:
            self._perform(op, op)
        self.reference.outputs = [self.numbers[v] for v in end.operands]

    def _keep(self, value: Any, op: str, line: str, operands: Sequence[Any], operation: Any = None) -> None:
        known = tuple(self.numbers[v] for v in operands)
        number = self.numbers[value] = len(self.reference.values)
        if number in self.held:
            self.importer.env[value] = _whole(self.held[number])
        array = np.asarray(self.importer.env[value].array)
        # A text of narrower types rounds the arguments, too.
        is_rounded = rounding_unit(array.dtype) < self.unit if op == "argument" else not is_unrounded(op, value)
        if self.unit and is_rounded:
            self.importer.env[value] = _whole(self._rounded(array))
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
            if self.inside:
                counts = self.reference.iterations
                counts += [list[int]() for _ in range(len(counts), self.depth + 1)]
                counts[self.depth] += _write_out_loops(op.regions[0].blocks[0])
            _keep_region(self.reference, self.importer, op, self.numbers, self.source)
        elif self.inside and op.name == "stablehlo.while":
            self._loop(op, outermost)
        elif self.inside and op.name in ("stablehlo.case", "stablehlo.if"):
            index = int(np.asarray(self.importer.env[op.operands[0]].array))
            last = len(op.regions) - 1
            number = 1 - index if op.name == "stablehlo.if" else index if 0 <= index <= last else last
            self.depth += 1
            taken = self._block(op.regions[number].blocks[0], [], outermost)
            self.depth -= 1
            self._set(op.results, [(self.importer.env[v], self.numbers[v]) for v in taken])
        else:
            _import(self.importer, op)
            for value in op.results:
                self._keep(value, op.name, self.source(op), _outer_operands(op, self.numbers), outermost)

    def _loop(self, op: Any, outermost: Any) -> None:
        condition, body = (r.blocks[0] for r in op.regions)
        states, counts = list(op.operands), self.reference.iterations
        counts += [list[int]() for _ in range(len(counts), self.depth + 1)]
        at, count = len(counts[self.depth]), 0
        counts[self.depth].append(0)
        self.depth += 1
        kept = [(self.importer.env[v], self.numbers[v]) for v in states]
        while self._goes_on(condition, kept):
            results = self._block(body, kept, outermost)
            kept = [(self.importer.env[v], self.numbers[v]) for v in results]
            count += 1
        self.depth -= 1
        counts[self.depth][at] = count
        self._set(op.results, kept)

    def _goes_on(self, block: Any, states: Sequence[tuple[Any, int]]) -> bool:
        self._set(block.arguments, states)
        *body, end = [o.operation for o in block.operations]
        for op in body:
            _import(self.importer, op)
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


def _write_out_loops(block: Any) -> list[int]:
    """Replaces each loop of a block that counts between constants by its iterations; returns how often each loop goes
    round, and 0 for a loop that stays."""
    counts = list[int]()
    for loop in [o.operation for o in block.operations if o.operation.name == "stablehlo.while"]:
        body, counter = loop.regions[1].blocks[0], find_counter(loop)
        *ops, end = [o.operation for o in body.operations]
        counts.append(0 if counter is None or counter.length * len(ops) > _MOST else counter.length)
        if not counts[-1]:
            continue
        states = list(loop.operands)
        for _ in range(counts[-1]):
            names: dict[Any, Any] = dict(zip(body.arguments, states, strict=True))
            for op in ops:
                made = op.clone(ir.InsertionPoint(loop)).operation
                for inner in (made, *walk(made)):
                    for at, value in enumerate(inner.operands):
                        inner.operands[at] = names.get(value, value)
                names.update(zip(op.results, made.results, strict=True))
            states = [names.get(v, v) for v in end.operands]
        for result, state in zip(loop.results, states, strict=True):
            result.replace_all_uses_with(state)
        loop.erase()
    return counts


def _keep_region(reference: Reference, importer: Importer, op: Any, numbers: dict[Any, int], source: Any) -> None:
    """Keeps the values of a region as each device holds them, and its results."""
    block, manual = op.regions[0].blocks[0], tuple(axis_names(str(op.attributes["manual_axes"])))
    *body, end = [o.operation for o in block.operations]
    made = [(o, v) for o in body for v in o.results]
    arrays = [np.asarray(importer.env[v].array) for v in op.operands]
    found = _run_region(op, arrays, reference.axes or {}, [v for _, v in made], manual)
    numbers.update(zip(block.arguments, [numbers[v] for v in op.operands], strict=True))
    for (inner, value), x in zip(made, found[len(op.results) :], strict=True):
        known = tuple(numbers[v] for v in _outer_operands(inner, numbers))
        numbers[value] = len(reference.values)
        array, apart = without_equal(x, manual)
        row = ReferenceValue(inner.name, source(inner), known, array, value, op, manual, apart)
        reference.values.append(row)
    for value, returned, x in zip(op.results, end.operands, found[: len(op.results)], strict=True):
        importer.env[value] = _whole(x)
        row = ReferenceValue(REGION, source(op), (numbers[returned],), x, value, op)
        numbers[value] = len(reference.values)
        reference.values.append(row)


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


def _run_region(
    op: Any, arrays: Sequence[Any], sizes: Mapping[str, int], inner: Sequence[Any], manual: Sequence[str]
) -> list[Any]:
    """Returns the global results of a region for global operands, and some values within, one for each device along
    the manual axes: its devices run one after the other."""
    importer = Importer(sizes, Decisions(Sources(())))

    def run(*args: Any) -> list[Any]:
        shards = [Sharded(full_to_shard(x, PartitionSpec()), shardings.replicated(x.ndim)) for x in args]
        importer.env.update(zip(op.operands, shards, strict=True))
        importer.perform(op)
        outs = [importer.settle(importer.env[v]) for v in op.results]
        whole = [shard_to_full(y.array, shardings.as_spec(y.sharding)) for y in outs]
        return [*whole, *[_piled(importer.settle(importer.env[v]), manual) for v in inner]]

    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    program = trace_typed(run, structs, [()] * len(arrays), mesh)
    results = run_reference(program, [HOST] * len(arrays), sizes, list(arrays), RULES["ttir"])
    return [np.asarray(y) for y in results]


def _piled(x: Sharded, manual: Sequence[str]) -> Any:
    """Returns the values of all devices along some axes, which become the first dims."""
    apart = jax.lax.expand_dims(spread(x.array, manual), range(len(manual)))
    return shard_to_full(apart, shardings.as_spec((*((a,) for a in manual), *x.sharding)))


def _outer_operands(op: Any, numbers: Mapping[Any, int]) -> list[Any]:
    """Returns the operands of an operation, and the values that its regions read from outside."""
    inner = [v for o in walk(op) for v in o.operands if v in numbers]
    return [*op.operands, *inner]


def _whole(x: Any) -> Sharded:
    whole: Any = x
    array: Any = whole if isinstance(x, np.ndarray) else jnp.asarray(x)
    return Sharded(array, shardings.replicated(array.ndim))
