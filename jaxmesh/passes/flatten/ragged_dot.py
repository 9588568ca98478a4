"""`ragged_dot_general`, the product of a mixture of experts: masks by group, and one product over all groups."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.dot_general import product
from jaxmesh.passes.flatten.index_arithmetic import as_index, combine_broadcast, compare, positions, select
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()


@RULES.add("ragged_dot_general")
def _ragged_dot_general(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    # Composed as JAX does it where a platform has no such product: what is outside of a group is zero in its copy.
    if eqn.params["group_offset"] is not None:
        raise missing(eqn, "JAX itself gives no meaning to a group_offset")
    numbers, (shape, dtype) = eqn.params["ragged_dot_dimension_numbers"], b.result(eqn)
    (contract, batch), (ragged,) = numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions
    x, y, sizes = xs
    groups = b.shape(sizes)[-1]
    if ragged in batch[0]:
        # Every group is a part of the batch, whatever its size.
        return product(b, (x, y), contract, batch, shape, dtype)
    if 0 in shape or groups == 0 or 0 in b.shape(x):
        return b.full(shape, 0, dtype)
    if ragged in contract[0]:
        place = list(contract[0]).index(ragged)
        before = [(*side, *inner[:place]) for side, inner in zip(batch, contract, strict=True)]
        parts = _group(b, x, sizes, ragged, before[0]), _group(b, y, sizes, contract[1][place], before[1])
        apart = [(0, *_next(dims)) for dims in batch]
        return product(b, parts, [_next(dims) for dims in contract], apart, shape, dtype)
    free = [d for d in range(len(b.shape(x))) if d not in contract[0] and d not in batch[0]]
    split = _group(b, x, sizes, ragged, (*batch[0], *free[: free.index(ragged)]))
    inner = (*_next(contract[0]), 0), (*contract[1], *numbers.rhs_group_dimensions)
    return product(b, (split, y), inner, (_next(batch[0]), batch[1]), shape, dtype)


def _next(dims: Sequence[int]) -> Shape:
    """Returns the numbers of dims behind a new first dim."""
    return tuple(d + 1 for d in dims)


def _group(b: Builder, x: Value, sizes: Value, ragged: int, before: Sequence[int]) -> Value:
    """Returns a copy of `x` for each group, in a new first dim, with zeros where the ragged dim is of another group.

    `sizes` has the group sizes along its last dim: one row, or one per index of the dims `before` of `x`.
    """
    shape = b.shape(x)
    sizes = as_index(b, sizes)
    rank = len(b.shape(sizes))
    ends = b.same("cumsum", [sizes], dim=rank - 1)
    begins = b.same("subtract", [ends, sizes])
    places = () if rank == 1 else tuple(before)
    wide = [b.shape(sizes)[-1], *(n if d in places else 1 for d, n in enumerate(shape))]
    order = (rank - 1, *sorted(range(rank - 1), key=lambda d: places[d]))
    least, most = (b.reshape(b.permute(v, order), wide) for v in (begins, ends))
    at = positions(b, (1, *shape), ragged + 1)
    inside = combine_broadcast(b, "logical_and", compare(b, "le", least, at), compare(b, "lt", at, most))
    return select(b, inside, b.reshape(x, (1, *shape)), b.full((), 0, b.dtype(x)))
