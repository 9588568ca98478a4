"""Functions of real numbers that TTIR lacks: inverses, Bessel functions, gamma and its derivatives, zeta."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Params, decomposed

RULES: Rules[Rule] = Rules()

_jnp: Any = jax.numpy

# --- the inverse of the error function -------------------------------------------------------------------------------

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


@decomposed(RULES, "erf_inv", in_float32=True)
def _erf_inv(params: Params, x: Any) -> Any:
    w = -_jnp.log1p(-(x * x))
    near, far = _polynomial(w - 2.5, _NEAR), _polynomial(_jnp.sqrt(w) - 3, _FAR)
    inside = _jnp.where(w < 5, near, far) * x
    return _jnp.where(abs(x) == 1, x * np.inf, inside)


def _polynomial(x: Any, factors: Sequence[float]) -> Any:
    """Evaluates a polynomial by Horner's scheme, highest power first."""
    return functools.reduce(lambda total, factor: x * total + factor, factors)


# --- hyperbolic functions --------------------------------------------------------------------------------------------


@decomposed(RULES, "sinh")
def _sinh(params: Params, x: Any) -> Any:
    # Near 0 the difference of exponentials cancels; far from it exp(x) / 2 overflows later than exp(x).
    grown = _jnp.expm1(x)
    near = (grown + grown / (grown + 1)) * 0.5
    return _jnp.where(abs(x) < 1, near, _half_exponential(x) - _half_exponential(-x))


@decomposed(RULES, "cosh")
def _cosh(params: Params, x: Any) -> Any:
    return _half_exponential(x) + _half_exponential(-x)


def _half_exponential(x: Any) -> Any:
    return _jnp.exp(x + -math.log(2))


@decomposed(RULES, "acosh")
def _acosh(params: Params, x: Any) -> Any:
    """Returns log(x + sqrt(x + 1) * sqrt(x - 1)); log(2x) where the sum overflows."""
    near = _jnp.log(x + _jnp.sqrt(x + 1) * _jnp.sqrt(x + -1))
    return _jnp.where(x > float(_jnp.finfo(x.dtype).max) / 4, _jnp.log(x) + math.log(2), near)


@decomposed(RULES, "atanh")
def _atanh(params: Params, x: Any) -> Any:
    return (_jnp.log1p(x) - _jnp.log1p(-x)) * 0.5


# --- Bessel functions ------------------------------------------------------------------------------------------------


@functools.lru_cache(16)
def _bessel_factors(order: int, *, far: bool) -> Sequence[float]:
    """Returns factors of Chebyshev polynomials for exp(-x) I(x).

    Up to 8 they are factors of polynomials in x / 4 - 1, divided by x to the power of the order; beyond, in 16 / x - 1,
    times root x. Their values are Bessel's integral over half a period, which a sum over equal steps gives to the last
    digit.
    """
    angles = (np.arange(1024) + 0.5) * math.pi / 1024

    def wanted(t: Any) -> Any:
        x = (16 if far else 4) * (t + 1) ** (-1 if far else 1)
        made = (np.exp(np.outer(x, np.cos(angles) - 1)) * np.cos(order * angles)).mean(1)
        return made * np.sqrt(x) if far else made / x**order

    made: Any = np.polynomial.chebyshev.chebinterpolate(wanted, 8 if far else 20)
    return tuple(made.tolist())


def _chebyshev(t: Any, factors: Sequence[float]) -> Any:
    """Evaluates a sum of Chebyshev polynomials by Clenshaw's recurrence."""
    last, before = _jnp.zeros_like(t), _jnp.zeros_like(t)
    for factor in reversed(factors[1:]):
        last, before = 2 * t * last - before + factor, last
    return t * last - before + factors[0]


def _bessel(order: int, x: Any) -> Any:
    size = abs(x)
    near = _chebyshev(size / 4 - 1, _bessel_factors(order, far=False)) * size**order
    above = _jnp.maximum(size, 8)
    far = _chebyshev(16 / above - 1, _bessel_factors(order, far=True)) / _jnp.sqrt(above)
    return _jnp.where(size < 8, near, far)


@decomposed(RULES, "bessel_i0e", in_float32=True)
def _bessel_i0e(params: Params, x: Any) -> Any:
    return _bessel(0, x)


@decomposed(RULES, "bessel_i1e", in_float32=True)
def _bessel_i1e(params: Params, x: Any) -> Any:
    return _jnp.sign(x) * _bessel(1, x)


# --- the next number -------------------------------------------------------------------------------------------------


