"""Pooling and resizing of images: (batch, height, width, channels)."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxmesh.dialects.op import Attribute, Call, OpDef, Shape, attr, define, describe, expect, need
from jaxmesh.dialects.ttir.helpers import check_rank, convert, is_integer, jax, jnp, lax, require, vary_together
from jaxmesh.dialects.ttir.windows import FLATTENED, Pair, read_padding, read_pair

OPS: dict[str, OpDef] = {}

_POOL = (
    need("kernel", "any", form="i32"),
    need("stride", "any", form="i32"),
    expect("dilation", "any", 1, form="i32"),
    need("padding", "any", form="i32"),
    expect("ceil_mode", "bool", False),
)


def _pool_padding(call: Call, x: Any) -> tuple[Pair, Pair]:
    """Returns the padding; `ceil_mode` adds at the end what the last window needs."""
    check_rank(call, x, 4, "the input (batch, height, width, channels)")
    made: list[Pair] = []
    kernel, stride, dilation = (read_pair(call, name) for name in ("kernel", "stride", "dilation"))
    for d, (low, high) in enumerate(read_padding(call)):
        size, reach = x.shape[1 + d], dilation[d] * (kernel[d] - 1) + 1
        span = size + low + high - reach
        rule = f"a window of {reach} does not fit dim {1 + d} of {describe(x)}, padded by {low} and {high}"
        require(call, span >= 0, rule)
        more = -span % stride[d] if call["ceil_mode"] else 0
        # A window that starts in the high padding is dropped, as in torch.
        made.append((low, high + (more if span + more < size + low else 0)))
    return made[0], made[1]


def _window(call: Call, x: Any, start: Any, combine: Any, pads: tuple[Pair, Pair]) -> Any:
    def whole(name: str) -> Shape:
        return (1, *read_pair(call, name), 1)

    edges = [(0, 0), *pads, (0, 0)]
    strides, dilation = whole("stride"), whole("dilation")
    return lax.reduce_window(x, start, combine, whole("kernel"), strides, edges, window_dilation=dilation)


@define(OPS, "max_pool2d", 1, *_POOL, options=[FLATTENED])
def _max_pool2d(call: Call) -> Any:
    (x,) = call.operands
    return _window(call, x, _least(x), lax.max, _pool_padding(call, x))


def _least(x: Any) -> Any:
    return np.array(jnp.iinfo(x.dtype).min if is_integer(x) else -np.inf, x.dtype)


def max_pool2d_with_indices(call: Call) -> Any:
    """Computes the largest element of each window, the first of equal ones, and its row-major place in the image."""
    x = call.operands[0]
    check_rank(call, x, 4, "the input (batch, height, width, channels)")
    size = x.shape[1] * x.shape[2]
    place = jnp.arange(size, dtype=jnp.int32).reshape(1, *x.shape[1:3], 1)
    operands = vary_together(x, jnp.broadcast_to(place, x.shape))

    def larger(a: Any, b: Any) -> Any:
        is_first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return tuple(lax.select(is_first, m, n) for m, n in zip(a, b, strict=True))

    return _window(call, tuple(operands), (_least(x), np.int32(size)), larger, _pool_padding(call, x))


DIVISOR = Attribute("divisor_override", "int", form="i32", later=True)
"""The number that each sum is divided by, in place of the number of elements of its window."""


@define(OPS, "avg_pool2d", 1, *_POOL, attr("count_include_pad", "bool", True), DIVISOR, options=[FLATTENED])
def _avg_pool2d(call: Call) -> Any:
    (x,) = call.operands
    pads = _pool_padding(call, x)
    zero = np.array(0, np.float32)
    total = _window(call, convert(x, jnp.float32), zero, lax.add, pads)
    divisor = call["divisor_override"]
    require(call, divisor is None or divisor != 0, "divisor_override is 0")
    return convert(total / (_counts(call, x.shape, pads) if divisor is None else np.float32(divisor)), x.dtype)


def _counts(call: Call, shape: Shape, pads: tuple[Pair, Pair]) -> Any:
    """Returns the number of elements that each window averages, without elements that `ceil_mode` adds."""
    inside = np.ones((1, *shape[1:3], 1), np.float32)
    if call["count_include_pad"]:
        written = read_padding(call)
        inside = np.pad(inside, ((0, 0), *written, (0, 0)), constant_values=1)
        pads = _difference(pads[0], written[0]), _difference(pads[1], written[1])
    return _window(call, jnp.asarray(inside), np.array(0, np.float32), lax.add, pads)


def _difference(pads: Pair, written: Pair) -> Pair:
    return pads[0] - written[0], pads[1] - written[1]


@define(OPS, "global_avg_pool2d", 1)
def _global_avg_pool2d(call: Call) -> Any:
    (x,) = call.operands
    check_rank(call, x, 4, "the input (batch, height, width, channels)")
    return jnp.mean(x, (1, 2), keepdims=True)


@define(OPS, "upsample2d", 1, need("scale_factor", "any", form="si32"), attr("mode", "str", "nearest"))
def _upsample2d(call: Call) -> Any:
    (x,) = call.operands
    check_rank(call, x, 4, "the input (batch, height, width, channels)")
    modes = ("nearest", "bilinear")
    require(call, call["mode"] in modes, f"mode {call['mode']!r} is none of {', '.join(modes)}")
    height, width = read_pair(call, "scale_factor")
    if call["mode"] == "bilinear":
        shape = (x.shape[0], x.shape[1] * height, x.shape[2] * width, x.shape[3])
        return convert(jax.image.resize(convert(x, jnp.float32), shape, "bilinear"), x.dtype)
    return jnp.repeat(jnp.repeat(x, height, axis=1), width, axis=2)
