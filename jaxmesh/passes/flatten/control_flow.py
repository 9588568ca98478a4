"""Loops are unrolled and branches taken: what decides must be known at compile time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.errors import UnsupportedError
from jaxmesh.jaxprs import control_flow
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule, storage_type
from jaxmesh.passes.flatten.shapes import element, stacked
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()
"""By the name of the primitive."""


@contextmanager
def _unrolling(b: Builder) -> Generator[None]:
    """Counts what a loop makes; loops inside of it are counted with it."""
    outermost = b.loop_start is None
    if outermost:
        b.loop_start = len(b.program.ops)
    yield
    if outermost and b.loop_start is not None:
        b.unrolled += len(b.program.ops) - b.loop_start
        b.loop_start = None


def _check_limit(b: Builder, eqn: Eqn, done: int, trips: str) -> None:
    assert b.loop_start is not None
    made, limit = b.unrolled + len(b.program.ops) - b.loop_start, b.options.unroll_limit
    if max(made, done) > limit:
        raise UnsupportedError(
            f"{eqn.primitive.name} ({b.place(eqn)}) of {trips} iterations is unrolled in the text, and "
            f"after {done} of them the program's loops have made {made} operations; unroll_limit is {limit}. Raise "
            "unroll_limit, or make the loop shorter; the program still runs."
        )


@RULES.add("scan")
def _scan(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    constants, carried = control_flow.scan_arity(eqn.params)
    length, body = int(eqn.params["length"]), eqn.params["jaxpr"]
    consts, carry, rows = xs[:constants], list(xs[constants : constants + carried]), xs[constants + carried :]
    made: list[list[Value]] = []
    order = range(length - 1, -1, -1) if eqn.params["reverse"] else range(length)
    with _unrolling(b):
        for done, i in enumerate(order):
            outs = b.jaxpr(body, [*consts, *carry, *(element(b, x, i) for x in rows)])
            carry = outs[:carried]
            made.append(outs[carried:])
            _check_limit(b, eqn, done + 1, str(length))
    if eqn.params["reverse"]:
        made.reverse()
    if made:
        return [*carry, *(stacked(b, column, 0) for column in zip(*made, strict=True))]
    empty = [storage_type(v.aval, b.line) for v in eqn.outvars[carried:]]
    return [*carry, *(b.full(shape, 0, dtype) for shape, dtype in empty)]


@RULES.add("while")
def _while(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    of_condition = eqn.params["cond_nconsts"]
    of_body = of_condition + eqn.params["body_nconsts"]
    carry, done = list(xs[of_body:]), 0
    with _unrolling(b):
        while _goes_on(b, eqn, [*xs[:of_condition], *carry], done):
            carry = b.jaxpr(eqn.params["body_jaxpr"], [*xs[of_condition:of_body], *carry])
            done += 1
            _check_limit(b, eqn, done, "an unknown number of")
    return carry


def _goes_on(b: Builder, eqn: Eqn, xs: Sequence[Value], done: int) -> bool:
    """What the condition gives; the operations it makes are read by nothing and go away."""
    (condition,) = b.jaxpr(eqn.params["cond_jaxpr"], xs)
    known = b.known.get(condition)
    if known is None:
        raise UnsupportedError(
            f"while loop ({b.place(eqn)}): whether it goes on after {done} iterations depends on values "
            "that only the devices know, and TTIR has no loops. Give it a number of iterations that is static "
            "(jax.lax.fori_loop or scan, or a condition on integers that are); the program still runs."
        )
    return bool(known)


@RULES.add("cond")
def _cond(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    which, *operands = xs
    known, branches = b.known.get(which), eqn.params["branches"]
    if known is None:
        raise UnsupportedError(
            f"cond or switch ({b.place(eqn)}): which of its {len(branches)} branches is taken depends on "
            "a value that only the devices know, and TTIR has no branches. Make the predicate static, or compute all "
            "branches and choose with jnp.where; the program still runs."
        )
    return b.jaxpr(branches[int(np.clip(int(known), 0, len(branches) - 1))], operands)
