"""Convolutions, windowed reductions, the gradient of pooling, and batch normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from jaxmesh.dialects.varying import vary_alike
from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.mlir.attributes import Array, Values
from jaxmesh.frontends.stablehlo.call import Arrays, OpFamily, ShardedCall, as_list, enum_of, sums
from jaxmesh.frontends.stablehlo.reductions import body_ops, constant_of, is_identity, kind_of, precision_of
from jaxmesh.frontends.stablehlo.shardings import count
from jaxmesh.frontends.stablehlo.values import COMBINE
from jaxmesh.jaxprs.untyped import lax

OPS = OpFamily()


def _pairs(value: object, rank: int) -> list[tuple[int, int]]:
    pairs = np.broadcast_to(np.asarray(value), (rank, 2)).tolist()
    return [(low, high) for low, high in pairs]


def convolution_dims(op: ir.Operation) -> jax.lax.ConvDimensionNumbers:
    """Returns the dims of a convolution, in JAX's order."""
    dims = hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    return lax.ConvDimensionNumbers(
        (dims.input_batch_dimension, dims.input_feature_dimension, *dims.input_spatial_dimensions),
        (dims.kernel_output_feature_dimension, dims.kernel_input_feature_dimension, *dims.kernel_spatial_dimensions),
        (dims.output_batch_dimension, dims.output_feature_dimension, *dims.output_spatial_dimensions),
    )


@OPS.add("stablehlo.convolution", sums)
def _convolution(call: ShardedCall) -> jax.Array:
    numbers = convolution_dims(call.op)
    x, kernel = call.operands
    spatial = x.ndim - 2
    ones = (1,) * spatial
    if any(call.get("window_reversal", ())):
        raise UnsupportedError("a convolution whose kernel is reversed; reverse the kernel before it.")
    (inputs, kernels), sizes = call.shardings, call.program.sizes
    features = call["feature_group_count"] // count(inputs[numbers.lhs_spec[1]], sizes)
    batches = call["batch_group_count"] // count(kernels[numbers.rhs_spec[0]], sizes)
    return lax.conv_general_dilated(
        *vary_alike(x, kernel),
        tuple(call.get("window_strides", ones)),
        _pairs(call.get("padding", 0), spatial),
        lhs_dilation=tuple(call.get("lhs_dilation", ones)),
        rhs_dilation=tuple(call.get("rhs_dilation", ones)),
        dimension_numbers=numbers,
        feature_group_count=max(features, 1),
        batch_group_count=max(batches, 1),
        precision=precision_of(call),
        preferred_element_type=call.results[0].dtype,
    )


