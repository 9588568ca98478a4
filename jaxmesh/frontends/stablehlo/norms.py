"""Batch normalisation."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from jaxmesh.frontends.jax.retype import join_axes, spread
from jaxmesh.frontends.stablehlo.call import OpFamily, ShardedCall

OPS = OpFamily()
_lax: Any = jax.lax


def _aligned(call: ShardedCall) -> list[Any]:
    """Returns the operands; per-feature operands are reshaped to the rank of the first."""
    axes = join_axes(call.operands)
    x, *rest = (spread(v, axes) for v in call.operands)
    shape = [1] * x.ndim
    shape[call["feature_index"]] = -1
    return [x, *(v if v.ndim == x.ndim else v.reshape(shape) for v in rest)]


def _sum(call: ShardedCall, x: Any) -> Any:
    """Returns the sum over all dims but the feature dim, one number per feature."""
    return _lax.reduce_sum(x, tuple(d for d in range(x.ndim) if d != call["feature_index"]))


def _count(call: ShardedCall, x: Any) -> Any:
    return np.asarray(math.prod(x.shape) // x.shape[call["feature_index"]], x.dtype)


def _deviation(call: ShardedCall, variance: Any) -> Any:
    return _lax.sqrt(variance + np.asarray(call["epsilon"], variance.dtype))


@OPS.add("stablehlo.batch_norm_inference")
def _inference(call: ShardedCall) -> Any:
    x, scale, offset, mean, variance = _aligned(call)
    return (x - mean) / _deviation(call, variance) * scale + offset


@OPS.add("stablehlo.batch_norm_training")
def _training(call: ShardedCall) -> Any:
    x, scale, offset = _aligned(call)
    count = _count(call, x)
    mean = _sum(call, x) / count
    centered = x - mean.reshape(scale.shape)
    variance = _sum(call, centered * centered) / count
    return [centered / _deviation(call, variance.reshape(scale.shape)) * scale + offset, mean, variance]


@OPS.add("stablehlo.batch_norm_grad")
def _grad(call: ShardedCall) -> Any:
    x, scale, mean, variance, cotangent = _aligned(call)
    count, deviation = _count(call, x), _deviation(call, variance)
    normal = (x - mean) / deviation
    to_scale, to_offset = _sum(call, cotangent * normal), _sum(call, cotangent)
    rest = (to_offset.reshape(mean.shape) + normal * to_scale.reshape(mean.shape)) / count
    return [scale / deviation * (cotangent - rest), to_scale, to_offset]
