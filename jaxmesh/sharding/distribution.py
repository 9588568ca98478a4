"""Arithmetic of distributions: mesh coordinates, boxes of shards, and the tensors that composers join.

The rules follow tt-metal's `ttnn/core/distributed/distributed_tensor.cpp`. The module needs neither JAX nor devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from jaxmesh.errors import VerifyError
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, PlacementShard

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Landing:
    """A distribution shape placed on a mesh."""

    shape: Shape
    mesh: Shape

    @property
    def is_row_major(self) -> bool:
        """True if coordinates are numbered row-major over the mesh, False for the leading corner of the mesh."""
        return len(self.shape) != len(self.mesh) or any(d > m for d, m in zip(self.shape, self.mesh, strict=True))

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return math.prod(self.shape)

    def coordinates(self) -> list[Shape]:
        """Returns the mesh coordinate of each distribution coordinate, both row-major.

        >>> land((3,), (2, 2)).coordinates()
        [(0, 0), (0, 1), (1, 0)]
        """
        if self.is_row_major:
            # Do not list all coordinates: the mesh may be much larger than the distribution.
            return [_coordinate(number, self.mesh) for number in range(self.size)]
        return list(itertools.product(*map(range, self.shape)))

    def axis_groups(self) -> tuple[tuple[int, ...], ...] | None:
        """Returns the mesh axes in each distribution axis; None if a distribution axis splits a mesh axis.

        >>> land((8,), (2, 4)).axis_groups(), land((4, 2), (2, 4)).axis_groups()
        (((0, 1),), None)
        """
        if not self.is_row_major:
            return tuple((axis,) for axis in range(len(self.mesh)))
        groups: list[tuple[int, ...]] = []
        rest = list(range(len(self.mesh)))
        for wanted in self.shape:
            group: list[int] = []
            while math.prod(self.mesh[a] for a in group) < wanted and rest:
                group.append(rest.pop(0))
            if math.prod(self.mesh[a] for a in group) != wanted:
                return None
            groups.append(tuple(group))
        return tuple(groups) if all(self.mesh[a] == 1 for a in rest) else None


def _coordinate(number: int, shape: Shape) -> Shape:
    """Returns the coordinate of a row-major number in a shape, whose sizes NumPy may not hold."""
    coordinate: list[int] = []
    for size in reversed(shape):
        number, index = divmod(number, size)
        coordinate.append(index)
    return tuple(reversed(coordinate))


def land(distribution: Sequence[int], mesh: Sequence[int]) -> Landing:
    """Places a distribution shape on a mesh: with equal coordinates, row-major, or in the leading corner.

    Raises:
      VerifyError: the distribution is larger than the mesh.
    """
    shape, mesh = tuple(distribution), tuple(mesh)
    if math.prod(shape) > math.prod(mesh):
        raise VerifyError(
            f"the distribution shape {list(shape)} has {math.prod(shape)} coordinates, but the mesh {list(mesh)} "
            f"has only {math.prod(mesh)} devices; mesh_shape_override may not be larger than the mesh."
        )
    return Landing(shape, mesh)


def normalize_dim(dim: int, rank: int, what: str) -> int:
    """Returns a tensor dim as a non-negative number; raises a VerifyError if it is out of range."""
    if not -rank <= dim < rank:
        allowed = f"{-rank} to {rank - 1}" if rank else "none, the tensor has rank 0"
        raise VerifyError(f"{what} names dim {dim} of a tensor of rank {rank}; allowed dims: {allowed}.")
    return dim % rank


def _unique(dims: Sequence[int | None], config: object, what: str) -> None:
    seen: dict[int, int] = {}
    for axis, dim in enumerate(dims):
        if dim is None:
            continue
        if dim in seen:
            raise VerifyError(
                f"{what}: dims must be unique, but axes {seen[dim]} and {axis} both name tensor dim {dim} "
                f"(given {config}); merge the two axes with mesh_shape_override, or reshape the tensor."
            )
        seen[dim] = axis


@dataclass(frozen=True, slots=True)
class Composition:
    """A composer config resolved against a mesh and a local shape.

    Per axis of the landing, `dims` has the tensor dim that is joined; None for every axis of a single device.
    """

    landing: Landing
    dims: tuple[int | None, ...]
    local: Shape
    full: Shape

    def index(self, coordinate: Shape) -> tuple[slice, ...]:
        """Returns the index of the full tensor at a distribution coordinate."""
        index = [slice(0, n) for n in self.full]
        for dim, at in zip(self.dims, coordinate, strict=True):
            if dim is not None:
                index[dim] = slice(at * self.local[dim], (at + 1) * self.local[dim])
        return tuple(index)


@dataclass(frozen=True, slots=True)
class Distribution(Composition):
    """A mapper config resolved against a mesh and a full shape.

    Per axis of the landing, `dims` has the tensor dim that it shards, or None, and `chunks` the number of shards.
    """

    chunks: tuple[int, ...]

    @property
    def holders(self) -> list[Shape]:
        """The mesh coordinates with a shard, in row-major order of the distribution."""
        return [c for c, _ in self.shard_coordinates()]

    @property
    def count(self) -> int:
        """The number of devices with a shard."""
        return math.prod(map(min, self.landing.shape, self.chunks))

    @property
    def distribution_shape(self) -> Shape:
        """The shape in the tensor's topology; a single sharded axis has one coordinate per shard."""
        cut = len(self.dims) == 1 and self.dims[0] is not None
        return self.chunks if cut else self.landing.shape

    def shard_coordinates(self) -> list[tuple[Shape, Shape]]:
        """Returns the pair (mesh coordinate, distribution coordinate) of each existing shard."""
        distributed = itertools.product(*map(range, self.landing.shape))
        pairs = zip(self.landing.coordinates(), distributed, strict=True)
        return [(c, p) for c, p in pairs if all(i < n for i, n in zip(p, self.chunks, strict=True))]


