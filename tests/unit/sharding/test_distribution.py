"""Which device holds which piece: chunks, coordinates, copies that a composer takes for equal, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.errors import VerifyError
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
    MeshMapperConfig,
    PlacementReplicate,
    PlacementShard,
)
from jaxmesh.sharding.distribution import (
    equality_claims,
    land,
    mesh_axis_dims,
    resolve_composer,
    resolve_mapper,
    rows_of,
)
from jaxmesh.sharding.shard_attributes import FIRST_DEVICE
from tests.generators.transfers import JOIN, traced


def test_fewer_chunks_than_places_leave_the_last_ones_empty() -> None:
    held = resolve_mapper(MeshMapperConfig(SHARD, [8]), (2, 4), (6,))
    assert held.chunks == (6,)
    assert held.holders == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert held.count == 6
    assert [held.index(place) for _, place in held.shard_coordinates()] == [(slice(n, n + 1),) for n in range(6)]


@pytest.mark.parametrize(
    ("config", "claimed"),
    [
        (JOIN, ((1,), ())),
        (MeshComposerConfig([0, 1], (2, 2)), ((), ((1, 2),))),
        (MeshComposerConfig([0, 1], (1, 2)), ((0,), ((1, 2),))),
        (MeshComposerConfig([0, 1], (2, 4)), ((), ())),
        (MeshComposerConfig([0], (8,)), ((), ())),
        (FIRST_DEVICE, ((0, 1), ())),
    ],
)
def test_which_copies_a_composer_takes_for_equal(config: MeshComposerConfig, claimed: Any) -> None:
    assert equality_claims(resolve_composer(config, (2, 4), (8, 8))) == claimed


def test_the_axes_on_each_dim_are_in_mesh_order() -> None:
    assert rows_of((1, None, 1, 0), 3) == [(3,), (0, 2), ()]


def test_a_distribution_that_leaves_devices_out_has_no_dims_per_axis() -> None:
    for drop in (False, True):
        assert mesh_axis_dims(land((2, 2), (2, 4)), (0, 1), drop_single=drop) is None
        assert mesh_axis_dims(land((3,), (2, 2)), (0,), drop_single=drop) is None
        assert mesh_axis_dims(land((2,), (2, 4)), (0,), drop_single=drop) is None
        assert mesh_axis_dims(land((1,), (2, 4)), (0,), drop_single=drop) == ((None, None) if drop else None)
        assert mesh_axis_dims(land((2, 4), (2, 4)), (1, None), drop_single=drop) == (1, None)
        assert mesh_axis_dims(land((8,), (2, 4)), (1,), drop_single=drop) == (1, 1)
    assert mesh_axis_dims(land((2, 1), (2, 4)), (0, 1), drop_single=True) == (0, None)
    assert mesh_axis_dims(land((2, 1), (2, 4)), (0, 1), drop_single=False) is None


SHARD = [PlacementShard(0)]
REPLICATE = [PlacementReplicate()]


@pytest.mark.parametrize(
    ("resolve", "words"),
    [
        (lambda: resolve_mapper(MeshMapperConfig(SHARD, [8]), (2, 4), (9,)),
         "dim 0 of size 9 over the 8 coordinates of distribution axis 0 ([8]) yields 4 shards of 2 and a last "
         "shard of 1; pad the dim to 16 or"),
        (lambda: resolve_mapper(MeshMapperConfig(REPLICATE + SHARD), (2, 4), (6,)),
         "dim 0 of size 6 over the 4 coordinates of distribution axis 1 ([2, 4]) yields 3 chunks of 2; "
         "pad the dim to 8 or"),
        (lambda: resolve_mapper(MeshMapperConfig(SHARD), (2, 4), (8,)),
         "distribution shape [2, 4], got 1 placements for 2 axes: [PlacementShard(0)]"),
        (lambda: resolve_composer(MeshComposerConfig([0]), (2, 4), (8,)),
         "distribution shape [2, 4], got 1 dims for 2 axes: [0]"),
        (lambda: resolve_composer(MeshComposerConfig([0, -1]), (2, 4), (8,)),
         "axes 0 and 1 both name tensor dim 0 (given [0, -1])"),
        (lambda: resolve_composer(MeshComposerConfig([0, 2]), (2, 4), (8, 8)), "dim 2 of a tensor of rank 2; "
         "allowed dims: -2 to 1."),
        (lambda: resolve_composer(MeshComposerConfig([0, -3]), (2, 4), (8, 8)), "dim -3 of a tensor of rank 2"),
        (lambda: resolve_mapper(MeshMapperConfig(SHARD + REPLICATE), (2, 4), ()),
         "PlacementShard(0) names dim 0 of a tensor of rank 0; allowed dims: none"),
        (lambda: traced(lambda x: jm.full_to_shard(x, P(None, "x")), jnp.ones((4, 6))),
         "full_to_shard of shape [4, 6] with P"),
        (lambda: land((3, 3), (2, 4)), "[3, 3] has 9 coordinates, but the mesh [2, 4] has only 8 devices"),
    ],
)  # fmt: skip
def test_a_refused_distribution_says_both_values(resolve: Callable[[], Any], words: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(words)):
        resolve()
