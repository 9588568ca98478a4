"""The residency of each value of a TTNN-level program: a forward analysis.

A value is on the host until a distribute. An equation with a device operand, or whose result varies over a mesh axis,
runs on the devices, and only an aggregate returns a value to the host. Values that depend on no array input are
`FREE`: each use rematerialises them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial

import numpy as np
from jax.typing import ArrayLike

from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.jaxprs import compat, evaluate, primitives, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import IMPORTED_OP, Call, Cond, Scan, While, control_flow, is_imported_op


class Residency(IntEnum):
    """The residency of a value; joining two residencies takes the larger."""

    FREE = 0
    HOST = 1
    DEVICE = 2


FREE, HOST, DEVICE = Residency.FREE, Residency.HOST, Residency.DEVICE


def of_constant(value: ArrayLike, created: Residency = HOST) -> Residency:
    """Returns the residency of a constant: none for a single number, which each use rematerialises, else `created`."""
    return FREE if np.size(value) <= 1 else created


def of_atom(atom: Atom, env: Mapping[compat.Var, Residency]) -> Residency:
    """Returns the residency of an operand; a literal is `FREE`."""
    return FREE if isinstance(atom, compat.Literal) else env[atom]


def join(residencies: Sequence[Residency]) -> Residency:
    """Returns the residency where values of these residencies meet."""
    return max(residencies, default=FREE)


def of_result(eqn: Eqn, operands: Sequence[Residency], created: Residency = HOST) -> Residency:
    """Returns the residency of the results of an equation other than a call, loop or branch.

    Args:
      eqn: the equation.
      operands: the residency of each operand.
      created: the residency of what depends on no tensor and is not rematerialised.
    """
    if eqn.primitive is distribute_tensor_p:
        return DEVICE
    if eqn.primitive is aggregate_tensor_p:
        return HOST
    if DEVICE in operands:
        return DEVICE
    for v in eqn.outvars:
        if compat.varying_axes(v.aval):
            return DEVICE
    residency = join(operands)
    return created if residency is FREE and not _is_rematerialised(eqn) else residency


def creation_residency(flow: While | Cond, eqn: Eqn, outside: Residency) -> Residency:
    """Returns where the bodies of a loop or branch create tensors: on devices that decide for themselves, there."""
    return DEVICE if compat.varying_axes(flow.predicate(eqn)) else outside


ON_HOST = frozenset({"custom_linear_solve"})
"""Primitives that hold bodies and run on the host if a body holds a transfer."""


def _is_rematerialised(eqn: Eqn) -> bool:
    """Returns True if each use may rematerialise a value that depends on no array: a number or a table."""
    if eqn.effects or "callback" in eqn.primitive.name:
        return False
    if is_imported_op(eqn) and not eqn.invars:
        return True
    return eqn.primitive.name in primitives.CHEAP_TABLES or all(math.prod(v.aval.shape) <= 1 for v in eqn.outvars)


def has_transfer(jaxpr: Jaxpr) -> bool:
    """Returns True if a jaxpr holds a distribute or an aggregate at any depth."""
    return any(e.primitive in (distribute_tensor_p, aggregate_tensor_p) for e in walk.all_eqns(jaxpr))


# --- whole programs --------------------------------------------------------------------------------------------------


class ResidencyMap:
    """The residency of every value of a program whose transfers are explicit.

    The bodies of the program are analysed on request, once per residency of their inputs.

    Attributes:
      program: the jaxpr.
      inputs: the residency of each of its inputs.
      created: the residency of what it creates from no tensor.
      values: the residency of each of its variables at the top level.
      results: the residency of each result.

    >>> import jax
    >>> program = jax.make_jaxpr(lambda x: x + 1)(1.0)
    >>> ResidencyMap(program, [HOST]).results
    (<Residency.HOST: 1>,)
    """

    def __init__(
        self,
        program: Jaxpr,
        inputs: Sequence[Residency],
        known: walk.Memo[ResidencyMap] | None = None,
        created: Residency = HOST,
    ) -> None:
        self.program, self.inputs, self.created = program, tuple(inputs), created
        self._known = walk.Memo[ResidencyMap]() if known is None else known
        self._ops: dict[tuple[int, ...], tuple[Residency, ...]] = {}
        constant = partial(of_constant, created=created)
        self.values = evaluate.environment(program, self.inputs, self._equation, constant, lambda _: FREE)
        self.results = tuple([self.of(a) for a in walk.open_jaxpr(program).outvars])

    def of(self, atom: Atom) -> Residency:
        """Returns the residency of an operand or a result at the top level."""
        return of_atom(atom, self.values)

    def body(self, jaxpr: Jaxpr, inputs: Sequence[Residency], created: Residency | None = None) -> ResidencyMap:
        """Returns the residencies of a body, by the residency of each input; `created` as outside if it is None."""
        inputs, where = tuple(inputs), self.created if created is None else created
        return self._known.get(jaxpr, lambda: ResidencyMap(jaxpr, inputs, self._known, where), inputs, where)

    def with_calls_inlined(self, program: Jaxpr) -> ResidencyMap:
        """Returns the residencies of the program with calls inlined; its loops and branches are not analysed again."""
        return ResidencyMap(program, self.inputs, self._known, self.created)

    def bodies(self, eqn: Eqn) -> list[ResidencyMap]:
        """Returns the residencies of the bodies of a top-level call, loop or branch, in the order of `control_flow`."""
        return self._bodies(eqn, [self.of(a) for a in eqn.invars])

    def _bodies(self, eqn: Eqn, operands: Sequence[Residency]) -> list[ResidencyMap]:
        match control_flow(eqn):
            case Call() as call:
                return [self.body(call.body, operands)]
            case Scan() as loop:
                return [self._settle(loop.body, *loop.split(operands), self.created)]
            case While() as loop:
                test, consts, carry = loop.split(operands)
                created = creation_residency(loop, eqn, self.created)
                step = self._settle(loop.body, consts, carry, (), created)
                return [self.body(loop.cond, (*test, *step.inputs[len(consts) :]), created), step]
            case Cond() as branch:
                created = creation_residency(branch, eqn, self.created)
                return [self.body(b, operands[1:], created) for b in branch.branches]
            case None:
                return []

    def _equation(self, eqn: Eqn, operands: Sequence[Residency]) -> Sequence[Residency]:
        if eqn.primitive.name == IMPORTED_OP:
            # A constant of a text is rematerialised by each use.
            if not operands:
                return (FREE,) * len(eqn.outvars)
            # Equal ops of a text share a body, which the program keeps.
            body = eqn.params["jaxpr"]
            key = id(body), *operands
            if (found := self._ops.get(key)) is None:
                found = self._ops[key] = self.body(body, operands).results
            return found
        flow = control_flow(eqn)
        if flow is None:
            return (of_result(eqn, operands, self.created),) * len(eqn.outvars)
        bodies = self._bodies(eqn, operands)
        match flow:
            case Call():
                return bodies[0].results
            case Scan() as loop:
                _, carry, _ = loop.split(bodies[0].inputs)
                return (*carry, *bodies[0].results[len(carry) :])
            case While() as loop:
                return bodies[1].inputs[loop.body_consts :]
            case Cond():
                return tuple(join(row) for row in zip(*(b.results for b in bodies), strict=True))

    def _settle(
        self,
        jaxpr: Jaxpr,
        consts: Sequence[Residency],
        carry: list[Residency],
        xs: Sequence[Residency],
        created: Residency,
    ) -> ResidencyMap:
        """Returns the residencies of the body of a loop; all iterations agree on the carry's."""
        while True:
            body = self.body(jaxpr, (*consts, *carry, *xs), created)
            joined = [max(a, b) for a, b in zip(carry, body.results[: len(carry)], strict=True)]
            if joined == carry:
                return body
            carry = joined
