"""Stacked results of counted loops: an iteration writes one row of a carried tensor, the row of its number.

A loop that carries such a tensor would write all of it anew in each iteration; a scan stacks the rows once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxlib.mlir import ir

from jaxmesh.frontends.mlir.attributes import Array
from jaxmesh.frontends.mlir.module import producer
from jaxmesh.frontends.stablehlo.reductions import integers_of

Stacks = dict[int, tuple[ir.Value, bool]]
"""By the number of a carried tensor the row that an iteration writes, and whether the last row comes first."""


def find_stacks(op: ir.Operation, length: int, known: Callable[[ir.Value], Array | None]) -> Stacks:
    """Returns the carried tensors that are stacks.

    Args:
      op: a `stablehlo.while`.
      length: the number of its iterations.
      known: returns the number that a value of the body has in each iteration; None for another value.
    """
    cond, body = (r.blocks[0] for r in op.regions)
    end = body.operations[-1]
    rows = np.arange(length)
    found: Stacks = {}
    for i, (stack, made) in enumerate(zip(body.arguments, end.operands, strict=True)):
        write = producer(made, "stablehlo.dynamic_update_slice")
        if write is None or write.operands[0] != stack:
            continue
        shape, row = (list(v.type.shape) for v in (stack, write.operands[1]))
        reads = [len(list(v.uses)) for v in (stack, made, cond.arguments[i])]
        if reads != [1, 1, 0] or [len(rows), *shape[1:]] != shape or [1, *shape[1:]] != row:
            continue
        first, *others = (integers_of(v, known) for v in write.operands[2:])
        if first is None or any(x is None or x.any() for x in others):
            continue
        orders = [np.array_equal(np.clip(first, 0, len(rows) - 1), order) for order in (rows, rows[::-1])]
        if any(orders):
            found[i] = write.operands[1], not orders[0]
    return found
