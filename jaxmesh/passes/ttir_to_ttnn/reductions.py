"""Patterns of products, reductions and normalisations, whose statistics are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.jaxprs.untyped import DType
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.ttir_to_ttnn.builder import BOOL, Ops, Pattern, Site, is_integer
from jaxmesh.passes.ttir_to_ttnn.elementwise import matrix_product
from jaxmesh.passes.ttir_to_ttnn.shapes import carry_over

PATTERNS: Rules[Pattern] = Rules()

# --- products --------------------------------------------------------------------------------------------------------


@PATTERNS.add("matmul", "linear")
def _linear(o: Ops, site: Site) -> Value | Sequence[Value]:
    a, b, bias, result = site.xs[0], site.xs[1], site.optional(2), site.result
    plain = len(o.shape(b)) == 2 and not _is_whole(result.dtype)
    if plain and (bias is None or _is_row(o.shape(bias), result.shape)):
        return carry_over(o, site)
    product = _product(o, site, a, b) if not plain else _plain_product(o, site, a, b)
    if bias is None:
        return o.reshape(product, result.shape)
    return o.op("add", [product, bias], result.shape, result.dtype)


def _is_whole(dtype: DType) -> bool:
    return dtype == BOOL or is_integer(dtype)


def _is_row(bias: Shape, result: Shape) -> bool:
    return bool(bias and result) and bias[-1] == result[-1] == math.prod(bias) and len(bias) <= len(result)


def _plain_product(o: Ops, site: Site, a: Value, b: Value) -> Value:
    left, right = o.shape(a), o.shape(b)
    rows = left[-2:-1] if not site["transpose_a"] else left[-1:]
    columns = right[-1] if not site["transpose_b"] else right[-2]
    shape = (*left[:-2], *(rows if len(left) > 1 else ()), columns)
    return o.op("matmul", [a, b], shape, site.result.dtype, **site.shared_attributes("matmul"))


def _product(o: Ops, site: Site, a: Value, b: Value) -> Value:
    """Computes a product as batches of matrices; the real library broadcasts no batch of the second operand."""
    left = _matrix(o, a, site["transpose_a"], (1, -1))
    right = _matrix(o, b, site["transpose_b"], (-1, 1))
    batch = np.broadcast_shapes(o.shape(left)[:-2], o.shape(right)[:-2])
    left_batch, right_batch = (_flat_batch(o, x, batch) for x in (left, right))
    rows = o.shape(left)[-2:-1] if len(o.shape(a)) > 1 else ()
    columns = o.shape(right)[-1:] if len(o.shape(b)) > 1 else ()
    product = matrix_product(o, left_batch, right_batch, site.result.dtype)
    return o.reshape(product, (*batch, *rows, *columns))


def _matrix(o: Ops, x: Value, transposed: bool, vector: tuple[int, int]) -> Value:
    """Returns a batch of matrices; of a vector a row or a column."""
    shape = o.shape(x)
    if len(shape) == 1:
        return o.reshape(x, [shape[0] if n < 0 else n for n in vector])
    order = list(range(len(shape)))
    return o.permute(x, [*order[:-2], order[-1], order[-2]]) if transposed else x


def _flat_batch(o: Ops, x: Value, batch: Shape) -> Value:
    """Repeats a batch of matrices to a larger one, and gives it one dim."""
    shape = o.shape(x)
    own = (1,) * (len(batch) + 2 - len(shape)) + shape
    wide = o.repeat(o.reshape(x, own), [*(w // n if n else 1 for w, n in zip(batch, own[:-2], strict=True)), 1, 1])
    return o.reshape(wide, (math.prod(batch), *shape[-2:]))


# --- reductions ------------------------------------------------------------------------------------------------------


@PATTERNS.add("mean")
def _mean(o: Ops, site: Site) -> Value | Sequence[Value]:
    result = site.result
    if not is_integer(o.dtype(site.x)) and o.dtype(site.x) != BOOL:
        return carry_over(o, site)
    # The mean of integers is computed in float32, as in JAX.
    x = o.cast(site.x, np.float32)
    return o.cast(o.op("mean", [x], result.shape, np.float32, **site.shared_attributes("mean")), result.dtype)


@PATTERNS.add("reduce_and", "reduce_or")
def _reduce_bools(o: Ops, site: Site) -> Value:
    x, dims, result = site.x, site.dims(len(o.shape(site.x))), site.result
    every = site.name == "reduce_and"
    if not math.prod(o.shape(x)):
        return o.full(result.shape, every, result.dtype)
    if o.dtype(x) != BOOL:
        x = o.op("ne", [x, o.full((), 0, o.dtype(x))], o.shape(x), BOOL)
    if dims:
        x = o.reduce("min" if every else "max", x, dims, site["keep_dim"])
    return o.cast(x, result.dtype)


@PATTERNS.add("layer_norm", "rms_norm")
def _norm(o: Ops, site: Site) -> Value:
    # TTNN normalises the last dim.
    normalized = tuple(site["normalized_shape"])
    x, result = site.x, site.result
    width = math.prod(normalized)
    flat = (*result.shape[: len(result.shape) - len(normalized)], width)
    scales = [None if v is None else o.reshape(v, (width,)) for v in (site.optional(1), site.optional(2))]
    operands = [o.reshape(x, flat), *scales]
    out = o.op(site.name, operands[: len(site.operands)], flat, result.dtype, epsilon=site["epsilon"])
    return o.reshape(out, result.shape)


@PATTERNS.add("batch_norm_inference")
def _batch_norm(o: Ops, site: Site) -> Value:
    x, scale, offset, mean, variance = site.xs
    shape = site.result.shape
    dim: int = site["dimension"] % len(shape)
    channels = shape[dim]
    before, after = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    image = shape if len(shape) == 4 and dim == 1 else (before, channels, after, 1)
    rows = [o.reshape(v, (1, channels, 1, 1)) for v in (mean, variance, scale, offset)]
    flat = o.reshape(x, image)
    out = o.op("batch_norm_inference", [flat, *rows], image, site.result.dtype, epsilon=site["epsilon"])
    return o.reshape(out, shape)
