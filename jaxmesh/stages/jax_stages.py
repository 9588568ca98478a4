"""A lowered program as JAX's own stages, which `jax.export` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.core import ShapedArray
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.errors import UnsupportedError
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.sharding.shard_attributes import global_shape
from jaxmesh.stages.arguments import flatten


def lower_with_jax(
    boundary: Boundary,
    run: Callable[[Sequence[Any]], Any],
    platforms: Sequence[str] | None,
    keywords: Mapping[str, Any],
) -> Any:
    """Returns the `jax.stages.Lowered` of a program.

    Args:
      boundary: its signature.
      run: runs it on flat arguments.
      platforms: as of `jax.stages.Traced.lower`.
      keywords: the other keywords of that function.

    Raises:
      UnsupportedError: an argument is a `MeshTensor`.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(flatten((args, kwargs))[0])

    call.__name__ = call.__qualname__ = boundary.name
    args, kwargs = jax.tree.unflatten(boundary.in_tree, [_struct(a) for a in boundary.arguments])
    traced: Any = jax.jit(call, keep_unused=True).trace(*args, **kwargs)
    return traced.lower(lowering_platforms=platforms, **keywords)


def _struct(argument: Argument) -> jax.ShapeDtypeStruct:
    if argument.varying is not None and argument.sharding is None:
        raise UnsupportedError(
            "an argument is a MeshTensor, which jax.export takes of a function of jax.jit alone; export "
            "jax.jit(the function that jaxmesh.jit made)."
        )
    aval = argument.aval
    return jax.ShapeDtypeStruct(argument.whole, aval.dtype, weak_type=aval.weak_type, sharding=argument.sharding)


class HasArguments:
    """The properties of a stage of `jax.stages` that describe its arguments."""

    _boundary: Boundary

    @property
    def args_info(self) -> Any:
        """The types of the arguments, and whether each is donated, in their tree, as of `jax.stages`."""
        make: Any = jax.stages.ArgInfo
        donated = self._boundary.donated
        return jax.tree.unflatten(
            self.in_tree, [make(_aval(a), i in donated) for i, a in enumerate(self._boundary.arguments)]
        )

    @property
    def in_tree(self) -> Any:
        """The tree of the arguments: `(args, kwargs)`."""
        return self._boundary.in_tree

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The numbers of the leaves of the arguments that are donated, as of `jax.stages`."""
        return self._boundary.donated


def _aval(argument: Argument) -> ShapedArray:
    return ShapedArray(argument.whole, argument.aval.dtype, weak_type=argument.aval.weak_type)


def out_info(boundary: Boundary, avals: Sequence[Any], tree: Any) -> Any:
    """Returns the type of each result for the caller, in their tree: `[global shape]` of arrays on the mesh.

    As in JAX, a sharding is a part of the type on Explicit axes alone.
    """
    specs = boundary.kept or [None] * len(avals)
    rows = [_result_struct(a, s, boundary.mesh) for a, s in zip(avals, specs, strict=True)]
    return jax.tree.unflatten(tree, rows)


def _result_struct(aval: Any, spec: PartitionSpec | None, mesh: AnyMesh) -> jax.ShapeDtypeStruct:
    if spec is None:
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    shape = global_shape(aval.shape, spec, mesh.shape)
    explicit = AxisType.Explicit in mesh.axis_types
    return jax.ShapeDtypeStruct(shape, aval.dtype, sharding=NamedSharding(mesh, spec) if explicit else None)
