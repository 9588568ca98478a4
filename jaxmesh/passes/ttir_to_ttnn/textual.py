"""Patterns of ops without a call in Python and C++; most of them are carried over unchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax

from jaxmesh.dialects.program import Type, Value
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.ttir_to_ttnn.builder import Ops, Pattern, Site
from jaxmesh.passes.ttir_to_ttnn.images import pool_sizes

PATTERNS: Rules[Pattern] = Rules()

_MOST_EXPERTS = 8
"""The kernel of `topk_router_gpt` gives so many experts; fewer are sliced from them."""


@PATTERNS.add("sampling")
def _sampling(o: Ops, site: Site) -> Value:
    """Reshapes for TTNN, which takes values and their indices as (1, 1, rows, width), and gives (1, 1, 1, rows)."""
    values, indices, *rest = site.xs
    shape = (1,) * (4 - len(o.shape(values))) + o.shape(values)
    rows, kind = shape[-2], site.result.dtype
    operands = [o.reshape(values, shape), o.reshape(indices, shape), *rest]
    return o.reshape(o.op("sampling", operands, (1, 1, 1, rows), kind, seed=site["seed"]), site.result.shape)


@PATTERNS.add("topk_router_gpt")
def _router(o: Ops, site: Site) -> Sequence[Value]:
    wide = [Type((*t.shape[:-1], _MOST_EXPERTS), t.dtype, tile=True) for t in site.results]
    made = o.emit(site.name, site.operands, wide, {**site.op.attributes, "k": _MOST_EXPERTS})
    return [o.slice(v, (0,) * len(t.shape), t.shape) for v, t in zip(made, site.results, strict=True)]


@PATTERNS.add("chunked_scaled_dot_product_attention", "paged_scaled_dot_product_attention_decode")
def _paged_attention(o: Ops, site: Site) -> Sequence[Value]:
    """Drops the destination, which TTNN lacks."""
    operands = list(site.operands)
    del operands[_DESTINATION[site.name]]
    (kind,) = [o.tensor_type(t.shape, t.dtype) for t in site.results]
    attributes = {k: v for k, v in site.op.attributes.items() if "Segment" not in k}
    return o.emit(site.name, operands, [kind], attributes)


_DESTINATION = {"chunked_scaled_dot_product_attention": 5, "paged_scaled_dot_product_attention_decode": 4}


@PATTERNS.add("adamw")
def _adamw(o: Ops, site: Site) -> Sequence[Value]:
    """Updates the parameter and its moments where they are."""
    o.emit(site.name, site.operands, [], site.op.attributes)
    parameter, _, *moments = site.xs
    return parameter, *moments


@PATTERNS.add("batch_norm_training")
def _batch_norm(o: Ops, site: Site) -> Sequence[Value]:
    """Updates the running mean and variance where they are."""
    x, scale, offset, mean, variance = site.xs
    dim: int = site["dimension"]
    shape = [1] * len(o.shape(x))
    shape[dim] = o.shape(x)[dim]
    weight, bias, running, spread = (o.reshape(v, shape) for v in (scale, offset, mean, variance))
    shared = {"epsilon": site["epsilon"], "momentum": site["momentum"]}
    out = o.op(site.name, [x, running, spread, weight, bias], site.result.shape, site.result.dtype, **shared)
    return out, o.reshape(running, site.results[1].shape), o.reshape(spread, site.results[2].shape)


@PATTERNS.add("group_norm")
def _group_norm(o: Ops, site: Site) -> Value:
    """Makes the channels the last dim of (batch, 1, all pixels, channels), and the weight and the bias rows of 32, as
    TTNN takes them."""
    x, *rest = site.operands
    assert x is not None
    shape = o.shape(x)
    dim: int = site["channel_dim"] % len(shape)
    if (width := shape[dim]) % 32 == 0:
        rest = [v if v is None or len(o.shape(v)) != 1 else o.reshape(v, (1, 1, width // 32, 32)) for v in rest]
    order = [*(d for d in range(len(shape)) if d != dim), dim]
    moved = tuple(shape[d] for d in order)
    rows = (shape[0], 1, math.prod(moved[1:-1]), shape[dim])
    attributes = {k: v for k, v in site.op.attributes.items() if k != "channel_dim"}
    operands = [o.reshape(o.permute(x, order), rows), *rest]
    (y,) = o.emit(site.name, operands, [o.tensor_type(rows, site.result.dtype)], attributes)
    return o.permute(o.reshape(y, moved), [order.index(d) for d in range(len(shape))])


@PATTERNS.add("max_pool2d_with_indices")
def _pool(o: Ops, site: Site) -> Sequence[Value]:
    x = site.x
    batch, height, width, channels = o.shape(x)
    flat = (1, 1, math.prod(site.result.shape[:3]), channels)
    kinds = [Type(flat, t.dtype, tile=True) for t in site.results]
    image = o.reshape(x, (1, 1, batch * height * width, channels))
    made = o.emit(site.name, [image], kinds, pool_sizes(o, site))
    return [o.reshape(v, t.shape) for v, t in zip(made, site.results, strict=True)]


# --- convolutions of one and three dims ------------------------------------------------------------------------------


def _each(value: jax.Array, count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)


@PATTERNS.add("conv1d")
def _conv1d(o: Ops, site: Site) -> Value:
    """Computes with the bias and the flat result of a convolution of images, which TTNN's conv1d calls."""
    x, weight, bias = site.xs[0], site.xs[1], site.optional(2)
    order: list[int] = [site[name] for name in ("batch_dim", "length_dim", "channel_dim")]
    batch, length, channels = (o.shape(x)[d] for d in order)
    outs, _, kernel = o.shape(weight)
    padding = _each(site["padding"], 2)
    sizes = {"in_channels": channels, "out_channels": outs, "batch_size": batch, "input_length": length}
    window = {"kernel_size": kernel, "padding": padding, "groups": site["groups"]}
    strides = {name: _each(site[name], 1)[0] for name in ("stride", "dilation")}
    shape = [site.result.shape[d] for d in order]
    row = None if bias is None else o.reshape(bias, (1, 1, 1, outs))
    operands = [o.permute(x, order), weight, row, o.handle]
    flat = (1, 1, shape[0] * shape[1], outs)
    out = o.op("conv1d", operands, flat, site.result.dtype, **sizes, **window, **strides)
    return o.permute(o.reshape(out, shape), [order.index(d) for d in range(3)])


