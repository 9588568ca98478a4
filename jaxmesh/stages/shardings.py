"""The shardings of a call: those given to `jaxmesh.jit`, those that its arrays carry, and what of them is kept."""

from __future__ import annotations

import enum
import functools
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from jaxmesh.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    DroppedShardingWarning,
    MemoryKindWarning,
    MeshMismatchError,
)
from jaxmesh.frontends.stablehlo.trace import DEVICE_MEMORY, Asked, is_split, named_axes
from jaxmesh.jaxprs.caches import is_staged, placement_of
from jaxmesh.sharding.mesh import AnyMesh, same_mesh, show_mesh
from jaxmesh.sharding.shard_attributes import spec_axes
from jaxmesh.stages.arguments import show_path
from jaxmesh.ttnn.mesh_tensor import is_tensor
from jaxmesh.validate import quote

_tree: Any = jax.tree


class _Unspecified(enum.Enum):
    """Stands for shardings that are not given: None is a sharding that is left to the partitioner."""

    UNSPECIFIED = "unspecified"

    def __repr__(self) -> str:
        return "unspecified"


UNSPECIFIED = _Unspecified.UNSPECIFIED
Carried = tuple[NamedSharding | None, ...]
"""Per leaf of a call's arguments the sharding of an array that is committed to the devices of a mesh."""


def carried_shardings(leaves: Sequence[Any]) -> Carried | None:
    """Returns the shardings that arrays carry; None if none is split over devices."""
    found: list[NamedSharding | None] = []
    splits = False
    for x in leaves:
        if isinstance(x, jax.ShapeDtypeStruct):
            committed, sharding = True, x.sharding
        else:
            committed, sharding = placement_of(x) or (False, None)
        known = sharding if committed and isinstance(sharding, NamedSharding) else None
        splits = splits or (known is not None and any(known.spec) and is_split(known))
        found.append(known)
    return tuple(found) if splits else None


def _is_leaf(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec | Sharding)


def requested_shardings(
    leaves: Sequence[Any],
    paths: Sequence[Any],
    tree: Any,
    mesh: AnyMesh,
    given: tuple[Any, Any],
    carried: Carried | None,
) -> Asked:
    """Returns the shardings that are asked for at the ends of a call's program.

    Args:
      leaves: the leaves of the call.
      paths: the key path to each.
      tree: the tree of `(args, kwargs)`.
      mesh: the mesh of the program.
      given: the `in_shardings` and `out_shardings`.
      carried: the shardings that arrays carry.

    Raises:
      ArgumentTypeError: something given is no sharding, or the call has keyword arguments.
      ArgumentValueError: the trees do not fit, or a sharding does not divide a dim.
      MeshMismatchError: a sharding over another mesh.
    """
    ins, outs = given
    wanted: list[NamedSharding | None] = [None] * len(leaves)
    if ins is not UNSPECIFIED and ins is not None:
        wanted = _of_arguments(ins, leaves, paths, tree, mesh)
    presharded = [False] * len(leaves)
    for i, (leaf, path) in enumerate(zip(leaves, paths, strict=True)):
        own = None if carried is None else carried[i]
        here = _on_mesh(leaf, own, mesh)
        if here is None:
            if own is not None and is_split(own):
                _check_other_mesh(own, mesh, show_path(path))
            continue
        if own is not None:
            check_kept(own, show_path(path))
        both = wanted[i]
        if both is not None and not both.is_equivalent_to(here, len(leaf.shape)):
            raise ArgumentValueError(
                f"{show_path(path)} is on the mesh as {here.spec}, but in_shardings asks for {both.spec}; put it there "
                "with jax.device_put, or leave its sharding out."
            )
        wanted[i], presharded[i] = here, True
    results = None if outs is UNSPECIFIED or outs is None else functools.cache(_of_results(outs, mesh))
    is_given = not (ins is UNSPECIFIED and outs is UNSPECIFIED)
    return Asked(tuple(wanted), tuple(presharded), results, is_given)


