"""Replacing plain calls by their bodies, so that what stands at a call's boundary can be seen from outside."""

from __future__ import annotations

from collections.abc import Callable

from jaxmesh.jaxprs import (
    CALLS,
    INLINE,
    Atom,
    DropVar,
    Eqn,
    Jaxpr,
    Var,
    close,
    fresh_var,
    open_jaxpr,
    rebuild,
    substitute,
)


def inline_calls(jaxpr: Jaxpr, wanted: Callable[[Jaxpr], bool] = lambda _: True) -> Jaxpr:
    """The closed jaxpr with every plain call, or those whose body is `wanted`, replaced by its body."""
    constvars, consts = list(open_jaxpr(jaxpr).constvars), list(jaxpr.consts)
    eqns: list[Eqn] = []

    def walk(body: Jaxpr, swap: dict[Var, Atom]) -> list[Atom]:
        for eqn in body.eqns:
            name = eqn.primitive.name
            if name not in INLINE or not wanted(eqn.params[CALLS[name]]):
                outvars = [v if isinstance(v, DropVar) else swap.setdefault(v, fresh_var(v.aval)) for v in eqn.outvars]
                eqns.append(eqn.replace(invars=substitute(eqn.invars, swap), outvars=outvars))
                continue
            inner = eqn.params[CALLS[name]]
            inner_swap = dict(zip(inner.invars, substitute(eqn.invars, swap), strict=True))
            for var, const in zip(open_jaxpr(inner).constvars, getattr(inner, "consts", ()), strict=True):
                inner_swap[var] = fresh_var(var.aval)
                constvars.append(inner_swap[var])
                consts.append(const)
            swap.update(zip(eqn.outvars, walk(inner, inner_swap), strict=True))
        return substitute(body.outvars, swap)

    outvars = walk(open_jaxpr(jaxpr), {})
    return close(rebuild(jaxpr, constvars, open_jaxpr(jaxpr).invars, eqns, outvars), consts)
