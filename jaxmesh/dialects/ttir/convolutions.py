"""Convolutions. They accumulate in the declared result type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from jaxmesh.dialects.op import Call, OpDef, Shape, Trait, attr, define, describe, expect, need
from jaxmesh.dialects.ttir.helpers import (
    broadcast_shape,
    check_dims,
    check_length,
    check_rank,
    jax,
    jnp,
    lax,
    optional_operands,
    require,
    rule_error,
    vary_together,
)
from jaxmesh.dialects.ttir.windows import FLATTENED, Pair, read_padding, read_pair

OPS: dict[str, OpDef] = {}

_IMAGE = (
    attr("batch_dim", "int", 0, form="i64"),
    attr("height_dim", "int", 1, form="i64"),
    attr("width_dim", "int", 2, form="i64"),
    attr("channel_dim", "int", 3, form="i64"),
)


def _image_dims(call: Call) -> Shape:
    """Returns the dims of batch, channels, height and width."""
    names = ("batch_dim", "channel_dim", "height_dim", "width_dim")
    return check_dims(call, [call[n] for n in names], 4, ", ".join(names))


def _check_groups(call: Call, x: Any, channels: int, per_group: int, outs: int) -> None:
    groups = call["groups"]
    rule = f"{channels} channels of {describe(x)} are not groups = {groups} times the weight's {per_group}"
    require(call, groups > 0 and channels == groups * per_group, rule)
    require(call, outs % groups == 0, f"{outs} output channels do not divide by groups = {groups}")


def _add_bias(call: Call, out: Any, bias: Any) -> Any:
    if bias is None:
        return out
    fits = broadcast_shape(call, out.shape, bias.shape) == out.shape
    require(call, fits, f"the bias broadcasts to {list(out.shape)}, but got {describe(bias)}")
    return jnp.add(*vary_together(out, bias))


def _convolve(call: Call, x: Any, weight: Any, strides: Sequence[int], pads: Sequence[Pair], **params: Any) -> Any:
    x, weight = vary_together(x, weight)
    dtype = jax.dtypes.canonicalize_dtype(call.result.dtype)
    return lax.conv_general_dilated(x, weight, strides, pads, preferred_element_type=dtype, **params)


@define(
    OPS,
    "conv2d",
    (2, 3),
    need("stride", "any", form="i32"),
    need("padding", "any", form="i32"),
    need("dilation", "any", form="i32"),
    expect("groups", "int", 1, form="i32"),
    *_IMAGE,
    options=[FLATTENED],
)
def _conv2d(call: Call) -> Any:
    """Computes a convolution, whose weight is (outputs, inputs of a group, height, width) for any order of the dims."""
    x, weight, bias = optional_operands(call, ("input", "weight", "bias"))
    check_rank(call, x, 4, "the input")
    check_rank(call, weight, 4, "the weight (outputs, inputs of a group, height, width)")
    dims = _image_dims(call)
    _check_groups(call, x, x.shape[dims[1]], weight.shape[1], weight.shape[0])
    out = _convolve(
        call,
        x,
        weight,
        read_pair(call, "stride"),
        read_padding(call),
        rhs_dilation=read_pair(call, "dilation"),
        dimension_numbers=jax.lax.ConvDimensionNumbers(dims, (0, 1, 2, 3), dims),
        feature_group_count=call["groups"],
    )
    return _add_bias(call, out, bias)


def conv1d(call: Call) -> Any:
    """Computes a convolution along one dim, whose weight is (outputs, inputs of a group, length)."""
    return _conv(call, ("length_dim",), [_entries(call, "padding", 2)])


def conv3d(call: Call) -> Any:
    """Computes a convolution along three dims, whose weight is (outputs, inputs of a group, depth, height, width)."""
    require(call, call["padding_mode"] == "zeros", f"pads with zeros, but padding_mode is {call['padding_mode']!r}")
    return _conv(call, ("depth_dim", "height_dim", "width_dim"), [(n, n) for n in _entries(call, "padding", 3)])


def _conv(call: Call, names: Sequence[str], pads: Sequence[Any]) -> Any:
    """Computes a convolution along dims that attributes name."""
    x, weight, bias = optional_operands(call, ("input", "weight", "bias"))
    rank, count = 2 + len(names), len(names)
    check_rank(call, x, rank, "the input")
    check_rank(call, weight, rank, "the weight (outputs, inputs of a group, the window)")
    dims: tuple[int, ...] = tuple(call[name] for name in ("batch_dim", "channel_dim", *names))
    every = tuple(range(rank))
    require(call, sorted(dims) == list(every), f"the dims of batch, channels and window are {every}, got {dims}")
    _check_groups(call, x, x.shape[dims[1]], weight.shape[1], weight.shape[0])
    out = _convolve(
        call,
        x,
        weight,
        _entries(call, "stride", count),
        pads,
        rhs_dilation=_entries(call, "dilation", count),
        dimension_numbers=jax.lax.ConvDimensionNumbers(dims, every, dims),
        feature_group_count=call["groups"],
    )
    return _add_bias(call, out, bias)


def _entries(call: Call, name: str, count: int) -> tuple[int, ...]:
    """Returns an attribute with an entry per place; a number stands for all."""
    entries: tuple[int, ...] = (call[name],) if isinstance(call[name], int) else tuple(call[name])
    require(call, len(entries) in (1, count), f"{name} has 1 or {count} entries, got {list(entries)}")
    return entries * count if len(entries) < count else entries


@define(
    OPS,
    "conv_transpose2d",
    (2, 3),
    need("stride", "any", form="i32"),
    need("padding", "any", form="i32"),
    expect("output_padding", "any", 0, form="i32"),
    need("dilation", "any", form="i32"),
    expect("groups", "int", 1, form="i32"),
    *_IMAGE,
    options=[FLATTENED],
)
def _conv_transpose2d(call: Call) -> Any:
    """Computes a transposed convolution; the weight is (inputs, outputs of a group, height, width)."""
    x, weight, bias = optional_operands(call, ("input", "weight", "bias"))
    check_rank(call, x, 4, "the input")
    check_rank(call, weight, 4, "the weight (inputs, outputs of a group, height, width)")
    dims, groups = _image_dims(call), call["groups"]
    channels, outs, *kernel = weight.shape
    _check_groups(call, x, x.shape[dims[1]], channels // max(groups, 1), outs * groups)
    dilation, extra = read_pair(call, "dilation"), read_pair(call, "output_padding", 0)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    pads = [(r - low, r - high + more) for r, (low, high), more in zip(reach, read_padding(call), extra, strict=True)]
    # Outputs of a group by inputs of a group, and every kernel reversed.
    grouped = lax.reshape(weight, (groups, channels // groups, outs, *kernel))
    turned = lax.rev(lax.reshape(jnp.swapaxes(grouped, 1, 2), (groups * outs, channels // groups, *kernel)), (2, 3))
    out = _convolve(
        call,
        x,
        turned,
        (1, 1),
        pads,
        lhs_dilation=read_pair(call, "stride"),
        rhs_dilation=dilation,
        dimension_numbers=jax.lax.ConvDimensionNumbers(dims, (0, 1, 2, 3), dims),
        feature_group_count=groups,
    )
    return _add_bias(call, out, bias)


# --- as StableHLO writes it ------------------------------------------------------------------------------------------


@define(
    OPS,
    "convolution",
    (2, 3),
    need("window_strides", "ints", form="i64s"),
    need("padding", "ints", form="i64s"),
    need("input_dilation", "ints", form="i64s"),
    need("weight_dilation", "ints", form="i64s"),
    need("window_reversal", "bools"),
    need("convolution_layout", "any", form="convolution_layout"),
    attr("feature_group_count", "int", 1, form="i64"),
    attr("batch_group_count", "int", 1, form="i64"),
    traits=[Trait.NOT_UPSTREAM],
)
def _convolution(call: Call) -> Any:
    """Computes a convolution; `padding` alternates low and high, and `convolution_layout` is a text or a mapping."""
    x, weight, bias = optional_operands(call, ("input", "weight", "bias"))
    space = x.ndim - 2
    require(call, space >= 0, f"the input has a batch and a feature dim, but got {describe(x)}")
    check_rank(call, weight, x.ndim, "the weight, like the input,")
    for name in ("window_strides", "input_dilation", "weight_dilation", "window_reversal"):
        check_length(call, name, call[name], space, "one per spatial dim")
    check_length(call, "padding", call["padding"], 2 * space, "a low and a high one per spatial dim")
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


def read_layout(layout: Any) -> Any:
    """Reads names and dims from `#ttir<convolution_layout input_batch = 0, .., input_spatial_dimensions = 2x3, ..>`."""
    if not isinstance(layout, str):
        return layout
    found = re.findall(r"(\w+)\s*=\s*(\d+(?:\s*x\s*\d+)*|\[\s*\])", layout)
    numbers = {name: [int(n) for n in re.findall(r"\d+", text)] for name, text in found}
    return {name: row if name.endswith("_dimensions") else row[0] for name, row in numbers.items()}


def _layout(call: Call, rank: int, side: str, first: tuple[str, str]) -> Shape:
    layout: Any = read_layout(call["convolution_layout"])
    spatial = f"{side}_spatial_dimensions"
    names = (*(f"{side}_{name}" for name in first), spatial)
    missing = list(names) if not isinstance(layout, Mapping) else [n for n in names if n not in layout]
    if missing:
        raise rule_error(call, f"convolution_layout needs {', '.join(missing)}, got {call['convolution_layout']!r}")
    known = cast("Mapping[str, Any]", layout)
    dims = [*(known[n] for n in names[:2]), *known[spatial]]
    check_length(call, f"the {side} layout", dims, rank, "one per dim")
    return check_dims(call, dims, rank, f"the {side} layout")
