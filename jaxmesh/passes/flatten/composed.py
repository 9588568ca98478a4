"""Primitives that are composed of others: each is a function in JAX, traced for the operands and built in place.

Loops in these functions have static lengths, so they are unrolled, and count against `unroll_limit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxmesh.dialects.program import Value
from jaxmesh.errors import InexpressibleError
from jaxmesh.jaxprs.compat import Eqn
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


# --- equinox's reductions of truth values ----------------------------------------------------------------------------


@_composed("unvmap_any")
def _unvmap_any(params: Params, x: Any) -> Any:
    return _jnp.any(x)


@_composed("unvmap_all")
def _unvmap_all(params: Params, x: Any) -> Any:
    return _jnp.all(x)


@_composed("unvmap_max")
def _unvmap_max(params: Params, x: Any) -> Any:
    return _jnp.max(x)


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
    """Householder's reflections, with LAPACK's signs."""
    if params["pivoting"]:
        raise InexpressibleError("no text for qr with pivoting: leave it out. The program still runs.")
    rows, columns = a.shape
    places = _jnp.arange(rows)

    def step(k: Any, made: Any) -> Any:
        q, r = made
        x = _jnp.where(places >= k, _column(r, k), 0)
        first, below = _row(x, k), _jnp.where(places > k, x, 0)
        length = _jnp.where(first < 0, 1, -1) * _jnp.sqrt((x * x).sum())
        v = _jnp.where(places == k, first - length, x)
        # What is a multiple of the first unit vector already is not reflected.
        moved = (below * below).sum() > 0
        scale = _jnp.where(moved, 2 / _jnp.where(moved, (v * v).sum(), 1), 0)
        r = r - scale * v[:, None] * (v[:, None] * r).sum(0)
        return q - scale * (q * v).sum(1)[:, None] * v, r

    q, r = _lax.fori_loop(0, min(rows, columns), step, (_jnp.eye(rows, dtype=a.dtype), a))
    kept = rows if params["full_matrices"] else min(rows, columns)
    return q[:, :kept], _jnp.triu(r)[:kept]


@RULES.add("custom_linear_solve")
def _custom_linear_solve(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    lengths, bodies = eqn.params["const_lengths"], eqn.params["jaxprs"]
    first = lengths.matvec + lengths.vecmat
    return b.jaxpr(bodies.solve, [*xs[first : first + lengths.solve], *xs[sum(lengths) :]])


# --- without a rule --------------------------------------------------------------------------------------------------

_CALLBACK = "it calls Python on the host amid the program, and TTIR has no such call; trace the program without it"
_ITERATES = (
    "it iterates until the numbers are good enough, which only the devices know, and TTIR has no such loop; compute it "
    "on the host, or write it with a static number of iterations"
)
_REFUSED = {
    **dict.fromkeys(("pure_callback", "io_callback", "debug_callback", "debug_print"), _CALLBACK),
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
