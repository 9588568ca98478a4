"""`ttnn`'s distribution API, emulated: mappers, composers, `distribute_tensor`, `aggregate_tensor`.

Names, argument order and defaults follow tt-metal's Python bindings (`ttnn/distributed`). The two operations are
the same whether traced or eager: the same configs, the same shape arithmetic, the same errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.errors import ArgumentTypeError, MeshMismatchError, VerifyError
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.sharding.configs import (
    MeshComposerConfig,
    MeshCoordinate,
    MeshMapperConfig,
    MeshShape,
    PlacementReplicate,
    PlacementShard,
)
from jaxmesh.sharding.distribution import land
from jaxmesh.sharding.mesh import make_mesh, splitting_axes
from jaxmesh.tensor.assemble import assemble, set_owner
from jaxmesh.tensor.beyond import REMEDY, is_enabled
from jaxmesh.tensor.host_tensor import Tensor, array_of, in_program, is_host_tensor
from jaxmesh.tensor.mesh_device import MeshDevice, MeshToTensor as MeshToTensor, TensorToMesh as TensorToMesh, mesh_of
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.transfers import aggregate, distribute, host_array
from jaxmesh.tensor.types import ON_HOST, Layout, Storage, StorageType, TensorTopology, on_host
from jaxmesh.validate import as_array, as_tuple, quote


def create_mesh_mapper(mesh_device: MeshDevice | Mesh, config: MeshMapperConfig) -> TensorToMesh:
    """Returns a mapper for `distribute_tensor`.

    Raises:
      ArgumentTypeError: wrong types.
      VerifyError: not one placement per axis of the distribution shape, or a shape larger than the mesh.

    >>> from jaxmesh import ttnn
    >>> device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    >>> config = ttnn.MeshMapperConfig([ttnn.PlacementShard(0), ttnn.PlacementReplicate()])
    >>> ttnn.create_mesh_mapper(device, config)
    TensorToMesh([2, 4], MeshMapperConfig([PlacementShard(0), PlacementReplicate()]))
    """
    mesh = mesh_of(mesh_device)
    if not isinstance(config, MeshMapperConfig):
        raise ArgumentTypeError(f"create_mesh_mapper takes a MeshMapperConfig, got {quote(config)}.")
    _check_count("placements", len(config.placements), config.mesh_shape_override, mesh)
    return TensorToMesh(mesh_device, config)


def _check_count(what: str, count: int, override: MeshShape | None, mesh: Mesh) -> None:
    shape = land(override or mesh.devices.shape, mesh.devices.shape).shape
    if count != len(shape):
        raise VerifyError(
            f"a config needs one of {what} per axis of the distribution shape {list(shape)}, got {count} for "
            f"{len(shape)} axes."
        )


def shard_tensor_to_mesh_mapper(mesh_device: MeshDevice | Mesh, dim: int) -> TensorToMesh:
    """Returns a mapper that cuts dim `dim` over all devices, row-major: `[Shard(dim)]` on the shape `[num_devices]`.

    >>> from jaxmesh import ttnn
    >>> ttnn.shard_tensor_to_mesh_mapper(ttnn.open_mesh_device(mesh_shape=[2, 4]), 0).config
    MeshMapperConfig([PlacementShard(0)], MeshShape([8]))
    """
    devices = MeshShape(mesh_of(mesh_device).devices.size)
    return TensorToMesh(mesh_device, MeshMapperConfig([PlacementShard(dim)], devices))


def replicate_tensor_to_mesh_mapper(mesh_device: MeshDevice | Mesh) -> TensorToMesh:
    """Returns a mapper that copies to all devices: `[Replicate]` on the shape `[num_devices]`.

    >>> from jaxmesh import ttnn
    >>> ttnn.replicate_tensor_to_mesh_mapper(ttnn.open_mesh_device(mesh_shape=[2, 4])).config
    MeshMapperConfig([PlacementReplicate()], MeshShape([8]))
    """
    devices = MeshShape(mesh_of(mesh_device).devices.size)
    return TensorToMesh(mesh_device, MeshMapperConfig([PlacementReplicate()], devices))


def create_mesh_composer(mesh_device: MeshDevice | Mesh, config: MeshComposerConfig) -> MeshToTensor:
    """Returns a composer for `aggregate_tensor`.

    Raises:
      ArgumentTypeError: wrong types.
      VerifyError: not one dim per axis of the distribution shape, or a shape larger than the mesh.

    >>> from jaxmesh import ttnn
    >>> device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    >>> ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0, 1]))
    MeshToTensor([2, 4], MeshComposerConfig([0, 1]))
    """
    mesh = mesh_of(mesh_device)
    if not isinstance(config, MeshComposerConfig):
        raise ArgumentTypeError(f"create_mesh_composer takes a MeshComposerConfig, got {quote(config)}.")
    _check_count("dims", len(config.dims), config.mesh_shape_override, mesh)
    return MeshToTensor(mesh, config)


def concat_mesh_to_tensor_composer(mesh_device: MeshDevice | Mesh, dim: int) -> MeshToTensor:
    """Returns a composer that joins all shards along `dim`, row-major: dims `[dim]` on the shape `[num_devices]`.

    >>> from jaxmesh import ttnn
    >>> ttnn.concat_mesh_to_tensor_composer(ttnn.open_mesh_device(mesh_shape=[2, 4]), 0).config
    MeshComposerConfig([0], MeshShape([8]))
    """
    mesh = mesh_of(mesh_device)
    return MeshToTensor(mesh, MeshComposerConfig([dim], MeshShape(mesh.devices.size)))


def distribute_tensor(tensor: object, mapper: TensorToMesh, mesh_device: MeshDevice | Mesh | None = None) -> Any:
    """Distributes a host tensor over the devices of the mapper's mesh.

    Args:
      tensor: a NumPy or JAX array of any dtype, or a `Tensor`, on the host; inside `jaxmesh.jit` a traced array.
      mapper: from `create_mesh_mapper` or its two shorthands.
      mesh_device: if given, the mapper's device, to which the shards go.

    Returns:
      A `MeshTensor`: without `mesh_device` a multi-device host tensor, which `to_device` brings to the devices to
      compute with (a program under `jaxmesh.jit` takes both); inside `jaxmesh.jit` this device's shard.

    Raises:
      VerifyError: a dim out of range, cut twice, or unevenly; see semantics of `ttnn.distribute_tensor`.
      ResidencyError: the tensor is on the devices already.
      MeshMismatchError: `mesh_device` is not the mapper's.
      MeshError: the mapper's device was closed.

    >>> import numpy as np
    >>> from jaxmesh import ttnn
    >>> device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    >>> t = ttnn.distribute_tensor(np.zeros((16, 4), np.float32), ttnn.shard_tensor_to_mesh_mapper(device, 0))
    >>> t.shape
    Shape([2, 4])
    """
    if not isinstance(mapper, TensorToMesh):
        raise ArgumentTypeError(
            f"distribute_tensor takes a mapper as its second argument, got {quote(mapper)}; make one with "
            "create_mesh_mapper."
        )
    # The mesh of a closed device raises.
    mesh_of(mapper.device)
    if mesh_device is not None and mesh_of(mesh_device) != mapper.mesh:
        raise MeshMismatchError(
            f"distribute_tensor: the mapper is for the mesh {dict(mapper.mesh.shape)}, mesh_device is "
            f"{dict(mesh_of(mesh_device).shape)}; make the mapper for the device it is used on."
        )
    if in_program() and not isinstance(tensor, MeshTensor):
        _check_program("distribute_tensor", mapper.mesh)
        full = as_array("distribute_tensor: the tensor", array_of(tensor))
        return distribute_tensor_p.bind(full, mapper_config=mapper.config)
    _check_elements(mapper, tensor)
    host: Any = tensor
    layout, block = (host.layout, host.block) if is_host_tensor(tensor) else (Layout.ROW_MAJOR, None)
    storage = on_host(layout, block) if mesh_device is None else Storage(layout=layout, block=block)
    return set_owner(distribute(array_of(tensor), mapper.config, mapper.mesh, storage), mesh_device)


def _check_elements(mapper: TensorToMesh, tensor: object) -> None:
    """Refuses to shard a dim of size 0, which the real library does not cut; jaxmesh itself does."""
    given = getattr(tensor, "shape", None)
    if is_enabled() or not isinstance(given, tuple):
        return  # `distribute` refuses anything but a tensor.
    shape = cast("tuple[int, ...]", given)
    rank = len(shape)
    cut = [p.dim for p in mapper.config.placements if isinstance(p, PlacementShard)]
    if any(-rank <= d < rank and shape[d] == 0 for d in cut):
        raise VerifyError(
            f"distribute_tensor cuts dims with elements, but shards a dim of size 0 of {list(shape)}; replicate it, "
            f"{REMEDY}. In ttnn: No chunks were produced."
        )


def aggregate_tensor(tensor: object, composer: MeshToTensor) -> Any:
    """Joins the shards of a multi-device tensor to one host tensor.

    Args:
      tensor: a `MeshTensor`; inside `jaxmesh.jit` a shard. Of several processes all must call this, and get the full
        tensor; `jaxmesh.to_host` can give it to one of them alone.
      composer: from `create_mesh_composer` or its shorthand.

    Returns:
      A host `Tensor`, as the real one does (its `to_numpy` gives the values); inside `jaxmesh.jit` the full tensor.

    Raises:
      VerifyError: a dim out of range or named twice, or a device that is read holds nothing.
      ArgumentTypeError: no multi-device tensor.
      MeshMismatchError: the tensor is on another mesh than the composer's.

    >>> import numpy as np
    >>> from jaxmesh import ttnn
    >>> device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    >>> t = ttnn.distribute_tensor(np.arange(8), ttnn.shard_tensor_to_mesh_mapper(device, 0))
    >>> ttnn.aggregate_tensor(t, ttnn.concat_mesh_to_tensor_composer(device, 0)).to_numpy()
    array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)
    """
    if not isinstance(composer, MeshToTensor):
        raise ArgumentTypeError(
            f"aggregate_tensor takes a composer as its second argument, got {quote(composer)}; make one with "
            "create_mesh_composer."
        )
    if in_program() and not isinstance(tensor, MeshTensor):
        _check_program("aggregate_tensor", composer.mesh)
        shard = as_array("aggregate_tensor: the tensor", tensor)
        return aggregate_tensor_p.bind(shard, composer_config=composer.config)
    if not isinstance(tensor, MeshTensor):
        raise ArgumentTypeError(
            f"aggregate_tensor takes a MeshTensor, got {type(tensor).__name__}; distribute_tensor makes one."
        )
    joined = aggregate(tensor, composer.config, composer.mesh)
    assert joined is not None
    return Tensor.wrap(joined, tensor.layout, tensor.storage.block)


def _check_program(op: str, mesh: Mesh) -> None:
    program = compat.program_mesh(op)
    if list(program.items()) != list(mesh.shape.items()):
        raise MeshMismatchError(
            f"{op}: the config is for the mesh {dict(mesh.shape)}, the program runs on {program}; one program "
            "has one mesh."
        )


def get_device_tensors(tensor: MeshTensor) -> list[Any]:
    """Returns the shards, each a tensor of its device, row-major over the mesh.

    A shard on the devices is a `MeshTensor` on the mesh of one device; a shard in host memory is a host `Tensor`. Each
    has a value without a composer: `ttnn.to_torch(t)`, `numpy.asarray(t)`, `t.to_list()`. No shard is copied. Of
    several processes each gets the shards of its local devices. Shards of random keys, which `ttnn` lacks, are
    `jax.Array`s.

    Raises:
      ArgumentTypeError: no multi-device tensor.
      ResidencyError: it was deallocated, or donated.

    >>> import numpy as np
    >>> from jaxmesh import ttnn
    >>> device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(1, 2))
    >>> t = ttnn.distribute_tensor(np.arange(4), ttnn.shard_tensor_to_mesh_mapper(device, 0))
    >>> [shard.to_list() for shard in ttnn.get_device_tensors(t)]
    [[0, 1], [2, 3]]
    """
    if not isinstance(tensor, MeshTensor):
        raise ArgumentTypeError(f"get_device_tensors takes a MeshTensor, got {type(tensor).__name__}.")
    if jax.dtypes.issubdtype(tensor.data.dtype, jax.dtypes.extended):
        return [shard for _, shard in tensor.shards()]
    if tensor.storage_type() is StorageType.HOST:
        block = tensor.storage.block
        return [Tensor.wrap(np.asarray(shard), tensor.layout, block) for _, shard in tensor.shards()]
    mesh: Any = tensor.mesh
    # As in the real `ttnn`, a shard has the device of the whole tensor.
    owner = tensor.device()
    tensors: list[object] = []
    for coordinate, shard in tensor.shards():
        alone = Mesh(mesh.devices[tuple(slice(c, c + 1) for c in coordinate)], mesh.axis_names, mesh.axis_types)
        data = jax.make_array_from_single_device_arrays(
            shard.shape, NamedSharding(alone, PartitionSpec()), [shard], dtype=shard.dtype
        )
        tensors.append(set_owner(MeshTensor(data, alone, (), None, tensor.storage).mark_proven(), owner))
    return tensors


def check_alike(op: str, rows: Sequence[Array]) -> None:
    """Checks that all shards have one shape and element type."""
    kinds = list(dict.fromkeys((r.shape, r.dtype.name) for r in rows))
    if len(kinds) > 1:
        raise VerifyError(
            f"{op}: all shards must have one shape and dtype, got {kinds[0][1]}{list(kinds[0][0])} and "
            f"{kinds[1][1]}{list(kinds[1][0])}."
        )


def from_host_shards(tensors: Sequence[object], mesh_shape: MeshShape | Sequence[int]) -> MeshTensor:
    """Returns a multi-device host tensor from one host tensor per device, row-major over a mesh of this shape.

    Raises:
      VerifyError: not one tensor per device, or their shapes or dtypes differ.

    >>> import numpy as np
    >>> from jaxmesh import ttnn
    >>> ttnn.from_host_shards([np.zeros(3), np.ones(3)], ttnn.MeshShape(1, 2)).shape
    Shape([3])
    """
    shape = MeshShape(mesh_shape)
    given = as_tuple("from_host_shards", tensors, "a list of tensors")
    rows = [host_array(array_of(t), "from_host_shards").copy() for t in given]
    first = given[0] if given and is_host_tensor(given[0]) else None
    if len(rows) != shape.mesh_size():
        raise VerifyError(
            f"from_host_shards needs one tensor per device, got {len(rows)} for the mesh {list(shape)} of "
            f"{shape.mesh_size()} devices."
        )
    check_alike("from_host_shards", rows)
    mesh = make_mesh(tuple(shape))
    coords = list(np.ndindex(*shape))
    # The shards are unrelated tensors, whose dims are all whole.
    topology = TensorTopology(MeshShape(len(coords)), (PlacementShard(0),), tuple(map(MeshCoordinate, coords)))
    varying = splitting_axes(mesh, mesh.axis_names)
    storage = ON_HOST if first is None else on_host(first.layout, first.block)
    return assemble(dict(zip(coords, rows, strict=True)), mesh, varying, topology, storage)
