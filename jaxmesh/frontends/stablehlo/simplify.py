"""Rewrites ops as XLA does before it runs Shardy, whose rules depend on the form of an op."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from jaxmesh.frontends.stablehlo.call import enum_of
from jaxmesh.frontends.stablehlo.reductions import constant_of
from jaxmesh.frontends.stablehlo.shardings import OWN, requested

_ir: Any = ir


def simplify(body: Sequence[Any]) -> None:
    """Rewrites ops of a function."""
    for op in body:
        if op.name == "stablehlo.broadcast_in_dim":
            _reshape_broadcast(op)
        elif op.name == "stablehlo.dynamic_slice":
            _slice_at_constants(op)
        elif op.name == "stablehlo.while":
            _capture_invariants(op)


def _replace(op: Any, name: str, attributes: dict[str, Any]) -> None:
    """Replaces an op of one result by an op of its first operand."""
    location = {"loc": op.location, "ip": _ir.InsertionPoint(op)}
    new = _ir.Operation.create(name, [op.results[0].type], [op.operands[0]], attributes, **location)
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()


def _reshape_broadcast(op: Any) -> None:
    """Replaces a broadcast that only adds dims of size 1 by a reshape.

    Shardy propagates through reshapes before products, and through broadcasts after products.
    """
    (x,), (y,) = op.operands, op.results
    dims = list(op.attributes["broadcast_dimensions"])
    if dims and dims == sorted(dims) and math.prod(x.type.shape) == math.prod(y.type.shape):
        _replace(op, "stablehlo.reshape", {})


def _capture_invariants(loop: Any) -> None:
    """Replaces unchanged values of a loop by the outer values, so that constraints inside apply to the outer values.

    A value with a requested sharding gets an open constraint, since the loop may use it in another sharding.
    """
    cond, body = (r.blocks[0] for r in loop.regions)
    end = [o.operation for o in body.operations][-1]
    for i, value in enumerate(loop.operands):
        if end.operands[i] != body.arguments[i]:
            continue
        read: Any = None
        for use in [u for block in (cond, body) for u in block.arguments[i].uses]:
            if use.owner != end:
                read = _opened(value, loop) if read is None else read
                use.owner.operands[use.operand_number] = read
        loop.results[i].replace_all_uses_with(value)


def _opened(value: Any, before: Any) -> Any:
    """Returns a value with a requested sharding in any sharding; other values unchanged."""
    sharding = requested(value)
    if sharding is None:
        return value
    mesh, rank = str(sharding.mesh_or_ref), len(value.type.shape)
    text = f"#sdy.sharding<{mesh}, [{', '.join(['{?}'] * rank)}]>"
    attributes = {OWN["sdy.sharding_constraint"]: _ir.Attribute.parse(text, before.context)}
    location = {"loc": before.location, "ip": _ir.InsertionPoint(before)}
    return _ir.Operation.create("sdy.sharding_constraint", [value.type], [value], attributes, **location).results[0]


def _slice_at_constants(op: Any) -> None:
    """Replaces a dynamic_slice with constant start indices by a slice.

    Shardy splits the dims of a slice, but not the dims that a dynamic_slice cuts.
    """
    x, *indices = op.operands
    sizes, indices = list(op.attributes["slice_sizes"]), [_integer(i) for i in indices]
    if any(i is None for i in indices):
        return
    whole = zip(indices, x.type.shape, sizes, strict=True)
    starts = [int(np.clip(i, 0, n - size)) for i, n, size in whole]
    limits = list(map(operator.add, starts, sizes))
    rows = {"start_indices": starts, "limit_indices": limits, "strides": [1] * len(sizes)}
    _replace(op, "stablehlo.slice", {name: _ir.DenseI64ArrayAttr.get(row) for name, row in rows.items()})


def _clamp(low: Any, x: Any, high: Any) -> Any:
    return np.clip(x, low, high)


_COMPARE: dict[str, Callable[..., Any]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}
_FOLDED: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.minimum": np.minimum,
    "stablehlo.maximum": np.maximum,
    "stablehlo.select": np.where,
    "stablehlo.clamp": _clamp,
    "stablehlo.convert": np.asarray,
}


def _integer(value: Any) -> Any:
    """Returns the integer that a scalar is computed to from constants; None for any other value."""
    element = str(value.type.element_type)
    if not re.fullmatch(r"u?i\d+", element):
        return None
    number = constant_of(value)
    number = _folded(value.owner) if number is None else number
    return (
        None
        if number is None
        else np.asarray(number).astype("bool" if element == "i1" else element.replace("i", "int"))
    )


def _folded(op: Any) -> Any:
    name = getattr(op, "name", "")
    fold = _COMPARE.get(enum_of(op, "comparison_direction")) if name == "stablehlo.compare" else _FOLDED.get(name)
    operands = [_integer(v) for v in op.operands] if fold else []
    return fold(*operands) if fold and not any(x is None for x in operands) else None
