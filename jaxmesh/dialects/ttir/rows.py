"""Gathers and scatters of rows, which upstream has after the version whose definitions are known.

Read in texts of jax-tt-plugin 0.1.3, and compared with the values of the JAX programs that became them.

The data are `[batch, rows, ...]`. `sizes` are the sizes of the dims that the rows are flattened from, and `windows`
how many of each are read or written from a start on. Starts are `[batch, len(sizes), count]`; a batch of 1 is the same
for every batch of the data. With `column`, rows have one element, without a dim: all dims after the batch are the
rows, and the rows to read or write are `[batch, count * windows]`.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from jaxmesh.dialects.op import Call, OpDef, Shape, Trait, attr, define, describe, need
from jaxmesh.dialects.ttir.helpers import check_rank, is_integer, jnp, lax, require, rule_error, size_of, vary_together

OPS: dict[str, OpDef] = {}
_ROWS = (attr("column", "bool", False), need("sizes", "ints", form="i64s"), need("windows", "ints", form="i64s"))
_TRAITS = (Trait.NOT_UPSTREAM, Trait.LATER)


def _flat_rows(call: Call, x: Any) -> Any:
    """Returns the data as `[batch, rows, columns]`."""
    require(call, x.ndim > 1, f"the data are (batch, rows, ...), but got {describe(x)}")
    count = size_of(call["sizes"])
    have = size_of(x.shape[1:]) if call["column"] else x.shape[1]
    require(call, count == have, f"sizes = {list(call['sizes'])} are {count} rows, the data {describe(x)}")
    return lax.reshape(x, (x.shape[0], count, 1 if call["column"] else size_of(x.shape[2:])))


def _positions(call: Call, rows: Any, starts: Any, *, clamps: bool) -> tuple[Any, Any]:
    """Returns the numbers of the rows, `[batch, count * windows]`, and whether each exists."""
    sizes, windows = call["sizes"], call["windows"]
    check_rank(call, starts, 3, "the starts (batch, dims, count)")
    rule = f"sizes = {list(sizes)}, windows = {list(windows)} and the dims of the starts {describe(starts)} are alike"
    require(call, len(sizes) == len(windows) == starts.shape[1], rule)
    require(call, is_integer(starts), f"the starts are integers, but got {describe(starts)}")
    good = starts.shape[0] in (1, rows.shape[0]) and all(0 < w <= n for w, n in zip(windows, sizes, strict=True))
    require(call, good, f"windows = {list(windows)} and the starts {describe(starts)} do not fit the rows")
    inside: Any = np.bool_(True)
    place: Any = jnp.int32(0)
    offsets = _offsets(windows)
    for dim in range(len(windows)):
        start: Any = starts[:, dim, :, None].astype(jnp.int32)
        if clamps:
            start = jnp.clip(start, 0, sizes[dim] - windows[dim])
        index: Any = start + offsets[dim]
        inside = inside & (index >= 0) & (index < sizes[dim])
        place = place * sizes[dim] + jnp.clip(index, 0, sizes[dim] - 1)
    shape = (rows.shape[0], starts.shape[2] * size_of(windows))
    return _spread(place, shape), _spread(inside, shape)


def _offsets(windows: Shape) -> Any:
    """Returns the places in a window, per dim, row-major."""
    return cast("Any", np.indices(windows, np.int32)).reshape(len(windows), -1)


def _spread(x: Any, shape: tuple[int, int]) -> Any:
    return jnp.broadcast_to(x.reshape(x.shape[0], -1), shape)


@define(OPS, "rows_gather", 2, *_ROWS, attr("fill_out_of_bounds", "bool", False), traits=[*_TRAITS, Trait.MOVES])
def _rows_gather(call: Call) -> Any:
    """Gathers rows; a start out of range is clamped, or gives zeros with `fill_out_of_bounds`."""
    x, starts = vary_together(*call.operands)
    rows = _flat_rows(call, x)
    place, inside = _positions(call, rows, starts, clamps=not call["fill_out_of_bounds"])
    taken = jnp.take_along_axis(rows, place[:, :, None], 1, mode="clip")
    if call["fill_out_of_bounds"]:
        taken = jnp.where(inside[:, :, None], taken, lax.full_like(taken, 0))
    return lax.reshape(taken, _rows_shape(call, x, place))


def _rows_shape(call: Call, x: Any, place: Any) -> tuple[int, ...]:
    """Returns the shape of the rows that are read or written."""
    return place.shape if call["column"] else (*place.shape, *x.shape[2:])


@define(OPS, "rows_scatter", 3, *_ROWS, attr("reduce", "enum", "invalid", form="#ttcore.reduce_type"), traits=_TRAITS)
def _rows_scatter(call: Call) -> Any:
    """Writes rows, or combines them with the old ones; rows out of range are left out."""
    x, starts, new = vary_together(*call.operands)
    rows = _flat_rows(call, x)
    place, inside = _positions(call, rows, starts, clamps=False)
    want = _rows_shape(call, x, place)
    good = new.shape == want and new.dtype == x.dtype
    require(call, good, f"the rows that are written are {x.dtype}{list(want)}, but got {describe(new)}")
    new = lax.reshape(new, (*place.shape, rows.shape[2]))
    batch = lax.broadcasted_iota(jnp.int32, place.shape, 0)
    at = rows.at[vary_together(batch, jnp.where(inside, place, rows.shape[1]))]
    kinds = {"invalid": at.set, "sum": at.add, "prod": at.multiply, "max": at.max, "min": at.min}
    if call["reduce"] not in kinds:
        raise rule_error(call, f"reduce is {' or '.join(kinds)}, got {call['reduce']!r}")
    return lax.reshape(kinds[call["reduce"]](new, mode="drop"), x.shape)
