"""Inlines plain calls, so that transfers at a call's boundary are visible outside of it."""

from __future__ import annotations

from collections.abc import Callable, Set as AbstractSet

from jaxmesh.jaxprs import remarks
from jaxmesh.jaxprs.compat import Atom, DropVar, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.control_flow import CALLS, INLINE, is_imported_op
from jaxmesh.jaxprs.rewrite import with_operands
from jaxmesh.jaxprs.walk import Memo, close, constants, fresh_var, open_jaxpr, rebuild, substitute


def inline_calls(
    jaxpr: Jaxpr, wanted: Callable[[Jaxpr], bool] = lambda _: True, names: AbstractSet[str] = INLINE
) -> Jaxpr:
    """Replaces, in a closed jaxpr, every plain call of these names whose body is `wanted` by its body.

    Equations outside of calls keep their variables. Returns the same object if there is nothing to inline. The body of
    an imported operation takes the source location of the operation.
    """
    memo = Memo[bool]()

    def opens(eqn: Eqn) -> bool:
        if (name := eqn.primitive.name) not in names:
            return False
        inner = eqn.params[CALLS[name]]
        return memo.get(inner, lambda: wanted(inner))

    if not any(map(opens, jaxpr.eqns)):
        return jaxpr
    outside = open_jaxpr(jaxpr)
    constvars, consts = list(open_jaxpr(jaxpr).constvars), list(jaxpr.consts)
    eqns: list[Eqn] = []
    log = remarks.active()

    def walk(body: Jaxpr, swap: dict[Var, Atom], place: Eqn | None = None) -> list[Atom]:
        for eqn in body.eqns:
            if not opens(eqn):
                if body is outside:
                    eqns.append(with_operands(eqn, swap))
                    continue
                outvars = [v if isinstance(v, DropVar) else swap.setdefault(v, fresh_var(v.aval)) for v in eqn.outvars]
                where = eqn.source_info if place is None else place.source_info
                eqns.append(eqn.replace(invars=substitute(eqn.invars, swap), outvars=outvars, source_info=where))
                if log is not None:
                    for new, old in zip(outvars, eqn.outvars, strict=True):
                        if new is not old:
                            log.rename(new, old)
                continue
            inner = eqn.params[CALLS[eqn.primitive.name]]
            inner_swap = dict(zip(inner.invars, substitute(eqn.invars, swap), strict=True))
            for var, const in constants(inner).items():
                inner_swap[var] = fresh_var(var.aval)
                constvars.append(inner_swap[var])
                consts.append(const)
            at = eqn if is_imported_op(eqn) else place
            swap.update(zip(eqn.outvars, walk(inner, inner_swap, at), strict=True))
        return substitute(body.outvars, swap)

    outvars = walk(outside, {})
    return close(rebuild(jaxpr, constvars, outside.invars, eqns, outvars), consts)
