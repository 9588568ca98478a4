"""The TTNN Python API, emulated on host devices: the names, argument order, keywords and defaults of `ttnn`.

This package defines the names for meshes, transfers, memory and types. Every op in the table of TTNN
(`jaxmesh/dialects/ttnn/*.py`) is a function too, under the name of its Python call, made from its row at its first use:
`ttnn.add`, `ttnn.matmul`, `ttnn.experimental.all_reduce_async`. Ops compute on multi-device tensors (`MeshTensor`) on
the devices. A file with `import ttnn` runs unchanged if `sys.modules["ttnn"]` is this module.
"""

from typing import Any

from jaxmesh.sharding.configs import (
    MeshComposerConfig as MeshComposerConfig,
    MeshCoordinate as MeshCoordinate,
    MeshMapperConfig as MeshMapperConfig,
    MeshShape as MeshShape,
    PlacementReplicate as PlacementReplicate,
    PlacementShard as PlacementShard,
)
from jaxmesh.tensor import beyond as beyond
from jaxmesh.tensor.device import (
    MeshDevice as MeshDevice,
    close_device as close_device,
    close_mesh_device as close_mesh_device,
    get_num_devices as get_num_devices,
    open_device as open_device,
    open_mesh_device as open_mesh_device,
)
from jaxmesh.tensor.distributed import (
    MeshToTensor as MeshToTensor,
    TensorToMesh as TensorToMesh,
    aggregate_tensor as aggregate_tensor,
    concat_mesh_to_tensor_composer as concat_mesh_to_tensor_composer,
    create_mesh_composer as create_mesh_composer,
    create_mesh_mapper as create_mesh_mapper,
    distribute_tensor as distribute_tensor,
    from_host_shards as from_host_shards,
    get_device_tensors as get_device_tensors,
    replicate_tensor_to_mesh_mapper as replicate_tensor_to_mesh_mapper,
    shard_tensor_to_mesh_mapper as shard_tensor_to_mesh_mapper,
)
from jaxmesh.tensor.host_tensor import Tensor as Tensor
from jaxmesh.tensor.mesh_device import (
    CoreCoord as CoreCoord,
    CoreRange as CoreRange,
    CoreRangeSet as CoreRangeSet,
    ShardOrientation as ShardOrientation,
    ShardSpec as ShardSpec,
)
from jaxmesh.tensor.mesh_tensor import MeshTensor as MeshTensor
from jaxmesh.tensor.types import (
    DRAM_MEMORY_CONFIG as DRAM_MEMORY_CONFIG,
    L1_MEMORY_CONFIG as L1_MEMORY_CONFIG,
    BufferType as BufferType,
    DataType as DataType,
    Layout as Layout,
    MemoryConfig as MemoryConfig,
    Shape as Shape,
    StorageType as StorageType,
    TensorMemoryLayout as TensorMemoryLayout,
    TensorTopology as TensorTopology,
)
from jaxmesh.ttnn.convert import (
    from_torch as from_torch,
    to_torch as to_torch,
)
from jaxmesh.ttnn.functions import lookup as _lookup, members as _members
from jaxmesh.ttnn.layout_ops import (
    deallocate as deallocate,
    from_device as from_device,
    to_device as to_device,
    to_dtype as to_dtype,
    to_layout as to_layout,
    to_memory_config as to_memory_config,
)
from jaxmesh.ttnn.settings import (
    BlackholeComputeKernelConfig as BlackholeComputeKernelConfig,
    DumpTensorMode as DumpTensorMode,
    EmbeddingsType as EmbeddingsType,
    FabricConfig as FabricConfig,
    GeluVariant as GeluVariant,
    MathFidelity as MathFidelity,
    ReduceType as ReduceType,
    SigmoidMode as SigmoidMode,
    Topology as Topology,
    WormholeComputeKernelConfig as WormholeComputeKernelConfig,
    set_fabric_config as set_fabric_config,
)
from jaxmesh.ttnn.tensor_files import dump_tensor as dump_tensor, load_tensor as load_tensor

bfloat16 = DataType.BFLOAT16
float32 = DataType.FLOAT32
uint32 = DataType.UINT32
uint16 = DataType.UINT16
uint8 = DataType.UINT8
int8 = DataType.INT8
int32 = DataType.INT32
bfloat8_b = DataType.BFLOAT8_B
bfloat4_b = DataType.BFLOAT4_B
TILE_LAYOUT = Layout.TILE
ROW_MAJOR_LAYOUT = Layout.ROW_MAJOR


_ALIASES = {"div": "divide", "mul": "multiply", "sub": "subtract", "swish": "silu"}


def __getattr__(name: str) -> Any:
    return _lookup(f"ttnn.{_ALIASES.get(name, name)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ALIASES, *_members("ttnn")})
