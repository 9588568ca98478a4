"""What crosses a program's boundary: argument types, trees, meshes; and the checks of a call against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxmesh.dialects.residency import DEVICE, HOST
from jaxmesh.errors import ArgumentTypeError, MeshError, MeshMismatchError, UnsupportedError
from jaxmesh.frontends.jax.trace import abstract
from jaxmesh.jaxprs.caches import lru_cached
from jaxmesh.runtime.launch import launch
from jaxmesh.sharding.mesh import storage_spec
from jaxmesh.stages.arguments import check_leaf
from jaxmesh.ttnn.mesh_tensor import MeshTensor
from jaxmesh.validate import check_nesting, quote

AnyMesh = Mesh | AbstractMesh


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a program: its type and, of a tensor on the devices, the axes it varies over."""

    aval: jax.ShapeDtypeStruct
    varying: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Boundary:
    """What crosses a program's boundary: trees, argument types, donated leaves."""

    name: str
    mesh: AnyMesh
    in_tree: Any
    arguments: tuple[Argument, ...]
    donated: tuple[int, ...] = ()
    out_specs: tuple[PartitionSpec, ...] | None = None

    @property
    def places(self) -> tuple[Any, ...]:
        """Where each argument lives."""
        return tuple(HOST if a.varying is None else DEVICE for a in self.arguments)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each mesh axis."""
        return dict(self.mesh.shape)


def is_tensor(x: Any) -> bool:
    """A `MeshTensor` is one leaf of a tree of arguments, although it is a pytree itself."""
    return isinstance(x, MeshTensor)


def flatten(tree: Any) -> tuple[list[Any], Any, list[str]]:
    """Leaves, tree and the path to each leaf as messages show it."""
    check_nesting((tree,), "an argument")
    paths, treedef = cast("tuple[list[tuple[Any, Any]], Any]", jax.tree.flatten_with_path(tree, is_leaf=is_tensor))
    return [leaf for _, leaf in paths], treedef, [jax.tree_util.keystr(p) for p, _ in paths]


def argument_of(leaf: Any, path: str, mesh: AnyMesh) -> Argument:
    """The type of one leaf of a call, as an argument of a program over `mesh`.

    Raises:
      ArgumentTypeError: the leaf is no array.
      UnsupportedError: some devices hold nothing of the tensor.
      MeshMismatchError: the tensor is on another mesh.
    """
    if not isinstance(leaf, MeshTensor):
        return Argument(abstract(leaf, f"argument{path}"), None)
    if leaf.is_partial:
        raise UnsupportedError(
            f"argument{path} is {leaf!r}: some devices hold nothing of it, but every device runs the program. "
            "Aggregate it and distribute it over the whole mesh."
        )
    if not same_mesh(leaf.mesh, mesh):
        raise MeshMismatchError(
            f"argument{path} is on the mesh {show_mesh(leaf.mesh)}, the program runs on {show_mesh(mesh)}; one program "
            "has one mesh. Aggregate the tensor and distribute it over the program's mesh."
        )
    return Argument(abstract(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), f"argument{path}"), leaf.varying)


def same_mesh(a: AnyMesh, b: AnyMesh) -> bool:
    """Whether two meshes have the same axes and, where both have devices, the same devices in the same order."""
    if a.axis_names != b.axis_names or dict(a.shape) != dict(b.shape):
        return False
    return not isinstance(a, Mesh) or not isinstance(b, Mesh) or bool((a.devices == b.devices).all())


def show_mesh(mesh: AnyMesh) -> str:
    """A mesh as messages show it: axes, sizes and device ids."""
    axes = ", ".join(f"{n}={s}" for n, s in mesh.shape.items())
    if isinstance(mesh, AbstractMesh):
        return f"({axes}) without devices"
    return f"({axes}) of devices {[d.id for d in mesh.devices.flat]}"


def check_call(boundary: Boundary, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The flat arguments of a call of a lowered or compiled program.

    Raises:
      ArgumentTypeError: another tree or other types than the program was traced for.
      DeletedError: an argument was donated to a program, or deleted.
    """
    leaves, tree, paths = flatten((tuple(args), kwargs))
    if tree != boundary.in_tree:
        raise ArgumentTypeError(
            f"{boundary.name} was traced for arguments of the tree {boundary.in_tree}, called with {tree}; call it "
            "with the same structure (static arguments left out), or trace it again."
        )
    for i, (leaf, path, want) in enumerate(zip(leaves, paths, boundary.arguments, strict=True)):
        check_leaf(leaf, f"argument{path}")
        if isinstance(stored := leaf.data if isinstance(leaf, MeshTensor) else leaf, Tracer):
            raise ArgumentTypeError(
                f"argument{path} of {boundary.name} is a value of a trace, of type {jax.typeof(stored)}, but a "
                "compiled program runs on arrays; call the function that jaxmesh.jit made, which takes part in the "
                "trace."
            )
        check_holds(leaf, f"argument{path} of {boundary.name}")
        got = argument_of(leaf, path, boundary.mesh)
        if _fits(got, want, boundary.sizes):
            leaves[i] = _spread(leaf, want.varying or ())
            continue
        if (got.aval.shape, got.aval.dtype, got.varying) != (want.aval.shape, want.aval.dtype, want.varying):
            raise ArgumentTypeError(
                f"argument{path} of {boundary.name} was traced as {_type(want)}, called with {_type(got)}; call it "
                "with the same type, or trace it again."
            )
    return leaves


