"""Reductions over windows, as pooling of images or combinations of slices, and gradients of max pooling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxmesh.dialects.program import Shape, Value
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.untyped import jnp, lax
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.flatten.builder import Builder, Rule, missing
from jaxmesh.passes.flatten.decompositions import Function, Params
from jaxmesh.passes.flatten.index_arithmetic import is_float
from jaxmesh.passes.flatten.reductions import combine, combining, identity, reduce_dims
from jaxmesh.passes.flatten.shapes import pad_tensor

RULES: Rules[Rule] = Rules()


@dataclass(frozen=True, slots=True)
class Window:
    """A window over one dim."""

    size: int
    stride: int
    low: int
    high: int
    dilation: int = 1
    spread: int = 1

    @property
    def reach(self) -> int:
        """The number of elements that it spans."""
        return self.dilation * (self.size - 1) + 1

    @property
    def moves(self) -> bool:
        """True if it changes anything."""
        return (self.size, self.stride, self.low, self.high) != (1, 1, 0, 0)

    @property
    def side_by_side(self) -> bool:
        """True if windows follow each other without gaps or overlaps."""
        return self.size == self.stride and self.dilation == 1

    def covers(self, length: int) -> bool:
        """Returns True if one window has all elements of a dim of this length."""
        return (self.size, self.low, self.high, self.dilation) == (length, 0, 0, 1)

    def count(self, length: int) -> int:
        """Returns the number of windows on a dim that is padded already."""
        return max((length - self.reach) // self.stride + 1, 0)


def windows_of(params: Params) -> list[Window]:
    """Returns the window of each dim."""
    sizes = params["window_dimensions"]
    ones = (1,) * len(sizes)
    rows = zip(
        sizes, params["window_strides"], params["padding"], params.get("window_dilation") or ones,
        params.get("base_dilation") or ones, strict=True,
    )  # fmt: skip
    return [Window(int(n), int(s), int(p[0]), int(p[1]), int(d), int(b)) for n, s, p, d, b in rows]


def _window_reduction(kind: str) -> Rule:
    return lambda b, eqn, xs: _reduce_windows(b, kind, xs[0], windows_of(eqn.params), b.result(eqn)[0])


RULES.update({f"reduce_window_{kind}": _window_reduction(kind) for kind in ("sum", "max", "min")})


@RULES.add("reduce_window")
def _reduce_window(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    kind = combining(eqn)
    if b.fill(xs[1]) != identity(kind, b.dtype(xs[0])):
        raise missing(eqn, f"its windows start from another number than {identity(kind, b.dtype(xs[0]))}")
    return _reduce_windows(b, kind, xs[0], windows_of(eqn.params), b.result(eqn)[0])


def _reduce_windows(b: Builder, kind: str, x: Value, windows: Sequence[Window], shape: Shape) -> Value:
    """Reduces dim by dim, or two dims at a time as pooling of images."""
    dtype = b.dtype(x)
    if 0 in (*shape, *b.shape(x)):
        return b.full(shape, identity(kind, dtype), dtype)
    x, windows = dilate_base(b, identity(kind, dtype), x, windows)
    images = is_float(dtype) and kind in ("sum", "max", "min")
    left: list[int] = []
    for dim, window in enumerate(windows):
        if images and window.moves and not window.covers(b.shape(x)[dim]):
            left.append(dim)
        elif window.moves:
            x = _along(b, kind, x, dim, window)
    while left:
        pair, left = left[:2], left[2:]
        apart = len(pair) == 1 and windows[pair[0]].side_by_side
        x = _along(b, kind, x, pair[0], windows[pair[0]]) if apart else _images(b, kind, x, pair, windows)
    return x


def dilate_base(b: Builder, value: float, x: Value, windows: Sequence[Window]) -> tuple[Value, list[Window]]:
    """Returns the operand with base dilation and negative padding applied, and the windows without them."""
    done = [w.spread == 1 and min(w.low, w.high) >= 0 for w in windows]
    amounts = [(0, 0, 0) if ok else (w.low, w.high, w.spread - 1) for ok, w in zip(done, windows, strict=True)]
    rest = [w if ok else replace(w, low=0, high=0, spread=1) for ok, w in zip(done, windows, strict=True)]
    return pad_tensor(b, x, value, amounts), rest


# --- one dim ---------------------------------------------------------------------------------------------------------


def _along(b: Builder, kind: str, x: Value, dim: int, window: Window) -> Value:
    edges = [(window.low, window.high, 0) if d == dim else (0, 0, 0) for d in range(len(b.shape(x)))]
    x = pad_tensor(b, x, identity(kind, b.dtype(x)), edges)
    count = window.count(b.shape(x)[dim])
    if window.side_by_side or window.covers(b.shape(x)[dim]):
        x = b.piece(x, dim, 0, count * window.size)
        shape = b.shape(x)
        return reduce_dims(b, kind, b.reshape(x, (*shape[:dim], count, window.size, *shape[dim + 1 :])), (dim + 1,))
    made = _spans(b, kind, x, dim, window.size, window.dilation)
    return b.piece(made, dim, 0, (count - 1) * window.stride + 1, window.stride)


def _spans(b: Builder, kind: str, x: Value, dim: int, size: int, step: int) -> Value:
    """Combines `size` elements from each one on: two spans of half the size, and one element if it is odd."""
    if size == 1:
        return x
    half = size // 2
    spans = _spans(b, kind, x, dim, half, step)
    length = b.shape(spans)[dim] - half * step
    out = combine(b, kind, b.piece(spans, dim, 0, length), b.piece(spans, dim, half * step, half * step + length))
    if size % 2 == 0:
        return out
    last = (size - 1) * step
    length = b.shape(x)[dim] - last
    return combine(b, kind, b.piece(out, dim, 0, length), b.piece(x, dim, last, last + length))


# --- images ----------------------------------------------------------------------------------------------------------


def _images(b: Builder, kind: str, x: Value, pair: Sequence[int], windows: Sequence[Window]) -> Value:
    """Reduces one or two dims as height and width, with dims before as batch and dims behind as channels."""
    rank, dtype = len(b.shape(x)), b.dtype(x)
    # Where the images come last, the dim before them holds the channels.
    last = pair[-1] == rank - 1
    before = list(range(min(pair[0], 1) if last else pair[0]))
    behind = [d for d in range(rank) if d not in pair and d not in before]
    order = [*before, *pair, *behind]
    two = [windows[d] for d in pair] + [Window(1, 1, 0, 0)] * (2 - len(pair))
    if any(max(w.low, w.high) > w.size // 2 for w in two):
        # Rows pad by half a window at the most.
        amounts = [(windows[d].low, windows[d].high, 0) if d in pair else (0, 0, 0) for d in range(rank)]
        x = pad_tensor(b, x, identity(kind, dtype), amounts)
        two = [replace(w, low=0, high=0) for w in two]
    sizes = [b.shape(x)[d] for d in order]
    space = [*sizes[len(before) : len(before) + len(pair)], *[1] * (2 - len(pair))]
    batch, channels = math.prod(sizes[: len(before)]), math.prod(sizes[len(before) + len(pair) :])
    image = b.reshape(b.permute(x, order), (batch, *space, channels))
    counts = [w.count(n + w.low + w.high) for n, w in zip(space, two, strict=True)]
    made = _pool(b, kind, image, two, (batch, *counts, channels))
    sizes[len(before) : len(before) + len(pair)] = counts[: len(pair)]
    made = b.permute(b.reshape(made, sizes), [order.index(d) for d in range(rank)])
    number = math.prod(w.size for w in two)
    return made if kind != "sum" else b.same("multiply", [made, b.full((), number, dtype)])


def _pool(b: Builder, kind: str, x: Value, two: Sequence[Window], shape: Shape) -> Value:
    first, second = two
    attributes = {
        "kernel": (first.size, second.size),
        "stride": (first.stride, second.stride),
        "dilation": (first.dilation, second.dilation),
        "padding": (first.low, second.low, first.high, second.high),
        "ceil_mode": False,
    }
    if kind == "min":
        return b.same("neg", [b.op("max_pool2d", [b.same("neg", [x])], shape, b.dtype(x), **attributes)])
    return b.op("avg_pool2d" if kind == "sum" else "max_pool2d", [x], shape, b.dtype(x), **attributes)


@RULES.add("div")
def _div(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value:
    """Replaces a sum of windows divided by their size by the mean that was pooled."""
    x, y = xs
    scaled = b.maker(x, "multiply")
    if scaled is not None and b.fill(y) is not None and is_float(b.dtype(x)):
        mean, factor = scaled.used
        if b.fill(factor) == b.fill(y) and _is_pooled(b, mean):
            return mean
    return b.op("div", xs, *b.result(eqn))


def _is_pooled(b: Builder, x: Value) -> bool:
    for name in ("permute", "reshape"):
        moved = b.maker(x, name)
        if moved is not None:
            (x,) = moved.used
    return b.maker(x, "avg_pool2d") is not None


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


def _elements(x: jax.Array, padding: object, windows: Sequence[Window], counts: Sequence[int]) -> Iterator[jax.Array]:
    """Yields the elements at each offset of all windows, `counts` along each dim."""
    padded = lax.pad(x, jnp.asarray(padding, x.dtype), [(w.low, w.high, 0) for w in windows])
    for offset in _offsets(windows):
        begins = [o * w.dilation for o, w in zip(offset, windows, strict=True)]
        ends = [n + (m - 1) * w.stride + 1 for n, m, w in zip(begins, counts, windows, strict=True)]
        yield lax.slice(padded, begins, ends, [w.stride for w in windows])


def _least(params: Params, x: jax.Array) -> float:
    """Returns the number below every other one in the order of the comparison."""
    return identity("max" if params["select_prim"].name in ("ge", "gt") else "min", x.dtype)


def _compare(params: Params) -> Function:
    return params["select_prim"].bind


@RULES.add("select_and_gather_add")
def _select_and_gather_add(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Sequence[Value]:
    _check_windows(eqn)
    return b.composed(_gather, xs, {**eqn.params, "counts": b.result(eqn)[0]})


def _gather(params: Params, tangents: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the tangents at the elements that windows pick; 0 where none is above the padding."""
    windows, counts, least = windows_of(params), params["counts"], _least(params, x)
    best, picked = jnp.full(counts, least, x.dtype), jnp.zeros(counts, tangents.dtype)
    sides = (_elements(v, number, windows, counts) for v, number in ((x, least), (tangents, 0)))
    for candidate, tangent in zip(*sides, strict=True):
        keep = _compare(params)(best, candidate)
        best, picked = jnp.where(keep, best, candidate), jnp.where(keep, picked, tangent)
    return picked


