"""Tests of derivative rules: do the rules of a custom function move tensors, although its body does not?

Such a function must run inside a mapped region; otherwise its rules would be traced without a mesh. The rules are
Python functions, so they are traced once to find out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.control_flow import CUSTOM


def rules_move(eqn: Eqn, moving: frozenset[Any]) -> bool:
    """Returns True if an equation is, or contains, a custom function whose rules bind a primitive in `moving`."""
    inner = [e for j in walk.sub_jaxprs(eqn) for e in walk.all_eqns(j)]
    return any(_moves(e, moving) for e in [eqn, *inner] if e.primitive.name in CUSTOM)


def _moves(eqn: Eqn, moving: frozenset[Any]) -> bool:
    try:
        traced = _trace_rules(eqn)
    except Exception:
        # Rules that cannot be differentiated this way, e.g. for integer results, are judged elsewhere.
        return False
    return any(e.primitive in moving for e in walk.all_eqns(traced))


def rules_run_outside(eqn: Eqn) -> bool:
    """Returns True if the rules of a custom function can be traced without a mesh; they may call `shard_map`."""
    try:
        jax.make_jaxpr(lambda: _derivative(eqn))()
    except Exception:
        return False
    return True


def _trace_rules(eqn: Eqn) -> Jaxpr:
    """Traces the derivative of an equation in a region over the mesh of the equation."""
    mesh = walk.mesh_of(eqn)
    mesh = mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    derivative = partial(_derivative, eqn)
    mapped: Any = compat.shard_map(derivative, mesh=mesh, in_specs=(), out_specs=PartitionSpec(), check_vma=True)
    return jax.make_jaxpr(mapped)()


def _derivative(eqn: Eqn) -> list[Any]:
    def primal(*xs: Any) -> list[Any]:
        return evaluate.bind(eqn, xs)

    api: Any = jax
    outs, pullback = api.vjp(primal, *[jnp.zeros(v.aval.shape, v.aval.dtype) for v in eqn.invars])
    cotangents: Any = pullback([jnp.ones_like(y) for y in outs])
    return [ct for ct in cotangents if jnp.issubdtype(ct.dtype, jnp.inexact)]
