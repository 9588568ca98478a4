"""From a Python function, traced once, to a TTIR-level program.

A program that splits tensors by hand is traced in one mapped region, where every mesh axis has a name. JAX's
`shard_map` cannot be called there, because every axis is manual already; `jaxmesh.shard_map` can.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jax import export
from jax.core import ShapedArray
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef

from jaxmesh.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    InexpressibleError,
    JaxmeshError,
    MissingRuleError,
    UnsupportedError,
)
from jaxmesh.frontends.jax.ragged import without_ragged_exchanges
from jaxmesh.frontends.jax.retype import Retyper
from jaxmesh.frontends.jax.shard_map import check_values, is_region, raise_one, raise_shard_maps
from jaxmesh.frontends.stablehlo.trace import Asked, is_automatic, partition_program, place, plain_call
from jaxmesh.jaxprs import compat, evaluate, walk, widening
from jaxmesh.jaxprs.compat import as_abstract, off_explicit_axes
from jaxmesh.jaxprs.emit import emit_jaxpr
from jaxmesh.jaxprs.rewrite import copy_constants
from jaxmesh.jaxprs.tracing_state import REGION, set_within, traced_as, tracing
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import PyTree
from jaxmesh.jaxprs.user_trace import UNSPECIFIED, FunctionTrace, argument_shardings, result_shardings, trace_function
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.validate import check_size, quote

if TYPE_CHECKING:
    from jaxmesh.frontends.stablehlo.program import ImportedProgram


@dataclass(frozen=True, slots=True)
class TracedRegion:
    """The region that is being traced: its mesh, and the replication that no type proves."""

    mesh: AnyMesh
    assumptions: dict[str, None]


_region: contextvars.ContextVar[TracedRegion | None] = contextvars.ContextVar("region being traced", default=None)


def current_region() -> TracedRegion | None:
    """Returns the region that is being traced by hand; None in a plain trace and outside of programs."""
    return _region.get() if tracing() == REGION else None


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


def call_inline(mapped: Callable[..., object], args: Sequence[object], region: TracedRegion) -> object:
    """Calls a function made by `jax.shard_map` as a part of a region."""
    trees: list[PyTree] = []

    def call() -> list[jax.Array]:
        leaves, tree = cast("tuple[list[jax.Array], Any]", jax.tree.flatten(mapped(*args)))
        trees.append(tree)
        return leaves

    with traced_as(None), jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        closed = typed.make_jaxpr(call)()

    def run(eqn: compat.Eqn, operands: list[jax.Array]) -> list[jax.Array]:
        if not is_region(eqn):
            return evaluate.bind_at_source(eqn, operands)
        with evaluate.at_source_of(eqn):
            return raise_one(eqn, operands, region.mesh, region.assumptions)

    return jax.tree.unflatten(trees[-1], evaluate.interpret(closed, (), run, lambda c: c))


def abstract(leaf: object, what: str) -> jax.ShapeDtypeStruct:
    """Returns shape, dtype, weak type and, on Explicit axes, sharding of an argument.

    Raises:
      ArgumentTypeError: the leaf is not an array.
    """
    if isinstance(leaf, ShapedArray):
        leaf = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    try:
        aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
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
    if compat.is_reference(aval):
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    if compat.is_token(aval):
        return jax.ShapeDtypeStruct((), np.bool_)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        _check_type(leaf, what)
    elif not compat.is_array_type(aval):
        raise ArgumentTypeError(f"{what} is of type {aval}, which is not an array; pass arrays.")
    check_size(aval.shape, aval.dtype, what)
    # On Explicit axes a sharding is a part of the type, which a `shard_map` inside reads.
    explicit = isinstance(aval.sharding, NamedSharding) and AxisType.Explicit in aval.sharding.mesh.axis_types
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=aval.sharding if explicit else None
    )


def _check_type(kind: jax.ShapeDtypeStruct, what: str) -> None:
    """Checks the shape and dtype of a `ShapeDtypeStruct`, which JAX does not."""
    known: Any = (np.number, np.bool_, jax.dtypes.extended, jax.dtypes.float0)
    if not any(jax.dtypes.issubdtype(kind.dtype, k) for k in known):
        raise ArgumentTypeError(f"{what} is of the dtype {kind.dtype}, which is not a JAX dtype; use a numeric dtype.")
    odd = [n for n in cast("Sequence[Any]", kind.shape) if not isinstance(n, (int, np.integer))]
    if odd and not all(map(export.is_symbolic_dim, odd)):
        raise ArgumentTypeError(f"{what} is of the shape {quote(kind.shape)}; a shape is a row of integers.")


@dataclass(frozen=True, slots=True)
class TtirProgram:
    """A traced function as a TTIR-level program.

    Attributes:
      jaxpr: the typed jaxpr; as JAX traced it if TTIR cannot express the program.
      out_tree: the tree of its results.
      assumptions: the source locations where replication is assumed.
      missing: the reason why TTIR cannot express the program, or None.
      out_specs: the specs of the results, on Explicit axes and of a partitioned program.
      plain: of a partitioned program, the program of full values.
      partitioned: of a partitioned program, what the partitioner decided.
    """

    jaxpr: compat.Jaxpr
    out_tree: PyTreeDef
    assumptions: tuple[str, ...] = ()
    missing: InexpressibleError | None = None
    out_specs: tuple[PartitionSpec, ...] | None = None
    plain: compat.Jaxpr | None = None
    partitioned: ImportedProgram | None = None


def trace_by_hand(
    fun: Callable[..., Any],
    in_tree: PyTreeDef,
    avals: Sequence[jax.ShapeDtypeStruct],
    varying: Sequence[Sequence[str]],
    mesh: AnyMesh,
) -> TtirProgram:
    """Traces a function that splits tensors by hand, or takes tensors on the devices, in one region.

    The types of the leaves of `(args, kwargs)` are local for tensors on the devices, which vary over mesh axes.
    """
    region = TracedRegion(mesh, {})
    widening.install(Retyper.bind_flow)
    traces: list[FunctionTrace] = []
    # JAX keeps what it traces of a function by its identity, and would not note assumptions again.
    once = typed.jit(functools.wraps(fun)(lambda *args, **kwargs: fun(*args, **kwargs)))

    def body(*leaves: jax.Array) -> Sequence[jax.Array]:
        args, kwargs = jax.tree.unflatten(in_tree, leaves)
        with traced_as(REGION), _advise_on_shard_map():
            traces.append(trace_function(once, args, kwargs))
        # Values that the function closes over get the types of the region.
        return emit_jaxpr(traces[0].jaxpr, leaves) if traces[0].jaxpr.consts else []

    with set_within(_region, region):
        jaxpr = evaluate.trace_typed(body, avals, varying, as_abstract(mesh))
    (traced,) = traces
    jaxpr = jaxpr if traced.jaxpr.consts else traced.jaxpr
    jaxpr = without_ragged_exchanges(copy_constants(jaxpr), as_abstract(mesh), mesh.axis_names)
    return TtirProgram(jaxpr, traced.out_tree, tuple(region.assumptions))


def call_placed(
    fun: Callable[..., object], shardings: tuple[object, object], args: Sequence[object], kwargs: dict[str, object]
) -> Any:
    """Calls a function in a region, its full arguments and results in the shardings of `jaxmesh.jit`."""
    ins, outs = shardings
    if ins is not UNSPECIFIED:
        args = _place_all(tuple(args), argument_shardings(ins, args))
    results = fun(*args, **kwargs)
    return results if outs is UNSPECIFIED else _place_all(results, result_shardings(outs, results))


def _place_all(values: Any, shardings: Sequence[NamedSharding | None]) -> Any:
    leaves, tree = cast("tuple[list[jax.Array], Any]", jax.tree.flatten(values))
    return jax.tree.unflatten(tree, list(map(place, leaves, shardings)))


def program_of(plain: FunctionTrace, asked: Asked, mesh: AnyMesh) -> TtirProgram:
    """Returns the program of a function that JAX traced; JAX runs a program that TTIR cannot express."""
    plain = dataclasses.replace(plain, jaxpr=without_ragged_exchanges(copy_constants(plain.jaxpr), mesh))
    try:
        check_values(plain.jaxpr)
        asked.check_kinds()
        if not is_automatic(plain.jaxpr, asked):
            return _mapped(plain, mesh)
        return _partitioned(plain, asked, mesh)
    except (InexpressibleError, MissingRuleError, UnsupportedError) as error:
        missing = error if isinstance(error, InexpressibleError) else InexpressibleError(str(error))
        return TtirProgram(plain_call(plain), plain.out_tree, missing=missing)


def _mapped(plain: FunctionTrace, mesh: AnyMesh) -> TtirProgram:
    """Returns a program whose only mapped parts are its `shard_map`s."""
    assumptions: dict[str, None] = {}
    avals = plain.jaxpr.in_avals
    consts = [off_explicit_axes(c) for c in walk.constants(plain.jaxpr).values()]
    program = walk.close(walk.open_jaxpr(plain.jaxpr), consts)

    def run(*args: jax.Array) -> list[jax.Array]:
        return raise_shard_maps(program, args, mesh, assumptions)

    jaxpr = evaluate.trace_typed(run, avals, [()] * len(avals), as_abstract(mesh))
    explicit = AxisType.Explicit in mesh.axis_types
    out_specs = tuple(a.sharding.spec for a in plain.jaxpr.out_avals) if explicit else None
    return TtirProgram(copy_constants(jaxpr), plain.out_tree, tuple(assumptions), out_specs=out_specs)


def _partitioned(plain: FunctionTrace, asked: Asked, mesh: AnyMesh) -> TtirProgram:
    """Returns the program that the partitioner makes of a program of full values."""
    program = plain.jaxpr
    # Where no type has a sharding, types do not decide where results are.
    typed = any(any(a.sharding.spec) for a in (*program.in_avals, *program.out_avals))
    ends = zip(program.out_avals, asked.results, strict=True)
    specs = tuple(a.sharding.spec if s is None else s.spec for a, s in ends) if typed else None
    made = partition_program(program, asked, mesh)
    return TtirProgram(made.jaxpr, plain.out_tree, made.assumptions, None, specs or made.out_specs, program, made)
