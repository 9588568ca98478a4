"""Ops that read or write elements by index: gather, scatter, embeddings, caches, rows.

Upstream has gathers and scatters of rows after the version whose definitions are known. They are read in texts of
jax-tt-plugin 0.1.3, and compared with the values of the JAX programs that became them. Their data are
`[batch, rows, ...]`. `sizes` are the sizes of the dims that the rows are flattened from, and `windows` how many of each
are read or written from a start on. Starts are `[batch, len(sizes), count]`; a batch of 1 is the same for every batch
of the data. With `column`, rows have one element, without a dim: all dims after the batch are the rows, and the rows to
read or write are `[batch, count * windows]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from jaxmesh.dialects.attributes import attributes_of
from jaxmesh.dialects.op import Call, OpDef, Shape, Trait, describe
from jaxmesh.dialects.ttir.helpers import TtirOps, is_integer, jax, jnp, lax, vary_together
from jaxmesh.jaxprs.untyped import Array

OPS = TtirOps()


def _gather_slices(call: Call) -> jax.Array:
    # A start out of range is clamped, as in StableHLO.
    x, starts = vary_together(*call.operands)
    starts = _index_vectors_last(call, starts)
    _check_gather(call, x, starts)
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=tuple(sorted(call["offset_dims"])),
        collapsed_slice_dims=tuple(sorted(call["collapsed_slice_dims"])),
        start_index_map=call["start_index_map"],
        operand_batching_dims=tuple(call["operand_batching_dims"]),
        start_indices_batching_dims=tuple(call["start_indices_batching_dims"]),
    )
    return lax.gather(x, starts, numbers, call["slice_sizes"], mode="clip")


def _index_vectors_last(call: Call, starts: jax.Array) -> jax.Array:
    """Moves the index vectors to the last dim, where JAX has them."""
    dim = call["index_vector_dim"]
    in_range = 0 <= dim <= starts.ndim
    call.require(in_range, f"index_vector_dim = {dim} is out of range for indices of rank {starts.ndim}")
    batching = call["start_indices_batching_dims"]
    moves = dim < starts.ndim - 1 and any(d > dim for d in batching)
    call.require(not moves, f"index_vector_dim = {dim} before start_indices_batching_dims {list(batching)}")
    return lax.expand_dims(starts, (dim,)) if dim == starts.ndim else jnp.moveaxis(starts, dim, -1)


def _check_gather(call: Call, x: jax.Array, starts: jax.Array) -> None:
    sizes, mapped = call["slice_sizes"], call["start_index_map"]
    call.check_length("slice_sizes", sizes, x.ndim, f"one per dim of {describe(x)}")
    call.check_length("start_index_map", mapped, starts.shape[-1], "one per number of an index vector")
    call.check_dims(mapped, x.ndim, "start_index_map")
    call.require(is_integer(starts), f"the indices are integers, but got {describe(starts)}")
    dropped = [*call["collapsed_slice_dims"], *call["operand_batching_dims"]]
    for dim in call.check_dims(dropped, x.ndim, "collapsed_slice_dims and operand_batching_dims"):
        call.require(sizes[dim] in (0, 1), f"dim {dim} is collapsed or batched, but its slice has size {sizes[dim]}")
    for dim, (piece, whole) in enumerate(zip(sizes, x.shape, strict=True)):
        call.require(0 <= piece <= whole, f"slice_sizes = {list(sizes)}: dim {dim} of {describe(x)} has {whole}")


_SLICES = OpDef(
    "ttir",
    "gather",
    (2, 2),
    attributes_of(
        "offset_dims: i64s, collapsed_slice_dims: i64s, operand_batching_dims?: i64s = (), "
        "start_indices_batching_dims?: i64s = (), start_index_map: i64s, index_vector_dim: si64, slice_sizes: i64s, "
        "indices_are_sorted?: bool = false"
    ),
    _gather_slices,
)
"""StableHLO's gather, which TTIR had under this name."""


