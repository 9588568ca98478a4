"""The placements of arrays, of specs on shapes, and of meshes, for `jaxmesh.visualize`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxmesh.drawing.mesh_tensor import process_notes
from jaxmesh.drawing.placement import Placement, Shard, cut_boxes, make_placement
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, UnsupportedError
from jaxmesh.runtime.array_views import check_alive
from jaxmesh.sharding.configs import integers
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
        indices = cast("dict[Any, Any]", sharding.devices_indices_map(shape))
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
        shape=shape, how=how, ids=[d.id for d in devices], over=over, notes=notes, device_notes=process_notes(devices),
    )  # fmt: skip


def _arrange(sharding: Any, mesh: Mesh | None) -> tuple[list[Any], dict[str, int]]:
    """Returns the devices of a sharding in mesh order, and its axes; without a mesh, the devices in one row."""
    devices: list[Any] = sorted(sharding.device_set, key=lambda d: (d.process_index, d.id))
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


def shape_and_dtype(x: Any, dtype: Any) -> tuple[Shape, Any]:
    """Returns the shape and the element type to draw: of an array, of its type, or of a sequence of sizes."""
    shape = getattr(x, "shape", x)
    sizes = integers("the shape that visualize draws", (shape,) if isinstance(shape, int) else shape)
    if any(n < 0 for n in sizes):
        raise ArgumentValueError(f"the sizes of a shape are not negative, got {list(sizes)}; pass sizes of 0 or more.")
    requested = dtype if dtype is not None else getattr(x, "dtype", np.float32)
    try:
        element_type: Any = requested if jax.dtypes.issubdtype(requested, jax.dtypes.extended) else np.dtype(requested)
        known = any(jax.dtypes.issubdtype(element_type, k) for k in (np.number, np.bool_, jax.dtypes.extended))
    except Exception:
        known, element_type = False, None
    if not known:
        raise ArgumentTypeError(f"visualize takes a dtype such as jnp.float32, got {quote(requested)}.")
    check_size(sizes, element_type, "the tensor that visualize draws")
    return sizes, element_type


def as_spec(spec: Any) -> PartitionSpec:
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
    return [d.id for d in devices], process_notes(devices)


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
