"""Ops that move or repeat elements: reshapes, transposes, slices, pads."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxmesh.frontends.jax.retype import join_axes, spread
from jaxmesh.frontends.stablehlo.call import OpFamily, ShardedCall
from jaxmesh.frontends.stablehlo.shardings import Sharding, count
from jaxmesh.frontends.stablehlo.values import axis_position

OPS = OpFamily()
_lax: Any = jax.lax


@OPS.add("stablehlo.reshape")
def _reshape(call: ShardedCall) -> Any:
    return _lax.reshape(call.operands[0], call.results[0].shape)


@OPS.add("stablehlo.transpose")
def _transpose(call: ShardedCall) -> Any:
    return _lax.transpose(call.operands[0], call["permutation"])


@OPS.add("stablehlo.broadcast_in_dim")
def _broadcast(call: ShardedCall) -> Any:
    (x,), (result,) = call.operands, call.results
    if x.shape == result.shape:
        return x
    return _lax.broadcast_in_dim(x, result.shape, call["broadcast_dimensions"])


@OPS.add("stablehlo.concatenate")
def _concatenate(call: ShardedCall) -> Any:
    axes = join_axes(call.operands)
    return _lax.concatenate([spread(x, axes) for x in call.operands], call["dimension"])


def lies_in_own_shards(whole: int, sliced: int, start: int, stride: int, parts: int) -> bool:
    """Returns True if each part of a sliced dim lies in the same part of the operand's dim.

    >>> lies_in_own_shards(whole=8, sliced=6, start=1, stride=1, parts=2)  # rows 1 to 3 of 0 to 3, 4 to 6 of 4 to 7
    True
    >>> lies_in_own_shards(whole=8, sliced=4, start=0, stride=1, parts=2)  # rows 2 and 3 are not in 4 to 7
    False
    """
    if not sliced or whole % parts or sliced % parts:
        return False
    local, own = whole // parts, sliced // parts
    last = stride * (own - 1)
    # The distance from the start of the shard is linear in its number, so checking the first and the last shard
    # suffices.
    starts = (start + i * (stride * own - local) for i in (0, parts - 1))
    return all(s >= 0 and s + last < local for s in starts)


def leading_own_axes(
    extent: tuple[int, int, int, int], axes: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Returns the most leading axes over whose shards a slice lies in its own shards; see `lies_in_own_shards`."""
    fits = (n for n in range(len(axes), 0, -1) if lies_in_own_shards(*extent, count(axes[:n], sizes)))
    return axes[: next(fits, 0)]


def split_slice(op: Any, wanted: Sharding, sizes: Mapping[str, int], read: Any) -> Sharding:
    """Returns the sharding of a slice and its operand: `wanted`, for dims whose shards need no data of other shards."""
    shape, sliced = op.operands[0].type.shape, op.results[0].type.shape
    starts, strides = read(op.attributes["start_indices"]), read(op.attributes["strides"])

    def kept(dim: int, axes: tuple[str, ...]) -> tuple[str, ...]:
        return leading_own_axes((shape[dim], sliced[dim], int(starts[dim]), int(strides[dim])), axes, sizes)

    return tuple(kept(d, axes) for d, axes in enumerate(wanted))


@OPS.add("stablehlo.slice")
def _slice(call: ShardedCall) -> Any:
    (x,), (result,) = call.operands, call.results
    starts, limits, strides = ([int(n) for n in call[k]] for k in ("start_indices", "limit_indices", "strides"))
    for d, axes in enumerate(call.shardings[0]):
        if not axes:
            continue
        length = strides[d] * (result.shape[d] - 1) + 1
        shift = strides[d] * result.shape[d] - x.shape[d]
        if shift:
            x = _device_slice(x, axis_position(axes, call.sizes) * np.int32(shift) + np.int32(starts[d]), length, d)
            starts[d] = 0
        limits[d] = starts[d] + length
    return _lax.slice(x, starts, limits, strides)


def _device_slice(x: Any, start: Any, length: int, dim: int) -> Any:
    """Returns a slice of a shard with a start that differs between devices."""
    axes = join_axes([x, start])
    starts = [spread(start, axes) if d == dim else np.int32(0) for d in range(x.ndim)]
    sizes = [length if d == dim else n for d, n in enumerate(x.shape)]
    return _lax.dynamic_slice(spread(x, axes), starts, sizes, allow_negative_indices=False)


def _paddings(op: Any, read: Any) -> list[tuple[int, int, int]]:
    """Returns the low, high and interior padding of each dim."""
    names = "edge_padding_low", "edge_padding_high", "interior_padding"
    return [(int(a), int(b), int(c)) for a, b, c in zip(*[read(op.attributes[n]) for n in names], strict=True)]


