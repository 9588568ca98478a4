"""The shardings that `jaxmesh.jit` is given and that arrays carry, warnings of dropped parts, and a program's mesh."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from jaxmesh.errors import ArgumentValueError, DroppedShardingWarning, MemoryKindWarning, MeshError, MeshMismatchError
from jaxmesh.frontends.jax.shard_map import is_region
from jaxmesh.frontends.stablehlo.trace import DEVICE_MEMORY, Asked, is_split, wanted_by
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.caches import is_staged, placement_of
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import PyTree
from jaxmesh.jaxprs.user_trace import UNSPECIFIED, FunctionTrace, legacy_mesh
from jaxmesh.sharding.mesh import AnyMesh, context_mesh, make_mesh, program_mesh, same_mesh, show_mesh, with_devices
from jaxmesh.stages.user_calls import Static
from jaxmesh.tensor.mesh_tensor import MeshTensor, is_tensor
from jaxmesh.validate import as_devices

Carried = tuple[NamedSharding | None, ...]
"""Per leaf of a call's arguments the sharding of an array that is committed to the devices of a mesh."""


def carried_shardings(leaves: Sequence[object], mesh: AnyMesh | None) -> Carried | None:
    """Returns the shardings that arrays carry; None if none is split, and the mesh of the program is known."""
    found = tuple(map(carried_sharding, leaves))
    counts = any(known is not None and (mesh is None or is_split(known)) for known in found)
    return found if counts else None


def carried_sharding(x: object) -> NamedSharding | None:
    """Returns the sharding that an array or its type carries; None if it is on one device."""
    committed, sharding = (
        (True, x.sharding) if isinstance(x, jax.ShapeDtypeStruct) else placement_of(x) or (False, None)
    )
    return sharding if committed and isinstance(sharding, NamedSharding) else None


def is_sharding(x: object) -> bool:
    """Returns True for a leaf of a tree of shardings: None is one, which is left to the partitioner."""
    return x is None or isinstance(x, PartitionSpec | Sharding)


def over_mesh(shardings: object, mesh: AnyMesh | None, none: PartitionSpec | None = None) -> PyTree:
    """Returns a tree of shardings with its specs over a mesh; None becomes `none`, or is unspecified."""

    def named(x: object) -> Any:
        if x is None and none is None:
            return UNSPECIFIED
        x = none if x is None else x
        return NamedSharding(mesh, x) if isinstance(x, PartitionSpec) and mesh is not None else x

    known = shardings is UNSPECIFIED or mesh is None
    return shardings if known else jax.tree.map(named, shardings, is_leaf=is_sharding)


def has_specs(shardings: object) -> bool:
    """Returns True if a tree of shardings has specs, or None, which are over the mesh of the context."""
    leaves = jax.tree.leaves(shardings, is_leaf=is_sharding)
    return any(x is None or isinstance(x, PartitionSpec) for x in leaves)


def requested_shardings(
    leaves: Sequence[Any],
    paths: Sequence[str],
    mesh: AnyMesh,
    ins: Sequence[NamedSharding | None],
    outs: Sequence[Any],
    carried: Carried | None,
    full_results: bool | None,
) -> Asked:
    """Returns the shardings that are asked for at the ends of a call's program.

    `ins` and `outs` are per leaf the sharding that `jax.jit` was given, or None. By default, results are full if no
    argument is on the mesh.

    Raises:
      ArgumentValueError: an array on the mesh has another sharding than `in_shardings` asks for.
      MeshMismatchError: a sharding over another mesh.
    """
    wanted = [_on_program_mesh(s, mesh, f"in_shardings of {p}") for s, p in zip(ins, paths, strict=True)]
    presharded = [False] * len(leaves)
    for i, (leaf, path) in enumerate(zip(leaves, paths, strict=True)):
        own = None if carried is None else carried[i]
        here = _on_mesh(leaf, own, mesh)
        if here is None:
            if own is not None and is_split(own):
                _check_other_mesh(own, mesh, path)
            continue
        if own is not None:
            check_kept(own, path)
        both = wanted[i]
        if both is not None and not isinstance(both, NamedSharding):
            # JAX reports what does not fit.
            continue
        if both is not None and not both.is_equivalent_to(here, len(leaf.shape)):
            raise ArgumentValueError(
                "Sharding passed to jit does not match the sharding on the respective arg: "
                f"{path} is on the mesh as {here.spec}, but in_shardings asks for {both.spec}; put it there "
                "with jax.device_put, or leave its sharding out."
            )
        wanted[i], presharded[i] = here, True
    results = tuple(_on_program_mesh(s, mesh, "out_shardings") for s in outs)
    given = any(isinstance(s, NamedSharding) for s in (*ins, *outs))
    keeps = any(presharded) if full_results is None else not full_results
    return Asked(tuple(wanted), tuple(presharded), results, given, keeps)


