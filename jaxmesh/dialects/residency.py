"""Where each value of a TTNN-level program lives: a forward analysis of one equation (section 4 of the semantics).

A value is on the host until a distribute; an equation with any device operand, or whose result varies over a mesh axis,
runs on the devices; only an aggregate brings a value back. What depends on no array input is on neither side: it is
made where it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import Call, Cond, Scan, While, control_flow


class Residency(IntEnum):
    """The place of a value; joining two places takes the larger."""

    FREE = 0
    HOST = 1
    DEVICE = 2


FREE, HOST, DEVICE = Residency.FREE, Residency.HOST, Residency.DEVICE


def of_constant(value: Any) -> Residency:
    """A single number is written where it is needed; a larger array is a host tensor."""
    return FREE if np.size(value) <= 1 else HOST


def of_atom(atom: Atom, env: Mapping[compat.Var, Residency]) -> Residency:
    """Where an operand lives; a literal is free."""
    return FREE if isinstance(atom, compat.Literal) else env[atom]


def join(places: Sequence[Residency]) -> Residency:
    """The one place where values of these places meet."""
    return max(places, default=FREE)


def of_result(eqn: Eqn, operands: Sequence[Residency]) -> Residency:
    """Where the results of a plain equation (no call, no loop) live."""
    if eqn.primitive is distribute_tensor_p:
        return DEVICE
    if eqn.primitive is aggregate_tensor_p:
        return HOST
    if DEVICE in operands:
        return DEVICE
    for v in eqn.outvars:
        if compat.varying_axes(v.aval):
            return DEVICE
    place = join(operands)
    return HOST if place is FREE and not _made_anywhere(eqn) else place


ON_HOST = frozenset({"custom_linear_solve"})
"""Primitives that hold bodies and run on the host side if one of these moves tensors."""

_TABLES = frozenset({
    "iota", "broadcast_in_dim", "convert_element_type", "reshape", "copy", "squeeze", "expand_dims", "transpose",
    "slice", "concatenate", "pad", "rev", "add", "sub", "mul", "div", "neg", "pow", "integer_pow", "square",
    "sqrt", "rsqrt", "exp", "exp2", "log", "sin", "cos", "floor", "sign", "abs", "max", "min", "rem", "eq", "ne",
    "lt", "le", "gt", "ge", "and", "or", "not", "xor", "select_n", "clamp",
})  # fmt: skip
"""What masks, position tables and fills are made of: cheap, element by element, the same on every device."""


def _made_anywhere(eqn: Eqn) -> bool:
    """Whether a value from no array is made where it is needed: numbers and tables are; random or heavy work is not."""
    if eqn.effects or "callback" in eqn.primitive.name:
        return False
    if eqn.primitive.name == "ttir_op" and not eqn.invars:
        return True
    return eqn.primitive.name in _TABLES or all(math.prod(v.aval.shape) <= 1 for v in eqn.outvars)


def has_transfer(jaxpr: Jaxpr) -> bool:
    """Whether a distribute or an aggregate stands at any depth."""
    return any(e.primitive in (distribute_tensor_p, aggregate_tensor_p) for e in walk.all_eqns(jaxpr))


# --- whole programs --------------------------------------------------------------------------------------------------

Places = tuple[Residency, ...]


class Analysis:
    """Residencies of a program whose transfers are written out; bodies are analysed once per residency of inputs."""

    def __init__(self) -> None:
        self._results, self._moving = walk.Memo[Places](), walk.Memo[bool]()

    def body(self, jaxpr: Jaxpr, places: Places) -> Places:
        """Where the results of a body live."""

        def analyse() -> Places:
            env = self.environment(jaxpr, places)
            return tuple(of_atom(a, env) for a in walk.open_jaxpr(jaxpr).outvars)

        return self._results.get(jaxpr, analyse, places)

    def environment(self, jaxpr: Jaxpr, places: Sequence[Residency]) -> dict[compat.Var, Residency]:
        """Where every value of a body lives."""
        return evaluate.environment(jaxpr, places, self.equation, of_constant, lambda _: FREE)

    def moves(self, jaxpr: Jaxpr) -> bool:
        """Whether a transfer stands in a body, at any depth."""
        return self._moving.get(jaxpr, lambda: has_transfer(jaxpr))

    def equation(self, eqn: Eqn, operands: Sequence[Residency]) -> Places:
        """Where the results of an equation live, calls and loops included."""
        if eqn.primitive.name == "ttir_op" and not operands:
            # A constant of a text is made where it is needed.
            return (FREE,) * len(eqn.outvars)
        match control_flow(eqn):
            case Call() as call:
                return self.body(call.body, tuple(operands))
            case Scan() as loop:
                consts, carry, xs = loop.split(operands)
                return self._loop(loop.body, consts, carry, xs)
            case While() as loop:
                _, consts, carry = loop.split(operands)
                return self._loop(loop.body, consts, carry, ())
            case Cond() as branch:
                outs = [self.body(b, tuple(operands[1:])) for b in branch.branches]
                return tuple(join(row) for row in zip(*outs, strict=True))
            case None:
                return (of_result(eqn, operands),) * len(eqn.outvars)

    def _loop(
        self, jaxpr: Jaxpr, consts: Sequence[Residency], carry: list[Residency], xs: Sequence[Residency]
    ) -> Places:
        while True:
            outs = self.body(jaxpr, (*consts, *carry, *xs))
            joined = [max(a, b) for a, b in zip(carry, outs[: len(carry)], strict=True)]
            if joined == carry:
                return (*joined, *outs[len(carry) :])
            carry = joined