@RULES.add("select_and_scatter_add")
def _select_and_scatter_add(b: Builder, eqn: Eqn, xs: Sequence[Value]) -> Value | Sequence[Value]:
    source, x = xs
    if 0 in (*b.shape(source), *b.shape(x)):
        return b.full(b.shape(x), 0, b.dtype(source))
    _check_windows(eqn)
    return b.composed(_scatter, xs, eqn.params)


def _scatter(params: Params, source: jax.Array, x: jax.Array) -> Any:
    """Adds each window's number to the element that it picks."""
    windows, counts = windows_of(params), source.shape
    first, *others = _elements(x, _least(params, x), windows, counts)
    best, keeps = first, list[jax.Array]()
    for candidate in others:
        keeps.append(_compare(params)(best, candidate))
        best = jnp.where(keeps[-1], best, candidate)
    # From the last offset on: the number of a window that keeps its earlier best goes to an earlier offset.
    left, total = source, None
    for offset, keep in zip(reversed(_offsets(windows)), [*reversed(keeps), None], strict=True):
        here = left if keep is None else jnp.where(keep, 0, left)
        left = left if keep is None else jnp.where(keep, left, 0)
        placed = lax.pad(here, jnp.zeros((), here.dtype), _paddings(windows, x.shape, counts, offset))
        total = placed if total is None else total + placed
    return total


def _paddings(windows: Sequence[Window], sizes: Shape, counts: Shape, offset: Shape) -> list[tuple[int, int, int]]:
    """Returns the padding that moves the numbers of windows to the elements at one offset."""
    lows = [o * w.dilation - w.low for o, w in zip(offset, windows, strict=True)]
    return [
        (low, size - low - ((count - 1) * w.stride + 1), w.stride - 1)
        for size, count, low, w in zip(sizes, counts, lows, windows, strict=True)
    ]
