"""Programs that split tensors by hand, traced in one mapped region, where every mesh axis has a name.

JAX's `shard_map` cannot be called there, because every axis is manual already; `jaxmesh.shard_map` can.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxmesh.frontends.jax.shard_map import is_region, raise_one
from jaxmesh.jaxprs import compat, evaluate
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.emit import emit_jaxpr
from jaxmesh.jaxprs.tracing_state import REGION, set_within, traced_as, tracing
from jaxmesh.jaxprs.user_trace import FunctionTrace, trace_function
from jaxmesh.sharding.mesh import AnyMesh

Assumptions = dict[str, None]


@dataclass(frozen=True, slots=True)
class TracedRegion:
    """The region that is being traced: its mesh, and the replication that no type proves."""

    mesh: AnyMesh
    assumptions: Assumptions


_region: contextvars.ContextVar[TracedRegion | None] = contextvars.ContextVar("region being traced", default=None)


def current_region() -> TracedRegion | None:
    """Returns the region that is being traced by hand; None in a plain trace and outside of programs."""
    return _region.get() if tracing() == REGION else None


def trace_region(
    fun: Callable[..., Any],
    in_tree: Any,
    avals: Sequence[Any],
    varying: Sequence[Sequence[str]],
    region: TracedRegion,
) -> tuple[Jaxpr, Any]:
    """Traces a function in one region; returns the typed, closed jaxpr and the tree of its results.

    Args:
      fun: a function of the dynamic arguments.
      in_tree: the tree of `(args, kwargs)`.
      avals: the types of the leaves, `[local shape]` for tensors on the devices.
      varying: the mesh axes that each leaf varies over; none for a full array.
      region: the mesh of the program; its assumptions are added to.
    """
    traces: list[FunctionTrace] = []
    # JAX keeps what it traces of a function by its identity, and would not note assumptions again.
    once: Any = jax.jit(functools.wraps(fun)(lambda *args, **kwargs: fun(*args, **kwargs)))

    def body(*leaves: Any) -> Sequence[Any]:
        args, kwargs = jax.tree.unflatten(in_tree, leaves)
        with traced_as(REGION), _advise_on_shard_map():
            traces.append(trace_function(once, args, kwargs))
        # Values that the function closes over get the types of the region.
        return emit_jaxpr(traces[0].jaxpr, leaves) if traces[0].jaxpr.consts else []

    mesh = region.mesh
    with set_within(_region, region):
        jaxpr = evaluate.trace_typed(body, avals, varying, mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh)
    (traced,) = traces
    return jaxpr if traced.jaxpr.consts else traced.jaxpr, traced.out_tree


@contextlib.contextmanager
def _advise_on_shard_map() -> Generator[None]:
    """Adds to JAX's error for its `shard_map` in a region what to call there."""
    try:
        yield
    except ValueError as error:
        if "context mesh" in str(error):
            error.add_note(
                "The program splits tensors by hand, or takes MeshTensors, so all of it is one mapped region; call "
                "jaxmesh.shard_map there, which takes the arguments of jax.shard_map."
            )
        raise


def call_inline(mapped: Callable[..., Any], args: Sequence[Any], region: TracedRegion) -> Any:
    """Calls a function made by `jax.shard_map` as a part of a region."""
    trees: list[Any] = []

    def call() -> list[Any]:
        leaves, tree = cast("tuple[list[Any], Any]", jax.tree.flatten(mapped(*args)))
        trees.append(tree)
        return leaves

    with traced_as(None), jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        closed = jax.make_jaxpr(call)()

    def run(eqn: compat.Eqn, operands: list[Any]) -> list[Any]:
        with evaluate.at_source_of(eqn):
            return (
                raise_one(eqn, operands, region.mesh, region.assumptions)
                if is_region(eqn)
                else evaluate.bind(eqn, operands)
            )

    return jax.tree.unflatten(trees[-1], evaluate.interpret(closed, (), run, lambda c: c))
