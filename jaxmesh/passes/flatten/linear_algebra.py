"""Linear algebra, column by column.

Loops in these functions have static lengths, so they are unrolled, and count against `unroll_limit`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from jaxmesh.dialects.op import Results
from jaxmesh.dialects.program import Value
from jaxmesh.errors import InexpressibleError
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.untyped import jnp, lax
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule
from jaxmesh.passes.flatten.decompositions import Function, Params, decomposed

RULES: Rules[Rule] = Rules()


def _for_matrices(function: Function) -> Function:
    """Returns a function of matrices that also takes stacks of them."""

    def stacked(params: Params, *args: jax.Array) -> Results:
        def inner(*matrices: jax.Array) -> Results:
            return function(params, *matrices)

        for _ in args[0].shape[:-2]:
            inner = jax.vmap(inner)
        return inner(*args)

    return stacked


def _column(x: jax.Array, at: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(x, at, 1, keepdims=False)


def _row(x: jax.Array, at: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(x, at, 0, keepdims=False)


@decomposed(RULES, "cholesky")
@_for_matrices
def _cholesky(params: Params, a: jax.Array) -> jax.Array:
    """Computes column by column: what earlier columns explain is subtracted, and the rest divided by its root."""
    places = jnp.arange(a.shape[0])

    def step(j: jax.Array, made: jax.Array) -> jax.Array:
        rest = _column(a, j) - (made * _row(made, j)).sum(1)
        column = jnp.where(places >= j, rest / jnp.sqrt(_row(rest, j)), 0)
        return jnp.where(places == j, column[:, None], made)

    return lax.fori_loop(0, a.shape[0], step, jnp.zeros_like(a))


@decomposed(RULES, "triangular_solve")
@_for_matrices
def _triangular_solve(params: Params, a: jax.Array, b: jax.Array) -> jax.Array:
    """Computes row by row, from the corner of the triangle."""
    lower, size = params["lower"], a.shape[0]
    a = jnp.tril(a) if lower else jnp.triu(a)
    if params["transpose_a"] == params["left_side"]:
        a = a.T
    # A system with the unknowns at the right is the transposed one.
    down = lower != (params["transpose_a"] == params["left_side"])
    right = b if params["left_side"] else b.T
    places = jnp.arange(size)

    def step(i: jax.Array, made: jax.Array) -> jax.Array:
        at = i if down else size - 1 - i
        row = _row(a, at)
        rest = _row(right, at) - (row[:, None] * made).sum(0)
        rest = rest if params["unit_diagonal"] else rest / _row(row, at)
        return jnp.where((places == at)[:, None], rest, made)

    made = lax.fori_loop(0, size, step, jnp.zeros_like(right))
    return made if params["left_side"] else made.T


@decomposed(RULES, "lu")
@_for_matrices
def _lu(params: Params, a: jax.Array) -> Results:
    """Computes column by column, with the largest rest as the pivot."""
    rows, columns = a.shape
    places, across = jnp.arange(rows, dtype=jnp.int32), jnp.arange(columns)

    def step(k: jax.Array, made: Sequence[jax.Array]) -> Sequence[jax.Array]:
        a, pivots, order = made
        pivot = jnp.argmax(jnp.where(places >= k, abs(_column(a, k)), -1), 0).astype(jnp.int32)
        here, there = places == k, places == pivot

        def swap(x: jax.Array) -> jax.Array:
            wide = (slice(None), *[None] * (x.ndim - 1))
            above = jnp.where(there[wide], x, 0).sum(0, dtype=x.dtype)
            return jnp.where(here[wide], above, jnp.where(there[wide], _row(x, k), x))

        a, order = swap(a), swap(order)
        corner = _row(_column(a, k), k)
        below = jnp.where(places > k, _column(a, k) / jnp.where(corner == 0, 1, corner), 0)
        update = below[:, None] * jnp.where(across > k, _row(a, k), 0)
        a = jnp.where((across == k) & (places > k)[:, None], below[:, None], a - update)
        return a, jnp.where(jnp.arange(pivots.size) == k, pivot, pivots), order

    count = min(rows, columns)
    return lax.fori_loop(0, count, step, (a, jnp.zeros(count, jnp.int32), places))


@decomposed(RULES, "qr")
@_for_matrices
def _qr(params: Params, a: jax.Array) -> Sequence[jax.Array]:
    if params["pivoting"]:
        raise InexpressibleError("no text for qr with pivoting: leave it out.")
    rows, columns = a.shape
    kept = rows if params["full_matrices"] else min(rows, columns)
    r, factors = _geqrf({}, a)
    return _reflected(r, factors, jnp.eye(rows, kept, dtype=a.dtype), reverse=True), jnp.triu(r)[:kept]


@decomposed(RULES, "geqrf")
@_for_matrices
def _geqrf(params: Params, a: jax.Array) -> Results:
    """Returns R with LAPACK's reflections below the diagonal, without their leading ones; and the factors."""
    places, across = jnp.arange(a.shape[0]), jnp.arange(a.shape[1])
    count = min(a.shape)

    def step(k: jax.Array, made: Sequence[jax.Array]) -> Sequence[jax.Array]:
        r, factors = made
        x = jnp.where(places >= k, _column(r, k), 0)
        first, below = _row(x, k), jnp.where(places > k, x, 0)
        length = jnp.where(first < 0, 1, -1) * jnp.sqrt((x * x).sum())
        # A multiple of the first unit vector already is not reflected.
        moved = (below * below).sum() > 0
        tail = jnp.where(moved, below / jnp.where(moved, first - length, 1), 0)
        factor = jnp.where(moved, 1 - first / jnp.where(moved, length, 1), 0)
        v = jnp.where(places == k, 1, tail)
        r = r - factor * v[:, None] * jnp.where(across >= k, (v[:, None] * r).sum(0), 0)
        r = jnp.where((across == k) & (places > k)[:, None], tail[:, None], r)
        return r, jnp.where(jnp.arange(count) == k, factor, factors)

    return lax.fori_loop(0, count, step, (a, jnp.zeros(count, a.dtype)))


def _reflected(a: jax.Array, factors: jax.Array, c: jax.Array, *, reverse: bool) -> jax.Array:
    """Returns the result of the reflections of `geqrf` to the columns of a matrix, the last one first if `reverse`."""
    places, count = jnp.arange(a.shape[0]), factors.shape[0]

    def step(i: jax.Array, c: jax.Array) -> jax.Array:
        k = count - 1 - i if reverse else i
        v = jnp.where(places > k, _column(a, k), places == k)
        return c - _row(factors, k) * v[:, None] * (v[:, None] * c).sum(0)

    return lax.fori_loop(0, count, step, c)


@decomposed(RULES, "ormqr")
@_for_matrices
def _ormqr(params: Params, a: jax.Array, factors: jax.Array, c: jax.Array) -> jax.Array:
    if params["left"]:
        return _reflected(a, factors, c, reverse=not params["transpose"])
    return _reflected(a, factors, c.T, reverse=params["transpose"]).T


@decomposed(RULES, "householder_product")
@_for_matrices
def _householder_product(params: Params, a: jax.Array, factors: jax.Array) -> jax.Array:
    return _reflected(a, factors, jnp.eye(*a.shape, dtype=a.dtype), reverse=True)


@RULES.add("custom_linear_solve")
def _custom_linear_solve(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    lengths, bodies = eqn.params["const_lengths"], eqn.params["jaxprs"]
    first = lengths.matvec + lengths.vecmat
    return b.jaxpr(bodies.solve, [*xs[first : first + lengths.solve], *xs[sum(lengths) :]])