def resolve_mapper(config: MeshMapperConfig, mesh: Sequence[int], full: Sequence[int]) -> Distribution:
    """Checks every rule of `distribute_tensor` and resolves the shard of each device.

    Args:
      config: the mapper config.
      mesh: the mesh shape.
      full: the shape of the host tensor.

    Raises:
      VerifyError: a rule of TTNN is broken; the message states the rule and both values.

    >>> from jaxmesh.sharding.configs import *
    >>> resolve_mapper(MeshMapperConfig([PlacementShard(0)], [8]), (2, 4), (16, 3)).local
    (2, 3)
    """
    full = tuple(full)
    landing = land(config.mesh_shape_override or mesh, mesh)
    if len(config.placements) != len(landing.shape):
        raise VerifyError(
            f"distribute_tensor needs one placement per axis of the distribution shape {list(landing.shape)}, "
            f"got {len(config.placements)} placements for {len(landing.shape)} axes: {list(config.placements)}."
        )
    dims = tuple(
        normalize_dim(p.dim, len(full), f"{p!r}") if isinstance(p, PlacementShard) else None for p in config.placements
    )
    _unique(dims, list(config.placements), "distribute_tensor")
    local, chunks = list(full), list(landing.shape)
    for axis, dim in enumerate(dims):
        if dim is not None:
            local[dim], chunks[axis] = _cut(full, dim, landing, axis)
    return Distribution(landing, dims, tuple(local), full, tuple(chunks))


