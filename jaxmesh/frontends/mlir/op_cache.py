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
from jaxmesh.jaxprs import evaluate


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
        """Binds one equation for an op, or the equations of its meaning if only its meaning is kept."""
        # A file's equal attributes are one object, which the step keeps alive.
        key = (step.op, id(step.attributes), step.types, *[jax.typeof(x) for x in operands])
        if key not in self._known:
            self._known[key] = jax.make_jaxpr(meaning)(*operands), describe()
        jaxpr, op = self._known[key]
        if op is not None:
            return imported_op_p.bind(*operands, jaxpr=jaxpr, op=op)
        # The tracing context is the one that the equations were made in.
        return evaluate.interpret(jaxpr, operands, evaluate.bind)
