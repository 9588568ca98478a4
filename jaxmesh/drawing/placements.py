"""The placements of arrays, of specs on shapes, of meshes and of tensors, for `jaxmesh.visualize`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxmesh.drawing.picture import tensor_html
from jaxmesh.drawing.placement import Box, Placement, Shard, cut_boxes, make_placement
from jaxmesh.drawing.svg import draw_svg
from jaxmesh.drawing.text_layout import escape
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, UnsupportedError
from jaxmesh.jaxprs.typed import indices_of
from jaxmesh.jaxprs.untyped import Device
from jaxmesh.runtime.array_views import check_alive
from jaxmesh.sharding.configs import PlacementShard, integers
from jaxmesh.sharding.shard_attributes import spec_axes
from jaxmesh.validate import check_size, quote

AnyMesh = Mesh | AbstractMesh
Shape = tuple[int, ...]
MOST_DEVICES = 4096
"""The largest number of devices of a mesh that is drawn."""


def mesh_placement(mesh: AnyMesh) -> Placement:
    """Returns a placement without pieces, of a mesh alone."""
    _check_count(math.prod(mesh.shape.values()))
    axes, (ids, notes) = dict(mesh.shape), _ids(mesh)
    return make_placement(
        axes, [None] * math.prod(axes.values()), dtype="", itemsize=0, shape=None, how="", ids=ids, device_notes=notes
    )


def spec_placement(shape: Shape, dtype: Any, spec: PartitionSpec, mesh: AnyMesh) -> Placement:
    """Returns the placement of a shape under a spec."""
    axes = dict(mesh.shape)
    _check_count(math.prod(axes.values()))
    over = spec_axes(spec, len(shape), axes)
    shards = list(map(Shard.of_box, cut_boxes(shape, over, axes)))
    ids, device_notes = _ids(mesh)
    return make_placement(
        axes, shards, dtype=dtype, itemsize=dtype.itemsize, shape=shape, how=spec_text(spec), ids=ids, over=over,
        notes=_uneven_dims(shape, over, axes), device_notes=device_notes,
    )  # fmt: skip


def array_placement(x: Any) -> Placement:
    """Returns the placement of a `jax.Array`, or of its type, by its sharding."""
    if isinstance(x, Tracer):
        raise ArgumentTypeError(
            f"visualize draws arrays that hold numbers, got {quote(x)}, a value of a trace; draw the program instead: "
            "jaxmesh.visualize(f.trace(...)) or f.lower(...)."
        )
    check_alive(x, "visualize")
    if x.sharding is None:
        raise ArgumentTypeError(
            f"visualize got {quote(x)}, a type without a sharding; add one, or pass the spec and the mesh: "
            "jaxmesh.visualize(x, P(...), mesh=mesh)."
        )
    return sharding_placement(tuple(x.shape), x.dtype, x.sharding)


def sharding_placement(shape: Shape, dtype: Any, sharding: Any, on: Mesh | None = None) -> Placement:
    """Returns the placement of a type under a sharding; `on` is the mesh of a sharding without mesh axes."""
    named = sharding if isinstance(sharding, NamedSharding) else None
    if named is not None and isinstance(named.mesh, AbstractMesh):
        return spec_placement(shape, dtype, named.spec, named.mesh)
    mesh = on if named is None else named.mesh
    devices, axes = _arrange(sharding, mesh if isinstance(mesh, Mesh) else None)
    _check_count(len(devices))
    try:
        indices = indices_of(sharding, shape)
        boxes = [tuple(s.indices(n)[:2] for s, n in zip(indices[d], shape, strict=True)) for d in devices]
    except (ValueError, TypeError, NotImplementedError) as error:
        raise ArgumentValueError(
            f"visualize: the sharding {quote(sharding)} does not fit the shape {list(shape)}: {error}"
        ) from None
    memory, default = sharding.memory_kind, devices[0].default_memory().kind
    notes = [f"it is in the memory {memory!r}."] if memory not in (None, "device", default) else []
    how, over = f"on {devices[0]}" if len(devices) == 1 else type(sharding).__name__, None
    if named is not None:
        how, over = spec_text(named.spec), _entries(named.spec, len(shape))
        left = {"unreduced": named.spec.unreduced, "reduced": named.spec.reduced}
        notes += [f"{word} over {sorted(map(str, axes))}." for word, axes in left.items() if axes]
    return make_placement(
        axes, list(map(Shard.of_box, boxes)), dtype=dtype, itemsize=dtype.itemsize,
        shape=shape, how=how, ids=[d.id for d in devices], over=over, notes=notes, device_notes=_process_notes(devices),
    )  # fmt: skip


def _arrange(sharding: Any, mesh: Mesh | None) -> tuple[list[Any], dict[str, int]]:
    """Returns the devices of a sharding in mesh order, and its axes; without a mesh, the devices in one row."""
    devices: list[Device] = sorted(sharding.device_set, key=lambda d: (d.process_index, d.id))
    if mesh is None or set(mesh.devices.flat) != set(devices):
        return devices, {"device": len(devices)}
    return list(mesh.devices.flat), dict(mesh.shape)


def _entries(spec: PartitionSpec, rank: int) -> list[tuple[str, ...]]:
    """Returns the mesh axes on each dim."""
    entries: list[Any] = [*spec, *[None] * (rank - len(spec))]
    return [() if e is None else cast("tuple[str, ...]", e) if isinstance(e, tuple) else (e,) for e in entries]


def spec_text(spec: PartitionSpec) -> str:
    """Formats a partition spec as users write it.

    >>> spec_text(PartitionSpec(("y", "x"), None))
    "P(('y', 'x'), None)"
    """
    return str(spec).replace("PartitionSpec", "P", 1)


def shape_and_dtype(x: Any, dtype: Any) -> tuple[Shape, object]:
    """Returns the shape and the element type to draw: of an array, of its type, or of a sequence of sizes."""
    shape = getattr(x, "shape", x)
    sizes = integers("the shape that visualize draws", (shape,) if isinstance(shape, int) else shape)
    if any(n < 0 for n in sizes):
        raise ArgumentValueError(f"the sizes of a shape are not negative, got {list(sizes)}; pass sizes of 0 or more.")
    requested = dtype if dtype is not None else getattr(x, "dtype", np.float32)
    try:
        element_type = requested if jax.dtypes.issubdtype(requested, jax.dtypes.extended) else np.dtype(requested)
        known = any(jax.dtypes.issubdtype(element_type, k) for k in (np.number, np.bool_, jax.dtypes.extended))
    except Exception:
        known, element_type = False, None
    if not known:
        raise ArgumentTypeError(f"visualize takes a dtype such as jnp.float32, got {quote(requested)}.")
    check_size(sizes, element_type, "the tensor that visualize draws")
    return sizes, element_type


def as_spec(spec: object) -> PartitionSpec:
    """Checks the `spec` of `visualize`."""
    if not isinstance(spec, PartitionSpec):
        raise ArgumentTypeError(
            f"visualize takes a jax.sharding.PartitionSpec as spec, got {quote(spec)}; write P('y', None)."
        )
    return spec


def _ids(mesh: AnyMesh) -> tuple[list[int] | None, list[str] | None]:
    if isinstance(mesh, AbstractMesh):
        return None, None
    devices = list(mesh.devices.flat)
    return [d.id for d in devices], _process_notes(devices)


def _check_count(count: int) -> None:
    if count > MOST_DEVICES:
        raise UnsupportedError(
            f"visualize draws meshes of up to {MOST_DEVICES} devices, this one has {count}; draw a smaller mesh of the "
            "same axes."
        )


def _uneven_dims(shape: Shape, over: Sequence[Sequence[str]], axes: dict[str, int]) -> list[str]:
    notes: list[str] = []
    for dim, (size, dim_axes) in enumerate(zip(shape, over, strict=True)):
        count = math.prod(axes[a] for a in dim_axes)
        if size % count:
            notes.append(
                f"{count} shards do not divide dim {dim} of size {size}: it is drawn in chunks of {-(-size // count)}, "
                f"but arrays and programs need equal shards; pad the dim to {-(-size // count) * count}."
            )
    return notes


# --- multi-device tensors --------------------------------------------------------------------------------------------


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
    ids, device_notes = _ids(mesh)
    return make_placement(
        axes, shards, dtype=tensor.dtype, itemsize=tensor.element_size(), shape=shape, how=how, over=over, notes=notes,
        ids=ids, device_notes=device_notes,
    )  # fmt: skip


def as_html(tensor: Any) -> str:
    """Returns the picture of a `MeshTensor` as a part of a page; for a deallocated tensor, its text."""
    if not tensor.is_allocated():
        return f"<pre>{escape(repr(tensor))}</pre>"
    return tensor_html(tensor_placement(tensor))


def as_svg(tensor: Any) -> str | None:
    """Returns the picture of a `MeshTensor` as SVG; None for a deallocated tensor."""
    return draw_svg(tensor_placement(tensor)) if tensor.is_allocated() else None


def _process_notes(devices: list[Device]) -> list[str] | None:
    """Returns a note per device if the devices belong to several processes."""
    if len({d.process_index for d in devices}) < 2:
        return None
    return [f"of process {d.process_index}" for d in devices]


def _holders(tensor: Any, coordinates: list[Shape]) -> set[Shape] | None:
    """Returns the mesh coordinates with a shard of a partial tensor; None for a complete tensor."""
    if not tensor.is_partial:
        return None
    occupied: set[Shape] | None = tensor.occupied_coordinates()
    if occupied is not None:
        return occupied
    occupied_devices: set[object] = tensor.data.sharding.device_set
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