@OPS.define("gather", traits=[Trait.MOVES], former=_SLICES)
def _gather(call: Call) -> jax.Array:
    """Gathers `result[.., i, ..] = x[.., index[.., i, ..], ..]` along one dim; an index out of range is clamped.

    Upstream's verifier (tt-mlir 19c86fca, lib/Dialect/TTIR/IR/TTIROps.cpp) wants integers, equal ranks from 1 on, and a
    result of the index's shape.
    """
    x, index = vary_together(*call.operands)
    call.require(x.ndim > 0, f"a scalar has no dim to gather from, got {describe(x)}")
    dim = call.check_dim(call["dim"], x.ndim, "dim")
    call.check_rank(index, x.ndim, "the index")
    call.require(is_integer(index), f"the index is of integers, but got {describe(index)}")
    _check_index(call, x, index, dim)
    rule = f"dim {dim} of the input {describe(x)} is empty, but the index is {describe(index)}"
    call.require(x.shape[dim] > 0 or index.size == 0, rule)
    if not index.size:
        return lax.full_like(x, 0, shape=index.shape)
    sizes = tuple(n if d == dim else index.shape[d] for d, n in enumerate(x.shape))
    inside = jnp.clip(index, 0, x.shape[dim] - 1)
    return jnp.take_along_axis(lax.slice(x, (0,) * x.ndim, sizes), inside, dim, mode="clip")


def _check_index(call: Call, x: jax.Array, index: jax.Array, dim: int) -> None:
    """Checks that an index is not larger than the input, except along one dim."""
    for d in range(x.ndim):
        rule = f"dim {d} of the index {describe(index)} is larger than that of the input {describe(x)}"
        call.require(d == dim or index.shape[d] <= x.shape[d], rule)


# --- scatter ---------------------------------------------------------------------------------------------------------


@OPS.define("scatter")
def _scatter(call: Call) -> jax.Array:
    """Sets `x[.., index[i, j], ..] = source[i, j]` along one dim; a reduce type combines it with the old value."""
    x, index, source = vary_together(*call.operands)
    dim = call.check_dim(call["dim"], x.ndim, "dim")
    call.check_rank(index, x.ndim, "the index")
    call.check_shape(source, index.shape, "the source")
    call.require(is_integer(index), f"the index is of integers, but got {describe(index)}")
    call.require(source.dtype == x.dtype, f"the input is {describe(x)}, but the source {describe(source)}")
    _check_index(call, x, index, dim)
    where = [lax.broadcasted_iota(jnp.int32, index.shape, d) for d in range(x.ndim)]
    where[dim] = index.astype(jnp.int32)
    place = x.at[vary_together(*where)]
    match call["scatter_reduce_type"]:
        case "invalid":
            return place.set(source)
        case "sum":
            return place.add(source)
        case "prod":
            return place.multiply(source)
        case "max":
            return place.max(source)
        case "min":
            return place.min(source)
        case other:
            raise call.rule_error(f"scatter_reduce_type {other!r} is none of invalid, sum, prod, max, min")


# --- embeddings ------------------------------------------------------------------------------------------------------


def _as_matrix(call: Call, weight: jax.Array) -> jax.Array:
    """Returns the weight as a matrix; its leading dims have size 1."""
    good = weight.ndim >= 2 and math.prod(weight.shape[:-2]) == 1
    call.require(good, f"the weight is a matrix, up to leading dims of size 1, but got {describe(weight)}")
    return lax.reshape(weight, weight.shape[-2:])


@OPS.define("embedding", traits=[Trait.MOVES])
def _embedding(call: Call) -> jax.Array:
    ids, weight = vary_together(*call.operands)
    table = _as_matrix(call, weight)
    call.require(table.shape[0] > 0, f"the weight {describe(weight)} has no row")
    return jnp.take(table, ids.astype(jnp.int32), axis=0, mode="clip")


@OPS.define("embedding_backward")
def _embedding_backward(call: Call) -> jax.Array:
    ids, weight, gradient = vary_together(*call.operands)
    table = _as_matrix(call, weight)
    width = table.shape[1]
    rule = f"the gradient has one row of {width} per id of {describe(ids)}, but got {describe(gradient)}"
    good = gradient.ndim > 0 and gradient.shape[-1] == width and gradient.size == ids.size * width
    call.require(good, rule)
    flat = lax.reshape(ids.astype(jnp.int32), (ids.size,))
    rows = lax.reshape(gradient, (ids.size, width)).astype(weight.dtype)
    return lax.reshape(lax.full_like(table, 0).at[flat].add(rows), weight.shape)


