"""From a Python function to a TTIR-level program: types of arguments, flattening, typed tracing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from jaxmesh.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    InexpressibleError,
    JaxmeshError,
    MissingRuleError,
    UnsupportedError,
)
from jaxmesh.frontends.jax.trace_shard_maps import OutSpecs, trace_plain, trace_program
from jaxmesh.frontends.stablehlo.program import ImportedProgram
from jaxmesh.frontends.stablehlo.trace import Asked, is_automatic, partition_program, place_by_hand, plain_call
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.rewrite import copy_constants
from jaxmesh.jaxprs.source_locations import jax_assertion
from jaxmesh.validate import check_size, quote


def abstract(leaf: Any, what: str) -> jax.ShapeDtypeStruct:
    """Returns shape, dtype, weak type and, on Explicit axes, sharding of an argument.

    Raises:
      ArgumentTypeError: the leaf is not an array.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        _check_type(leaf, what)
        check_size(leaf.shape, leaf.dtype, what)
        return jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, weak_type=leaf.weak_type, sharding=_cast_type(leaf.sharding)
        )
    try:
        aval = jax.typeof(leaf)
    except JaxmeshError:
        raise
    except OverflowError:
        raise ArgumentValueError(
            f"{what} is the number {quote(leaf)}, which JAX's default type of an int, "
            f"{jax.dtypes.canonicalize_dtype(np.int64)}, cannot hold; pass an array of a wider type."
        ) from None
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"{what} is {quote(leaf)} of type {type(leaf).__name__}, which is no array; pass arrays, "
            "jax.ShapeDtypeStruct or MeshTensors, and mark everything else with static_argnums or static_argnames."
        ) from None
    if not compat.is_array_type(aval):
        raise ArgumentTypeError(
            f"{what} is of type {aval}, which is no array; a reference can be closed over, not passed, or the function "
            "called under jax.jit."
        )
    check_size(aval.shape, aval.dtype, what)
    weak, sharding = bool(getattr(aval, "weak_type", False)), _cast_type(getattr(aval, "sharding", None))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak, sharding=sharding)


def _check_type(kind: jax.ShapeDtypeStruct, what: str) -> None:
    """Checks the shape and dtype of a `ShapeDtypeStruct`, which JAX does not."""
    known: Any = (np.number, np.bool_, jax.dtypes.extended, jax.dtypes.float0)
    if not any(jax.dtypes.issubdtype(kind.dtype, k) for k in known):
        raise ArgumentTypeError(f"{what} is of the dtype {kind.dtype}, which no JAX array has; say one of numbers.")
    odd = [n for n in cast("Sequence[Any]", kind.shape) if not isinstance(n, (int, np.integer))]
    if odd and not all(map(export.is_symbolic_dim, odd)):
        raise ArgumentTypeError(f"{what} is of the shape {quote(kind.shape)}; a shape is a row of integers.")


def _cast_type(sharding: Any) -> NamedSharding | None:
    """Returns a sharding if it is a part of the type, on a mesh with Explicit axes; a `shard_map` inside reads it."""
    explicit = isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types
    return sharding if explicit else None


@dataclass(frozen=True, slots=True)
class TtirProgram:
    """A traced function: the typed jaxpr, the tree of its results, the places where replication is assumed.

    If TTIR cannot express the program, `missing` is the reason, and the jaxpr is as JAX traced it.
    `out_specs` are the shardings in the types of the results on Explicit axes. Of a program that the partitioner made,
    `plain` is the program of full values, and `partitioned` what the partitioner decided.
    """

    jaxpr: compat.Jaxpr
    out_tree: Any
    assumptions: tuple[str, ...] = ()
    missing: InexpressibleError | None = None
    out_specs: OutSpecs = None
    plain: compat.Jaxpr | None = None
    partitioned: ImportedProgram | None = None


