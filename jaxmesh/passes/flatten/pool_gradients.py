"""Gradients of max pooling: the element that each window picked, offset by offset."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Function, Params
from jaxmesh.passes.flatten.reduce_window import Window, windows_of
from jaxmesh.passes.flatten.reductions import identity
from jaxmesh.passes.rules import Rules

RULES: Rules[Rule] = Rules()

_jnp: Any = jax.numpy
_lax: Any = jax.lax
_LIMIT = 256


def _check_windows(eqn: Eqn) -> None:
    windows = windows_of(eqn.params)
    sizes = [w.size for w in windows]
    if (count := len(_offsets(windows))) > _LIMIT:
        raise missing(eqn, f"a window of {sizes} has {count} elements, more than {_LIMIT} to compare")
    if any(w.spread > 1 or min(w.low, w.high) < 0 for w in windows):
        raise missing(eqn, "its operand is dilated or cut, which pooling by the largest is not")


def _offsets(windows: Sequence[Window]) -> list[Shape]:
    return list(itertools.product(*(range(w.size) for w in windows)))


def _elements(x: Any, padding: Any, windows: Sequence[Window], counts: Sequence[int]) -> Iterator[Any]:
    """Yields the elements at each offset of all windows, `counts` along each dim."""
    padded = _lax.pad(x, _jnp.asarray(padding, x.dtype), [(w.low, w.high, 0) for w in windows])
    for offset in _offsets(windows):
        begins = [o * w.dilation for o, w in zip(offset, windows, strict=True)]
        ends = [n + (m - 1) * w.stride + 1 for n, m, w in zip(begins, counts, windows, strict=True)]
        yield _lax.slice(padded, begins, ends, [w.stride for w in windows])


def _least(params: Params, x: Any) -> float:
    """Returns the number below every other one in the order of the comparison."""
    return identity("max" if params["select_prim"].name in ("ge", "gt") else "min", x.dtype)


def _compare(params: Params) -> Function:
    return params["select_prim"].bind


@RULES.add("select_and_gather_add")
def _select_and_gather_add(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    _check_windows(eqn)
    return b.composed(_gather, xs, {**eqn.params, "counts": b.result(eqn)[0]})


def _gather(params: Params, tangents: Any, x: Any) -> Any:
    """Returns the tangents at the elements that windows pick; 0 where none is above the padding."""
    windows, counts, least = windows_of(params), params["counts"], _least(params, x)
    best, picked = _jnp.full(counts, least, x.dtype), _jnp.zeros(counts, tangents.dtype)
    sides = (_elements(v, number, windows, counts) for v, number in ((x, least), (tangents, 0)))
    for candidate, tangent in zip(*sides, strict=True):
        keep = _compare(params)(best, candidate)
        best, picked = _jnp.where(keep, best, candidate), _jnp.where(keep, picked, tangent)
    return picked


@RULES.add("select_and_scatter_add")
def _select_and_scatter_add(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value | Sequence[Value]:
    source, x = xs
    if 0 in (*b.shape(source), *b.shape(x)):
        return b.full(b.shape(x), 0, b.dtype(source))
    _check_windows(eqn)
    return b.composed(_scatter, xs, eqn.params)


def _scatter(params: Params, source: Any, x: Any) -> Any:
    """Adds each window's number to the element that it picks."""
    windows, counts = windows_of(params), source.shape
    first, *others = _elements(x, _least(params, x), windows, counts)
    best, keeps = first, list[Any]()
    for candidate in others:
        keeps.append(_compare(params)(best, candidate))
        best = _jnp.where(keeps[-1], best, candidate)
    # From the last offset on: the number of a window that keeps its earlier best goes to an earlier offset.
    left, total = source, None
    for offset, keep in zip(reversed(_offsets(windows)), [*reversed(keeps), None], strict=True):
        here = left if keep is None else _jnp.where(keep, 0, left)
        left = left if keep is None else _jnp.where(keep, left, 0)
        placed = _lax.pad(here, _jnp.zeros((), here.dtype), _paddings(windows, x.shape, counts, offset))
        total = placed if total is None else total + placed
    return total


def _paddings(windows: Sequence[Window], sizes: Shape, counts: Shape, offset: Shape) -> list[tuple[int, int, int]]:
    """Returns the padding that moves the numbers of windows to the elements at one offset."""
    lows = [o * w.dilation - w.low for o, w in zip(offset, windows, strict=True)]
    return [
        (low, size - low - ((count - 1) * w.stride + 1), w.stride - 1)
        for size, count, low, w in zip(sizes, counts, lows, windows, strict=True)
    ]
