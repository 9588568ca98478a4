"""Unrolls loops, whose lengths must be known at compile time, and takes branches, or selects from all of them."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.errors import UnrolledLoopWarning, UnsupportedError
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import Cond, Scan, While, control_flow
from jaxmesh.passes.flatten.builder import Builder, Rule, storage_type
from jaxmesh.passes.flatten.elementwise import select
from jaxmesh.passes.flatten.shapes import element, stack
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()


MANY = 20_000
"""The operations of an unrolled loop above which there is a warning."""


@contextmanager
def _unrolling(b: Builder, eqn: Eqn) -> Generator[None]:
    """Counts the operations that a loop emits, those of inner loops included."""
    outermost = b.loop_start is None
    if outermost:
        b.loop_start = len(b.program.ops)
    yield
    if outermost and b.loop_start is not None:
        made = len(b.program.ops) - b.loop_start
        b.unrolled += made
        b.loop_start = None
        if made > MANY:
            warnings.warn(
                f"{eqn.primitive.name} ({b.user_line(eqn)}) is unrolled in the text to as many as {made} operations, "
                "since TTIR has no loops; make it shorter, or its body smaller.",
                UnrolledLoopWarning,
                stacklevel=2,
            )


def _check_limit(b: Builder, eqn: Eqn, done: int, trips: str) -> None:
    assert b.loop_start is not None
    made, limit = b.unrolled + len(b.program.ops) - b.loop_start, b.options.unroll_limit
    if max(made, done) > limit:
        raise UnsupportedError(
            f"{eqn.primitive.name} ({b.user_line(eqn)}) of {trips} iterations is unrolled in the text, and "
            f"after {done} of them the program's loops have made {made} operations; unroll_limit is {limit}. Raise "
            "unroll_limit, or make the loop shorter; the program still runs."
        )


@RULES.add("scan")
def _scan(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    loop = control_flow(eqn)
    assert isinstance(loop, Scan)
    consts, carry, rows = loop.split(xs)
    stacks: list[list[Value]] = []
    order = range(loop.length - 1, -1, -1) if loop.reverse else range(loop.length)
    with _unrolling(b, eqn):
        for done, i in enumerate(order):
            inputs = [*consts, *carry, *(element(b, x, i) for x in rows)]
            carry, outs = loop.split_results(b.jaxpr(loop.body, inputs))
            stacks.append(outs)
            _check_limit(b, eqn, done + 1, str(loop.length))
    if loop.reverse:
        stacks.reverse()
    if stacks:
        return [*carry, *(stack(b, column, 0) for column in zip(*stacks, strict=True))]
    empty = [storage_type(v.aval, b.line) for v in eqn.outvars[len(carry) :]]
    return [*carry, *(b.full(shape, 0, dtype) for shape, dtype in empty)]


@RULES.add("while")
def _while(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    loop = control_flow(eqn)
    assert isinstance(loop, While)
    condition_consts, body_consts, carry = loop.split(xs)
    done = 0
    with _unrolling(b, eqn):
        while _goes_on(b, eqn, loop.cond, [*condition_consts, *carry], done):
            carry = b.jaxpr(loop.body, [*body_consts, *carry])
            done += 1
            _check_limit(b, eqn, done, "an unknown number of")
    return carry


def _goes_on(b: Builder, eqn: Eqn, jaxpr: Jaxpr, xs: Sequence[Value], done: int) -> bool:
    """Returns the condition's value; nothing reads the operations that it emits, so they are removed later."""
    (condition,) = b.jaxpr(jaxpr, xs)
    known = b.known.get(condition)
    if known is None:
        raise UnsupportedError(
            f"while loop ({b.user_line(eqn)}): whether it goes on after {done} iterations depends on values "
            "that only the devices know, and TTIR has no loops. Give it a number of iterations that is static "
            "(jax.lax.fori_loop or scan, or a condition on integers that are); the program still runs."
        )
    return bool(known)


@RULES.add("cond")
def _cond(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    """Builds the branch that is taken; where only the devices know which, all of them, and selects the results."""
    choice = control_flow(eqn)
    assert isinstance(choice, Cond)
    index, operands = choice.split(xs)
    known = b.known.get(index)
    if known is not None:
        return b.jaxpr(choice.branches[choice.clamp(known)], operands)
    results = [b.jaxpr(branch, operands) for branch in choice.branches]
    return [_selected(b, index, cases) for cases in zip(*results, strict=True)]


def _selected(b: Builder, index: Value, cases: Sequence[Value]) -> Value:
    if b.pairs.keys().isdisjoint(cases):
        # A result that is the same everywhere may be a number in no dims.
        shape = np.broadcast_shapes(*(b.shape(x) for x in cases))
        return select(b, index, cases, shape, b.dtype(cases[0]))
    return b.pair(*(_selected(b, index, side) for side in zip(*(b.pairs[x] for x in cases), strict=True)))
