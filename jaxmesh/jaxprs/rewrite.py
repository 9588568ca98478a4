"""Rewrites of jaxprs at every depth: of the bodies in equations, of plain calls, of the arrays among the constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set as AbstractSet
from typing import Any, cast

import jax
import numpy as np
from jax._src import linear_util as lu
from jax.interpreters import ad

from jaxmesh.jaxprs import evaluate, remarks, walk
from jaxmesh.jaxprs.compat import Atom, DropVar, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.control_flow import CALLS, INLINE, is_imported_op
from jaxmesh.jaxprs.typed import typed

_lu: Any = lu


def map_sub_jaxprs(eqn: Eqn, change: Callable[[Jaxpr], Jaxpr]) -> Eqn:
    """Applies `change` to every jaxpr in an equation, including the jaxprs that its custom rules trace later."""
    if not walk.sub_jaxprs(eqn):
        return eqn
    params = {name: _change(value, change) for name, value in eqn.params.items()}
    if eqn.primitive.name == "custom_jvp_call":
        params["jvp_jaxpr_fun"] = _change_thunk(params["jvp_jaxpr_fun"], change)
    if eqn.primitive.name == "custom_vjp_call":
        params["fwd_jaxpr_thunk"] = _change_thunk(params["fwd_jaxpr_thunk"], change)
        params["bwd"] = _change_function(params["bwd"], change)
    return eqn if all(params[k] is eqn.params[k] for k in params) else eqn.replace(params=params)


def at_every_depth(change: Callable[[Jaxpr, Callable[[Jaxpr], Jaxpr]], Jaxpr]) -> Callable[[Jaxpr], Jaxpr]:
    """Returns a function that changes each jaxpr once; `change` gets a jaxpr, and this function for those inside."""
    memo = walk.Memo[Jaxpr]()

    def once(jaxpr: Jaxpr) -> Jaxpr:
        return memo.get(jaxpr, lambda: change(jaxpr, once))

    return once


def with_operands(eqn: Eqn, swap: Mapping[Var, Atom]) -> Eqn:
    """Replaces the variables in `swap` among an equation's operands; returns the same object if it reads none."""
    for atom in eqn.invars:
        if isinstance(atom, Var) and atom in swap:
            return eqn.replace(invars=walk.substitute(eqn.invars, swap))
    return eqn


def _change(value: Any, change: Callable[[Jaxpr], Jaxpr]) -> object:
    if walk.is_jaxpr(value):
        return change(value)
    if not walk.jaxprs_in((value,)):
        return value
    # A tuple, a list or a named tuple that holds jaxprs.
    items = [_change(v, change) for v in value]
    if all(a is b for a, b in zip(items, value, strict=True)):
        return value
    api = jax.tree

    def is_item(x: object) -> bool:
        return x is not value

    return api.unflatten(api.structure(value, is_leaf=is_item), items)


def _change_thunk(thunk: Any, change: Callable[[Jaxpr], Jaxpr]) -> object:
    """Wraps a thunk whose first result is an open jaxpr, which a custom rule traces on demand."""

    def changed(*args: Any) -> Any:
        jaxpr, *rest = thunk.call_wrapped(*args)
        return (change(jaxpr), *rest)

    return _lu.wrap_init(changed, debug_info=thunk.debug_info)


def _change_function(fun: Any, change: Callable[[Jaxpr], Jaxpr]) -> object:
    """Wraps a Python function, the backward rule of a custom_vjp: its operations are traced, changed and evaluated."""

    def changed(*args: Any) -> Any:
        others, form = list[object](), list[Any]()

        def run() -> list[Any]:
            out = fun.call_wrapped(*args)
            leaves, tree = cast("tuple[list[Any], Any]", jax.tree.flatten(out, is_leaf=lambda x: type(x) is ad.Zero))
            is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
            others[:] = [None if a else leaf for a, leaf in zip(is_array, leaves, strict=True)]
            form[:] = [is_array, tree]
            return [leaf for a, leaf in zip(is_array, leaves, strict=True) if a]

        arrays = iter(evaluate.eval_jaxpr(change(typed.make_jaxpr(run)())))
        leaves = [next(arrays) if a else other for a, other in zip(form[0], others, strict=True)]
        return jax.tree.unflatten(form[1], leaves)

    return _lu.wrap_init(changed, debug_info=fun.debug_info)