@PATTERNS.add("conv3d")
def _conv3d(o: Ops, site: Site) -> Value:
    """Places the channels as TTNN takes them: in whole tiles, last, and the weight as a matrix that it prepares."""
    x, weight, bias = site.xs[0], site.xs[1], site.optional(2)
    order: list[int] = [site[name] for name in ("batch_dim", "depth_dim", "height_dim", "width_dim", "channel_dim")]
    image = o.permute(x, order)
    batch, depth, height, width, channels = o.shape(image)
    outs, _, *kernel = o.shape(weight)
    whole = -(-channels // _TILE) * _TILE
    image = o.pad(image, [(0, 0)] * 4 + [(0, whole - channels)])
    weight = o.pad(weight, [(0, 0), (0, whole - channels), (0, 0), (0, 0), (0, 0)])
    rows = (math.prod(kernel) * whole, outs)
    blocks = {"alignment": _TILE, "c_in_block": whole, "groups": site["groups"]}
    prepared = o.op("prepare_conv3d_weights", [weight, o.handle], rows, o.dtype(weight), **blocks)
    sizes = {
        "in_channels": whole, "out_channels": outs, "batch_size": batch, "input_depth": depth, "input_height": height,
        "input_width": width, "kernel_size": tuple(kernel), "groups": site["groups"],
        "padding_mode": site["padding_mode"], "stride": _each(site["stride"], 3), "padding": _each(site["padding"], 3),
    }  # fmt: skip
    row = None if bias is None else o.reshape(bias, (1, outs))
    shape = [site.result.shape[d] for d in order]
    out = o.op("conv3d", [image, prepared, row, o.handle], shape, site.result.dtype, **sizes)
    return o.permute(out, [order.index(d) for d in range(5)])


_TILE = 32
