"""The shards of a multi-device tensor, for pictures."""

from __future__ import annotations

import itertools
import math
from typing import Any

from jax.sharding import AbstractMesh

from jaxmesh.drawing.picture import tensor_html
from jaxmesh.drawing.placement import Box, Placement, Shard, cut_boxes, make_placement
from jaxmesh.drawing.svg import draw_svg
from jaxmesh.drawing.text_layout import escape
from jaxmesh.sharding.configs import PlacementShard

Shape = tuple[int, ...]


def tensor_placement(tensor: Any) -> Placement:
    """Returns the placement of a `MeshTensor`: boxes of the full tensor if a mapper distributed it."""
    mesh = tensor.mesh
    axes, local = dict(mesh.shape), tuple(tensor.shape)
    coordinates = list(itertools.product(*map(range, axes.values())))
    distribution = _of_topology(tensor, local)
    notes: list[str] = []
    if distribution is not None:
        full, boxes, over = distribution
        shards = [Shard.of_box(boxes[c]) if c in boxes else None for c in coordinates]
        how = str(list(tensor.topology.placements())).replace("Placement", "")
        shape: Shape | None = full
    else:
        holders = _holders(tensor, coordinates)
        kept = axes if tensor.is_partial else tensor.varying
        named = ({n: at for n, at in zip(axes, c, strict=True) if n in kept} for c in coordinates)
        held = (holders is None or c in holders for c in coordinates)
        shards = [Shard.at(n, local) if has else None for n, has in zip(named, held, strict=True)]
        shape, over = (local, [()] * len(local)) if not tensor.varying else (None, None)
        how = f"varies over {', '.join(tensor.varying)}" if tensor.varying and not tensor.is_partial else "a MeshTensor"
        if not tensor.varying:
            shards, how = [Shard.of_box(tuple((0, n) for n in local))] * len(coordinates), "the same on every device"
        else:
            notes.append(
                "its shards were computed by a program. Types state the mesh axes over which shards vary, not the "
                "part of the full tensor that each shard is."
            )
    if tensor.storage_type().name == "HOST":
        notes.append("it is in host memory, one shard per device.")
    devices = None if isinstance(mesh, AbstractMesh) else list(mesh.devices.flat)
    return make_placement(
        axes, shards, dtype=tensor.dtype, itemsize=tensor.element_size(), shape=shape, how=how, over=over, notes=notes,
        ids=None if devices is None else [d.id for d in devices], device_notes=process_notes(devices),
    )  # fmt: skip


def as_html(tensor: Any) -> str:
    """Returns the picture of a `MeshTensor` as a part of a page; for a deallocated tensor, its text."""
    if not tensor.is_allocated():
        return f"<pre>{escape(repr(tensor))}</pre>"
    return tensor_html(tensor_placement(tensor))


def as_svg(tensor: Any) -> str | None:
    """Returns the picture of a `MeshTensor` as SVG; None for a deallocated tensor."""
    return draw_svg(tensor_placement(tensor)) if tensor.is_allocated() else None


def process_notes(devices: list[Any] | None) -> list[str] | None:
    """Returns a note per device if the devices belong to several processes."""
    if devices is None or len({d.process_index for d in devices}) < 2:
        return None
    return [f"of process {d.process_index}" for d in devices]


def _holders(tensor: Any, coordinates: list[Shape]) -> set[Shape] | None:
    """Returns the mesh coordinates with a shard of a partial tensor; None for a complete tensor."""
    if not tensor.is_partial:
        return None
    occupied: set[Shape] | None = tensor.occupied_coordinates()
    if occupied is not None:
        return occupied
    occupied_devices: set[Any] = tensor.data.sharding.device_set
    return {c for c in coordinates if tensor.mesh.devices[c] in occupied_devices}


def _of_topology(tensor: Any, local: Shape) -> tuple[Shape, dict[Shape, Box], list[list[str]] | None] | None:
    """Returns the full shape, the box per mesh coordinate, and the mesh axes per dim by the topology; None without a
    topology."""
    topology = tensor.topology
    if topology is None:
        return None
    sizes, coordinates = tuple(topology.distribution_shape()), [tuple(c) for c in topology.mesh_coords()]
    dims = [_dim(p, len(local)) for p in topology.placements()]
    if -1 in dims or len({d for d in dims if d is not None}) < sum(d is not None for d in dims):
        return None
    if len(sizes) == 1 and dims[0] is not None:
        # Fewer shards than devices: the other devices are empty.
        sizes = (len(coordinates),)
    over = [[i for i, at in enumerate(dims) if at == d] for d in range(len(local))]
    full = tuple(n * math.prod(sizes[i] for i in axes) for n, axes in zip(local, over, strict=True))
    boxes = dict(zip(coordinates, cut_boxes(full, over, dict(enumerate(sizes))), strict=False))
    names, counts = list(tensor.mesh.shape), tuple(tensor.mesh.shape.values())
    if sizes == counts:
        return full, boxes, [[names[i] for i in axes] for axes in over]
    spread = len(sizes) == 1 and sizes[0] == math.prod(counts)
    return full, boxes, [names if axes else [] for axes in over] if spread else None


def _dim(placement: Any, rank: int) -> int | None:
    """Returns the dim that a placement splits; None for a replicated placement, -1 for a dim out of range."""
    if not isinstance(placement, PlacementShard):
        return None
    return placement.dim % rank if -rank <= placement.dim < rank else -1