# --- calls -----------------------------------------------------------------------------------------------------------


def inline_calls(
    jaxpr: Jaxpr, wanted: Callable[[Jaxpr], bool] = lambda _: True, names: AbstractSet[str] = INLINE
) -> Jaxpr:
    """Replaces, in a closed jaxpr, every plain call of these names whose body is `wanted` by its body.

    Equations outside of calls keep their variables. Returns the same object if there is nothing to inline. The body of
    an imported operation takes the source location of the operation.
    """
    memo = walk.Memo[bool]()

    def opens(eqn: Eqn) -> bool:
        if (name := eqn.primitive.name) not in names:
            return False
        inner = eqn.params[CALLS[name]]
        return memo.get(inner, lambda: wanted(inner))

    if not any(map(opens, jaxpr.eqns)):
        return jaxpr
    outside = walk.open_jaxpr(jaxpr)
    constvars, consts = list(walk.open_jaxpr(jaxpr).constvars), list(jaxpr.consts)
    eqns: list[Eqn] = []
    log = remarks.COLLECTED.get()

    def expand(body: Jaxpr, swap: dict[Var, Atom], place: Eqn | None = None) -> list[Atom]:
        for eqn in body.eqns:
            if not opens(eqn):
                if body is outside:
                    eqns.append(with_operands(eqn, swap))
                    continue
                outvars = [
                    v if isinstance(v, DropVar) else swap.setdefault(v, walk.fresh_var(v.aval)) for v in eqn.outvars
                ]
                where = eqn.source_info if place is None else place.source_info
                eqns.append(eqn.replace(invars=walk.substitute(eqn.invars, swap), outvars=outvars, source_info=where))
                if log is not None:
                    for new, old in zip(outvars, eqn.outvars, strict=True):
                        if new is not old:
                            log.rename(new, old)
                continue
            inner = eqn.params[CALLS[eqn.primitive.name]]
            inner_swap = dict(zip(inner.invars, walk.substitute(eqn.invars, swap), strict=True))
            for var, const in walk.constants(inner).items():
                inner_swap[var] = walk.fresh_var(var.aval)
                constvars.append(inner_swap[var])
                consts.append(const)
            at = eqn if is_imported_op(eqn) else place
            swap.update(zip(eqn.outvars, expand(inner, inner_swap, at), strict=True))
        return walk.substitute(body.outvars, swap)

    outvars = expand(outside, {})
    return walk.close(walk.rebuild(jaxpr, constvars, outside.invars, eqns, outvars), consts)


# --- constants -------------------------------------------------------------------------------------------------------


def copy_constants(jaxpr: Jaxpr) -> Jaxpr:
    """Copies the NumPy arrays among a jaxpr's constants, at any depth.

    JAX reads such an array when it compiles, so a jaxpr that is kept would show a later write. Equal arrays share a
    copy.
    """
    copies: dict[tuple[int, Any], Any] = {}
    contents = walk.Contents()
    holding, copied = walk.Memo[bool](), walk.Memo[Jaxpr]()

    def own(value: Any, dtype: Any) -> Any:
        array: Any = value
        if not isinstance(array, np.ndarray):
            return value
        first = contents.first(evaluate.strip_type(value))
        key = id(first), dtype
        if key not in copies:
            copies[key] = first.astype(dtype)
        return copies[key]

    def holds(j: Jaxpr) -> bool:
        """Returns True if a constant is a NumPy array, at any depth."""

        def search() -> bool:
            inside = any(holds(i) for e in j.eqns for i in walk.sub_jaxprs(e))
            return inside or any(isinstance(c, np.ndarray) for c in walk.constants(j).values())

        return holding.get(j, search)

    def change(j: Jaxpr) -> Jaxpr:
        return copied.get(j, lambda: with_own(j) if holds(j) else j)

    def with_own(j: Jaxpr) -> Jaxpr:
        body = walk.open_jaxpr(j)
        eqns = [map_sub_jaxprs(e, change) if any(map(holds, walk.sub_jaxprs(e))) else e for e in body.eqns]
        new = walk.with_eqns(j, eqns, body.outvars)
        consts = [own(c, v.aval.dtype) for v, c in walk.constants(j).items()]
        return walk.close(walk.open_jaxpr(new), consts) if consts else new

    return change(jaxpr)
