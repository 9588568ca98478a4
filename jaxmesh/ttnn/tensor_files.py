"""Writes tensors to files and reads them, in a format of jaxmesh: a NumPy archive without pickled objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxmesh.errors import ArgumentTypeError, JaxmeshError, MeshMismatchError, MissingFileError, ParseError
from jaxmesh.jaxprs.untyped import Array, Device
from jaxmesh.runtime.distributed.collectives import agree, leaders
from jaxmesh.runtime.npz import BROKEN, open_arrays
from jaxmesh.sharding.configs import MeshCoordinate, MeshShape, Placement, PlacementReplicate, PlacementShard
from jaxmesh.sharding.mesh import make_mesh
from jaxmesh.tensor.assemble import assemble
from jaxmesh.tensor.host_tensor import Tensor, is_host_tensor
from jaxmesh.tensor.mesh_device import MeshDevice, mesh_of
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.transfers import elements, gather_shards
from jaxmesh.tensor.types import DataType, Layout, Storage, TensorTopology, on_host
from jaxmesh.ttnn.convert import get_dtype
from jaxmesh.ttnn.layout_ops import to_device
from jaxmesh.ttnn.settings import DumpTensorMode
from jaxmesh.validate import as_path, whole_file

_FORMAT = "jaxmesh tensor 1"


def dump_tensor(
    file_name: str | Path, tensor: object, *, mode: DumpTensorMode = DumpTensorMode.DISTRIBUTED_GATHER
) -> None:
    """Writes elements, element type and layout of a tensor to a file; of a distributed tensor every shard.

    The format is not the real `ttnn`'s; `load_tensor` reads it back. Of several processes all must take part; the first
    one writes, and the others wait for it.

    Raises:
      ArgumentTypeError: no tensor, or no path.
      MissingFileError: the file cannot be written.
    """
    target = as_path("dump_tensor", file_name)
    devices: list[Device] = []
    if isinstance(tensor, MeshTensor):
        mesh: Any = tensor.mesh
        devices = list(mesh.devices.flat)
        shards = gather_shards(tensor, leaders(devices)[0].process_index)
        if shards is None:
            agree("dump_tensor: the file written", "", b"", devices)
            return
        data = np.stack(list(shards.values()))
        about: dict[str, Any] = {
            "mesh": list(mesh.shape.items()),
            "coordinates": [list(c) for c in shards],
            "varying": None if tensor.is_partial else list(tensor.varying),
            "topology": _topology_entry(tensor.topology),
        }
        layout = tensor.layout
    elif getattr(tensor, "__array__", None) is not None:
        host: Any = tensor
        data, about = elements(host, "dump_tensor"), {}
        layout = host.layout if is_host_tensor(host) else Layout.ROW_MAJOR
    else:
        raise ArgumentTypeError(f"dump_tensor takes a tensor, got {type(tensor).__name__}.")
    about |= {"format": _FORMAT, "dtype": get_dtype(data).name, "shape": list(data.shape), "layout": layout.name}
    raw = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
    try:
        with whole_file(target) as file:
            np.savez(file, about=np.array(json.dumps(about)), data=raw)
    except OSError as error:
        raise MissingFileError(
            f"dump_tensor cannot write {str(target)!r} ({error.strerror}); name a file in a folder that exists."
        ) from None
    if devices:
        agree("dump_tensor: the file written", "", b"", devices)


def load_tensor(file_name: str | Path, *, device: MeshDevice | Mesh | None = None) -> Tensor | MeshTensor:
    """Reads a tensor that `dump_tensor` wrote.

    Args:
      file_name: the file.
      device: a mesh device to bring it to; of a distributed tensor one of the mesh shape it was on.

    Returns:
      A host `Tensor`, or a multi-device host tensor; with a device one on the devices.

    Raises:
      MissingFileError: the file does not exist.
      ParseError: `dump_tensor` did not write it.
      MeshMismatchError: the tensor was distributed over a mesh of another shape.
    """
    source = as_path("load_tensor", file_name)
    if not source.is_file():
        raise MissingFileError(f"found no file {str(source)!r} to load a tensor from.")
    try:
        with open_arrays(source) as archive:
            about, raw = json.loads(str(archive["about"])), archive["data"]
        kind = DataType[about["dtype"]].dtype
        data = np.frombuffer(raw.tobytes(), kind).reshape(about["shape"])
        layout = Layout[about["layout"]]
        if about["format"] != _FORMAT:
            raise ParseError(f"its format is {about['format']!r}, this one reads {_FORMAT!r}.")
        if "mesh" not in about:
            host = Tensor(data, layout=layout)
            return host if device is None else to_device(host, device)
        return _distribute(data, about, layout, device)
    except (MeshMismatchError, ParseError):
        raise
    except (*BROKEN, JaxmeshError) as e:
        raise ParseError(f"{str(source)!r} holds no tensor that dump_tensor wrote: {e}") from e


def _distribute(data: Array, about: dict[str, Any], layout: Layout, device: Any) -> MeshTensor:
    names, sizes = zip(*about["mesh"], strict=True)
    mesh = make_mesh(sizes, names) if device is None else mesh_of(device)
    if mesh.devices.shape != tuple(sizes):
        raise MeshMismatchError(
            f"load_tensor: the tensor was distributed over a mesh of shape {list(sizes)}, the device is "
            f"{list(mesh.devices.shape)}."
        )
    renamed = dict(zip(names, mesh.axis_names, strict=True))
    varying = None if about["varying"] is None else tuple(renamed[a] for a in about["varying"])
    shards = {tuple(c): np.array(s) for c, s in zip(about["coordinates"], data, strict=True)}
    storage = on_host(layout) if device is None else Storage(layout=layout)
    return assemble(shards, mesh, varying, _read_topology(about["topology"]), storage)


def _topology_entry(topology: TensorTopology | None) -> object:
    if topology is None:
        return None
    dims = [p.dim if isinstance(p, PlacementShard) else None for p in topology.placements()]
    return [list(topology.distribution_shape()), dims, [list(c) for c in topology.mesh_coords()]]


def _read_topology(entry: Any) -> TensorTopology | None:
    if entry is None:
        return None
    shape, dims, coordinates = entry
    placements: list[Placement] = [PlacementReplicate() if d is None else PlacementShard(d) for d in dims]
    return TensorTopology(MeshShape(shape), tuple(placements), tuple(MeshCoordinate(c) for c in coordinates))
