"""Splices equations that are traced already into a typed trace, unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxmesh.jaxprs.compat import Jaxpr, Var
from jaxmesh.jaxprs.emit import emit_eqn
from jaxmesh.jaxprs.evaluate import read, splice_p
from jaxmesh.jaxprs.strip_mesh import Mover


def splice(body: Jaxpr, operands: Sequence[Any]) -> list[Any] | None:
    """Adds the equations of an open jaxpr to a typed trace, without a call of JAX for each of them.

    They stand for one equation until `evaluate.expand` writes them out; the trace must not be transformed before that.

    Args:
      body: its types are those that JAX would infer for the operands, but for the mesh.
      operands: arrays and tracers.

    Returns:
      The results; None if nothing is being traced.
    """
    mover = Mover(jax.sharding.get_abstract_mesh())
    inputs = dict(zip(body.invars, operands, strict=True))
    made = [v for v in dict.fromkeys(a for a in body.outvars if isinstance(a, Var)) if v not in inputs]
    params = {"body": body, "made": made, "mover": mover}
    values = emit_eqn(splice_p, operands, [mover.type(v.aval) for v in made], params, body.effects)
    if values is None:
        return None
    env = inputs | dict(zip(made, values, strict=True))
    return [read(env, a) for a in body.outvars]