def split_pad(op: Any, wanted: Sharding, sizes: Mapping[str, int], read: Any) -> Sharding:
    """Returns the sharding of a padded value and its operand: `wanted`, for dims whose shards need no other shard.

    A slice with the interior padding as its stride takes the operand from the padded value.
    """
    shape, padded, paddings = op.operands[0].type.shape, op.results[0].type.shape, _paddings(op, read)

    def kept(dim: int, axes: tuple[str, ...]) -> tuple[str, ...]:
        low, high, interior = paddings[dim]
        fits = low >= 0 and high >= 0
        return leading_own_axes((padded[dim], shape[dim], low, interior + 1), axes, sizes) if fits else ()

    return tuple(kept(d, axes) for d, axes in enumerate(wanted))


@OPS.add("stablehlo.pad")
def _pad(call: ShardedCall) -> Any:
    (x, value), (result,), config = call.operands, call.results, _paddings(call.op, call.read)
    starts: dict[int, Any] = {}
    for d, axes in enumerate(call.shardings[0]):
        if not axes:
            continue
        # The operand's shard begins at `low` in the first shard of the result, and `shift` later in each next one.
        low, _, interior = config[d]
        filled = x.shape[d] + interior * max(x.shape[d] - 1, 0)
        shift, parts = x.shape[d] * (interior + 1) - result.shape[d], count(axes, call.sizes)
        most = max(low, low + shift * (parts - 1))
        config[d] = most, max(result.shape[d] - filled, 0), interior
        if shift:
            starts[d] = np.int32(most - low) - axis_position(axes, call.sizes) * np.int32(shift)
        else:
            config[d] = low, result.shape[d] - filled - low, interior
    axes = join_axes(call.operands)
    x = _lax.pad(spread(x, axes), spread(value, axes), config)
    for d, start in starts.items():
        x = _device_slice(x, start, result.shape[d], d)
    return x


@OPS.add("stablehlo.reverse")
def _reverse(call: ShardedCall) -> Any:
    return _lax.rev(call.operands[0], call["dimensions"])


@OPS.add("stablehlo.dynamic_slice")
def _dynamic_slice(call: ShardedCall) -> Any:
    x, *starts = call.operands
    sizes = [n if axes else k for k, n, axes in zip(call["slice_sizes"], x.shape, call.shardings[0], strict=True)]
    axes = join_axes(call.operands)
    starts = [spread(s, axes) for s in starts]
    return _lax.dynamic_slice(spread(x, axes), starts, sizes, allow_negative_indices=False)


def _clamp_start(start: Any, most: int) -> Any:
    """Returns the start of an update as StableHLO clamps it."""
    if not most:
        return _lax.full_like(start, 0)
    limits = [np.asarray(n, start.dtype) for n in (0, min(most, np.iinfo(start.dtype).max))]
    return _lax.clamp(limits[0], start, limits[1])


@OPS.add("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(call: ShardedCall) -> Any:
    x, new, *starts = call.operands
    whole, updated, *_ = call.shapes
    axes = join_axes(call.operands)
    starts = [spread(_clamp_start(s, n - k), axes) for s, n, k in zip(starts, whole, updated, strict=True)]
    x, new = spread(x, axes), spread(new, axes)
    masks: list[tuple[int, Any]] = []
    for d in [d for d, a in enumerate(call.shardings[0]) if a and not call.shardings[1][d]]:
        first = axis_position(call.shardings[0][d], call.sizes) * np.int32(x.shape[d])
        if updated[d] == whole[d]:
            # The update is whole: take this device's part.
            new = _device_slice(new, first, x.shape[d], d)
        else:
            new, inside = _own_part(x, new, starts[d], first, d)
            masks.append((d, inside))
        starts[d] = _lax.full_like(starts[d], 0)
    if masks:
        inside = functools.reduce(_lax.bitwise_and, [_lax.broadcast_in_dim(m, new.shape, (d,)) for d, m in masks])
        old = _lax.dynamic_slice(x, starts, new.shape, allow_negative_indices=False)
        new = _lax.select(inside, new, old)
    return _lax.dynamic_update_slice(x, new, starts, allow_negative_indices=False)


def _own_part(x: Any, new: Any, start: Any, first: Any, dim: int) -> tuple[Any, Any]:
    """Returns the part of an update in this device's part of a sharded dim, and a mask of the updated positions."""
    local, length = x.shape[dim], new.shape[dim]
    relative = _lax.iota(np.int32, local) + first - _lax.convert_element_type(start, np.int32)
    inside = (relative >= 0) & (relative < length)
    axes = join_axes([inside, new])
    places = spread(_lax.clamp(np.int32(0), relative, np.int32(length - 1)), axes)
    return jax.numpy.take(spread(new, axes), places, axis=dim, mode="clip"), spread(inside, axes)
