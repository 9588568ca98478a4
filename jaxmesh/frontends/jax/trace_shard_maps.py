"""Tracing functions that may hold `shard_map`s: JAX's own, or `jaxmesh.shard_map`, which is JAX's inside a program.

JAX's `shard_map` cannot be called inside a typed trace, where every mesh axis is manual already. So such a function is
traced as JAX would trace it, differentiated and batched by JAX where it asks for that, and what comes out is raised.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from jaxmesh.errors import ArgumentTypeError, InexpressibleError, JaxmeshError, UnloweredError, UnsupportedError
from jaxmesh.frontends.jax.shard_map import check_values, raise_one, raise_shard_maps
from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.shard_map_hook import NoMeshYet, meshless_stopped
from jaxmesh.jaxprs.typed_trace import trace_typed

AnyMesh = Mesh | AbstractMesh
Assumptions = dict[str, None]
OutSpecs = tuple[PartitionSpec, ...] | None


@dataclass(frozen=True, slots=True)
class Tracing:
    """A program that is being traced; `inline` when its shard_maps become part of the typed trace at once."""

    mesh: AnyMesh | None
    assumptions: Assumptions
    inline: bool


_tracing: contextvars.ContextVar[Tracing | None] = contextvars.ContextVar("program being traced", default=None)


def tracing() -> Tracing | None:
    """The program that is being traced here."""
    return _tracing.get()


@contextlib.contextmanager
def within(what: Tracing | None) -> Generator[None]:
    """Runs the body as a part of a program's tracing, or of none."""
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
) -> tuple[Jaxpr, OutSpecs]:
    """Traces a function of flat arguments to a typed, closed jaxpr without `shard_map`s.

    Also gives the specs of the results where JAX types them, which is on Explicit axes.

    Raises:
      MeshMismatchError: a `shard_map` over another mesh than the program's.
      InexpressibleError: a `shard_map` that TTIR cannot say.
      UnsupportedError: JAX's `shard_map` beside `mesh_shard`s.
    """
    abstract = mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
    tensors = any(varying)
    inner, stopped = cast("Jaxpr | None", None), False
    try:
        jaxpr = _trace_whole(flat, avals, varying, mesh, assumptions)
        if all(e.primitive.name != "shard_map" for e in walk.all_eqns(jaxpr)):
            return jaxpr, None
        # Maps over no axis that the program's region does not have already mean nothing but their bodies.
        inner = _without_regions(jaxpr)
    except NoMeshYet as error:
        stopped = True
        if tensors:
            inner = _trace_inner(flat, avals, varying, mesh, assumptions)
            return inner or _trace_mixed(flat, avals, varying, mesh, assumptions, error), None
    except JaxmeshError:
        # Only a program that splits tensors itself gets so far; it has no other reading.
        raise
    except Exception as error:
        if tensors:
            return _trace_mixed(flat, avals, varying, mesh, assumptions, error), None
    try:
        plain = trace_plain(flat, avals, mesh)
    except (UnloweredError, ArgumentTypeError, NameError) as error:
        # mesh_shard, a call of ttnn, or a collective outside of any shard_map, or in one without a mesh.
        if stopped and (inner := _trace_inner(flat, avals, varying, mesh, assumptions)) is not None:
            return inner, None
        return _trace_mixed(flat, avals, varying, mesh, assumptions, error), None
    check_values(plain)
    try:
        typed = trace_typed(lambda *xs: raise_shard_maps(plain, xs, mesh, assumptions), avals, varying, abstract)
    except InexpressibleError:
        # The bodies split tensors themselves: their maps are inside of the one region that the program is.
        inner = inner or (_trace_inner(flat, avals, varying, mesh, assumptions) if stopped else None)
        if inner is None:
            raise
        return inner, None
    explicit = AxisType.Explicit in mesh.axis_types
    return typed, tuple(a.sharding.spec for a in plain.out_avals) if explicit else None


def _trace_whole(
    flat: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    varying: Sequence[Sequence[str]],
    mesh: AnyMesh,
    assumptions: Assumptions,
    stops: bool = True,
) -> Jaxpr:
    """Traces a program that splits tensors itself, all of it in one region.

    Raises:
      NoMeshYet: it called a `shard_map`, which cannot be called there, and may have gone on without it.
    """
    abstract = mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
    with within(Tracing(mesh, assumptions, inline=False)), meshless_stopped(stops) as refused:
        jaxpr = trace_typed(flat, avals, varying, abstract)
    if refused:
        raise refused[0]
    return jaxpr


