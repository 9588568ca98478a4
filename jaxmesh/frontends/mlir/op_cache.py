"""Ops that a program repeats: the meaning of each is traced once, and bound again.

The layers of a model repeat the same ops of the same types. A meaning checks its attributes and converts its operands
each time, which costs several times as much as binding its equations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxmesh.dialects.imported_op import ImportedOp, imported_op_p
from jaxmesh.frontends.mlir.decode import Step
from jaxmesh.jaxprs import evaluate, walk


class OpCache:
    """The meanings of the ops of one trace."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, ImportedOp | None]] = {}

    def __call__(
        self,
        step: Step,
        operands: Sequence[Any],
        meaning: Callable[..., list[Any]],
        describe: Callable[[], ImportedOp | None],
    ) -> list[Any]:
        """Binds one equation for an op, or the equations of its meaning if only its meaning is kept.

        Args:
          step: the op.
          operands: its tensors.
          meaning: computes its results from its operands; called once for equal steps and types.
          describe: what the text contains of the op; None if only its meaning is kept.
        """
        # A file's equal attributes are one object, which the step keeps alive.
        key = (step.op, id(step.attributes), step.types, *[jax.typeof(x) for x in operands])
        if key not in self._known:
            self._known[key] = jax.make_jaxpr(meaning)(*operands), describe()
        jaxpr, op = self._known[key]
        return _bind(jaxpr, operands) if op is None else imported_op_p.bind(*operands, jaxpr=jaxpr, op=op)


def _bind(jaxpr: Any, operands: Sequence[Any]) -> list[Any]:
    """Binds the equations in the tracing context that they were made in."""
    body = walk.open_jaxpr(jaxpr)
    env: dict[Any, Any] = dict(zip(body.invars, operands, strict=True))
    env.update(zip(body.constvars, map(evaluate.untyped, jaxpr.consts), strict=True))
    for eqn in body.eqns:
        outs = evaluate.bind(eqn, [evaluate.read(env, a) for a in eqn.invars])
        env.update(zip(eqn.outvars, outs, strict=True))
    return [evaluate.read(env, a) for a in body.outvars]
