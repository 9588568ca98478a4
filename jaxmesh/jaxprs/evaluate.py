"""Traces functions to jaxprs with varying-axes types, and interprets jaxprs equation by equation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import source_info_util
from jax.sharding import AbstractMesh, PartitionSpec

from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Literal, Var, retype, shard_map, unlowered_primitive, without_mesh
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.jaxprs.user_frames import nearest
from jaxmesh.jaxprs.walk import close, constants, open_jaxpr, rebuild, substitute, with_eqns

T = TypeVar("T")


@contextlib.contextmanager
def at_source_of(eqn: Eqn) -> Generator[None]:
    """Runs its body at the source location and in the tracing context of an equation.

    The mesh is the current one, unless both are of full values: then axes may be Auto for some equations and Explicit
    for others, as in the functions of `jax.sharding.auto_axes`.
    """
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    location = source_info_util.user_context(nearest(eqn.source_info.traceback), name_stack=stack)
    mesh, own = jax.sharding.get_abstract_mesh(), eqn.ctx.cur_abstract_mesh
    if not own.empty and not own.manual_axes and not mesh.manual_axes:
        mesh = own
    with location, eqn.ctx.manager, jax.sharding.use_abstract_mesh(mesh):
        yield


def bind(eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    """Binds an equation's primitive to operands; returns a list of results, also for a single one."""
    out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def bind_at_source(eqn: Eqn, operands: Sequence[jax.Array]) -> list[Any]:
    """Binds an equation's primitive to operands, at its source location."""
    with at_source_of(eqn):
        return bind(eqn, operands)


def read(env: Mapping[Var, Any], atom: Atom) -> Any:
    """Returns the value of an operand."""
    return literal_value(atom) if isinstance(atom, Literal) else env[atom]


def strip_type(value: Array | jax.Array) -> Any:
    """Returns a constant without the type that JAX's typed NumPy arrays remember, which names the mesh of its trace."""
    array = value
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


def literal_value(literal: Literal) -> Any:
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
        results = rule(eqn, operands)
        if len(eqn.outvars) == len(results) == 1:
            env[eqn.outvars[0]] = results[0]
        else:
            env.update(zip(eqn.outvars, results, strict=True))
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


# --- tracing ---------------------------------------------------------------------------------------------------------

_presharded_p = unlowered_primitive("jaxmesh_presharded")
_result_p = unlowered_primitive("jaxmesh_result")


@_presharded_p.def_abstract_eval
@_result_p.def_abstract_eval
def _mark(x: jax.Array, *, axes: Sequence[str] = ()) -> Any:
    return retype(x, x.shape, axes)


splice_p: Any = unlowered_primitive("jaxmesh_splice")
splice_p.multiple_results = True


@splice_p.def_effectful_abstract_eval
def _splice_types(*_: object, body: Jaxpr, made: Sequence[Var], mover: Any) -> tuple[list[object], object]:
    return [mover.type(v.aval) for v in made], body.effects


"""Equations that join a trace as they are; see `jaxmesh.jaxprs.strip_mesh`."""


def expand(jaxpr: Jaxpr) -> Jaxpr:
    """Writes out, in a closed jaxpr, the equations that `splice` has added."""
    return with_eqns(jaxpr, _expanded(jaxpr.eqns), open_jaxpr(jaxpr).outvars)


def _expanded(eqns: Iterable[Eqn]) -> list[Eqn]:
    written: list[Eqn] = []
    for eqn in eqns:
        if eqn.primitive is splice_p:
            body, made, mover = (eqn.params[name] for name in ("body", "made", "mover"))
            swap = dict(zip((*body.invars, *made), (*eqn.invars, *eqn.outvars), strict=True))
            written += mover.eqns(body.eqns, swap, eqn.source_info)
        else:
            written.append(eqn)
    return written


def trace_typed(
    fun: Callable[..., Sequence[object]],
    avals: Sequence[compat.Aval],
    varying: Sequence[Sequence[str]],
    mesh: AbstractMesh,
) -> Jaxpr:
    """Traces `fun` (flat arguments, flat results) with JAX's varying-axes types, all axes of `mesh` manual.

    `shard_map` requires specs, which are not known yet. Two marker primitives make every boundary value full; they are
    removed from the jaxpr afterwards.
    """

    def body(*args: object) -> list[Any]:
        typed = [_presharded_p.bind(x, axes=tuple(v)) if v else x for x, v in zip(args, varying, strict=True)]
        return [_result_p.bind(y) for y in fun(*typed)]

    # Full values are unsharded here, also those typed over a mesh with Explicit axes.
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    specs = tuple(PartitionSpec() for _ in avals)
    mapped = shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())
    # The mesh of `jax.set_mesh` may be another one than the program's.
    with without_mesh():
        return _peel(typed.make_jaxpr(mapped)(*avals))


def _peel(outer: Jaxpr) -> Jaxpr:
    (call,) = [e for e in outer.eqns if e.primitive.name == "shard_map"]
    inner = call.params["jaxpr"]
    captured = dict(zip(open_jaxpr(outer).constvars, outer.consts, strict=True))
    arguments = set(open_jaxpr(outer).invars)
    consts: dict[Var, Any] = {}
    swap: dict[Var, Atom] = {}
    invars: dict[Var, Var] = {}
    for var, source in zip(inner.invars, call.invars, strict=True):
        if isinstance(source, Literal):
            swap[var] = source
        elif source in arguments:
            invars[var] = var
        else:
            consts[var] = captured[source]
    eqns: list[Eqn] = []
    results: dict[Var, Atom] = {}
    for eqn in _expanded(inner.eqns):
        if eqn.primitive is _presharded_p and eqn.invars[0] in invars:
            invars[eqn.invars[0]] = eqn.outvars[0]
        elif eqn.primitive is _result_p:
            (operand,) = substitute(eqn.invars, swap)
            results[eqn.outvars[0]] = operand
        else:
            eqns.append(eqn.replace(invars=substitute(eqn.invars, swap)) if swap else eqn)
    outvars = [results.get(v, v) if isinstance(v, Var) else v for v in inner.outvars]
    return close(rebuild(inner, list(consts), list(invars.values()), eqns, outvars), list(consts.values()))
