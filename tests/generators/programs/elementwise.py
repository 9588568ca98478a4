"""What a device does with its own arrays in random programs: how it is drawn, written in JAX, and meant in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.generators.programs.values import (
    FLOATS,
    INTEGERS,
    LIMITS,
    Array,
    Draw,
    Misfit,
    dtype_of,
    is_float,
    narrow,
    wide,
)

Params = Mapping[str, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Compute:
    """One operation of a device on its own.

    Attributes:
      arity: how many operands it takes.
      drawn: what else it says, for operands (as one device has them); None if they do not fit.
      text: the JAX expression.
      meaning: the same in NumPy, an array or a tuple of them.
      exact: whether whole numbers give whole numbers, without rounding.
      settled: whether a small error of an operand may change the result beyond measure.
      results: how many there are.
    """

    arity: int
    drawn: Callable[[Draw, Sequence[Array]], Params | None]
    text: Callable[[Sequence[str], Params], str]
    meaning: Callable[..., Any]
    exact: bool = True
    settled: bool = False
    results: int = 1


Fits = Callable[[Draw, Sequence[Array]], Params | None]
TABLE: dict[str, Compute] = {}
MOST = 4096
"""Elements of the largest array."""


def _numbers(draw: Draw, xs: Sequence[Array]) -> Params | None:
    return None if any(x.dtype == np.bool_ for x in xs) else {}


def _floats(draw: Draw, xs: Sequence[Array]) -> Params | None:
    return {} if all(is_float(x) for x in xs) else None


def _float32(draw: Draw, xs: Sequence[Array]) -> Params | None:
    return {} if all(x.dtype == np.float32 for x in xs) else None


def _signed(draw: Draw, xs: Sequence[Array]) -> Params | None:
    return {} if all(is_float(x) or x.dtype.kind == "i" for x in xs) else None


def _discrete(draw: Draw, xs: Sequence[Array]) -> Params | None:
    return {} if _meet(xs) and xs[0].dtype.kind in "iub" else None


def _meet(xs: Sequence[Array]) -> bool:
    """Whether arrays are of one type and broadcast together."""
    if any(x.dtype != xs[0].dtype for x in xs):
        return False
    try:
        return math.prod(np.broadcast_shapes(*[x.shape for x in xs])) <= MOST
    except ValueError:
        return False


def _pair(draw: Draw, xs: Sequence[Array]) -> Params | None:
    return _numbers(draw, xs) if _meet(xs) else None


def alone(meaning: Callable[[Params], Any]) -> Callable[..., Any]:
    """The meaning of an operation without operands."""
    return meaning


def of_one(meaning: Callable[[Params, Array], Any]) -> Callable[..., Any]:
    """The meaning of an operation of one array."""
    return meaning


def of_two(meaning: Callable[[Params, Array, Array], Any]) -> Callable[..., Any]:
    """The meaning of an operation of two arrays."""
    return meaning


def plain_text(text: str) -> Callable[[Sequence[str], Params], str]:
    """An expression with the operands by number and what else is said by name."""
    return lambda names, params: text.format(*names, **params)


def _float32_pair(draw: Draw, xs: Sequence[Array]) -> Params | None:
    return _float32(draw, xs) if _meet(xs) else None


# --- element by element ----------------------------------------------------------------------------------------------


def _pointwise(
    name: str, arity: int, text: str, meaning: Callable[..., Any], fits: Fits, exact: bool = True, settled: bool = False
) -> None:
    def run(params: Params, *xs: Array) -> Array:
        with np.errstate(all="ignore"):
            found = np.asarray(meaning(*[wide(x) for x in xs]))
        return found if found.dtype == np.bool_ else narrow(found, xs[-1].dtype)

    TABLE[name] = Compute(arity, fits, plain_text(text), run, exact, settled)


def _positive(x: Array) -> Any:
    return x > 0


def _remainder(x: Array) -> Any:
    return np.fmod(x, 3)


def _quotient(x: Array, y: Array) -> Any:
    return x / (y * y + 1)


_UNARY: list[tuple[str, str, Callable[[Array], Any], Fits]] = [
    ("neg", "-{0}", np.negative, _signed),
    ("abs", "jnp.abs({0})", np.abs, _signed),
    ("square", "jnp.square({0})", np.square, _numbers),
    ("double", "{0} * 2", lambda x: x * 2, _numbers),
    ("next", "{0} + 1", lambda x: x + 1, _numbers),
    ("less", "{0} - 3", lambda x: x - 3, _numbers),
    ("relu", "jax.nn.relu({0})", lambda x: np.maximum(x, 0), _signed),
    ("clip", "jnp.clip({0}, 0, 3)", lambda x: np.clip(x, 0, 3), _numbers),
    ("cube", "{0} ** 3", lambda x: x * x * x, _numbers),
]
for _name, _text, _meaning, _fits in _UNARY:
    _pointwise(_name, 1, _text, _meaning, _fits)
_BINARY: list[tuple[str, str, Any, Fits, bool]] = [
    ("add", "{0} + {1}", np.add, _pair, False),
    ("sub", "{0} - {1}", np.subtract, _pair, False),
    ("mul", "{0} * {1}", np.multiply, _pair, False),
    ("max", "jnp.maximum({0}, {1})", np.maximum, _pair, False),
    ("min", "jnp.minimum({0}, {1})", np.minimum, _pair, False),
    ("less_than", "{0} < {1}", np.less, _pair, True),
    ("equal", "{0} == {1}", np.equal, _pair, True),
    ("at_least", "{0} >= {1}", np.greater_equal, _pair, True),
    ("and", "{0} & {1}", np.bitwise_and, _discrete, False),
    ("or", "{0} | {1}", np.bitwise_or, _discrete, False),
    ("xor", "{0} ^ {1}", np.bitwise_xor, _discrete, False),
]
for _name, _text, _function, _fits, _settled in _BINARY:
    _pointwise(_name, 2, _text, _function, _fits, settled=_settled)
_pointwise("positive", 1, "{0} > 0", _positive, _numbers, settled=True)
_pointwise("not", 1, "~{0}", np.logical_not, lambda draw, xs: {} if xs[0].dtype == np.bool_ else None)
_pointwise("sign", 1, "jnp.sign({0})", np.sign, _signed, settled=True)
_pointwise("floor", 1, "jnp.floor({0})", np.floor, _floats, settled=True)
_pointwise("remainder", 1, "lax.rem({0}, lax.full_like({0}, 3))", _remainder, _numbers, settled=True)
_ROUNDED: list[tuple[str, str, Callable[[Array], Any]]] = [
    ("tanh", "jnp.tanh({0})", np.tanh),
    ("sin", "jnp.sin({0} * 0.125)", lambda x: np.sin(x * 0.125)),
    ("logistic", "jax.nn.sigmoid({0})", lambda x: 1 / (1 + np.exp(-x))),
    ("exp", "jnp.exp(jnp.minimum({0}, 2) * 0.5)", lambda x: np.exp(np.minimum(x, 2) * 0.5)),
    ("root", "jnp.sqrt({0} * {0} + 1)", lambda x: np.sqrt(x * x + 1)),
    ("rsqrt", "lax.rsqrt({0} * {0} + 1)", lambda x: 1 / np.sqrt(x * x + 1)),
    ("log", "jnp.log1p({0} * {0})", lambda x: np.log1p(x * x)),
    ("silu", "jax.nn.silu({0})", lambda x: x / (1 + np.exp(-x))),
    ("third", "{0} / 3", lambda x: x / 3),
]
for _name, _text, _meaning in _ROUNDED:
    _pointwise(_name, 1, _text, _meaning, _float32, exact=False)
_pointwise("divide", 2, "{0} / ({1} * {1} + 1)", _quotient, _float32_pair, exact=False)


def _where(draw: Draw, xs: Sequence[Array]) -> Params | None:
    return {} if xs[0].dtype == np.bool_ and _meet(xs[1:]) and _meet([x != x for x in xs]) else None


def _chosen(params: Params, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y).astype(x.dtype)


TABLE["where"] = Compute(3, _where, plain_text("jnp.where({0}, {1}, {2})"), _chosen)


def _cast(draw: Draw, xs: Sequence[Array]) -> Params | None:
    return {"dtype": draw.choice([n for n in (*FLOATS, *INTEGERS, "bool") if n != xs[0].dtype.name])}


def _casted(params: Params, x: Array) -> Array:
    if params["dtype"] == "bool":
        return x != 0
    return narrow(wide(x).astype(np.float64), dtype_of(params["dtype"]))


TABLE["cast"] = Compute(1, _cast, plain_text("{0}.astype(jnp.{dtype})"), _casted, settled=True)


# --- products and reductions -----------------------------------------------------------------------------------------

CONTRACTIONS = ["ij,jk->ik", "ij,kj->ik", "bij,bjk->bik", "ij,j->i", "i,i->", "i,j->ij", "bij,jk->bik", "ij,ij->j"]


def _contraction(draw: Draw, xs: Sequence[Array]) -> Params | None:
    x, y = xs
    fitting: list[str] = []
    for said in CONTRACTIONS:
        inputs, out = said.split("->")
        left, right = inputs.split(",")
        if len(left) != x.ndim or len(right) != y.ndim:
            continue
        sizes = dict(zip(left, x.shape, strict=True))
        fits = all(sizes.setdefault(k, n) == n for k, n in zip(right, y.shape, strict=True))
        if fits and math.prod(sizes[k] for k in out) <= MOST:
            fitting.append(said)
    if x.dtype != y.dtype or x.dtype == np.bool_ or not fitting:
        return None
    return {"said": draw.choice(fitting)}


def _contracted(params: Params, x: Array, y: Array) -> Array:
    _check_sum(np.einsum(params["said"], np.abs(wide(x)), np.abs(wide(y))), x)
    return narrow(np.einsum(params["said"], wide(x), wide(y)), x.dtype)


def _check_sum(total: Any, x: Array) -> None:
    if is_float(x) and float(np.max(total, initial=0)) > LIMITS[x.dtype.name]:
        raise Misfit("a sum that may round")


TABLE["einsum"] = Compute(2, _contraction, plain_text('jnp.einsum("{said}", {0}, {1})'), _contracted)
TABLE["matmul"] = Compute(
    2,
    lambda draw, xs: (
        {"said": "ij,jk->ik"}
        if xs[0].ndim == xs[1].ndim == 2 and _contraction(draw, xs) and xs[0].shape[1] == xs[1].shape[0]
        else None
    ),
    plain_text("{0} @ {1}"),
    _contracted,
)


def _reduction(draw: Draw, xs: Sequence[Array]) -> Params | None:
    (x,) = xs
    axis = tuple(i for i in range(x.ndim) if draw.boolean())
    if x.dtype == np.bool_ or not axis:
        return None
    return {"axis": axis, "keepdims": draw.boolean()}


def _reduced(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(params: Params, x: Array) -> Array:
        if function is np.sum:
            _check_sum(np.sum(np.abs(wide(x)), **params), x)
        return narrow(function(wide(x), **params), x.dtype)

    return run


TABLE["sum"] = Compute(
    1, _reduction, plain_text("jnp.sum({0}, axis={axis}, keepdims={keepdims}, dtype={0}.dtype)"), _reduced(np.sum)
)
TABLE["largest"] = Compute(
    1, _reduction, plain_text("jnp.max({0}, axis={axis}, keepdims={keepdims})"), _reduced(np.max)
)
TABLE["least"] = Compute(1, _reduction, plain_text("jnp.min({0}, axis={axis}, keepdims={keepdims})"), _reduced(np.min))
TABLE["mean"] = Compute(
    1,
    lambda draw, xs: _reduction(draw, xs) if _float32(draw, xs) is not None else None,
    plain_text("jnp.mean({0}, axis={axis}, keepdims={keepdims})"),
    _reduced(np.mean),
    exact=False,
)


def _along(draw: Draw, xs: Sequence[Array]) -> Params | None:
    (x,) = xs
    return None if x.ndim == 0 or x.dtype == np.bool_ else {"axis": draw.integers(0, x.ndim - 1)}


def _summed(params: Params, x: Array) -> Array:
    _check_sum(np.sum(np.abs(wide(x)), params["axis"]), x)
    return narrow(np.cumsum(wide(x), params["axis"]), x.dtype)


TABLE["cumsum"] = Compute(1, _along, plain_text("jnp.cumsum({0}, axis={axis})"), _summed)
TABLE["argmax"] = Compute(
    1, _along, plain_text("jnp.argmax({0}, axis={axis})"),
    of_one(lambda p, x: np.asarray(np.argmax(wide(x), p["axis"])).astype(np.int32)), settled=True,
)  # fmt: skip
TABLE["sort"] = Compute(
    1,
    _along,
    plain_text("jnp.sort({0}, axis={axis})"),
    of_one(lambda p, x: np.sort(wide(x), p["axis"]).astype(x.dtype)),
)
TABLE["any"] = Compute(
    1,
    lambda draw, xs: {"axis": draw.integers(0, xs[0].ndim - 1)} if xs[0].ndim and xs[0].dtype == np.bool_ else None,
    plain_text("jnp.any({0}, axis={axis})"),
    of_one(lambda p, x: np.asarray(np.any(x, p["axis"]))),
)


# --- groups that are recognised --------------------------------------------------------------------------------------


def _last(draw: Draw, xs: Sequence[Array]) -> Params | None:
    return {} if xs[0].ndim and xs[0].dtype == np.float32 else None


def _softmax(x: Array) -> Array:
    up = np.exp(x - x.max(-1, keepdims=True))
    return up / up.sum(-1, keepdims=True)


def _normal(x: Array) -> Array:
    apart = x - x.mean(-1, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(-1, keepdims=True) + 1)


_GROUPS: list[tuple[str, str, Callable[[Array], Any]]] = [
    ("softmax", "jax.nn.softmax({0})", _softmax),
    ("log_softmax", "jax.nn.log_softmax({0})", lambda x: np.log(_softmax(x))),
    ("rms_norm", "{0} * lax.rsqrt(jnp.mean({0} * {0}, axis=-1, keepdims=True) + 1)",
     lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1)),
    ("layer_norm", "({0} - {0}.mean(-1, keepdims=True)) * lax.rsqrt({0}.var(-1, keepdims=True) + 1)", _normal),
]  # fmt: skip
for _name, _text, _meaning in _GROUPS:
    _pointwise(_name, 1, _text, _meaning, _last, exact=False)
