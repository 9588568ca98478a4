"""Orders and scans along a dim: sort, top_k, argmax, cumulative reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule
from jaxmesh.passes.flatten.index_arithmetic import INDEX, combine_broadcast, compare, is_float, select
from jaxmesh.passes.flatten.lookup import along
from jaxmesh.passes.flatten.shapes import part
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_jax: Any = jax

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
        values, step = _sort_pairs(b, along(b, key, order, dim), dim)
        order = along(b, order, step, dim)
    return [values if i == 0 else order if _counts(b, x, dim) else along(b, x, order, dim) for i, x in enumerate(xs)]


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


def _less(b: Builder, x: Value, y: Value) -> Value:
    """Compares in the total order, in which -0 is below 0 and NaN above all; every NaN counts as the same."""
    below = compare(b, "lt", x, y)
    if not is_float(b.dtype(x)):
        return below
    number, nan = compare(b, "eq", x, x), compare(b, "ne", y, y)
    one = b.full((), 1, b.dtype(x))
    # What is below 0 by its sign alone has another reciprocal; infinities then stand for no other numbers.
    zeros = combine_broadcast(b, "logical_and", *(compare(b, "eq", v, b.full((), 0, b.dtype(x))) for v in (x, y)))
    signs = compare(b, "lt", *(combine_broadcast(b, "div", one, v) for v in (x, y)))
    below = combine_broadcast(b, "logical_or", below, combine_broadcast(b, "logical_and", number, nan))
    return combine_broadcast(b, "logical_or", below, combine_broadcast(b, "logical_and", zeros, signs))


@RULES.add("lt_to")
def _lt_to(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    return _less(b, *xs)


@RULES.add("le_to")
def _le_to(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    x, y = xs
    return b.same("logical_not", [_less(b, y, x)])


@RULES.add("eq_to")
def _eq_to(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    x, y = xs
    return b.same("logical_not", [combine_broadcast(b, "logical_or", _less(b, x, y), _less(b, y, x))])


@RULES.add("call_hi_primitive")
def _expand(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    # `searchsorted` and its like: primitives that say themselves what they are made of.
    made: Any = eqn.params["_prim"]
    types = [jax.ShapeDtypeStruct(b.shape(x), b.dtype(x)) for x in xs]

    def expanded(*given: Any) -> Any:
        return made.expand(*_jax.tree.unflatten(made.in_tree, given))

    return b.jaxpr(_jax.make_jaxpr(expanded)(*types), xs)


# --- cumulative ------------------------------------------------------------------------------------------------------

Combine = Callable[[Builder, Value, Value], Value]


def _reverse(b: Builder, x: Value, dim: int) -> Value:
    return b.same("reverse", [x], dimensions=(dim,))


@RULES.add("cumsum")
def _cumsum(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    (x,), dim = xs, int(eqn.params["axis"])
    if not eqn.params["reverse"]:
        return b.same("cumsum", [x], dim=dim)
    return _reverse(b, b.same("cumsum", [_reverse(b, x, dim)], dim=dim), dim)


def _log_add_exp(b: Builder, x: Value, y: Value) -> Value:
    """Returns `log(exp(x) + exp(y))`; for two equal infinities that infinity."""
    apart = b.same("subtract", [x, y])
    small = b.same("log1p", [b.same("exp", [b.same("neg", [b.same("abs", [apart])])])])
    made = b.same("add", [b.same("maximum", [x, y]), small])
    undefined = compare(b, "ne", apart, apart)
    return select(b, undefined, b.same("add", [x, y]), made)


def _scan(b: Builder, x: Value, dim: int, backwards: bool, combine: Combine) -> Value:
    """Reduces all elements up to each one, in as many steps as the length has binary digits."""
    shape, distance = b.shape(x), 1
    while distance < shape[dim]:
        keep = part(b, x, dim, shape[dim] - distance, shape[dim]) if backwards else part(b, x, dim, 0, distance)
        low = part(b, x, dim, 0, shape[dim] - distance)
        high = part(b, x, dim, distance, shape[dim])
        made = combine(b, high, low) if backwards else combine(b, low, high)
        x = b.concat([made, keep] if backwards else [keep, made], dim)
        distance *= 2
    return x


def _cumulative(combine: Combine) -> Rule:
    return lambda b, eqn, xs: _scan(b, xs[0], int(eqn.params["axis"]), bool(eqn.params["reverse"]), combine)


RULES["cumprod"] = _cumulative(lambda b, x, y: b.same("multiply", [x, y]))
RULES["cummax"] = _cumulative(lambda b, x, y: b.same("maximum", [x, y]))
RULES["cummin"] = _cumulative(lambda b, x, y: b.same("minimum", [x, y]))
RULES["cumlogsumexp"] = _cumulative(_log_add_exp)
