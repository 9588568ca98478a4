"""The rows of the transformation matrix: every operation, beside what it means without a mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

from jaxmesh import ttnn
from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, mesh_shard, shard_to_full
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, MeshShape, PlacementReplicate, PlacementShard
from jaxmesh.sharding.mesh import make_mesh
from tests.generators.matrix.operation import Fun, Operation, same

_lax: Any = lax


@dataclass(frozen=True)
class _Grid:
    """A mesh seen as rows (all axes but the last, together) and columns (the last)."""

    mesh: Mesh

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(self.mesh.axis_names[:-1])

    @property
    def column(self) -> str:
        return self.mesh.axis_names[-1]

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.mesh.axis_names)

    @property
    def b(self) -> int:
        return self.mesh.shape[self.column]

    @property
    def a(self) -> int:
        return self.mesh.size // self.b

    @property
    def both(self) -> P:
        return P(self.rows, self.column)

    def blocks(self, x: Any) -> Any:
        """Dim 0 by rows of devices, dim 1 by columns: `(a, m/a, b, n/b)`."""
        m, n = x.shape
        return x.reshape(self.a, m // self.a, self.b, n // self.b)

    def spread(self, s: Any) -> Any:
        """A value that is the same on all devices, as one that may differ."""
        return _lax.pcast(s, self.axes, to="varying")

    def gather(self, s: Any) -> Any:
        """The full value of a shard under `both`, by JAX's collectives alone."""
        s = _lax.all_gather(s, self.column, axis=1, tiled=True, to="invarying")
        return _lax.all_gather(s, self.rows, axis=0, tiled=True, to="invarying") if self.rows else s

    def cut(self, x: Any, rows: int = 0, columns: int = 1) -> Any:
        """This device's shard of a full value, by `axis_index` alone."""
        sizes, starts = list(x.shape), [jnp.int32(0)] * x.ndim
        if self.rows:
            sizes[rows] //= self.a
            starts[rows] = _lax.axis_index(self.rows) * sizes[rows]
        sizes[columns] //= self.b
        starts[columns] = _lax.axis_index(self.column) * sizes[columns]
        return _lax.dynamic_slice(x, starts, sizes)


def operations(mesh: Mesh) -> list[Operation]:
    """Every row that a mesh has; two axes are needed for some."""
    g = _Grid(mesh)
    rows = [*_mesh_shards(g), *_ttnn(g), *_sums(g), *_moves(g), *_axes(g)]
    return rows if g.rows else [r for r in rows if r.name not in NEED_TWO_AXES]


NEED_TWO_AXES = frozenset({"two axes, other order"})
"""Rows that say nothing on a mesh of one axis."""


# --- mesh_shard ------------------------------------------------------------------------------------------------------


def _attributes(shard_type: str, shape: Sequence[int], dims: Sequence[int]) -> tuple[Fun, Fun]:
    """The raw operation in both directions."""
    said: dict[str, Any] = {"shard_type": shard_type, "shard_shape": shape, "shard_dims": dims}
    return (
        lambda x: mesh_shard(x, shard_direction="full_to_shard", **said),
        lambda s: mesh_shard(s, shard_direction="shard_to_full", **said),
    )


def _ends(name: str, g: _Grid, spec: P) -> Operation:
    """There and back under one spec."""
    return Operation(name, g.mesh, lambda x: full_to_shard(x, spec), same, lambda s: shard_to_full(s, spec), same)


def _raw(name: str, g: _Grid, ends: tuple[Fun, Fun]) -> Operation:
    return Operation(name, g.mesh, ends[0], same, ends[1], same)


def _mesh_shards(g: _Grid) -> list[Operation]:
    def to_devices(x: Any) -> Any:
        return full_to_shard(x, g.both)

    def copies(x: Any) -> Any:
        return full_to_shard(x, P())

    def back(s: Any) -> Any:
        return shard_to_full(s, P())

    sizes = list(g.mesh.shape.values())
    dims = [0] * (len(sizes) - 1) + [1]
    return [
        Operation("full_to_shard devices", g.mesh, to_devices, same, lambda s: back(g.gather(s)), same),
        Operation(
            "shard_to_full devices", g.mesh, lambda x: g.cut(copies(x)), same, lambda s: shard_to_full(s, g.both), same
        ),
        _raw("mesh_shard devices", g, _attributes("devices", [g.a, g.b], dims)),
        _raw("mesh_shard replicate", g, _attributes("replicate", [1], [-1])),
        _raw("mesh_shard identity", g, _attributes("identity", [1], [-1])),
        _raw("mesh_shard of one piece", g, _attributes("devices", [1, 1], [-1] * len(sizes))),
        _ends("one axis of several", g, P(None, g.column)),
        _ends("two axes on one dim", g, P(g.axes)),
        _ends("two axes, other order", g, P((g.column, *g.rows))),
        _single(g),
        Operation(
            "rank 1",
            g.mesh,
            lambda x: full_to_shard(x[0], P(g.column)),
            same,
            lambda s: shard_to_full(s, P(g.column)),
            lambda x: x[0],
        ),
        Operation(
            "assume_replicated",
            g.mesh,
            # Equal in truth, but not by type.
            lambda x: _lax.pcast(full_to_shard(x, P(g.rows)), g.column, to="varying"),
            same,
            lambda s: shard_to_full(s, P(g.rows), assume_replicated=True),
            same,
        ),
    ]


