"""Patterns of convolutions and pooling.

TTNN takes images as (1, 1, batch * height * width, channels). Ops around them express the rest: negative paddings,
zeros between the elements of an input, dilated averages, fewer or more spatial dims than two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.dialects.ttnn.forms import BF16, stored_as
from jaxmesh.jaxprs.untyped import DType
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.ttir_to_ttnn.builder import Ops, Pattern, Site, iinfo, is_integer
from jaxmesh.passes.ttir_to_ttnn.elementwise import is_narrow, matrix_product, narrow

PATTERNS: Rules[Pattern] = Rules()

Pair = tuple[int, int]


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _edges(value: jax.Array) -> tuple[Pair, Pair]:
    """Returns low and high padding of height and width, from TTIR's (top, left, bottom, right)."""
    if isinstance(value, int) or len(value) < 4:
        height, width = _pair(value)
        return (height, height), (width, width)
    top, left, bottom, right = value
    return (top, bottom), (left, right)


def _ttnn_padding(edges: Sequence[Pair]) -> Shape:
    """Returns a padding in the form of TTNN: (height, width), or (top, bottom, left, right)."""
    if all(low == high for low, high in edges):
        return tuple(low for low, _ in edges)
    return tuple(n for edge in edges for n in edge)


def _flat(o: Ops, x: Value) -> Value:
    """Reshapes an image (batch, height, width, channels) to the shape that TTNN takes."""
    shape = o.shape(x)
    return o.reshape(x, (1, 1, math.prod(shape[:3]), shape[3]))


def _image(o: Ops, x: Value, batch: int, space: Sequence[int], channels: int) -> Value:
    return o.reshape(x, (batch, *space, channels))


# --- convolutions of two dims ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Conv:
    """A convolution: the input is (batch, space.., channels), the weight (outputs, inputs of a group, space..)."""

    stride: Shape
    edges: tuple[Pair, ...]
    dilation: Shape
    groups: int
    dtype: DType


