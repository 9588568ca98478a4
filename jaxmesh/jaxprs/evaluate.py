"""Interprets jaxprs, equation by equation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.extend import source_info_util

from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Literal, Var
from jaxmesh.jaxprs.walk import constants, open_jaxpr

T = TypeVar("T")


@contextlib.contextmanager
def at_source_of(eqn: Eqn) -> Generator[None]:
    """Runs its body at the source location and in the tracing context of an equation.

    The mesh is the current one, unless both are of full values: then axes may be Auto for some equations and Explicit
    for others, as in the functions of `jax.sharding.auto_axes`.
    """
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    location = source_info_util.user_context(eqn.source_info.traceback, name_stack=stack)
    mesh, own = jax.sharding.get_abstract_mesh(), eqn.ctx.cur_abstract_mesh
    if not own.empty and not own.manual_axes and not mesh.manual_axes:
        mesh = own
    with location, eqn.ctx.manager, jax.sharding.use_abstract_mesh(mesh):
        yield


def bind(eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    """Binds an equation's primitive to operands; returns a list of results, also for a single one."""
    out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def bind_at_source(eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    """Binds an equation's primitive to operands, at its source location."""
    with at_source_of(eqn):
        return bind(eqn, operands)


def read(env: Mapping[Var, Any], atom: Atom) -> Any:
    """Returns the value of an operand."""
    return literal_value(atom) if isinstance(atom, Literal) else env[atom]


def strip_type(value: Any) -> Any:
    """Returns a constant without the type that JAX's typed NumPy arrays remember, which names the mesh of its trace."""
    array: Any = value
    return array.view() if isinstance(value, np.ndarray) and type(array) is not np.ndarray else array


def eval_eqns(eqns: Iterable[Eqn], env: dict[Var, Any]) -> None:
    """Evaluates equations in order, reading and writing `env`."""
    for eqn in eqns:
        results = bind_at_source(eqn, [read(env, a) for a in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))


def eval_jaxpr(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    """Evaluates a closed jaxpr."""
    return interpret(jaxpr, args, bind_at_source)


# --- interpreters ----------------------------------------------------------------------------------------------------

Rule = Callable[[Eqn, list[T]], Sequence[T]]
"""The results of an equation for its operands."""


def literal_value(literal: Any) -> Any:
    """Returns the value of a literal."""
    return strip_type(literal.val)


def environment(
    jaxpr: Jaxpr,
    args: Sequence[T],
    rule: Rule[T],
    constant: Callable[[Any], T] = strip_type,
    literal: Callable[[Any], T] = literal_value,
    eqns: Iterable[Eqn] | None = None,
) -> dict[Var, T]:
    """Interprets a jaxpr, open or closed, as `interpret`; returns what stands for every variable."""
    opened = open_jaxpr(jaxpr)
    env: dict[Var, T] = {v: constant(c) for v, c in constants(jaxpr).items()}
    env.update(zip(opened.invars, args, strict=True))
    for eqn in opened.eqns if eqns is None else eqns:
        operands = [literal(a) if isinstance(a, Literal) else env[a] for a in eqn.invars]
        env.update(zip(eqn.outvars, rule(eqn, operands), strict=True))
    return env


def interpret(
    jaxpr: Jaxpr,
    args: Sequence[T],
    rule: Rule[T],
    constant: Callable[[Any], T] = strip_type,
    literal: Callable[[Any], T] = literal_value,
    eqns: Iterable[Eqn] | None = None,
) -> list[T]:
    """Interprets a jaxpr, open or closed, equation by equation; returns what stands for the outputs.

    `args` stand for the inputs: arrays, or whatever else the interpreter computes with. `constant` and `literal` give
    what stands for a constant and for a literal, by default their values. `eqns` are by default all equations.

    >>> jaxpr = jax.make_jaxpr(lambda x: (x + 1) * 2)(1.0)
    >>> interpret(jaxpr, ["x"], lambda eqn, xs: [f"{eqn.primitive.name}({', '.join(map(str, xs))})"])
    ['mul(add(x, 1.0), 2.0)']
    """
    env = environment(jaxpr, args, rule, constant, literal, eqns)
    return [literal(a) if isinstance(a, Literal) else env[a] for a in open_jaxpr(jaxpr).outvars]