def trace(
    fun: Callable[..., Any],
    in_tree: Any,
    avals: Sequence[jax.ShapeDtypeStruct],
    varying: Sequence[Sequence[str]],
    mesh: Mesh | AbstractMesh,
    asked: Asked | None = None,
) -> TtirProgram:
    """Traces `fun(*args, **kwargs)`, its arguments flattened by `in_tree`.

    Args:
      fun: a function of the dynamic arguments.
      in_tree: the tree of `(args, kwargs)`.
      avals: the types of the leaves; for a tensor that lives on the devices its local type.
      varying: per leaf the mesh axes it varies over; empty for a full tensor.
      mesh: the mesh of the program.
      asked: the shardings at its ends; by default none.

    Raises:
      ArgumentTypeError: a result is not an array.
      UnsupportedError: a collective along an axis that `jax.vmap` names.
      InexpressibleError: it has a `shard_map` that TTIR cannot express, and takes tensors on the devices.
    """
    trees: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(in_tree, leaves)
        results = fun(*args, **kwargs)
        try:
            paths, tree = cast("tuple[list[tuple[Any, Any]], Any]", jax.tree.flatten_with_path(results))
        except ValueError as error:
            raise ArgumentTypeError(f"the results have no order: {error} Use dict keys of one type.") from None
        trees.append(tree)
        return [_result(value, jax.tree_util.keystr(path)) for path, value in paths]

    wanted = asked or Asked((None,) * len(avals), (False,) * len(avals))
    tried: list[bool] = []

    def automatic(plain: compat.Jaxpr) -> TtirProgram | None:
        tried.append(True)
        return partitioned_program(plain, wanted, trees[-1], mesh) if is_automatic(plain, wanted) else None

    assumptions: dict[str, None] = {}
    try:
        traced = trace_program(flat, avals, varying, mesh, assumptions, automatic)
        if isinstance(traced, TtirProgram):
            return traced
        jaxpr, out_specs = traced
        if wanted.given and not tried:
            return _split_by_hand(flat, avals, varying, wanted, lambda: trees[-1], mesh)
    except InexpressibleError as missing:
        if any(varying):
            raise
        return TtirProgram(copy_constants(trace_plain(flat, avals, mesh)), trees[-1], missing=missing)
    except AssertionError as error:
        place = jax_assertion(error)
        if place is None:
            raise
        raise UnsupportedError(
            f"{place}: an assertion failed inside JAX, without a message. It does at a collective along an axis that "
            "jax.vmap(..., axis_name=...) names, because JAX has no types for such axes where replication is checked, "
            "in jax.shard_map too. Reduce over that dim outside of the vmap, or give the work to "
            "jaxmesh.shard_map(..., check_vma=False)."
        ) from error
    return TtirProgram(copy_constants(jaxpr), trees[-1], tuple(assumptions), out_specs=out_specs)


def _split_by_hand(
    flat: Callable[..., Sequence[Any]],
    avals: Sequence[jax.ShapeDtypeStruct],
    varying: Sequence[Sequence[str]],
    asked: Asked,
    tree: Callable[[], Any],
    mesh: Mesh | AbstractMesh,
) -> TtirProgram:
    """Traces a program that splits tensors itself, with the shardings given for its arguments and results."""
    if any(varying):
        raise UnsupportedError(
            "shardings are given, and an argument is a MeshTensor, which does not know how its "
            "shards are put together; pass arrays, or leave in_shardings and out_shardings out."
        )
    kept = Asked(asked.arguments, (False,) * len(avals), asked.results, given=True)

    def results() -> Sequence[NamedSharding | None]:
        return [None] * tree().num_leaves if kept.results is None else kept.results(tree())

    assumptions: dict[str, None] = {}
    placed = place_by_hand(flat, kept, results)
    jaxpr, _ = trace_program(placed, avals, varying, mesh, assumptions)
    return TtirProgram(copy_constants(jaxpr), tree(), tuple(assumptions))


def partitioned_program(plain: compat.Jaxpr, asked: Asked, tree: Any, mesh: Mesh | AbstractMesh) -> TtirProgram:
    """Returns the program that the partitioner makes; one that it cannot make runs as JAX runs it."""
    # Where no type has a sharding, types do not decide where results are.
    typed = any(any(a.sharding.spec) for a in (*plain.in_avals, *plain.out_avals))
    asked_results = asked.results(tree) if asked.results is not None else [None] * len(plain.out_avals)
    ends = zip(plain.out_avals, asked_results, strict=True)
    specs = tuple(a.sharding.spec if s is None else s.spec for a, s in ends) if typed else None
    plain = copy_constants(plain)
    try:
        made = partition_program(plain, asked, tree, mesh)
    except (InexpressibleError, MissingRuleError, UnsupportedError) as error:
        missing = error if isinstance(error, InexpressibleError) else InexpressibleError(str(error))
        return TtirProgram(plain_call(plain, asked, tree), tree, missing=missing, plain=plain)
    return TtirProgram(made.jaxpr, tree, made.assumptions, None, specs or made.out_specs, plain, made)


def _result(value: Any, path: str) -> Any:
    try:
        return jnp.asarray(value)
    except JaxmeshError:
        raise
    except OverflowError:
        raise ArgumentValueError(
            f"result{path} of the function is the number {quote(value)}, which JAX's default type of an int, "
            f"{jax.dtypes.canonicalize_dtype(np.int64)}, cannot hold; return an array of a wider type."
        ) from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(
            f"result{path} of the function is {quote(value)} of type {type(value).__name__}; a program returns arrays."
        ) from error
