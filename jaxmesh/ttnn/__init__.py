"""The TTNN Python API, emulated on host devices: the names, argument order, keywords and defaults of `ttnn`."""

from jaxmesh.configs import (
    MeshComposerConfig as MeshComposerConfig,
    MeshCoordinate as MeshCoordinate,
    MeshMapperConfig as MeshMapperConfig,
    MeshShape as MeshShape,
    PlacementReplicate as PlacementReplicate,
    PlacementShard as PlacementShard,
)
from jaxmesh.runtime.tensor import MeshTensor as MeshTensor, TensorTopology as TensorTopology
from jaxmesh.ttnn.device import (
    MeshDevice as MeshDevice,
    close_mesh_device as close_mesh_device,
    open_mesh_device as open_mesh_device,
)
from jaxmesh.ttnn.distributed import (
    MeshToTensor as MeshToTensor,
    TensorToMesh as TensorToMesh,
    aggregate_tensor as aggregate_tensor,
    compute_distribution_to_mesh_mapping as compute_distribution_to_mesh_mapping,
    concat_mesh_to_tensor_composer as concat_mesh_to_tensor_composer,
    create_mesh_composer as create_mesh_composer,
    create_mesh_mapper as create_mesh_mapper,
    distribute_tensor as distribute_tensor,
    from_host_shards as from_host_shards,
    get_device_tensors as get_device_tensors,
    replicate_tensor_to_mesh_mapper as replicate_tensor_to_mesh_mapper,
    shard_tensor_to_mesh_mapper as shard_tensor_to_mesh_mapper,
)

Tensor = MeshTensor
