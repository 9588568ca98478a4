"""Elementwise primitives. Operands of rank 0 stay so: the rows broadcast by NumPy's rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.dialects.ttir.elementwise import UNARY as TTIR_UNARY
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.untyped import jnp, lax
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule
from jaxmesh.passes.flatten.decompositions import Params, decomposed, in_single_precision

RULES: Rules[Rule] = Rules()

UNARY: Mapping[str, str] = {
    **{name: name for name in TTIR_UNARY if f"{name}_p" in vars(lax)}, "logistic": "sigmoid", "is_finite": "isfinite",
}  # fmt: skip
"""Primitives of one operand with an op of the same meaning, most of the same name."""

BINARY: Mapping[str, str] = {
    "add": "add", "add_any": "add", "sub": "subtract", "mul": "multiply", "rem": "remainder",
    "max": "maximum", "min": "minimum", "pow": "pow", "atan2": "atan2", "shift_left": "logical_left_shift",
    "shift_right_logical": "logical_right_shift", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
"""Primitives of two operands with a row of the same meaning; the result has the operands' element type."""

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
"""Primitives and rows of the same name."""

_OF_BOOLS: Mapping[str, str] = {
    "and": "logical_and", "or": "logical_or", "xor": "logical_xor", "max": "logical_or", "min": "logical_and",
}  # fmt: skip

IDENTITIES = (
    "copy", "stop_gradient", "name", "sharding_constraint", "layout_constraint", "reshard",
    "with_memory_space_constraint",
)  # fmt: skip
"""Primitives that say something of a value and give it back; with one operand."""


def _rename(name: str) -> Rule:
    return lambda b, eqn, xs: b.op(name, xs, *b.result(eqn))