def _single(g: _Grid) -> Operation:
    """An axis of size 1 beside the others: it is named, and summed over, and changes nothing."""
    sizes, names = list(g.mesh.shape.values()), g.axes
    mesh = make_mesh((*sizes[:-1], 1, sizes[-1]), (*names[:-1], "one", names[-1]), devices=list(g.mesh.devices.flat))
    ends = P(g.rows, ("one", g.column)), P(g.rows, g.column)
    return _collective("axis of size 1", mesh, ends, lambda s: _lax.psum(s, "one"), same)


# --- the TTNN primitives ---------------------------------------------------------------------------------------------


def _ttnn(g: _Grid) -> list[Operation]:
    sizes = tuple(g.mesh.shape.values())
    rank = len(sizes)
    # One dim per axis: a dim is cut once only, so all axes but the last copy, or the whole mesh is one row.
    cut = MeshMapperConfig([PlacementReplicate()] * (rank - 1) + [PlacementShard(1)], MeshShape(sizes))
    row = MeshMapperConfig([PlacementShard(0)], MeshShape([g.mesh.size]))
    copy = MeshMapperConfig([PlacementReplicate()] * rank, MeshShape(sizes))
    joined = MeshComposerConfig([*range(2, 2 + rank - 1), 1], MeshShape([1] * (rank - 1) + [sizes[-1]]))
    row_joined = MeshComposerConfig([0], MeshShape([g.mesh.size]))
    first = MeshComposerConfig([0], MeshShape([1]))

    def distribute(config: MeshMapperConfig) -> Fun:
        return lambda x: ttnn.distribute_tensor(x, ttnn.create_mesh_mapper(g.mesh, config))

    def aggregate(config: MeshComposerConfig) -> Fun:
        return lambda s: ttnn.aggregate_tensor(s, ttnn.create_mesh_composer(g.mesh, config))

    def leading(s: Any) -> Any:
        return s.reshape(*s.shape, *[1] * (rank - 1))

    def columns(x: Any) -> Any:
        return g.cut(full_to_shard(x, P()).reshape(1, *x.shape), 0, 2)[0] if not g.rows else _cut_columns(g, x)

    return [
        Operation(
            "distribute_tensor",
            g.mesh,
            distribute(cut),
            same,
            lambda s: shard_to_full(_lax.all_gather(s, g.column, axis=1, tiled=True, to="invarying"), P()),
            same,
        ),
        Operation(
            "aggregate_tensor",
            g.mesh,
            columns,
            same,
            lambda s: aggregate(joined)(leading(s)).reshape(s.shape[0], -1),
            same,
        ),
        Operation("both, row-major", g.mesh, distribute(row), same, aggregate(row_joined), same),
        # Equal in truth, but not by type: the copies that are not read have no cotangent.
        Operation("both, replicated", g.mesh, lambda x: g.spread(distribute(copy)(x)), same, aggregate(first), same),
    ]


def _cut_columns(g: _Grid, x: Any) -> Any:
    size = x.shape[1] // g.b
    start = [jnp.int32(0), _lax.axis_index(g.column) * size]
    return _lax.dynamic_slice(full_to_shard(x, P()), start, (x.shape[0], size))


# --- collectives -----------------------------------------------------------------------------------------------------


def _collective(
    name: str, mesh: Mesh, specs: tuple[P, P], local: Fun, plain: Fun, *, differentiable: bool = True
) -> Operation:
    ins, outs = specs
    return Operation(
        name,
        mesh,
        lambda x: full_to_shard(x, ins),
        local,
        lambda s: shard_to_full(s, outs),
        plain,
        specs,
        differentiable,
    )


