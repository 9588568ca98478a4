"""The accessor of calls, loops and branches: no other module reads how JAX stores their bodies and operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxmesh.jaxprs.compat import Aval, Eqn, Jaxpr
from jaxmesh.jaxprs.untyped import Params

T = TypeVar("T")

IMPORTED_OP = "imported_op"
"""The call of the meaning of an op that was imported from a text."""

CALLS: Mapping[str, str] = {
    "jit": "jaxpr", "closed_call": "call_jaxpr", "call": "call_jaxpr", "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "remat2": "jaxpr", "shard_map": "jaxpr",
    IMPORTED_OP: "jaxpr",
}  # fmt: skip
"""Primitives that call one jaxpr once, operands in order, and the parameter that holds it."""

INLINE = frozenset({"jit", "closed_call", "call", "eval_jaxpr", IMPORTED_OP})
"""Calls whose meaning is their body's."""

REMAT = frozenset({"remat2"})
"""The call of `jax.checkpoint`."""

CUSTOM = frozenset({"custom_jvp_call", "custom_vjp_call"})
"""Calls of functions with derivative rules of their own."""

LOOPS = frozenset({"scan", "while", "cond"})
"""The primitives of loops and branches."""


def is_imported_op(eqn: Eqn) -> bool:
    """Returns True if an equation is one op of a text that was imported."""
    return eqn.primitive.name == IMPORTED_OP


@dataclass(frozen=True, slots=True)
class Call:
    """A call: one body, run once, whose inputs are the operands and whose outputs are the results.

    Attributes:
      body: the jaxpr that is called.
      param: the parameter of the equation that holds it.
      kind: the name of the call, the same in all versions of JAX: `jit`, `remat`, `custom_jvp_call`, ...
    """

    body: Jaxpr
    param: str
    kind: str

    @property
    def bodies(self) -> tuple[Jaxpr, ...]:
        """The body alone."""
        return (self.body,)

    def with_bodies(self, eqn: Eqn, bodies: Sequence[Jaxpr]) -> Eqn:
        """Returns the equation with another body."""
        return eqn.replace(params={**eqn.params, self.param: bodies[0]})


@dataclass(frozen=True, slots=True)
class Scan:
    """`scan`: operands are (constants, carry, stacked inputs), results are (carry, stacked outputs)."""

    body: Jaxpr
    num_consts: int
    num_carry: int
    length: int
    reverse: bool

    @property
    def bodies(self) -> tuple[Jaxpr, ...]:
        """The body alone."""
        return (self.body,)

    def split(self, operands: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
        """Returns constants, carry, stacked inputs; the body takes them in order, one slice of each stacked input."""
        start = self.num_consts + self.num_carry
        return list(operands[: self.num_consts]), list(operands[self.num_consts : start]), list(operands[start:])

    def split_results(self, results: Sequence[T]) -> tuple[list[T], list[T]]:
        """Returns carry and stacked outputs, of the body's results or of the equation's results."""
        return list(results[: self.num_carry]), list(results[self.num_carry :])

    def with_bodies(self, eqn: Eqn, bodies: Sequence[Jaxpr]) -> Eqn:
        """Returns the equation with another body."""
        return eqn.replace(params={**eqn.params, "jaxpr": bodies[0]})


@dataclass(frozen=True, slots=True)
class While:
    """`while`: operands are (the condition's constants, the body's constants, carry), results are the carry."""

    cond: Jaxpr
    body: Jaxpr
    cond_consts: int
    body_consts: int

    @property
    def bodies(self) -> tuple[Jaxpr, ...]:
        """The condition and the body."""
        return (self.cond, self.body)

    def split(self, operands: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
        """Returns the condition's constants, the body's, the carry; each jaxpr takes its constants, then the carry."""
        start = self.cond_consts + self.body_consts
        return list(operands[: self.cond_consts]), list(operands[self.cond_consts : start]), list(operands[start:])

    def predicate(self, eqn: Eqn) -> Aval:
        """Returns the type of the condition."""
        return self.cond.out_avals[0]

    @property
    def is_batched(self) -> bool:
        """True if the condition has dims, which a batch of loops has: each element goes on as long as its own holds."""
        return bool(self.cond.out_avals[0].shape)

    def with_bodies(self, eqn: Eqn, bodies: Sequence[Jaxpr]) -> Eqn:
        """Returns the equation with another condition and another body."""
        return eqn.replace(params={**eqn.params, "cond_jaxpr": bodies[0], "body_jaxpr": bodies[1]})


@dataclass(frozen=True, slots=True)
class Cond:
    """`cond`: operands are (index of the branch, inputs), each branch takes the inputs and gives the results."""

    branches: tuple[Jaxpr, ...]

    @property
    def bodies(self) -> tuple[Jaxpr, ...]:
        """The branches."""
        return self.branches

    def split(self, operands: Sequence[T]) -> tuple[T, list[T]]:
        """Returns the index of the branch, and the inputs of the branches."""
        return operands[0], list(operands[1:])

    def clamp(self, index: Any) -> int:
        """Returns the number of the branch that runs; an index out of range means the first or the last branch."""
        return min(max(int(index), 0), len(self.branches) - 1)

    def predicate(self, eqn: Eqn) -> Aval:
        """Returns the type of the index."""
        return eqn.invars[0].aval

    def with_bodies(self, eqn: Eqn, bodies: Sequence[Jaxpr]) -> Eqn:
        """Returns the equation with other branches."""
        return eqn.replace(params={**eqn.params, "branches": tuple(bodies)})


def control_flow(eqn: Eqn) -> Call | Scan | While | Cond | None:
    """Returns an equation's bodies and the roles of its operands; None if it is not a call, loop or branch.

    >>> import jax
    >>> (eqn,) = jax.make_jaxpr(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y + 1, x))(1).eqns
    >>> flow = control_flow(eqn)
    >>> type(flow).__name__, flow.num_carry
    ('Scan', 2)
    """
    name: str = eqn.primitive.name
    params = eqn.params
    if name in CALLS:
        return Call(params[CALLS[name]], CALLS[name], "remat" if name in REMAT else name)
    if name not in LOOPS:
        return None
    match name:
        case "scan":
            return Scan(params["jaxpr"], *_scan_arity(params), int(params["length"]), bool(params["reverse"]))
        case "while":
            return While(params["cond_jaxpr"], params["body_jaxpr"], params["cond_nconsts"], params["body_nconsts"])
        case "cond":
            return Cond(tuple(params["branches"]))
        case _:
            return None


def _scan_arity(params: Params) -> tuple[int, int]:
    """Returns the numbers of constants and carries of a `scan` equation; JAX 0.12 stores them in `ft_in`."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(list(consts)), len(list(carry))
