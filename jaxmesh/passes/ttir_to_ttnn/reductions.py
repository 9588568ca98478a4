"""Patterns of products, reductions and sorts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.passes.rules import Rules
from jaxmesh.passes.ttir_to_ttnn.builder import BOOL, INDEX, Ops, Pattern, Site, is_integer
from jaxmesh.passes.ttir_to_ttnn.shapes import carry_over

PATTERNS: Rules[Pattern] = Rules()

# --- products --------------------------------------------------------------------------------------------------------


@PATTERNS.add("linear")
def _linear(o: Ops, site: Site) -> Value | Sequence[Value]:
    a, b, bias, result = site.xs[0], site.xs[1], site.optional(2), site.result
    if len(o.shape(b)) == 2 and (bias is None or _is_row(o.shape(bias), result.shape)):
        return carry_over(o, site)
    product = o.op("matmul", [a, b], _product_shape(o, site, a, b), result.dtype, **site.shared("matmul"))
    return product if bias is None else o.op("add", [product, bias], result.shape, result.dtype)


def _is_row(bias: Shape, result: Shape) -> bool:
    return bool(bias and result) and bias[-1] == result[-1] == math.prod(bias) and len(bias) <= len(result)


def _product_shape(o: Ops, site: Site, a: Value, b: Value) -> Shape:
    left, right = o.shape(a), o.shape(b)
    rows = left[-2:-1] if not site["transpose_a"] else left[-1:]
    columns = right[-1:] if not site["transpose_b"] else right[-2:-1]
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    return (*batch, *(rows if len(left) > 1 else ()), *(columns if len(right) > 1 else ()))


@PATTERNS.add("dot_general")
def _dot_general(o: Ops, site: Site) -> Value:
    """Multiplies both sides as batches of matrices; the product has its dims in the right order already."""
    (a, b), result = site.xs, site.result
    left, count = _matrices(o, a, site["batch_dims_lhs"], site["contract_dims_lhs"], contracted_first=False)
    right, _ = _matrices(o, b, site["batch_dims_rhs"], site["contract_dims_rhs"], contracted_first=True)
    if count == 1:
        left, right = (o.reshape(x, o.shape(x)[1:]) for x in (left, right))
    shape = (*o.shape(left)[:-1], o.shape(right)[-1])
    return o.reshape(o.op("matmul", [left, right], shape, result.dtype), result.shape)


def _matrices(
    o: Ops, x: Value, batch: Sequence[int], contracted: Sequence[int], *, contracted_first: bool
) -> tuple[Value, int]:
    """Returns a tensor as (batch, free, contracted) or (batch, contracted, free), and the size of the batch."""
    shape = o.shape(x)
    batch, contracted = [d % len(shape) for d in batch], [d % len(shape) for d in contracted]
    free = [d for d in range(len(shape)) if d not in batch and d not in contracted]
    groups = [batch, contracted, free] if contracted_first else [batch, free, contracted]
    moved = o.permute(x, [d for group in groups for d in group])
    sizes = [math.prod(shape[d] for d in group) for group in groups]
    return o.reshape(moved, sizes), sizes[0]


# --- reductions ------------------------------------------------------------------------------------------------------


def _dims(o: Ops, site: Site) -> Shape:
    rank = len(o.shape(site.x))
    dims = site["dim_arg"]
    return tuple(range(rank)) if dims is None else tuple(d % rank for d in dims)


@PATTERNS.add("mean")
def _mean(o: Ops, site: Site) -> Value | Sequence[Value]:
    result = site.result
    if not is_integer(o.dtype(site.x)) and o.dtype(site.x) != BOOL:
        return carry_over(o, site)
    # The mean of integers is computed in float32, as in JAX.
    x = o.cast(site.x, np.float32)
    return o.cast(o.op("mean", [x], result.shape, np.float32, **site.shared("mean")), result.dtype)


@PATTERNS.add("prod")
def _prod(o: Ops, site: Site) -> Value:
    x, dims, result = site.x, _dims(o, site), site.result
    if len(dims) == len(o.shape(x)):
        return o.op("prod", [x], result.shape, result.dtype, keep_dim=site["keep_dim"])
    # TTNN multiplies over one dim or over all.
    for dim in dims:
        shape = [1 if d == dim else n for d, n in enumerate(o.shape(x))]
        x = o.op("prod", [x], shape, result.dtype, dim_arg=dim, keep_dim=True)
    return o.reshape(x, result.shape)


@PATTERNS.add("reduce_and", "reduce_or")
def _reduce_bools(o: Ops, site: Site) -> Value:
    x, dims, result = site.x, _dims(o, site), site.result
    every = site.name == "reduce_and"
    if not math.prod(o.shape(x)):
        return o.full(result.shape, every, result.dtype)
    if o.dtype(x) != BOOL:
        x = o.op("ne", [x, o.full((), 0, o.dtype(x))], o.shape(x), BOOL)
    if dims:
        x = o.reduce("min" if every else "max", x, dims, site["keep_dim"])
    return o.cast(x, result.dtype)


@PATTERNS.add("argmax")
def _argmax(o: Ops, site: Site) -> Value:
    dims, result = _dims(o, site), site.result
    dim = dims[0] if len(dims) == 1 else None
    found = o.op("argmax", [site.x], result.shape, INDEX, dim=dim, keep_dim=site["keep_dim"])
    return o.cast(found, result.dtype)


@PATTERNS.add("sort", "topk")
def _sort(o: Ops, site: Site) -> Sequence[Value]:
    values, order = site.results
    kinds = [o.tiled(values.shape, values.dtype), o.tiled(order.shape, INDEX)]
    ordered, indices = o.emit(site.name, [site.x], kinds, site.shared(site.name))
    return ordered, o.cast(indices, order.dtype)