# --- caches ----------------------------------------------------------------------------------------------------------


def _check_cache(call: Call, cache: jax.Array, new: jax.Array, batch: int = 0) -> None:
    """Checks a cache and an input, whose dim `batch` counts the sequences that it writes to."""
    call.check_rank(cache, 4, "the cache (batch, heads, sequence, head size)")
    call.check_rank(new, 4, "the input (batch, heads, sequence, head size)")
    heads, width = cache.shape[1], cache.shape[3]
    rule = f"the cache {describe(cache)} and the input {describe(new)} differ in heads, head size or element type"
    call.require((new.shape[1], new.shape[3], new.dtype) == (heads, width, cache.dtype), rule)
    last = call["batch_offset"] + new.shape[batch]
    fits = call["batch_offset"] >= 0 and last <= cache.shape[0]
    call.require(fits, f"batch {call['batch_offset']} to {last} is outside the cache's {cache.shape[0]}")
    fits = batch == 2 or new.shape[2] <= cache.shape[2]
    call.require(fits, f"an input of length {new.shape[2]} does not fit the cache's {cache.shape[2]}")


def _update(cache: jax.Array, new: jax.Array, at: Sequence[int | jax.Array]) -> jax.Array:
    cache, new = vary_together(cache, new)
    # By default, JAX's own function would count a negative index from the end.
    return lax.dynamic_update_slice(cache, new, at, allow_negative_indices=False)


def _fill_cache(call: Call) -> jax.Array:
    cache, new = call.operands
    _check_cache(call, cache, new)
    return _update(cache, new, (call["batch_offset"], 0, 0, 0))


def _update_cache(call: Call) -> jax.Array:
    """Sets `cache[batch_offset + b, h, update_index] = input[0, h, b]`.

    As in upstream's verifier (tt-mlir 19c86fca, lib/Dialect/TTIR/IR/TTIROps.cpp) and golden function
    (tools/golden/mapping.py), the input is (1, heads, sequences of the batch, head size).
    """
    cache, new, index = vary_together(*call.operands)
    call.check_rank(new, 4, "the input (1, heads, batch, head size)")
    one = new.shape[0] == 1
    call.require(one, f"the input is (1, heads, batch, head size), but {describe(new)} has {new.shape[0]} in dim 0")
    _check_cache(call, cache, new, batch=2)
    return _update_position(call, cache, jnp.swapaxes(new, 0, 2), index)


def _update_first(call: Call) -> jax.Array:
    cache, new, index = vary_together(*call.operands)
    if new.ndim == 4 and new.shape[0] == 1 and new.shape[2] > 1:
        return _update_cache(call)
    _check_cache(call, cache, new)
    call.require(new.shape[2] == 1, f"the input has one position, but {describe(new)} has {new.shape[2]}")
    return _update_position(call, cache, new, index)


def _update_position(call: Call, cache: jax.Array, new: jax.Array, index: jax.Array) -> jax.Array:
    call.require(index.size == 1, f"update_index is one number, but got {describe(index)}")
    at, zero = lax.reshape(index, ()).astype(jnp.int32), jnp.int32(0)
    return _update(cache, new, list(vary_together(jnp.int32(call["batch_offset"]), zero, at, zero)))


_OFFSET = "batch_offset: i32 = 0"
_FILL_WITH_RESULT = OpDef("ttir", "fill_cache", (2, 2), attributes_of(_OFFSET), _fill_cache)
_UPDATE_FORMER = OpDef("ttir", "update_cache", (3, 3), attributes_of(_OFFSET), _update_first)
"""With the cache as a result, and its batch in the input's first dim or, as in upstream's verifier, in its third."""

OPS.define("fill_cache", former=_FILL_WITH_RESULT)(_fill_cache)
OPS.define("update_cache", traits=[Trait.DECOMPOSED_FOR_TTNN], former=_UPDATE_FORMER)(_update_cache)


