"""Every `shard_dims` on five meshes and five ranks: lowers to legal TTNN, upstream's where that is legal, same data."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.jaxprs.walk import all_eqns
from tests.generators.oracles import coordinates, oracle_shard, same_bits

pytestmark = pytest.mark.slow(but_one_in=6)

MESHES = [(2, 4), (1, 2), (8,), (2, 2, 2), (2, 1, 4)]
TABLE = [(mesh, rank) for mesh in MESHES for rank in range(5)]


def every_shard_dims(mesh: tuple[int, ...], rank: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(-1, rank), repeat=len(mesh)))


def axes_on(dims: tuple[int, ...], rank: int) -> list[list[int]]:
    """Per tensor dim its mesh axes; the lower axis is the more significant."""
    return [[a for a, d in enumerate(dims) if d == dim] for dim in range(rank)]


def shard_shape(dims: tuple[int, ...], mesh: tuple[int, ...], rank: int) -> list[int]:
    return [math.prod(mesh[a] for a in row) for row in axes_on(dims, rank)]


def operand(dims: tuple[int, ...], mesh: tuple[int, ...], rank: int) -> np.ndarray:
    shape = [n * 2 for n in shard_shape(dims, mesh, rank)]
    return np.arange(math.prod(shape), dtype=np.int32).reshape(shape)


def attributes(dims: tuple[int, ...], mesh: tuple[int, ...], rank: int) -> dict[str, Any]:
    return {"shard_type": "devices", "shard_shape": shard_shape(dims, mesh, rank), "shard_dims": dims}


def both_ways(x: Any, **attrs: Any) -> Any:
    # The zero is not known to be one, so that nothing cancels and the data really goes there and back.
    shard = jm.mesh_shard(x, shard_direction="full_to_shard", **attrs)
    return shard, jm.mesh_shard(shard + 0 * shard, shard_direction="shard_to_full", **attrs)


@pytest.mark.parametrize(("mesh", "rank"), TABLE, ids=lambda v: "x".join(map(str, v)) if isinstance(v, tuple) else None)
def test_every_shard_dims_means_what_numpy_says(mesh: tuple[int, ...], rank: int) -> None:
    rows = every_shard_dims(mesh, rank)
    xs = [operand(dims, mesh, rank) for dims in rows]

    def program(*args: Any) -> Any:
        return [both_ways(x, **attributes(dims, mesh, rank)) for x, dims in zip(args, rows, strict=True)]

    function = jm.jit(program, mesh=jm.make_mesh(mesh))
    lowered = function.lower(*xs)
    assert "mesh_shard" not in {e.primitive.name for e in all_eqns(lowered.jaxpr)}
    runs = zip(rows, xs, function(*xs), lowered.reference(*xs), strict=True)
    for dims, x, (shard, full), (ref_shard, ref_full) in runs:
        if math.prod(shard_shape(dims, mesh, rank)) == 1:
            # The fold: nothing is split, the operation is its operand, which is on the host.
            assert same_bits(shard, x), dims
            assert same_bits(ref_shard, x), dims
        else:
            held = {tuple(c): s for c, s in shard.shards()}
            for c in coordinates(mesh):
                piece = oracle_shard(x, axes_on(dims, rank), mesh, c)
                assert same_bits(held[c], piece), (dims, c)
                assert same_bits(ref_shard[c], piece), (dims, c)
        assert same_bits(full, x), dims
        assert same_bits(ref_full, x), dims


def upstream_distribute(dims: tuple[int, ...]) -> list[int]:
    """tt-mlir's placements: the dim, or -1 for replicate."""
    return list(dims)


def upstream_aggregate(dims: tuple[int, ...], mesh: tuple[int, ...], rank: int) -> tuple[list[int], list[int]]:
    """The composer dims and override of tt-mlir."""
    out, override, taken = [], [], set(dims)
    for axis, dim in enumerate(dims):
        if dim < 0:
            free = [d for d in range(rank) if d not in taken]
            dim = free[-1] if free else -1
            taken.add(dim)
            override.append(1)
        else:
            override.append(mesh[axis])
        out.append(dim)
    return out, override


