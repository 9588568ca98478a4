"""Whether the derivative rules of a custom function move tensors, although its own body does not.

Such a function must run inside a mapped region, or its rules would be traced where there is no mesh. The rules are
Python functions, so the only way to know is to trace them once.
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
    """Whether an equation is, or holds at any depth, a custom function whose rules bind one of the primitives."""
    held = [e for j in walk.sub_jaxprs(eqn) for e in walk.all_eqns(j)]
    return any(_moves(e, moving) for e in [eqn, *held] if e.primitive.name in CUSTOM)


def _moves(eqn: Eqn, moving: frozenset[Any]) -> bool:
    try:
        traced = _trace_rules(eqn)
    except Exception:
        # Rules that cannot be differentiated this way (integer results, say) are not for here to judge.
        return False
    return any(e.primitive in moving for e in walk.all_eqns(traced))


def rules_run_outside(eqn: Eqn) -> bool:
    """Whether the rules of a custom function are plain JAX, which needs no mesh around it (it may call `shard_map`)."""
    try:
        jax.make_jaxpr(lambda: _derivative(eqn))()
    except Exception:
        return False
    return True


def _trace_rules(eqn: Eqn) -> Jaxpr:
    """The equation with its derivative, in a mapped context like the one it was traced in."""
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
