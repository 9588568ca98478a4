"""jaxmesh: an executable model of Tenstorrent's mesh sharding in JAX.

`ttir.mesh_shard` is traced as a primitive, lowered to `distribute_tensor` and `aggregate_tensor` by one pass, and run,
jit-compiled, over a `jax.sharding.Mesh` of host devices that stand in for the hardware.
"""

from jaxmesh import ttnn as ttnn
from jaxmesh.configs import (
    MeshComposerConfig as MeshComposerConfig,
    MeshCoordinate as MeshCoordinate,
    MeshMapperConfig as MeshMapperConfig,
    MeshShape as MeshShape,
    PlacementReplicate as PlacementReplicate,
    PlacementShard as PlacementShard,
)
from jaxmesh.dialects.ttir import (
    ShardDirection as ShardDirection,
    ShardType as ShardType,
    full_to_shard as full_to_shard,
    mesh_shard as mesh_shard,
    shard_to_full as shard_to_full,
)
from jaxmesh.errors import (
    ArgumentTypeError as ArgumentTypeError,
    AssumptionWarning as AssumptionWarning,
    BlockFloatWarning as BlockFloatWarning,
    DeviceCountError as DeviceCountError,
    InexpressibleError as InexpressibleError,
    JaxmeshError as JaxmeshError,
    MeshError as MeshError,
    MeshMismatchError as MeshMismatchError,
    MissingFileError as MissingFileError,
    MissingRuleError as MissingRuleError,
    ParseError as ParseError,
    ReplicationError as ReplicationError,
    ResidencyError as ResidencyError,
    ShardShapeWarning as ShardShapeWarning,
    SpecError as SpecError,
    UnloweredError as UnloweredError,
    UnsupportedError as UnsupportedError,
    UnsupportedShardTypeError as UnsupportedShardTypeError,
    VerifyError as VerifyError,
)
from jaxmesh.function import jit as jit
from jaxmesh.import_mlir import from_mlir as from_mlir
from jaxmesh.mapped import shard_map as shard_map
from jaxmesh.mesh import emulate as emulate, make_mesh as make_mesh
from jaxmesh.runtime.tensor import MeshTensor as MeshTensor
from jaxmesh.stages import (
    Compiled as Compiled,
    Lowered as Lowered,
    Traced as Traced,
)

__version__ = "0.1.0"
