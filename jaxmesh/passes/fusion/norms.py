"""Patterns of normalisations: mean, softmax, rms_norm, layer_norm.

A group is left alone whose sums are read elsewhere, too, as gradients do: they would be computed twice.

The variance of a layer_norm is the mean of squared differences. The mean of squares less the square of the mean is not
taken for it, because it cancels where that one does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Shape
from jaxmesh.passes.fusion.dataflow import BF16, F16, F32, Node, Operand, close
from jaxmesh.passes.fusion.pattern import Group

Dims = tuple[int, ...]

# --- mean ------------------------------------------------------------------------------------------------------------


def mean(root: Node) -> Group | None:
    """Matches `sum / n`, `sum * (1 / n)`, with the reduced dims kept or not."""
    divided = root.inputs("div", "divide")
    scaled = [(*divided, False)] if divided else [(a, b, True) for a, b in root.pairs("multiply")]
    for total, count, inverted in scaled:
        if count.number is not None and total.sole:
            found = _mean_of(total, count.number, inverted)
            if found:
                return found
    return None


def _mean_of(total: Node, number: float, inverted: bool) -> Group | None:
    flow = total.flow
    view = flow.follow(total.view, flow.moved)
    op = flow.makers.get(view.value)
    # A sum in float16 overflows where a mean does not.
    if op is None or op.name != "ttir.sum" or flow.dtype(view.value) != total.dtype or total.dtype == F16:
        return None
    (x,), along = op.used, [d for d in view.dims if d is not None]
    if along != sorted(along):
        return None
    shape, dims = flow.shape(x), flow.reduced_dims(op)
    size = math.prod(shape[d] for d in dims)
    if not size or not close(number, 1 / size if inverted else size, total.dtype):
        return None
    kept = flow.shape(view.value) == _without(shape, dims, keep=True)
    for keep in (kept, not kept):
        if total.frame == _without(shape, dims, keep) and total.as_operand():
            return Group("mean", ((x, shape),), {"dim_arg": dims, "keep_dim": keep})
    return None


def _without(shape: Shape, dims: Dims, keep: bool) -> Shape:
    return tuple(1 if d in dims else n for d, n in enumerate(shape) if keep or d not in dims)


# --- softmax ---------------------------------------------------------------------------------------------------------


def softmax(root: Node) -> Group | None:
    """Matches `e / sum(e)` with `e = exp(x - max(x))`, both over one dim."""
    for above, below in root.quotients():
        summed = below.before_cast()
        total = summed.reduction("sum") if below.sole and summed.sole else None
        if total and len(total[1]) == 1 and total[0].same(above):
            x = _shift(above, total[1])
            operand = x.as_operand() if x else None
            if operand:
                return Group("softmax", (operand,), {"dimension": total[1][0], "numericStable": True})
    return None


def _shift(node: Node, dims: Dims) -> Node | None:
    """Returns the `x` of `exp(x - max(x))`. Without the maximum it would overflow, and softmax would not."""
    for difference in node.inputs("exp"):
        found = difference.inputs("subtract")
        largest = found[1].reduction("max") if found else None
        if largest and found[1].sole and largest[1] == dims and largest[0].same(found[0]):
            return found[0]
    return None


# --- rms_norm, layer_norm --------------------------------------------------------------------------------------------


def norm(root: Node) -> Group | None:
    """Matches `x * rsqrt(mean(x^2) + epsilon)`, or the same of `x - mean(x)`, over last dims, maybe times a weight."""
    for x, weight, square in _over_roots(root):
        for spread, epsilon in _with_epsilon(square):
            narrow = spread.before_cast()
            sole = square.sole and spread.sole and narrow.sole
            found = _match_normalized(x, narrow, weight, epsilon) if sole else None
            if found:
                return found
    return None


def _over_roots(root: Node) -> Iterator[tuple[Node, Node | None, Node]]:
    """Yields the forms `x * weight / sqrt(y)`: these three."""
    divided = root.inputs("div", "divide")
    below = divided[1].before_cast() if divided and divided[1].sole else None
    for y in below.inputs("sqrt") if below and below.sole else ():
        yield divided[0], None, y
    for x, scale in root.pairs("multiply"):
        for y in _under_inverse_root(scale):
            yield x, None, y
        for a, weight in scale.pairs("multiply") if scale.sole else ():
            for y in _under_inverse_root(a):
                yield x, weight, y


def _under_inverse_root(node: Node) -> Iterator[Node]:
    inverse = node.before_cast()
    if not node.sole or not inverse.sole:
        return
    yield from inverse.inputs("rsqrt")
    below = inverse.inverse()
    if below and below.sole:
        yield from below.inputs("sqrt")
    power = inverse.inputs("pow")
    if power and power[1].number == -0.5:
        yield power[0]


def _with_epsilon(node: Node) -> Iterator[tuple[Node, float]]:
    for a, b in node.pairs("add"):
        if b.number is not None and 0 <= b.number < math.inf:
            yield a, b.number
    yield node, 0.0


def _match_normalized(x: Node, spread: Node, weight: Node | None, epsilon: float) -> Group | None:
    found = spread.reduction("mean")
    count = _last_dims(x.frame, found[1]) if found else 0
    if not found or not count:
        return None
    for squared in _under_square(found[0]):
        inner = _match_centred(squared, found[1])
        outer = _match_centred(x, found[1])
        # The group takes its statistics in float32; statistics of differences must have been as exact.
        if inner and outer and x.dtype == F32 and inner.same(outer):
            return _norm("layer_norm", outer, weight, count, epsilon)
        if squared.same(x) and x.dtype in (F32, BF16):
            return _norm("rms_norm", x, weight, count, epsilon)
    return None


def _under_square(node: Node) -> Iterator[Node]:
    product = node.inputs("multiply")
    if product and product[0].same(product[1]):
        yield product[0]
    power = node.inputs("pow")
    if power and power[1].number == 2:
        yield power[0]


def _match_centred(node: Node, dims: Dims) -> Node | None:
    """Returns the `x` of `x - mean(x)`."""
    difference = node.inputs("subtract")
    found = difference[1].reduction("mean") if difference else None
    return difference[0] if found and found[1] == dims and found[0].same(difference[0]) else None


def _last_dims(frame: Shape, dims: Sequence[int]) -> int:
    """Returns the number of trailing dims that are reduced, except dims of size 1; 0 if it reduces others."""
    if not dims:
        return 0
    first = min(dims)
    return len(frame) - first if all(d in dims or frame[d] == 1 for d in range(first, len(frame))) else 0


def _norm(name: str, x: Node, weight: Node | None, count: int, epsilon: float) -> Group | None:
    operand = x.as_operand()
    scale = weight.last(count) if weight else None
    if not operand or (weight and not scale):
        return None
    shape = x.frame[len(x.frame) - count :]
    return Group(name, (operand, scale, None), {"normalized_shape": shape, "epsilon": epsilon})


# --- weight and bias -------------------------------------------------------------------------------------------------


def weighted_norm(root: Node) -> Group | None:
    """Matches a normalisation times a weight."""
    return next((g for n, other in root.pairs("multiply") if (g := _with_scale(n, other, 1))), None)


def shifted_norm(root: Node) -> Group | None:
    """Matches a normalisation plus a bias."""
    return next((g for n, other in root.pairs("add") if (g := _with_scale(n, other, 2))), None)


def _with_scale(node: Node, other: Node, position: int) -> Group | None:
    """Returns the normalisation with another operand: the weight (1), before the bias (2)."""
    flow, value = node.flow, node.view.value
    op = flow.makers.get(value)
    if op is None or "normalized_shape" not in op.attributes or flow.shape(value) != node.frame or not node.sole:
        return None
    scale = other.last(len(op.attributes["normalized_shape"]))
    if not scale or any(v is not None for v in op.operands[position:]):
        return None
    operands: list[Operand | None] = [None if v is None else (v, flow.shape(v)) for v in op.operands]
    operands[position] = scale
    return Group(op.name.removeprefix("ttir."), tuple(operands), op.attributes)


# --- casts around ----------------------------------------------------------------------------------------------------


def narrow(root: Node) -> Group | None:
    """Matches statistics of 16-bit floats computed in float32 and cast back, as the operation itself does."""
    flow = root.flow
    (value,) = flow.makers[root.view.value].used
    op = flow.makers.get(value)
    if op is None or not has_trait(op.name, Trait.IN_FLOAT32) or value in flow.shared:
        return None
    if flow.dtype(value) != F32 or root.dtype not in (BF16, F16):
        return None
    sources = [None if v is None else _before_cast(root, v) for v in op.operands]
    if any(s is None and v is not None for s, v in zip(sources, op.operands, strict=True)):
        return None
    return Group(op.name.removeprefix("ttir."), tuple(sources), op.attributes)


def _before_cast(root: Node, value: int) -> Operand | None:
    """Returns the value in the result's type, before a cast to float32."""
    flow = root.flow
    base = flow.follow(flow.align(value, flow.shape(value)), flow.moved)
    op = flow.makers.get(base.value)
    source = op.used[0] if op is not None and op.name == "ttir.typecast" else None
    return (source, flow.shape(value)) if source is not None and flow.dtype(source) == root.dtype else None