def _on_mesh(leaf: Any, carried: NamedSharding | None, mesh: AnyMesh) -> NamedSharding | None:
    """Returns the sharding of a leaf that lives on the program's mesh already."""
    if carried is None and isinstance(leaf, Tracer) and AxisType.Explicit in mesh.axis_types:
        typed: Any = getattr(jax.typeof(leaf), "sharding", None)
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


def read_placements(args: Any, kwargs: Any, mesh: AnyMesh | None) -> tuple[Carried | None, bool]:
    """Returns `carried_shardings` of a call, and whether one of its arrays is on another mesh of the same devices."""
    leaves = _tree.leaves((args, kwargs))
    carried = carried_shardings(_tree.leaves((args, kwargs), is_leaf=is_tensor))
    return carried, any(_is_elsewhere(x, mesh) for x in leaves)


def moved_to_mesh(args: Any, kwargs: Any, mesh: AnyMesh | None) -> tuple[Any, Any]:
    """Returns a call's arguments on the program's mesh; JAX names the shardings of results after an argument's mesh."""
    if not isinstance(mesh, Mesh) or is_staged():
        return args, kwargs
    whole = NamedSharding(mesh, PartitionSpec())

    def move(x: Any) -> Any:
        return jax.device_put(x, whole) if _is_elsewhere(x, mesh) else x

    return _tree.map(move, (args, kwargs))


def _is_elsewhere(leaf: Any, mesh: AnyMesh | None) -> bool:
    """Returns True for an array that is committed to another mesh of the devices of the program's mesh."""
    committed, sharding = placement_of(leaf) or (False, None)
    if not (committed and isinstance(sharding, NamedSharding) and isinstance(mesh, Mesh)):
        return False
    own = sharding.mesh
    return isinstance(own, Mesh) and not same_mesh(own, mesh) and set(own.devices.flat) == set(mesh.devices.flat)


def _of_arguments(
    ins: Any, leaves: Sequence[Any], paths: Sequence[Any], tree: Any, mesh: AnyMesh
) -> list[NamedSharding | None]:
    args, kwargs = _tree.unflatten(tree, [_Leaf(i) for i in range(len(leaves))])
    if kwargs:
        raise ArgumentTypeError(
            f"in_shardings are given, and the call has the keyword arguments {sorted(kwargs)}; pass arguments by "
            "position, as jax.jit wants them."
        )
    rows = _broadcast(_as_tuple(ins), tuple(args), "in_shardings", "the arguments")
    found = [_name_of(s, mesh, f"in_shardings of {show_path(p)}") for s, p in zip(rows, paths, strict=True)]
    for s, leaf, path in zip(found, leaves, paths, strict=True):
        if s is not None:
            _check_divides(
                s,
                tuple(leaf.shape) if isinstance(leaf, jax.ShapeDtypeStruct) else jax.numpy.shape(leaf),
                f"in_shardings of {show_path(path)}",
            )
    return found


def _as_tuple(given: Any) -> Any:
    """Returns a list of shardings as the tuple that arguments and results are."""
    several: Any = given
    return tuple(several) if isinstance(given, list) else given


class _Leaf:
    """Stands for a leaf of the arguments."""

    def __init__(self, number: int) -> None:
        self.number = number


def _broadcast(prefix: Any, full: Any, what: str, of: str) -> list[Any]:
    found: list[Any] = []

    def spread(sharding: Any, part: Any) -> None:
        # None is a sharding, and in the tree itself it is nothing.
        found.extend([sharding] * len(_tree.leaves(part)))

    try:
        _tree.map(spread, prefix, full, is_leaf=_is_leaf)
    except ValueError as error:
        raise ArgumentValueError(f"{what} is no prefix of the tree of {of}: {error}") from None
    return found