def _on_program_mesh(sharding: NamedSharding | None, mesh: AnyMesh, what: str) -> NamedSharding | None:
    """Returns a `NamedSharding` over the program's mesh; other shardings, and those over one device, are unchanged."""
    if not isinstance(sharding, NamedSharding) or (sharding.mesh.size == 1 and mesh.size > 1):
        return sharding
    if dict(sharding.mesh.shape) != dict(mesh.shape):
        raise MeshMismatchError(
            f"{what} is over the mesh {show_mesh(sharding.mesh)}, the program over {show_mesh(mesh)}; one program has "
            "one mesh."
        )
    check_kept(sharding, what)
    return NamedSharding(mesh, sharding.spec)


def _on_mesh(leaf: object, carried: NamedSharding | None, mesh: AnyMesh) -> NamedSharding | None:
    """Returns the sharding of a leaf that lives on the program's mesh already."""
    if carried is None and isinstance(leaf, Tracer) and AxisType.Explicit in mesh.axis_types:
        typed = getattr(jax.typeof(leaf), "sharding", None)
        carried = typed if typed is not None and not typed.mesh.empty and is_split(typed) else None
    if carried is None or dict(carried.mesh.shape) != dict(mesh.shape):
        return None
    if isinstance(carried.mesh, Mesh) and isinstance(mesh, Mesh) and not same_mesh(carried.mesh, mesh):
        return None
    return NamedSharding(mesh, carried.spec)


def _check_other_mesh(own: NamedSharding, mesh: AnyMesh, what: str) -> None:
    """Warns that an array's split over another mesh of the same devices is dropped; raises for other devices."""
    split = f"{what} is split as {own.spec} over the mesh {show_mesh(own.mesh)}, the program is over {show_mesh(mesh)}"
    remedy = "put it on the program's mesh with jax.device_put"
    devices = [frozenset(m.devices.flat) if isinstance(m, Mesh) else None for m in (own.mesh, mesh)]
    if devices[0] is None or devices[0] != devices[1]:
        raise MeshMismatchError(f"{split}; {remedy}, or pass numpy.asarray(x).")
    warnings.warn(f"{split}, where it is a full tensor; {remedy}.", DroppedShardingWarning, stacklevel=2)


def read_placements(args: object, kwargs: object, mesh: AnyMesh | None) -> tuple[Carried | None, bool]:
    """Returns `carried_shardings` of a call, and True if an array is on another mesh of the same devices."""
    leaves = jax.tree.leaves((args, kwargs))
    dynamic = [x for x in jax.tree.leaves((args, kwargs), is_leaf=is_tensor) if not isinstance(x, Static)]
    carried = carried_shardings(dynamic, mesh)
    return carried, any(_is_elsewhere(x, mesh) for x in leaves)


def moved_to_mesh(args: object, kwargs: object, mesh: AnyMesh | None) -> tuple[object, object]:
    """Returns a call's arguments on the program's mesh; JAX names the shardings of results after an argument's mesh."""
    if not isinstance(mesh, Mesh) or is_staged():
        return args, kwargs
    whole = NamedSharding(mesh, PartitionSpec())

    def move(x: object) -> object:
        return typed.device_put(x, whole) if _is_elsewhere(x, mesh) else x

    return jax.tree.map(move, (args, kwargs))


def _is_elsewhere(leaf: object, mesh: AnyMesh | None) -> bool:
    """Returns True for an array that is committed to another mesh of the devices of the program's mesh."""
    committed, sharding = placement_of(leaf) or (False, None)
    if not (committed and isinstance(sharding, NamedSharding) and isinstance(mesh, Mesh)):
        return False
    own = sharding.mesh
    return isinstance(own, Mesh) and not same_mesh(own, mesh) and set(own.devices.flat) == set(mesh.devices.flat)


def check_kept(sharding: NamedSharding, what: str) -> None:
    """Warns of what a program does not keep of a sharding: the kind of memory."""
    if sharding.memory_kind not in DEVICE_MEMORY:
        warn_unkept(f"{what} asks for the memory {sharding.memory_kind!r}")


def warn_unkept(asked: str) -> None:
    """Warns of a request that no attribute of TTIR can express."""
    warnings.warn(
        f"{asked}, which TTIR has no attribute for; values are kept and computed in the devices' own memory.",
        MemoryKindWarning,
        stacklevel=2,
    )