def _binary(primitive: str, name: str) -> Rule:
    def rule(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
        shape, dtype = b.result(eqn)
        if dtype.kind == "b":
            return b.op(_OF_BOOLS.get(primitive, name), xs, shape, dtype)
        # Powers by integers, and products that widen.
        return b.op(name, [b.cast(x, dtype) for x in xs], shape, dtype)

    return rule


RULES.update({primitive: _rename(name) for primitive, name in UNARY.items()})
RULES.update({primitive: _binary(primitive, name) for primitive, name in BINARY.items()})
RULES.update({name: _rename(name) for name in COMPARISONS})


@RULES.add(*IDENTITIES)
def _identity(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    return xs[0]


_GIVEN_BACK: Mapping[str, Rule] = {
    "optimization_barrier": lambda b, eqn, xs: xs, "device_put": lambda b, eqn, xs: xs,
    "inspect_sharding": lambda b, eqn, xs: (), "tie": lambda b, eqn, xs: xs[1],
}  # fmt: skip
RULES.update(_GIVEN_BACK)


@RULES.add("not")
def _not(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    shape, dtype = b.result(eqn)
    return b.op("logical_not" if dtype.kind == "b" else "bitwise_not", xs, shape, dtype)


# --- powers and polynomials ------------------------------------------------------------------------------------------


@RULES.add("square")
def _square(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    (x,) = xs
    return b.same("multiply", [x, x])


@RULES.add("integer_pow")
def _integer_pow(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    (x,), power = xs, eqn.params["y"]
    shape, dtype = b.result(eqn)
    if power == 0:
        return b.full(shape, 1, dtype)
    out = _power(b, x, abs(power))
    return out if power > 0 else b.same("reciprocal", [out])


def _power(b: Builder, x: Value, power: int) -> Value:
    """Raises to a power by squaring, as JAX does."""
    out: Value | None = None
    while True:
        if power % 2:
            out = x if out is None else b.same("multiply", [out, x])
        power //= 2
        if not power:
            assert out is not None
            return out
        x = b.same("multiply", [x, x])


@decomposed(RULES, "one_minus_square")
def _one_minus_square(params: Params, x: jax.Array) -> jax.Array:
    return (x + 1) * (1 - x)


@decomposed(RULES, "polynomial")
def _polynomial(params: Params, x: jax.Array, *factors: jax.Array) -> jax.Array:
    total = factors[-1]
    for factor in reversed(factors[:-1]):
        total = total * x + factor
    # Of degree 0 it has the factor's shape.
    return jnp.broadcast_to(total, x.shape)


@decomposed(RULES, "log2")
def _log2(params: Params, x: jax.Array) -> jax.Array:
    return jnp.log(x) * (1 / math.log(2))


# --- choices ---------------------------------------------------------------------------------------------------------


@RULES.add("select_n")
def _select_n(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    which, *cases = xs
    return select(b, which, cases)


def select(b: Builder, which: Value, cases: Sequence[Value]) -> Value:
    """Returns, for every element, the element of the case whose number or truth value `which` has, clamped."""
    chosen = _choose(b, which, len(cases))
    if chosen is not None or len({*cases}) == 1:
        return cases[chosen or 0]
    # A part of a complex number that is the same everywhere may be a scalar.
    shape, dtype = np.broadcast_shapes(*map(b.shape, (which, *cases))), b.dtype(cases[0])
    cast = b.maker(which, "typecast")
    truth = cast.operands[0] if cast is not None else None
    if truth is not None and b.dtype(truth).kind == "b":
        which = truth
    if b.dtype(which).kind == "b":
        if b.composing and b.shape(which) == shape:
            # A decomposition chooses between scalars, which JAX broadcasts and a `where` need not.
            cases = [x if (number := b.fill(x)) is None else b.full((), number, dtype) for x in cases]
        return b.op("where", [which, cases[1], cases[0]], shape, dtype)
    out = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        below = b.op("lt", [which, b.full((), i + 1, b.dtype(which))], b.shape(which), np.bool_)
        out = b.op("where", [below, cases[i], out], shape, dtype)
    return out


def _choose(b: Builder, which: Value, count: int) -> int | None:
    """Returns the number of the case that every element takes, clamped; None if it is not known."""
    known = b.known.get(which)
    if known is None:
        return None
    numbers = np.unique(np.clip(known.astype(np.int64), 0, count - 1))
    return int(numbers[0]) if numbers.size == 1 else None


@RULES.add("clamp")
def _clamp(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    low, x, high = xs
    least, most = b.fill(low), b.fill(high)
    if least is not None and most is not None and not (math.isnan(least) or math.isnan(most)):
        return b.same("clamp_scalar", [x], min=least, max=most)
    return b.same("clamp_tensor", [x, low, high])


# --- rounding, types -------------------------------------------------------------------------------------------------


@decomposed(RULES, "round")
def _round(params: Params, x: jax.Array) -> jax.Array:
    # The fractional part is exact, which x + 0.5 would not be.
    size = abs(x)
    whole = jnp.floor(size)
    behind = size - whole
    if params["rounding_method"].name == "TO_NEAREST_EVEN":
        odd, at_half = lax.rem(whole, x.dtype.type(2)) != 0, behind == 0.5
        up = (behind > 0.5) | (at_half & odd)
    else:
        up = behind >= 0.5
    # By the sign, so that -0.3 gives -0; the sign of 0 is 0 itself.
    return jnp.where(up, whole + 1, whole) * jnp.sign(x)


@RULES.add("convert_element_type")
def _convert(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    return b.cast(xs[0], b.result(eqn)[1])


@RULES.add("reduce_precision")
def _reduce_precision(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value | Sequence[Value]:
    (x,) = xs
    exponent, mantissa = eqn.params["exponent_bits"], eqn.params["mantissa_bits"]
    own = b.dtype(x)
    info = jnp.finfo(own)
    if exponent >= info.nexp and mantissa >= info.nmant:
        return x
    if mantissa == 7 and 8 >= exponent >= info.nexp:
        return b.cast(b.cast(x, jnp.bfloat16), own)
    if (exponent, mantissa) == (5, 10) and info.nexp >= 8:
        return b.composed(_as_half, xs, {})
    (rounded,) = b.composed(_round_bits, in_single_precision(b, eqn, xs), {"exponent": exponent, "mantissa": mantissa})
    return b.cast(rounded, own)


def _round_bits(params: Params, x: jax.Array) -> jax.Array:
    """Rounds float32 to so many bits as XLA does: to even, to infinity above the range and to zero below it."""
    exponent, mantissa = params["exponent"], params["mantissa"]
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    sign, size, cut = bits & jnp.uint32(1 << 31), bits & jnp.uint32((1 << 31) - 1), 23 - mantissa
    if cut > 0:
        size = (size + ((size >> cut) & 1) + jnp.uint32((1 << (cut - 1)) - 1)) & jnp.uint32((1 << 31) - (1 << cut))
    if exponent < 8:
        most = (1 << (exponent - 1)) - 1
        size = jnp.where(size >> 23 > 127 + most, jnp.uint32(255 << 23), size)
        size = jnp.where(size >> 23 < 128 - most, jnp.uint32(0), size)
    return jnp.where(jnp.isnan(x), x, lax.bitcast_convert_type(sign | size, jnp.float32))


def _as_half(params: Params, x: jax.Array) -> jax.Array:
    """Rounds to float16's bits; unlike a cast it returns zero where only a subnormal number would fit."""
    rounded = x.astype(jnp.float16).astype(x.dtype)
    return jnp.where(abs(rounded) < 2.0**-14, rounded * 0, rounded)
