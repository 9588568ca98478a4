"""The patterns of activations, and of linear."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jaxmesh.dialects.program import Op, Value
from jaxmesh.passes.fusion.dataflow import F16, FLOATS, Flow, Node, close
from jaxmesh.passes.fusion.pattern import Group

_STEPS = 3
"""The number of nested factors by numbers that a pattern looks through."""


def _unary(name: str, x: Node) -> Group | None:
    operand = x.as_operand()
    return None if operand is None else Group(name, (operand,))


def _strip(node: Node) -> Iterator[tuple[float, Node]]:
    """Yields every form of a node as a number times another node, the node itself first."""
    factor = 1.0
    yield factor, node
    for _ in range(_STEPS):
        found = _without_number(node)
        if found is None:
            return
        factor, node = factor * found[0], found[1]
        yield factor, node


def _without_number(node: Node) -> tuple[float, Node] | None:
    for x in node.inputs("neg"):
        return -1.0, x
    for a, b in node.pairs("multiply"):
        if b.number is not None:
            return b.number, a
    both = node.inputs("div", "divide")
    if both and both[1].number:
        return 1 / both[1].number, both[0]
    both = node.inputs("subtract")
    return (-1.0, both[1]) if both and both[0].number == 0 else None


# --- sigmoid, silu, relu ---------------------------------------------------------------------------------------------


def _under_sigmoid(node: Node) -> Node | None:
    """Returns the `x` of `1 + exp(-x)`, except for float16, where it would overflow and a sigmoid would not."""
    if node.dtype == F16:
        return None
    for a, b in node.pairs("add"):
        for y in b.inputs("exp") if a.number == 1 else ():
            return next((x for factor, x in _strip(y) if factor == -1), None)
    return None


def sigmoid(root: Node) -> Group | None:
    """Matches `1 / (1 + exp(-x))`."""
    below = root.inverse()
    x = _under_sigmoid(below) if below else None
    return _unary("sigmoid", x) if x else None


def silu(root: Node) -> Group | None:
    """Matches `x * sigmoid(x)`, `x / (1 + exp(-x))`."""
    for x, gate in root.pairs("multiply"):
        for y in gate.inputs("sigmoid"):
            if y.same(x):
                return _unary("silu", x)
    divided = root.inputs("div", "divide")
    y = _under_sigmoid(divided[1]) if divided else None
    return _unary("silu", divided[0]) if y and y.same(divided[0]) else None


def relu(root: Node) -> Group | None:
    """Matches `max(x, 0)`."""
    for x, zero in root.pairs("maximum"):
        if zero.number == 0 and x.number is None:
            return _unary("relu", x)
    return None


# --- gelu ------------------------------------------------------------------------------------------------------------


def gelu(root: Node) -> Group | None:
    """Matches `x / 2 * erfc(-x / sqrt 2)`, `x / 2 * (1 + erf(x / sqrt 2))`; gelu with tanh is another function."""
    for factor, product in _strip(root):
        for a, b in product.pairs("multiply"):
            for weight, curve in _strip(b):
                for height, slope, y in _curves(curve):
                    x = _argument(a, factor * weight * height, y, slope)
                    if x:
                        return _unary("gelu", x)
    return None


def _curves(node: Node) -> Iterator[tuple[float, float, Node]]:
    """Yields the forms number times `erfc(y)` or `1 + erf(y)`: the number, the required `y / x`, and `y`."""
    for y in node.inputs("erfc"):
        yield 1.0, -math.sqrt(0.5), y
    for a, b in node.pairs("add"):
        for height, curve in _strip(b) if a.number else ():
            for y in curve.inputs("erf") if height == a.number else ():
                yield height, math.sqrt(0.5), y


def _argument(a: Node, factor: float, y: Node, slope: float) -> Node | None:
    """Returns the `x` with `factor * a = x / 2` and `y = slope * x`."""
    for first, x in _strip(a):
        for second, z in _strip(y) if close(first * factor, 0.5, x.dtype) else ():
            if close(second, slope, x.dtype) and z.same(x):
                return x
    return None


_RESHAPES = 3
"""The number of reshapes allowed between a matmul and its bias."""


def linear(root: Node) -> Group | None:
    """Matches `a @ b + bias` with one number per column, and possibly reshaped rows in between."""
    for product, bias in root.pairs("add"):
        op = _matmul(product.flow, product.view.value, root)
        scale = bias.last(1) if op and bias.number is None else None
        if op and scale:
            a, b = ((v, root.flow.shape(v)) for v in op.used)
            return Group("linear", (a, b, scale), op.attributes, root.flow.shape(op.results[0]))
    return None


def _matmul(flow: Flow, value: Value, root: Node) -> Op | None:
    """Returns the matmul that computes a value up to reshapes of its rows; None if the product has other uses."""
    if flow.shape(value) != root.frame or root.dtype not in FLOATS or not root.frame:
        return None
    for _ in range(_RESHAPES + 1):
        op = flow.makers.get(value)
        shape = flow.shape(value)
        if op is None or value in flow.shared or shape[-1:] != root.frame[-1:]:
            return None
        if op.name == "ttir.matmul":
            return op if flow.dtype(value) == root.dtype else None
        if op.name != "ttir.reshape":
            return None
        (value,) = op.used
    return None
