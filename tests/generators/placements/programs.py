"""Small programs of one operation, by family, with NumPy functions that compute the same."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A function of arrays, and its oracle.

    Attributes:
      name: the operation with its attributes.
      fun: the function in JAX.
      oracle: the function in NumPy.
      calls: the arguments of each call; all have the same types.
    """

    name: str
    fun: Callable[..., Any]
    oracle: Callable[..., Array]
    calls: tuple[tuple[Array, ...], ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the arguments."""
        return tuple(x.shape for x in self.calls[0])

    @functools.cached_property
    def wanted(self) -> tuple[Array, ...]:
        """The result of each call."""
        return tuple(np.asarray(self.oracle(*args)) for args in self.calls)


def counted(*shape: int, seed: int = 1) -> Array:
    """Returns distinct whole numbers in another order than that of memory, whose small sums float32 holds exactly."""
    size = int(np.prod(shape))
    return np.random.default_rng(seed).permutation(size).astype(np.float32).reshape(shape) + 1


def small(*shape: int, seed: int = 1) -> Array:
    """Returns whole numbers between -2 and 2, whose products and sums float32 holds exactly."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


# --- operations that move elements -----------------------------------------------------------------------------------

RESHAPED: dict[int, tuple[Shape, ...]] = {
    24: ((24,), (4, 6), (6, 4), (12, 2), (2, 12), (3, 8), (8, 3), (2, 3, 4), (4, 3, 2), (2, 2, 6), (1, 24)),
    16: ((16,), (4, 4), (2, 8), (8, 2), (2, 2, 4), (4, 2, 2), (2, 4, 2), (2, 2, 2, 2), (16, 1)),
    8: ((8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (8, 1), (2, 1, 4)),
    64: ((64,), (8, 8), (4, 16), (16, 4)),
    0: ((0, 4), (4, 0), (8, 0, 2)),
    1: ((), (1,), (1, 1)),
}
"""The shapes that are reshaped to each other, by the number of elements."""


def reshapes() -> Iterator[Program]:
    for shapes in RESHAPED.values():
        for shape, new in itertools.permutations(shapes, 2):

            def fun(x: Any, new: Shape = new) -> Any:
                return x.reshape(new)

            yield Program(f"{list(shape)} to {list(new)}", fun, fun, ((counted(*shape),),))


def transposes() -> Iterator[Program]:
    for shape in ((4, 8), (2, 4, 8), (8, 2, 3)):
        for order in itertools.permutations(range(len(shape))):

            def fun(x: Any, order: Shape = order) -> Any:
                return x.transpose(order)

            yield Program(f"{list(shape)} by {list(order)}", fun, fun, ((counted(*shape),),))


def concatenates() -> Iterator[Program]:
    for shape, other, dim in (((8,), (8,), 0), ((4, 4), (4, 4), 0), ((4, 2), (4, 6), 1), ((3, 4), (5, 4), 0)):
        calls = ((counted(*shape), counted(*other, seed=2)),)
        yield Program(
            f"{list(shape)} and {list(other)} along {dim}",
            lambda x, y, dim=dim: jnp.concatenate([x, y], dim),
            lambda x, y, dim=dim: np.concatenate([x, y], dim),
            calls,
        )


def pads() -> Iterator[Program]:
    for shape, config in (
        ((8,), ((0, 8, 0),)),
        ((8,), ((8, 0, 0),)),
        ((8,), ((4, 4, 0),)),
        ((8,), ((0, 1, 1),)),
        ((8,), ((1, 0, 1),)),
        ((8,), ((-2, 2, 0),)),
        ((8,), ((-4, 0, 0),)),
        ((8,), ((-1, -7, 2),)),
        ((4, 6), ((2, 2, 0), (1, 1, 0))),
        ((4, 6), ((0, 4, 0), (0, 2, 0))),
        ((4, 6), ((0, 1, 1), (-2, 0, 0))),
    ):

        def fun(x: Any, value: Any, config: Any = config) -> Any:
            return lax.pad(x, value, config)

        def oracle(x: Array, value: Array, config: Any = config) -> Array:
            for d, (low, high, interior) in enumerate(config):
                x = _pad_dim(np.moveaxis(x, d, 0), value, low, high, interior)
                x = np.moveaxis(x, 0, d)
            return x

        yield Program(
            f"{list(shape)} by {list(config)}",
            fun,
            oracle,
            ((counted(*shape), np.asarray(-1, np.float32)),),
        )


def _pad_dim(x: Array, value: Array, low: int, high: int, interior: int) -> Array:
    rows: list[Array] = []
    for i, row in enumerate(x):
        rows += [np.full_like(row, value)] * (interior if i else 0) + [row]
    rows = [np.full_like(x[0], value)] * max(low, 0) + rows + [np.full_like(x[0], value)] * max(high, 0)
    rows = rows[max(-low, 0) : len(rows) - max(-high, 0)]
    return np.stack(rows)


def slices() -> Iterator[Program]:
    for shape, starts, limits, strides in (
        ((16,), (0,), (8,), (1,)),
        ((16,), (8,), (16,), (1,)),
        ((16,), (3,), (11,), (1,)),
        ((16,), (0,), (16,), (2,)),
        ((16,), (1,), (16,), (2,)),
        ((16,), (1,), (15,), (3,)),
        ((8, 6), (0, 0), (4, 6), (1, 1)),
        ((8, 6), (2, 1), (6, 5), (1, 1)),
        ((8, 6), (0, 0), (8, 6), (2, 3)),
        ((8, 6), (4, 2), (4, 4), (1, 1)),
    ):

        def fun(x: Any, starts: Any = starts, limits: Any = limits, strides: Any = strides) -> Any:
            return lax.slice(x, starts, limits, strides)

        def oracle(x: Array, starts: Any = starts, limits: Any = limits, strides: Any = strides) -> Array:
            return x[tuple(map(slice, starts, limits, strides))]

        yield Program(
            f"{list(shape)} {list(starts)} to {list(limits)} by {list(strides)}", fun, oracle, ((counted(*shape),),)
        )


def _clamped(start: Any, size: int, length: int) -> int:
    """Returns the start of a slice as JAX documents it: negative ones count from the end, then all are clamped."""
    start = int(start)
    return min(max(start + size if start < 0 else start, 0), size - length)


STARTS = (0, 3, 8, 9, 16, 100, -1, -8, -9, -16, -17, -100, 2**31 - 1, -(2**31))
"""Inside, at the last place, beyond it, at the end, beyond the end, and the same from the end."""


def _starts(rank: int) -> list[tuple[Array, ...]]:
    rows = [STARTS, STARTS[5:] + STARTS[:5], STARTS[9:] + STARTS[:9]][:rank]
    return [tuple(np.asarray(s, np.int32) for s in r) for r in zip(*rows, strict=True)]


SLICED: tuple[tuple[Shape, Shape], ...] = (
    ((16,), (8,)),
    ((16,), (4,)),
    ((8, 4), (8, 2)),
    ((8, 4), (4, 4)),
    ((8, 4), (4, 2)),
    ((8, 4), (1, 4)),
    ((2, 4, 8), (2, 2, 4)),
)


def dynamic_slices() -> Iterator[Program]:
    for shape, sizes in SLICED:

        def fun(x: Any, *starts: Any, sizes: Shape = sizes) -> Any:
            return lax.dynamic_slice(x, starts, sizes)

        def oracle(x: Array, *starts: Any, sizes: Shape = sizes) -> Array:
            places = map(_clamped, starts, x.shape, sizes)
            return x[tuple(slice(p, p + k) for p, k in zip(places, sizes, strict=True))]

        calls = tuple((counted(*shape), *s) for s in _starts(len(shape)))
        yield Program(f"{list(sizes)} of {list(shape)}", fun, oracle, calls)


def dynamic_update_slices() -> Iterator[Program]:
    for shape, sizes in SLICED:

        def fun(x: Any, y: Any, *starts: Any) -> Any:
            return lax.dynamic_update_slice(x, y, starts)

        def oracle(x: Array, y: Array, *starts: Any) -> Array:
            places, x = map(_clamped, starts, x.shape, y.shape), x.copy()
            x[tuple(slice(p, p + k) for p, k in zip(places, y.shape, strict=True))] = y
            return x

        calls = tuple((counted(*shape), -counted(*sizes), *s) for s in _starts(len(shape)))
        yield Program(f"{list(sizes)} into {list(shape)}", fun, oracle, calls)


# --- gather and scatter ----------------------------------------------------------------------------------------------

PLACES = ((0, 3, 7, 5), (8, -1, 100, 2), (-8, -9, -100, 4))
"""Rows of an array of 8: inside, beyond the end, negative."""


def _places(*rows: Sequence[int]) -> list[Array]:
    return [np.array(r, np.int32) for r in rows]


def gathers() -> Iterator[Program]:
    for shape, dim in (((8,), 0), ((8, 4), 0), ((4, 8), 1)):
        for mode in ("clip", "fill"):

            def fun(x: Any, i: Any, dim: int = dim, mode: Any = mode) -> Any:
                return jnp.take(x, i, dim, mode=mode, fill_value=-1)

            def oracle(x: Array, i: Array, dim: int = dim, mode: str = mode) -> Array:
                n = x.shape[dim]
                # jnp.take counts negative indices from the end if it fills, and clamps them if it clips.
                i = np.where(i < 0, i + n, i) if mode == "fill" else i
                got = np.moveaxis(np.take(x, np.clip(i, 0, n - 1), dim), dim, 0)
                if mode == "fill":
                    got = np.where(((i < 0) | (i >= n)).reshape(-1, *[1] * (x.ndim - 1)), -1, got)
                return np.moveaxis(got, 0, dim).astype(x.dtype)

            calls = tuple((counted(*shape), i) for i in _places(*PLACES))
            yield Program(f"take of {list(shape)} along {dim}, {mode}", fun, oracle, calls)

    def windows(x: Any, i: Any) -> Any:
        numbers = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0, 1))
        return lax.gather(x, i, numbers, (4, 2), mode="clip")

    def windows_in_numpy(x: Array, i: Array) -> Array:
        rows = [(min(max(int(a), 0), x.shape[0] - 4), min(max(int(b), 0), x.shape[1] - 2)) for a, b in i]
        return np.stack([x[a : a + 4, b : b + 2] for a, b in rows])

    places = np.array([[[0, 0], [4, 2], [2, 1], [1, 1]], [[5, 3], [-1, 9], [100, -100], [8, 4]]], np.int32)
    yield Program("windows [4, 2] of [8, 4]", windows, windows_in_numpy, tuple((counted(8, 4), i) for i in places))
    along = tuple((counted(4, 8), np.random.default_rng(s).integers(0, 8, (4, 4)).astype(np.int32)) for s in range(2))
    yield Program(
        "take_along_axis of [4, 8]",
        lambda x, i: jnp.take_along_axis(x, i, 1, mode="clip"),
        lambda x, i: np.take_along_axis(x, i, 1),
        along,
    )


