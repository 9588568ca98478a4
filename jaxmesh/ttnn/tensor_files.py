"""Tensors in files. The format is this emulation's own, a NumPy archive without pickled objects."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from jaxmesh.errors import ArgumentTypeError, JaxmeshError, MeshMismatchError, MissingFileError, ParseError
from jaxmesh.runtime.distributed.collectives import agree, leaders
from jaxmesh.sharding.configs import MeshCoordinate, MeshShape, Placement, PlacementReplicate, PlacementShard
from jaxmesh.sharding.mesh import make_mesh
from jaxmesh.ttnn.convert import get_dtype
from jaxmesh.ttnn.device import mesh_of
from jaxmesh.ttnn.host_tensor import Tensor, is_host_tensor
from jaxmesh.ttnn.layout_ops import to_device
from jaxmesh.ttnn.mesh_tensor import MeshTensor, assemble
from jaxmesh.ttnn.transfers import elements, everywhere
from jaxmesh.ttnn.types import DataType, Layout, Place, StorageType, TensorTopology
from jaxmesh.validate import SupportsArray, as_path

_FORMAT = "jaxmesh tensor 1"


def dump_tensor(file_name: str | Path, tensor: Any) -> None:
    """Writes a tensor to a file: its elements, element type and layout, of a distributed one every shard.

    The format is not the real `ttnn`'s; `load_tensor` reads it back. Of several processes all must take part; the first
    one writes, and the others wait for it.

    Raises:
      ArgumentTypeError: no tensor, or no path.
      MissingFileError: the file cannot be written.
    """
    target = as_path("dump_tensor", file_name)
    if isinstance(tensor, MeshTensor):
        mesh: Any = tensor.mesh
        writer = leaders(mesh.devices.flat)[0].process_index
        shards = everywhere(tensor, writer)
        if shards is None:
            agree("dump_tensor: the file written", "", b"", list(mesh.devices.flat))
            return
        data = np.stack(list(shards.values()))
        about: dict[str, Any] = {
            "mesh": list(tensor.mesh.shape.items()),
            "coordinates": [list(c) for c in shards],
            "varying": None if tensor.partial else list(tensor.varying),
            "topology": _topology_out(tensor.topology),
        }
        layout = tensor.layout
    elif is_host_tensor(tensor) or isinstance(tensor, SupportsArray):
        held: Any = tensor
        data, about = elements(held, "dump_tensor"), {}
        layout = held.layout if is_host_tensor(held) else Layout.ROW_MAJOR
    else:
        raise ArgumentTypeError(f"dump_tensor takes a tensor, got {type(tensor).__name__}.")
    about |= {"format": _FORMAT, "dtype": get_dtype(data).name, "shape": list(data.shape), "layout": layout.name}
    raw = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
    try:
        with target.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), data=raw)
    except OSError as error:
        raise MissingFileError(
            f"dump_tensor cannot write {str(target)!r} ({error.strerror}); name a file in a folder that exists."
        ) from None
    if isinstance(tensor, MeshTensor):
        spread: Any = tensor.mesh
        agree("dump_tensor: the file written", "", b"", list(spread.devices.flat))


def load_tensor(file_name: str | Path, *, device: Any = None) -> Any:
    """Reads a tensor that `dump_tensor` wrote.

    Args:
      file_name: the file.
      device: a mesh device to bring it to; of a distributed tensor one of the mesh shape it was on.

    Returns:
      A host `Tensor`, or a multi-device host tensor; with a device one on the devices.

    Raises:
      MissingFileError: the file does not exist.
      ParseError: it is none of `dump_tensor`.
      MeshMismatchError: the tensor was distributed over a mesh of another shape.
    """
    source = as_path("load_tensor", file_name)
    if not source.is_file():
        raise MissingFileError(f"there is no file {str(source)!r} to load a tensor from.")
    try:
        with source.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            about, raw = json.loads(str(archive["about"])), archive["data"]
        kind = DataType[about["dtype"]].dtype
        data = np.frombuffer(raw.tobytes(), kind).reshape(about["shape"])
        layout = Layout[about["layout"]]
        if about["format"] != _FORMAT:
            raise ParseError(f"its format is {about['format']!r}, this one reads {_FORMAT!r}.")
        if "mesh" not in about:
            host = Tensor(data, layout=layout)
            return host if device is None else to_device(host, device)
        return _distributed(data, about, layout, device)
    except (MeshMismatchError, ParseError):
        raise
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, zipfile.BadZipFile, JaxmeshError) as e:
        raise ParseError(f"{str(source)!r} holds no tensor that dump_tensor wrote: {e}") from e


def _distributed(data: np.ndarray[Any, Any], about: dict[str, Any], layout: Layout, device: Any) -> MeshTensor:
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
    place = Place(StorageType.HOST, layout, None) if device is None else Place(layout=layout)
    return assemble(shards, mesh, varying, _topology_in(about["topology"]), place)


def _topology_out(topology: TensorTopology | None) -> Any:
    if topology is None:
        return None
    dims = [p.dim if isinstance(p, PlacementShard) else None for p in topology.placements()]
    return [list(topology.distribution_shape()), dims, [list(c) for c in topology.mesh_coords()]]


def _topology_in(said: Any) -> TensorTopology | None:
    if said is None:
        return None
    shape, dims, coordinates = said
    placements: list[Placement] = [PlacementReplicate() if d is None else PlacementShard(d) for d in dims]
    return TensorTopology(MeshShape(shape), tuple(placements), tuple(MeshCoordinate(c) for c in coordinates))
