"""Reductions over dims, and orders and scans along one: sort, top_k, argmax, cumulative reductions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.primitives import COMBINES
from jaxmesh.jaxprs.untyped import DType, jnp, lax
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Function, Params, decomposed
from jaxmesh.passes.flatten.elementwise import BINARY
from jaxmesh.passes.flatten.index_arithmetic import INDEX, is_float
from jaxmesh.passes.flatten.shapes import reverse

RULES: Rules[Rule] = Rules()

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


def identity(kind: str, dtype: DType) -> float | int:
    """Returns the identity of a reduction."""
    if kind in ("sum", "or", "xor"):
        return 0
    if kind == "prod" or dtype.kind == "b":
        return 0 if kind == "max" else 1
    if jnp.issubdtype(dtype, jnp.integer):
        low, high = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
        return {"and": -1 if low else high, "max": low, "min": high}[kind]
    info = jnp.finfo(dtype)
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


def combining(eqn: Eqn) -> str:
    """Returns the reduction by the body of an equation; raises `MissingRuleError` unless it is a known primitive."""
    body = walk.open_jaxpr(eqn.params["jaxpr"])
    if len(eqn.invars) == 2 and len(body.eqns) == 1:
        (step,) = body.eqns
        if step.primitive.name in COMBINES and set(step.invars) == set(body.invars) and body.outvars == step.outvars:
            return COMBINES[step.primitive.name]
    raise missing(eqn, f"it combines by more than one of {', '.join(COMBINES)}, and TTIR has no row for a body")


@RULES.add("reduce")
def _reduce(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    kind, (x, start) = combining(eqn), xs
    out = reduce_dims(b, kind, x, eqn.params["dimensions"])
    return out if b.fill(start) == identity(kind, b.dtype(x)) else combine(b, kind, out, start)


# --- sort ------------------------------------------------------------------------------------------------------------


@RULES.add("sort")
def _sort(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    dim, keys = int(eqn.params["dimension"]), int(eqn.params["num_keys"])
    shape = b.shape(xs[0])
    if 0 in shape or shape[dim] == 1:
        return xs
    values, order = _sort_pairs(b, xs[keys - 1], dim)
    # From the last key to the first: what is equal keeps the order of the keys behind it.
    for key in reversed(xs[: keys - 1]):
        values, step = _sort_pairs(b, b.gather(key, order, dim), dim)
        order = b.gather(order, step, dim)
    return [values if i == 0 else order if _counts(b, x, dim) else b.gather(x, order, dim) for i, x in enumerate(xs)]


def _sort_pairs(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    shape = b.shape(x)
    values, order = b.ops(
        "ttir.sort", [x], [(shape, b.dtype(x)), (shape, INDEX)], dim=dim, descending=False, stable=True
    )
    return values, order


def _counts(b: Builder, x: Value, dim: int) -> bool:
    """Returns True if an array is the int32 positions along a dim: sorted, these are the order itself."""
    shape = b.shape(x)
    if b.dtype(x) != INDEX:
        return False
    if x in b.known:
        return bool((b.known[x] == np.arange(shape[dim]).reshape(_wide(shape, dim))).all())
    wide = b.maker(x, "broadcast")
    if wide is not None:
        # The positions stand along the dim alone, as `arange` made them or as they were reshaped.
        (x,) = wide.used
        kept = b.maker(x, "reshape")
        if kept is None or b.shape(x) != _wide(shape, dim):
            return b.shape(x)[dim] == shape[dim] and _is_arange(b, x, dim)
        (x,) = kept.used
        return len(b.shape(x)) == 1 and _is_arange(b, x, 0)
    return _is_arange(b, x, dim)


def _wide(shape: Shape, dim: int) -> Shape:
    return tuple(n if d == dim else 1 for d, n in enumerate(shape))


def _is_arange(b: Builder, x: Value, dim: int) -> bool:
    made = b.maker(x, "arange")
    if made is None or b.dtype(x) != INDEX:
        return False
    attributes, rank = made.attributes, len(b.shape(x))
    return (attributes["start"], attributes["step"], attributes.get("arange_dimension", 0) % rank) == (0, 1, dim)


@RULES.add("top_k")
def _top_k(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    return _topk(b, eqn, xs, int(eqn.params.get("axis", len(b.shape(xs[0])) - 1)), largest=True)


@RULES.add("approx_top_k")
def _approx_top_k(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    # As off TPUs, where it is exact. Without aggregation it gives more candidates than k: as many of the first.
    dim = int(eqn.params["reduction_dimension"]) % len(b.shape(xs[0]))
    return _topk(b, eqn, xs, dim, largest=bool(eqn.params["is_max_k"]))


def _topk(b: Builder, eqn: Eqn, xs: Sequence[Value], dim: int, largest: bool) -> Sequence[Value]:
    types = [(tuple(v.aval.shape), v.aval.dtype) for v in eqn.outvars]
    shape = types[0][0]
    if 0 in shape:
        return [b.full(shape, 0, dtype) for shape, dtype in types]
    return b.ops("ttir.topk", xs, types, k=shape[dim], dim=dim, largest=largest, sorted=True)


# --- argmax ----------------------------------------------------------------------------------------------------------


def _argmax(b: Builder, eqn: Eqn, x: Value) -> Value:
    out = eqn.outvars[0].aval
    (dim,) = eqn.params["axes"]
    return b.op("argmax", [x], out.shape, out.dtype, dim_arg=(int(dim),), keep_dim=False)


@RULES.add("argmax")
def _(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    return _argmax(b, eqn, xs[0])


@RULES.add("argmin")
def _(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    # The other way round without overflow: -1 - x of integers. A NaN stays one, and is the first of both orders.
    (x,) = xs
    kind = b.dtype(x)
    name = "logical_not" if kind == np.bool_ else "neg" if is_float(kind) else "bitwise_not"
    return _argmax(b, eqn, b.same(name, [x]))


# --- total order -----------------------------------------------------------------------------------------------------


def _less(x: jax.Array, y: jax.Array) -> jax.Array:
    """Compares in the total order: -0 is below 0 and NaN above all; every NaN counts as the same."""
    if not is_float(x.dtype):
        return x < y
    # Zeros differ in the sign of their reciprocals.
    return (x < y) | ((x == x) & (y != y)) | ((x == 0) & (y == 0) & (1 / x < 1 / y))


_ORDERS: Mapping[str, Callable[[Params, jax.Array, jax.Array], jax.Array]] = {
    "lt_to": lambda params, x, y: _less(x, y),
    "le_to": lambda params, x, y: ~_less(y, x),
    "eq_to": lambda params, x, y: ~(_less(x, y) | _less(y, x)),
}
for _name, _order in _ORDERS.items():
    decomposed(RULES, _name)(_order)


@RULES.add("call_hi_primitive")
def _expand(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    # `searchsorted` and others name their own decomposition.
    primitive = eqn.params["_prim"]
    return b.composed(lambda *args: primitive.expand(*jax.tree.unflatten(primitive.in_tree, args)), xs)


# --- cumulative ------------------------------------------------------------------------------------------------------


@RULES.add("cumsum")
def _cumsum(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    (x,), dim = xs, int(eqn.params["axis"])
    if not eqn.params["reverse"]:
        return b.same("cumsum", [x], dim=dim)
    return reverse(b, b.same("cumsum", [reverse(b, x, (dim,))], dim=dim), (dim,))


def _log_add_exp(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns `log(exp(x) + exp(y))`; for two equal infinities that infinity."""
    apart = x - y
    return jnp.where(apart != apart, x + y, jnp.maximum(x, y) + jnp.log1p(jnp.exp(-abs(apart))))


def _scan(params: Params, x: jax.Array, combine: Function) -> jax.Array:
    """Reduces all elements up to each one, in as many steps as the length has binary digits."""
    dim: int = params["axis"]
    distance, length = 1, x.shape[dim]
    part = functools.partial(lax.slice_in_dim, axis=dim)
    while distance < length:
        low, high = part(x, 0, length - distance), part(x, distance, length)
        if params["reverse"]:
            x = lax.concatenate([combine(high, low), part(x, length - distance, length)], dim)
        else:
            x = lax.concatenate([part(x, 0, distance), combine(low, high)], dim)
        distance *= 2
    return x


_CUMULATIVE: Mapping[str, Function] = {
    "cumprod": jnp.multiply, "cummax": jnp.maximum, "cummin": jnp.minimum, "cumlogsumexp": _log_add_exp,
}  # fmt: skip
for _name, _combine in _CUMULATIVE.items():
    decomposed(RULES, _name)(functools.partial(_scan, combine=_combine))
