"""Loops and branches. A loop that counts to a constant becomes a differentiable scan; any other loop stays a while."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from jaxmesh.frontends.jax.retype import spread, varying, widen_carry
from jaxmesh.frontends.mlir.attributes import Array
from jaxmesh.frontends.mlir.module import producer
from jaxmesh.frontends.stablehlo.call import ImportContext, Whole, enum_of
from jaxmesh.frontends.stablehlo.reductions import constant_of
from jaxmesh.frontends.stablehlo.shardings import axes_of
from jaxmesh.frontends.stablehlo.values import Sharded
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import DType, lax


@dataclass(frozen=True, slots=True)
class Counter:
    """The counter of a loop: its index among the carried values, its start, its step, and the number of iterations."""

    number: int
    start: int
    step: int
    length: int

    def numbers(self, dtype: DType) -> Array:
        """Returns its values in all iterations."""
        start, stride = np.asarray(self.start, dtype), np.asarray(self.step, dtype)
        return (np.arange(self.length, dtype=dtype) * stride + start).astype(dtype)


Step = Callable[[Sequence[jax.Array]], Sequence[jax.Array]]
"""An iteration of a loop, from the values that it carries to the next ones."""


def _while(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    types = program.types_of(op.results)
    wanted = program.result_shardings(op)
    initial = [
        spread(program.reshard(program.env[v], s, "for the first iteration of a loop"), axes_of(s))
        for v, s in zip(op.operands, wanted, strict=True)
    ]
    cond, body = (r.blocks[0] for r in op.regions)

    def arguments(carry: Sequence[jax.Array]) -> list[Sharded]:
        return [Sharded(x, s) for x, s in zip(carry, wanted, strict=True)]

    def step(carry: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        with program.inner_scope():
            made = program.block(body, arguments(carry))
            made = [program.env[stacks[i][0]] if i in stacks else x for i, x in enumerate(made)]
            expected = zip(made, wanted, types, carry, strict=True)
            return tuple(
                spread(program.reshard(y, s, "for the next iteration of a loop"), varying(x)).astype(t.dtype)
                for y, s, t, x in expected
            )

    def goes_on(carry: Sequence[jax.Array]) -> jax.Array:
        with program.inner_scope():
            test = program.block(cond, arguments(carry))[0]
        return program.settle(test).array

    counter = find_counter(op)
    stacks = {} if counter is None or not 0 < counter.length <= _STACKED else _stacks(op, counter, initial)
    stacks = {i: row for i, row in stacks.items() if not wanted[i][0]}

    def loop(initial: list[jax.Array]) -> Sequence[jax.Array]:
        if counter is None:
            return lax.while_loop(goes_on, step, tuple(initial))
        return _scan(step, initial, counter, stacks)

    decided = len(program.decisions.log)
    try:
        results = loop(initial)
    except TypeError:
        # In a hand-written region, the initial carry may vary over fewer axes than the result of an iteration.
        wider = _widen_carry(step, None if counter is not None else goes_on, initial)
        del program.decisions.log[decided:]
        if wider is None:
            raise
        results = loop(wider)
    return [Sharded(y, s) for y, s in zip(results, wanted, strict=True)]


def _widen_carry(
    step: Step, goes_on: Callable[[Sequence[jax.Array]], jax.Array] | None, initial: list[jax.Array]
) -> list[jax.Array] | None:
    """Returns the initial values of a loop, varying over the axes of the values after some iterations.

    If the loop condition varies over axes, all values vary over these axes.
    Returns None if the initial values already vary over the axes.
    """
    initial_axes = [varying(x) for x in initial]

    def result_axes(axes: list[compat.Axes]) -> list[compat.Axes]:
        structs = tuple(compat.typed_struct(jax.typeof(x), a) for x, a in zip(initial, axes, strict=True))
        decision: list[Any] = [] if goes_on is None else typed.make_jaxpr(goes_on)(structs).out_avals
        every = frozenset[str]().union(*map(compat.varying_axes, decision))
        return [compat.varying_axes(a) | every for a in typed.make_jaxpr(step)(structs).out_avals]

    axes = widen_carry(initial_axes, result_axes)
    return None if axes == initial_axes else [spread(x, a) for x, a in zip(initial, axes, strict=True)]


_STACKED = 2**20
"""The most iterations of a loop whose counters are an array."""


def _stacks(op: ir.Operation, counter: Counter, initial: Sequence[jax.Array]) -> Stacks:
    counted, body = counter.numbers(initial[counter.number].dtype), op.regions[1].blocks[0]

    def known(value: ir.Value) -> Array | None:
        number = _number(value, op, body)
        return counted if value == body.arguments[counter.number] else None if number is None else np.asarray(number)

    found = find_stacks(op, counter.length, known)
    # A scan fills all of them in one direction.
    return {i: row for i, row in found.items() if row[1] == next(iter(found.values()))[1]}


def _scan(step: Step, initial: list[jax.Array], counter: Counter, stacks: Stacks) -> list[jax.Array]:
    """Runs a counted loop as a scan with the counter as an input: nothing that is differentiated depends on it.

    Of a carried tensor in `stacks`, `step` returns one row.

    In a longer loop the counter is a part of the carry, as in the text: its values would take memory.
    """
    if counter.length > _STACKED:

        def advance(carry: Sequence[jax.Array], _: None) -> tuple[Sequence[jax.Array], None]:
            return step(carry), None

        return list(lax.scan(advance, tuple(initial), None, length=counter.length)[0])
    number, dtype = counter.number, initial[counter.number].dtype
    carried = [i for i in range(len(initial)) if i != number and i not in stacks]

    def body(carry: Sequence[jax.Array], index: jax.Array) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
        given = dict(zip(carried, carry, strict=True)) | {number: index}
        # A step reads no stack.
        given |= {i: spread(lax.full(initial[i].shape, 0, initial[i].dtype), varying(initial[i])) for i in stacks}
        results = step([given[i] for i in range(len(initial))])
        rows = (lax.reshape(results[i], initial[i].shape[1:]) for i in stacks)
        return tuple(results[i] for i in carried), tuple(rows)

    first = tuple(initial[i] for i in carried)
    turned, numbers = any(turned for _, turned in stacks.values()), counter.numbers(dtype)
    numbers = numbers[::-1] if turned else numbers
    results, rows = lax.scan(body, first, numbers, length=counter.length, reverse=turned)
    found = dict(zip(carried, results, strict=True))
    found[number] = lax.full((), counter.start + counter.step * counter.length, dtype)
    found |= zip(stacks, rows, strict=True)
    return [found[i] for i in range(len(initial))]


def find_counter(op: ir.Operation) -> Counter | None:
    """Recognises a loop that counts from a constant to a constant by a constant; returns None for any other loop.

    A counter of floats may step by fractions. Integers that pass the last number of the type start again.
    """
    cond, body = (r.blocks[0] for r in op.regions)
    test = producer(cond.operations[-1].operands[0], "stablehlo.compare")
    if test is None or enum_of(test, "comparison_direction") != "LT":
        return None
    left, right = test.operands
    kind = ir.RankedTensorType(left.type).element_type
    if not isinstance(kind, ir.IntegerType):
        return None
    number = next((i for i, v in enumerate(cond.arguments) if v == left), None)
    limit, start = _number(right, op, cond), None if number is None else _number(op.operands[number], op, None)
    if number is None or limit is None or start is None:
        return None
    add = producer(body.operations[-1].operands[number], "stablehlo.add")
    if add is None:
        return None
    x, y = add.operands
    if y == body.arguments[number]:
        x, y = y, x
    step = _number(y, op, body)
    if x != body.arguments[number] or step is None or not 0 < step <= _most(kind) - limit:
        return None
    return Counter(number, start, step, max(-(-(limit - start) // step), 0))


def _most(kind: ir.IntegerType) -> int:
    """Returns the greatest number of a type."""
    return 2 ** (kind.width if str(kind).startswith("u") else kind.width - 1) - 1


def _number(value: ir.Value, loop: ir.Operation, block: ir.Block | None) -> int | None:
    """Returns a constant, even if the loop carries it unchanged; None for any other value."""
    constant = constant_of(value)
    if constant is not None:
        return int(constant.item())
    body = loop.regions[1].blocks[0]
    carried = next((i for i, v in enumerate(block.arguments) if v == value), None) if block is not None else None
    if carried is None or body.operations[-1].operands[carried] != body.arguments[carried]:
        return None
    return _number(loop.operands[carried], loop, None)


def _case(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    types, wanted = program.types_of(op.results), program.result_shardings(op)
    index = program.settle(program.env[op.operands[0]])
    chosen = program.reshard(index, (), "to choose a branch")

    def branch(region: ir.Region) -> Callable[[], tuple[jax.Array, ...]]:
        def run() -> tuple[jax.Array, ...]:
            with program.inner_scope():
                results = program.block(region.blocks[0], [])
                expected = zip(results, wanted, types, axes, strict=True)
                return tuple(spread(program.reshard(y, s, "of a branch"), a).astype(t.dtype) for y, s, t, a in expected)

        return run

    axes: list[Collection[str]] = [axes_of(s) for s in wanted]
    if program.manual:
        # In a hand-written region, the results of one branch may vary over more axes than those in another.
        decided = len(program.decisions.log)
        result_types = [typed.make_jaxpr(branch(r))().out_avals for r in op.regions]
        del program.decisions.log[decided:]
        axes = [varying(chosen).union(*map(compat.varying_axes, types)) for types in zip(*result_types, strict=True)]
    branches = [branch(r) for r in op.regions]
    if op.name == "stablehlo.if":
        results = lax.cond(chosen, *branches)
    else:
        # An index out of range selects the last branch.
        count = np.int32(len(branches))
        chosen = lax.select((chosen < 0) | (chosen >= count), lax.full_like(chosen, len(branches) - 1), chosen)
        results = lax.switch(chosen, branches)
    return [Sharded(y, s) for y, s in zip(results, wanted, strict=True)]


# --- stacked results -------------------------------------------------------------------------------------------------
# An iteration that writes one row of a carried tensor would write all of it anew; a scan stacks the rows once.


Stacks = dict[int, tuple[ir.Value, bool]]
"""By the number of a carried tensor the row that an iteration writes, and whether the last row comes first."""


def find_stacks(op: ir.Operation, length: int, known: Callable[[ir.Value], Array | None]) -> Stacks:
    """Returns the carried tensors that are stacks.

    Args:
      op: a `stablehlo.while`.
      length: the number of its iterations.
      known: returns the number that a value of the body has in each iteration; None for another value.
    """
    cond, body = (r.blocks[0] for r in op.regions)
    end = body.operations[-1]
    rows = np.arange(length)
    found: Stacks = {}
    for i, (stack, made) in enumerate(zip(body.arguments, end.operands, strict=True)):
        write = producer(made, "stablehlo.dynamic_update_slice")
        if write is None or write.operands[0] != stack:
            continue
        shape, row = (list(v.type.shape) for v in (stack, write.operands[1]))
        reads = [len(list(v.uses)) for v in (stack, made, cond.arguments[i])]
        if reads != [1, 1, 0] or [len(rows), *shape[1:]] != shape or [1, *shape[1:]] != row:
            continue
        first, *others = (integers_of(v, known) for v in write.operands[2:])
        if first is None or any(x is None or x.any() for x in others):
            continue
        orders = [np.array_equal(np.clip(first, 0, len(rows) - 1), order) for order in (rows, rows[::-1])]
        if any(orders):
            found[i] = write.operands[1], not orders[0]
    return found


# --- index arithmetic ------------------------------------------------------------------------------------------------


def _clamp(low: Array, x: Array, high: Array) -> Array:
    return np.clip(x, low, high)


_INTEGER = re.compile(r"u?i\d+")
_COMPUTED: Mapping[str, Callable[..., Array]] = {
    **{f"stablehlo.{name}": getattr(np, name) for name in ("add", "subtract", "multiply", "minimum", "maximum")},
    "stablehlo.select": np.where,
    "stablehlo.clamp": _clamp,
    "stablehlo.reshape": np.asarray,
    "stablehlo.convert": np.asarray,
}
"""Operations of index arithmetic."""


def integers_of(value: ir.Value, known: Callable[[ir.Value], Array | None] = lambda _: None) -> Array | None:
    """Returns the integers that a value is computed to from constants and `known` values; None for any other value."""
    element = str(value.type.element_type)
    if not _INTEGER.fullmatch(element):
        return None
    found = known(value)
    found = constant_of(value) if found is None else found
    if found is None and (op := producer(value)) is not None:
        compares = op.name == "stablehlo.compare"
        compute = getattr(operator, enum_of(op, "comparison_direction").lower()) if compares else _COMPUTED.get(op.name)
        operands = [integers_of(v, known) for v in op.operands] if compute else []
        found = compute(*operands) if compute and not any(x is None for x in operands) else None
    return (
        None if found is None else np.asarray(found).astype("bool" if element == "i1" else element.replace("i", "int"))
    )


OPS: dict[str, Whole] = {"stablehlo.while": _while, "stablehlo.case": _case, "stablehlo.if": _case}
