"""Elementwise ops. Operands broadcast to each other by NumPy's rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from jax.typing import DTypeLike

from jaxmesh.dialects.op import Call, Meaning, Trait, describe
from jaxmesh.dialects.ttir.helpers import (
    TtirOps,
    as_bool,
    convert,
    is_bool,
    is_integer,
    jax,
    jnp,
    lax,
    nn,
    vary_together,
)

OPS = TtirOps()

Unary = Callable[[jax.Array], jax.Array]
Binary = Callable[[jax.Array, jax.Array], jax.Array]


# --- one operand -----------------------------------------------------------------------------------------------------


def _hardsigmoid(x: jax.Array) -> jax.Array:
    return nn.relu6(x + 3) / 6


def _cbrt(x: jax.Array) -> jax.Array:
    # JAX's cbrt refuses 16-bit floats on some backends.
    return convert(jnp.cbrt(convert(x, jnp.float32)), x.dtype)


def _rounding(fun: Unary) -> Unary:
    # JAX would make floats of whole numbers.
    return lambda x: x if is_integer(x) else fun(x)


UNARY: Mapping[str, Unary] = {
    **{name: getattr(jnp, name) for name in (
        "abs", "sign", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "reciprocal", "sin", "cos", "tan", "tanh",
    )},
    **{f"a{name}": getattr(jnp, f"arc{name}") for name in ("sin", "cos", "tan", "sinh")},
    "neg": lax.neg, "rsqrt": lax.rsqrt, "cbrt": _cbrt, "erf": jax.scipy.special.erf, "erfc": jax.scipy.special.erfc,
    "floor": _rounding(jnp.floor), "ceil": _rounding(jnp.ceil), "trunc": _rounding(jnp.trunc),
    "bitwise_not": lax.bitwise_not, "relu": nn.relu, "relu6": lambda x: jnp.minimum(nn.relu(x), 6),
    "gelu": lambda x: nn.gelu(x, approximate=False), "silu": nn.silu, "sigmoid": nn.sigmoid,
    "hardsigmoid": _hardsigmoid, "mish": lambda x: x * jnp.tanh(nn.softplus(x)), "softsign": nn.soft_sign,
}  # fmt: skip
"""By TTIR name; the result has the operand's element type. TTNN has the same operations."""

LIBRARY_ONLY: Mapping[str, Unary] = {
    # Half to even, as torch and ttnn do.
    "round": _rounding(jnp.round), "sinh": jnp.sinh, "cosh": jnp.cosh, "acosh": jnp.arccosh, "atanh": jnp.arctanh,
    "hardswish": lambda x: x * _hardsigmoid(x), "softplus": nn.softplus,
}  # fmt: skip
"""By name: likewise functions of the library that upstream's dialects have no op for."""

TTIR_ONLY: Mapping[str, Unary] = {
    "frac": lambda x: jnp.zeros_like(x) if is_integer(x) else x - jnp.trunc(x),
    "square": lambda x: x * x,
}
"""By TTIR name; TTNN has no such op."""

TESTS: Mapping[str, Unary] = {"isfinite": jnp.isfinite, "logical_not": lambda x: jnp.logical_not(as_bool(x))}
"""By TTIR name; the result is a truth value, of any element type."""


def _unary(fun: Unary) -> Meaning:
    return lambda call: fun(*call.operands)


for _name, _fun in UNARY.items():
    OPS.define(_name)(_unary(_fun))
for _name, _fun in LIBRARY_ONLY.items():
    _later = (Trait.LATER,) if _name == "round" else ()
    OPS.define(_name, traits=[Trait.NOT_UPSTREAM, *_later])(_unary(_fun))
for _name, _fun in TTIR_ONLY.items():
    OPS.define(_name, traits=[Trait.DECOMPOSED_FOR_TTNN])(_unary(_fun))
for _name, _fun in TESTS.items():
    OPS.define(_name, casts=True)(_unary(_fun))
OPS.define("signbit", casts=True, traits=[Trait.DECOMPOSED_FOR_TTNN])(_unary(jnp.signbit))


