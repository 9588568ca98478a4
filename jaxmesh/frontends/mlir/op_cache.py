"""Ops that a program repeats: their equations are bound again, without another evaluation of the op's meaning.

The layers of a model repeat the same ops of the same types; a meaning checks its attributes and converts its operands
each time, which costs several times what binding its equations does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxmesh.dialects.imported_op import Said, said_p
from jaxmesh.frontends.mlir.decode import Step
from jaxmesh.jaxprs import evaluate


class Again:
    """The meanings of the ops of one trace, as equations from an op's second occurrence on."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def __call__(
        self, step: Step, operands: Sequence[Any], meaning: Callable[..., list[Any]], said: Said | None = None
    ) -> list[Any]:
        """What `meaning` gives of the operands; of equal steps and types it may be asked only once or twice.

        With what the text says of the op, one equation that holds both.
        """
        if said is not None:
            return self._said(step, operands, meaning, said)
        if not operands:
            return meaning()
        # A file's equal attributes are one object, which the step keeps alive.
        key = (step.op, id(step.attributes), step.types, *[jax.typeof(x) for x in operands])
        if key not in self._known:
            self._known[key] = None
            return meaning(*operands)
        jaxpr = self._known[key]
        if jaxpr is None:
            jaxpr = self._known[key] = jax.make_jaxpr(meaning)(*operands)
        # The tracing context is the one that the equations were made in.
        return evaluate.interpret(jaxpr, operands, evaluate.bind)

    def _said(self, step: Step, operands: Sequence[Any], meaning: Callable[..., list[Any]], said: Said) -> list[Any]:
        key = (step.op, id(step.attributes), step.types, *[jax.typeof(x) for x in operands])
        if key not in self._known:
            self._known[key] = jax.make_jaxpr(meaning)(*operands), said
        jaxpr, said = self._known[key]
        return said_p.bind(*operands, jaxpr=jaxpr, said=said)
