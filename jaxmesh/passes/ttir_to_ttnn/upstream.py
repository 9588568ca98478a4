"""Patterns that upstream's pipeline has and the real library does not need; a text of upstream's form is made with
them, in place of the patterns of the same names.

Some lose bits: tt-mlir 19c86fca computes tanh, products, pools and lookups in bfloat16, and integers of `where` in
float32 (lib/Dialect/TTNN/IR/TTNNWorkaroundsPass.cpp), which is why a program that runs is made without them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.dialects.ttnn.forms import stored_as
from jaxmesh.passes.rules import Rules
from jaxmesh.passes.ttir_to_ttnn import images, patterns
from jaxmesh.passes.ttir_to_ttnn.builder import Ops, Pattern, Site, is_integer
from jaxmesh.passes.ttir_to_ttnn.shapes import carry_over, slice_static

PATTERNS: Rules[Pattern] = Rules()

Made = Value | Sequence[Value]
_BF16: Any = np.dtype(jnp.bfloat16)
_TILE = 32


def _cast(o: Ops, x: Value, dtype: np.dtype[Any]) -> Value:
    """Converts to a type that is stored otherwise; a truth value is a bfloat16."""
    return x if stored_as(o.dtype(x)) == stored_as(dtype) else o.cast(x, dtype)


def _number(o: Ops, value: Value) -> int | float | None:
    """Returns the number that fills a value, behind reshapes and conversions; None if it is not known."""
    op = o.behind(value, "ttnn.typecast")
    return op.attributes["fill_value"] if op is not None and op.name == "ttnn.full" else None


# --- elementwise -----------------------------------------------------------------------------------------------------


@PATTERNS.add("tanh")
def _tanh(o: Ops, site: Site) -> Value:
    return o.cast(o.same("tanh", [_cast(o, site.x, _BF16)]), site.result.dtype)


@PATTERNS.add("pow")
def _pow(o: Ops, site: Site) -> Made:
    x, exponent = site.xs
    number = _number(o, exponent)
    # The real function refuses negative exponents.
    if number is None or number < 0:
        return patterns.PATTERNS["pow"](o, site) if "pow" in patterns.PATTERNS else carry_over(o, site)
    return o.op("pow_scalar", [x], site.result.shape, site.result.dtype, rhs=number)


@PATTERNS.add("clamp_tensor")
def _clamp_tensor(o: Ops, site: Site) -> Made:
    x, low, high = site.xs
    bounds = [_number(o, low), _number(o, high)]
    if bounds[0] is None or bounds[1] is None:
        return carry_over(o, site)
    least, most = (_in_32_bits(n) if is_integer(site.result.dtype) else n for n in bounds if n is not None)
    return o.op("clamp_scalar", [x], site.result.shape, site.result.dtype, min=least, max=most)


def _in_32_bits(number: float) -> int:
    return min(max(int(number), -(2**31)), 2**31 - 1)


@PATTERNS.add("where")
def _where(o: Ops, site: Site) -> Value:
    kind = np.dtype(np.float32) if is_integer(site.result.dtype) else site.result.dtype
    return o.cast(o.op("where", [_cast(o, v, kind) for v in site.xs], site.result.shape, kind), site.result.dtype)


# --- products --------------------------------------------------------------------------------------------------------


@PATTERNS.add("matmul")
def _matmul(o: Ops, site: Site) -> Made:
    return patterns.PATTERNS["matmul"](o, site) if is_integer(site.result.dtype) else carry_over(o, site)


@PATTERNS.add("linear")
def _linear(o: Ops, site: Site) -> Made:
    """Splits the op, since the real function takes one matrix on the right, and a bias of one row."""
    (a, b), bias, result = site.xs[:2], site.optional(2), site.result
    turned: list[bool] = [site["transpose_a"], site["transpose_b"]]
    shapes = [s[:-2] + s[:-3:-1] if t and len(s) > 1 else s for s, t in zip(map(o.shape, (a, b)), turned, strict=True)]
    shape = product_shape(shapes[0], shapes[1])
    batched = math.prod(o.shape(b)[:-2]) > 1
    if (
        is_integer(result.dtype)
        or bias is None
        or (not batched and o.shape(bias) == shape[-1:] and shape == result.shape)
    ):
        return patterns.PATTERNS["linear"](o, site) if is_integer(result.dtype) else carry_over(o, site)
    shared = dict(zip(("transpose_a", "transpose_b"), turned, strict=True))
    product = o.op("matmul", [a, b], shape, result.dtype, **shared)
    return o.op("add", [product, bias], result.shape, result.dtype)


def product_shape(a: Shape, b: Shape) -> Shape:
    """Returns the shape of a product in TTNN: a product of two vectors has one dim.

    >>> product_shape((4,), (4,)), product_shape((5, 2, 3), (3, 4))
    ((1,), (5, 2, 4))
    """
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())) or (1,)


# --- reductions and moves --------------------------------------------------------------------------------------------


@PATTERNS.add("prod")
def _prod(o: Ops, site: Site) -> Made:
    rank, dims = len(o.shape(site.x)), site["dim_arg"]
    if dims is not None and len(dims) not in (1, rank):
        return patterns.PATTERNS["prod"](o, site)
    dim = None if dims is None or len(dims) == rank > 1 else dims[0]
    x, shared = _cast(o, site.x, _BF16), {"keep_dim": site["keep_dim"]}
    return o.cast(o.op("prod", [x], site.result.shape, _BF16, dim_arg=dim, **shared), site.result.dtype)


@PATTERNS.add("reduce_or")
def _reduce_or(o: Ops, site: Site) -> Value:
    shared = {"dim_arg": site["dim_arg"], "keep_dim": site["keep_dim"]}
    return o.op("sum", [site.x], site.result.shape, site.result.dtype, **shared)


@PATTERNS.add("slice_static")
def _slice_static(o: Ops, site: Site) -> Value:
    """Casts, since the real function takes strided slices of unsigned integers in 32 bits."""
    kind = site.result.dtype
    if kind.kind != "u" or kind.itemsize == 4 or max(site["step"], default=1) <= 1:
        return slice_static(o, site)
    wide = replace(site.result, dtype=np.dtype(np.uint32))
    operand = o.cast(site.x, wide.dtype)
    return o.cast(slice_static(o, replace(site, operands=(operand,), results=(wide,))), kind)


@PATTERNS.add("slice_dynamic")
def _slice_dynamic(o: Ops, site: Site) -> Made:
    return carry_over(o, site)


@PATTERNS.add("gather")
def _gather(o: Ops, site: Site) -> Made:
    if len(site.result.shape) == 1 or not math.prod(site.result.shape):
        return patterns.PATTERNS["gather"](o, site)
    return o.op("gather", site.xs, site.result.shape, site.result.dtype, dim=site["dim"])


# --- lookups ---------------------------------------------------------------------------------------------------------


@PATTERNS.add("embedding")
def _embedding(o: Ops, site: Site) -> Value:
    ids, table = site.xs
    shape = o.shape(table)
    if len(shape) > _MOST_DIMS:
        table = o.reshape(table, (1, 1, *shape[-2:]))
    operands = [o.cast(ids, np.uint32), _cast(o, table, _BF16)]
    looked_up = o.op("embedding", operands, (*o.shape(ids), shape[-1]), _BF16)
    return o.cast(o.reshape(looked_up, site.result.shape), site.result.dtype)


_MOST_DIMS = 4


@PATTERNS.add("embedding_backward")
def _embedding_backward(o: Ops, site: Site) -> Value:
    """Reshapes for TTNN: indices to (batch, 1, 1, length) in whole tiles, gradients to (1, 1, rows, width)."""
    ids, table, slopes = site.xs
    more = -o.shape(slopes)[-2] % _TILE
    slopes = o.pad(slopes, [(0, 0)] * (len(o.shape(slopes)) - 2) + [(0, more), (0, 0)])
    slopes = o.reshape(slopes, (1, 1, math.prod(o.shape(slopes)[:-1]), o.shape(slopes)[-1]))
    shape = o.shape(ids)
    if len(shape) > 2 and shape[-1] == 1:
        ids = o.reshape(ids, shape[:-1])
    ids = o.pad(ids, [(0, 0)] * (len(o.shape(ids)) - 1) + [(0, more)])
    if len(o.shape(ids)) <= 2:
        batch, length = (1, *o.shape(ids))[-2:]
        ids = o.reshape(ids, (batch, 1, 1, length))
    operands = [o.cast(ids, np.uint32), _cast(o, table, _BF16), _cast(o, slopes, _BF16)]
    made = o.op("embedding_bw", operands, (1, 1, *site.result.shape), _BF16)
    return o.cast(o.reshape(made, site.result.shape), site.result.dtype)


# --- images and heads ------------------------------------------------------------------------------------------------


@PATTERNS.add("max_pool2d", "avg_pool2d")
def _pool(o: Ops, site: Site) -> Made:
    if site.name == "avg_pool2d" and site["dilation"] not in (1, (1, 1)):
        return patterns.PATTERNS[site.name](o, site)
    narrow = tuple(replace(t, dtype=_BF16) for t in site.results)
    pooled = images.pool(o, replace(site, operands=(_cast(o, site.x, _BF16),), results=narrow))
    return o.cast(pooled, site.result.dtype)


@PATTERNS.add("split_query_key_value_and_split_heads")
def _split_heads(o: Ops, site: Site) -> Made:
    """Splits by slices, since the real function takes heads of whole tiles alone."""
    query, _, value = site.results
    if not query.shape[-1] % _TILE:
        return carry_over(o, site)
    turned: bool = site["transpose_key"]
    batch, heads, length, size = query.shape
    kept = value.shape[1]
    widths = [heads * size, kept * size, kept * size]
    if len(site.xs) == 1:
        wide = [_columns(o, site.x, sum(widths[:i]), widths[i]) for i in range(3)]
        split = [o.reshape(v, (batch, length, w // size, size)) for v, w in zip(wide, widths, strict=True)]
        parts = [o.permute(v, (0, 2, 1, 3)) for v in split]
    else:
        first = o.permute(o.reshape(site.x, (batch, length, heads, size)), (0, 2, 1, 3))
        wide = [_columns(o, site.xs[1], i * widths[1], widths[1]) for i in range(2)]
        parts = [first, *(o.permute(o.reshape(v, (batch, length, kept, size)), (0, 2, 1, 3)) for v in wide)]
    return [parts[0], o.permute(parts[1], (0, 1, 3, 2)) if turned else parts[1], parts[2]]


def _columns(o: Ops, x: Value, begin: int, count: int) -> Value:
    return o.piece(x, len(o.shape(x)) - 1, begin, begin + count)
