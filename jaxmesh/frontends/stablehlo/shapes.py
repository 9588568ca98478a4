"""Ops that move or repeat elements, such as slices and pads, and ops that make values: constants and iotas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

from jaxmesh.dialects.varying import vary_alike
from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.jax.retype import join_axes, spread
from jaxmesh.frontends.mlir.attributes import Values, complex_elements
from jaxmesh.frontends.mlir.module import producer
from jaxmesh.frontends.stablehlo.call import ImportContext, OpFamily, ShardedCall, keep_op
from jaxmesh.frontends.stablehlo.elementwise import plain
from jaxmesh.frontends.stablehlo.reductions import constant_of
from jaxmesh.frontends.stablehlo.shardings import Sharding, count, local_shape, replicated
from jaxmesh.frontends.stablehlo.values import Sharded, all_gather, axis_position, perform, plan
from jaxmesh.jaxprs.untyped import lax

OPS = OpFamily()
OPS.add("stablehlo.transpose")(plain(lax.transpose, "permutation"))
OPS.add("stablehlo.reverse")(plain(lax.rev, "dimensions"))


@OPS.add("stablehlo.reshape")
def _reshape(call: ShardedCall) -> jax.Array:
    return lax.reshape(call.operands[0], call.results[0].shape)


@OPS.add("stablehlo.broadcast_in_dim")
def _broadcast(call: ShardedCall) -> jax.Array:
    (x,), (result,) = call.operands, call.results
    if x.shape == result.shape:
        return x
    return lax.broadcast_in_dim(x, result.shape, call["broadcast_dimensions"])


@OPS.add("stablehlo.concatenate")
def _concatenate(call: ShardedCall) -> jax.Array:
    return lax.concatenate(vary_alike(*call.operands), call["dimension"])


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


def split_slice(
    op: ir.Operation, wanted: Sharding, sizes: Mapping[str, int], read: Callable[[ir.Attribute], Sequence[int]]
) -> Sharding:
    """Returns the sharding of a slice and its operand: `wanted`, for dims whose shards need no data of other shards."""
    rows = zip(
        op.operands[0].type.shape,
        op.results[0].type.shape,
        map(int, read(op.attributes["start_indices"])),
        map(int, read(op.attributes["strides"])),
        strict=True,
    )
    return tuple(leading_own_axes(extent, axes, sizes) for extent, axes in zip(rows, wanted, strict=True))


@OPS.add("stablehlo.slice")
def _slice(call: ShardedCall) -> jax.Array:
    (x,), (result,) = call.operands, call.results
    starts, limits, strides = ([int(n) for n in call[k]] for k in ("start_indices", "limit_indices", "strides"))
    for d, axes in enumerate(call.shardings[0]):
        if not axes:
            continue
        length = strides[d] * (result.shape[d] - 1) + 1
        shift = strides[d] * result.shape[d] - x.shape[d]
        if shift:
            x = _device_slice(
                x, axis_position(axes, call.program.sizes) * np.int32(shift) + np.int32(starts[d]), length, d
            )
            starts[d] = 0
        limits[d] = starts[d] + length
    return lax.slice(x, starts, limits, strides)


def _device_slice(x: jax.Array, start: jax.Array, length: int, dim: int) -> jax.Array:
    """Returns a slice of a shard with a start that differs between devices."""
    x, start = vary_alike(x, start)
    starts = [start if d == dim else np.int32(0) for d in range(x.ndim)]
    sizes = [length if d == dim else n for d, n in enumerate(x.shape)]
    return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)


def _paddings(op: ir.Operation, read: Values) -> list[tuple[int, int, int]]:
    """Returns the low, high and interior padding of each dim."""
    names = "edge_padding_low", "edge_padding_high", "interior_padding"
    return [(int(a), int(b), int(c)) for a, b, c in zip(*[read(op.attributes[n]) for n in names], strict=True)]


def _split_pad(op: ir.Operation, wanted: Sharding, sizes: Mapping[str, int], read: Values) -> Sharding:
    """Returns the sharding of a padded value and its operand: `wanted`, for dims whose shards need no other shard.

    A slice with the interior padding as its stride takes the operand from the padded value.
    """
    rows = zip(op.results[0].type.shape, op.operands[0].type.shape, _paddings(op, read), wanted, strict=True)
    return tuple(leading_own_axes((n, own, low, gap + 1), axes, sizes) for n, own, (low, _, gap), axes in rows)


SPLIT = {"stablehlo.slice": split_slice, "stablehlo.pad": _split_pad}


@OPS.add("stablehlo.pad")
def _pad(call: ShardedCall) -> jax.Array:
    (x, value), (result,), config = call.operands, call.results, _paddings(call.op, call.program.read)
    starts: dict[int, jax.Array] = {}
    for d, axes in enumerate(call.shardings[0]):
        if not axes:
            continue
        # The operand's shard begins at `low` in the first shard of the result, and `shift` later in each next one.
        low, _, interior = config[d]
        filled = x.shape[d] + interior * max(x.shape[d] - 1, 0)
        shift, parts = x.shape[d] * (interior + 1) - result.shape[d], count(axes, call.program.sizes)
        most = max(low, low + shift * (parts - 1))
        config[d] = most, max(result.shape[d] - filled, 0), interior
        if shift:
            starts[d] = np.int32(most - low) - axis_position(axes, call.program.sizes) * np.int32(shift)
        else:
            config[d] = low, result.shape[d] - filled - low, interior
    x = lax.pad(*vary_alike(x, value), config)
    for d, start in starts.items():
        x = _device_slice(x, start, result.shape[d], d)
    return x


@OPS.add("stablehlo.dynamic_slice")
def _dynamic_slice(call: ShardedCall) -> jax.Array:
    x, *starts = call.operands
    cut = [n != size for n, size in zip(call.shapes[0], call["slice_sizes"], strict=True)]
    for d in [d for d, axes in enumerate(call.shardings[0]) if axes and cut[d]]:
        x, starts[d] = _exchange_slice(call, x, starts[d], d), lax.full_like(starts[d], 0)
    sizes = [k if c else n for k, n, c in zip(call["slice_sizes"], x.shape, cut, strict=True)]
    if sizes == list(x.shape):
        return x
    axes = join_axes([x, *starts])
    starts = [spread(s, axes) for s in starts]
    return lax.dynamic_slice(spread(x, axes), starts, sizes, allow_negative_indices=False)


def _exchange_slice(call: ShardedCall, x: jax.Array, start: jax.Array, dim: int) -> jax.Array:
    """Returns a slice of a split dim: of each shard the slice that lies nearest, joined; of those the rows wanted."""
    axes, size, local, whole = call.shardings[0][dim], call["slice_sizes"][dim], x.shape[dim], call.shapes[0][dim]
    start = lax.convert_element_type(_clamp_start(start, whole - size), np.int32)
    part = min(size, local)
    most = np.int32(local - part)
    nearest = lax.clamp(np.int32(0), start - axis_position(axes, call.program.sizes) * np.int32(local), most)
    x = _device_slice(x, nearest, part, dim)
    for axis in reversed(axes):
        x = all_gather(x, axis, dim)
    call.program.decisions.collective("all_gather", axes, f"each device sends its part of a slice of dim {dim}")
    if size == 1:
        return _device_slice(x, lax.div(start, np.int32(local)), 1, dim)
    rows = lax.iota(np.int32, size) + start
    owner = lax.div(rows, np.int32(local))
    begin = lax.clamp(np.int32(0), start - owner * np.int32(local), most)
    places = owner * np.int32(part - local) + rows - begin
    return jnp.take(x, places, axis=dim, mode="clip")


def _clamp_start(start: jax.Array, most: int) -> jax.Array:
    """Returns the start of an update as StableHLO clamps it."""
    if not most:
        return lax.full_like(start, 0)
    limits = [np.asarray(n, start.dtype) for n in (0, min(most, np.iinfo(start.dtype).max))]
    return lax.clamp(limits[0], start, limits[1])


@OPS.add("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(call: ShardedCall) -> jax.Array:
    x, new, *starts = call.operands
    whole, updated, *_ = call.shapes
    axes = join_axes(call.operands)
    starts = [spread(_clamp_start(s, n - k), axes) for s, n, k in zip(starts, whole, updated, strict=True)]
    x, new = spread(x, axes), spread(new, axes)
    masks: list[tuple[int, jax.Array]] = []
    for d in [d for d, a in enumerate(call.shardings[0]) if a and not call.shardings[1][d]]:
        first = axis_position(call.shardings[0][d], call.program.sizes) * np.int32(x.shape[d])
        if updated[d] == whole[d]:
            # The update is whole: take this device's part.
            new = _device_slice(new, first, x.shape[d], d)
        else:
            new, inside = _own_part(x, new, starts[d], first, d)
            masks.append((d, inside))
        starts[d] = lax.full_like(starts[d], 0)
    if masks:
        inside = functools.reduce(lax.bitwise_and, [lax.broadcast_in_dim(m, new.shape, (d,)) for d, m in masks])
        old = lax.dynamic_slice(x, starts, new.shape, allow_negative_indices=False)
        new = lax.select(inside, new, old)
    return lax.dynamic_update_slice(x, new, starts, allow_negative_indices=False)


def _own_part(
    x: jax.Array, new: jax.Array, start: jax.Array, first: jax.Array, dim: int
) -> tuple[jax.Array, jax.Array]:
    """Returns the part of an update in this device's part of a sharded dim, and a mask of the updated positions."""
    local, length = x.shape[dim], new.shape[dim]
    relative = lax.iota(np.int32, local) + first - lax.convert_element_type(start, np.int32)
    inside = (relative >= 0) & (relative < length)
    places, inside, new = vary_alike(lax.clamp(np.int32(0), relative, np.int32(length - 1)), inside, new)
    return jax.numpy.take(new, places, axis=dim, mode="clip"), inside