@RULES.add("nextafter")
def _nextafter(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    """Returns the next number of the element type. Subnormal numbers of float32 are zero, as on the devices."""
    dtype = b.result(eqn)[1]
    if dtype.itemsize > 4:
        raise missing(eqn, f"it is composed for float32, bfloat16 and float16, not for {dtype}")
    return b.composed(_next, xs, {})


def _next(params: Params, x: Any, y: Any) -> Any:
    dtype, info = x.dtype, _jnp.finfo(x.dtype)
    wide = x.astype(_jnp.float32)
    up = y.astype(_jnp.float32) > wide
    # True where the step would be subnormal, or steps between subnormal numbers.
    small = abs(wide) < 2.0**-90
    scaled = _jnp.where(small, wide * 2.0**32, wide)
    # A little more than half a step, which rounding makes a whole one (S. Rump et al., "Computing predecessor and
    # successor in rounding to nearest", BIT 49, 2009).
    half = 2.0 ** -(int(info.nmant) + 1)
    step = abs(scaled) * (half * (1 + 2 * half))
    if dtype == _jnp.float16:
        step = _jnp.maximum(step, 2.0**-24)
    moved = _jnp.where(up, scaled + step, scaled - step)
    moved = _jnp.where(small, moved * 2.0**-32, moved).astype(dtype)
    # From zero and infinity, between equal numbers, and from or to NaN.
    least, most = float(info.smallest_subnormal), float(info.max)
    moved = _jnp.where(x == 0, _either(up, least, -least, dtype), moved)
    moved = _jnp.where(abs(x) == np.inf, _either(up, -most, most, dtype), moved)
    moved = _jnp.where(x == y, y, moved)
    return _jnp.where((x != x) | (y != y), np.nan, moved)


def _either(condition: Any, x: float, y: float, dtype: Any) -> Any:
    return _jnp.where(condition, _jnp.asarray(x, dtype), _jnp.asarray(y, dtype))


_lax: Any = jax.lax

# C. Lanczos, "A precision approximation of the gamma function", 1964, for g = 7 and nine terms, as XLA has it.
_G = 7.0
_FIRST = 0.99999999999980993
_TERMS = (
    676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
    -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


class _Lanczos(NamedTuple):
    """The terms of both functions.

    Attributes:
      reflects: True where x is below a half, and Euler's reflection leads to -x.
      z: x - 1, or -x.
      total: the first term and the quotients of `terms`.
      terms: each factor divided by its denominator, and that denominator.
      t: z + g + 1/2.
      log_t: its logarithm.
    """

    reflects: Any
    z: Any
    total: Any
    terms: Sequence[tuple[Any, Any]]
    t: Any
    log_t: Any


def _lanczos(x: Any) -> _Lanczos:
    reflects = x < 0.5
    z = _jnp.where(reflects, -x, x - 1)
    below = [z + (i + 1) for i in range(len(_TERMS))]
    terms = [(factor / d, d) for factor, d in zip(_TERMS, below, strict=True)]
    total = sum((quotient for quotient, _ in terms), _FIRST)
    log_t = _jnp.log1p(z / (_G + 0.5)) + math.log(_G + 0.5)
    return _Lanczos(reflects, z, total, terms, z + (_G + 0.5), log_t)


@decomposed(RULES, "lgamma", in_float32=True)
def _lgamma(params: Params, x: Any) -> Any:
    p = _lanczos(x)
    log_gamma = (p.z + 0.5 - p.t / p.log_t) * p.log_t + math.log(2 * math.pi) / 2 + _jnp.log(p.total)
    # log |sin(pi x)|, of the fractional part, mirrored at a half: this is exact at whole numbers.
    size = abs(x)
    part = size - _jnp.floor(size)
    part = _jnp.where(part > 0.5, 1 - part, part)
    mirrored = math.log(math.pi) - _jnp.log(_jnp.sin(part * math.pi)) - log_gamma
    # Zero and the negative whole numbers are poles: their sine is 0, whatever the rest is.
    mirrored = _jnp.where(part == 0, math.inf, mirrored)
    return _jnp.where(size == math.inf, math.inf, _jnp.where(p.reflects, mirrored, log_gamma))


@decomposed(RULES, "digamma", in_float32=True)
def _digamma(params: Params, x: Any) -> Any:
    p = _lanczos(x)
    slope = 0.0
    for quotient, denominator in p.terms:
        slope = slope - quotient / denominator
    made = p.log_t + slope / p.total - _G / p.t
    # The cotangent of pi x, whose argument is brought near 0 first.
    angle = (x + abs(_jnp.floor(x + 0.5))) * math.pi
    mirrored = made - _jnp.cos(angle) / _jnp.sin(angle) * math.pi
    pole = (x <= 0) & (x == _jnp.floor(x))
    made = _jnp.where(pole, math.nan, _jnp.where(p.reflects, mirrored, made))
    # At zero older JAX gives NaN, as at the other poles.
    return _jnp.where(x == 0, -math.inf, made)


# B(2k) / (2k)!, the factors of Euler and Maclaurin's formula.
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160)


def _hurwitz(x: Any, q: Any) -> Any:
    """Sums nine terms, and the rest by Euler and Maclaurin's formula."""
    total = sum(((q + k) ** -x for k in range(1, 9)), q**-x)
    end = q + 9
    last = end**-x
    total = total + last * (end / (x - 1) + 0.5)
    factor = x / end
    for k, number in enumerate(_BERNOULLI):
        total = total + last * factor * number
        factor = factor * (x + 2 * k + 1) / end * (x + 2 * k + 2) / end
    # NaN at a pole whose sides differ in sign, and for a root of negative numbers.
    is_pole, is_even = (q <= 0) & (q == _jnp.floor(q)), x / 2 == _jnp.floor(x / 2)
    is_nan = (x < 1) | (is_pole & ~is_even) | ((q < 0) & (x != _jnp.floor(x)))
    total = _jnp.where(is_pole & is_even, _jnp.inf, _jnp.where(is_nan, _jnp.nan, total))
    return _jnp.where(x == 1, _jnp.inf, total)


@decomposed(RULES, "zeta", in_float32=True)
def _zeta(params: Params, x: Any, q: Any) -> Any:
    return _hurwitz(x, q)


@decomposed(RULES, "polygamma", in_float32=True)
def _polygamma(params: Params, order: Any, x: Any) -> Any:
    """Returns the derivatives of digamma: factorials times zeta, with alternating signs."""
    sign = 1 - 2 * _lax.rem(order + 1, _jnp.full_like(order, 2))
    made = sign * _jnp.exp(_lax.lgamma(order + 1)) * _hurwitz(order + 1, x)
    made = _jnp.where(order == 0, _lax.digamma(x), made)
    return _jnp.where((order < 0) | (order != _jnp.floor(order)), _jnp.nan, made)