def configs(mesh: tuple[int, ...], rank: int, dims: tuple[int, ...]) -> tuple[Any, Any]:
    attrs = attributes(dims, mesh, rank)
    lowered = jm.jit(lambda x: both_ways(x, **attrs), mesh=jm.make_mesh(mesh)).lower(operand(dims, mesh, rank))
    found = {e.primitive.name: e for e in all_eqns(lowered.jaxpr)}
    reshapes = "reshape" in found
    down, up = found["distribute_tensor"], found["aggregate_tensor"]
    return (down.params["mapper_config"], up.params["composer_config"]), reshapes


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "x".join(map(str, m)))
def test_configs_are_upstreams_where_those_are_legal(mesh: tuple[int, ...]) -> None:
    legal = 0
    for rank in range(1, 4):
        for dims in every_shard_dims(mesh, rank):
            cut = [d for d in dims if d >= 0]
            if math.prod(shard_shape(dims, mesh, rank)) == 1 or len(set(cut)) < len(cut):
                continue
            (mapper, composer), reshapes = configs(mesh, rank, dims)
            want = [jm.PlacementShard(d) if d >= 0 else jm.PlacementReplicate() for d in upstream_distribute(dims)]
            assert mapper == jm.MeshMapperConfig(want, jm.MeshShape(mesh)), dims
            joined, override = upstream_aggregate(dims, mesh, rank)
            if len({d % rank for d in joined}) == len(joined):
                assert composer == jm.MeshComposerConfig(joined, jm.MeshShape(override)), dims
                assert not reshapes
                legal += 1
    assert legal


REPLICATE = {"shard_type": "replicate", "shard_shape": [1], "shard_dims": [-1]}


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "x".join(map(str, m)))
@pytest.mark.parametrize("rank", range(5))
def test_replicate(mesh: tuple[int, ...], rank: int) -> None:
    x = np.arange(3**rank, dtype=np.float32).reshape((3,) * rank)
    function = jm.jit(lambda v: both_ways(v, **REPLICATE), mesh=jm.make_mesh(mesh))
    lowered = function.lower(x)
    found = {e.primitive.name: e for e in all_eqns(lowered.jaxpr)}
    everywhere = jm.MeshMapperConfig([jm.PlacementReplicate()] * len(mesh), jm.MeshShape(mesh))
    assert found["distribute_tensor"].params["mapper_config"] == everywhere
    assert found["aggregate_tensor"].params["composer_config"] == jm.MeshComposerConfig([0], jm.MeshShape(1))
    (shard, full), (ref_shard, ref_full) = function(x), lowered.reference(x)
    assert [tuple(c) for c, _ in shard.shards()] == coordinates(mesh)
    assert all(same_bits(s, x) for _, s in shard.shards())
    assert all(same_bits(s, x) for s in ref_shard.values())
    assert same_bits(full, x)
    assert same_bits(ref_full, x)


@pytest.mark.parametrize(
    ("mesh", "dims", "shape", "mapper", "composer"),
    [
        ((2, 4), (0, 0), (16, 3), ([0], [8]), ([0], [8])),
        ((2, 2, 2), (0, 0, 1), (8, 4), ([0, 1], [4, 2]), ([0, 1], [4, 2])),
        ((2, 2, 2), (0, 1, 1), (8, 4), ([0, 1], [2, 4]), ([0, 1], [2, 4])),
        ((2, 2, 2), (-1, 0, 0), (8, 4), ([-1, 0], [2, 4]), None),
    ],
)
def test_adjacent_axes_on_one_dim_merge(
    mesh: tuple[int, ...], dims: tuple[int, ...], shape: tuple[int, ...], mapper: Any, composer: Any
) -> None:
    attrs = attributes(dims, mesh, len(shape))
    lowered = jm.jit(lambda x: both_ways(x, **attrs), mesh=jm.make_mesh(mesh)).lower(np.zeros(shape, np.float32))
    found = {e.primitive.name: e for e in all_eqns(lowered.jaxpr)}
    placements = [jm.PlacementShard(d) if d >= 0 else jm.PlacementReplicate() for d in mapper[0]]
    assert found["distribute_tensor"].params["mapper_config"] == jm.MeshMapperConfig(placements, mapper[1])
    if composer is not None:
        assert found["aggregate_tensor"].params["composer_config"] == jm.MeshComposerConfig(*composer)
