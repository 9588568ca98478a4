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
    holding, copied = walk.Memo[bool](), walk.Memo[Jaxpr]()

    def own(value: Any, dtype: Any) -> Any:
        array: Any = value
        if not isinstance(array, np.ndarray):
            return value
        if id(value) not in copies:
            copies[id(value)] = evaluate.untyped(value).astype(dtype)
        return copies[id(value)]

    def holds(j: Jaxpr) -> bool:
        """Whether a NumPy array is a constant of it, at any depth."""

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
