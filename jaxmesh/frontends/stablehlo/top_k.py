"""The largest values along a dim of which each device has a part: each picks its own, and all pick among those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.frontends.stablehlo.call import Program, Whole
from jaxmesh.frontends.stablehlo.shardings import axes_of, count
from jaxmesh.frontends.stablehlo.values import Sharded, all_gather, axis_position

_lax: Any = jax.lax
_jnp: Any = jax.numpy
Pick = Callable[[Any, int, int], Sequence[Any]]
"""Returns the `k` largest values along a dim, and their places, of an array."""


def split_top_k(program: Program, op: Any, k: int, dim: int, pick: Pick, kept: Sequence[int] = (0, 1)) -> list[Sharded]:
    """Performs a top-k on shards.

    Of equal values the first is taken, in a part and among the parts, which are in the order of the dim.
    `kept` are the results that the op has, of the values and their places.
    """
    x, wanted = program.settle(program.env[op.operands[0]]), program.result_shardings(op)
    dim %= len(x.sharding)
    others = [axes for d, axes in enumerate(wanted[0]) if d != dim]
    axes = tuple(a for a in x.sharding[dim] if a not in axes_of(tuple(others)))
    (kind,) = program.types_of(op.operands)
    size = kind.shape[dim] // count(axes, program.sizes)
    axes = axes if k < size else ()
    split = tuple(axes if d == dim else row for d, row in enumerate(wanted[0]))
    whole = tuple(() if d == dim else row for d, row in enumerate(wanted[0]))
    why = f"for {op.name}"
    values, places = pick(program.reshard(x, split, why), k, dim)
    if axes:
        program.splits = True
        program.decisions.collective("all_gather", axes, f"the {k} largest of each part of dim {dim}, {why}")
        places = places + (axis_position(axes, program.sizes) * np.int32(size)).astype(places.dtype)
        for axis in reversed(axes):
            values, places = all_gather(values, axis, dim), all_gather(places, axis, dim)
        values, among = pick(values, k, dim)
        places = _jnp.take_along_axis(places, among, dim)
    made = [Sharded((values, places)[i], whole) for i in kept]
    return [Sharded(program.reshard(y, w, f"of {op.name}"), w) for y, w in zip(made, wanted, strict=True)]


def _top_k(program: Program, op: Any) -> list[Sharded]:
    def pick(x: Any, k: int, dim: int) -> Sequence[Any]:
        return _lax.top_k(x, k)

    return split_top_k(program, op, int(program.read(op.attributes["k"])), -1, pick)


OPS: dict[str, Whole] = {"chlo.top_k": _top_k}
