"""Prints a mesh and the shards on its devices."""

from __future__ import annotations

from jax.sharding import Mesh

from jaxmesh.drawing.picture import TensorPicture
from jaxmesh.drawing.placements import mesh_placement, tensor_placement
from jaxmesh.errors import ArgumentTypeError
from jaxmesh.tensor.device import MeshDevice, mesh_of
from jaxmesh.tensor.mesh_tensor import MeshTensor


def visualize_mesh_device(mesh_device: MeshDevice | Mesh) -> None:
    """Prints the mesh: each device with its id and coordinate.

    In colours if stdout is a terminal; `jaxmesh.visualize` draws the same picture.

    Raises:
      ArgumentTypeError: no mesh device.

    >>> from jaxmesh import ttnn
    >>> ttnn.visualize_mesh_device(ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(1, 2)))
    mesh y=1, x=2: 2 devices
    <BLANKLINE>
         x=0  x=1
    y=0  0    1
    """
    TensorPicture(mesh_placement(mesh_of(mesh_device))).show()


def visualize_tensor(tensor: MeshTensor) -> None:
    """Prints the mesh of a tensor: each device with its shard; see `visualize_mesh_device`.

    Raises:
      ArgumentTypeError: no multi-device tensor.
      ResidencyError: the tensor was deallocated.
    """
    if not isinstance(tensor, MeshTensor):
        raise ArgumentTypeError(
            f"what is drawn is a multi-device tensor, got {type(tensor).__name__}; distribute_tensor makes one."
        )
    TensorPicture(tensor_placement(tensor)).show()
