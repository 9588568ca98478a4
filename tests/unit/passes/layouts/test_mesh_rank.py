"""A mesh of one dim becomes a row of devices, in every attribute that counts mesh axes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxmesh.dialects.program import Program
from jaxmesh.errors import UnsupportedError
from jaxmesh.passes.layouts.mesh_rank import set_mesh_rank
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
    MeshMapperConfig,
    MeshShape,
    PlacementReplicate,
    PlacementShard,
)
from tests.generators.mlir_programs import HANDLE, add, program, tensor


def on_four_devices(mapper: MeshMapperConfig, composer: MeshComposerConfig) -> Program:
    """A distribute, an all_reduce and an aggregate on a mesh of one dim."""
    made = program(tensor(8), mesh={"x": 4})
    device = add(made, "ttnn.get_device", [], HANDLE, mesh_shape=(4,))
    x = add(made, "ttnn.distribute_tensor", [0, device], tensor(2), mapper_config=mapper)
    x = add(made, "ttnn.all_reduce", [x], tensor(2), cluster_axis=0, reduce_type="sum")
    x = add(made, "ttnn.aggregate_tensor", [x, device], tensor(8), composer_config=composer)
    made.arguments = [replace(made.arguments[0], varying=(0,))]
    made.results = [replace(made.results[0], value=x)]
    return made


@pytest.mark.parametrize("override", [None, MeshShape([4])])
def test_a_mesh_of_one_dim_is_a_row(override: MeshShape | None) -> None:
    made = on_four_devices(MeshMapperConfig([PlacementShard(0)], override), MeshComposerConfig([0], override))
    done = set_mesh_rank(made)
    assert list(done.mesh.items()) == [("_0", 1), ("x", 4)]
    assert done.arguments[0].varying == (1,)
    device, split, reduced, joined = (dict(op.attributes) for op in done.ops)
    assert device == {"mesh_shape": (1, 4)}
    shape = None if override is None else MeshShape([1, 4])
    assert split == {"mapper_config": MeshMapperConfig([PlacementReplicate(), PlacementShard(0)], shape)}
    assert reduced == {"cluster_axis": 1, "reduce_type": "sum"}
    # The shards of one row are joined in their order.
    assert joined == {"composer_config": MeshComposerConfig([0], MeshShape([4]))}


def test_a_mesh_of_two_dims_is_unchanged_and_one_of_three_is_refused() -> None:
    made = program(tensor(8), mesh={"y": 2, "x": 4})
    assert set_mesh_rank(made) is made
    deep = program(tensor(8), mesh={"z": 1, "y": 2, "x": 4})
    assert set_mesh_rank(deep, strict=False) is deep
    with pytest.raises(UnsupportedError, match=r"meshes of two dims, got 1x2x4.*strict=False"):
        set_mesh_rank(deep)
