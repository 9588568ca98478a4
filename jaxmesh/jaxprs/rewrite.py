"""Rewrites of every jaxpr in an equation, including those that its custom rules trace later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax

from jaxmesh.jaxprs import evaluate, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var


def map_sub_jaxprs(eqn: Eqn, change: Callable[[Jaxpr], Jaxpr]) -> Eqn:
    """Applies `change` to every jaxpr in an equation, including those that its custom rules trace later."""
    if not walk.sub_jaxprs(eqn):
        return eqn
    params = {name: _change(value, change) for name, value in eqn.params.items()}
    if eqn.primitive.name == "custom_jvp_call":
        params["jvp_jaxpr_fun"] = _change_thunk(params["jvp_jaxpr_fun"], change)
    if eqn.primitive.name == "custom_vjp_call":
        params["fwd_jaxpr_thunk"] = _change_thunk(params["fwd_jaxpr_thunk"], change)
        params["bwd"] = _change_function(params["bwd"], change)
    return eqn if all(params[k] is eqn.params[k] for k in params) else eqn.replace(params=params)


def with_operands(eqn: Eqn, swap: Mapping[Var, Atom]) -> Eqn:
    """Replaces the variables in `swap` among an equation's operands; returns the same object if it reads none."""
    for atom in eqn.invars:
        if isinstance(atom, Var) and atom in swap:
            return eqn.replace(invars=walk.substitute(eqn.invars, swap))
    return eqn


def _change(value: Any, change: Callable[[Jaxpr], Jaxpr]) -> Any:
    if walk.is_jaxpr(value):
        return change(value)
    if not walk.jaxprs_in((value,)):
        return value
    # A tuple, a list or a named tuple that holds jaxprs.
    items = [_change(v, change) for v in value]
    if all(a is b for a, b in zip(items, value, strict=True)):
        return value
    api: Any = jax.tree

    def is_item(x: Any) -> bool:
        return x is not value

    return api.unflatten(api.structure(value, is_leaf=is_item), items)


def _change_thunk(thunk: Any, change: Callable[[Jaxpr], Jaxpr]) -> Any:
    """Wraps a thunk whose first result is an open jaxpr, which a custom rule traces on demand."""

    def changed(*args: Any) -> Any:
        jaxpr, *rest = thunk.call_wrapped(*args)
        return (change(jaxpr), *rest)

    return walk.wrap_rule(changed, thunk)


def _change_function(fun: Any, change: Callable[[Jaxpr], Jaxpr]) -> Any:
    """Wraps a Python function, the backward rule of a custom_vjp: its operations are traced, changed and evaluated."""

    def changed(*args: Any) -> Any:
        others, form = list[Any](), list[Any]()

        def run() -> list[Any]:
            out = fun.call_wrapped(*args)
            leaves, tree = cast("tuple[list[Any], Any]", jax.tree.flatten(out, is_leaf=walk.is_zero))
            is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
            others[:] = [None if a else leaf for a, leaf in zip(is_array, leaves, strict=True)]
            form[:] = [is_array, tree]
            return [leaf for a, leaf in zip(is_array, leaves, strict=True) if a]

        arrays = iter(evaluate.eval_jaxpr(change(jax.make_jaxpr(run)())))
        leaves = [next(arrays) if a else other for a, other in zip(form[0], others, strict=True)]
        return jax.tree.unflatten(form[1], leaves)

    return walk.wrap_rule(changed, fun)