def _of_results(outs: Any, mesh: AnyMesh) -> Callable[[Any], Sequence[NamedSharding | None]]:
    def results(tree: Any) -> tuple[NamedSharding | None, ...]:
        full = _tree.unflatten(tree, [_Leaf(i) for i in range(tree.num_leaves)])
        prefix = _as_tuple(outs) if isinstance(full, tuple) else outs
        rows = _broadcast(prefix, full, "out_shardings", "the results")
        return tuple(_name_of(s, mesh, "out_shardings") for s in rows)

    return results


def _name_of(given: Any, mesh: AnyMesh, what: str) -> NamedSharding | None:
    """Returns a sharding over the program's mesh."""
    if given is None:
        return None
    if isinstance(given, PartitionSpec):
        _check_axes(given, mesh, what)
        return NamedSharding(mesh, given)
    if isinstance(given, NamedSharding):
        if dict(given.mesh.shape) != dict(mesh.shape):
            raise MeshMismatchError(
                f"{what} is over the mesh {show_mesh(given.mesh)}, the program over {show_mesh(mesh)}; one program has "
                "one mesh."
            )
        check_kept(given, what)
        return NamedSharding(mesh, given.spec)
    raise ArgumentTypeError(
        f"{what} takes a PartitionSpec, a NamedSharding over the program's mesh, or None, got {quote(given)}; layouts "
        "and shardings of other kinds have no form in TTIR."
    )


def call_constrained(
    fun: Callable[..., Any],
    static: Collection[int],
    given: tuple[Any, Any],
    mesh: AnyMesh | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls a function as a part of the program that JAX is tracing, with its shardings as `jax.jit` takes them."""

    def named(x: Any) -> Any:
        return NamedSharding(mesh, x) if isinstance(x, PartitionSpec) and mesh is not None else x

    options: dict[str, Any] = {
        name: _tree.map(named, shardings, is_leaf=_is_leaf)
        for name, shardings in zip(("in_shardings", "out_shardings"), given, strict=True)
        if shardings is not UNSPECIFIED
    }
    jitted: Any = jax.jit(fun, static_argnums=tuple(sorted(static)) or None, **options)
    return jitted(*args, **kwargs)


def check_kept(sharding: NamedSharding, what: str) -> None:
    """Warns of what a program does not keep of a sharding: the kind of memory."""
    if sharding.memory_kind not in DEVICE_MEMORY:
        warn_unkept(f"{what} asks for the memory {sharding.memory_kind!r}")


def warn_unkept(asked: str) -> None:
    """Warns of what a program asks for and TTIR has no attribute for."""
    warnings.warn(
        f"{asked}, which TTIR has no attribute for; values are kept and computed in the devices' own memory.",
        MemoryKindWarning,
        stacklevel=2,
    )


def _check_axes(spec: PartitionSpec, mesh: AnyMesh, what: str) -> None:
    if spec.unreduced or spec.reduced:
        raise ArgumentValueError(
            f"{what} is {spec}, with unreduced or reduced axes, which the partitioner does not have; reduce inside of "
            "the program, and name the axes that split the value."
        )
    unknown = [a for a in named_axes(spec) if a not in mesh.axis_names]
    if unknown:
        raise ArgumentValueError(
            f"{what} is {spec}, which names the axis {unknown[0]!r}; the axes of the mesh are {mesh.axis_names}."
        )


def _check_divides(sharding: NamedSharding, shape: tuple[int, ...], what: str) -> None:
    sizes = dict(sharding.mesh.shape)
    for dim, axes in enumerate(spec_axes(sharding.spec, len(shape), sizes)):
        pieces = 1
        for axis in axes:
            pieces *= sizes[axis]
        if shape[dim] % pieces:
            raise ArgumentValueError(
                f"{what} is {sharding.spec}, but dim {dim} of size {shape[dim]} does not divide by {pieces} over "
                f"{', '.join(axes)}; choose a size that does, or another sharding."
            )
