"""Taking the mesh out of a program's types, for the full-shape work that runs outside every mapped region.

A traced jaxpr's types and contexts say that all mesh axes are manual. Outside a mapped region that is not so; plain
equations do not mind, because binding them again types them again, but loops, branches and calls bring their bodies.
"""

from __future__ import annotations

from typing import Any

from jax.core import ShapedArray
from jax.sharding import NamedSharding

from jaxmesh import jaxprs
from jaxmesh.jaxprs import Atom, Eqn, Jaxpr, Var


def plain_eqn(eqn: Eqn) -> Eqn:
    """The equation with the mesh taken out of its parameters and of every body it holds."""
    if any(_of_mesh(v) for v in eqn.params.values()):
        eqn = eqn.replace(params={k: None if _of_mesh(v) else v for k, v in eqn.params.items()})
    if not any(True for _ in jaxprs.sub_jaxprs(eqn)):
        return eqn
    return jaxprs.map_sub_jaxprs(eqn, _plain)


def _of_mesh(value: Any) -> bool:
    """A sharding over the manual mesh; a full value has nothing to say there."""
    return isinstance(value, NamedSharding) and bool(value.mesh.abstract_mesh.manual_axes)


def _plain(jaxpr: Jaxpr) -> Jaxpr:
    context = jaxprs.current_context()
    body = jaxprs.open_jaxpr(jaxpr)
    swap: dict[Var, Var] = {}

    def var(old: Any) -> Any:
        if isinstance(old, jaxprs.DropVar):
            return old
        if old not in swap:
            swap[old] = jaxprs.fresh_var(_plain_type(old.aval))
        return swap[old]

    def atom(old: Any) -> Atom:
        if isinstance(old, jaxprs.Literal):
            return jaxprs.Literal(jaxprs.untyped(old.val), _plain_type(old.aval))
        return var(old)

    constvars, invars = [var(v) for v in body.constvars], [var(v) for v in body.invars]
    eqns = [
        plain_eqn(e).replace(invars=[atom(a) for a in e.invars], outvars=[var(v) for v in e.outvars], ctx=context)
        for e in body.eqns
    ]
    new = jaxprs.rebuild(body, constvars, invars, eqns, [atom(a) for a in body.outvars])
    consts = getattr(jaxpr, "consts", ())
    return jaxprs.close(new, [jaxprs.untyped(c) for c in consts]) if len(consts) else jaxprs.close_like(jaxpr, new)


def _plain_type(aval: Any) -> Any:
    if not isinstance(aval, ShapedArray):
        return aval
    plain: Any = ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)
    return plain
