"""`jaxmesh.shard_map`: `jax.shard_map`, with the stages of `jaxmesh.jit`."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence, Set as AbstractSet
from typing import Any, TypeVar, overload

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jaxmesh.dialects.replication import is_enabled
from jaxmesh.errors import ArgumentTypeError, printable
from jaxmesh.frontends.jax.trace import call_inline, current_region
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.tracing_state import tracing
from jaxmesh.jaxprs.untyped import PyTree
from jaxmesh.jaxprs.user_trace import api_boundary, name_axis
from jaxmesh.runtime.launch import launch
from jaxmesh.runtime.progress import progress
from jaxmesh.sharding.mesh import program_mesh
from jaxmesh.stages.arguments import check_has_values, flatten, prepare_tree
from jaxmesh.stages.checked_calls import CheckedCalls, Checks, check_results
from jaxmesh.stages.jit import jit
from jaxmesh.stages.stages import Lowered, Traced
from jaxmesh.tensor.mesh_tensor import is_tensor
from jaxmesh.validate import quote

F = TypeVar("F", bound=Callable[..., Any])
_INFER: Any = inspect.signature(compat.shard_map).parameters["in_specs"].default


@overload
def shard_map(
    f: F,
    /,
    *,
    out_specs: PyTree,
    in_specs: object = ...,
    mesh: Mesh | AbstractMesh | None = ...,
    axis_names: AbstractSet[Any] = ...,
    check_vma: bool = ...,
) -> F: ...


@overload
def shard_map(
    f: None = None,
    /,
    *,
    out_specs: PyTree,
    in_specs: object = ...,
    mesh: Mesh | AbstractMesh | None = ...,
    axis_names: AbstractSet[Any] = ...,
    check_vma: bool = ...,
) -> Callable[[F], F]: ...


def shard_map(
    f: Any = None,
    /,
    *,
    out_specs: PartitionSpec,
    in_specs: PyTree = _INFER,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: AbstractSet[Any] = frozenset(),
    check_vma: bool = True,
) -> Any:
    """Maps a function over shards as `jax.shard_map`; adds `.trace(*args)` and `.lower(*args)` of `jaxmesh.jit`.

    A call runs JAX's own `shard_map`. In the program, and in `jaxmesh.jit`, the function is full_to_shard of its
    arguments, its body, and shard_to_full of its results. Unlike JAX's, it can be called in a program that splits
    tensors by hand.

    Args:
      f: the function of the shards; left out, a decorator is returned.
      out_specs: a `PartitionSpec` per result, or a prefix of the results' tree.
      in_specs: a `PartitionSpec` per argument, or a prefix of the arguments' tree; inferred on Explicit meshes.
      mesh: the mesh; by default that of `jax.set_mesh`.
      axis_names: the mesh axes that are manual; by default all.
      check_vma: whether types check replication. With False, a program whose text is requested records its
        assumptions (`Traced.assumptions`), and a call compares the copies of its results if that is switched on
        (`jaxmesh.check_replication`).

    Raises:
      TypeError, ValueError: as `jax.shard_map` does.
      ArgumentTypeError: an argument of a call is a `MeshTensor`, not a full array.
      ReplicationError: in a call that compares copies, those of a result differ.

    >>> import jax, jax.numpy as jnp, jaxmesh as jm
    >>> from jax.sharding import PartitionSpec as P
    >>> mesh = jm.make_mesh((2, 4))
    >>> @jm.shard_map(mesh=mesh, in_specs=P("y", "x"), out_specs=P("y"))
    ... def rows(block):
    ...     return jax.lax.psum(block.sum(1), "x")
    >>> rows(jnp.ones((4, 8)))
    Array([8., 8., 8., 8.], dtype=float32)
    >>> rows.trace(jnp.ones((4, 8))).jaxpr.eqns[0].params["shard_dims"]
    (0, 1)
    """
    options: dict[str, Any] = {name: value for name, value in locals().items() if name != "f"}
    try:
        check_vma = bool(check_vma)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"shard_map takes True or False as check_vma, got {quote(check_vma)}.") from None
    if f is None:
        return functools.partial(shard_map, **options)
    mapped: Any = compat.shard_map(f, **options)

    def checked(checks: Checks) -> Any:
        return compat.shard_map(check_results(f, out_specs, checks.collector), **options)

    return ShardMapped(mapped, mesh, None if check_vma else CheckedCalls(checked, f, claims=True))


def _check_full(args: Sequence[object]) -> None:
    for number, arg in enumerate(args):
        if any(is_tensor(x) for x in flatten(arg)[0]):
            raise ArgumentTypeError(
                f"argument {number} of a function made by shard_map holds a MeshTensor, but such a function splits "
                "full arrays; give the full array, or call the function's body under jaxmesh.jit."
            )


class ShardMapped:
    """A function built by `jaxmesh.shard_map`."""

    # Outside of the instance's dictionary, which functools.wraps copies to whatever wraps this function.
    __slots__ = ("__dict__", "__weakref__", "_mapped", "_mesh", "_unproven")

    def __init__(
        self, mapped: Callable[..., Any], mesh: Mesh | AbstractMesh | None, unproven: CheckedCalls | None
    ) -> None:
        # With check_vma=False, `unproven` checks the claims of the specs at each call.
        self._mapped, self._mesh, self._unproven = mapped, mesh, unproven
        functools.update_wrapper(self, mapped)
        # As of JAX's own function.
        self.__wrapped__ = getattr(mapped, "__wrapped__", mapped)

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Runs JAX's own `shard_map`, or makes the function a part of the program that is being traced."""
        if kwargs:
            # Not allowed; JAX reports it.
            return self._mapped(*args, **kwargs)
        region = current_region()
        if region is not None and self._unproven is None and self._mesh is not None:
            return call_inline(self._mapped, args, region)
        _check_full(args)
        if tracing() is not None or jax.sharding.get_abstract_mesh().manual_axes:
            return self._mapped(*args)
        if self._unproven is not None and is_enabled():
            return self._unproven(args, {})[0]
        for leaf in jax.tree.leaves(args):
            # XLA ends the process on some types without values.
            check_has_values(leaf, "an argument of a function made by shard_map")
        try:
            with progress(f"shard_map of {getattr(self, '__name__', 'function')}"):
                return launch(self._mapped, *prepare_tree(args))
        except AssertionError as error:
            name_axis(error)
            raise

    def __get__(self, instance: object, owner: type | None = None) -> object:
        """Binds an object, as methods do."""
        return self if instance is None else types.MethodType(self, instance)

    @api_boundary
    def trace(self, *args: object) -> Traced:
        """Returns the TTIR-level program for arguments like these; see `jaxmesh.jit`.

        Raises:
          ArgumentTypeError: an argument is a `MeshTensor`, not a full array.
        """
        _check_full(args)
        if self._mesh is not None:
            # The mesh that is set is another one: a named error before JAX's.
            program_mesh(self._mesh)
        return jit(self, mesh=self._mesh).trace(*args)

    @api_boundary
    def lower(self, *args: object) -> Lowered:
        """Returns the TTNN-level program for arguments like these."""
        with progress("lower"):
            return self.trace(*args).lower()

    def __repr__(self) -> str:
        return printable(f"jaxmesh.shard_map({self._mapped!r})")
