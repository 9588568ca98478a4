"""From a jaxpr to its StableHLO module, as JAX lowers it for the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import partial_eval
from jax.sharding import NamedSharding

from jaxmesh.jaxprs import compat, walk
from jaxmesh.jaxprs.compat import Aval, Eqn, Jaxpr
from jaxmesh.jaxprs.emit import call_jaxpr, emit_jaxpr
from jaxmesh.jaxprs.primitives import LINALG
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import Params, lax

_partial_eval: Any = partial_eval


def lower_to_stablehlo(jaxpr: Jaxpr, in_shardings: Sequence[object], out_shardings: Sequence[object]) -> Any:
    """Lowers a closed jaxpr to a StableHLO module without unused equations; needs no devices.

    XLA, too, drops unused constraints before it propagates shardings. The constants of the jaxpr are the module's
    first arguments, so they stay arrays, and may be sharded. A sharding None is left to the partitioner.
    """
    consts = list(walk.constants(jaxpr).values())
    body = walk.open_jaxpr(jaxpr)
    body = walk.open_jaxpr(_partial_eval.dce_jaxpr_consts(body, [True] * len(body.outvars), instantiate=True)[0])
    variables = [*body.constvars, *body.invars]

    # The values of constants are arguments here, in the order of the variables.
    called = walk.close(walk.rebuild(body, [], variables, body.eqns, body.outvars), ())

    def run(*args: Any) -> tuple[Any, ...]:
        return tuple(call_jaxpr(called, args))

    avals = [struct(v.aval) for v in variables]
    shardings = (*[None] * len(consts), *in_shardings)
    jitted = typed.jit(run, in_shardings=shardings, out_shardings=tuple(out_shardings), keep_unused=True)
    traced: Any = jitted.trace(*avals)
    # The body of the call takes its place: tracing it anew would cost as much as lowering it.
    traced._params = {**traced._params, "jaxpr": called}
    module: Any = traced.lower(lowering_platforms=("cpu",)).compiler_ir()
    # JAX keeps the module that it made.
    return module.operation.clone().operation


def stablehlo_text(
    jaxpr: Jaxpr, in_shardings: Sequence[object], out_shardings: Sequence[NamedSharding | None], name: str
) -> str:
    """Returns the StableHLO text of a closed jaxpr as JAX lowers it for any device, with source locations.

    The text has the arguments of the jaxpr alone: constants are operations. See `lower_to_stablehlo` for the arguments.
    """

    def run(*args: jax.Array) -> tuple[Any, ...]:
        return tuple(emit_jaxpr(jaxpr, args))

    run.__name__ = run.__qualname__ = name
    ins, outs = tuple(in_shardings), tuple(out_shardings)
    jitted = typed.jit(run, in_shardings=ins, out_shardings=outs, keep_unused=True)
    return jitted.trace(*map(struct, jaxpr.in_avals)).lower(lowering_platforms=("cpu",)).as_text(debug_info=True)


EQUATION = "jaxmesh.equation"
"""The custom call that stands for an equation which JAX lowers to a call of a library, or for real devices alone."""
_KEPT = LINALG | {"inspect_sharding", "rng_bit_generator"}


def _largest(params: Params, x: jax.Array) -> object:
    """Returns the exact largest elements, which an approximate search may return too."""
    dim = params["reduction_dimension"]
    moved = jnp.moveaxis(x, dim, -1)
    values, indices = lax.top_k(moved if params["is_max_k"] else -moved, params["k"])
    values = values if params["is_max_k"] else -values
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(indices, -1, dim)


def _sums_of_exponentials(params: Mapping[str, object], x: object) -> object:
    return lax.associative_scan(jnp.logaddexp, x, reverse=params["reverse"], axis=params["axis"])


_EXPANDED: Mapping[str, Callable[[Mapping[str, Any], Any], Any]] = {
    "approx_top_k": _largest, "cumlogsumexp": _sums_of_exponentials,
}  # fmt: skip
"""Primitives that lower to ops without a meaning to a partitioner, and what they are computed by in their place."""


def _expansion(eqn: Eqn) -> Callable[..., object] | None:
    """Returns the function of the operands that is lowered in the place of an equation; None to lower the equation."""
    expanded = _EXPANDED.get(eqn.primitive.name)
    if expanded is None:
        return compat.implementation(eqn)
    return functools.partial(expanded, eqn.params) if eqn.params.get("aggregate_to_topk", True) else None


def keep_equations(jaxpr: Jaxpr, kept: list[Eqn]) -> Jaxpr:
    """Replaces equations that lower to no StableHLO by custom calls named `EQUATION`, some by what computes them.

    Args:
      jaxpr: the program, or a body in it.
      kept: receives the equations; the attribute `index` of a custom call is the place of its equation.
    """

    def keep(eqn: Eqn) -> Eqn:
        run = _expansion(eqn)
        if run is not None:
            (call,) = walk.open_jaxpr(typed.make_jaxpr(typed.jit(run))(*[struct(a.aval) for a in eqn.invars])).eqns
            call = map_sub_jaxprs(call, lambda inner: keep_equations(inner, kept))
            return call.replace(invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info, ctx=eqn.ctx)
        if eqn.primitive.name not in _KEPT:
            return map_sub_jaxprs(eqn, lambda inner: keep_equations(inner, kept))
        made = jax.ffi.ffi_call(EQUATION, [struct(v.aval) for v in eqn.outvars], has_side_effect=not eqn.outvars)
        called = functools.partial(made, index=np.int32(len(kept)))
        (call,) = walk.open_jaxpr(typed.make_jaxpr(called)(*[struct(a.aval) for a in eqn.invars])).eqns
        kept.append(eqn)
        return call.replace(invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info, ctx=eqn.ctx)

    body = walk.open_jaxpr(jaxpr)
    return walk.with_eqns(jaxpr, [keep(e) for e in body.eqns], body.outvars)


def struct(aval: Aval) -> jax.ShapeDtypeStruct:
    """Returns an argument for tracing of a type, with its sharding on Explicit axes."""
    sharding = getattr(aval, "sharding", None)
    typed = sharding is not None and not sharding.mesh.empty
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False)), sharding=sharding if typed else None
    )
