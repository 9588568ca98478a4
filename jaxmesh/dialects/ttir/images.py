"""Windows over images (batch, height, width, channels): pooling, resizing and convolutions.

Convolutions accumulate in the declared result type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from jaxmesh.dialects.op import Call, Shape, Trait, describe
from jaxmesh.dialects.ttir.helpers import TtirOps, convert, is_integer, jax, jnp, lax, vary_together
from jaxmesh.jaxprs.untyped import Array

Pair = tuple[int, int]

FLATTENED = "flattened_compat_info"
"""The attribute by which an op says that batch, height and width of its image are one dim; frontends take it off."""


def _numbers(call: Call, name: str, lengths: tuple[int, ...]) -> tuple[int, ...]:
    value = call[name]
    items = (value,) if isinstance(value, int) else value
    if not isinstance(items, (list, tuple)) or not all(type(v) is int for v in cast("tuple[object, ...]", items)):
        raise call.rule_error(f"{name} is an integer or a row of integers, got {value!r}")
    row = tuple(cast("tuple[int, ...]", items))
    call.require(len(row) in lengths, f"{name} has {' or '.join(map(str, lengths))} entries, got {list(row)}")
    return row


def _entries(call: Call, name: str, count: int, least: int | None = 1) -> tuple[int, ...]:
    """Returns an attribute with an entry per place; a number stands for all."""
    row = _numbers(call, name, (1, count))
    call.require(least is None or min(row) >= least, f"{name} is at least {least}, got {list(row)}")
    return row * count if len(row) < count else row


def read_pair(call: Call, name: str, least: int = 1) -> Pair:
    """Reads and checks height and width from an attribute; one number is both."""
    height, width = _entries(call, name, 2, least)
    return height, width


def read_padding(call: Call) -> tuple[Pair, Pair]:
    """Reads and checks low and high padding of height and width, from 1, 2 or 4 (top, left, bottom, right) numbers."""
    row = _numbers(call, "padding", (1, 2, 4))
    call.require(min(row) >= 0, f"padding is at least 0, got {list(row)}")
    top, left, bottom, right = row if len(row) == 4 else (row[0], row[-1], row[0], row[-1])
    return (top, bottom), (left, right)


OPS = TtirOps()


def _pool_padding(call: Call, x: jax.Array) -> tuple[Pair, Pair]:
    """Returns the padding; `ceil_mode` adds at the end what the last window needs."""
    call.check_rank(x, 4, "the input (batch, height, width, channels)")
    made: list[Pair] = []
    kernel, stride, dilation = (read_pair(call, name) for name in ("kernel", "stride", "dilation"))
    for d, (low, high) in enumerate(read_padding(call)):
        size, reach = x.shape[1 + d], dilation[d] * (kernel[d] - 1) + 1
        span = size + low + high - reach
        rule = f"a window of {reach} does not fit dim {1 + d} of {describe(x)}, padded by {low} and {high}"
        call.require(span >= 0, rule)
        more = -span % stride[d] if call["ceil_mode"] else 0
        # A window that starts in the high padding is dropped, as in torch.
        made.append((low, high + (more if span + more < size + low else 0)))
    return made[0], made[1]


def _window(call: Call, x: object, start: object, combine: Callable[..., object], pads: tuple[Pair, Pair]) -> Any:
    def whole(name: str) -> Shape:
        return (1, *read_pair(call, name), 1)

    edges = [(0, 0), *pads, (0, 0)]
    strides, dilation = whole("stride"), whole("dilation")
    return lax.reduce_window(x, start, combine, whole("kernel"), strides, edges, window_dilation=dilation)


@OPS.define("max_pool2d")
def _max_pool2d(call: Call) -> jax.Array:
    (x,) = call.operands
    return _window(call, x, _least(x), lax.max, _pool_padding(call, x))


def _least(x: jax.Array) -> Array:
    return np.array(jnp.iinfo(x.dtype).min if is_integer(x) else -np.inf, x.dtype)


def max_pool2d_with_indices(call: Call) -> Sequence[jax.Array]:
    """Computes the largest element of each window, the first of equal ones, and its row-major place in the image."""
    x = call.operands[0]
    call.check_rank(x, 4, "the input (batch, height, width, channels)")
    size = x.shape[1] * x.shape[2]
    place = jnp.arange(size, dtype=jnp.int32).reshape(1, *x.shape[1:3], 1)
    operands = vary_together(x, jnp.broadcast_to(place, x.shape))

    def larger(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> Sequence[jax.Array]:
        is_first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return tuple(lax.select(is_first, m, n) for m, n in zip(a, b, strict=True))

    return _window(call, tuple(operands), (_least(x), np.int32(size)), larger, _pool_padding(call, x))


@OPS.define("avg_pool2d")
def _avg_pool2d(call: Call) -> jax.Array:
    (x,) = call.operands
    pads = _pool_padding(call, x)
    zero = np.array(0, np.float32)
    total = _window(call, convert(x, jnp.float32), zero, lax.add, pads)
    divisor = call["divisor_override"]
    call.require(divisor is None or divisor != 0, "divisor_override is 0")
    return convert(total / (_counts(call, x.shape, pads) if divisor is None else np.float32(divisor)), x.dtype)


def _counts(call: Call, shape: Shape, pads: tuple[Pair, Pair]) -> jax.Array:
    """Returns the number of elements that each window averages, without elements that `ceil_mode` adds."""
    inside = np.ones((1, *shape[1:3], 1), np.float32)
    if call["count_include_pad"]:
        written = read_padding(call)
        inside = np.pad(inside, ((0, 0), *written, (0, 0)), constant_values=1)
        pads = _difference(pads[0], written[0]), _difference(pads[1], written[1])
    return _window(call, jnp.asarray(inside), np.array(0, np.float32), lax.add, pads)


def _difference(pads: Pair, written: Pair) -> Pair:
    return pads[0] - written[0], pads[1] - written[1]


@OPS.define("global_avg_pool2d")
def _global_avg_pool2d(call: Call) -> jax.Array:
    (x,) = call.operands
    call.check_rank(x, 4, "the input (batch, height, width, channels)")
    return jnp.mean(x, (1, 2), keepdims=True)


@OPS.define("upsample2d")
def _upsample2d(call: Call) -> jax.Array:
    (x,) = call.operands
    call.check_rank(x, 4, "the input (batch, height, width, channels)")
    modes = ("nearest", "bilinear")
    call.require(call["mode"] in modes, f"mode {call['mode']!r} is none of {', '.join(modes)}")
    height, width = read_pair(call, "scale_factor")
    if call["mode"] == "bilinear":
        shape = (x.shape[0], x.shape[1] * height, x.shape[2] * width, x.shape[3])
        image: Any = jax.image
        return convert(image.resize(convert(x, jnp.float32), shape, "bilinear"), x.dtype)
    return jnp.repeat(jnp.repeat(x, height, axis=1), width, axis=2)


def _check_groups(call: Call, x: jax.Array, channels: int, per_group: int, outs: int) -> None:
    groups = call["groups"]
    rule = f"{channels} channels of {describe(x)} are not groups = {groups} times the weight's {per_group}"
    call.require(groups > 0 and channels == groups * per_group, rule)
    call.require(outs % groups == 0, f"{outs} output channels do not divide by groups = {groups}")


def _add_bias(call: Call, out: jax.Array, bias: jax.Array | None) -> jax.Array:
    if bias is None:
        return out
    fits = call.broadcast_shape(out.shape, bias.shape) == out.shape
    call.require(fits, f"the bias broadcasts to {list(out.shape)}, but got {describe(bias)}")
    return jnp.add(*vary_together(out, bias))


def _convolve(
    call: Call, x: jax.Array, weight: jax.Array, strides: Sequence[int], pads: Sequence[Pair], **params: object
) -> jax.Array:
    x, weight = vary_together(x, weight)
    dtype = jax.dtypes.canonicalize_dtype(call.result.dtype)
    return lax.conv_general_dilated(x, weight, strides, pads, preferred_element_type=dtype, **params)


def _image_operands(call: Call, names: Sequence[str], weight_dims: str) -> tuple[Any, Any, Any, Shape, Any]:
    """Returns input, weight, bias, the dims of batch, channels and window that attributes name, and these for JAX."""
    x, weight, bias = call.optional_operands(("input", "weight", "bias"))
    rank, names = 2 + len(names), ("batch_dim", "channel_dim", *names)
    call.check_rank(x, rank, "the input")
    call.check_rank(weight, rank, f"the weight ({weight_dims})")
    dims = call.check_dims([call[n] for n in names], rank, ", ".join(names))
    return x, weight, bias, dims, jax.lax.ConvDimensionNumbers(dims, tuple(range(rank)), dims)


def _conv(call: Call, names: Sequence[str], pads: Sequence[Any]) -> jax.Array:
    """Computes a convolution along dims that attributes name, in any order."""
    x, weight, bias, dims, numbers = _image_operands(call, names, "outputs, inputs of a group, the window")
    _check_groups(call, x, x.shape[dims[1]], weight.shape[1], weight.shape[0])
    strides, dilation = (_entries(call, name, len(names)) for name in ("stride", "dilation"))
    groups = {"dimension_numbers": numbers, "feature_group_count": call["groups"]}
    return _add_bias(call, _convolve(call, x, weight, strides, pads, rhs_dilation=dilation, **groups), bias)


def conv1d(call: Call) -> jax.Array:
    """Computes a convolution along one dim, whose weight is (outputs, inputs of a group, length)."""
    return _conv(call, ("length_dim",), [_entries(call, "padding", 2, None)])


@OPS.define("conv2d")
def _conv2d(call: Call) -> jax.Array:
    """Computes a convolution, whose weight is (outputs, inputs of a group, height, width)."""
    return _conv(call, ("height_dim", "width_dim"), read_padding(call))


def conv3d(call: Call) -> jax.Array:
    """Computes a convolution along three dims, whose weight is (outputs, inputs of a group, depth, height, width)."""
    names, mode = ("depth_dim", "height_dim", "width_dim"), call["padding_mode"]
    call.require(mode in ("zeros", "replicate"), f"pads by 'zeros' or 'replicate', but padding_mode is {mode!r}")
    pads = [(n, n) for n in _entries(call, "padding", 3, None)]
    if mode == "replicate":
        x, *rest = call.operands
        around = dict(zip((call[name] for name in names), pads, strict=True))
        edged = jnp.pad(x, [around.get(dim, (0, 0)) for dim in range(x.ndim)], mode="edge")
        call, pads = replace(call, operands=(edged, *rest)), [(0, 0)] * 3
    return _conv(call, names, pads)


@OPS.define("conv_transpose2d")
def _conv_transpose2d(call: Call) -> jax.Array:
    """Computes a transposed convolution; the weight is (inputs, outputs of a group, height, width)."""
    names = ("height_dim", "width_dim")
    x, weight, bias, dims, numbers = _image_operands(call, names, "inputs, outputs of a group, height, width")
    groups = call["groups"]
    channels, outs, *kernel = weight.shape
    _check_groups(call, x, x.shape[dims[1]], channels // max(groups, 1), outs * groups)
    dilation, extra = read_pair(call, "dilation"), read_pair(call, "output_padding", 0)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    pads = [(r - low, r - high + more) for r, (low, high), more in zip(reach, read_padding(call), extra, strict=True)]
    # Outputs of a group by inputs of a group, and every kernel reversed.
    grouped = lax.reshape(weight, (groups, channels // groups, outs, *kernel))
    turned = lax.rev(lax.reshape(jnp.swapaxes(grouped, 1, 2), (groups * outs, channels // groups, *kernel)), (2, 3))
    out = _convolve(
        call, x, turned, (1, 1), pads, lhs_dilation=read_pair(call, "stride"), rhs_dilation=dilation,
        dimension_numbers=numbers, feature_group_count=groups,
    )  # fmt: skip
    return _add_bias(call, out, bias)


# --- as StableHLO writes it ------------------------------------------------------------------------------------------


@OPS.define("convolution", traits=[Trait.NOT_UPSTREAM])
def _convolution(call: Call) -> jax.Array:
    """Computes a convolution; `padding` alternates low and high, and `convolution_layout` is a text or a mapping."""
    x, weight, bias = call.optional_operands(("input", "weight", "bias"))
    space = x.ndim - 2
    call.require(space >= 0, f"the input has a batch and a feature dim, but got {describe(x)}")
    call.check_rank(weight, x.ndim, "the weight, like the input,")
    for name in ("window_strides", "input_dilation", "weight_dilation", "window_reversal"):
        call.check_length(name, call[name], space, "one per spatial dim")
    call.check_length("padding", call["padding"], 2 * space, "a low and a high one per spatial dim")
    numbers = jax.lax.ConvDimensionNumbers(
        _layout(call, x.ndim, "input", ("batch", "feature")),
        _layout(call, x.ndim, "kernel", ("output_feature", "input_feature")),
        _layout(call, x.ndim, "output", ("batch", "feature")),
    )
    reversed_dims = [d for d, turn in zip(numbers.rhs_spec[2:], call["window_reversal"], strict=True) if turn]
    out = _convolve(
        call,
        x,
        lax.rev(weight, reversed_dims),
        call["window_strides"],
        list(zip(call["padding"][::2], call["padding"][1::2], strict=True)),
        lhs_dilation=call["input_dilation"],
        rhs_dilation=call["weight_dilation"],
        dimension_numbers=numbers,
        feature_group_count=call["feature_group_count"],
        batch_group_count=call["batch_group_count"],
    )
    return _add_bias(call, out, bias)


def read_layout(layout: object) -> object:
    """Reads names and dims from `#ttir<convolution_layout input_batch = 0, .., input_spatial_dimensions = 2x3, ..>`."""
    if not isinstance(layout, str):
        return layout
    found = re.findall(r"(\w+)\s*=\s*(\d+(?:\s*x\s*\d+)*|\[\s*\])", layout)
    numbers = {name: [int(n) for n in re.findall(r"\d+", text)] for name, text in found}
    return {name: row if name.endswith("_dimensions") else row[0] for name, row in numbers.items()}


def _layout(call: Call, rank: int, side: str, first: tuple[str, str]) -> Shape:
    layout = read_layout(call["convolution_layout"])
    spatial = f"{side}_spatial_dimensions"
    names = (*(f"{side}_{name}" for name in first), spatial)
    missing = list(names) if not isinstance(layout, Mapping) else [n for n in names if n not in layout]
    if missing:
        raise call.rule_error(f"convolution_layout needs {', '.join(missing)}, got {call['convolution_layout']!r}")
    known = cast("Mapping[str, Any]", layout)
    dims = [*(known[n] for n in names[:2]), *known[spatial]]
    call.check_length(f"the {side} layout", dims, rank, "one per dim")
    return call.check_dims(dims, rank, f"the {side} layout")
