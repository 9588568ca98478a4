"""The mesh that fits a function of TTIR whose file names none, as far as its ops fix the axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.errors import VerifyError
from jaxmesh.frontends.mlir.decode import Body, Step

_GATHERED = {
    f"{dialect}.{name}": dim
    for dialect in ("ttir", "ttnn")
    for name, dim in (("all_gather", "all_gather_dim"), ("reduce_scatter", "scatter_dim"), ("mesh_partition", "dim"))
}
"""Collectives that change the size of a dim by that of their mesh axis, with the attribute that names the dim."""
_RANK = 2
"""The axes of Tenstorrent's meshes."""


def fitting_mesh(body: Body) -> tuple[int, ...] | None:
    """Returns the axis sizes that the mesh_shards and collectives of a function fix; None if they fix none.

    An axis is fixed by a dim that is split over it alone, or that a collective gathers or scatters. One over which all
    values are copies has 1 device, if no collective names it. Without a mesh_shard there are two axes.

    Raises:
      VerifyError: two ops fix one axis differently.
    """
    steps = list(_steps(body))
    shards = [s for s, _ in steps if s.op == "ttir.mesh_shard"]
    # Of a copy the dims mean nothing, where others say how many axes there are.
    ranks = {len(s.attributes["shard_dims"]) for s in [s for s in shards if _splits(s)] or shards}
    if len(ranks) > 1:
        return None
    found: dict[int, tuple[int, Step]] = {}
    open_axes: set[int] = set()
    for step, operand in steps:
        for axis, size in _sizes(step, operand):
            if size is None:
                open_axes.add(axis)
                continue
            before, at = found.setdefault(axis, (size, step))
            if before != size:
                raise VerifyError(
                    f"line {step.line}: {step.op} takes mesh axis {axis} to be of size {size}, but {at.op} in line "
                    f"{at.line} of size {before}; correct one of them."
                )
    rank = min(ranks, default=_RANK if found else 0)
    if not rank or open_axes - found.keys() or any(axis >= rank for axis in found):
        return None
    return tuple(found[axis][0] if axis in found else 1 for axis in range(rank))


def _steps(body: Body) -> Iterator[tuple[Step, tuple[int, ...]]]:
    """Yields the ops of a function and of those that it calls, each with the shape of its first operand."""
    shapes: dict[int, tuple[int, ...]] = {i: tuple(a.shape) for i, a in enumerate(body.arguments)}
    for step in body.steps:
        yield step, shapes.get(step.operands[0], ()) if step.operands else ()
        shapes.update((v, tuple(t.shape)) for v, t in zip(step.results, step.types, strict=False))
        if step.callee is not None:
            yield from _steps(step.callee)


def _splits(step: Step) -> bool:
    return step.op == "ttir.mesh_shard" and step.attributes.get("shard_type") == "devices"


def _sizes(step: Step, operand: tuple[int, ...]) -> Iterator[tuple[int, int | None]]:
    """Yields the mesh axes that an op speaks of, each with the size that it takes it to have; None if it fixes none."""
    attributes: dict[str, Any] = step.attributes
    if _splits(step):
        dims, counts = (cast("tuple[int, ...]", attributes[name]) for name in ("shard_dims", "shard_shape"))
        for axis, dim in enumerate(dims):
            if dim >= 0:
                yield axis, 1 if dim >= len(counts) else counts[dim] if dims.count(dim) == 1 else None
    elif step.op != "ttir.mesh_shard" and has_trait(step.op, Trait.COLLECTIVE):
        dim = attributes.get(_GATHERED.get(step.op, ""))
        yield int(attributes.get("cluster_axis", 0)), _ratio(step, operand, dim) if isinstance(dim, int) else None


def _ratio(step: Step, operand: tuple[int, ...], dim: int) -> int | None:
    """Returns by how much a dim grows or shrinks."""
    if not step.types or not -len(operand) <= dim < len(operand):
        return None
    small, large = sorted((operand[dim], int(step.types[0].shape[dim])))
    return large // small if small and not large % small else None
