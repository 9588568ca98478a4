"""From a Python function to a TTIR-level program: splitting static arguments off, flattening, typed tracing."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, InexpressibleError, JaxmeshError, UnsupportedError
from jaxmesh.frontends.jax.trace_shard_maps import OutSpecs, trace_plain, trace_program
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.copy_constants import own_constants
from jaxmesh.jaxprs.source_locations import jax_assertion
from jaxmesh.validate import as_tuple, check_size, quote


@dataclass(frozen=True, slots=True)
class Signature:
    """Which arguments of a function are static, by position and by name."""

    argnums: frozenset[int] = field(default_factory=frozenset[int])
    argnames: frozenset[str] = field(default_factory=frozenset[str])

    @staticmethod
    def of(
        fun: Callable[..., Any],
        argnums: int | Iterable[int] | None,
        argnames: str | Iterable[str] | None,
        kind: str = "static",
    ) -> Signature:
        """As `jax.jit`: names and positions stand for each other where the function's signature tells.

        Raises:
          ArgumentTypeError: positions that are no integers, or names that are no text.
          ArgumentValueError: the function has no such argument.
        """
        names, numbers = _names(f"{kind}_argnames", argnames), _numbers(f"{kind}_argnums", argnums)
        try:
            signature = inspect.signature(fun)
        except (TypeError, ValueError):
            if names:
                raise ArgumentValueError(
                    f"{kind}_argnames {sorted(names)} are given for {quote(fun)}, which does not tell the names of its "
                    f"arguments; give {kind}_argnums."
                ) from None
            return Signature(frozenset(numbers), frozenset(names))
        parameters = list(signature.parameters.values())
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p.name for p in parameters if p.kind in kinds]
        _check_known(parameters, len(positional), names, numbers, kind, getattr(fun, "__name__", "the function"))
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


def _names(what: str, given: Any) -> set[str]:
    if given is None or isinstance(given, str):
        return set[str]() if given is None else {given}
    names = as_tuple(what, given, "the name of an argument or a row of names")
    wrong = [n for n in names if not isinstance(n, str)]
    if wrong or isinstance(given, bytes):
        raise ArgumentTypeError(f"{what} takes the name of an argument or a row of names, got {quote(given)}.")
    return set(names)


def _numbers(what: str, given: Any) -> set[int]:
    try:
        return set() if given is None else {operator.index(given)}
    except Exception:
        numbers = as_tuple(what, given, "the position of an argument or a row of positions")
    try:
        if isinstance(given, bytes):
            raise TypeError
        return {operator.index(n) for n in numbers}
    except Exception:
        raise ArgumentTypeError(
            f"{what} takes the position of an argument or a row of positions, got {quote(given)}."
        ) from None


def _check_known(
    parameters: Sequence[inspect.Parameter], count: int, names: set[str], numbers: set[int], kind: str, name: str
) -> None:
    """Checks that a function has the arguments that are named and numbered."""
    kinds = {p.kind for p in parameters}
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = sorted(names - set(known))
    if unknown and (inspect.Parameter.VAR_KEYWORD not in kinds or any(p.name in unknown for p in parameters)):
        raise ArgumentValueError(
            f"{kind}_argnames names the argument {unknown[0]!r}, but those of {name} that go by name are: "
            f"{', '.join(map(repr, known)) or 'none'}."
        )
    beyond = sorted(n for n in numbers if not -count <= n < count)
    if beyond and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise ArgumentValueError(
            f"{kind}_argnums names position {beyond[0]}, but {name} takes {count} arguments by position; allowed: "
            + (f"{-count} to {count - 1}." if count else "none.")
        )


def abstract(leaf: Any, what: str) -> jax.ShapeDtypeStruct:
    """Shape, dtype, weak type and, on Explicit axes, sharding of an argument.

    Raises:
      ArgumentTypeError: the leaf is no array.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        _check_type(leaf, what)
        check_size(leaf.shape, leaf.dtype, what)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type, sharding=_typed(leaf.sharding))
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
    weak, sharding = bool(getattr(aval, "weak_type", False)), _typed(getattr(aval, "sharding", None))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak, sharding=sharding)


def _check_type(kind: jax.ShapeDtypeStruct, what: str) -> None:
    """JAX takes anything as a shape and as a dtype, and fails where it is used."""
    known: Any = (np.number, np.bool_, jax.dtypes.extended, jax.dtypes.float0)
    if not any(jax.dtypes.issubdtype(kind.dtype, k) for k in known):
        raise ArgumentTypeError(f"{what} is of the dtype {kind.dtype}, which no JAX array has; say one of numbers.")
    odd = [n for n in cast("Sequence[Any]", kind.shape) if not isinstance(n, (int, np.integer))]
    if odd and not all(map(export.is_symbolic_dim, odd)):
        raise ArgumentTypeError(f"{what} is of the shape {quote(kind.shape)}; a shape is a row of integers.")


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

    jaxpr: compat.Jaxpr
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
      UnsupportedError: a collective along an axis that `jax.vmap` names.
      InexpressibleError: it holds a `shard_map` that TTIR cannot say, and takes tensors that JAX does not know.
    """
    trees: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(in_tree, leaves)
        results = fun(*args, **kwargs)
        paths, tree = cast("tuple[list[tuple[Any, Any]], Any]", jax.tree.flatten_with_path(results))
        trees.append(tree)
        return [_result(value, jax.tree_util.keystr(path)) for path, value in paths]

    assumptions: dict[str, None] = {}
    try:
        jaxpr, out_specs = trace_program(flat, avals, varying, mesh, assumptions)
    except InexpressibleError as missing:
        if any(varying):
            raise
        return TtirProgram(own_constants(trace_plain(flat, avals, mesh)), trees[-1], missing=missing)
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
    return TtirProgram(own_constants(jaxpr), trees[-1], tuple(assumptions), out_specs=out_specs)


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
