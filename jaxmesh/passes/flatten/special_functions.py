"""Functions of real numbers that TTIR lacks: inverses, Bessel functions, gamma and its derivatives, zeta."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.special_functions import expanded
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Params, decomposed

RULES: Rules[Rule] = Rules()

_jnp: Any = jax.numpy


def _expanded(name: str, params: Params, *xs: Any) -> Any:
    return expanded(name, *xs)


for _name in ("erf_inv", "bessel_i0e", "bessel_i1e", "lgamma", "digamma", "zeta", "polygamma"):
    decomposed(RULES, _name, in_float32=True)(functools.partial(_expanded, _name))


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
