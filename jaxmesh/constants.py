"""The constants of a program: copies of the NumPy arrays it was closed over, which their owner may write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxmesh import jaxprs
from jaxmesh.jaxprs import Eqn, Jaxpr
from jaxmesh.rewrite import map_sub_jaxprs


def own_constants(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with its own copies of the NumPy arrays among its constants, at any depth.

    JAX keeps such an array as it is until it compiles; a program that is kept as a jaxpr would show a later write.
    """
    copies: dict[int, Any] = {}

    def own(value: Any, dtype: Any) -> Any:
        array: Any = value
        if not isinstance(array, np.ndarray):
            return value
        if id(value) not in copies:
            copies[id(value)] = jaxprs.untyped(value).astype(dtype)
        return copies[id(value)]

    def change(j: Jaxpr) -> Jaxpr:
        body = jaxprs.open_jaxpr(j)
        made = jaxprs.with_eqns(j, [_changed(e, change) for e in body.eqns], body.outvars)
        if not jaxprs.keeps_consts(j) or not len(j.consts):
            return made
        consts = [own(c, v.aval.dtype) for c, v in zip(j.consts, body.constvars, strict=True)]
        return jaxprs.close(jaxprs.open_jaxpr(made), consts)

    return change(jaxpr) if _holds(jaxpr) else jaxpr


def _changed(eqn: Eqn, change: Callable[[Jaxpr], Jaxpr]) -> Eqn:
    return map_sub_jaxprs(eqn, change) if any(map(_holds, jaxprs.sub_jaxprs(eqn))) else eqn


def _holds(jaxpr: Jaxpr) -> bool:
    """Whether a NumPy array is a constant of it, at any depth."""
    inside = (j for e in jaxprs.all_eqns(jaxpr) for j in jaxprs.sub_jaxprs(e))
    return any(isinstance(c, np.ndarray) for j in (jaxpr, *inside) for c in _consts(j))


def _consts(jaxpr: Jaxpr) -> list[Any]:
    return list(jaxpr.consts) if jaxprs.keeps_consts(jaxpr) else []
