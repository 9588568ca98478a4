"""The mesh of a program: given, or read from its shardings, arguments, context or `shard_map`s, else one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding

from jaxmesh.errors import MeshError, MeshMismatchError
from jaxmesh.frontends.jax.shard_map import is_region
from jaxmesh.frontends.stablehlo.trace import wanted_by
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.user_trace import FunctionTrace, legacy_mesh
from jaxmesh.sharding.mesh import AnyMesh, context_mesh, make_mesh, program_mesh, same_mesh, show_mesh, with_devices
from jaxmesh.stages.arguments import show_path
from jaxmesh.stages.shardings import Carried, is_sharding
from jaxmesh.tensor.mesh_tensor import MeshTensor

_tree: Any = jax.tree
Source = tuple[str, AnyMesh]
"""What names a mesh, for messages, and the mesh."""


def find_mesh(
    given: AnyMesh | None,
    shardings: tuple[Any, Any],
    leaves: Sequence[Any],
    paths: Sequence[Any],
    carried: Carried | None,
    plain: FunctionTrace | None,
) -> AnyMesh:
    """Returns the mesh of a program.

    The first that exists: the given mesh, the mesh of the shardings, of the arguments, of `jax.set_mesh`, of a
    `with mesh:` block, or of the program's `shard_map`s and constraints. Without any mesh, returns one device.

    Args:
      given: the mesh that `jaxmesh.jit` was given.
      shardings: its `in_shardings` and `out_shardings`.
      leaves: the leaves of the call.
      paths: the key path to each.
      carried: the shardings that arrays carry.
      plain: the function as JAX traced it; None if it splits tensors by hand.

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


def _of_shardings(shardings: tuple[Any, Any]) -> Iterator[Source]:
    for name, tree in zip(("in_shardings", "out_shardings"), shardings, strict=True):
        for leaf in _tree.leaves(tree, is_leaf=is_sharding):
            if isinstance(leaf, NamedSharding):
                yield name, leaf.mesh


def _of_arguments(leaves: Sequence[Any], paths: Sequence[Any], carried: Carried | None) -> Iterator[Source]:
    known = carried or [None] * len(leaves)
    for leaf, path, sharding in zip(leaves, paths, known, strict=True):
        if isinstance(leaf, MeshTensor):
            yield show_path(path), leaf.mesh
        elif sharding is not None:
            yield show_path(path), sharding.mesh
        elif isinstance(leaf, Tracer):
            typed: Any = getattr(jax.typeof(leaf), "sharding", None)
            if typed is not None and not typed.mesh.empty and AxisType.Explicit in typed.mesh.axis_types:
                yield show_path(path), typed.mesh


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


def assign_devices(mesh: AnyMesh, devices: Sequence[Any] | None) -> AnyMesh:
    """Returns the mesh to run on: `with_devices`, or an abstract one over the given devices, row-major.

    Raises:
      MeshError: the mesh has other devices, or another number of them.
    """
    if devices is None:
        return with_devices(mesh)
    given = tuple(devices)
    if len(given) != mesh.size or (isinstance(mesh, Mesh) and given != tuple(mesh.devices.flat)):
        raise MeshError(
            "device_assignment passed to `.compile` must match the device_assignment calculated from array shardings "
            f"and out_shardings: the program is over {show_mesh(mesh)}, got the devices {[d.id for d in given]}."
        )
    if isinstance(mesh, Mesh):
        return mesh
    array = np.array(given).reshape(tuple(mesh.shape.values()))
    return Mesh(array, mesh.axis_names, axis_types=mesh.axis_types)