_TRAITS = (Trait.NOT_UPSTREAM, Trait.LATER)


def _flat_rows(call: Call, x: jax.Array) -> jax.Array:
    """Returns the data as `[batch, rows, columns]`."""
    call.require(x.ndim > 1, f"the data are (batch, rows, ...), but got {describe(x)}")
    count = math.prod(call["sizes"])
    have = math.prod(x.shape[1:]) if call["column"] else x.shape[1]
    call.require(count == have, f"sizes = {list(call['sizes'])} are {count} rows, the data {describe(x)}")
    return lax.reshape(x, (x.shape[0], count, 1 if call["column"] else math.prod(x.shape[2:])))


def _positions(call: Call, rows: jax.Array, starts: jax.Array, *, clamps: bool) -> tuple[jax.Array, jax.Array]:
    """Returns the numbers of the rows, `[batch, count * windows]`, and whether each exists."""
    sizes, windows = call["sizes"], call["windows"]
    call.check_rank(starts, 3, "the starts (batch, dims, count)")
    rule = f"sizes = {list(sizes)}, windows = {list(windows)} and the dims of the starts {describe(starts)} are alike"
    call.require(len(sizes) == len(windows) == starts.shape[1], rule)
    call.require(is_integer(starts), f"the starts are integers, but got {describe(starts)}")
    good = starts.shape[0] in (1, rows.shape[0]) and all(0 < w <= n for w, n in zip(windows, sizes, strict=True))
    call.require(good, f"windows = {list(windows)} and the starts {describe(starts)} do not fit the rows")
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
    shape = (rows.shape[0], starts.shape[2] * math.prod(windows))
    return _spread(place, shape), _spread(inside, shape)


def _offsets(windows: Shape) -> Array:
    """Returns the places in a window, per dim, row-major."""
    return cast("Any", np.indices(windows, np.int32)).reshape(len(windows), -1)


def _spread(x: jax.Array, shape: tuple[int, int]) -> jax.Array:
    return jnp.broadcast_to(x.reshape(x.shape[0], -1), shape)


@OPS.define("rows_gather", traits=[*_TRAITS, Trait.MOVES])
def _rows_gather(call: Call) -> jax.Array:
    """Gathers rows; a start out of range is clamped, or gives zeros with `fill_out_of_bounds`."""
    x, starts = vary_together(*call.operands)
    rows = _flat_rows(call, x)
    place, inside = _positions(call, rows, starts, clamps=not call["fill_out_of_bounds"])
    taken = jnp.take_along_axis(rows, place[:, :, None], 1, mode="clip")
    if call["fill_out_of_bounds"]:
        taken = jnp.where(inside[:, :, None], taken, lax.full_like(taken, 0))
    return lax.reshape(taken, _rows_shape(call, x, place))


def _rows_shape(call: Call, x: jax.Array, place: jax.Array) -> tuple[int, ...]:
    """Returns the shape of the rows that are read or written."""
    return place.shape if call["column"] else (*place.shape, *x.shape[2:])


@OPS.define("rows_scatter", traits=_TRAITS)
def _rows_scatter(call: Call) -> jax.Array:
    """Writes rows, or combines them with the old ones; rows out of range are left out."""
    x, starts, new = vary_together(*call.operands)
    rows = _flat_rows(call, x)
    place, inside = _positions(call, rows, starts, clamps=False)
    want = _rows_shape(call, x, place)
    good = new.shape == want and new.dtype == x.dtype
    call.require(good, f"the rows that are written are {x.dtype}{list(want)}, but got {describe(new)}")
    new = lax.reshape(new, (*place.shape, rows.shape[2]))
    batch = lax.broadcasted_iota(jnp.int32, place.shape, 0)
    at = rows.at[vary_together(batch, jnp.where(inside, place, rows.shape[1]))]
    kinds = {"invalid": at.set, "sum": at.add, "prod": at.multiply, "max": at.max, "min": at.min}
    if call["reduce"] not in kinds:
        raise call.rule_error(f"reduce is {' or '.join(kinds)}, got {call['reduce']!r}")
    return lax.reshape(kinds[call["reduce"]](new, mode="drop"), x.shape)
