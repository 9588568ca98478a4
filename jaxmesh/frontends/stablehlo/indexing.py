"""Gathers and scatters, including sharded dims: a mask, and for a gather a sum."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from jaxmesh.dialects.varying import vary_alike
from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.jax.retype import join_axes, spread
from jaxmesh.frontends.stablehlo.call import OpFamily, ShardedCall, sums
from jaxmesh.frontends.stablehlo.reductions import body_ops, kind_of, look_through, returned
from jaxmesh.frontends.stablehlo.values import axis_position, reduce_over
from jaxmesh.jaxprs.untyped import lax

OPS = OpFamily()
_CLIP = lax.GatherScatterMode.CLIP
_DROP = lax.GatherScatterMode.FILL_OR_DROP


def _indices(indices: jax.Array, index_dim: int) -> jax.Array:
    """Returns signed indices of at least 32 bits with their index vectors along the last dim, as in JAX."""
    dtype = np.dtype(np.int64 if indices.dtype.itemsize == 8 else np.int32)
    if indices.dtype.kind == "u" and indices.dtype.itemsize == dtype.itemsize:
        # Beyond the end stays beyond the end.
        indices = lax.min(indices, lax.full_like(indices, np.iinfo(dtype).max))
    signed = lax.convert_element_type(indices, dtype)
    return lax.expand_dims(signed, (index_dim,)) if index_dim == signed.ndim else jnp.moveaxis(signed, index_dim, -1)


# --- gather ----------------------------------------------------------------------------------------------------------


@OPS.add("stablehlo.gather", sums)
def _gather(call: ShardedCall) -> jax.Array:
    dims = hlo.GatherDimensionNumbers(call.op.attributes["dimension_numbers"])
    x, indices = call.operands
    indices = _indices(indices, dims.index_vector_dim)
    start_map, offset_dims, whole = dims.start_index_map, dims.offset_dims, call.shapes[0]
    sizes = [n if k == full else k for n, k, full in zip(x.shape, call["slice_sizes"], whole, strict=True)]
    indices = _clamp_windows(indices, start_map, call["slice_sizes"], whole)
    indexed = [d for d in start_map if call.shardings[0][d] and call["slice_sizes"][d] != whole[d]]
    inside: jax.Array | None = None
    for d in indexed:
        indices, here = _move_to_shard(call, indices, start_map.index(d), d, x.shape[d])
        inside = here if inside is None else inside & here
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(offset_dims),
        collapsed_slice_dims=tuple(dims.collapsed_slice_dims),
        start_index_map=tuple(start_map),
        operand_batching_dims=tuple(dims.operand_batching_dims),
        start_indices_batching_dims=tuple(_move_dims(dims.start_indices_batching_dims, dims.index_vector_dim)),
    )
    # Tenstorrent's partitioner marks a gather of each device's own rows: the others are zeros.
    mode = _DROP if "tt.fill_out_of_bounds" in call.op.attributes else _CLIP
    gathered = lax.gather(*vary_alike(x, indices), numbers, tuple(sizes), mode=mode, fill_value=0)
    if inside is None:
        return gathered
    gathered, inside = vary_alike(gathered, inside)
    batch = [i for i in range(gathered.ndim) if i not in offset_dims]
    mask = lax.broadcast_in_dim(inside, gathered.shape, batch)
    return lax.select(mask, gathered, lax.full_like(gathered, 0))


def _clamp_windows(indices: jax.Array, dims: Sequence[int], sizes: Sequence[int], whole: Sequence[int]) -> jax.Array:
    """Returns indices with the starts of windows clamped: XLA clamps a slice of a window by the size of the slice."""
    if not any(1 < sizes[d] < whole[d] for d in dims):
        return indices
    largest = jnp.iinfo(indices.dtype).max
    ends = np.array([min(whole[d] - sizes[d], largest) for d in dims], indices.dtype)
    ends = lax.broadcast_in_dim(ends, indices.shape, (indices.ndim - 1,))
    return lax.clamp(np.zeros((), indices.dtype), indices, spread(ends, join_axes([indices])))


def _move_dims(dims: Sequence[int], index_vector_dim: int) -> list[int]:
    return [d if d < index_vector_dim else d - 1 for d in dims]


def _move_to_shard(
    call: ShardedCall, indices: jax.Array, column: int, dim: int, local: int
) -> tuple[jax.Array, jax.Array]:
    """Returns indices into this device's part of a dim, and a mask of the indices inside it."""
    axes, whole = call.shardings[0][dim], call.shapes[0][dim]
    column_indices = lax.index_in_dim(indices, column, indices.ndim - 1, keepdims=False)
    # A gather clamps its indices to the global dim.
    low, high = lax.full_like(column_indices, 0), lax.full_like(column_indices, whole - 1)
    column_indices = lax.clamp(low, column_indices, high)
    first = axis_position(axes, call.program.sizes) * np.int32(local)
    column_indices = spread(column_indices, axes) - first.astype(column_indices.dtype)
    inside = (column_indices >= 0) & (column_indices < local)
    columns = [
        column_indices if i == column else spread(lax.index_in_dim(indices, i, indices.ndim - 1, keepdims=False), axes)
        for i in range(indices.shape[-1])
    ]
    return jnp.stack(vary_alike(*columns), -1), inside


