"""Stacked results of counted loops: an iteration writes one row of a carried tensor, the row of its number.

A loop that carries such a tensor would write all of it anew in each iteration; a scan stacks the rows once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxmesh.frontends.stablehlo.call import enum_of
from jaxmesh.frontends.stablehlo.reductions import constant_of

Array = np.ndarray[Any, Any]


def find_stacks(
    op: Any, number: int, counted: Array, known: Callable[[Any], int | None]
) -> dict[int, tuple[Any, bool]]:
    """Returns by the number of a carried tensor the row that an iteration writes, and whether the last one is first.

    Args:
      op: a `stablehlo.while`.
      number: the number of its counter among the carried tensors.
      counted: the counter of each iteration.
      known: returns the number that a value of the body has in each iteration; None for another value.
    """
    cond, body = (r.blocks[0] for r in op.regions)
    end = [o.operation for o in body.operations][-1]
    rows = np.arange(len(counted))
    found: dict[int, tuple[Any, bool]] = {}
    for i, (stack, made) in enumerate(zip(body.arguments, end.operands, strict=True)):
        write = made.owner
        if getattr(write, "name", "") != "stablehlo.dynamic_update_slice" or write.operands[0] != stack:
            continue
        shape, row = (list(v.type.shape) for v in (stack, write.operands[1]))
        reads = [len(list(v.uses)) for v in (stack, made, cond.arguments[i])]
        if reads != [1, 1, 0] or [len(rows), *shape[1:]] != shape or [1, *shape[1:]] != row:
            continue
        first, *others = (_numbers(v, body.arguments[number], counted, known) for v in write.operands[2:])
        if first is None or any(x is None or x.any() for x in others):
            continue
        orders = [np.array_equal(np.clip(first, 0, len(rows) - 1), order) for order in (rows, rows[::-1])]
        if any(orders):
            found[i] = write.operands[1], not orders[0]
    return found


def _numbers(value: Any, counter: Any, counted: Array, known: Callable[[Any], int | None]) -> Array | None:
    """Returns the integers of a value in all iterations; None if they depend on more than the counter."""
    if value == counter:
        return counted
    constant = constant_of(value)
    number = known(value) if constant is None else None
    if constant is not None or number is not None:
        return np.asarray(number if constant is None else constant.item()).astype(counted.dtype)
    op = value.owner
    name = getattr(op, "name", "")
    compute = _LESS if name == "stablehlo.compare" and enum_of(op, "comparison_direction") == "LT" else _OPS.get(name)
    if compute is None:
        return None
    operands = [_numbers(v, counter, counted, known) for v in op.operands]
    return None if any(x is None for x in operands) else compute(*operands)


_LESS: Any = np.less
_OPS: Mapping[str, Callable[..., Array]] = {
    "stablehlo.add": np.add, "stablehlo.subtract": np.subtract, "stablehlo.multiply": np.multiply,
    "stablehlo.select": np.where, "stablehlo.minimum": np.minimum, "stablehlo.maximum": np.maximum,
    "stablehlo.reshape": np.asarray, "stablehlo.convert": np.asarray,
}  # fmt: skip
"""Operations of index arithmetic."""
