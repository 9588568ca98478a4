"""The constants of a program: copies of the NumPy arrays it was closed over, which their owner may write to."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxmesh.jaxprs import evaluate, walk
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs


def own_constants(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with its own copies of the NumPy arrays among its constants, at any depth.

    JAX keeps such an array as it is until it compiles; a program that is kept as a jaxpr would show a later write.
    """
    copies: dict[int, Any] = {}
    held: dict[int, tuple[Jaxpr, bool]] = {}
    changed: dict[int, tuple[Jaxpr, Jaxpr]] = {}

    def own(value: Any, dtype: Any) -> Any:
        array: Any = value
        if not isinstance(array, np.ndarray):
            return value
        if id(value) not in copies:
            copies[id(value)] = evaluate.untyped(value).astype(dtype)
        return copies[id(value)]

    def holds(j: Jaxpr) -> bool:
        """Whether a NumPy array is a constant of it, at any depth."""
        if id(j) not in held:
            inside = any(holds(i) for e in j.eqns for i in walk.sub_jaxprs(e))
            held[id(j)] = (j, inside or any(isinstance(c, np.ndarray) for c in _consts(j)))
        return held[id(j)][1]

    def change(j: Jaxpr) -> Jaxpr:
        # A body that several calls share stays shared.
        if id(j) not in changed:
            changed[id(j)] = (j, with_own(j) if holds(j) else j)
        return changed[id(j)][1]

    def with_own(j: Jaxpr) -> Jaxpr:
        body = walk.open_jaxpr(j)
        eqns = [map_sub_jaxprs(e, change) if any(map(holds, walk.sub_jaxprs(e))) else e for e in body.eqns]
        made = walk.with_eqns(j, eqns, body.outvars)
        if not walk.is_closed(j) or not len(j.consts):
            return made
        consts = [own(c, v.aval.dtype) for c, v in zip(j.consts, body.constvars, strict=True)]
        return walk.close(walk.open_jaxpr(made), consts)

    return change(jaxpr)


def _consts(jaxpr: Jaxpr) -> list[Any]:
    return list(jaxpr.consts) if walk.is_closed(jaxpr) else []
