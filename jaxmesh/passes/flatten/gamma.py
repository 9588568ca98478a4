"""The logarithm of the gamma function, its derivatives, and Hurwitz' zeta function, which gives the higher ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from jaxmesh.passes.flatten.builder import Rule
from jaxmesh.passes.flatten.decompositions import Params, decomposed
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_jnp: Any = jax.numpy
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
