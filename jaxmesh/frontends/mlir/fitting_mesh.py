"""The mesh that fits a function of TTIR whose file names none, as far as its ops fix the axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op
from jaxmesh.errors import VerifyError
from jaxmesh.frontends.mlir.text import Text

_GATHERED = {
    f"{dialect}.{name}": dim
    for dialect in ("ttir", "ttnn")
    for name, dim in (("all_gather", "all_gather_dim"), ("reduce_scatter", "scatter_dim"), ("mesh_partition", "dim"))
}
"""Collectives that change the size of a dim by that of their mesh axis, with the attribute that names the dim."""
_RANK = 2
"""The axes of Tenstorrent's meshes."""


def fitting_mesh(text: Text) -> tuple[int, ...] | None:
    """Returns the axis sizes that the mesh_shards and collectives of a function fix; None if they fix none.

    An axis is fixed by a dim that is split over it alone, or that a collective gathers or scatters. An axis along which
    all values are copies has 1 device, unless a collective names it. Without a mesh_shard there are two axes.

    Raises:
      VerifyError: two ops fix one axis differently.
    """
    ops = text.program.ops
    shards = [op for op in ops if op.name == "ttir.mesh_shard"]
    # Of a copy the dims mean nothing, where others tell how many axes there are.
    ranks = {len(_numbers(op, "shard_dims")) for op in [op for op in shards if _splits(op)] or shards}
    if len(ranks) > 1:
        return None
    fixed: dict[int, tuple[int, int]] = {}
    open_axes: set[int] = set()
    for number, op in enumerate(ops):
        for axis, size in _sizes(op, text):
            if size is None:
                open_axes.add(axis)
                continue
            before, first = fixed.setdefault(axis, (size, number))
            if before != size:
                raise VerifyError(
                    f"line {text.lines[number]}: {text.names[number]} takes mesh axis {axis} to be of size {size}, but "
                    f"{text.names[first]} in line {text.lines[first]} of size {before}; correct one op."
                )
    rank = min(ranks, default=_RANK if fixed else 0)
    if not rank or open_axes - fixed.keys() or any(axis >= rank for axis in fixed):
        return None
    return tuple(fixed[axis][0] if axis in fixed else 1 for axis in range(rank))


def _splits(op: Op) -> bool:
    return op.name == "ttir.mesh_shard" and op.attributes.get("shard_type") == "devices"


def _sizes(op: Op, text: Text) -> Iterator[tuple[int, int | None]]:
    """Yields the mesh axes that an op names, each with the size that the op fixes; None if it fixes none."""
    attributes = op.attributes
    if _splits(op):
        dims, counts = (_numbers(op, name) for name in ("shard_dims", "shard_shape"))
        for axis, dim in enumerate(dims):
            if dim >= 0:
                yield axis, 1 if dim >= len(counts) else counts[dim] if dims.count(dim) == 1 else None
    elif op.name != "ttir.mesh_shard" and has_trait(op.name, Trait.COLLECTIVE):
        dim, axis = attributes.get(_GATHERED.get(op.name, "")), attributes.get("cluster_axis", 0)
        if isinstance(axis, int):
            yield axis, _ratio(op, text, dim) if isinstance(dim, int) else None


def _numbers(op: Op, name: str) -> tuple[int, ...]:
    """Returns an attribute of whole numbers; empty if it has another type, which verification names later."""
    found: Any = op.attributes.get(name)
    numbers = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else ()
    return numbers if all(isinstance(n, int) for n in numbers) else ()


def _ratio(op: Op, text: Text, dim: int) -> int | None:
    """Returns by how much a dim grows or shrinks."""
    operand, result = ([text.program.types[v].shape for v in values[:1]] for values in (op.used, op.results))
    if not operand or not result or not -len(operand[0]) <= dim < len(operand[0]):
        return None
    small, large = sorted((operand[0][dim], result[0][dim]))
    return large // small if small and not large % small else None