# --- scatter ---------------------------------------------------------------------------------------------------------

_SCATTERS = {"sum": lax.scatter_add, "prod": lax.scatter_mul, "min": lax.scatter_min, "max": lax.scatter_max,
             "or": lax.scatter_max, "and": lax.scatter_min}  # fmt: skip


def scatter_reduces(op: ir.Operation) -> bool:
    """Returns True for a scatter of partial updates that can be summed."""
    return op.name == "stablehlo.scatter" and len(op.results) == 1 and kind_of(op) == "sum"


@OPS.add("stablehlo.scatter")
def _scatter(call: ShardedCall) -> jax.Array:
    if len(call.operands) != 3:
        raise UnsupportedError("a scatter of several operands at once; scatter them one by one.")
    x, indices, updates = call.operands
    dims = hlo.ScatterDimensionNumbers(call.op.attributes["scatter_dimension_numbers"])
    scattered = dims.scattered_dims_to_operand_dims
    index_dim, inserted = dims.index_vector_dim, set(dims.inserted_window_dims)
    indices = _indices(indices, index_dim)
    for column, d in enumerate(scattered):
        axes = call.shardings[0][d]
        if axes and d in inserted:
            # Indices into other devices' parts are out of range here, and dropped.
            first = axis_position(axes, call.program.sizes) * np.int32(x.shape[d])
            moved = np.zeros(len(scattered), np.bool_)
            moved[column] = True
            indices = spread(indices, axes)
            shift = lax.select(
                jnp.asarray(moved),
                jnp.full(len(scattered), 1, np.int32) * first,
                jnp.zeros(len(scattered), np.int32) + first * 0,
            )
            indices = indices - shift.astype(indices.dtype)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(dims.update_window_dims),
        inserted_window_dims=tuple(dims.inserted_window_dims),
        scatter_dims_to_operand_dims=tuple(scattered),
        operand_batching_dims=tuple(dims.input_batching_dims),
        scatter_indices_batching_dims=tuple(_move_dims(dims.scatter_indices_batching_dims, index_dim)),
    )
    partial = _update_axes(call, dims)
    target = lax.full_like(x, 0) if partial else x
    scattered_values = _apply(call, target, indices, updates, numbers)
    if not partial:
        return scattered_values
    call.program.decisions.collective("all_reduce", partial, "sum of updates, of which each device has a part")
    total = reduce_over(scattered_values, partial, "sum")
    return lax.add(*vary_alike(x, total))


def _update_axes(call: ShardedCall, dims: hlo.ScatterDimensionNumbers) -> list[str]:
    """Returns the mesh axes that split the updates and not the operand: each device has a part of the updates."""
    windows, batching = set(dims.update_window_dims), set(dims.scatter_indices_batching_dims)
    free = [i for i in range(len(call.shardings[2])) if i not in windows]
    index_dims = [i for i in range(len(call.shardings[1])) if i != dims.index_vector_dim]
    return [a for i, r in zip(free, index_dims, strict=True) if r not in batching for a in call.shardings[2][i]]


def _apply(
    call: ShardedCall, x: jax.Array, indices: jax.Array, updates: jax.Array, numbers: jax.lax.ScatterDimensionNumbers
) -> jax.Array:
    x, indices, updates = vary_alike(x, indices, updates)
    unique = bool(call.get("unique_indices", False))
    block, inner = call.op.regions[0].blocks[0], body_ops(call.op)
    kind = kind_of(call.op)
    if kind is not None:
        return _SCATTERS[kind](x, indices, updates, numbers, unique_indices=unique, mode=_DROP)
    (kept,) = returned(call.op)
    if not inner and kept == block.arguments[0]:
        return x
    if not inner and kept == block.arguments[1]:
        return lax.scatter(x, indices, updates, numbers, unique_indices=unique, mode=_DROP)
    if [o.name for o in inner] == ["stablehlo.subtract"] and list(map(look_through, inner[0].operands)) == [
        *block.arguments
    ]:
        return lax.scatter_add(x, indices, -updates, numbers, unique_indices=unique, mode=_DROP)
    raise UnsupportedError(
        f"a scatter whose body is {[o.name for o in inner]}; supported are sums, differences, products, minima, maxima "
        "and overwriting."
    )