@OPS.define("typecast")
def _typecast(call: Call) -> jax.Array:
    # Towards zero from floats to integers; the target is the declared type, not an attribute.
    (x,) = call.operands
    return as_bool(x) if call.result.dtype == jnp.bool_ else convert(x, call.result.dtype)


@OPS.define("leaky_relu")
def _leaky_relu(call: Call) -> jax.Array:
    (x,) = call.operands
    return nn.leaky_relu(x, call["parameter"])


@OPS.define("elu", traits=[Trait.NOT_UPSTREAM])
def _elu(call: Call) -> jax.Array:
    (x,) = call.operands
    return nn.elu(x, call["alpha"])


@OPS.define("selu")
def _selu(call: Call) -> jax.Array:
    (x,) = call.operands
    return call["scale"] * jnp.where(x > 0, x, call["alpha"] * jnp.expm1(x))


@OPS.define("clamp_scalar")
def _clamp_scalar(call: Call) -> jax.Array:
    (x,) = call.operands
    low, high = call["min"], call["max"]
    if is_integer(x):
        low, high = integer_bound(low, math.ceil, x.dtype), integer_bound(high, math.floor, x.dtype)
    return lax.min(lax.max(x, lax.full_like(x, low)), lax.full_like(x, high))


def integer_bound(value: float, whole: Callable[[float], int], dtype: DTypeLike) -> int:
    """Returns an integer bound that the element type holds, with the same effect."""
    info = jnp.iinfo(dtype)
    least, most = int(info.min), int(info.max)
    return min(max(whole(value), least), most) if math.isfinite(value) else (least if value < 0 else most)


@OPS.define("clamp_tensor")
def _clamp_tensor(call: Call) -> jax.Array:
    x, low, high = promote(call, *call.operands)
    return lax.min(lax.max(x, low), high)


# --- two operands ----------------------------------------------------------------------------------------------------