def _cut(full: Shape, dim: int, landing: Landing, axis: int) -> tuple[int, int]:
    """Returns the chunk length and the number of chunks of one dim over one distribution axis."""
    size, count = full[dim], landing.shape[axis]
    if size == 0:
        return 0, count
    chunk = -(-size // count)
    chunks = -(-size // chunk)
    over = f"the {count} coordinates of distribution axis {axis} ({list(landing.shape)})"
    location = f"dim {dim} of size {size} over {over}"
    remedy = f"pad the dim to {count * -(-size // count)} or choose another dim."
    if size % chunk:
        raise VerifyError(
            f"distribute_tensor: all shards must have one shape, but {location} yields {chunks - 1} shards of "
            f"{chunk} and a last shard of {size - chunk * (chunks - 1)}; {remedy}"
        )
    if chunks != count and len(landing.shape) > 1:
        raise VerifyError(
            f"distribute_tensor: the number of chunks must equal the sharded mesh axis, but {location} yields "
            f"{chunks} chunks of {chunk}; {remedy}"
        )
    return chunk, chunks


def resolve_composer(config: MeshComposerConfig, mesh: Sequence[int], local: Sequence[int]) -> Composition:
    """Checks every rule of `aggregate_tensor` and resolves the joined dims.

    Raises:
      VerifyError: a rule of TTNN is broken; the message states the rule and both values.

    >>> resolve_composer(MeshComposerConfig([0, 1], [2, 1]), (2, 4), (3, 5)).full
    (6, 5)
    """
    local = tuple(local)
    landing = land(config.mesh_shape_override or mesh, mesh)
    if len(config.dims) != len(landing.shape):
        raise VerifyError(
            f"aggregate_tensor needs one dim per axis of the distribution shape {list(landing.shape)}, "
            f"got {len(config.dims)} dims for {len(landing.shape)} axes: {list(config.dims)}."
        )
    if landing.size == 1:
        return Composition(landing, (None,) * len(config.dims), local, local)
    dims = tuple(normalize_dim(d, len(local), "MeshComposerConfig") for d in config.dims)
    _unique(dims, list(config.dims), "aggregate_tensor")
    full = list(local)
    for dim, count in zip(dims, landing.shape, strict=True):
        full[dim] *= count
    return Composition(landing, dims, local, tuple(full))


def read_existing(
    config: MeshComposerConfig, mesh: Sequence[int], holders: Collection[Shape]
) -> tuple[MeshComposerConfig, list[Shape]]:
    """Returns a composer for the existing shards, and their mesh coordinates, if some devices lack a shard.

    A single shard is the result, and a composer of one axis joins the existing shards.

    Raises:
      VerifyError: a composer of several axes lacks a shard.

    >>> from jaxmesh.sharding.configs import MeshComposerConfig
    >>> read_existing(MeshComposerConfig([0], [4]), (1, 4), {(0, 0), (0, 1)})
    (MeshComposerConfig([0], MeshShape([2])), [(0, 0), (0, 1)])
    """
    landing = land(config.mesh_shape_override or mesh, mesh)
    needed = landing.coordinates()
    existing = [c for c in needed if c in holders]
    if len(existing) == len(needed):
        return config, existing
    if len(existing) == 1:
        return MeshComposerConfig(config.dims, [1] * len(config.dims)), existing
    if len(landing.shape) == 1:
        return MeshComposerConfig(config.dims, [len(existing)]), existing
    missing = next(c for c in needed if c not in holders)
    raise VerifyError(
        f"aggregate_tensor reads the shard at {list(missing)}, but that device stores no shard of this tensor, which "
        f"is on {len(holders)} of {math.prod(mesh)} devices. Override the mesh shape to these devices. In ttnn: ND "
        f"composition requires the number of tensors {len(existing)} to match the mesh shape {list(landing.shape)}."
    )


def equality_claims(joined: Composition) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Returns the mesh axes where a composer reads only coordinate 0, and (axis, count) of partly read axes.

    Other devices without a shard (a part of an axis, a part of a row-major order) do not count as
    copies of any device.

    >>> from jaxmesh.sharding.configs import MeshComposerConfig
    >>> equality_claims(resolve_composer(MeshComposerConfig([0, 1], [2, 1]), (2, 4), (3, 5)))
    ((1,), ())
    """
    landing = joined.landing
    if landing.size == 1:
        return tuple(range(len(landing.mesh))), ()
    if landing.is_row_major:
        return (), ()
    sizes = list(enumerate(zip(landing.shape, landing.mesh, strict=True)))
    return tuple(a for a, (n, m) in sizes if n == 1 < m), tuple((a, n) for a, (n, m) in sizes if 1 < n < m)


def mesh_axis_dims(landing: Landing, dims: Sequence[int | None], drop_single: bool) -> tuple[int | None, ...] | None:
    """Returns per mesh axis the tensor dim that it shards or joins; None if a distribution axis splits a mesh axis.

    Axes of size 1 move nothing and count as None; with `drop_single`, so do distribution axes of size 1 (a composer
    reads coordinate 0 of them). Returns None also for a distribution that leaves out devices.
    """
    if drop_single and landing.size == 1:
        return (None,) * len(landing.mesh)
    groups = landing.axis_groups()
    if groups is None:
        return None
    result: list[int | None] = [None] * len(landing.mesh)
    for group, dim, size in zip(groups, dims, landing.shape, strict=True):
        whole = math.prod(landing.mesh[a] for a in group)
        if drop_single and size == 1:
            continue
        if size != whole:
            return None
        for axis in group:
            result[axis] = dim if landing.mesh[axis] > 1 else None
    return tuple(result)


def axes_on_dims(rank: int, dims: Sequence[int | None], names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the mesh axes on each tensor dim, in mesh order, from the tensor dim of each mesh axis."""
    return tuple(tuple(n for n, dim in zip(names, dims, strict=True) if dim == at) for at in range(rank))


Factors = list[str | int]
"""The row-major order of a full tensor as a product: mesh axes, and runs of elements that are contiguous on a
device."""


def factors(axes: Sequence[Sequence[int]], local: Sequence[int]) -> Factors:
    """Returns the factors of a tensor with shards of shape `local`; `axes[d]` are the mesh axes on dim d, major first.

    A reshape does not change the factors, so two transfers with equal factors cancel across reshapes.

    >>> factors([(0,), (), (1,)], (3, 5, 1))
    ['axis 0', 15, 'axis 1']
    """
    out: Factors = []
    for dim_axes, size in zip(axes, local, strict=True):
        out += [f"axis {a}" for a in dim_axes]
        if size == 1:
            continue
        if out and isinstance(out[-1], int):
            out[-1] *= size
        else:
            out.append(size)
    return out


def rows_of(dims: Sequence[int | None], rank: int) -> list[tuple[int, ...]]:
    """Returns the mesh axes on each tensor dim, in mesh order, from the tensor dim of each mesh axis."""
    return [tuple(a for a, at in enumerate(dims) if at == d) for d in range(rank)]
