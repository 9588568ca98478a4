"""Loops whose condition has dims, as `jax.vmap` of a `while_loop` makes them: one condition for each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.passes.flatten.builder import Builder
from jaxmesh.passes.flatten.index_arithmetic import known, select


def any_goes_on(b: Builder, condition: Value) -> Value:
    """Returns whether a loop goes on for any element of a batch."""
    dims = range(len(b.shape(condition)))
    found = known(b, condition)
    return b.reduce("reduce_or", condition, dims) if found is None else b.constant(np.asarray(found).any())


def chosen(b: Builder, condition: Value, before: Sequence[Value], after: Sequence[Value]) -> list[Value]:
    """Returns a carry after an iteration: its elements change for which the loop goes on."""

    def choose(xs: Sequence[Value]) -> Value:
        x, y = xs
        extra = (1,) * (len(b.shape(x)) - len(b.shape(condition)))
        return select(b, b.reshape(condition, (*b.shape(condition), *extra)), y, x)

    return [by_parts(b, choose, pair) for pair in zip(before, after, strict=True)]


def by_parts(b: Builder, compute: Callable[[Sequence[Value]], Value], values: Sequence[Value]) -> Value:
    """Computes from values that move together; of complex ones, the real parts and the imaginary parts."""
    parts = [b.pairs[x] for x in values if x in b.pairs]
    return b.pair(*[compute(part) for part in zip(*parts, strict=True)]) if parts else compute(values)