# --- values made from nothing -----------------------------------------------------------------------------------------


def constant(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports a constant: equal on every device, or this device's slice of the elements."""
    (value_type,), (sharding,) = program.types_of(op.results), program.result_shardings(op)
    is_complex = value_type.dtype.kind == "c"
    written = complex_elements(op, value_type) if is_complex else program.read(op.attributes["value"])
    array = np.asarray(written).astype(value_type.dtype, copy=False)
    if array.ndim == 0 or value_type.size <= 1:
        number: Any = array.reshape(-1)[0:1].reshape(()).copy() if array.size else np.zeros((), value_type.dtype)

        def fill(target: Sharding) -> jax.Array:
            return lax.full(local_shape(value_type.shape, target, program.sizes), number, value_type.dtype)

        return [Sharded(fill(sharding) if value_type.shape else number, sharding, make=fill)]
    x = jnp.asarray(array.reshape(value_type.shape))

    def cut(target: Sharding) -> jax.Array:
        moves = plan(replicated(x.ndim), target, value_type.shape, program.sizes)
        return perform(x, moves, program.sizes)

    return [Sharded(cut(sharding), sharding, make=cut)]


def iota(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports an iota; along a sharded dim it starts at this device's first element."""
    (value_type,), (sharding,) = program.types_of(op.results), program.result_shardings(op)
    dim: int = program.read(op.attributes["iota_dimension"])

    def count(target: Sharding) -> jax.Array:
        local = local_shape(value_type.shape, target, program.sizes)
        if not target[dim]:
            return lax.broadcasted_iota(value_type.dtype, local, dim)
        first = axis_position(target[dim], program.sizes) * np.int32(local[dim])
        # Added as integers: a sum of numbers that are rounded already would be rounded again.
        return (lax.broadcasted_iota(np.dtype(np.int32), local, dim) + first).astype(value_type.dtype)

    return [Sharded(count(sharding), sharding, make=count)]


def dimension_size(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports the global size of a dim."""
    dim: int = program.read(op.attributes["dimension"])
    return [Sharded(lax.full((), op.operands[0].type.shape[dim], np.int32), ())]


def partition_id(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports the row-major number of this device."""
    index = axis_position(tuple(program.sizes), program.sizes)
    return [Sharded(lax.convert_element_type(index, np.uint32), ())]


def random(program: ImportContext, op: ir.Operation) -> list[Sharded]:
    """Imports unseeded random numbers, uniform between two constants, as TTIR's op `rand`."""
    (value_type,), distribution = program.types_of(op.results), str(op.attributes["rng_distribution"])
    low, high = map(_number, list(op.operands)[:2])
    if "UNIFORM" not in distribution or low is None or high is None:
        raise UnsupportedError(
            f"random numbers of the distribution {distribution[:60]}; supported are UNIFORM numbers between constants."
        )
    attributes = {"size": value_type.shape, "low": low, "high": high, "seed": 0}

    def meaning() -> jax.Array:
        numbers = jax.random.uniform(jax.random.key(0), value_type.shape, np.float32, low, high)
        return lax.convert_element_type(numbers, value_type.dtype)

    results = keep_op(program.keeps_ops, "rand", [], attributes, meaning)
    return [Sharded(y, replicated(len(value_type.shape))) for y in results]


def _number(value: ir.Value) -> float | None:
    """Returns the number of a constant, which may be converted; None for any other value."""
    while (op := producer(value, "stablehlo.convert")) is not None:
        value = op.operands[0]
    number = constant_of(value)
    return None if number is None else float(number)
