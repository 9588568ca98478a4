"""Patterns of normalisations. Statistics are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.passes.rules import Rules
from jaxmesh.passes.ttir_to_ttnn.builder import Ops, Pattern, Site
from jaxmesh.passes.ttir_to_ttnn.collectives import all_reduce_sum

PATTERNS: Rules[Pattern] = Rules()


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


# --- over a mesh axis ------------------------------------------------------------------------------------------------


def _wide(o: Ops, site: Site, residual: Value | None) -> Value:
    x = o.cast(site.x, np.float32)
    return x if residual is None else o.binary("add", x, o.cast(residual, np.float32))


def _mean_over(o: Ops, x: Value, axis: int) -> Value:
    """Returns the mean over the last dim, which is split over a mesh axis."""
    shape = o.shape(x)
    total = all_reduce_sum(o, o.reduce("sum", x, [len(shape) - 1], keep=True), axis)
    return o.binary("divide", total, o.full((), shape[-1] * o.mesh[axis], np.float32))


def _normalize(o: Ops, site: Site, x: Value, axis: int, steps: Sequence[tuple[str, Value | None]]) -> Value:
    """Returns a value divided by its root mean square, multiplies by the weight and adds the bias."""
    square = _mean_over(o, o.binary("multiply", x, x), axis)
    kept = o.binary("add", square, o.full((), site["epsilon"], np.float32))
    x = o.binary("multiply", x, o.same("rsqrt", [kept]))
    for name, scale in steps:
        if scale is not None:
            row = o.reshape(o.cast(scale, np.float32), (math.prod(o.shape(scale)),))
            x = o.binary(name, x, row)
    return o.cast(x, site.result.dtype)


@PATTERNS.add("distributed_rms_norm")
def _distributed_rms_norm(o: Ops, site: Site) -> Value:
    axis = site["cluster_axis"]
    return _normalize(o, site, _wide(o, site, site.optional(2)), axis, [("multiply", site.optional(1))])


@PATTERNS.add("distributed_layer_norm")
def _distributed_layer_norm(o: Ops, site: Site) -> Value:
    axis = site["cluster_axis"]
    x = _wide(o, site, site.optional(3))
    centred = o.binary("subtract", x, _mean_over(o, x, axis))
    steps = [("multiply", site.optional(1)), ("add", site.optional(2))]
    return _normalize(o, site, centred, axis, steps)