_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda a, b: b,
    "add": np.add,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def scatters() -> Iterator[Program]:
    for shape, dim in (((8,), 0), ((8, 4), 0), ((4, 8), 1)):
        for kind, combine in _UPDATES.items():

            def fun(x: Any, i: Any, y: Any, dim: int = dim, kind: str = kind) -> Any:
                at = x.at[(slice(None),) * dim + (i,)]
                return getattr(at, kind)(y, mode="drop")

            def oracle(x: Array, i: Array, y: Array, dim: int = dim, combine: Any = combine) -> Array:
                x, y, n = np.moveaxis(x.copy(), dim, 0), np.moveaxis(y, dim, 0), x.shape[dim]
                for k, place in enumerate(np.where(i < 0, i + n, i)):
                    if 0 <= place < n:
                        x[place] = combine(x[place], y[k])
                return np.moveaxis(x, 0, dim)

            updates = [4 if d == dim else n for d, n in enumerate(shape)]
            # The order of updates of one place is JAX's to choose, unless they can be exchanged.
            rows = PLACES if kind == "set" else ((0, 3, 3, 5), (8, -1, 100, 7), (-8, -9, 0, 4))
            calls = tuple((counted(*shape), i, small(*updates) + 3) for i in _places(*rows))
            yield Program(f"{kind} into {list(shape)} along {dim}", fun, oracle, calls)

    def window(x: Any, i: Any, y: Any) -> Any:
        numbers = lax.ScatterDimensionNumbers((0, 1), (), (0, 1))
        return lax.scatter_add(x, i, y, numbers, mode="drop")

    def window_in_numpy(x: Array, i: Array, y: Array) -> Array:
        (a, b), x = map(int, i), x.copy()
        if 0 <= a <= x.shape[0] - 4 and 0 <= b <= x.shape[1] - 2:
            x[a : a + 4, b : b + 2] += y
        return x

    calls = tuple((counted(8, 4), i, small(4, 2)) for i in _places((0, 0), (3, 1), (4, 2), (5, 0), (0, 3), (-1, 0)))
    yield Program("add a window [4, 2] into [8, 4]", window, window_in_numpy, calls)


