"""The pattern of linear."""

from __future__ import annotations

from jaxmesh.dialects.program import Op, Value
from jaxmesh.passes.fusion.dataflow import FLOATS, Flow, Node
from jaxmesh.passes.fusion.pattern import Group

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