# --- the mesh of a program --------------------------------------------------------------------------------------------


Source = tuple[str, AnyMesh]
"""What names a mesh, for messages, and the mesh."""


def find_mesh(
    given: AnyMesh | None,
    shardings: tuple[object, object],
    leaves: Sequence[object],
    paths: Sequence[str],
    carried: Carried | None,
    plain: FunctionTrace | None,
) -> AnyMesh:
    """Returns the mesh of a program.

    The first that exists: the given mesh, the mesh of the shardings, of the arguments, of `jax.set_mesh`, of a
    `with mesh:` block, or of the program's `shard_map`s and constraints. Without any mesh, returns one device.

    `plain` is the function as JAX traced it; None if it splits tensors by hand.

    Raises:
      MeshMismatchError: two shardings or arguments are over different meshes; the message names both.
      MeshError: the program splits tensors by hand, and no mesh is known.
    """
    if given is not None:
        return program_mesh(given)
    sources = [*_of_shardings(shardings), *_of_arguments(leaves, paths, carried)]
    if sources:
        return program_mesh(_one_of(sources))
    around = context_mesh() or legacy_mesh()
    if around is not None:
        return program_mesh(around)
    if plain is None:
        # The error names the ways to give one.
        return program_mesh(None)
    return _of_equations(plain) or make_mesh((1, 1))


def _of_shardings(shardings: tuple[object, object]) -> Iterator[Source]:
    for name, tree in zip(("in_shardings", "out_shardings"), shardings, strict=True):
        for leaf in jax.tree.leaves(tree, is_leaf=is_sharding):
            if isinstance(leaf, NamedSharding):
                yield name, leaf.mesh


def _of_arguments(leaves: Sequence[object], paths: Sequence[str], carried: Carried | None) -> Iterator[Source]:
    known = carried or [None] * len(leaves)
    for leaf, path, sharding in zip(leaves, paths, known, strict=True):
        if isinstance(leaf, MeshTensor):
            yield path, leaf.mesh
        elif sharding is not None:
            yield path, sharding.mesh
        elif isinstance(leaf, Tracer):
            typed = getattr(jax.typeof(leaf), "sharding", None)
            if typed is not None and not typed.mesh.empty and AxisType.Explicit in typed.mesh.axis_types:
                yield path, typed.mesh


def _one_of(sources: Sequence[Source]) -> AnyMesh:
    """Returns the mesh that all sources name; a mesh of one device gives way to a larger one."""
    first, mesh = max(sources, key=lambda s: s[1].size > 1)
    for name, other in sources:
        if other.size > 1 and not same_mesh(mesh, other):
            # The words of JAX, for arrays on other devices.
            raise MeshMismatchError(
                f"Received incompatible devices for jitted computation: {first} is over the mesh {show_mesh(mesh)}, "
                f"{name} over {show_mesh(other)}; one program has one "
                "mesh. Move either to the other's mesh with jax.device_put, or give jaxmesh.jit the mesh."
            )
    return mesh


def _of_equations(plain: FunctionTrace) -> AnyMesh | None:
    """Returns the mesh of the first `shard_map` or constraint, of one with devices if there is any."""
    meshes: list[AnyMesh] = []
    for eqn in walk.all_eqns(plain.jaxpr):
        meshes += [eqn.params["mesh"]] if is_region(eqn) else [s.mesh for s in wanted_by(eqn)]
    with_devices = (m for m in meshes if isinstance(m, Mesh))
    return next(with_devices, next(iter(meshes), None))


def assign_devices(mesh: AnyMesh, devices: Sequence[object] | None) -> AnyMesh:
    """Returns the mesh to run on: `with_devices`, or an abstract one over the given devices, row-major.

    Raises:
      MeshError: the mesh has other devices, or another number of them.
    """
    if devices is None:
        return with_devices(mesh)
    given = as_devices("compile", "device_assignment", devices)
    if len(given) != mesh.size or (isinstance(mesh, Mesh) and given != tuple(mesh.devices.flat)):
        raise MeshError(
            "device_assignment passed to `.compile` must match the device_assignment calculated from array shardings "
            f"and out_shardings: the program is over {show_mesh(mesh)}, got the devices {[d.id for d in given]}."
        )
    if isinstance(mesh, Mesh):
        return mesh
    array = np.array(given).reshape(tuple(mesh.shape.values()))
    return Mesh(array, mesh.axis_names, axis_types=mesh.axis_types)
