"""Ops that move or repeat elements: reshapes, transposes, slices, pads."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxmesh.frontends.jax.retype import join_axes, spread
from jaxmesh.frontends.stablehlo.call import Call, Ops

OPS = Ops()
_lax: Any = jax.lax


@OPS.add("stablehlo.reshape")
def _reshape(call: Call) -> Any:
    return _lax.reshape(call.operands[0], call.results[0].shape)


@OPS.add("stablehlo.transpose")
def _transpose(call: Call) -> Any:
    return _lax.transpose(call.operands[0], call["permutation"])


@OPS.add("stablehlo.broadcast_in_dim")
def _broadcast(call: Call) -> Any:
    (x,), (result,) = call.operands, call.results
    if x.shape == result.shape:
        return x
    return _lax.broadcast_in_dim(x, result.shape, call["broadcast_dimensions"])


@OPS.add("stablehlo.concatenate")
def _concatenate(call: Call) -> Any:
    axes = join_axes(call.operands)
    return _lax.concatenate([spread(x, axes) for x in call.operands], call["dimension"])


def _local(call: Call, starts: Any, limits: Any) -> tuple[list[int], list[int]]:
    """Returns the bounds of a slice on this device: sharded dims are taken whole."""
    split = [bool(axes) for axes in call.shardings[0]]
    shape = call.operands[0].shape
    return (
        [0 if s else b for b, s in zip(starts, split, strict=True)],
        [n if s else e for e, s, n in zip(limits, split, shape, strict=True)],
    )


@OPS.add("stablehlo.slice")
def _slice(call: Call) -> Any:
    starts, limits = _local(call, call["start_indices"], call["limit_indices"])
    return _lax.slice(call.operands[0], starts, limits, call["strides"])


@OPS.add("stablehlo.pad")
def _pad(call: Call) -> Any:
    x, value = call.operands
    names = "edge_padding_low", "edge_padding_high", "interior_padding"
    config = [tuple(int(n) for n in row) for row in zip(*[call[n] for n in names], strict=True)]
    axes = join_axes(call.operands)
    return _lax.pad(spread(x, axes), spread(value, axes), config)


@OPS.add("stablehlo.reverse")
def _reverse(call: Call) -> Any:
    return _lax.rev(call.operands[0], call["dimensions"])


@OPS.add("stablehlo.dynamic_slice")
def _dynamic_slice(call: Call) -> Any:
    x, *starts = call.operands
    sizes = [n if axes else k for k, n, axes in zip(call["slice_sizes"], x.shape, call.shardings[0], strict=True)]
    axes = join_axes(call.operands)
    return _lax.dynamic_slice(spread(x, axes), [spread(s, axes) for s in starts], sizes)


@OPS.add("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(call: Call) -> Any:
    from jaxmesh.frontends.stablehlo.values import axis_position

    x, new, *starts = call.operands
    axes = join_axes(call.operands)
    x, new, starts = spread(x, axes), spread(new, axes), [spread(s, axes) for s in starts]
    whole = call.shapes[0]
    split = [d for d, a in enumerate(call.shardings[0]) if a and not call.shardings[1][d]]
    for d in split:
        if new.shape[d] == whole[d]:
            # The update is whole: this device takes its part.
            position = axis_position(call.shardings[0][d], call.sizes)
            new = _lax.dynamic_slice_in_dim(new, position * np.int32(x.shape[d]), x.shape[d], d)
            starts[d] = _lax.full_like(starts[d], 0)
            continue
        new, inside = _own_part(call, x, new, starts[d], d)
        starts[d] = _lax.full_like(starts[d], 0)
        rest = [s if i != d else _lax.full_like(s, 0) for i, s in enumerate(starts)]
        sizes = [new.shape[i] if i != d else x.shape[d] for i in range(x.ndim)]
        old = _lax.dynamic_slice(x, rest, sizes)
        mask = _lax.broadcast_in_dim(inside, new.shape, (d,))
        new = _lax.select(mask, new, old)
    return _lax.dynamic_update_slice(x, new, starts)


def _own_part(call: Call, x: Any, new: Any, start: Any, dim: int) -> tuple[Any, Any]:
    """Returns what an update writes into this device's part of a sharded dim, and into which places of it."""
    from jaxmesh.frontends.stablehlo.values import axis_position

    local, whole, length = x.shape[dim], call.shapes[0][dim], new.shape[dim]
    start = _lax.clamp(np.int32(0), _lax.convert_element_type(start, np.int32), np.int32(whole - length))
    first = axis_position(call.shardings[0][dim], call.sizes) * np.int32(local)
    relative = _lax.iota(np.int32, local) + first - start
    inside = (relative >= 0) & (relative < length)
    axes = join_axes([inside, new])
    places = spread(_lax.clamp(np.int32(0), relative, np.int32(length - 1)), axes)
    return jax.numpy.take(spread(new, axes), places, axis=dim, mode="clip"), spread(inside, axes)
