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
from jaxmesh.jaxprs import compat, control_flow, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr


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
    if control_flow.is_imported_op(eqn) and not eqn.invars:
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
        self._memo: dict[tuple[int, Places], tuple[Jaxpr, Places]] = {}
        self._moving: dict[int, tuple[Jaxpr, bool]] = {}

    def body(self, jaxpr: Jaxpr, places: Places) -> Places:
        """Where the results of a body live."""
        key = (id(jaxpr), places)
        if key not in self._memo:
            env = self.environment(jaxpr, places)
            outs = tuple(of_atom(a, env) for a in walk.open_jaxpr(jaxpr).outvars)
            self._memo[key] = (jaxpr, outs)
        return self._memo[key][1]

    def environment(self, jaxpr: Jaxpr, places: Sequence[Residency]) -> dict[compat.Var, Residency]:
        """Where every value of a body lives."""
        opened = walk.open_jaxpr(jaxpr)
        env = dict(zip(opened.invars, places, strict=True))
        env |= {v: of_constant(c) for v, c in zip(opened.constvars, getattr(jaxpr, "consts", ()), strict=False)}
        for eqn in opened.eqns:
            env.update(zip(eqn.outvars, self.equation(eqn, [of_atom(a, env) for a in eqn.invars]), strict=True))
        return env

    def moves(self, jaxpr: Jaxpr) -> bool:
        """Whether a transfer stands in a body, at any depth."""
        if id(jaxpr) not in self._moving:
            self._moving[id(jaxpr)] = (jaxpr, has_transfer(jaxpr))
        return self._moving[id(jaxpr)][1]

    def equation(self, eqn: Eqn, operands: Sequence[Residency]) -> Places:
        """Where the results of an equation live, calls and loops included."""
        name, params = eqn.primitive.name, eqn.params
        if control_flow.is_imported_op(eqn) and not operands:
            # A constant of a text is made where it is needed.
            return (FREE,) * len(eqn.outvars)
        if name in control_flow.CALLS:
            return self.body(params[control_flow.CALLS[name]], tuple(operands))
        if name == "scan":
            consts, carry = control_flow.scan_arity(params)
            return self._loop(params["jaxpr"], operands, slice(consts, consts + carry))
        if name == "while":
            start = params["body_nconsts"]
            rest = operands[params["cond_nconsts"] :]
            return self._loop(params["body_jaxpr"], rest, slice(start, len(rest)))
        if name == "cond":
            outs = [self.body(b, tuple(operands[1:])) for b in params["branches"]]
            return tuple(join(row) for row in zip(*outs, strict=True))
        return (of_result(eqn, operands),) * len(eqn.outvars)

    def _loop(self, jaxpr: Jaxpr, operands: Sequence[Residency], carry: slice) -> Places:
        places = list(operands)
        while True:
            outs = self.body(jaxpr, tuple(places))
            size = carry.stop - carry.start
            joined = [max(a, b) for a, b in zip(places[carry], outs[:size], strict=True)]
            if joined == places[carry]:
                return (*joined, *outs[size:])
            places[carry] = joined
