"""Equations that join a typed trace as they are, as the ones that JAX would trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.evaluate import eval_jaxpr, trace_typed
from jaxmesh.jaxprs.source_locations import source_location
from jaxmesh.jaxprs.strip_mesh import splice
from jaxmesh.jaxprs.walk import open_jaxpr, text

MESH = AbstractMesh((2, 4), ("y", "x"))
X = jax.ShapeDtypeStruct((8, 4), jnp.float32)


def program(x: Any, y: Any) -> tuple[Any, ...]:
    with jax.named_scope("inner"):
        z = jnp.tanh(x)
        jnp.sin(z)
    total = jax.lax.cumsum(y) + z
    return total, total, x, 3.0 * z, jnp.float32(2), jax.lax.iota(jnp.float32, 4)


def traced(run: Callable[[Jaxpr, Any], Any]) -> Jaxpr:
    plain = jax.make_jaxpr(program)(X, X)

    def outer(*xs: Any) -> list[Any]:
        with jax.named_scope("outer"):
            outs = run(plain, [jnp.cos(x) for x in xs])
        return [o * 2 for o in outs]

    return trace_typed(outer, [X, X], [(), ()], MESH)


def test_spliced_equations_are_those_that_jax_traces() -> None:
    spliced = traced(lambda plain, xs: splice(open_jaxpr(plain), xs))
    bound = traced(lambda plain, xs: eval_jaxpr(plain, *xs))
    assert text(spliced) == text(bound)
    for ours, wanted in zip(spliced.eqns, bound.eqns, strict=True):
        assert source_location(ours) == source_location(wanted)
        assert ours.source_info.name_stack == wanted.source_info.name_stack
        assert ours.ctx is wanted.ctx
        assert [v.aval for v in ours.outvars] == [v.aval for v in wanted.outvars]
        assert [a.aval for a in ours.invars] == [a.aval for a in wanted.invars]


def test_nothing_is_spliced_outside_of_a_trace() -> None:
    ones = np.ones(X.shape, X.dtype)
    assert splice(open_jaxpr(jax.make_jaxpr(program)(X, X)), [ones, ones]) is None
