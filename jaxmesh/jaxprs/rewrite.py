"""Changing every jaxpr that an equation holds, those that its custom rules make later included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax

from jaxmesh.jaxprs import evaluate, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var


def map_sub_jaxprs(eqn: Eqn, change: Callable[[Jaxpr], Jaxpr]) -> Eqn:
    """The equation with `change` applied to every jaxpr it holds, those its custom rules make later included."""
    if not walk.sub_jaxprs(eqn):
        return eqn
    params = {name: _change(value, change) for name, value in eqn.params.items()}
    if eqn.primitive.name == "custom_jvp_call":
        params["jvp_jaxpr_fun"] = _changed_thunk(params["jvp_jaxpr_fun"], change)
    if eqn.primitive.name == "custom_vjp_call":
        params["fwd_jaxpr_thunk"] = _changed_thunk(params["fwd_jaxpr_thunk"], change)
        params["bwd"] = _changed_function(params["bwd"], change)
    return eqn if all(params[k] is eqn.params[k] for k in params) else eqn.replace(params=params)


def with_operands(eqn: Eqn, swap: Mapping[Var, Atom]) -> Eqn:
    """The equation with the variables in `swap` replaced; the same one if it reads none of them."""
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
    return jax.tree.unflatten(jax.tree.structure(value, is_leaf=lambda x: x is not value), items)


def _changed_thunk(thunk: Any, change: Callable[[Jaxpr], Jaxpr]) -> Any:
    """A thunk whose first result is an open jaxpr, made on demand by a custom rule."""

    def changed(*args: Any) -> Any:
        jaxpr, *rest = thunk.call_wrapped(*args)
        return (change(jaxpr), *rest)

    return walk.wrap_like(changed, thunk)


def _changed_function(fun: Any, change: Callable[[Jaxpr], Jaxpr]) -> Any:
    """A Python function (the backward rule of a custom_vjp) whose operations are traced, changed and evaluated."""

    def changed(*args: Any) -> Any:
        kept, where = list[Any](), list[Any]()

        def run() -> list[Any]:
            out = fun.call_wrapped(*args)
            leaves, tree = cast("tuple[list[Any], Any]", jax.tree.flatten(out, is_leaf=walk.is_zero))
            is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
            kept[:] = [None if a else leaf for a, leaf in zip(is_array, leaves, strict=True)]
            where[:] = [is_array, tree]
            return [leaf for a, leaf in zip(is_array, leaves, strict=True) if a]

        arrays = iter(evaluate.eval_jaxpr(change(jax.make_jaxpr(run)())))
        leaves = [next(arrays) if a else k for a, k in zip(where[0], kept, strict=True)]
        return jax.tree.unflatten(where[1], leaves)

    return walk.wrap_like(changed, fun)
