"""`ragged_dot_general`, the product of a mixture of experts: masks by group, and one product over all groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Params
from jaxmesh.passes.flatten.index_arithmetic import as_index
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_jnp: Any = jax.numpy
_lax: Any = jax.lax


@RULES.add("ragged_dot_general")
def _ragged_dot_general(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value | Sequence[Value]:
    if eqn.params["group_offset"] is not None:
        raise missing(eqn, "JAX itself gives no meaning to a group_offset")
    x, y, sizes = xs
    shape, dtype = b.result(eqn)
    if 0 in (*shape, *b.shape(x), *b.shape(sizes)[-1:]):
        return b.full(shape, 0, dtype)
    return b.composed(_product, [x, y, as_index(b, sizes)], {**eqn.params, "dtype": dtype})


def _product(params: Params, x: Any, y: Any, sizes: Any) -> Any:
    """Computes as JAX does where a platform lacks the product: zeros stand in for other groups' numbers."""
    numbers = params["ragged_dot_dimension_numbers"]
    (contract, batch), (ragged,) = numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions

    def dot(x: Any, y: Any, contract: Sequence[Any], batch: Sequence[Any]) -> Any:
        return _lax.dot_general(x, y, (contract, batch), preferred_element_type=params["dtype"])

    if ragged in batch[0]:
        # Every group is a part of the batch, whatever its size.
        return dot(x, y, contract, batch)
    if ragged in contract[0]:
        place = list(contract[0]).index(ragged)
        before = [(*side, *inner[:place]) for side, inner in zip(batch, contract, strict=True)]
        parts = _group(x, sizes, ragged, before[0]), _group(y, sizes, contract[1][place], before[1])
        return dot(*parts, [_next(dims) for dims in contract], [(0, *_next(dims)) for dims in batch])
    free = [d for d in range(x.ndim) if d not in contract[0] and d not in batch[0]]
    split = _group(x, sizes, ragged, (*batch[0], *free[: free.index(ragged)]))
    inner = (*_next(contract[0]), 0), (*contract[1], *numbers.rhs_group_dimensions)
    return dot(split, y, inner, (_next(batch[0]), batch[1]))


def _next(dims: Sequence[int]) -> Shape:
    """Returns the numbers of dims behind a new first dim."""
    return tuple(d + 1 for d in dims)


def _group(x: Any, sizes: Any, ragged: int, before: Sequence[int]) -> Any:
    """Returns a copy of `x` for each group, in a new first dim, with zeros where the ragged dim is of another group.

    `sizes` has the group sizes along its last dim: one row, or one per index of the dims `before` of `x`.
    """
    rank = sizes.ndim
    ends = _jnp.cumsum(sizes, -1, sizes.dtype)
    places = () if rank == 1 else tuple(before)
    wide = [sizes.shape[-1], *(n if d in places else 1 for d, n in enumerate(x.shape))]
    order = (rank - 1, *sorted(range(rank - 1), key=lambda d: places[d]))
    least, most = (v.transpose(order).reshape(wide) for v in (ends - sizes, ends))
    at = _jnp.expand_dims(_lax.iota(sizes.dtype, x.shape[ragged]), [d for d in range(x.ndim + 1) if d != ragged + 1])
    return _jnp.where((least <= at) & (at < most), x, 0)
