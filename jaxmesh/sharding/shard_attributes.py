"""Arithmetic between partition specs, shard attributes, and legal TTNN mapper and composer configs.

This module reads no direction: the pass chooses the plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from jax.sharding import PartitionSpec

from jaxmesh.errors import SpecError, VerifyError
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
    MeshMapperConfig,
    MeshShape,
    Placement,
    PlacementReplicate,
    PlacementShard,
)

Shape = tuple[int, ...]
Config = TypeVar("Config", MeshMapperConfig, MeshComposerConfig)


@dataclass(frozen=True, slots=True)
class ShardAttributes:
    """`shard_shape` and `shard_dims` of a `mesh_shard`, and the factors of dims that need a reshape first.

    `factors[d]` is None, or the sizes that dim d is reshaped into, most significant first and the local size (-1)
    last; the attributes then describe the reshaped tensor. `dims` is the tensor dim per mesh axis before the reshape.
    """

    shard_shape: Shape
    shard_dims: Shape
    factors: tuple[tuple[int, ...] | None, ...]
    dims: Shape

    @property
    def replicated(self) -> bool:
        """True if no dim is sharded."""
        return math.prod(self.shard_shape) == 1

    def factor_shape(self, shape: Sequence[int]) -> Shape:
        """Returns `shape` with every factored dim replaced by its factors; other dims are unchanged.

        >>> attributes_from_spec(PartitionSpec(("x", "y")), 1, {"y": 2, "x": 4}).factor_shape((16,))
        (4, 2, 2)
        """
        out: list[int] = []
        for size, factors in zip(shape, self.factors, strict=True):
            if factors is None:
                out.append(size)
            else:
                out += [*factors[:-1], size // math.prod(factors[:-1])]
        return tuple(out)

    def factor_local_shape(self, local: Sequence[int]) -> Shape:
        """Returns the local shape of the factored tensor: the factors are 1 on every device."""
        out: list[int] = []
        for size, factors in zip(local, self.factors, strict=True):
            out += [size] if factors is None else [1] * (len(factors) - 1) + [size]
        return tuple(out)


def spec_axes(spec: PartitionSpec, rank: int, sizes: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """Returns the mesh axes on each tensor dim, in the spec's order.

    Raises:
      SpecError: the spec is longer than the rank, or names an unknown axis, or an axis twice.
    """
    if spec.unreduced or spec.reduced:
        raise SpecError(
            f"the spec {spec} has unreduced or reduced axes, but mesh_shard only splits dims; leave them out, and "
            "reduce with jax.lax.psum."
        )
    entries: tuple[str | tuple[str, ...] | None, ...] = tuple(spec)
    if len(entries) > rank:
        raise SpecError(
            f"the spec {spec} has {len(entries)} entries, but the tensor has rank {rank}; a spec has at most one entry "
            "per tensor dim."
        )
    axes_of_dims: list[tuple[str, ...]] = []
    for entry in entries:
        if entry is PartitionSpec.UNCONSTRAINED:
            raise SpecError(f"the spec {spec} has an UNCONSTRAINED entry; mesh_shard needs an axis, a tuple or None.")
        axes_of_dims.append(() if entry is None else tuple(entry) if isinstance(entry, tuple) else (entry,))
    used = Counter(axis for dim_axes in axes_of_dims for axis in dim_axes)
    for axis, times in used.items():
        if axis not in sizes:
            raise SpecError(f"the spec {spec} names mesh axis {axis!r}, but the mesh has the axes {tuple(sizes)}.")
        if times > 1:
            raise SpecError(f"the spec {spec} names mesh axis {axis!r} {times} times; an axis may split one dim once.")
    return tuple(axes_of_dims) + ((),) * (rank - len(axes_of_dims))


def named_axes(spec: PartitionSpec) -> list[str]:
    """Returns the mesh axes that a spec names."""
    rows: list[Sequence[object]] = [e if isinstance(e, tuple) else (e,) for e in spec.partitions]
    return [a for row in rows for a in row if isinstance(a, str)]


def attributes_from_spec(spec: PartitionSpec, rank: int, sizes: Mapping[str, int]) -> ShardAttributes:
    """Returns the attributes of a partition spec, by upstream's rule (tt-mlir, `ShardyUtils.cpp`).

    Axes of size 1 have dim -1. Axes on one dim in mesh order are `[d, d]`, the lower axis more significant. Any
    other order needs a reshape of the dim into its factors, because TTIR cannot express it.

    Args:
      spec: the partition spec.
      rank: the rank of the tensor.
      sizes: the size of each mesh axis, in mesh order.

    Raises:
      SpecError: see `spec_axes`.

    >>> attributes_from_spec(PartitionSpec(None, "x"), 2, {"y": 2, "x": 4})
    ShardAttributes(shard_shape=(1, 4), shard_dims=(-1, 1), factors=(None, None), dims=(-1, 1))
    """
    order = {axis: i for i, axis in enumerate(sizes)}
    shape: list[int] = []
    dims = [-1] * len(sizes)
    factors: list[tuple[int, ...] | None] = []
    original = [-1] * len(sizes)
    for dim, dim_axes in enumerate(spec_axes(spec, rank, sizes)):
        axes = [order[a] for a in dim_axes if sizes[a] > 1]
        counts = [sizes[a] for a in dim_axes if sizes[a] > 1]
        for axis in axes:
            original[axis] = dim
        if axes == sorted(axes):
            for axis in axes:
                dims[axis] = len(shape)
            shape.append(math.prod(counts))
            factors.append(None)
            continue
        for axis, count in zip(axes, counts, strict=True):
            dims[axis] = len(shape)
            shape.append(count)
        shape.append(1)
        factors.append((*counts, -1))
    return ShardAttributes(tuple(shape), tuple(dims), tuple(factors), tuple(original))


def counts_per_dim(shard_dims: Sequence[int], mesh: Sequence[int], rank: int) -> Shape:
    """Returns the number of shards into which `shard_dims` splits each tensor dim."""
    counts = [1] * rank
    for dim, size in zip(shard_dims, mesh, strict=True):
        if dim >= 0:
            counts[dim] *= size
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class Reshaped(Generic[Config]):
    """A distribute or an aggregate with optional reshapes: of its operand before it, and of its result after it."""

    before: Shape | None
    config: Config
    after: Shape | None


def replicate_mapper(mesh: Sequence[int]) -> MeshMapperConfig:
    """Returns the mapper config of a replicating distribute, as in upstream's lowering.

    >>> replicate_mapper((2, 4))
    MeshMapperConfig([PlacementReplicate(), PlacementReplicate()], MeshShape([2, 4]))
    """
    return MeshMapperConfig([PlacementReplicate()] * len(mesh), MeshShape(mesh))


FIRST_DEVICE = MeshComposerConfig([0], MeshShape(1))
"""The composer config of a replicated value, as in upstream's lowering: the copy on device 0."""


