"""Functions of real numbers that TTIR lacks: hyperbolic, inverse and Bessel functions, gamma and derivatives, zeta."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax.typing import DTypeLike

from jaxmesh.dialects.op import Results
from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.special_functions import expanded
from jaxmesh.jaxprs.untyped import jnp
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Params, decomposed

RULES: Rules[Rule] = Rules()


def _expanded(name: str, params: Params, *xs: jax.Array) -> Results:
    """Computes in float32 at least, and rounds once."""
    (own,) = {x.dtype for x in xs}
    wide = jnp.promote_types(own, jnp.float32)
    return expanded(name, *(x.astype(wide) for x in xs)).astype(own)


for _name in (
    "sinh", "cosh", "acosh", "atanh", "erf_inv", "bessel_i0e", "bessel_i1e", "lgamma", "digamma", "zeta", "polygamma",
):  # fmt: skip
    decomposed(RULES, _name)(functools.partial(_expanded, _name))


# --- the next number -------------------------------------------------------------------------------------------------


@RULES.add("nextafter")
def _nextafter(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    """Returns the next number of the element type. Subnormal numbers of float32 are zero, as on the devices."""
    dtype = b.result(eqn)[1]
    if dtype.itemsize > 4:
        raise missing(eqn, f"it is composed for float32, bfloat16 and float16, not for {dtype}")
    return b.composed(_next, xs, {})


def _next(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    dtype, info = x.dtype, jnp.finfo(x.dtype)
    wide = x.astype(jnp.float32)
    up = y.astype(jnp.float32) > wide
    # True where the step would be subnormal, or steps between subnormal numbers.
    small = abs(wide) < 2.0**-90
    scaled = jnp.where(small, wide * 2.0**32, wide)
    # A little more than half a step, which rounding makes a whole one (S. Rump et al., "Computing predecessor and
    # successor in rounding to nearest", BIT 49, 2009).
    half = 2.0 ** -(int(info.nmant) + 1)
    step = abs(scaled) * (half * (1 + 2 * half))
    if dtype == jnp.float16:
        step = jnp.maximum(step, 2.0**-24)
    moved = jnp.where(up, scaled + step, scaled - step)
    moved = jnp.where(small, moved * 2.0**-32, moved).astype(dtype)
    # From zero and infinity, between equal numbers, and from or to NaN.
    least, most = float(info.smallest_subnormal), float(info.max)
    moved = jnp.where(x == 0, _either(up, least, -least, dtype), moved)
    moved = jnp.where(abs(x) == np.inf, _either(up, -most, most, dtype), moved)
    moved = jnp.where(x == y, y, moved)
    return jnp.where((x != x) | (y != y), np.nan, moved)


def _either(condition: jax.Array, x: float, y: float, dtype: DTypeLike) -> jax.Array:
    return jnp.where(condition, jnp.asarray(x, dtype), jnp.asarray(y, dtype))
