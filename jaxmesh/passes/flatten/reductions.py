"""Reductions over dims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.primitives import COMBINES
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.elementwise import BINARY
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_jnp: Any = jax.numpy
_OF_BOOLS: Mapping[str, str] = {
    "max": "reduce_or", "min": "reduce_and", "and": "reduce_and", "or": "reduce_or", "sum": "reduce_or",
    "prod": "reduce_and",
}  # fmt: skip
PAIRS: Mapping[str, str] = {kind: BINARY[primitive] for primitive, kind in COMBINES.items()}
"""The operation of two operands that each reduction repeats."""
_BOOL_PAIRS: Mapping[str, str] = {
    "sum": "logical_or", "prod": "logical_and", "max": "logical_or", "min": "logical_and",
    "and": "logical_and", "or": "logical_or", "xor": "logical_xor",
}  # fmt: skip


def identity(kind: str, dtype: np.dtype[Any]) -> float | int:
    """Returns the identity of a reduction."""
    if kind in ("sum", "or", "xor"):
        return 0
    if kind == "prod" or dtype.kind == "b":
        return 0 if kind == "max" else 1
    if kind == "and":
        return -1 if dtype.kind == "i" else int(np.iinfo(dtype).max)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return int(info.min) if kind == "max" else int(info.max)
    info = _jnp.finfo(dtype)
    # Types without infinities (some of 8 bits) end at their largest number.
    largest = np.array(np.inf).astype(dtype)
    infinite = bool(np.isinf(largest.astype(np.float32)))
    most = math.inf if infinite else float(info.max)
    return -most if kind == "max" else most


def combine(b: Builder, kind: str, x: Value, y: Value) -> Value:
    """Combines two tensors of one type, element by element."""
    names = _BOOL_PAIRS if b.dtype(x).kind == "b" else PAIRS
    return b.same(names[kind], [x, y])


def reduce_dims(b: Builder, kind: str, x: Value, dims: Sequence[int]) -> Value:
    """Reduces a tensor over dims and drops them."""
    shape, dtype = b.shape(x), b.dtype(x)
    if not dims:
        return x
    kept = [n for d, n in enumerate(shape) if d not in dims]
    if 0 in shape:
        return b.full(kept, identity(kind, dtype), dtype)
    if dtype.kind == "b" and kind in _OF_BOOLS:
        return b.reduce(_OF_BOOLS[kind], x, dims)
    if kind in ("and", "or", "xor"):
        return _bit_by_bit(b, kind, x, dims)
    return b.reduce(kind, x, dims)


def _bit_by_bit(b: Builder, kind: str, x: Value, dims: Sequence[int]) -> Value:
    """Reduces bits, which TTIR cannot: combines halves until one is left."""
    shape = b.shape(x)
    if b.dtype(x).kind == "b":
        # An odd number of true ones.
        count = b.reduce("sum", b.cast(x, np.int32), dims)
        return b.cast(b.same("bitwise_and", [count, b.full((), 1, np.int32)]), np.bool_)
    for dim in dims:
        while (size := b.shape(x)[dim]) > 1:
            half = size // 2
            out = combine(b, kind, b.piece(x, dim, 0, half), b.piece(x, dim, half, 2 * half))
            x = out if size % 2 == 0 else b.concat([out, b.piece(x, dim, size - 1, size)], dim)
    return b.reshape(x, [n for d, n in enumerate(shape) if d not in dims])


def _reduction(kind: str) -> Rule:
    return lambda b, eqn, xs: reduce_dims(b, kind, xs[0], eqn.params["axes"])


RULES.update({f"reduce_{kind}": _reduction(kind) for kind in PAIRS})


def combining(jaxpr: Any) -> str | None:
    """Returns the reduction by a body of two arguments; None unless it is a known primitive."""
    body = walk.open_jaxpr(jaxpr)
    if len(body.eqns) != 1 or set(body.eqns[0].invars) != set(body.invars) or body.outvars != body.eqns[0].outvars:
        return None
    return COMBINES.get(body.eqns[0].primitive.name)


@RULES.add("reduce")
def _reduce(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    kind = combining(eqn.params["jaxpr"]) if len(xs) == 2 else None
    if kind is None:
        raise missing(eqn, f"it combines by more than one of {', '.join(COMBINES)}, and TTIR has no row for a body")
    x, start = xs
    out = reduce_dims(b, kind, x, eqn.params["dimensions"])
    return out if b.fill(start) == identity(kind, b.dtype(x)) else combine(b, kind, out, start)
