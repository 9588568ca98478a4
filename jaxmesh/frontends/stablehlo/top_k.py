"""The largest values along a sharded dim: each device picks candidates from its part, and all pick among the
candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxmesh.frontends.stablehlo.call import ImportContext, Whole
from jaxmesh.frontends.stablehlo.shardings import axes_of, count
from jaxmesh.frontends.stablehlo.values import Sharded, all_gather, axis_position

_lax: Any = jax.lax
_jnp: Any = jax.numpy
Pick = Callable[[Any, int, int], Sequence[Any]]
"""A function that returns the `k` largest values of an array along a dim, and their indices."""


def split_top_k(
    program: ImportContext, op: Any, k: int, dim: int, pick: Pick, kept: Sequence[int] = (0, 1)
) -> list[Sharded]:
    """Performs a top-k on shards.

    Equal values keep their order, in a part and among the parts, which are in the order of the dim.
    `kept` selects the results of the op: 0 the values, 1 their indices.
    """
    x, wanted = program.settle(program.env[op.operands[0]]), program.result_shardings(op)
    dim %= len(x.sharding)
    others = [axes for d, axes in enumerate(wanted[0]) if d != dim]
    axes = tuple(a for a in x.sharding[dim] if a not in axes_of(tuple(others)))
    (operand_type,) = program.types_of(op.operands)
    size = operand_type.shape[dim] // count(axes, program.sizes)
    axes = axes if k < size else ()
    split = tuple(axes if d == dim else dim_axes for d, dim_axes in enumerate(wanted[0]))
    whole = tuple(() if d == dim else dim_axes for d, dim_axes in enumerate(wanted[0]))
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
    outs = [Sharded((values, places)[i], whole) for i in kept]
    return [Sharded(program.reshard(y, w, f"of {op.name}"), w) for y, w in zip(outs, wanted, strict=True)]


def _top_k(program: ImportContext, op: Any) -> list[Sharded]:
    def pick(x: Any, k: int, dim: int) -> Sequence[Any]:
        return _lax.top_k(x, k)

    return split_top_k(program, op, int(program.read(op.attributes["k"])), -1, pick)


OPS: dict[str, Whole] = {"chlo.top_k": _top_k}
