"""Mappers and composers by the names that older programs of `ttnn` use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from jaxmesh.errors import VerifyError
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, MeshShape
from jaxmesh.tensor.device import MeshDevice
from jaxmesh.tensor.distributed import (
    MeshToTensor,
    TensorToMesh,
    concat_mesh_to_tensor_composer,
    create_mesh_composer,
    create_mesh_mapper,
    replicate_tensor_to_mesh_mapper,
    shard_tensor_to_mesh_mapper,
)
from jaxmesh.validate import as_tuple, quote

AnyDevice = MeshDevice | Mesh


ReplicateTensorToMesh = replicate_tensor_to_mesh_mapper
ShardTensorToMesh = shard_tensor_to_mesh_mapper
ConcatMeshToTensor = concat_mesh_to_tensor_composer


def _pair(what: str, dims: Sequence[Any]) -> tuple[Any, Any]:
    pair = as_tuple(what, dims, "two dims, one per axis of a 2-dimensional mesh,")
    if len(pair) != 2:
        raise VerifyError(f"{what} takes one dim per axis of a 2-dimensional mesh, got {quote(list(pair))}.")
    return pair[0], pair[1]


def ShardTensor2dMesh(
    mesh_device: AnyDevice, mesh_shape: MeshShape | Sequence[int], dims: Sequence[int | None]
) -> TensorToMesh:
    """Returns a mapper that cuts one dim over the rows of a 2-dimensional mesh and one over its columns; None copies.

    >>> from jaxmesh import ttnn
    >>> device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    >>> ttnn.ShardTensor2dMesh(device, (2, 4), dims=(0, None)).config
    MeshMapperConfig([PlacementShard(0), PlacementReplicate()], MeshShape([2, 4]))
    """
    rows, columns = _pair("ShardTensor2dMesh", dims)
    config = MeshMapperConfig(mesh_shape_override=MeshShape(mesh_shape), row_dim=rows, col_dim=columns)
    return create_mesh_mapper(mesh_device, config)


def ConcatMesh2dToTensor(
    mesh_device: AnyDevice, mesh_shape: MeshShape | Sequence[int], dims: Sequence[int]
) -> MeshToTensor:
    """Returns a composer that joins shards along one dim over the rows of a mesh and along one over its columns.

    >>> from jaxmesh import ttnn
    >>> device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    >>> ttnn.ConcatMesh2dToTensor(device, (2, 4), dims=(0, 1)).config
    MeshComposerConfig([0, 1], MeshShape([2, 4]))
    """
    config = MeshComposerConfig(_pair("ConcatMesh2dToTensor", dims), MeshShape(mesh_shape))
    return create_mesh_composer(mesh_device, config)
