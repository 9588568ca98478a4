"""From a Python function to a TTIR-level program: splitting static arguments off, flattening, typed tracing."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from jaxmesh import jaxprs
from jaxmesh.errors import ArgumentTypeError, InexpressibleError
from jaxmesh.frontends.existing import OutSpecs, trace_plain, trace_program


@dataclass(frozen=True, slots=True)
class Signature:
    """Which arguments of a function are static, by position and by name."""

    argnums: frozenset[int] = field(default_factory=frozenset[int])
    argnames: frozenset[str] = field(default_factory=frozenset[str])

    @staticmethod
    def of(
        fun: Callable[..., Any], argnums: int | Iterable[int] | None, argnames: str | Iterable[str] | None
    ) -> Signature:
        """As `jax.jit`: names and positions stand for each other where the function's signature tells."""
        names = set[str]() if argnames is None else {argnames} if isinstance(argnames, str) else set(argnames)
        given = () if argnums is None else argnums if isinstance(argnums, Iterable) else (argnums,)
        numbers = {operator.index(n) for n in given}
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (TypeError, ValueError):
            return Signature(frozenset(numbers), frozenset(names))
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p.name for p in parameters if p.kind in kinds]
        if all(p.kind is not inspect.Parameter.VAR_POSITIONAL for p in parameters):
            numbers = {n + len(positional) if n < 0 else n for n in numbers}
        named = {positional[n] for n in numbers if 0 <= n < len(positional)}
        numbers |= {positional.index(n) for n in names if n in positional}
        return Signature(frozenset(numbers), frozenset(names | named))

    def marks(self, count: int) -> list[bool]:
        """Per positional argument of a call whether it is one of these; negative positions count from its end."""
        at = {n + count if n < 0 else n for n in self.argnums}
        return [i in at for i in range(count)]

    def split(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The dynamic arguments alone."""
        dynamic = [a for a, static in zip(args, self.marks(len(args)), strict=True) if not static]
        return dynamic, {k: v for k, v in kwargs.items() if k not in self.argnames}

    def join(
        self, args: Sequence[Any], kwargs: dict[str, Any], dynamic: Sequence[Any], dynamic_kw: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The full arguments, with the dynamic ones replaced."""
        rest = iter(dynamic)
        joined = [a if static else next(rest) for a, static in zip(args, self.marks(len(args)), strict=True)]
        return joined, {k: dynamic_kw.get(k, v) for k, v in kwargs.items()}


def abstract(leaf: Any, what: str) -> jax.ShapeDtypeStruct:
    """Shape, dtype, weak type and, on Explicit axes, sharding of an argument.

    Raises:
      ArgumentTypeError: the leaf is no array.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type, sharding=_typed(leaf.sharding))
    try:
        aval = jax.typeof(leaf)
    except TypeError:
        raise ArgumentTypeError(
            f"{what} is {leaf!r} of type {type(leaf).__name__}, which is no array; pass arrays, jax.ShapeDtypeStruct "
            "or MeshTensors, and mark everything else with static_argnums or static_argnames."
        ) from None
    if not jaxprs.is_array_type(aval):
        raise ArgumentTypeError(
            f"{what} is of type {aval}, which is no array; a reference can be closed over, not passed, or the function "
            "called under jax.jit."
        )
    weak, sharding = bool(getattr(aval, "weak_type", False)), _typed(getattr(aval, "sharding", None))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak, sharding=sharding)


def _typed(sharding: Any) -> NamedSharding | None:
    """A sharding that is a part of an array's type, on a mesh with Explicit axes; a `shard_map` inside looks at it."""
    explicit = isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types
    return sharding if explicit else None


@dataclass(frozen=True, slots=True)
class TtirProgram:
    """A traced function: the typed jaxpr, the tree of its results, where replication is assumed.

    Where TTIR has no words for the program, `missing` says what for, and the jaxpr is as JAX traced it.
    `out_specs` are the shardings in the types of the results on Explicit axes.
    """

    jaxpr: jaxprs.Jaxpr
    out_tree: Any
    assumptions: tuple[str, ...] = ()
    missing: InexpressibleError | None = None
    out_specs: OutSpecs = None


def trace(
    fun: Callable[..., Any],
    in_tree: Any,
    avals: Sequence[jax.ShapeDtypeStruct],
    varying: Sequence[Sequence[str]],
    mesh: Mesh | AbstractMesh,
) -> TtirProgram:
    """Traces `fun(*args, **kwargs)`, its arguments flattened by `in_tree`.

    Args:
      fun: a function of the dynamic arguments.
      in_tree: the tree of `(args, kwargs)`.
      avals: the types of the leaves; for a tensor that lives on the devices its local type.
      varying: per leaf the mesh axes it varies over; none for a full tensor.
      mesh: the mesh of the program.

    Raises:
      ArgumentTypeError: a result is no array.
      InexpressibleError: it holds a `shard_map` that TTIR cannot say, and takes tensors that JAX does not know.
    """
    trees: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(in_tree, leaves)
        paths, tree = cast("tuple[list[tuple[Any, Any]], Any]", jax.tree.flatten_with_path(fun(*args, **kwargs)))
        trees.append(tree)
        return [_result(value, jax.tree_util.keystr(path)) for path, value in paths]

    assumptions: dict[str, None] = {}
    try:
        jaxpr, out_specs = trace_program(flat, avals, varying, mesh, assumptions)
    except InexpressibleError as missing:
        if any(varying):
            raise
        return TtirProgram(trace_plain(flat, avals, mesh), trees[-1], missing=missing)
    return TtirProgram(jaxpr, trees[-1], tuple(assumptions), out_specs=out_specs)


def _result(value: Any, path: str) -> Any:
    try:
        return jnp.asarray(value)
    except TypeError:
        raise ArgumentTypeError(
            f"result{path} of the function is {value!r} of type {type(value).__name__}; a program returns arrays."
        ) from None
