"""Elementwise ops of StableHLO and CHLO."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxmesh.dialects.varying import vary_alike
from jaxmesh.frontends.jax.retype import varying
from jaxmesh.frontends.stablehlo.call import Meaning, OpFamily, ShardedCall, enum_of, keep_op
from jaxmesh.jaxprs import primitives
from jaxmesh.jaxprs.untyped import lax

OPS = OpFamily()


def _power(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.power(x, y) if jnp.issubdtype(x.dtype, jnp.integer) else lax.pow(x, y)


_STABLEHLO: dict[str, Callable[..., jax.Array]] = {
    name: getattr(lax, name)
    for name in (
        "abs", "add", "atan2", "cbrt", "ceil", "complex", "floor", "imag", "is_finite", "log", "logistic", "real",
        "rsqrt", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sqrt", "tan", "tanh",
    )
} | {
    "and": lax.bitwise_and, "cosine": lax.cos, "count_leading_zeros": lax.clz, "divide": lax.div,
    "exponential": lax.exp, "exponential_minus_one": lax.expm1, "log_plus_one": lax.log1p, "maximum": lax.max,
    "minimum": lax.min, "multiply": lax.mul, "negate": lax.neg, "not": lax.bitwise_not, "or": lax.bitwise_or,
    "popcnt": lax.population_count, "power": _power, "remainder": lax.rem,
    "round_nearest_afz": functools.partial(lax.round, rounding_method=lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_nearest_even": functools.partial(lax.round, rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN),
    "sine": lax.sin, "subtract": lax.sub, "xor": lax.bitwise_xor,
}  # fmt: skip
CHLO: dict[str, Callable[..., jax.Array]] = {
    name: getattr(lax, name)
    for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "conj", "cosh", "digamma", "erf", "erf_inv",
        "erfc", "lgamma", "polygamma", "sinh", "square", "tan", "zeta",
    )
} | {"next_after": lax.nextafter}  # fmt: skip
_TOTAL_ORDER = "TOTALORDER"


def plain(fun: Callable[..., jax.Array], *attributes: str, alike: bool = False) -> Meaning:
    """Returns the meaning of an op that is a function of its operands, which may have to vary alike, and attributes."""

    def meaning(call: ShardedCall) -> jax.Array:
        operands = vary_alike(*call.operands) if alike else call.operands
        return fun(*operands, *(call[name] for name in attributes))

    return meaning


for _dialect, _table in (("stablehlo", _STABLEHLO), ("chlo", CHLO)):
    for _name, _fun in _table.items():
        OPS.add(f"{_dialect}.{_name}")(plain(_fun))
OPS.add("stablehlo.reduce_precision")(plain(lax.reduce_precision, "exponent_bits", "mantissa_bits"))
OPS.add("stablehlo.select")(plain(lax.select, alike=True))
OPS.add("stablehlo.clamp")(plain(lax.clamp, alike=True))


@OPS.add("stablehlo.compare")
def _compare(call: ShardedCall) -> jax.Array:
    x, y = call.operands
    if enum_of(call.op, "compare_type") == _TOTAL_ORDER and jnp.issubdtype(x.dtype, jnp.floating):
        x, y = _ordered_bits(x), _ordered_bits(y)
    return getattr(lax, enum_of(call.op, "comparison_direction").lower())(x, y)


def _ordered_bits(x: jax.Array) -> jax.Array:
    """Returns integers in the total order of floats."""
    integer_dtype = np.dtype(f"int{8 * x.dtype.itemsize}")
    bits = lax.bitcast_convert_type(x, integer_dtype)
    return lax.select(bits < 0, lax.bitwise_xor(bits, lax.full_like(bits, np.iinfo(integer_dtype).max)), bits)


@OPS.add("stablehlo.convert")
def _convert(call: ShardedCall) -> jax.Array:
    return lax.convert_element_type(call.operands[0], call.results[0].dtype)


_RANDOM_BITS = "stablehlo.rng_bit_generator"


@OPS.add(_RANDOM_BITS)
def _random_bits(call: ShardedCall) -> list[jax.Array]:
    raise NotImplementedError(primitives.MACHINE_BITS)


@OPS.add("stablehlo.bitcast_convert")
def _bitcast(call: ShardedCall) -> list[jax.Array]:
    # JAX packs the state of a generator to 64 bits, which arrays have only with jax_enable_x64.
    if any(use.owner.name == _RANDOM_BITS for use in call.op.results[0].uses):
        raise NotImplementedError(primitives.MACHINE_BITS)
    (x,), dtype = call.operands, call.results[0].dtype

    def meaning(array: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(array, dtype)

    return keep_op(call.program.keeps_ops and x.dtype.itemsize == dtype.itemsize, "bitcast_convert", [x], {}, meaning)


@OPS.add("stablehlo.optimization_barrier")
def _barrier(call: ShardedCall) -> list[jax.Array]:
    # One barrier would make copies vary over the axes of the other operands.
    results = list(call.operands)
    for axes in dict.fromkeys(map(varying, results)):
        places = [i for i, x in enumerate(call.operands) if varying(x) == axes]
        passed = lax.optimization_barrier(tuple(call.operands[i] for i in places))
        for i, x in zip(places, passed, strict=True):
            results[i] = x
    return results