def promote(call: Call, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """Returns operands of one element type, varying over the same axes, of one rank or scalars.

    Dims of size 1 remain: JAX's own operations broadcast them, so a program printed again equals the one read.
    """
    if len({(x.shape, x.dtype) for x in operands}) == 1:
        return vary_together(*operands)
    rank = len(call.broadcast_shape(*(x.shape for x in operands)))
    dtype = jnp.result_type(*operands)
    alike = (x.astype(dtype) for x in operands)
    return vary_together(*(x if x.ndim in (0, rank) else jnp.expand_dims(x, range(rank - x.ndim)) for x in alike))


def _power(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.power(a, b) if is_integer(a) else lax.pow(a, b)


def _gelu_slope(x: jax.Array, approximate: bool) -> jax.Array:
    if not approximate:
        return 0.5 * lax.erfc(-x * math.sqrt(0.5)) + x * jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    scale = math.sqrt(2 / math.pi)
    t = jnp.tanh(scale * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x)


BINARY: Mapping[str, Binary] = {
    "add": lax.add, "subtract": lax.sub, "multiply": lax.mul, "div": lax.div, "divide": lax.div, "remainder": lax.rem,
    "maximum": lax.max, "minimum": lax.min, "pow": _power, "atan2": lax.atan2,
}  # fmt: skip
"""By TTIR name; the result has the operands' joint element type. Quotients of integers go towards zero, and a remainder
has the sign of the dividend."""

BITWISE: Mapping[str, tuple[Binary, bool]] = {
    "bitwise_and": (lax.bitwise_and, True),
    "bitwise_or": (lax.bitwise_or, True),
    "bitwise_xor": (lax.bitwise_xor, True),
    "logical_left_shift": (lax.shift_left, False),
    "logical_right_shift": (lax.shift_right_logical, False),
}
"""By TTIR name: the operation on the bits of integers, and True if it takes truth values, too."""

WIDENING = frozenset({"multiply", "pow", "logical_left_shift"})
"""Operations on integers whose results may need more bits than their operands."""

COMPARISONS: Mapping[str, Binary] = {
    **{name: getattr(lax, name) for name in ("eq", "ne", "ge", "gt", "le", "lt")},
    "logical_and": lambda a, b: lax.bitwise_and(as_bool(a), as_bool(b)),
    "logical_or": lambda a, b: lax.bitwise_or(as_bool(a), as_bool(b)),
    "logical_xor": lambda a, b: lax.bitwise_xor(as_bool(a), as_bool(b)),
}
"""By TTIR name; the result is a truth value, of any element type."""


def _binary(fun: Binary) -> Meaning:
    return lambda call: fun(*promote(call, *call.operands))


def _bitwise(fun: Binary, takes_bools: bool) -> Meaning:
    def meaning(call: Call) -> jax.Array:
        a, b = promote(call, *call.operands)
        has_bits = is_integer(a) or (is_bool(a) and takes_bools)
        call.require(has_bits, f"works on the bits of integers, but got {describe(a)}")
        return fun(a, b)

    return meaning


for _name, _fun in BINARY.items():
    OPS.define(_name, traits=[Trait.NOT_UPSTREAM] if _name == "divide" else ())(_binary(_fun))
for _name, (_fun, _takes_bools) in BITWISE.items():
    OPS.define(_name)(_bitwise(_fun, _takes_bools))
_ARITHMETIC = _bitwise(lax.shift_right_arithmetic, False)
OPS.define("right_shift", traits=[Trait.DECOMPOSED_FOR_TTNN])(_ARITHMETIC)
# The name in texts of TTNN after the known version.
OPS.define("bitwise_right_shift", traits=[Trait.NOT_UPSTREAM, Trait.LATER])(_ARITHMETIC)


@OPS.define("mulhi", traits=[Trait.NOT_UPSTREAM, Trait.LATER])
def _mulhi(call: Call) -> jax.Array:
    x, y = promote(call, *call.operands)
    is_known = is_integer(x) and x.dtype.itemsize == 4
    call.require(is_known, f"multiplies integers of 32 bits, but got {describe(x)}")
    return upper_half(x, y)


def upper_half(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the upper half of a product of 64 bits, of integers of 32 bits, by halves of 16 bits."""
    (x_high, x_low), (y_high, y_low) = ((v >> 16, v & 0xFFFF) for v in (w.astype(jnp.uint32) for w in (x, y)))
    first = x_high * y_low + (x_low * y_low >> 16)
    second = x_low * y_high + (first & 0xFFFF)
    high = (x_high * y_high + (first >> 16) + (second >> 16)).astype(x.dtype)
    if x.dtype.kind == "u":
        return high
    # A negative number is its bits less 2^32.
    return high - jnp.where(x < 0, y, 0) - jnp.where(y < 0, x, 0)


for _name, _fun in COMPARISONS.items():
    OPS.define(_name, casts=True)(_binary(_fun))


@OPS.define("gelu_backward", traits=[Trait.NOT_UPSTREAM])
@OPS.define("gelu_bw")
def _gelu_bw(call: Call) -> jax.Array:
    gradient, x = promote(call, *call.operands)
    if call["approximate"] not in ("none", "tanh"):
        raise call.rule_error(f"approximate is none or tanh, got {call['approximate']}")
    slope = _gelu_slope(convert(x, jnp.float32), call["approximate"] == "tanh")
    return convert(convert(gradient, jnp.float32) * slope, x.dtype)


@OPS.define("reduce_precision", traits=[Trait.NOT_UPSTREAM, Trait.LATER])
def _reduce_precision(call: Call) -> jax.Array:
    (x,) = call.operands
    call.require(not is_integer(x) and not is_bool(x), f"rounds floats, but got {describe(x)}")
    return lax.reduce_precision(x, call["exponent_bits"], call["mantissa_bits"])


@OPS.define("where")
def _where(call: Call) -> jax.Array:
    condition, a, b = call.operands
    shape = call.broadcast_shape(condition.shape, a.shape, b.shape)
    a, b = promote(call, a, b)
    return lax.select(*vary_together(*(jnp.broadcast_to(x, shape) for x in (as_bool(condition), a, b))))