def _sums(g: _Grid) -> list[Operation]:
    ends = g.both, P(g.rows)
    axis = g.column

    def summed(x: Any) -> Any:
        return g.blocks(x).sum(2, dtype=x.dtype).reshape(x.shape[0], -1)

    def scatter(tiled: bool) -> Fun:
        return lambda s: _lax.psum_scatter(s, axis, scatter_dimension=0, tiled=tiled)

    return [
        _collective("psum", g.mesh, ends, lambda s: _lax.psum(s, axis), summed),
        _collective(
            "psum, all axes",
            g.mesh,
            (g.both, P()),
            lambda s: _lax.psum(s, g.axes),
            lambda x: g.blocks(x).sum((0, 2), dtype=x.dtype),
        ),
        _collective("pmean", g.mesh, ends, lambda s: _lax.pmean(s, axis), lambda x: summed(x) / g.b),
        _collective(
            "pmax",
            g.mesh,
            ends,
            lambda s: _lax.pmax(s, axis),
            lambda x: g.blocks(x).max(2).reshape(x.shape[0], -1),
            differentiable=False,
        ),
        _collective(
            "pmin",
            g.mesh,
            ends,
            lambda s: _lax.pmin(s, axis),
            lambda x: g.blocks(x).min(2).reshape(x.shape[0], -1),
            differentiable=False,
        ),
        _collective("psum_scatter", g.mesh, (g.both, P(g.axes)), scatter(True), summed),
        _collective(
            "psum_scatter, untiled", g.mesh, (g.both, P(g.axes)), scatter(False), lambda x: summed(x).reshape(-1)
        ),
    ]


def _moves(g: _Grid) -> list[Operation]:
    axis, both = g.column, g.both

    def gather(at: int, tiled: bool, to: str) -> Fun:
        return lambda s: _lax.all_gather(s, axis, axis=at, tiled=tiled, to=to)

    def copied(x: Any) -> Any:
        rows = x.reshape(g.a, 1, -1, x.shape[1])
        return jnp.broadcast_to(rows, (g.a, g.b, *rows.shape[2:])).reshape(-1, x.shape[1])

    def stacked(x: Any) -> Any:
        blocks = jnp.moveaxis(g.blocks(x), 2, 0)
        return jnp.tile(blocks.reshape(g.b, x.shape[0], -1), (g.b, 1, 1))

    def last(x: Any) -> Any:
        return jnp.moveaxis(g.blocks(x), 2, 3).reshape(x.shape[0], -1, g.b)

    def rolled(x: Any) -> Any:
        return jnp.roll(g.blocks(x), 1, 2).reshape(x.shape)

    def one_step(x: Any) -> Any:
        blocks = g.blocks(x)
        return jnp.concatenate([0 * blocks[:, :, :1], blocks[:, :, :1], 0 * blocks[:, :, 2:]], 2).reshape(x.shape)

    ring = [(i, (i + 1) % g.b) for i in range(g.b)]
    return [
        _collective("all_gather", g.mesh, (both, P(g.axes)), gather(1, True, "varying"), copied),
        _collective("all_gather, untiled", g.mesh, (both, P(axis, g.rows)), gather(0, False, "varying"), stacked),
        _collective("all_gather to invarying", g.mesh, (both, P(g.rows)), gather(1, True, "invarying"), same),
        _collective("the same, untiled", g.mesh, (both, P(g.rows)), gather(2, False, "invarying"), last),
        _collective(
            "all_to_all", g.mesh, (both, P(g.axes)), lambda s: _lax.all_to_all(s, axis, 0, 1, tiled=True), same
        ),
        _collective(
            "all_to_all, untiled",
            g.mesh,
            (both, P(g.axes)),
            lambda s: _lax.all_to_all(s, axis, 0, 0),
            lambda x: x.reshape(-1, x.shape[1] // g.b),
        ),
        _collective("ppermute", g.mesh, (both, both), lambda s: _lax.ppermute(s, axis, ring), rolled),
        _collective("ppermute, one pair", g.mesh, (both, both), lambda s: _lax.ppermute(s, axis, [(0, 1)]), one_step),
        _collective(
            "pshuffle",
            g.mesh,
            (both, both),
            lambda s: _lax.pshuffle(s, axis, [(i - 1) % g.b for i in range(g.b)]),
            rolled,
        ),
    ]


def _axes(g: _Grid) -> list[Operation]:
    def numbered(s: Any) -> Any:
        return s * (1 + _lax.axis_index(g.axes)).astype(s.dtype)

    def numbers(x: Any) -> Any:
        count = 1 + jnp.arange(g.a * g.b).reshape(g.a, 1, g.b, 1)
        return (g.blocks(x) * count.astype(x.dtype)).reshape(x.shape)

    return [
        _collective("axis_index", g.mesh, (g.both, g.both), numbered, numbers),
        _collective(
            "pcast to varying",
            g.mesh,
            (P(), P(g.axes)),
            lambda s: _lax.pcast(s, g.axes, to="varying"),
            lambda x: jnp.tile(x, (math.prod(g.mesh.shape.values()), 1)),
        ),
    ]
