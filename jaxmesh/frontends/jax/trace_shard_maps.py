"""Traces functions that may contain `shard_map`s: JAX's, or `jaxmesh.shard_map`, which is JAX's inside a program.

JAX's `shard_map` cannot be called inside a typed trace, where every mesh axis is already manual. So a function is first
traced as JAX would trace it, which ends early at the first operation that splits tensors by itself. If it contains
`shard_map`s, each becomes `mesh_shard`s around its body; otherwise the function is traced again, in one region.

So Python before the first split runs twice; the rest runs once.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from jaxmesh.dialects.ttir.mesh_shard import mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES
from jaxmesh.errors import ArgumentTypeError, JaxmeshError, UnloweredError, UnsupportedError
from jaxmesh.frontends.jax.retype import Retyper, sum_copies
from jaxmesh.frontends.jax.shard_map import check_values, raise_one, raise_shard_maps
from jaxmesh.jaxprs import compat, evaluate, source_locations, walk
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.evaluate import trace_typed
from jaxmesh.jaxprs.rewrite import inline_calls
from jaxmesh.sharding.mesh import AnyMesh

Assumptions = dict[str, None]
OutSpecs = tuple[PartitionSpec, ...] | None
T = TypeVar("T")
_SPLITS = PRIMITIVES | {mesh_shard_p}
_EQUAL = ("all_gather_invariant", "all_gather_reduced")
"""Collectives whose results are equal on all devices by type."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """A program that is being traced; `inline` if its `jaxmesh.shard_map`s become part of the typed trace at once."""

    mesh: AnyMesh | None
    assumptions: Assumptions
    inline: bool


_tracing: contextvars.ContextVar[Tracing | None] = contextvars.ContextVar("program being traced", default=None)


def tracing() -> Tracing | None:
    """Returns the program that is being traced, or None."""
    return _tracing.get()


@contextlib.contextmanager
def within(what: Tracing | None) -> Generator[None]:
    """Runs its body as a part of the trace of a program, or of no program."""
    token = _tracing.set(what)
    try:
        yield
    finally:
        _tracing.reset(token)


def trace_program(
    flat: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    varying: Sequence[Sequence[str]],
    mesh: AnyMesh,
    assumptions: Assumptions,
    automatic: Callable[[Jaxpr], T | None] = lambda _: None,
) -> tuple[Jaxpr, OutSpecs] | T:
    """Traces a function of flat arguments to a typed, closed jaxpr without `shard_map`s.

    Args:
      flat: the function.
      avals: the types of its arguments, `[local shape]` for tensors on the devices.
      varying: the mesh axes that each argument varies over; none for a full array.
      mesh: the mesh of the program.
      assumptions: receives, as keys, the replication that no type proves.
      automatic: returns the program that a partitioner makes of a function that splits nothing itself, or None.

    Returns:
      The jaxpr, and on Explicit axes the specs in the types of the results; or what `automatic` returns.

    Raises:
      MeshMismatchError: a `shard_map` over another mesh than the program's.
      InexpressibleError: a `shard_map` that TTIR cannot express.
      UnsupportedError: JAX's `shard_map` beside `mesh_shard`s.
    """
    abstract = _abstract(mesh)
    whole = flat, avals, varying, mesh, assumptions
    tensors = any(varying)
    explicit = AxisType.Explicit in mesh.axis_types
    plain = None if tensors else _trace_outside(flat, avals, mesh)
    if plain is not None and (partitioned := automatic(plain)) is not None:
        return partitioned
    if plain is None or (explicit and not _has_shard_map(plain)):
        try:
            return _trace_region(*whole), None
        except JaxmeshError:
            raise
        except Exception as error:
            if plain is None and not tensors:
                plain = _trace_unless_split(flat, avals, mesh)
            if plain is None:
                _explain_context_mesh(error)
                raise
    check_values(plain)
    if any(e.primitive in _SPLITS for e in walk.all_eqns(plain)):
        # Bodies that split tensors themselves need their maps inside of the one region that the program is.
        with contextlib.suppress(Exception):
            jaxpr = _trace_region(*whole)
            if _has_shard_map(jaxpr):
                # No axis is left for such a map. JAX joins what its body leaves for a derivative all the same, in type.
                return inline_calls(jaxpr, names={"shard_map"}), None
    typed = trace_typed(lambda *xs: raise_shard_maps(plain, xs, mesh, assumptions), avals, varying, abstract)
    return typed, tuple(a.sharding.spec for a in plain.out_avals) if explicit else None


def _abstract(mesh: AnyMesh) -> AbstractMesh:
    return mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh


def _has_shard_map(jaxpr: Jaxpr) -> bool:
    return any(e.primitive.name == "shard_map" for e in walk.all_eqns(jaxpr))


def _trace_outside(flat: Callable[..., Sequence[Any]], avals: Sequence[Any], mesh: AnyMesh) -> Jaxpr | None:
    """Traces a function as JAX would; returns None if it splits tensors itself, or fails.

    It must come before any trace in a region: a `shard_map` without a mesh takes the mesh of its first call for good.
    """
    with contextlib.suppress(Exception, compat.RegionRequired), compat.end_outside_regions():
        return trace_plain(flat, avals, mesh)
    return None


def _trace_unless_split(flat: Callable[..., Sequence[Any]], avals: Sequence[Any], mesh: AnyMesh) -> Jaxpr | None:
    """Traces a function as JAX would, programs of `jaxmesh.jit` that it calls included; None if it splits tensors."""
    with contextlib.suppress(UnloweredError, ArgumentTypeError, NameError), compat.end_outside_regions(False):
        return trace_plain(flat, avals, mesh)
    return None


def _trace_region(
    flat: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    varying: Sequence[Sequence[str]],
    mesh: AnyMesh,
    assumptions: Assumptions,
) -> Jaxpr:
    """Traces a program that splits tensors itself, all of it in one region; `jaxmesh.shard_map`s become part of it."""
    new: Assumptions = {}
    abstract = _abstract(mesh)
    with within(Tracing(mesh, new, inline=True)):
        try:
            jaxpr = trace_typed(flat, avals, varying, abstract)
        except TypeError as error:
            if isinstance(error, JaxmeshError) or "manual axis types do not match" not in str(error):
                raise
            # A loop whose carry starts with the same value on all devices, or a branch that returns one.
            new.clear()
            untyped = trace_typed(flat, avals, varying, abstract, check_vma=False)
            transposed = source_locations.is_transposed(untyped)
            if transposed and any(
                e.primitive in PRIMITIVES or e.primitive.name in _EQUAL for e in walk.all_eqns(untyped)
            ):
                # Their transposes read from types which copies are equal.
                raise
            retyper = Retyper({"psum": sum_copies} if transposed else {})
            jaxpr = trace_typed(lambda *xs: retyper.evaluate(untyped, xs), avals, varying, abstract)
    assumptions.update(new)
    return jaxpr


def _explain_context_mesh(error: Exception) -> None:
    if isinstance(error, ValueError) and "context mesh" in str(error):
        raise UnsupportedError(
            "a program that splits tensors with mesh_shard, or takes MeshTensors, also calls jax.shard_map "
            f"({error}); call jaxmesh.shard_map instead, which takes the same arguments."
        ) from error


def mesh_of_calls(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> AnyMesh | None:
    """Returns the mesh of the first `shard_map` that a function calls, if JAX can trace it; None if there is none."""
    try:
        with within(Tracing(None, {}, inline=False)):
            jaxpr = jax.make_jaxpr(fun)(*args, **kwargs)
    except Exception:
        # The trace of the program reports errors of the function, or that it needs a mesh.
        return None
    return next((e.params["mesh"] for e in walk.all_eqns(jaxpr) if is_region(e)), None)


def is_region(eqn: compat.Eqn) -> bool:
    """Returns True for a `shard_map` that makes axes manual."""
    return eqn.primitive.name == "shard_map" and bool(eqn.params["newly_manual_axes"])


def trace_plain(flat: Callable[..., Sequence[Any]], avals: Sequence[Any], mesh: AnyMesh) -> Jaxpr:
    """Traces a function as JAX would under `jax.set_mesh(mesh)`; without it, if its `shard_map`s need another mesh.

    A `shard_map` without a mesh fails outside of `jax.set_mesh`, as a constraint by a PartitionSpec does; a `shard_map`
    over another mesh fails inside of it. A program that catches that error goes on as it does there.
    """
    automatic = all(t is AxisType.Auto for t in mesh.axis_types)
    with within(Tracing(mesh, {}, inline=False)):
        if automatic and jax.sharding.get_abstract_mesh().empty:
            with contextlib.suppress(ValueError), jax.sharding.use_abstract_mesh(_abstract(mesh)):
                return jax.make_jaxpr(flat)(*avals)
        try:
            return jax.make_jaxpr(flat)(*avals)
        except Exception:
            if automatic or not jax.sharding.get_abstract_mesh().empty:
                raise
            with contextlib.suppress(Exception), jax.sharding.use_abstract_mesh(_abstract(mesh)):
                return jax.make_jaxpr(flat)(*avals)
            raise


def call_inline(mapped: Callable[..., Any], args: Sequence[Any], program: Tracing) -> Any:
    """Calls a function made by `jax.shard_map` inside the typed trace of a program, as a part of it."""
    with within(None), _outside_of_meshes():
        closed, tree = call_to_jaxpr(mapped, args)
    mesh = program.mesh
    assert mesh is not None
    return eval_call(closed, tree, lambda eqn, operands: raise_one(eqn, operands, mesh, program.assumptions))


def eval_call(closed: Jaxpr, tree: Any, region: Callable[[compat.Eqn, list[Any]], list[Any]]) -> Any:
    """Evaluates a call that `call_to_jaxpr` has traced, its `shard_map`s by `region`."""

    def run(eqn: compat.Eqn, operands: list[Any]) -> list[Any]:
        with evaluate.at_source_of(eqn):
            return region(eqn, operands) if is_region(eqn) else evaluate.bind(eqn, operands)

    return jax.tree.unflatten(tree, evaluate.interpret(closed, (), run, lambda c: c))


def _outside_of_meshes() -> Any:
    return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))


def call_to_jaxpr(mapped: Callable[..., Any], args: Sequence[Any]) -> tuple[Jaxpr, Any]:
    """Traces a call to a closed jaxpr without arguments, `args` as constants; returns it and the tree of the result."""
    trees: list[Any] = []

    def call() -> list[Any]:
        leaves, tree = cast("tuple[list[Any], Any]", jax.tree.flatten(mapped(*args)))
        trees.append(tree)
        return leaves

    return jax.make_jaxpr(call)(), trees[-1]