# --- operations that compute -----------------------------------------------------------------------------------------

_REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Array]]] = {
    "sum": (jnp.sum, np.sum, small),
    "max": (jnp.max, np.max, counted),
    "min": (jnp.min, np.min, counted),
    "prod": (jnp.prod, np.prod, small),
    "argmax": (jnp.argmax, np.argmax, small),
    "argmin": (jnp.argmin, np.argmin, small),
    "any": (lambda x, axis: jnp.any(x > 1, axis), lambda x, axis: np.any(x > 1, axis), small),
    "all": (lambda x, axis: jnp.all(x > -2, axis), lambda x, axis: np.all(x > -2, axis), small),
}


def reductions() -> Iterator[Program]:
    for name, (fun, oracle, make) in _REDUCTIONS.items():
        for shape, dims in (((8,), 0), ((4, 8), 0), ((4, 8), 1), ((2, 4, 8), (0, 2)), ((4, 8), None)):
            if name.startswith("arg") and isinstance(dims, tuple):
                continue
            yield Program(
                f"{name} of {list(shape)} over {dims}",
                lambda x, fun=fun, dims=dims: fun(x, axis=dims),
                lambda x, oracle=oracle, dims=dims: oracle(x, axis=dims),
                ((make(*shape),),),
            )


def dot_generals() -> Iterator[Program]:
    for shape, other, equation in (
        ((4, 8), (8, 4), "ij,jk->ik"),
        ((4, 8), (4, 8), "ij,ij->"),
        ((4, 8), (4, 8), "ij,ij->i"),
        ((2, 4, 8), (2, 8, 4), "bij,bjk->bik"),
        ((8,), (8,), "i,j->ij"),
        ((8,), (8, 4), "i,ij->j"),
        ((2, 2, 8), (8, 2, 2), "abj,jcd->abcd"),
    ):

        def fun(x: Any, y: Any, equation: str = equation) -> Any:
            return jnp.einsum(equation, x, y)

        def oracle(x: Array, y: Array, equation: str = equation) -> Array:
            return np.einsum(equation, x, y)

        yield Program(equation, fun, oracle, ((small(*shape), small(*other, seed=2)),))


