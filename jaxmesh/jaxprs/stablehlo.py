"""From a jaxpr to its StableHLO module, as JAX lowers it for the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.emit import emit_jaxpr


def lower_to_stablehlo(jaxpr: Jaxpr, in_shardings: Sequence[Any], out_shardings: Sequence[Any]) -> Any:
    """Lowers a closed jaxpr to a StableHLO module; needs no devices.

    The constants of the jaxpr are the module's first arguments, so they stay arrays, and may be sharded.

    Args:
      jaxpr: the program, as JAX traced it.
      in_shardings: per argument its sharding; None leaves it to the partitioner.
      out_shardings: per result its sharding, or None.

    Returns:
      The module's operation, which belongs to the caller.
    """
    consts = list(walk.constants(jaxpr).values())
    body = walk.open_jaxpr(jaxpr)
    variables = [*body.constvars, *body.invars]

    def run(*args: Any) -> tuple[Any, ...]:
        # The values of constants are arguments here, whose order is that of the variables.
        closed = walk.close(body, args[: len(consts)])
        return tuple(emit_jaxpr(closed, args[len(consts) :]))

    avals = [struct(v.aval) for v in variables]
    shardings = (*[None] * len(consts), *in_shardings)
    jitted = jax.jit(run, in_shardings=shardings, out_shardings=tuple(out_shardings), keep_unused=True)
    module: Any = jitted.trace(*avals).lower(lowering_platforms=("cpu",)).compiler_ir()
    # JAX keeps the module that it made.
    return module.operation.clone().operation


def struct(aval: Any) -> jax.ShapeDtypeStruct:
    """Returns an argument for tracing of a type, with its sharding on Explicit axes."""
    sharding: Any = getattr(aval, "sharding", None)
    typed = sharding is not None and not sharding.mesh.empty
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False)), sharding=sharding if typed else None
    )
