"""The arguments of a call: how they are flattened, checked against a program's signature, and prepared for it.

A program runs while Python continues, and JAX lets it read the memory of a NumPy argument: a later write to that array
would change results, so a program gets a copy. An array that was donated before, or is donated and passed twice, is an
error before XLA sees it: some versions of JAX end the process.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxmesh.dialects.residency import DEVICE
from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.errors import ArgumentTypeError, MeshError, MeshMismatchError, UnsupportedError, VerifyError
from jaxmesh.frontends.jax.trace import abstract
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.caches import ARRAY, lru_cached
from jaxmesh.jaxprs.compat import Aval
from jaxmesh.jaxprs.trees import show_path
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import PyTree, lax
from jaxmesh.runtime.array_views import check_alive
from jaxmesh.runtime.launch import launch
from jaxmesh.runtime.sharded import plain_mesh, store_array
from jaxmesh.sharding.mesh import AnyMesh, same_mesh, show_mesh, splitting_axes, storage_spec
from jaxmesh.sharding.shard_attributes import named_axes
from jaxmesh.tensor.mesh_tensor import MeshTensor, is_tensor
from jaxmesh.tensor.transfers import canonical
from jaxmesh.validate import quote

_DEEPEST = 500
"""The levels of lists, tuples and dicts that the arguments of a call may have."""


def _check_depth(tree: object) -> None:
    """Checks that a tree ends: an endless one takes jaxlib to the limit of calls, where the process stays."""
    rest = [(tree, 0)]
    while rest:
        node, depth = rest.pop()
        if depth > _DEEPEST:
            raise ArgumentTypeError(
                f"an argument contains itself, or has more than {_DEEPEST} levels of lists, tuples and dicts; pass its "
                "arrays in fewer levels."
            )
        if isinstance(node, (list, tuple, dict)):
            entries = (
                cast("dict[object, object]", node).values() if isinstance(node, dict) else cast("list[object]", node)
            )
            rest += [(entry, depth + 1) for entry in entries]


def flatten(tree: object) -> tuple[list[Any], Any, list[Any]]:
    """Returns the leaves of a tree of arguments, its structure, and the key path to each leaf."""
    _check_depth(tree)
    try:
        paths, treedef = typed.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)
    except ValueError as error:
        raise ArgumentTypeError(f"arguments cannot be ordered: {error} Use dict keys of one type.") from None
    return [leaf for _, leaf in paths], treedef, [path for path, _ in paths]


# --- checks against a signature --------------------------------------------------------------------------------------


def argument_of(leaf: object, what: str, mesh: AnyMesh) -> Argument:
    """Returns the type of one leaf of a call, an array or a tensor, as an argument of a program over `mesh`."""
    if not isinstance(leaf, MeshTensor):
        return Argument(abstract(leaf, what), None)
    if leaf.is_partial:
        raise UnsupportedError(
            f"{what} is {leaf!r}: some devices hold nothing of it, but every device runs the program. "
            "Aggregate it and distribute it over the whole mesh."
        )
    if not same_mesh(leaf.mesh, mesh):
        raise MeshMismatchError(
            f"{what} is on the mesh {show_mesh(leaf.mesh)}, the program runs on {show_mesh(mesh)}; one program "
            "has one mesh. Aggregate the tensor and distribute it over the program's mesh."
        )
    return Argument(abstract(jax.ShapeDtypeStruct(leaf.shape, leaf.data.dtype), what), leaf.varying)


def check_call(
    boundary: Boundary, args: Sequence[object], kwargs: dict[str, object], *, types: bool = False
) -> list[Any]:
    """Returns the flat arguments of a call of a program, checked against the tree and the types it was traced for.

    With `types`, the arguments are types alone.
    """
    leaves, tree, paths = flatten((tuple(args), kwargs))
    if tree != boundary.in_tree:
        raise ArgumentTypeError(
            "Function compiled with input pytree does not match the input pytree it was called with: "
            f"{boundary.name} was traced for arguments of the tree {boundary.in_tree}, called with {tree}; call it "
            "with the same structure (static arguments left out), or trace it again."
        )
    for i, (leaf, path, want) in enumerate(zip(leaves, paths, boundary.arguments, strict=True)):
        name = show_path(path, boundary.parameters)
        check_leaf(leaf, name)
        what = f"{name} of {boundary.name}"
        if isinstance(stored := leaf.data if isinstance(leaf, MeshTensor) else leaf, Tracer):
            raise ArgumentTypeError(
                f"{what} is a value of a trace, of type {jax.typeof(stored)}, but a compiled program runs on arrays; "
                "call the function that jaxmesh.jit made, which takes part in the trace."
            )
        if not types:
            check_has_values(leaf, what)
        if want.sharding is not None and not isinstance(leaf, MeshTensor):
            _check_whole(leaf, want, what)
            leaves[i] = leaf if types else _on_the_mesh(leaf, want, what)
            continue
        got = argument_of(leaf, what, boundary.mesh)
        if _can_spread(got, want, boundary.sizes):
            leaves[i] = _widen(leaf, want.varying or ())
        elif (got.aval.shape, got.aval.dtype, got.varying) != (want.aval.shape, want.aval.dtype, want.varying):
            raise ArgumentTypeError(
                "Argument types differ from the types for which this computation was compiled: "
                f"{what} was traced as {_show_type(want)}, called with {_show_type(got)}; call it "
                "with the same type, or trace it again."
            )
    return leaves


def _check_whole(leaf: object, want: Argument, what: str) -> None:
    """Checks the type of a whole array that becomes a tensor on the devices."""
    assert want.sharding is not None
    got = abstract(leaf, what)
    if (got.shape, got.dtype) != (want.whole, want.aval.dtype):
        raise ArgumentTypeError(
            f"{what} was traced as {want.aval.dtype}{list(want.whole)} with the sharding {want.sharding.spec}, called "
            f"with {got.dtype}{list(got.shape)}; call it with the same type, or trace it again."
        )


def _on_the_mesh(leaf: object, want: Argument, what: str) -> MeshTensor:
    """Returns a whole array as the tensor on the devices that a program takes; one on the host is put there."""
    assert want.sharding is not None
    if isinstance(leaf, jax.Array) and leaf.committed and not leaf.sharding.is_equivalent_to(want.sharding, leaf.ndim):
        raise ArgumentTypeError(
            f"{what} was traced with the sharding {want.sharding.spec}, called with an array on {leaf.sharding}; put "
            "it there with jax.device_put, or trace the program again."
        )
    if not isinstance(want.sharding.mesh, Mesh):
        raise MeshError(f"{what} is on an abstract mesh, and no program runs there; trace it over jaxmesh.make_mesh.")
    return as_tensor(typed.device_put(leaf, want.sharding), want.sharding)


def as_tensor(x: jax.Array, sharding: NamedSharding) -> MeshTensor:
    """Returns an array on a mesh with devices as a tensor of its shards."""
    mesh, rank = sharding.mesh, x.ndim
    assert isinstance(mesh, Mesh)
    varying = splitting_axes(mesh, named_axes(sharding.spec))
    # The mesh of `jax.set_mesh` has the caller's axis types.
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        return MeshTensor(launch(_storer(sharding, rank), x), mesh, varying)


@lru_cached(256)
def _storer(sharding: NamedSharding, rank: int) -> Any:
    """Returns the function that converts an array on the mesh to the form of stored tensors."""
    mesh = plain_mesh(sharding.mesh)

    def store(x: object) -> object:
        return store_array(x, sharding.spec, mesh)

    return typed.jit(store)


def check_has_values(leaf: object, what: str) -> None:
    """Checks that an argument of a call is not a type alone."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise ArgumentTypeError(
            f"{what} is {quote(leaf)}, a type that holds no numbers, but a program runs on arrays; give an array, or "
            "only trace or lower the function."
        )