def convolutions() -> Iterator[Program]:
    for shape, kernel, options in (
        ((2, 4, 8), (4, 4, 3), {"padding": ((1, 1),)}),
        ((2, 4, 8), (4, 4, 2), {"window_strides": (2,)}),
        ((2, 4, 8), (8, 4, 3), {"padding": ((2, 2),), "rhs_dilation": (2,)}),
        ((2, 4, 4), (4, 4, 3), {"padding": ((1, 2),), "lhs_dilation": (2,)}),
        ((2, 4, 8), (8, 1, 3), {"padding": ((1, 1),), "feature_group_count": 4}),
        ((2, 4, 8), (4, 2, 3), {"padding": ((0, 2),), "feature_group_count": 2}),
        ((4, 2, 8), (4, 2, 3), {"padding": ((1, 1),), "batch_group_count": 2}),
        ((2, 2, 4, 4), (2, 2, 3, 3), {"padding": ((1, 1), (1, 1))}),
    ):

        def fun(x: Any, w: Any, options: Any = options) -> Any:
            every = {"window_strides": (1,) * (x.ndim - 2), "padding": ((0, 0),) * (x.ndim - 2), **options}
            return lax.conv_general_dilated(x, w, **every)

        def oracle(x: Array, w: Array, options: Any = options) -> Array:
            return _convolve(x, w, **options)

        name = f"{list(shape)} by {list(kernel)}, {options}"
        yield Program(name, fun, oracle, ((small(*shape), small(*kernel, seed=2)),))


