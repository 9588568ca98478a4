"""`dot_general` of every form, and `ragged_dot_general`, the product of a mixture of experts.

A product is permute, reshape, one matmul, reshape, and only the needed ones. A ragged one masks by group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from jaxmesh.dialects.program import Shape, Type, Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.untyped import DType, jnp, lax
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Params
from jaxmesh.passes.flatten.index_arithmetic import as_index
from jaxmesh.passes.small_dims import is_smaller

RULES: Rules[Rule] = Rules()


@dataclass(frozen=True, slots=True)
class Side:
    """An operand of a product and what its dims are for."""

    value: Value
    batch: Shape
    contract: Shape
    free: Shape


@RULES.add("dot_general")
def _dot_general(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    (contract, batch), (shape, dtype) = eqn.params["dimension_numbers"], b.result(eqn)
    return product(b, xs, contract, batch, shape, dtype)


def product(
    b: Builder,
    xs: Sequence[Value],
    contract: Sequence[Sequence[int]],
    batch: Sequence[Sequence[int]],
    shape: Shape,
    dtype: DType,
) -> Value:
    """Returns the product of two tensors, with `contract` and `batch` dims of each.

    The result has batch dims, free dims of the first, free dims of the second; products add up in its `dtype`.
    """
    x, y = _cast_alike(b, *xs)
    if 0 in shape or any(b.shape(x)[d] == 0 for d in contract[0]):
        return b.full(shape, 0, dtype)
    sides = [_side(b, v, c, s) for v, c, s in zip((x, y), contract, batch, strict=True)]
    if not contract[0]:
        return _outer(b, sides[0], sides[1], shape, dtype)
    if dtype.kind == "b":
        # True if any pair is true: a count of them is exact in float32 up to 2^24, and above zero beyond.
        sides = [replace(s, value=b.cast(s.value, np.float32)) for s in sides]
        return b.cast(_multiply(b, sides[0], sides[1], shape, np.dtype(np.float32)), dtype)
    return _multiply(b, sides[0], sides[1], shape, dtype)


def _side(b: Builder, value: Value, contract: Sequence[int], batch: Sequence[int]) -> Side:
    free = [d for d in range(len(b.shape(value))) if d not in contract and d not in batch]
    permuted = b.maker(value, "permute")
    if permuted is None or permuted.operands[0] is None:
        return Side(value, tuple(batch), tuple(contract), tuple(free))
    # Of what was permuted, so that a transposition becomes a transposition by matmul, or joins another.
    order = permuted.attributes["permutation"]
    dims = (tuple(order[d] for d in row) for row in (batch, contract, free))
    return Side(permuted.operands[0], *dims)


def _cast_alike(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """Casts two operands to their joint element type."""
    if b.dtype(x) == b.dtype(y):
        return x, y
    joint = jnp.promote_types(*map(_at_least_8_bits, (b.dtype(x), b.dtype(y))))
    return b.cast(x, joint), b.cast(y, joint)


def _at_least_8_bits(dtype: DType) -> DType:
    """Returns a type that holds all numbers of a type, and that JAX promotes; smaller ones it does not promote."""
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype if jnp.finfo(dtype).bits > 8 else jnp.dtype(jnp.bfloat16)
    is_small = jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8
    return np.dtype(np.int8) if is_small else dtype


def _sizes(b: Builder, side: Side, dims: Sequence[int]) -> list[int]:
    return [b.shape(side.value)[d] for d in dims]


def _outer(b: Builder, x: Side, y: Side, shape: Shape, dtype: DType) -> Value:
    """Builds an elementwise product where no dim is contracted."""
    values = [b.cast(b.permute(s.value, (*s.batch, *s.free)), dtype) for s in (x, y)]
    batch = _sizes(b, x, x.batch)
    left = b.reshape(values[0], (*batch, *_sizes(b, x, x.free), *[1] * len(y.free)))
    right = values[1]
    if batch and x.free:
        right = b.reshape(right, (*batch, *[1] * len(x.free), *_sizes(b, y, y.free)))
    return b.op("logical_and" if dtype.kind == "b" else "multiply", [left, right], shape, dtype)


# --- one matmul ------------------------------------------------------------------------------------------------------


def _multiply(b: Builder, x: Side, y: Side, shape: Shape, dtype: DType) -> Value:
    x, y = _pair(b, x, y)
    x, order = _small_rows_first(b, x, y, Type(shape, dtype))
    made = _turned(b, x, y, tuple([shape[d] for d in order]), dtype)
    return b.permute(made, [order.index(d) for d in range(len(shape))])


def _small_rows_first(b: Builder, x: Side, y: Side, kind: Type) -> tuple[Side, Shape]:
    """Puts the largest of the rows' dims last if a tile would pad the result much, as in attention of grouped heads.

    Returns the first operand, and the dims of the result in the order that they are computed in.
    """
    before, sizes = len(x.batch), _sizes(b, x, x.free)
    rows = sorted(range(len(sizes)), key=sizes.__getitem__)
    order = (*range(before), *(before + i for i in rows), *range(before + len(rows), len(kind.shape)))
    if len(y.free) != 1 or not is_smaller(kind, order):
        return x, tuple(range(len(kind.shape)))
    return replace(x, free=tuple([x.free[i] for i in rows])), order


def _turned(b: Builder, x: Side, y: Side, shape: Shape, dtype: DType) -> Value:
    if not x.batch:
        return _flat(b, x, y, shape, dtype)
    batch = _sizes(b, x, x.batch)
    left, turned_a = _matrix(b, x, free_first=True)
    right, turned_b = _matrix(b, y, free_first=False)
    rows, columns = math.prod(_sizes(b, x, x.free)), math.prod(_sizes(b, y, y.free))
    out = _matmul(b, left, right, (*batch, rows, columns), dtype, turned_a, turned_b)
    return b.reshape(out, shape)


def _flat(b: Builder, x: Side, y: Side, shape: Shape, dtype: DType) -> Value:
    """Builds a product without batch dims: the first operand keeps its free dims, and a vector stays one."""
    rows, columns = _sizes(b, x, x.free), _sizes(b, y, y.free)
    inner = math.prod(_sizes(b, x, x.contract))
    right, turned_b = (b.permute(y.value, y.contract), False) if not y.free else _matrix(b, y, free_first=False)
    if not y.free:
        right = b.reshape(right, (inner,))
    if _in_order(x, free_first=True):
        left, turned_a = b.reshape(x.value, (*rows, inner)), False
    else:
        left, turned_a = _matrix(b, x, free_first=True)
        rows = [math.prod(rows)]
    made = (*rows, *([math.prod(columns)] if y.free else []))
    return b.reshape(_matmul(b, left, right, made, dtype, turned_a, turned_b), shape)


def _matmul(
    b: Builder, x: Value, y: Value, shape: Sequence[int], dtype: DType, turned_a: bool, turned_b: bool
) -> Value:
    return b.op("matmul", [x, y], shape, dtype, transpose_a=turned_a, transpose_b=turned_b)


def _in_order(side: Side, free_first: bool) -> bool:
    order = (*side.batch, *side.free, *side.contract) if free_first else (*side.batch, *side.contract, *side.free)
    return order == tuple(range(len(order)))


def _pair(b: Builder, x: Side, y: Side) -> tuple[Side, Side]:
    """Orders the contracted dims so that the fewest operands need a permutation.

    The smallest is the first where a tile would pad an operand much, as in gradients of grouped heads.
    """
    if len(x.contract) == 1:
        return x, y
    options: list[tuple[Side, Side]] = []
    for place in (0, 1):
        pairs = sorted(zip(x.contract, y.contract, strict=True), key=lambda pair: pair[place])
        left, right = zip(*pairs, strict=True)
        options.append((replace(x, contract=left), replace(y, contract=right)))
    sizes = _sizes(b, x, x.contract)
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    small = [replace(s, contract=tuple([s.contract[i] for i in order])) for s in (x, y)]
    for first, moved in ((s, m) for pair in options for s, m in zip(pair, small, strict=True)):
        dims, other = ((*s.batch, *s.contract, *s.free) for s in (first, moved))
        if is_smaller(Type(tuple(_sizes(b, first, dims)), b.dtype(x.value)), tuple(map(dims.index, other))):
            return small[0], small[1]
    return min(options, key=lambda pair: sum(not (_in_order(s, True) or _in_order(s, False)) for s in pair))


def _matrix(b: Builder, side: Side, free_first: bool) -> tuple[Value, bool]:
    """Returns an operand as matrices, and True if they are transposed: (free, contracted) if `free_first`."""
    swapped = not _in_order(side, free_first) and _in_order(side, not free_first)
    first = free_first != swapped
    orders = (*side.batch, *side.contract, *side.free), (*side.batch, *side.free, *side.contract)
    if not _in_order(side, first):
        kind = Type(tuple(_sizes(b, side, orders[first])), b.dtype(side.value))
        if is_smaller(kind, tuple([orders[first].index(d) for d in orders[not first]])):
            first, swapped = not first, not swapped
    free, inner = math.prod(_sizes(b, side, side.free)), math.prod(_sizes(b, side, side.contract))
    batch, matrix = _sizes(b, side, side.batch), (free, inner) if first else (inner, free)
    return b.reshape(b.permute(side.value, orders[first]), (*batch, *matrix)), swapped


@RULES.add("ragged_dot_general")
def _ragged_dot_general(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value | Sequence[Value]:
    if eqn.params["group_offset"] is not None:
        raise missing(eqn, "JAX itself gives no meaning to a group_offset")
    x, y, sizes = xs
    shape, dtype = b.result(eqn)
    if 0 in (*shape, *b.shape(x), *b.shape(sizes)[-1:]):
        return b.full(shape, 0, dtype)
    return b.composed(_product, [x, y, as_index(b, sizes)], {**eqn.params, "dtype": dtype})


def _product(params: Params, x: jax.Array, y: jax.Array, sizes: jax.Array) -> jax.Array:
    """Computes as JAX does where a platform lacks the product: zeros stand in for other groups' numbers."""
    numbers = params["ragged_dot_dimension_numbers"]
    (contract, batch), (ragged,) = numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions

    def dot(x: jax.Array, y: jax.Array, contract: Sequence[object], batch: Sequence[object]) -> jax.Array:
        return lax.dot_general(x, y, (contract, batch), preferred_element_type=params["dtype"])

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


def _group(x: jax.Array, sizes: jax.Array, ragged: int, before: Sequence[int]) -> jax.Array:
    """Returns a copy of `x` for each group, in a new first dim, with zeros where the ragged dim is of another group.

    `sizes` has the group sizes along its last dim: one row, or one per index of the dims `before` of `x`.
    """
    rank = sizes.ndim
    ends = jnp.cumsum(sizes, -1, sizes.dtype)
    places = () if rank == 1 else tuple(before)
    wide = [sizes.shape[-1], *(n if d in places else 1 for d, n in enumerate(x.shape))]
    order = (rank - 1, *sorted(range(rank - 1), key=lambda d: places[d]))
    least, most = (v.transpose(order).reshape(wide) for v in (ends - sizes, ends))
    at = jnp.expand_dims(lax.iota(sizes.dtype, x.shape[ragged]), [d for d in range(x.ndim + 1) if d != ragged + 1])
    return jnp.where((least <= at) & (at < most), x, 0)