def check_devices(leaf: object, what: str, mesh: AnyMesh | None) -> None:
    """Checks that an array that is committed to devices is on all devices of the mesh and on no others."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer) or not leaf.committed or not isinstance(mesh, Mesh):
        return
    sharding: Any = leaf.sharding
    given, wanted = sorted(d.id for d in sharding.device_set), sorted(d.id for d in mesh.devices.flat)
    if given != wanted:
        raise MeshMismatchError(
            f"{what} {leaf.dtype}{list(leaf.shape)} was put on the devices {given} (by jax.device_put, from_dlpack, or "
            f"a program over them), but the program's mesh {show_mesh(mesh)} has the devices {wanted}; pass "
            "numpy.asarray(x), or put it on that mesh."
        )


def _show_type(a: Argument) -> str:
    where = "" if a.varying is None else f" on the devices, varying over {a.varying}"
    return f"{a.aval.dtype}{list(a.aval.shape)}{where}"


# --- tensors that vary over fewer axes than the program expects ------------------------------------------------------


def _can_spread(got: Argument, want: Argument, sizes: dict[str, int]) -> bool:
    """Returns True if a tensor that varies over fewer axes can be passed where more are expected."""
    if got.varying is None or want.varying is None or got.varying == want.varying:
        return False
    if (got.aval.shape, got.aval.dtype) != (want.aval.shape, want.aval.dtype):
        return False
    return {a for a in got.varying if sizes[a] > 1} <= set(want.varying)


def _widen(tensor: MeshTensor, varying: tuple[str, ...]) -> MeshTensor:
    """Returns the tensor stored as varying over more axes; every device keeps its shard."""
    mesh, rank = tensor.mesh, tensor.ndim
    if not isinstance(mesh, Mesh):
        raise MeshError(f"{tensor!r} is on an abstract mesh, so it cannot be given to a program that runs.")
    spread = _spreader(rank, tensor.varying, varying, NamedSharding(mesh, storage_spec(rank, varying)))
    return MeshTensor(launch(spread, tensor.data), mesh, varying)


@lru_cached(256)
def _spreader(rank: int, got: tuple[str, ...], wanted: tuple[str, ...], sharding: NamedSharding) -> Any:
    sizes = sharding.mesh.shape
    dropped = tuple(rank + i for i, a in enumerate(got) if a not in wanted)
    dims = (*range(rank), *[rank + wanted.index(a) for a in got if a in wanted])

    def spread(data: Any) -> Any:
        local = jax.lax.squeeze(data, dropped)
        return lax.broadcast_in_dim(local, (*local.shape[:rank], *[sizes[a] for a in wanted]), dims)

    return typed.jit(spread, out_shardings=sharding)


# --- preparing -------------------------------------------------------------------------------------------------------


def check_leaf(leaf: Any, what: str) -> None:
    """Checks that a leaf of a call can be passed to a program: it is alive, no masked array, and of a dtype of JAX."""
    array = leaf
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentTypeError(
            f"{what} is a masked array {leaf.dtype}{list(leaf.shape)}, but programs know no masks; pass "
            "array.filled(value)."
        )
    if isinstance(array, np.ndarray):
        canonical(leaf.dtype, what)
    check_alive(leaf.data if isinstance(leaf, MeshTensor) else leaf, what)


def prepare_leaf(leaf: Any) -> object:
    """Returns one leaf of a call in the form that a compiled program takes: a copy of a NumPy array."""
    if isinstance(leaf, MeshTensor):
        return leaf.unshared_data()
    array: Any = leaf
    return leaf.copy() if isinstance(array, np.ndarray) else leaf


def prepare_tree(tree: PyTree) -> PyTree:
    """Returns a tree of arguments in the form that a program takes: the tree itself if there is nothing to copy."""
    leaves, structure = cast("tuple[list[Any], Any]", jax.tree.flatten(tree))
    kinds = {*map(type, leaves)}
    if kinds == {np.ndarray}:
        for dtype in {*map(operator.attrgetter("dtype"), leaves)}:
            canonical(dtype, "an argument")
        return jax.tree.unflatten(structure, map(np.ndarray.copy, leaves))
    for leaf in leaves:
        # Nearly every leaf of nearly every call is a JAX array, which needs one check.
        if not (type(leaf) is ARRAY and not leaf.is_deleted()):
            check_leaf(leaf, "an argument")
    return jax.tree.map(prepare_leaf, tree) if any(issubclass(k, np.ndarray) for k in kinds) else tree


def check_donated(
    leaves: Sequence[object], donated: Sequence[int], paths: Sequence[object], names: Sequence[str]
) -> None:
    """Checks that no leaf of a call that is donated, by its number, is another leaf too; `names` are of parameters."""
    # Tensors that share an array are two arrays from here on.
    arrays = [leaf.unshared_data() if isinstance(leaf, MeshTensor) else leaf for leaf in leaves]
    counts = Counter(map(id, arrays))
    for i in donated:
        array = arrays[i]
        if counts[id(array)] > 1 and isinstance(array, jax.Array) and not isinstance(array, Tracer):
            again = next(j for j, x in enumerate(arrays) if x is array and j != i)
            raise VerifyError(
                f"{show_path(paths[i], names)} is donated, so its memory may be taken, but "
                f"{show_path(paths[again], names)} is the same array {array.dtype}{list(array.shape)}; pass "
                "jax.numpy.copy(x) as either argument, or do not donate it."
            )


def whole_spec(x: jax.Array, argument: Argument) -> PartitionSpec | None:
    """Returns the spec of an array on the mesh that is passed whole; None if it is stored as a tensor already."""
    whole = argument.sharding is not None and argument.varying and x.ndim == len(argument.aval.shape)
    return argument.sharding.spec if whole and argument.sharding is not None else None


def wrap_result(x: jax.Array, aval: Aval, residency: object, mesh: AnyMesh) -> object:
    """Returns a result as a `MeshTensor` if it stays on the devices."""
    if residency is not DEVICE:
        return x
    varying = compat.varying_axes(aval)
    return MeshTensor(x, mesh, [a for a in mesh.axis_names if a in varying])