def _convolve(
    x: Array,
    w: Array,
    window_strides: Shape = (1, 1),
    padding: Any = ((0, 0), (0, 0)),
    lhs_dilation: Shape = (1, 1),
    rhs_dilation: Shape = (1, 1),
    feature_group_count: int = 1,
    batch_group_count: int = 1,
) -> Array:
    """Convolves as XLA documents it, by loops over places of the window."""
    rank = x.ndim - 2
    zero = np.zeros((), x.dtype)
    for d in range(rank):
        moved = np.moveaxis(x, d + 2, 0)
        x = np.moveaxis(_pad_dim(moved, zero, *padding[d], lhs_dilation[d] - 1), 0, d + 2)
        w = np.moveaxis(_pad_dim(np.moveaxis(w, d + 2, 0), zero, 0, 0, rhs_dilation[d] - 1), 0, d + 2)
    strides = window_strides[:rank]
    places = [range(0, n - k + 1, s) for n, k, s in zip(x.shape[2:], w.shape[2:], strides, strict=True)]
    batch, outs = x.shape[0] // batch_group_count, w.shape[0]
    result = np.zeros((batch, outs, *map(len, places)), x.dtype)
    ins, groups = x.shape[1] // feature_group_count, max(feature_group_count, batch_group_count)
    for o, at in itertools.product(range(outs), itertools.product(*map(enumerate, places))):
        group = o // (outs // groups)
        first = group * ins if feature_group_count > 1 else 0
        rows = slice(group * batch, (group + 1) * batch) if batch_group_count > 1 else slice(None)
        window = tuple(slice(p, p + k) for (_, p), k in zip(at, w.shape[2:], strict=True))
        part = x[(rows, slice(first, first + ins), *window)]
        result[(slice(None), o, *(i for i, _ in at))] = (part * w[o]).sum(tuple(range(1, x.ndim)))
    return result


def sorts() -> Iterator[Program]:
    for shape, dim in (((8,), 0), ((4, 8), 0), ((4, 8), 1), ((8, 3), 0)):
        yield Program(
            f"{list(shape)} along {dim}",
            lambda x, dim=dim: jnp.sort(x, dim),
            lambda x, dim=dim: np.sort(x, dim),
            ((counted(*shape),),),
        )
        yield Program(
            f"places of {list(shape)} along {dim}",
            lambda x, dim=dim: jnp.argsort(x, dim),
            lambda x, dim=dim: np.argsort(x, dim, kind="stable").astype(np.int32),
            ((small(*shape),),),
        )


