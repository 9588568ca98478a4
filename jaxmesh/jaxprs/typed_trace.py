"""Traces functions to jaxprs with varying-axes types; equations that are traced already join them as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, PartitionSpec

from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import (
    Atom,
    Eqn,
    Jaxpr,
    Literal,
    Var,
    retype,
    shard_map,
    unlowered_primitive,
    without_varying_types,
)
from jaxmesh.jaxprs.emit import emit_eqn
from jaxmesh.jaxprs.evaluate import read
from jaxmesh.jaxprs.strip_mesh import Mover
from jaxmesh.jaxprs.walk import close, open_jaxpr, rebuild, substitute

_presharded_p = unlowered_primitive("jaxmesh_presharded")
_result_p = unlowered_primitive("jaxmesh_result")


@_presharded_p.def_abstract_eval
@_result_p.def_abstract_eval
def _mark(x: Any, *, axes: Sequence[str] = ()) -> Any:
    return retype(x, x.shape, axes)


_splice_p: Any = unlowered_primitive("jaxmesh_splice")
_splice_p.multiple_results = True


def splice(body: Jaxpr, operands: Sequence[Any]) -> list[Any] | None:
    """Adds the equations of an open jaxpr to a typed trace, without a call of JAX for each of them.

    They stand for one equation until `expand` writes them out. So the trace must not be transformed before that.

    Args:
      body: its types are those that JAX would infer for the operands, but for the mesh.
      operands: arrays and tracers.

    Returns:
      The results; None if nothing is being traced.
    """
    mover = Mover(jax.sharding.get_abstract_mesh())
    inputs = dict(zip(body.invars, operands, strict=True))
    made = [v for v in dict.fromkeys(a for a in body.outvars if isinstance(a, Var)) if v not in inputs]
    params = {"body": body, "made": made, "mover": mover}
    values = emit_eqn(_splice_p, operands, [mover.type(v.aval) for v in made], params, body.effects)
    if values is None:
        return None
    env = inputs | dict(zip(made, values, strict=True))
    return [read(env, a) for a in body.outvars]


def expand(jaxpr: Jaxpr) -> Jaxpr:
    """Writes out, in a closed jaxpr, the equations that `splice` has added."""
    if not any(e.primitive is _splice_p for e in jaxpr.eqns):
        return jaxpr
    return walk.with_eqns(jaxpr, _expanded(jaxpr.eqns), walk.open_jaxpr(jaxpr).outvars)


def _expanded(eqns: Iterable[Eqn]) -> list[Eqn]:
    written: list[Eqn] = []
    for eqn in eqns:
        if eqn.primitive is _splice_p:
            body, made, mover = (eqn.params[name] for name in ("body", "made", "mover"))
            swap = dict(zip((*body.invars, *made), (*eqn.invars, *eqn.outvars), strict=True))
            written += mover.eqns(body.eqns, swap, eqn.source_info.name_stack)
        else:
            written.append(eqn)
    return written


def trace_typed(
    fun: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    varying: Sequence[Sequence[str]],
    mesh: AbstractMesh,
    check_vma: bool = True,
) -> Jaxpr:
    """Traces `fun` (flat arguments, flat results) with JAX's varying-axes types, all axes of `mesh` manual.

    With `check_vma=False`, no value is typed as varying.

    `shard_map` requires specs, which are not known yet. Two marker primitives make every boundary value full; they are
    removed from the jaxpr afterwards.
    """

    def body(*args: Any) -> list[Any]:
        typed = [_presharded_p.bind(x, axes=tuple(v)) if v else x for x, v in zip(args, varying, strict=True)]
        return [_result_p.bind(y) for y in fun(*typed)]

    # Full values are unsharded here, also those typed over a mesh with Explicit axes.
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    specs = tuple(PartitionSpec() for _ in avals)
    mapped = shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=check_vma)
    with contextlib.nullcontext() if check_vma else without_varying_types():
        return _peel(jax.make_jaxpr(mapped)(*avals))


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
