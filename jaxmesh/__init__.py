"""jaxmesh: an executable model of Tenstorrent's mesh sharding in JAX.

`ttir.mesh_shard` is traced as a primitive, lowered to `distribute_tensor` and `aggregate_tensor` by one pass, and run,
jit-compiled, over a `jax.sharding.Mesh` of host devices that stand in for the hardware.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import TYPE_CHECKING, Any

if os.path.isdir(os.path.join(os.path.dirname(__file__), "isosurface")):
    raise ImportError(
        "the folder of jaxmesh also holds files of another package, `jaxmesh` on PyPI, which computes isosurfaces; "
        "this one is `tt-jaxmesh` there. Run `pip uninstall jaxmesh tt-jaxmesh`, and then `pip install tt-jaxmesh`."
    )

from jaxmesh.runtime.interrupts import (
    end_without_traceback as _end_without_traceback,
    starts_command as _starts_command,
)

if _starts_command():
    _end_without_traceback()

from jaxmesh.errors import (
    ArgumentTypeError as ArgumentTypeError,
    ArgumentValueError as ArgumentValueError,
    AssumptionWarning as AssumptionWarning,
    BlockFloatWarning as BlockFloatWarning,
    DeletedError as DeletedError,
    DeviationWarning as DeviationWarning,
    DeviceCountError as DeviceCountError,
    FolderError as FolderError,
    ForkError as ForkError,
    InexpressibleError as InexpressibleError,
    JaxmeshError as JaxmeshError,
    MeshError as MeshError,
    MeshMismatchError as MeshMismatchError,
    MissingFileError as MissingFileError,
    MissingRuleError as MissingRuleError,
    NotAddressableError as NotAddressableError,
    ParseError as ParseError,
    ProcessMismatchError as ProcessMismatchError,
    RecordingError as RecordingError,
    RecordingSizeError as RecordingSizeError,
    ReplicationError as ReplicationError,
    ResidencyError as ResidencyError,
    ShardShapeWarning as ShardShapeWarning,
    SpecError as SpecError,
    UnloweredError as UnloweredError,
    UnrolledLoopWarning as UnrolledLoopWarning,
    UnsupportedError as UnsupportedError,
    UnsupportedShardTypeError as UnsupportedShardTypeError,
    UntestedJaxWarning as UntestedJaxWarning,
    VerifyError as VerifyError,
)

if TYPE_CHECKING:
    from jaxmesh import ttnn as ttnn
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
    from jaxmesh.stages.from_mlir import from_mlir as from_mlir
    from jaxmesh.stages.host_transfers import (
        check_processes as check_processes,
        from_process_shards as from_process_shards,
        to_host as to_host,
    )
    from jaxmesh.stages.jit import jit as jit
    from jaxmesh.stages.shard_map import shard_map as shard_map
    from jaxmesh.stages.stages import Compiled as Compiled, Lowered as Lowered, Traced as Traced
    from jaxmesh.stages.visualize import visualize as visualize
    from jaxmesh.tensor.mesh_tensor import MeshTensor as MeshTensor

__version__ = "0.2.0"

__all__ = [
    "ArgumentTypeError",
    "ArgumentValueError",
    "AssumptionWarning",
    "BlockFloatWarning",
    "Compiled",
    "DeletedError",
    "DeviationWarning",
    "DeviceCountError",
    "Diagnosis",
    "FolderError",
    "ForkError",
    "InexpressibleError",
    "JaxmeshError",
    "Lowered",
    "MeshComposerConfig",
    "MeshCoordinate",
    "MeshError",
    "MeshMapperConfig",
    "MeshMismatchError",
    "MeshShape",
    "MeshTensor",
    "MissingFileError",
    "MissingRuleError",
    "NotAddressableError",
    "ParseError",
    "PlacementReplicate",
    "PlacementShard",
    "ProcessMismatchError",
    "Recording",
    "RecordingError",
    "RecordingSizeError",
    "ReplicationError",
    "ResidencyError",
    "ShardDirection",
    "ShardShapeWarning",
    "ShardType",
    "SpecError",
    "Traced",
    "UnloweredError",
    "UnrolledLoopWarning",
    "UnsupportedError",
    "UnsupportedShardTypeError",
    "UntestedJaxWarning",
    "VerifyError",
    "check_processes",
    "check_replication",
    "codegen_cpp",
    "codegen_py",
    "compare",
    "diagnose",
    "emulate",
    "from_mlir",
    "from_process_shards",
    "full_to_shard",
    "initialize_processes",
    "jit",
    "make_mesh",
    "mesh_shard",
    "minimize",
    "run_processes",
    "shard_map",
    "shard_to_full",
    "to_host",
    "ttnn",
    "visualize",
]

# Modules of names that are imported on first use: `import jaxmesh` costs little beside `import jax`.
_LATER = {
    "Compiled": "stages.compiled",
    "Lowered": "stages.stages",
    "MeshComposerConfig": "sharding.configs",
    "MeshCoordinate": "sharding.configs",
    "MeshMapperConfig": "sharding.configs",
    "MeshShape": "sharding.configs",
    "MeshTensor": "tensor.mesh_tensor",
    "PlacementReplicate": "sharding.configs",
    "PlacementShard": "sharding.configs",
    "Recording": "analysis.record",
    "ShardDirection": "dialects.ttir.mesh_shard",
    "ShardType": "dialects.ttir.mesh_shard",
    "Traced": "stages.stages",
    "check_processes": "stages.host_transfers",
    "check_replication": "dialects.replication",
    "codegen_cpp": "stages.codegen",
    "codegen_py": "stages.codegen",
    "compare": "analysis.record",
    "diagnose": "analysis.diagnose",
    "minimize": "analysis.diagnose",
    "Diagnosis": "analysis.diagnose",
    "emulate": "sharding.mesh",
    "from_mlir": "stages.from_mlir",
    "from_process_shards": "stages.host_transfers",
    "full_to_shard": "dialects.ttir.mesh_shard",
    "initialize_processes": "runtime.distributed.launcher",
    "jit": "stages.jit",
    "make_mesh": "sharding.mesh",
    "mesh_shard": "dialects.ttir.mesh_shard",
    "run_processes": "runtime.distributed.launcher",
    "shard_map": "stages.shard_map",
    "shard_to_full": "dialects.ttir.mesh_shard",
    "to_host": "stages.host_transfers",
    "visualize": "stages.visualize",
}


def _read(data: bytes) -> Any:
    return importlib.import_module("jaxmesh.tensor.serialization").read(data)


def _build(auxiliary: Any, children: Any) -> Any:
    mesh, varying, place = auxiliary
    return __getattr__("MeshTensor")(children[0], mesh, varying, None, place)


@functools.cache
def _start() -> None:
    """Prepares this process; a command does when its work begins, because `import jax` takes half a second."""
    from jaxmesh.jaxprs import backend
    from jaxmesh.jaxprs.trees import register_reader

    backend.warn_if_untested()
    backend.watch_forks()
    register_reader("jaxmesh.MeshTensor", _read, _build)


if not _starts_command():
    _start()


def __getattr__(name: str) -> Any:
    if name == "ttnn":
        return importlib.import_module("jaxmesh.ttnn")
    if name in _LATER:
        value = getattr(importlib.import_module(f"jaxmesh.{_LATER[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, "ttnn"})