_SCANS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "cumsum": (lax.cumsum, np.cumsum),
    "cumprod": (lax.cumprod, np.cumprod),
    "cummax": (lax.cummax, np.maximum.accumulate),
    "cummin": (lax.cummin, np.minimum.accumulate),
}


def cumulative_sums() -> Iterator[Program]:
    for name, (fun, oracle) in _SCANS.items():
        for shape, dim in (((8,), 0), ((4, 8), 0), ((4, 8), 1)):
            for reverse in (False, True):
                yield Program(
                    f"{name} of {list(shape)} along {dim}" + ", reversed" * reverse,
                    lambda x, fun=fun, dim=dim, reverse=reverse: fun(x, dim, reverse=reverse),
                    lambda x, oracle=oracle, dim=dim, reverse=reverse: (
                        np.flip(oracle(np.flip(x, dim), dim), dim) if reverse else oracle(x, dim)
                    ),
                    ((small(*shape),),),
                )


_WINDOWS: dict[str, tuple[Any, float, Callable[..., Any]]] = {
    "max": (lax.max, -np.inf, np.max),
    "min": (lax.min, np.inf, np.min),
    "add": (lax.add, 0.0, np.sum),
    "mul": (lax.mul, 1.0, np.prod),
}


def reduce_windows() -> Iterator[Program]:
    for name, (fun, start, oracle) in _WINDOWS.items():
        for shape, window, strides, padding, dilation in (
            ((8,), (2,), (2,), ((0, 0),), (1,)),
            ((8,), (3,), (1,), ((1, 1),), (1,)),
            ((8,), (2,), (1,), ((0, 1),), (1,)),
            ((8,), (2,), (1,), ((1, 1),), (2,)),
            ((8,), (8,), (1,), ((7, 0),), (1,)),
            ((4, 8), (2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1)),
            ((4, 8), (1, 3), (1, 1), ((0, 0), (1, 1)), (1, 1)),
            ((4, 8), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
        ):

            def compute(
                x: Any, fun: Any = fun, start: float = start, options: Any = (window, strides, padding, dilation)
            ) -> Any:
                window, strides, padding, dilation = options
                return lax.reduce_window(x, np.float32(start), fun, window, strides, padding, None, dilation)

            def loop(
                x: Array,
                oracle: Any = oracle,
                start: float = start,
                options: Any = (window, strides, padding, dilation),
            ) -> Array:
                window, strides, padding, dilation = options
                x = np.pad(x, padding, constant_values=start)
                spans = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
                places = [range(0, n - k + 1, s) for n, k, s in zip(x.shape, spans, strides, strict=True)]
                result = np.zeros([*map(len, places)], x.dtype)
                for at in itertools.product(*map(enumerate, places)):
                    part = x[tuple(slice(p, p + k, d) for (_, p), k, d in zip(at, spans, dilation, strict=True))]
                    result[tuple(i for i, _ in at)] = oracle(part)
                return result

            yield Program(
                f"{name} of {list(shape)} by {list(window)} steps {list(strides)} "
                f"padding {list(padding)} dilation {list(dilation)}",
                compute,
                loop,
                ((small(*shape),),),
            )


FAMILIES: dict[str, Callable[[], Iterator[Program]]] = {
    "reshape": reshapes,
    "transpose": transposes,
    "concatenate": concatenates,
    "pad": pads,
    "slice": slices,
    "dynamic_slice": dynamic_slices,
    "dynamic_update_slice": dynamic_update_slices,
    "gather": gathers,
    "scatter": scatters,
    "reduce": reductions,
    "dot_general": dot_generals,
    "conv": convolutions,
    "sort": sorts,
    "cumsum": cumulative_sums,
    "reduce_window": reduce_windows,
}
"""The programs of each operation."""
