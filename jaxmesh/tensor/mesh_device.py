"""`ttnn.MeshDevice`, emulated by a mesh of host devices, and its mappers and composers.

Cores of one device, and shard specs of tensors over them, change no value.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from jaxmesh.errors import ArgumentTypeError, MeshError
from jaxmesh.sharding.configs import MeshComposerConfig, MeshCoordinate, MeshMapperConfig, MeshShape, integers
from jaxmesh.sharding.mesh import as_mesh
from jaxmesh.validate import as_instance, as_tuple


class MeshDevice:
    """A mesh of devices, as `ttnn.open_mesh_device` gives it; `.mesh` is the `jax.sharding.Mesh` behind it."""

    __slots__ = ("_mesh", "_open", "has_l1_small")

    def __init__(self, mesh: Mesh, has_l1_small: bool = True) -> None:
        self._mesh = _check_mesh(mesh)
        self._open = True
        self.has_l1_small = has_l1_small

    @property
    def mesh(self) -> Mesh:
        """The JAX mesh.

        Raises:
          MeshError: the device was closed.
        """
        return self.check_open()._mesh

    def check_open(self) -> MeshDevice:
        """Returns the device if it is open."""
        if not self._open:
            raise MeshError(
                f"the mesh device {list(self._mesh.devices.shape)} was closed with close_mesh_device; open one again."
            )
        return self

    @property
    def shape(self) -> MeshShape:
        """The mesh shape."""
        return MeshShape(self.mesh.devices.shape)

    def get_num_devices(self) -> int:
        """Returns the number of devices."""
        return self.mesh.devices.size

    def get_device_ids(self) -> list[int]:
        """Returns the ids of the devices, row-major."""
        return [d.id for d in self.mesh.devices.flat]

    def create_submesh(
        self, submesh_shape: MeshShape | Sequence[int], offset: MeshCoordinate | Sequence[int] | None = None
    ) -> MeshDevice:
        """Returns a block of the mesh as a mesh device.

        Args:
          submesh_shape: its shape.
          offset: its first coordinate, by default the origin.

        Raises:
          MeshError: it does not lie in the mesh.
        """
        whole = self.mesh.devices.shape
        shape = tuple(MeshShape(submesh_shape))
        start = (0,) * len(shape) if offset is None else integers("create_submesh: offset", offset)
        if (
            len(shape) != len(whole)
            or len(start) != len(whole)
            or any(not 0 <= s <= n - k for s, k, n in zip(start, shape, whole, strict=True))
        ):
            raise MeshError(
                f"a submesh of shape {list(shape)} at {list(start)} does not lie in the mesh {list(whole)}."
            )
        block = self.mesh.devices[tuple(slice(s, s + k) for s, k in zip(start, shape, strict=True))]
        return MeshDevice(Mesh(block, self.mesh.axis_names, self.mesh.axis_types), self.has_l1_small)

    def close(self) -> None:
        """Closes the device; using it afterwards is an error."""
        self._open = False

    def __repr__(self) -> str:
        return f"MeshDevice({list(self._mesh.devices.shape)}{'' if self._open else ', closed'})"


def mesh_of(mesh_device: MeshDevice | Mesh) -> Mesh:
    """Returns the JAX mesh of a mesh device, or the mesh itself."""
    return mesh_device.mesh if isinstance(mesh_device, MeshDevice) else _check_mesh(mesh_device)


def _check_mesh(mesh_device: object) -> Mesh:
    if isinstance(mesh_device, Mesh):
        mesh: Any = as_mesh(mesh_device)
        return mesh
    raise ArgumentTypeError(
        f"a mesh device is what open_mesh_device gives, or a jax.sharding.Mesh; got {type(mesh_device).__name__}."
    )


class TensorToMesh:
    """A mapper: a mesh and a mapper config; made by `create_mesh_mapper`."""

    __slots__ = ("config", "device", "mesh")

    def __init__(self, mesh: MeshDevice | Mesh, config: MeshMapperConfig) -> None:
        self.mesh = mesh_of(mesh)
        self.device = mesh
        self.config = as_instance(MeshMapperConfig, "TensorToMesh", "config", config)

    def __repr__(self) -> str:
        return f"TensorToMesh({list(self.mesh.devices.shape)}, {self.config})"


class MeshToTensor:
    """A composer: a mesh and a composer config; made by `create_mesh_composer`."""

    __slots__ = ("config", "mesh")

    def __init__(self, mesh: MeshDevice | Mesh, config: MeshComposerConfig) -> None:
        self.mesh = mesh_of(mesh)
        self.config = as_instance(MeshComposerConfig, "MeshToTensor", "config", config)

    def __repr__(self) -> str:
        return f"MeshToTensor({list(self.mesh.devices.shape)}, {self.config})"


@dataclass(frozen=True, slots=True)
class CoreCoord:
    """One core of a device."""

    x: int
    y: int


@dataclass(frozen=True, slots=True)
class CoreRange:
    """The cores between two corners, both included."""

    start: CoreCoord
    end: CoreCoord


@dataclass(frozen=True, slots=True, init=False)
class CoreRangeSet:
    """Several ranges of cores."""

    ranges: tuple[CoreRange, ...]

    def __init__(self, ranges: object) -> None:
        row = (ranges,) if isinstance(ranges, CoreRange) else as_tuple("CoreRangeSet", ranges, "a list of CoreRange")
        object.__setattr__(self, "ranges", tuple(as_instance(CoreRange, "CoreRangeSet", "range", r) for r in row))


class ShardOrientation(enum.Enum):
    """The order of cores along the shards of a tensor."""

    ROW_MAJOR = 0
    COL_MAJOR = 1


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The shards of a tensor over the cores of a device; kept and ignored."""

    grid: Any
    shape: Any
    orientation: ShardOrientation = ShardOrientation.ROW_MAJOR
