"""jaxmesh: an executable model of Tenstorrent's mesh sharding in JAX.

`ttir.mesh_shard` is traced as a primitive, lowered to `distribute_tensor` and `aggregate_tensor` by one pass, and run,
jit-compiled, over a `jax.sharding.Mesh` of host devices that stand in for the hardware.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
    FolderError as FolderError,
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
from jaxmesh.mapped import shard_map as shard_map
from jaxmesh.mesh import emulate as emulate, make_mesh as make_mesh
from jaxmesh.runtime.tensor import MeshTensor as MeshTensor
from jaxmesh.stages import (
    Compiled as Compiled,
    Lowered as Lowered,
    Traced as Traced,
)

if TYPE_CHECKING:
    from jaxmesh import ttnn as ttnn
    from jaxmesh.codegen import codegen_cpp as codegen_cpp, codegen_py as codegen_py
    from jaxmesh.import_mlir import from_mlir as from_mlir

__version__ = "0.1.0"

# What needs the table of ops is read when it is asked for: importing jaxmesh costs little beside importing JAX.
_LATER = {"codegen_cpp": "codegen", "codegen_py": "codegen", "from_mlir": "import_mlir"}


def __getattr__(name: str) -> Any:
    if name == "ttnn":
        return importlib.import_module("jaxmesh.ttnn")
    if name in _LATER:
        found = getattr(importlib.import_module(f"jaxmesh.{_LATER[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, "ttnn"})
