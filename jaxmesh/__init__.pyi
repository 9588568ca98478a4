# The public names and where they are defined, for type checkers; `jaxmesh/__init__.py` imports them when they are used.

from jaxmesh import errors as errors, ttnn as ttnn
from jaxmesh.analysis.diagnose import Diagnosis as Diagnosis, diagnose as diagnose, minimize as minimize
from jaxmesh.analysis.record import Recording as Recording, compare as compare
from jaxmesh.dialects.replication import check_replication as check_replication
from jaxmesh.dialects.ttir.mesh_shard import (
    ShardDirection as ShardDirection,
    ShardType as ShardType,
    full_to_shard as full_to_shard,
    mesh_shard as mesh_shard,
    shard_to_full as shard_to_full,
)
from jaxmesh.errors import *  # noqa: F403
from jaxmesh.runtime.distributed.launcher import (
    initialize_processes as initialize_processes,
    run_processes as run_processes,
)
from jaxmesh.sharding.configs import (
    MeshComposerConfig as MeshComposerConfig,
    MeshCoordinate as MeshCoordinate,
    MeshMapperConfig as MeshMapperConfig,
    MeshShape as MeshShape,
    PlacementReplicate as PlacementReplicate,
    PlacementShard as PlacementShard,
)
from jaxmesh.sharding.mesh import emulate as emulate, make_mesh as make_mesh
from jaxmesh.stages.codegen import codegen_cpp as codegen_cpp, codegen_py as codegen_py
from jaxmesh.stages.compiled import Compiled as Compiled
from jaxmesh.stages.from_mlir import from_mlir as from_mlir
from jaxmesh.stages.host_transfers import (
    check_processes as check_processes,
    from_process_shards as from_process_shards,
    to_host as to_host,
)
from jaxmesh.stages.jit import jit as jit
from jaxmesh.stages.shard_map import shard_map as shard_map
from jaxmesh.stages.stages import Lowered as Lowered, Traced as Traced
from jaxmesh.stages.visualize import visualize as visualize
from jaxmesh.tensor.mesh_tensor import MeshTensor as MeshTensor

__version__: str

def _start() -> None: ...
