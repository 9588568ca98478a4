"""Evaluating jaxprs equation by equation, at the source locations of the equations."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import source_info_util

from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Literal, Var
from jaxmesh.jaxprs.walk import open_jaxpr


@contextlib.contextmanager
def at_source_of(eqn: Eqn) -> Generator[None]:
    """Runs the body at the source location and in the tracing context of an equation, on the mesh of here and now."""
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    location = source_info_util.user_context(eqn.source_info.traceback, name_stack=stack)
    mesh = jax.sharding.get_abstract_mesh()
    with location, eqn.ctx.manager, jax.sharding.use_abstract_mesh(mesh):
        yield


def bind(eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    """Binds an equation's primitive to operands; always a list of results."""
    out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def read(env: Mapping[Var, Any], atom: Atom) -> Any:
    """The value of an operand."""
    return untyped(atom.val) if isinstance(atom, Literal) else env[atom]


def untyped(value: Any) -> Any:
    """A constant without the type it remembers: JAX's typed NumPy arrays keep the mesh they were first seen under."""
    array: Any = value
    return array.view() if isinstance(value, np.ndarray) and type(array) is not np.ndarray else array


def eval_eqns(eqns: Iterable[Eqn], env: dict[Var, Any]) -> None:
    """Evaluates equations in order, reading and writing `env`."""
    for eqn in eqns:
        with at_source_of(eqn):
            results = bind(eqn, [read(env, a) for a in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))


def eval_jaxpr(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    """Evaluates a closed jaxpr."""
    body = open_jaxpr(jaxpr)
    env: dict[Var, Any] = dict(zip(body.constvars, map(untyped, jaxpr.consts), strict=True))
    env.update(zip(body.invars, args, strict=True))
    eval_eqns(body.eqns, env)
    return [read(env, a) for a in body.outvars]


# A user's line is what a message or a program points to, not the line of this package that bound the primitive.