def _out_size(size: int, kernel: int, stride: int, edge: Pair, dilation: int) -> int:
    return max((size + sum(edge) - dilation * (kernel - 1) - 1) // stride + 1, 0)


def _sizes(o: Ops, x: Value, weight: Value, conv: _Conv, outs: int) -> dict[str, object]:
    batch, height, width, channels = o.shape(x)
    return {
        "in_channels": channels, "out_channels": outs, "batch_size": batch, "input_height": height,
        "input_width": width, "kernel_size": o.shape(weight)[2:], "stride": conv.stride,
        "padding": _ttnn_padding(conv.edges), "dilation": conv.dilation, "groups": conv.groups,
    }  # fmt: skip


def _conv2d(o: Ops, x: Value, weight: Value, bias: Value | None, conv: _Conv) -> Value:
    if is_integer(conv.dtype):
        product = _integer_conv2d(o, x, weight, conv)
        return product if bias is None else o.binary("add", product, o.cast(bias, conv.dtype))
    batch, *space, _ = o.shape(x)
    outs = o.shape(weight)[0]
    kernel = o.shape(weight)[2:]
    out = [_out_size(*row) for row in zip(space, kernel, conv.stride, conv.edges, conv.dilation, strict=True)]
    operands = [_flat(o, x), weight, bias, o.handle]
    shape = (1, 1, batch * math.prod(out), outs)
    made = o.op("conv2d", operands, shape, conv.dtype, **_sizes(o, x, weight, conv, outs))
    return _image(o, made, batch, out, outs)


def _integer_conv2d(o: Ops, x: Value, weight: Value, conv: _Conv) -> Value:
    """Computes a convolution of integers, which the real library lacks, as a product for each kernel position."""
    kind = np.dtype(np.int32) if conv.dtype.itemsize < 4 else conv.dtype
    x, weight = o.cast(x, kind), o.cast(weight, kind)
    outs, inputs, *kernel = o.shape(weight)
    x = o.pad(x, [(0, 0), *conv.edges, (0, 0)])
    batch, height, width, _ = o.shape(x)
    rows = zip((height, width), kernel, conv.stride, conv.dilation, strict=True)
    out = [_out_size(n, k, s, (0, 0), d) for n, k, s, d in rows]
    pixels, per_group = batch * math.prod(out), outs // conv.groups
    total: Value | None = None
    for position in np.ndindex(*kernel):
        begins = [p * d for p, d in zip(position, conv.dilation, strict=True)]
        ends = [b + (n - 1) * s + 1 for b, n, s in zip(begins, out, conv.stride, strict=True)]
        part = o.slice(x, [0, *begins, 0], [batch, *ends, conv.groups * inputs], [1, *conv.stride, 1])
        left = o.permute(o.reshape(part, (pixels, conv.groups, inputs)), [1, 0, 2])
        taps = o.slice(weight, [0, 0, *position], [outs, inputs, *(p + 1 for p in position)])
        right = o.permute(o.reshape(taps, (conv.groups, per_group, inputs)), [0, 2, 1])
        product = matrix_product(o, left, right, kind)
        total = product if total is None else o.binary("add", total, product)
    assert total is not None
    image = o.reshape(o.permute(total, [1, 0, 2]), (batch, *out, outs))
    return narrow(o, image, conv.dtype) if is_narrow(conv.dtype) else image


def _add_bias(o: Ops, site: Site, out: Value, bias: Value | None) -> Value:
    """Adds the bias of a convolution whose dims are in their final order."""
    return out if bias is None else o.binary("add", out, bias, site.result.dtype)


@PATTERNS.add("conv2d", "conv_transpose2d")
def _convolution_2d(o: Ops, site: Site) -> Value:
    x, weight, bias = site.xs[0], site.xs[1], site.optional(2)
    order: list[int] = [site[name] % 4 for name in ("batch_dim", "height_dim", "width_dim", "channel_dim")]
    outs: int = site.result.shape[order[3]]
    fused = bias is not None and _fuses(o, site, bias, order[3], outs)
    row = o.reshape(bias, (1, 1, 1, outs)) if bias is not None and fused else None
    conv = _Conv(
        _pair(site["stride"]), _edges(site["padding"]), _pair(site["dilation"]), site["groups"], site.result.dtype
    )
    image = o.permute(x, order)
    if site.name == "conv2d":
        out = _conv2d(o, image, weight, row, conv)
    else:
        out = _transposed_conv(o, image, weight, row, conv, _pair(site["output_padding"]))
    out = o.permute(out, [order.index(d) for d in range(4)])
    return out if fused else _add_bias(o, site, out, bias)


def _fuses(o: Ops, site: Site, bias: Value, channel: int, outs: int) -> bool:
    """Returns True if a bias is one number per output channel, for any position of the channels."""
    padded = (1,) * (4 - len(o.shape(bias))) + o.shape(bias)
    return o.dtype(bias) == site.result.dtype and padded[channel] == outs == math.prod(padded)


def _transposed_conv(o: Ops, x: Value, weight: Value, bias: Value | None, conv: _Conv, extra: Pair) -> Value:
    batch, *space, _ = o.shape(x)
    outs = o.shape(weight)[1] * conv.groups
    kernel = o.shape(weight)[2:]
    even = all(low == high for low, high in conv.edges)
    # TTNN pads both sides equally; otherwise the result is sliced here.
    inner = conv if even else replace(conv, edges=((0, 0), (0, 0)))
    rows = zip(space, kernel, conv.stride, conv.dilation, inner.edges, extra, strict=True)
    out = [(n - 1) * s + d * (k - 1) + 1 - sum(edge) + more for n, k, s, d, edge, more in rows]
    attributes = {**_sizes(o, x, weight, inner, outs), "output_padding": extra}
    shape = (1, 1, batch * math.prod(out), outs)
    made = o.op("conv_transpose2d", [_flat(o, x), weight, bias, o.handle], shape, conv.dtype, **attributes)
    image = _image(o, made, batch, out, outs)
    if even:
        return image
    begins = [0, *(low for low, _ in conv.edges), 0]
    ends = [batch, *(n - high for n, (_, high) in zip(out, conv.edges, strict=True)), outs]
    return o.slice(image, begins, ends)


# --- pooling ---------------------------------------------------------------------------------------------------------


@PATTERNS.add("max_pool2d", "avg_pool2d")
def _pool(o: Ops, site: Site) -> Value:
    averages = site.name == "avg_pool2d"
    # The real pools take and give bfloat16, and tt-mlir converts (createPool2DOpOperandsWorkarounds in
    # lib/Dialect/TTNN/IR/TTNNWorkaroundsPass.cpp at 19c86fca); other types would lose bits.
    other = stored_as(site.result.dtype) != BF16 or (averages and _pair(site["dilation"]) != (1, 1))
    # They refuse more padding than half of a window.
    padded = zip(_edges(site["padding"]), _pair(site["kernel"]), strict=True)
    if other or any(max(edge) > size // 2 for edge, size in padded):
        return _average(o, site) if averages else _maximum(o, site)
    return pool(o, site)


def pool(o: Ops, site: Site) -> Value:
    """Appends TTNN's own pool."""
    result, attributes = site.result, pool_sizes(o, site)
    flat = (1, 1, math.prod(result.shape[:3]), attributes["channels"])
    return o.reshape(o.op(site.name, [_flat(o, site.x)], flat, result.dtype, **attributes), result.shape)


def pool_sizes(o: Ops, site: Site) -> dict[str, Any]:
    """Returns the attributes of a pool in TTNN."""
    batch, height, width, channels = o.shape(site.x)
    attributes = {
        "batch_size": batch, "input_height": height, "input_width": width, "channels": channels,
        "kernel_size": _pair(site["kernel"]), "stride": _pair(site["stride"]), "ceil_mode": site["ceil_mode"],
        "padding": _ttnn_padding(_edges(site["padding"])),
    }  # fmt: skip
    if site.name == "avg_pool2d":
        return attributes | {"count_include_pad": site["count_include_pad"]}
    return attributes | {"dilation": _pair(site["dilation"])}


def _average(o: Ops, site: Site) -> Value:
    """Computes the mean of each window in float32, one window position at a time."""
    edges, out = _edges(site["padding"]), site.result.shape[1:3]
    x = o.cast(site.x, np.float32)
    beyond = _beyond(o, x, site)
    counted = np.ones(o.shape(x)[1:3], np.float32)
    counted = np.pad(counted, edges, constant_values=float(site["count_include_pad"]))
    counted = np.pad(counted, [(0, n) for n in beyond])
    counts = np.zeros(out, np.float32)
    for rows, columns in _windows(site):
        counts += counted[rows, columns]
    total = _combine(o, site, _pad(o, x, edges, beyond, 0), "add")
    mean = o.binary("divide", total, o.constant(counts.reshape(1, *out, 1)))
    return o.cast(mean, site.result.dtype)


def _maximum(o: Ops, site: Site) -> Value:
    """Takes the maximum of each window, one window position at a time."""
    kind = o.dtype(site.x)
    least = int(iinfo(kind).min) if is_integer(kind) else float("-inf")
    padded = _pad(o, site.x, _edges(site["padding"]), _beyond(o, site.x, site), least)
    return _combine(o, site, padded, "maximum")


def _beyond(o: Ops, x: Value, site: Site) -> list[int]:
    """Returns how far the last windows reach beyond the padding, in height and width."""
    kernel, stride, dilation = (_pair(site[name]) for name in ("kernel", "stride", "dilation"))
    spans = zip(kernel, stride, dilation, site.result.shape[1:3], strict=True)
    reach = [(n - 1) * s + d * (k - 1) + 1 for k, s, d, n in spans]
    sizes = [n + low + high for n, (low, high) in zip(o.shape(x)[1:3], _edges(site["padding"]), strict=True)]
    return [max(r - n, 0) for r, n in zip(reach, sizes, strict=True)]


def _pad(o: Ops, x: Value, edges: Sequence[Pair], beyond: Sequence[int], value: float) -> Value:
    around = [(0, 0), *((low, high + n) for (low, high), n in zip(edges, beyond, strict=True)), (0, 0)]
    return o.pad(x, around, value)


def _windows(site: Site) -> Iterator[tuple[slice, slice]]:
    """Yields for each window position the rows and columns of all windows."""
    kernel, stride, dilation = (_pair(site[name]) for name in ("kernel", "stride", "dilation"))
    for position in np.ndindex(*kernel):
        begins = [p * d for p, d in zip(position, dilation, strict=True)]
        ends = [b + (n - 1) * s + 1 for b, n, s in zip(begins, site.result.shape[1:3], stride, strict=True)]
        rows, columns = (slice(b, e, s) for b, e, s in zip(begins, ends, stride, strict=True))
        yield rows, columns


def _combine(o: Ops, site: Site, x: Value, name: str) -> Value:
    batch, *_, channels = o.shape(x)
    total: Value | None = None
    for rows, columns in _windows(site):
        begins, ends = [0, rows.start, columns.start, 0], [batch, rows.stop, columns.stop, channels]
        part = o.slice(x, begins, ends, [1, rows.step, columns.step, 1])
        total = part if total is None else o.binary(name, total, part)
    assert total is not None
    return total