def _merge_axes(shard_dims: Sequence[int], mesh: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """Merges adjacent axes on one dim; returns None if the axes on a dim are not adjacent."""
    dims: list[int] = []
    sizes: list[int] = []
    for dim, size in zip(shard_dims, mesh, strict=True):
        if dim >= 0 and dims and dims[-1] == dim:
            sizes[-1] *= size
        else:
            dims.append(dim)
            sizes.append(size)
    cut = [d for d in dims if d >= 0]
    return (dims, sizes) if len(set(cut)) == len(cut) else None


def _factor(full: Shape, shard_dims: Sequence[int], mesh: Sequence[int]) -> tuple[Shape, Shape, Shape]:
    """Replaces each dim on several axes by one dim per axis and the rest.

    Returns the full shape, the local shape, and the dim of each axis.
    """
    out_full: list[int] = []
    out_local: list[int] = []
    out_dims = [-1] * len(mesh)
    counts = counts_per_dim(shard_dims, mesh, len(full))
    for dim, size in enumerate(full):
        axes = [a for a, d in enumerate(shard_dims) if d == dim]
        rest = size // counts[dim]
        if len(axes) < 2:
            for axis in axes:
                out_dims[axis] = len(out_full)
            out_full.append(size)
            out_local.append(rest)
            continue
        for axis in axes:
            out_dims[axis] = len(out_full)
            out_full.append(mesh[axis])
            out_local.append(1)
        out_full.append(rest)
        out_local.append(rest)
    return tuple(out_full), tuple(out_local), tuple(out_dims)


def plan_distribute(full: Sequence[int], shard_dims: Sequence[int], mesh: Sequence[int]) -> Reshaped[MeshMapperConfig]:
    """Returns legal TTNN that shards `full` by `shard_dims`: upstream's config if legal, else an equivalent.

    >>> plan_distribute((16, 4), (0, -1), (2, 4)).config
    MeshMapperConfig([PlacementShard(0), PlacementReplicate()], MeshShape([2, 4]))
    >>> plan_distribute((16, 4), (0, 0), (2, 4)).config
    MeshMapperConfig([PlacementShard(0)], MeshShape([8]))
    """
    full, mesh = tuple(full), tuple(mesh)
    merged = _merge_axes(shard_dims, mesh)
    if merged is not None:
        dims, sizes = merged
        return Reshaped(None, MeshMapperConfig(_placements(dims), MeshShape(sizes)), None)
    factored, _, factored_dims = _factor(full, shard_dims, mesh)
    config = MeshMapperConfig(_placements(factored_dims), MeshShape(mesh))
    counts = counts_per_dim(shard_dims, mesh, len(full))
    local = tuple(n // c for n, c in zip(full, counts, strict=True))
    return Reshaped(factored, config, local)


def _placements(dims: Sequence[int]) -> list[Placement]:
    return [PlacementShard(d) if d >= 0 else PlacementReplicate() for d in dims]


def plan_aggregate(
    local: Sequence[int], shard_dims: Sequence[int], mesh: Sequence[int]
) -> Reshaped[MeshComposerConfig]:
    """Returns legal TTNN that joins shards by `shard_dims` and reads coordinate 0 of every other axis.

    >>> plan_aggregate((2, 4), (-1, 0), (2, 4)).config
    MeshComposerConfig([1, 0], MeshShape([1, 4]))
    >>> plan_aggregate((2,), (-1, 0), (2, 4))
    Reshaped(before=(1, 2), config=MeshComposerConfig([0, 1], MeshShape([1, 4])), after=(8,))
    """
    local, mesh = tuple(local), tuple(mesh)
    counts = counts_per_dim(shard_dims, mesh, len(local))
    full = tuple(n * c for n, c in zip(local, counts, strict=True))
    merged = _merge_axes(shard_dims, mesh)
    dropped = [a for a, d in enumerate(shard_dims) if d < 0]
    if merged is not None and not dropped:
        dims, sizes = merged
        return Reshaped(None, MeshComposerConfig(dims, MeshShape(sizes)), None)
    _, factored, factored_dims = _factor(full, shard_dims, mesh)
    before = (1,) * max(0, len(mesh) - len(factored)) + factored
    dims = [d + len(before) - len(factored) if d >= 0 else -1 for d in factored_dims]
    free = [d for d in range(len(before)) if d not in dims]
    override = list(mesh)
    for axis in dropped:
        dims[axis], override[axis] = free.pop(), 1
    config = MeshComposerConfig(dims, MeshShape(override))
    return Reshaped(None, config, None) if before == local else Reshaped(before, config, full)


def check_divisible(full: Sequence[int], shard_dims: Sequence[int], mesh: Mapping[str, int], what: str) -> Shape:
    """Returns the local shape of `full` under `shard_dims`; every sharded dim must divide evenly.

    Raises:
      VerifyError: a dim does not divide; the message has the dim, its size, the axes and the count.
    """
    counts = counts_per_dim(shard_dims, tuple(mesh.values()), len(full))
    for dim, (size, count) in enumerate(zip(full, counts, strict=True)):
        if size % count:
            axes = [f"{n!r} of size {s}" for (n, s), d in zip(mesh.items(), shard_dims, strict=True) if d == dim]
            padded = -(-size // count) * count
            raise VerifyError(
                f"{what}: dim {dim} has size {size}, which {count} devices ({' and '.join(axes)}) do not divide; "
                f"pad the dim to {padded} or leave it whole."
            )
    return tuple(n // c for n, c in zip(full, counts, strict=True))


def global_shape(local: Sequence[int], spec: PartitionSpec, sizes: Mapping[str, int]) -> Shape:
    """Returns the global shape of a tensor from its local shape and its spec.

    >>> global_shape((2, 8), PartitionSpec("y"), {"y": 2, "x": 4})
    (4, 8)
    """
    rows = spec_axes(spec, len(local), sizes)
    return tuple(n * math.prod(sizes[a] for a in row) for n, row in zip(local, rows, strict=True))


def position_of(coordinates: Sequence[int], axes: Sequence[int], sizes: Sequence[int]) -> int:
    """Returns the row-major position over some mesh axes of a device with the given coordinates."""
    position = 0
    for axis in axes:
        position = position * sizes[axis] + coordinates[axis]
    return position


def join_shards(shards: Mapping[tuple[int, ...], Array], spec: PartitionSpec, sizes: Mapping[str, int]) -> Array:
    """Returns the full array of shards by mesh coordinate; of equal copies the first device's.

    >>> join_shards({(0,): np.zeros(1), (1,): np.ones(1)}, PartitionSpec("x"), {"x": 2})
    array([0., 1.])
    """
    first = next(iter(shards.values()))
    counts, order = tuple(sizes.values()), list(sizes)
    numbers = [[order.index(a) for a in row] for row in spec_axes(spec, first.ndim, sizes)]
    full = np.empty(global_shape(first.shape, spec, sizes), first.dtype)
    for coordinate, shard in reversed(list(shards.items())):
        starts = [position_of(coordinate, axes, counts) * n for axes, n in zip(numbers, first.shape, strict=True)]
        full[tuple(slice(start, start + n) for start, n in zip(starts, first.shape, strict=True))] = shard
    return full
