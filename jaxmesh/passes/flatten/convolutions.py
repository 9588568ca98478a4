"""Convolutions as TTIR's `conv2d` and `conv_transpose2d`: (batch, height, width, channels)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule
from jaxmesh.passes.flatten.pad import pad_tensor
from jaxmesh.passes.flatten.shapes import reverse
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()


@dataclass(frozen=True, slots=True)
class Windows:
    """The movement of a window over the spatial dims."""

    strides: Shape
    padding: tuple[tuple[int, int], ...]
    spread: Shape
    dilation: Shape
    groups: int

    def last(self, count: int) -> Windows:
        """Returns the same for the last dims only."""
        strides, padding, spread, dilation = self.strides, self.padding, self.spread, self.dilation
        return Windows(strides[-count:], padding[-count:], spread[-count:], dilation[-count:], self.groups)


@RULES.add("conv_general_dilated")
def _convolution(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    p = eqn.params
    shape, dtype = b.result(eqn)
    numbers: Any = p["dimension_numbers"]
    if 0 in (*shape, *b.shape(xs[0]), *b.shape(xs[1])):
        return b.full(shape, 0, dtype)
    # (batch, spatial dims, features) and (outputs, inputs of a group, spatial dims).
    x = b.permute(xs[0], (numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]))
    weight = b.permute(xs[1], numbers.rhs_spec)
    groups, padding = p["feature_group_count"], tuple((int(low), int(high)) for low, high in p["padding"])
    if p["batch_group_count"] > 1:
        groups = p["batch_group_count"]
        x = _batches_as_features(b, x, groups)
    windows = Windows(
        tuple(p["window_strides"]), padding, tuple(p["lhs_dilation"]), tuple(p["rhs_dilation"]), int(groups)
    )
    spec: Shape = tuple(numbers.out_spec)
    made = _convolve(b, x, weight, windows, [shape[d] for d in spec[2:]], dtype)
    order = (spec[0], *spec[2:], spec[1])
    return b.permute(made, [order.index(d) for d in range(len(order))])


def _batches_as_features(b: Builder, x: Value, groups: int) -> Value:
    """Returns groups of batches, each with its own outputs, as groups of features over fewer batches."""
    batch, *space, features = b.shape(x)
    apart = b.reshape(x, (groups, batch // groups, *space, features))
    rank = len(space) + 3
    together = b.permute(apart, (1, *range(2, rank - 1), 0, rank - 1))
    return b.reshape(together, (batch // groups, *space, groups * features))


def _convolve(
    b: Builder, x: Value, weight: Value, windows: Windows, space: Sequence[int], dtype: np.dtype[Any]
) -> Value:
    """Builds a convolution to the sizes `space`; takes more than two spatial dims one by one from the front."""
    rank = len(windows.strides)
    if rank < 2:
        return _lift(b, x, weight, windows, space, dtype)
    if rank == 2:
        return _image(b, x, weight, windows, space, dtype)
    # Spread and padded along the first; then each depth of the window makes images, which add up.
    first = [(0, 0, 0), (*windows.padding[0], windows.spread[0] - 1), *[(0, 0, 0)] * rank]
    x = pad_tensor(b, x, 0, first)
    step, count, total = windows.strides[0], space[0], None
    for depth in range(b.shape(weight)[2]):
        begin = depth * windows.dilation[0]
        piece = b.piece(x, 1, begin, begin + (count - 1) * step + 1, step)
        batch, _, *rest = b.shape(piece)
        kernel = b.piece(weight, 2, depth, depth + 1)
        kernel = b.reshape(kernel, (*b.shape(weight)[:2], *b.shape(weight)[3:]))
        made = _convolve(b, b.reshape(piece, (batch * count, *rest)), kernel, windows.last(rank - 1), space[1:], dtype)
        total = made if total is None else b.same("add", [total, made])
    assert total is not None
    return b.reshape(total, (b.shape(x)[0], count, *b.shape(total)[1:]))


def _lift(b: Builder, x: Value, weight: Value, windows: Windows, space: Sequence[int], dtype: np.dtype[Any]) -> Value:
    """Builds a convolution over fewer than two spatial dims, as images of height 1."""
    more = 2 - len(windows.strides)
    batch, *sizes, features = b.shape(x)
    outs, inputs, *kernel = b.shape(weight)
    ones = (1,) * more
    wide = Windows(
        ones + windows.strides, ((0, 0),) * more + windows.padding, ones + windows.spread, ones + windows.dilation,
        windows.groups,
    )  # fmt: skip
    image = b.reshape(x, (batch, *ones, *sizes, features))
    made = _image(b, image, b.reshape(weight, (outs, inputs, *ones, *kernel)), wide, [*ones, *space], dtype)
    return b.reshape(made, (batch, *space, outs))


def _image(b: Builder, x: Value, weight: Value, windows: Windows, space: Sequence[int], dtype: np.dtype[Any]) -> Value:
    shape = (b.shape(x)[0], *space, b.shape(weight)[0])
    if any(n > 1 for n in windows.spread):
        extra = _output_padding(b, weight, windows)
        if extra is not None:
            return _transpose(b, x, weight, windows, extra, shape, dtype)
    outside = [(max(low, 0), max(high, 0)) for low, high in windows.padding]
    if any(n > 1 for n in windows.spread) or any(min(edge) < 0 for edge in windows.padding):
        amounts = [(*e, n - 1) for e, n in zip(windows.padding, windows.spread, strict=True)]
        x = pad_tensor(b, x, 0, [(0, 0, 0), *amounts, (0, 0, 0)])
        outside = [(0, 0), (0, 0)]
    return b.op(
        "conv2d", [x, weight], shape, dtype, stride=windows.strides, padding=_edges(outside), dilation=windows.dilation,
        groups=windows.groups,
    )  # fmt: skip


def _edges(edges: Sequence[tuple[int, int]]) -> Shape:
    """Returns (top, left, bottom, right)."""
    (top, bottom), (left, right) = edges
    return top, left, bottom, right


def _reach(b: Builder, weight: Value, windows: Windows) -> list[int]:
    return [d * (k - 1) for d, k in zip(windows.dilation, b.shape(weight)[2:], strict=True)]


def _output_padding(b: Builder, weight: Value, windows: Windows) -> Shape | None:
    """Returns the output padding of the equivalent transposed convolution, or None."""
    if any(n > 1 for n in windows.strides):
        return None
    extra: list[int] = []
    for reach, (low, high), spread in zip(_reach(b, weight, windows), windows.padding, windows.spread, strict=True):
        more = max(high - reach, 0)
        if low > reach or more >= max(spread, 1):
            return None
        extra.append(more)
    return tuple(extra)


def _transpose(
    b: Builder, x: Value, weight: Value, windows: Windows, extra: Shape, shape: Shape, dtype: np.dtype[Any]
) -> Value:
    """Returns the transpose of a strided convolution; its weight is (inputs, outputs of a group), not reversed."""
    outs, inputs, *kernel = b.shape(weight)
    groups = windows.groups
    apart = b.reshape(reverse(b, weight, (2, 3)), (groups, outs // groups, inputs, *kernel))
    turned = b.reshape(b.permute(apart, (0, 2, 1, 3, 4)), (groups * inputs, outs // groups, *kernel))
    edges = [
        (reach - low, reach - high + more)
        for reach, (low, high), more in zip(_reach(b, weight, windows), windows.padding, extra, strict=True)
    ]
    return b.op(
        "conv_transpose2d", [x, turned], shape, dtype, stride=windows.spread, padding=_edges(edges),
        output_padding=extra, dilation=windows.dilation, groups=groups,
    )  # fmt: skip