def _without_regions(jaxpr: Jaxpr) -> Jaxpr | None:
    return None if any(map(is_region, walk.all_eqns(jaxpr))) else jaxpr


def _trace_inner(*whole: Any) -> Jaxpr | None:
    """A program whose `shard_map`s, which have no mesh, are inside of the one region that it is; None if it is none."""
    with contextlib.suppress(Exception):
        return _without_regions(_trace_whole(*whole, stops=False))
    return None


def mesh_of_calls(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> AnyMesh | None:
    """The mesh of the first `shard_map` that a function calls, if it can be traced as JAX would and calls one."""
    try:
        with within(Tracing(None, {}, inline=False)):
            jaxpr = jax.make_jaxpr(fun)(*args, **kwargs)
    except Exception:
        # What is wrong with the function, or that it needs a mesh, is said when it is traced for good.
        return None
    return next((e.params["mesh"] for e in walk.all_eqns(jaxpr) if is_region(e)), None)


def is_region(eqn: compat.Eqn) -> bool:
    """Whether an equation is a `shard_map` that makes axes manual."""
    return eqn.primitive.name == "shard_map" and bool(eqn.params["newly_manual_axes"])


def trace_plain(flat: Callable[..., Sequence[Any]], avals: Sequence[Any], mesh: AnyMesh) -> Jaxpr:
    """The function as JAX traces it; a `shard_map` without a mesh is over the program's."""
    abstract = mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
    with within(Tracing(mesh, {}, inline=False)), meshless_stopped(False) as refused:
        try:
            plain = jax.make_jaxpr(flat)(*avals)
        except ValueError:
            if not jax.sharding.get_abstract_mesh().empty:
                raise
            with contextlib.suppress(ValueError), jax.sharding.use_abstract_mesh(abstract):
                return jax.make_jaxpr(flat)(*avals)
            raise
        # The function has caught what a map without a mesh raises.
        if refused and jax.sharding.get_abstract_mesh().empty:
            with contextlib.suppress(ValueError), jax.sharding.use_abstract_mesh(abstract):
                return jax.make_jaxpr(flat)(*avals)
        return plain


def _trace_mixed(
    flat: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    varying: Sequence[Sequence[str]],
    mesh: AnyMesh,
    assumptions: Assumptions,
    cause: Exception,
) -> Jaxpr:
    """A program that splits tensors itself and calls `jaxmesh.shard_map` too: both go into one typed trace."""
    abstract = mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
    try:
        with within(Tracing(mesh, assumptions, inline=True)):
            return trace_typed(flat, avals, varying, abstract)
    except ValueError as error:
        if isinstance(error, JaxmeshError) or "context mesh" not in str(error):
            raise
        raise UnsupportedError(
            "a program that splits tensors with mesh_shard, or takes MeshTensors, also calls jax.shard_map "
            f"({error}); call jaxmesh.shard_map instead, which takes the same arguments."
        ) from cause


def call_inline(mapped: Callable[..., Any], args: Sequence[Any], program: Tracing) -> Any:
    """Calls a function made by `jax.shard_map` inside the typed trace of a program, as a part of it."""
    with within(None), _outside_of_meshes(), meshless_stopped(False):
        closed, tree = call_to_jaxpr(mapped, args)
    mesh = program.mesh
    assert mesh is not None
    return eval_call(closed, tree, lambda eqn, operands: raise_one(eqn, operands, mesh, program.assumptions))


def eval_call(closed: Jaxpr, tree: Any, region: Callable[[compat.Eqn, list[Any]], list[Any]]) -> Any:
    """The result of a call that `call_to_jaxpr` gave, its `shard_map`s performed by `region`."""

    def run(eqn: compat.Eqn, operands: list[Any]) -> list[Any]:
        with evaluate.at_source_of(eqn):
            return region(eqn, operands) if is_region(eqn) else evaluate.bind(eqn, operands)

    return jax.tree.unflatten(tree, evaluate.interpret(closed, (), run, lambda c: c))


def _outside_of_meshes() -> Any:
    return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))


def call_to_jaxpr(mapped: Callable[..., Any], args: Sequence[Any]) -> tuple[Jaxpr, Any]:
    """The call as a closed jaxpr without arguments, arrays among `args` being its constants; and the result's tree."""
    trees: list[Any] = []

    def call() -> list[Any]:
        leaves, tree = cast("tuple[list[Any], Any]", jax.tree.flatten(mapped(*args)))
        trees.append(tree)
        return leaves

    return jax.make_jaxpr(call)(), trees[-1]
