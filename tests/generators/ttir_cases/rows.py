"""Cases of gathers and scatters of rows, against loops over every start, every place in its window, and every batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.generators.ttir_cases.case import Case, F, H, N

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "invalid": lambda old, new: new,
    "sum": lambda old, new: old + new,
    "prod": lambda old, new: old * new,
    "max": max,
    "min": min,
}


def places(starts: Any, sizes: Any, windows: Any, batch: int, clamps: bool) -> Iterator[int | None]:
    """The numbers of the rows that a batch reads or writes, in order; None for one that does not exist."""
    mine = starts[batch if starts.shape[0] > 1 else 0]
    for column in range(mine.shape[1]):
        for offset in itertools.product(*map(range, windows)):
            row, inside = 0, True
            for start, step, size, window in zip(mine[:, column], offset, sizes, windows, strict=True):
                first = min(max(int(start), 0), size - window) if clamps else int(start)
                inside = inside and 0 <= first + step < size
                row = row * size + first + step
            yield row if inside else None


def gathered(x: Any, starts: Any, sizes: Any, windows: Any, column: bool, fill: bool) -> Any:
    rows = x.reshape(x.shape[0], -1, 1) if column else x.reshape(*x.shape[:2], -1)
    out = [
        [np.zeros_like(rows[0, 0]) if r is None else rows[b, r] for r in places(starts, sizes, windows, b, not fill)]
        for b in range(x.shape[0])
    ]
    made = np.array(out, x.dtype)
    return made[:, :, 0] if column else made.reshape(*made.shape[:2], *x.shape[2:])


def scattered(x: Any, starts: Any, new: Any, sizes: Any, windows: Any, column: bool, reduce: str) -> Any:
    rows = (x.reshape(x.shape[0], -1, 1) if column else x.reshape(*x.shape[:2], -1)).copy()
    news = new.reshape(*new.shape[:2], -1)
    for b in range(x.shape[0]):
        for k, r in enumerate(places(starts, sizes, windows, b, False)):
            for c in range(rows.shape[2]) if r is not None else ():
                rows[b, r, c] = COMBINE[reduce](rows[b, r, c], news[b, k, c])
    return rows.reshape(x.shape)


def rows_of(
    x: tuple[int, ...], starts: tuple[int, ...], sizes: tuple[int, ...], windows: tuple[int, ...], column: bool
) -> Iterator[Case]:
    count = starts[2] * int(np.prod(windows))
    new = (x[0], count) if column else (x[0], count, *x[2:])
    a = {"sizes": sizes, "windows": windows, "column": column}
    index = N(*starts, low=-2, high=max(sizes) + 1)
    for make, fill in itertools.product((F, N, H), (False, True)):
        yield Case("rows_gather", (make(*x), index),
                   lambda x, i, f=fill: gathered(x, i, sizes, windows, column, f),
                   a | {"fill_out_of_bounds": fill})  # fmt: skip
    for make, reduce in itertools.product((F, N), COMBINE):
        # Where two starts meet, the order of writes is not defined.
        one = starts if reduce != "invalid" else (*starts[:2], 1)
        size = new if reduce != "invalid" else (new[0], count // starts[2], *new[2:])
        yield Case("rows_scatter", (make(*x), N(*one, low=-2, high=max(sizes) + 1), make(*size)),
                   lambda x, i, n, r=reduce: scattered(x, i, n, sizes, windows, column, r),
                   a | {"reduce": reduce})  # fmt: skip


ACCUMULATED = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "logsumexp": np.logaddexp}


def accumulated(x: Any, dim: int, reduction: str, reverse: bool) -> Any:
    x = np.flip(x, dim) if reverse else x
    out = ACCUMULATED[reduction].accumulate(x, dim)
    return np.flip(out, dim) if reverse else out


def later() -> Iterator[Case]:
    """Other ops that upstream has after the version whose definitions are known."""
    for dim, reduction, reverse in itertools.product((0, 1), ACCUMULATED, (False, True)):
        yield Case("cumulative", (F(3, 4),),
                   lambda x, d=dim, r=reduction, back=reverse: accumulated(x, d, r, back),
                   {"dim": dim, "reduction": reduction, "reverse": reverse})  # fmt: skip
    rounded = {"exponent_bits": 8, "mantissa_bits": 7}
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        for dim, keep in itertools.product((0, 1), (False, True)):
            yield Case(f"reduce_{name}", (N(3, 4, low=0, high=99),),
                       lambda x, n=name, d=dim, k=keep: getattr(np, n).reduce(x, d, keepdims=k),
                       {"dim_arg": (dim,), "keep_dim": keep})  # fmt: skip
    large = N(3, 4, low=-(2**31), high=2**31 - 1)
    yield Case("mulhi", (large, large), lambda x, y: ((x.astype(np.int64) * y) >> 32).astype(np.int32))
    yield Case("reduce_precision", (F(3, 4),), lambda x: x.astype(jnp.bfloat16).astype(np.float32), rounded)


def rows() -> Iterator[Case]:
    yield from later()
    yield from rows_of((2, 5, 3), (2, 1, 4), (5,), (1,), False)
    yield from rows_of((2, 6, 2, 2), (1, 1, 3), (6,), (2,), False)
    yield from rows_of((1, 12, 3), (1, 2, 3), (3, 4), (1, 2), False)
    yield from rows_of((3, 2, 4), (3, 2, 2), (2, 4), (2, 3), True)
    yield from rows_of((2, 1, 7), (1, 1, 3), (7,), (1,), True)