class ReductionWindow(NamedTuple):
    """The window of a reduction."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: list[tuple[int, int]]
    base_dilation: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, op: ir.Operation, read: Values) -> ReductionWindow:
        """Returns the window of a `stablehlo.reduce_window` or `stablehlo.select_and_scatter`."""
        ones = (1,) * len(op.operands[0].type.shape)
        names = "window_dimensions", "window_strides", "base_dilations", "window_dilations"
        rows = (tuple(read(op.attributes[n])) if n in op.attributes else ones for n in names)
        sizes, strides, base, dilation = rows
        padding = read(op.attributes["padding"]) if "padding" in op.attributes else 0
        return cls(sizes, strides, _pairs(padding, len(ones)), base, dilation)


def separate_dims(op: ir.Operation, read: Values) -> list[int]:
    """Returns the dims of a windowed reduction with adjacent windows; their shards need no data of neighbours."""
    shape, result = op.operands[0].type.shape, op.results[0].type.shape
    return [
        d
        for d, (size, stride, *rest) in enumerate(zip(*ReductionWindow.of(op, read), strict=True))
        if size == stride and rest == [(0, 0), 1, 1] and shape[d] == size * result[d]
    ]


@OPS.add("stablehlo.reduce_window")
def _reduce_window(call: ShardedCall) -> jax.Array | list[jax.Array]:
    number = len(call.operands) // 2
    kind, start = kind_of(call.op), constant_of(call.op.operands[-1])
    x = call.operands[0]
    window = ReductionWindow.of(call.op, call.program.read)
    cumulative = _cumulative_dim(x.shape, window)
    if number != 1 or kind is None:
        return _reduce_windows_by_body(call, window, cumulative)
    if start is not None and is_identity(start, kind, x.dtype):
        if cumulative is not None and kind in _CUMULATIVE:
            dim, reverse = cumulative
            return _CUMULATIVE[kind](x, axis=dim, reverse=reverse)
        # With a NumPy start, JAX recognises the identity, and the reduction is differentiable.
        return lax.reduce_window(x, np.asarray(start, x.dtype)[()], COMBINE[kind], *window)
    return lax.reduce_window(*vary_alike(*call.operands), COMBINE[kind], *window)


_CUMULATIVE = {"sum": lax.cumsum, "max": lax.cummax, "min": lax.cummin, "prod": lax.cumprod}


def _cumulative_dim(shape: Sequence[int], window: ReductionWindow) -> tuple[int, bool] | None:
    """Returns the dim along which a window holds all previous elements, or all later ones (True); None for others."""
    sizes, strides, padding, base, dilation = window
    dims = [d for d, n in enumerate(sizes) if n != 1]
    if len(dims) != 1 or {*strides, *base, *dilation} != {1}:
        return None
    (dim,) = dims
    length = shape[dim]
    if sizes[dim] != length or any(p != (0, 0) for d, p in enumerate(padding) if d != dim):
        return None
    match padding[dim]:
        case (before, 0) if before == length - 1:
            return dim, False
        case (0, after) if after == length - 1:
            return dim, True
        case _:
            return None


def _reduce_windows_by_body(
    call: ShardedCall, window: ReductionWindow, cumulative: tuple[int, bool] | None
) -> list[jax.Array]:
    """Reduces windows by any associative body; a cumulative reduction in a logarithmic number of steps."""
    run = call.program.body(call.op.regions[0])

    def combine(left: Arrays, right: Arrays) -> tuple[jax.Array, ...]:
        # A body is of scalars, also its constants.
        by_element = run
        for _ in range(as_list(left)[0].ndim):
            by_element = jax.vmap(by_element)
        return tuple(by_element(*as_list(left), *as_list(right)))

    operands = vary_alike(*call.operands)
    xs, starts = tuple(operands[: len(operands) // 2]), tuple(operands[len(operands) // 2 :])
    if cumulative is None:
        return list(lax.reduce_window(xs, starts, combine, *window))
    dim, reverse = cumulative
    scanned = lax.associative_scan(combine, xs, reverse=reverse, axis=dim)
    return list(combine(tuple(lax.broadcast(s, x.shape) for s, x in zip(starts, xs, strict=True)), scanned))


@OPS.add("stablehlo.select_and_scatter")
def _select_and_scatter(call: ShardedCall) -> jax.Array:
    x, source, _ = call.operands
    value = constant_of(call.op.operands[2])
    (compare,) = body_ops(call.op, 0)
    direction = enum_of(compare, "comparison_direction")
    select = {"GE": lax.ge_p, "LE": lax.le_p}.get(direction)
    if select is None or kind_of(call.op, 1) != "sum" or value is None or value.item() != 0:
        raise UnsupportedError(
            f"a select_and_scatter that selects by {direction} and starts from {value}; supported are selections by "
            "GE or LE that add to zeros."
        )
    window = ReductionWindow.of(call.op, call.program.read)
    return lax.select_and_scatter_add_p.bind(
        *vary_alike(source, x),
        select_prim=select,
        window_dimensions=window.sizes,
        window_strides=window.strides,
        padding=tuple(window.padding),
    )


# --- batch normalisation ----------------------------------------------------------------------------------------------


def _aligned(call: ShardedCall) -> list[jax.Array]:
    """Returns the operands; per-feature operands are reshaped to the rank of the first."""
    x, *rest = vary_alike(*call.operands)
    shape = [1] * x.ndim
    shape[call["feature_index"]] = -1
    return [x, *(v if v.ndim == x.ndim else v.reshape(shape) for v in rest)]


def _sum(call: ShardedCall, x: jax.Array) -> jax.Array:
    """Returns the sum over all dims but the feature dim, one number per feature."""
    return lax.reduce_sum(x, tuple(d for d in range(x.ndim) if d != call["feature_index"]))


def _count(call: ShardedCall, x: jax.Array) -> Array:
    return np.asarray(math.prod(x.shape) // x.shape[call["feature_index"]], x.dtype)


def _deviation(call: ShardedCall, variance: jax.Array) -> jax.Array:
    return lax.sqrt(variance + np.asarray(call["epsilon"], variance.dtype))


@OPS.add("stablehlo.batch_norm_inference")
def _inference(call: ShardedCall) -> jax.Array:
    x, scale, offset, mean, variance = _aligned(call)
    return (x - mean) / _deviation(call, variance) * scale + offset


@OPS.add("stablehlo.batch_norm_training")
def _training(call: ShardedCall) -> list[jax.Array]:
    x, scale, offset = _aligned(call)
    count = _count(call, x)
    mean = _sum(call, x) / count
    centered = x - mean.reshape(scale.shape)
    variance = _sum(call, centered * centered) / count
    return [centered / _deviation(call, variance.reshape(scale.shape)) * scale + offset, mean, variance]


@OPS.add("stablehlo.batch_norm_grad")
def _grad(call: ShardedCall) -> list[jax.Array]:
    x, scale, mean, variance, cotangent = _aligned(call)
    count, deviation = _count(call, x), _deviation(call, variance)
    normal = (x - mean) / deviation
    to_scale, to_offset = _sum(call, cotangent * normal), _sum(call, cotangent)
    rest = (to_offset.reshape(mean.shape) + normal * to_scale.reshape(mean.shape)) / count
    return [scale / deviation * (cotangent - rest), to_scale, to_offset]
