"""Primitives that are composed of others: each is a function in JAX, traced for the operands and built in place.

Loops in these functions have static lengths, so they are unrolled, and count against `unroll_limit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.errors import InexpressibleError
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.primitives import CALLBACKS, CALLS_HOST
from jaxmesh.passes.flatten.builder import Builder, Rule
from jaxmesh.passes.rules import Rules

_jnp: Any = jax.numpy
_lax: Any = jax.lax
Params = Mapping[str, Any]
Function = Callable[..., Any]
RULES: Rules[Rule] = Rules()


def _composed(*names: str) -> Callable[[Function], Function]:
    """Adds a function of a primitive's parameters and operands as the rule of each name."""

    def enter(function: Function) -> Function:
        @RULES.add(*names)
        def rule(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
            return b.composed(lambda *args: function(eqn.params, *args), xs)

        return function

    return enter


def _for_matrices(function: Function) -> Function:
    """Returns a function of matrices that also takes stacks of them."""

    def stacked(params: Params, *args: Any) -> Any:
        def inner(*matrices: Any) -> Any:
            return function(params, *matrices)

        for _ in args[0].shape[:-2]:
            inner = jax.vmap(inner)
        return inner(*args)

    return stacked


# --- special functions of float32; narrower types go through it -------------------------------------------------------


def _in_float32(function: Function) -> Function:
    """Returns a function that computes in float32, and gives the operands' element type."""

    def widened(params: Params, *args: Any) -> Any:
        if args[0].dtype.itemsize > 4:
            raise InexpressibleError(
                "no text for a special function of float64: it is composed to float32's precision."
            )
        return function(*(x.astype(_jnp.float32) for x in args)).astype(args[0].dtype)

    return widened


@cache
def _bessel_factors(order: int, *, far: bool) -> Sequence[float]:
    """Returns factors of Chebyshev polynomials for exp(-x) I(x).

    Up to 8 they are those of x / 4 - 1, divided by x to the power of the order; beyond of 16 / x - 1, times root x.
    Their values are Bessel's integral over half a period, which a sum over equal steps gives to the last digit.
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


@_composed("bessel_i0e")
@_in_float32
def _bessel_i0e(x: Any) -> Any:
    return _bessel(0, x)


@_composed("bessel_i1e")
@_in_float32
def _bessel_i1e(x: Any) -> Any:
    return _jnp.sign(x) * _bessel(1, x)


# B(2k) / (2k)!, the factors of Euler and Maclaurin's formula.
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160)


def _hurwitz(x: Any, q: Any) -> Any:
    """Hurwitz' zeta function: nine terms of the sum, the rest by Euler and Maclaurin's formula."""
    total = sum(((q + k) ** -x for k in range(1, 9)), q**-x)
    end = q + 9
    last = end**-x
    total = total + last * (end / (x - 1) + 0.5)
    factor = x / end
    for k, number in enumerate(_BERNOULLI):
        total = total + last * factor * number
        factor = factor * (x + 2 * k + 1) / end * (x + 2 * k + 2) / end
    # At a pole whose sides have other signs there is no number, nor is there of a root of negative numbers.
    is_pole, is_even = (q <= 0) & (q == _jnp.floor(q)), x / 2 == _jnp.floor(x / 2)
    no_number = (x < 1) | (is_pole & ~is_even) | ((q < 0) & (x != _jnp.floor(x)))
    total = _jnp.where(is_pole & is_even, _jnp.inf, _jnp.where(no_number, _jnp.nan, total))
    return _jnp.where(x == 1, _jnp.inf, total)


@_composed("zeta")
@_in_float32
def _zeta(x: Any, q: Any) -> Any:
    return _hurwitz(x, q)


@_composed("polygamma")
@_in_float32
def _polygamma(order: Any, x: Any) -> Any:
    """The derivatives of digamma: factorials times zeta, with alternating signs."""
    sign = 1 - 2 * _lax.rem(order + 1, _jnp.full_like(order, 2))
    made = sign * _jnp.exp(_lax.lgamma(order + 1)) * _hurwitz(order + 1, x)
    made = _jnp.where(order == 0, _lax.digamma(x), made)
    return _jnp.where((order < 0) | (order != _jnp.floor(order)), _jnp.nan, made)


# --- linear algebra --------------------------------------------------------------------------------------------------


def _column(x: Any, at: Any) -> Any:
    return _lax.dynamic_index_in_dim(x, at, 1, keepdims=False)


def _row(x: Any, at: Any) -> Any:
    return _lax.dynamic_index_in_dim(x, at, 0, keepdims=False)


@_composed("cholesky")
@_for_matrices
def _cholesky(params: Params, a: Any) -> Any:
    """Column by column: what earlier columns explain is subtracted, and the rest divided by its root."""
    places = _jnp.arange(a.shape[0])

    def step(j: Any, made: Any) -> Any:
        rest = _column(a, j) - (made * _row(made, j)).sum(1)
        column = _jnp.where(places >= j, rest / _jnp.sqrt(_row(rest, j)), 0)
        return _jnp.where(places == j, column[:, None], made)

    return _lax.fori_loop(0, a.shape[0], step, _jnp.zeros_like(a))


@_composed("triangular_solve")
@_for_matrices
def _triangular_solve(params: Params, a: Any, b: Any) -> Any:
    """Row by row, from the corner of the triangle."""
    lower, size = params["lower"], a.shape[0]
    a = _jnp.tril(a) if lower else _jnp.triu(a)
    if params["transpose_a"] == params["left_side"]:
        a = a.T
    # A system with the unknowns at the right is the transposed one.
    down = lower != (params["transpose_a"] == params["left_side"])
    right = b if params["left_side"] else b.T
    places = _jnp.arange(size)

    def step(i: Any, made: Any) -> Any:
        at = i if down else size - 1 - i
        row = _row(a, at)
        rest = _row(right, at) - (row[:, None] * made).sum(0)
        rest = rest if params["unit_diagonal"] else rest / _row(row, at)
        return _jnp.where((places == at)[:, None], rest, made)

    made = _lax.fori_loop(0, size, step, _jnp.zeros_like(right))
    return made if params["left_side"] else made.T


@_composed("lu")
@_for_matrices
def _lu(params: Params, a: Any) -> Any:
    """Column by column, with the largest rest as the pivot."""
    rows, columns = a.shape
    places, across = _jnp.arange(rows, dtype=_jnp.int32), _jnp.arange(columns)

    def step(k: Any, made: Any) -> Any:
        a, pivots, order = made
        pivot = _jnp.argmax(_jnp.where(places >= k, abs(_column(a, k)), -1), 0).astype(_jnp.int32)
        here, there = places == k, places == pivot

        def swap(x: Any) -> Any:
            wide = (slice(None), *[None] * (x.ndim - 1))
            above = _jnp.where(there[wide], x, 0).sum(0, dtype=x.dtype)
            return _jnp.where(here[wide], above, _jnp.where(there[wide], _row(x, k), x))

        a, order = swap(a), swap(order)
        corner = _row(_column(a, k), k)
        below = _jnp.where(places > k, _column(a, k) / _jnp.where(corner == 0, 1, corner), 0)
        update = below[:, None] * _jnp.where(across > k, _row(a, k), 0)
        a = _jnp.where((across == k) & (places > k)[:, None], below[:, None], a - update)
        return a, _jnp.where(_jnp.arange(pivots.size) == k, pivot, pivots), order

    count = min(rows, columns)
    return _lax.fori_loop(0, count, step, (a, _jnp.zeros(count, _jnp.int32), places))


@_composed("qr")
@_for_matrices
def _qr(params: Params, a: Any) -> Any:
    if params["pivoting"]:
        raise InexpressibleError("no text for qr with pivoting: leave it out. The program still runs.")
    rows, columns = a.shape
    kept = rows if params["full_matrices"] else min(rows, columns)
    r, factors = _geqrf({}, a)
    return _reflected(r, factors, _jnp.eye(rows, kept, dtype=a.dtype), reverse=True), _jnp.triu(r)[:kept]


@_composed("geqrf")
@_for_matrices
def _geqrf(params: Params, a: Any) -> Any:
    """R, with LAPACK's reflections below the diagonal, their vectors without the leading one; and their factors."""
    places, across = _jnp.arange(a.shape[0]), _jnp.arange(a.shape[1])
    count = min(a.shape)

    def step(k: Any, made: Any) -> Any:
        r, factors = made
        x = _jnp.where(places >= k, _column(r, k), 0)
        first, below = _row(x, k), _jnp.where(places > k, x, 0)
        length = _jnp.where(first < 0, 1, -1) * _jnp.sqrt((x * x).sum())
        # What is a multiple of the first unit vector already is not reflected.
        moved = (below * below).sum() > 0
        tail = _jnp.where(moved, below / _jnp.where(moved, first - length, 1), 0)
        factor = _jnp.where(moved, 1 - first / _jnp.where(moved, length, 1), 0)
        v = _jnp.where(places == k, 1, tail)
        r = r - factor * v[:, None] * _jnp.where(across >= k, (v[:, None] * r).sum(0), 0)
        r = _jnp.where((across == k) & (places > k)[:, None], tail[:, None], r)
        return r, _jnp.where(_jnp.arange(count) == k, factor, factors)

    return _lax.fori_loop(0, count, step, (a, _jnp.zeros(count, a.dtype)))


def _reflected(a: Any, factors: Any, c: Any, *, reverse: bool) -> Any:
    """Applies the reflections of `geqrf` to the columns of a matrix, the last one first if `reverse`."""
    places, count = _jnp.arange(a.shape[0]), factors.shape[0]

    def step(i: Any, c: Any) -> Any:
        k = count - 1 - i if reverse else i
        v = _jnp.where(places > k, _column(a, k), places == k)
        return c - _row(factors, k) * v[:, None] * (v[:, None] * c).sum(0)

    return _lax.fori_loop(0, count, step, c)


@_composed("ormqr")
@_for_matrices
def _ormqr(params: Params, a: Any, factors: Any, c: Any) -> Any:
    if params["left"]:
        return _reflected(a, factors, c, reverse=not params["transpose"])
    return _reflected(a, factors, c.T, reverse=params["transpose"]).T


@_composed("householder_product")
@_for_matrices
def _householder_product(params: Params, a: Any, factors: Any) -> Any:
    return _reflected(a, factors, _jnp.eye(*a.shape, dtype=a.dtype), reverse=True)


@RULES.add("custom_linear_solve")
def _custom_linear_solve(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    lengths, bodies = eqn.params["const_lengths"], eqn.params["jaxprs"]
    first = lengths.matvec + lengths.vecmat
    return b.jaxpr(bodies.solve, [*xs[first : first + lengths.solve], *xs[sum(lengths) :]])


# --- without a rule --------------------------------------------------------------------------------------------------

_ITERATES = (
    "it iterates until the numbers are good enough, which only the devices know, and TTIR has no such loop; compute it "
    "on the host, or write it with a static number of iterations"
)
_REFUSED = {
    **dict.fromkeys(CALLBACKS, CALLS_HOST),
    **dict.fromkeys(
        ("eigh", "eig", "svd", "schur", "igamma", "igammac", "igamma_grad_a", "random_gamma", "random_gamma_grad"),
        _ITERATES,
    ),
    "regularized_incomplete_beta": _ITERATES,
}


@RULES.add(*_REFUSED)
def _refuse(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    name = eqn.primitive.name
    raise InexpressibleError(f"no text for primitive {name!r} ({b.line}): {_REFUSED[name]}. The program still runs.")