def check_holds(leaf: Any, what: str) -> None:
    """Checks that an argument of a call is more than a type.

    Raises:
      ArgumentTypeError: it is a `jax.ShapeDtypeStruct`.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise ArgumentTypeError(
            f"{what} is {quote(leaf)}, a type that holds no numbers, but a program runs on arrays; give an array, or "
            "only trace or lower the function."
        )


def _fits(got: Argument, want: Argument, sizes: dict[str, int]) -> bool:
    """Whether a tensor, typed over other axes, is one of the type that is wanted: equal shards may be told apart."""
    if got.varying is None or want.varying is None or got.varying == want.varying:
        return False
    if (got.aval.shape, got.aval.dtype) != (want.aval.shape, want.aval.dtype):
        return False
    return {a for a in got.varying if sizes[a] > 1} <= set(want.varying)


def _spread(tensor: MeshTensor, varying: tuple[str, ...]) -> MeshTensor:
    """The tensor, stored as varying over more axes; every device keeps the shard it has."""
    mesh, rank = tensor.mesh, tensor.ndim
    if not isinstance(mesh, Mesh):
        raise MeshError(f"{tensor!r} is on a mesh without devices, so it cannot be given to a program that runs.")
    sharding = NamedSharding(mesh, storage_spec(rank, varying))
    spread = _spreader(rank, tensor.varying, varying, sharding)
    return MeshTensor(launch(spread, tensor.data), mesh, varying)


@lru_cached(256)
def _spreader(rank: int, held: tuple[str, ...], wanted: tuple[str, ...], sharding: NamedSharding) -> Any:
    sizes = sharding.mesh.shape
    gone = tuple(rank + i for i, a in enumerate(held) if a not in wanted)
    lru_cached = [a for a in held if a in wanted]
    places = (*range(rank), *[rank + wanted.index(a) for a in lru_cached])

    def spread(data: Any) -> Any:
        local = jax.lax.squeeze(data, gone)
        shape = (*local.shape[:rank], *[sizes[a] for a in wanted])
        return jax.lax.broadcast_in_dim(local, shape, places)

    return jax.jit(spread, out_shardings=sharding)


def _type(a: Argument) -> str:
    where = "" if a.varying is None else f" on the devices, varying over {a.varying}"
    return f"{a.aval.dtype}{list(a.aval.shape)}{where}"


def with_devices(mesh: AnyMesh) -> AnyMesh:
    """The mesh to run on: the given one, or for an abstract one the context's of the same shape.

    Raises:
      MeshError: the mesh is abstract and no such context is set.
    """
    if isinstance(mesh, Mesh):
        return mesh
    context = jax.sharding.get_abstract_mesh()
    if not context.empty and context.shape == mesh.shape:
        return context
    raise MeshError(
        f"the mesh {show_mesh(mesh)} is abstract: a program over it can be traced and lowered, but not run. Give "
        f"mesh=jaxmesh.make_mesh({tuple(mesh.shape.values())}, {tuple(mesh.axis_names)}), or set a mesh with "
        "jax.set_mesh."
    )
