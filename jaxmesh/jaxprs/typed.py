"""JAX's functions with full types: JAX annotates them in part. They are looked up when they are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxmesh.jaxprs.untyped import Device

MeshT = TypeVar("MeshT", bound=Mesh | AbstractMesh)
_Function = Callable[..., Any]
_Tree = Any


class _TreeUtil(Protocol):
    def keystr(self, keys: object, *, simple: bool = False, separator: str = "") -> str: ...
    def tree_flatten_with_path(
        self, tree: object, is_leaf: _Function | None = None
    ) -> tuple[list[tuple[tuple[_Tree, ...], _Tree]], _Tree]: ...
    def register_pytree_node(self, nodetype: type, flatten: _Function, unflatten: _Function) -> None: ...


class _Jax(Protocol):
    """The functions of the module `jax` that the package calls."""

    config: Any
    random: Any
    tree_util: _TreeUtil

    def device_count(self) -> int: ...
    def device_put(self, x: _Tree, device: object = None, **options: bool) -> _Tree: ...
    def devices(self, backend: str | None = None) -> list[Device]: ...
    def eval_shape(self, fun: _Function, *args: object, **kwargs: object) -> _Tree: ...
    def jit(self, fun: _Function, **options: object) -> Any: ...
    def local_device_count(self) -> int: ...
    def local_devices(self, *, backend: str | None = None) -> list[Device]: ...
    def make_jaxpr(self, fun: _Function, **options: object) -> _Function: ...
    def make_user_context(self, default_value: object) -> Any: ...
    def process_count(self) -> int: ...
    def process_index(self) -> int: ...
    def shard_map(self, fun: _Function, **options: object) -> _Function: ...
    def vjp(self, fun: _Function, *primals: _Tree) -> tuple[_Tree, _Function]: ...


typed = cast("_Jax", jax)


def with_axis_types(mesh: MeshT, kinds: AxisType | Sequence[AxisType]) -> MeshT:
    """Returns the mesh with one type for all axes, or with a type for each."""
    changed: Any = mesh
    return changed.update(axis_types=(kinds,) * len(mesh.axis_names) if isinstance(kinds, AxisType) else tuple(kinds))


def indices_of(sharding: jax.sharding.Sharding, shape: Sequence[int]) -> Mapping[Device, tuple[slice, ...]]:
    """Returns the part of a full array of `shape` that each device holds."""
    known: Any = sharding
    return known.devices_indices_map(tuple(shape))
