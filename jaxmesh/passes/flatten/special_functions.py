"""Functions that TTIR has no op for, composed of those it has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_jnp: Any = jax.numpy
_FLOAT = np.dtype(np.float32)

# M. Giles, "Approximating the erfinv function", GPU Computing Gems Jade Edition, 2011: the polynomials in
# w = -log(1 - x^2), around 2.5 for w < 5 and in the square root of w, around 3, above; highest power first.
_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


@RULES.add("erf_inv")
def _erf_inv(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    shape, dtype = b.result(eqn)
    if dtype.itemsize > 4:
        raise missing(eqn, f"it is composed to the precision of float32, not of {dtype}")
    x = b.cast(xs[0], _FLOAT)
    w = b.same("neg", [b.same("log1p", [b.same("neg", [b.same("multiply", [x, x])])])])
    near = _polynomial(b, b.with_number("subtract", w, 2.5), _NEAR)
    far = _polynomial(b, b.same("subtract", [b.same("sqrt", [w]), b.full((), 3, _FLOAT)]), _FAR)
    is_near = b.op("lt", [w, b.full((), 5, _FLOAT)], shape, np.bool_)
    inside = b.same("multiply", [b.op("where", [is_near, near, far], shape, _FLOAT), x])
    at_end = b.op("eq", [b.same("abs", [x]), b.full((), 1, _FLOAT)], shape, np.bool_)
    infinite = b.with_number("multiply", x, np.inf)
    return b.cast(b.op("where", [at_end, infinite, inside], shape, _FLOAT), dtype)


def _polynomial(b: Builder, x: Value, factors: Sequence[float]) -> Value:
    """Evaluates a polynomial by Horner's scheme, highest power first."""
    out = b.full((), factors[0], _FLOAT)
    for factor in factors[1:]:
        out = b.same("add", [b.same("multiply", [x, out]), b.full((), factor, _FLOAT)])
    return out


# --- hyperbolic functions --------------------------------------------------------------------------------------------


@RULES.add("sinh")
def _sinh(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    (x,) = xs
    # Near 0 the difference of exponentials cancels; far from it exp(x) / 2 overflows later than exp(x).
    grown = b.same("expm1", [x])
    quotient = b.same("div", [grown, b.with_number("add", grown, 1)])
    near = b.with_number("multiply", b.same("add", [grown, quotient]), 0.5)
    far = b.same("subtract", [_half_exponential(b, x), _half_exponential(b, b.same("neg", [x]))])
    is_near = b.op("lt", [b.same("abs", [x]), b.full((), 1, b.dtype(x))], b.shape(x), np.bool_)
    return b.op("where", [is_near, near, far], *b.result(eqn))


@RULES.add("cosh")
def _cosh(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    (x,) = xs
    return b.same("add", [_half_exponential(b, x), _half_exponential(b, b.same("neg", [x]))])


def _half_exponential(b: Builder, x: Value) -> Value:
    return b.same("exp", [b.with_number("add", x, -math.log(2))])


@RULES.add("acosh")
def _acosh(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    """Returns log(x + sqrt(x + 1) * sqrt(x - 1)); log(2x) where the sum overflows."""
    (x,) = xs
    roots = [b.same("sqrt", [b.with_number("add", x, n)]) for n in (1, -1)]
    near = b.same("log", [b.same("add", [x, b.same("multiply", roots)])])
    far = b.with_number("add", b.same("log", [x]), math.log(2))
    limit = float(_jnp.finfo(b.dtype(x)).max) / 4
    is_far = b.op("gt", [x, b.full((), limit, b.dtype(x))], b.shape(x), np.bool_)
    return b.op("where", [is_far, far, near], *b.result(eqn))


@RULES.add("atanh")
def _atanh(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    (x,) = xs
    logs = [b.same("log1p", [y]) for y in (x, b.same("neg", [x]))]
    return b.with_number("multiply", b.same("subtract", logs), 0.5)


@RULES.add("nextafter")
def _nextafter(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    """Steps to the next number of the element type. Subnormal numbers of float32 are zero, as on the devices."""
    shape, dtype = b.result(eqn)
    if dtype.itemsize > 4:
        raise missing(eqn, f"it is composed for float32, bfloat16 and float16, not for {dtype}")
    info: Any = _jnp.finfo(dtype)
    x, y = (b.cast(v, _FLOAT) for v in xs)
    up = b.op("gt", [y, x], shape, np.bool_)
    size = b.op("abs", [x], b.shape(x), _FLOAT)
    # Where the step would be subnormal, or is that of subnormal numbers.
    small = b.op("lt", [size, b.full((), 2.0**-90, _FLOAT)], b.shape(x), np.bool_)
    scaled = b.op("where", [small, b.with_number("multiply", x, 2.0**32), x], b.shape(x), _FLOAT)
    # A little more than half a step, which rounding makes a whole one (S. Rump et al., "Computing predecessor and
    # successor in rounding to nearest", BIT 49, 2009).
    half = 2.0 ** -(int(info.nmant) + 1)
    step = b.same("multiply", [b.same("abs", [scaled]), b.full((), half * (1 + 2 * half), _FLOAT)])
    if dtype == np.float16:
        step = b.same("maximum", [step, b.full((), 2.0**-24, _FLOAT)])
    above, below = (b.same(name, [scaled, step]) for name in ("add", "subtract"))
    moved = b.op("where", [up, above, below], shape, _FLOAT)
    moved = b.op("where", [small, b.with_number("multiply", moved, 2.0**-32), moved], shape, _FLOAT)
    moved = b.cast(moved, dtype)
    return _at_ends(b, xs, moved, up, info)


def _at_ends(b: Builder, xs: Sequence[Value], moved: Value, up: Value, info: Any) -> Value:
    """Handles steps from zero and infinity, between equal numbers, and from or to NaN."""
    x, y = xs
    shape, dtype = b.shape(moved), b.dtype(moved)

    def either(condition: Value, one: float, other: float) -> Value:
        return b.op("where", [condition, b.full((), one, dtype), b.full((), other, dtype)], shape, dtype)

    def test(name: str, *operands: Value) -> Value:
        # One of them may be a number in no dims.
        return b.op(name, operands, np.broadcast_shapes(*map(b.shape, operands)), np.bool_)

    least, most = float(info.smallest_subnormal), float(info.max)
    moved = b.op("where", [test("eq", x, b.full((), 0, dtype)), either(up, least, -least), moved], shape, dtype)
    end = b.same("abs", [x])
    moved = b.op("where", [test("eq", end, b.full((), np.inf, dtype)), either(up, -most, most), moved], shape, dtype)
    moved = b.op("where", [test("eq", x, y), y, moved], shape, dtype)
    for value in (x, y):
        moved = b.op("where", [test("ne", value, value), b.full((), np.nan, dtype), moved], shape, dtype)
    return moved
