"""Convolutions as TTIR's `conv2d` and `conv_transpose2d`: (batch, height, width, channels)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.untyped import DType
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule
from jaxmesh.passes.flatten.reduce_window import Window, windows_of
from jaxmesh.passes.flatten.shapes import pad_tensor, reverse

RULES: Rules[Rule] = Rules()
_POINT = Window(1, 1, 0, 0)
"""The window of a dim of one element."""


@dataclass(frozen=True, slots=True)
class _Filter:
    """The weight of a convolution, (outputs, inputs of a group, spatial dims), and the windows of its spatial dims."""

    weight: Value
    windows: Sequence[Window]
    groups: int
    dtype: DType


@RULES.add("conv_general_dilated")
def _convolution(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    p = eqn.params
    shape, dtype = b.result(eqn)
    numbers = p["dimension_numbers"]
    if 0 in (*shape, *b.shape(xs[0]), *b.shape(xs[1])):
        return b.full(shape, 0, dtype)
    # (batch, spatial dims, features)
    x = b.permute(xs[0], (numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]))
    weight = b.permute(xs[1], numbers.rhs_spec)
    groups = p["feature_group_count"]
    if p["batch_group_count"] > 1:
        groups = p["batch_group_count"]
        x = _batches_as_features(b, x, groups)
    moves = {"window_dilation": p["rhs_dilation"], "base_dilation": p["lhs_dilation"], **p}
    windows = windows_of({"window_dimensions": b.shape(weight)[2:], **moves})
    spec: Shape = tuple(numbers.out_spec)
    made = _convolve(b, x, _Filter(weight, windows, int(groups), dtype), [shape[d] for d in spec[2:]])
    order = (spec[0], *spec[2:], spec[1])
    return b.permute(made, [order.index(d) for d in range(len(order))])


def _batches_as_features(b: Builder, x: Value, groups: int) -> Value:
    """Returns groups of batches, each with its own outputs, as groups of features over fewer batches."""
    batch, *space, features = b.shape(x)
    apart = b.reshape(x, (groups, batch // groups, *space, features))
    rank = len(space) + 3
    together = b.permute(apart, (1, *range(2, rank - 1), 0, rank - 1))
    return b.reshape(together, (batch // groups, *space, groups * features))


def _convolve(b: Builder, x: Value, kernel: _Filter, space: Sequence[int]) -> Value:
    """Builds a convolution to the sizes `space`; takes more than two spatial dims one by one from the front."""
    if len(kernel.windows) < 2:
        return _lift(b, x, kernel, space)
    if len(kernel.windows) == 2:
        return _image(b, x, kernel, space)
    window, *others = kernel.windows
    # Spread and padded along the first; then each depth of the window makes images, which add up.
    edges = [(0, 0, 0), (window.low, window.high, window.spread - 1), *[(0, 0, 0)] * (len(others) + 1)]
    x = pad_tensor(b, x, 0, edges)
    count, total = space[0], None
    outs, inputs, _, *sizes = b.shape(kernel.weight)
    for depth in range(window.size):
        begin = depth * window.dilation
        piece = b.piece(x, 1, begin, begin + (count - 1) * window.stride + 1, window.stride)
        batch, _, *rest = b.shape(piece)
        weight = b.reshape(b.piece(kernel.weight, 2, depth, depth + 1), (outs, inputs, *sizes))
        images = b.reshape(piece, (batch * count, *rest))
        made = _convolve(b, images, replace(kernel, weight=weight, windows=others), space[1:])
        total = made if total is None else b.same("add", [total, made])
    assert total is not None
    return b.reshape(total, (b.shape(x)[0], count, *b.shape(total)[1:]))


def _lift(b: Builder, x: Value, kernel: _Filter, space: Sequence[int]) -> Value:
    """Builds a convolution over fewer than two spatial dims, as images of height 1."""
    more = 2 - len(kernel.windows)
    batch, *sizes, features = b.shape(x)
    outs, inputs, *lengths = b.shape(kernel.weight)
    ones = (1,) * more
    image = b.reshape(x, (batch, *ones, *sizes, features))
    weight = b.reshape(kernel.weight, (outs, inputs, *ones, *lengths))
    wide = replace(kernel, weight=weight, windows=[*[_POINT] * more, *kernel.windows])
    return b.reshape(_image(b, image, wide, [*ones, *space]), (batch, *space, outs))


def _image(b: Builder, x: Value, kernel: _Filter, space: Sequence[int]) -> Value:
    windows = kernel.windows
    shape = (b.shape(x)[0], *space, b.shape(kernel.weight)[0])
    if any(w.spread > 1 for w in windows):
        extra = _output_padding(windows)
        if extra is not None:
            return _transpose(b, x, kernel, extra, shape)
    outside = [(max(w.low, 0), max(w.high, 0)) for w in windows]
    if any(w.spread > 1 or min(w.low, w.high) < 0 for w in windows):
        x = pad_tensor(b, x, 0, [(0, 0, 0), *((w.low, w.high, w.spread - 1) for w in windows), (0, 0, 0)])
        outside = [(0, 0), (0, 0)]
    return b.op(
        "conv2d", [x, kernel.weight], shape, kernel.dtype, stride=tuple(w.stride for w in windows),
        padding=_edges(outside), dilation=tuple(w.dilation for w in windows), groups=kernel.groups,
    )  # fmt: skip


def _edges(edges: Sequence[tuple[int, int]]) -> Shape:
    """Returns (top, left, bottom, right)."""
    (top, bottom), (left, right) = edges
    return top, left, bottom, right


def _output_padding(windows: Sequence[Window]) -> Shape | None:
    """Returns the output padding of the equivalent transposed convolution, or None."""
    extra = tuple(max(w.high - w.reach + 1, 0) for w in windows)
    fits = all(w.stride == 1 and w.low < w.reach and n < max(w.spread, 1) for w, n in zip(windows, extra, strict=True))
    return extra if fits else None


def _transpose(b: Builder, x: Value, kernel: _Filter, extra: Shape, shape: Shape) -> Value:
    """Returns the transpose of a strided convolution; its weight is (inputs, outputs of a group), not reversed."""
    outs, inputs, *lengths = b.shape(kernel.weight)
    groups, windows = kernel.groups, kernel.windows
    apart = b.reshape(reverse(b, kernel.weight, (2, 3)), (groups, outs // groups, inputs, *lengths))
    turned = b.reshape(b.permute(apart, (0, 2, 1, 3, 4)), (groups * inputs, outs // groups, *lengths))
    edges = [(w.reach - 1 - w.low, w.reach - 1 - w.high + n) for w, n in zip(windows, extra, strict=True)]
    return b.op(
        "conv_transpose2d", [x, turned], shape, kernel.dtype, stride=tuple(w.spread for w in windows),
        padding=_edges(edges), output_padding=extra, dilation=tuple(w.dilation for w in windows), groups=groups,
    )  # fmt: skip
