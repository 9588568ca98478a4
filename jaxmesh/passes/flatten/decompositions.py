"""Rules for primitives that TTIR lacks: each is a function in JAX, traced for the operands and built in place.

The equations of such a function are flattened by the same rules as a user's program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing

Params = Mapping[str, Any]
Function = Callable[..., Any]
"""Takes the parameters of a primitive and its operands; returns the results."""


def decomposed(rules: Rules[Rule], *names: str) -> Callable[[Function], Function]:
    """Adds a function in JAX as the rule of each name."""

    def enter(function: Function) -> Function:
        @rules.add(*names)
        def rule(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
            return b.composed(function, xs, eqn.params)

        return function

    return enter


def in_single_precision(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> list[Value]:
    """Casts operands to float32; raises `MissingRuleError` for wider types."""
    dtype = b.result(eqn)[1]
    if dtype.itemsize > np.dtype(np.float32).itemsize:
        raise missing(eqn, f"it is composed to the precision of float32, not of {dtype}")
    return [b.cast(x, np.float32) for x in xs]
