"""Programs of one transfer or two, at the level of either dialect, and the meshes and configs that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.jaxprs import walk
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
    MeshMapperConfig,
    PlacementReplicate,
    PlacementShard,
)

SIZES = {"y": 2, "x": 4}
MESH = AbstractMesh((2, 4), ("y", "x"), axis_types=(AxisType.Auto,) * 2)
X = jax.ShapeDtypeStruct((16, 8), jnp.float32)
ROWS = MeshMapperConfig([PlacementShard(0), PlacementReplicate()], (2, 4))
COLUMNS = MeshMapperConfig([PlacementShard(1), PlacementReplicate()], (2, 4))
JOIN = MeshComposerConfig([0, 1], (2, 1))


def there_and_back(x: Any) -> Any:
    return jm.shard_to_full(jm.full_to_shard(x, P("y")) * 2, P("y"))


def traced(body: Callable[..., Any], *args: Any) -> Any:
    """The jaxpr of a body, before the pass; it may bind the operations of TTNN itself."""
    return jm.jit(body, mesh=MESH).trace(*(args or (X,))).jaxpr


def lowered(body: Callable[..., Any]) -> Any:
    return jm.jit(body, mesh=MESH).trace(X).lower().jaxpr


def distribute(x: Any, config: MeshMapperConfig = ROWS) -> Any:
    return distribute_tensor_p.bind(x, mapper_config=config)


def aggregate(x: Any, config: MeshComposerConfig = JOIN) -> Any:
    return aggregate_tensor_p.bind(x, composer_config=config)


def moves(x: Any) -> Any:
    return aggregate(distribute(x))


COPY = MeshMapperConfig([PlacementReplicate()] * 2, (2, 4))


def in_a_loop(x: Any, config: MeshMapperConfig) -> Any:
    """Carried on the devices, so that the aggregate is a collective; at a program's end it costs nothing."""
    return lax.scan(lambda c, _: (2 * c, aggregate(c)), distribute(x, config), None, length=2)[1][1]


def names_of(program: Any) -> list[str]:
    return [e.primitive.name for e in walk.all_eqns(program)]


BOTH = MeshMapperConfig([PlacementShard(-1), PlacementShard(0)], (2, 4))
JOIN_BOTH = MeshComposerConfig([-1, 0], (2, 4))
SECOND = MeshMapperConfig([PlacementReplicate(), PlacementShard(-2)], (2, 4))
JOIN_SECOND = MeshComposerConfig([1, 0], (1, 4))
ONE = MeshMapperConfig([PlacementReplicate(), PlacementShard(0)], (2, 4))
CROSSED = MeshMapperConfig([PlacementShard(0), PlacementShard(1)], (4, 2))
JOIN_CROSSED = MeshComposerConfig([0, 1], (4, 2))


def by_place(s: Any, axes: str = "yx") -> Any:
    """Times a number that differs between the devices, so that no transfer is cancelled."""
    for axis, weight in zip(axes, (10, 1), strict=False):
        s = s * (1 + weight * lax.axis_index(axis))
    return s


def crossed(x: Any) -> Any:
    return aggregate(by_place(distribute(x, CROSSED)), JOIN_CROSSED)


def raw(x: Any) -> Any:
    said = {"shard_type": "devices", "shard_shape": [4, 2], "shard_dims": [1, 0]}
    s = by_place(jm.mesh_shard(x, shard_direction="full_to_shard", **said))
    return jm.mesh_shard(s, shard_direction="shard_to_full", **said)


def replicated(x: Any) -> Any:
    said = {"shard_type": "replicate", "shard_shape": [1], "shard_dims": [-1]}
    s = 3 * jm.mesh_shard(x, shard_direction="full_to_shard", **said)
    return 2 * jm.mesh_shard(s, shard_direction="shard_to_full", **said)
