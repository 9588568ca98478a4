"""A function that is traced, lowered and run over a mesh when called; `jaxmesh.jit` builds it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxmesh.dialects.replication import innermost_block, is_enabled
from jaxmesh.dialects.signature import Argument, Boundary
from jaxmesh.errors import JaxmeshError, UnsupportedError, printable
from jaxmesh.frontends.jax.ragged import has_ragged_exchanges
from jaxmesh.frontends.jax.shard_map import has_claims
from jaxmesh.frontends.jax.trace import TtirProgram, abstract, call_placed, current_region, program_of, trace_by_hand
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.backend import is_multi_process
from jaxmesh.jaxprs.caches import KEPT, Cache, is_jit_disabled, is_transforming, keep, unkeyed_settings
from jaxmesh.jaxprs.tracing_state import PLAIN, RegionRequired, RulesSplit, require_region, traced_as, tracing
from jaxmesh.jaxprs.trees import parameter_names
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import PyTree
from jaxmesh.jaxprs.user_trace import (
    UNSPECIFIED,
    api_boundary,
    legacy_mesh,
    mesh_context,
    name_axis,
    trace_function,
    trace_plain,
    uses_names,
)
from jaxmesh.runtime.distributed.agreement import compare_launch_arguments, synchronised_launch
from jaxmesh.runtime.launch import Dispatch, launch_new
from jaxmesh.runtime.progress import progress
from jaxmesh.sharding.mesh import (
    AnyMesh,
    check_inner_mesh,
    check_surroundings,
    context_mesh,
    tracing_over,
    with_devices,
)
from jaxmesh.stages import shardings as ends
from jaxmesh.stages.arguments import argument_of, flatten
from jaxmesh.stages.checked_calls import CheckedCalls, Checks
from jaxmesh.stages.partitioned import traced_program, warn_about
from jaxmesh.stages.shardings import find_mesh
from jaxmesh.stages.stages import Lowered, Traced
from jaxmesh.stages.user_calls import ArgumentSet, Calls, UserCall
from jaxmesh.tensor.mesh_tensor import is_tensor


class _RunsAsJaxError(Exception):
    """A traced function that TTIR cannot express; nothing has run yet, and `jax.jit` runs the trace."""


class JitFunction:
    """A function that is traced, lowered and run over a mesh when called; built by `jaxmesh.jit`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        mesh: AnyMesh | None,
        static: ArgumentSet,
        donated: ArgumentSet,
        check_replication: bool | None = None,
        shardings: tuple[PyTree, PyTree] = (UNSPECIFIED, UNSPECIFIED),
        options: Mapping[str, Any] | None = None,
        full_results: bool | None = None,
        by_hand: bool = False,
    ) -> None:
        self._fun, self._name = fun, getattr(fun, "__name__", "function")
        self._by_hand = by_hand
        self._mesh = mesh
        self._is_typed = isinstance(mesh, Mesh) and AxisType.Explicit in mesh.axis_types
        self._calls = Calls(fun, static, donated)
        self._check_replication = check_replication
        self._options = dict(options or {})
        self._full_results = full_results
        self._shardings = tuple(ends.over_mesh(s, mesh) for s in shardings)
        self._copy = functools.partial(
            JitFunction,
            fun,
            static=static,
            donated=donated,
            check_replication=check_replication,
            shardings=shardings,
            options=options,
            full_results=full_results,
        )
        # By the mesh of a `with mesh:` block, which the specs of shardings are over; None without specs.
        self._over: dict[Mesh, JitFunction] | None = {} if ends.has_specs(self._shardings) else None
        self._has_shardings = self._shardings != (UNSPECIFIED, UNSPECIFIED)
        ins, outs = self._shardings
        # JAX traces this function for a program, and as a part of another program.
        self._plain = self._jit(self._calls.unmarked, in_shardings=ins, out_shardings=outs)
        # By the implementation of random keys, and by the shardings of arrays, which JAX's cache does not look up by.
        self._jitted: dict[Hashable, Any] = {}
        # By the settings that JAX's dispatch does not look up by.
        self._known: dict[Hashable, Dispatch] = {}
        self._traced = Cache[Traced](KEPT, "traced programs")
        self._checked: dict[Hashable, CheckedCalls] = {}
        self._as_jax: dict[Hashable, Any] = {}
        functools.update_wrapper(self, fun, updated=())

    def _jit(self, fun: Callable[..., object], **options: Any) -> Any:
        return typed.jit(
            fun,
            # JAX infers what is left out.
            static_argnums=tuple(sorted(self._calls.static.argnums)),
            static_argnames=tuple(sorted(self._calls.static.argnames)),
            donate_argnums=tuple(sorted(self._calls.donated.argnums)),
            # JAX refuses a row of names, also an empty one, of a builtin without a signature.
            donate_argnames=tuple(sorted(self._calls.donated.argnames)) if self._calls.donated.has_names else None,
            **self._options,
            **options,
        )

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Runs the function over its mesh, compiled once per tree, types and static arguments."""
        if not self._calls.simple:
            args, kwargs = self._calls.arrange(args, kwargs)
        key = innermost_block(), *unkeyed_settings()
        try:
            return (self._known.get(key) or self._dispatch(key, self._run_new))(*args, **kwargs)
        except JaxmeshError:
            raise
        except AssertionError as error:
            name_axis(error)
            raise
        except (TypeError, ValueError, OverflowError, RuntimeError, SystemError):
            # JAX looked at the arguments first; jaxmesh's own errors for them are plainer.
            if not is_transforming():
                self._calls.check(args, kwargs, self._mesh)
            raise

    def _dispatch(self, key: Hashable, new: Callable[..., tuple[Any, Any]]) -> Dispatch:
        info = self._plain._jit_info
        return keep(self._known, key, lambda: Dispatch(new, self._name, info.static_argnums, info.static_argnames))

    def _run_new(self, *args: object, **kwargs: object) -> tuple[Any, Any]:
        """Runs a call; returns its results, and how its program is run again, as `launch_new` does."""
        if self._over is not None and (copy := self._over_legacy_mesh(self._over)) is not None:
            return copy(*args, **kwargs), None
        check_surroundings(self._mesh)
        if is_transforming():
            outer = tracing()
            try:
                with progress(f"call of {self._name}") if outer is None else contextlib.nullcontext():
                    return self._call_inside(args, kwargs), None
            except RegionRequired as found:
                if outer == PLAIN:
                    # The outer program becomes one region.
                    raise
                if isinstance(found, RulesSplit) and not self._by_hand:
                    return self._hand_copy(*args, **kwargs), None
        args, kwargs, is_copied = self._calls.prepare(args, kwargs)
        if not is_copied:
            return self._launch(*args, **kwargs)
        # These known calls take copies alone.
        key = "copies", innermost_block(), *unkeyed_settings()
        return (self._known.get(key) or self._dispatch(key, self._launch))(*args, **kwargs), None

    @functools.cached_property
    def _hand_copy(self) -> JitFunction:
        """The function as a program that splits tensors by hand: its rules of derivatives do."""
        return self._copy(mesh=self._mesh, by_hand=True)

    def _over_legacy_mesh(self, over: dict[Mesh, JitFunction]) -> JitFunction | None:
        """Returns the function over the mesh of a `with mesh:` block; None outside of one."""
        mesh = None if context_mesh() is not None else legacy_mesh()
        if mesh is None:
            return None

        def make() -> JitFunction:
            # There, JAX reads None as copies on all devices.
            shardings = tuple(ends.over_mesh(s, mesh, none=PartitionSpec()) for s in self._shardings)
            return self._copy(mesh=mesh, shardings=shardings)

        return keep(over, mesh, make)

    def _call_inside(self, args: tuple[object, ...], kwargs: dict[str, object]) -> PyTree:
        """Calls the function as a part of what JAX traces, or of a transformation, as an inner `jax.jit`.

        Raises:
          RegionRequired: it splits tensors by hand, or takes tensors on the devices, outside of mapped regions.
        """
        args, kwargs = self._calls.mark(args, kwargs)
        region, manual = current_region(), bool(jax.sharding.get_abstract_mesh().manual_axes)
        if region is not None and manual:
            if self._mesh is not None:
                check_inner_mesh(self._mesh, region.mesh)
            return call_placed(self._calls.unmarked, self._shardings, args, kwargs)
        around = jax.sharding.get_abstract_mesh()
        if self._mesh is not None and tracing() is not None and not (manual or around.empty):
            check_inner_mesh(self._mesh, around)
        outermost = tracing() is None
        checks = outermost and is_enabled(self._check_replication)
        with traced_as(PLAIN), self._context():
            if self._by_hand or any(map(is_tensor, flatten((args, kwargs))[0])):
                require_region()
            if not (manual or is_jit_disabled()) and (outermost or self._mesh is not None):
                jaxpr = trace_function(self._plain, args, kwargs).jaxpr
                # The program that is lowered checks claims, and writes out what XLA lacks.
                if uses_names(jaxpr, self._mesh) or has_ragged_exchanges(jaxpr) or (checks and has_claims(jaxpr)):
                    require_region()
                try:
                    return self._plain(*args, **kwargs)
                except RegionRequired:
                    raise RulesSplit from None
            return self._plain(*args, **kwargs)

    def _context(self) -> Any:
        """Returns the context of a trace; sets the function's mesh if the call's context lacks a mesh."""
        return contextlib.nullcontext() if self._mesh is None else mesh_context(self._mesh)

    def _launch(self, *args: object, **kwargs: object) -> tuple[Any, Any]:
        if is_multi_process():
            with synchronised_launch(self._mesh):
                return self._launch_in_context(args, kwargs, keeps=False)
        if self._is_typed and isinstance(self._mesh, Mesh) and jax.sharding.get_abstract_mesh().empty:
            # Results without arguments on the mesh have its types, which JAX compiles in its context alone.
            with mesh_context(self._mesh) if is_transforming() else jax.set_mesh(self._mesh):
                return self._launch_in_context(args, kwargs)
        return self._launch_in_context(args, kwargs)

    def _launch_in_context(self, args: Any, kwargs: Any, keeps: bool = True) -> tuple[Any, Any]:
        mesh = self._mesh or context_mesh()
        carried, moves = ends.read_placements(args, kwargs, mesh)
        if moves:
            (args, kwargs), keeps = ends.moved_to_mesh(args, kwargs, mesh), False
        if self._as_jax and (jitted := self._as_jax.get(carried)) is not None:
            return launch_new(jitted, args, kwargs, keeps)
        try:
            if is_enabled(self._check_replication):
                if is_multi_process():
                    compare_launch_arguments((args, kwargs), parameter_names(self._calls.fun, len(args)))
                return self._checked_calls(carried)(args, kwargs, keeps)
            return launch_new(self._jitted_for(carried), args, kwargs, keeps)
        except _RunsAsJaxError:
            return launch_new(keep(self._as_jax, carried, self._make_plain), args, kwargs, keeps)

    def _make_plain(self) -> Any:
        """Returns the function as `jax.jit` runs it, over the mesh that was given."""

        @functools.wraps(self._fun)
        def run(*args: object, **kwargs: object) -> Any:
            with self._context():
                return self._plain(*args, **kwargs)

        ins, outs = self._shardings
        return self._jit(run, in_shardings=ins, out_shardings=outs)

    def _jitted_for(self, carried: ends.Carried | None) -> Any:
        key = carried, unkeyed_settings()
        return self._jitted.get(key) or keep(self._jitted, key, lambda: self._make_jitted(None, carried))

    def _checked_calls(self, carried: ends.Carried | None) -> CheckedCalls:
        make = functools.partial(self._make_jitted, carried=carried)
        return keep(self._checked, carried, lambda: CheckedCalls(make, self._calls.fun))

    def _make_jitted(self, checks: Checks | None, carried: ends.Carried | None) -> Any:
        @functools.wraps(self._fun)
        def run(*args: object, **kwargs: object) -> Any:
            return self._trace_lower_run(args, kwargs, checks, carried)

        return self._jit(run, in_shardings=self._shardings[0])

    # The cache of programs is JAX's own. `jax.jit` runs this body if the types, static arguments and settings of a call
    # are new, and compiles the operations on traced arguments. Every later call of the same types runs the compiled
    # program without this body.
    def _trace_lower_run(
        self, args: Sequence[object], kwargs: dict[str, Any], checks: Checks | None, carried: ends.Carried | None
    ) -> Any:
        call = self._calls.flatten(args, kwargs)
        if is_jit_disabled() and not any(map(is_tensor, call.leaves)):
            # A function that splits tensors by hand needs a region.
            with contextlib.suppress(RegionRequired), traced_as(PLAIN), self._context():
                return self._calls.unmarked(*call.args, **call.kwargs)
        if checks is not None:
            checks.note_arguments(call.leaves)
        lowered = self._trace(call, carried).lower()
        if lowered.inexpressible is not None:
            raise _RunsAsJaxError
        return lowered.run([compat.in_device_memory(x) for x in call.leaves], with_devices(lowered.mesh), checks)

    @api_boundary
    def trace(self, *args: object, **kwargs: object) -> Traced:
        """Traces for arguments like these: arrays, `jax.ShapeDtypeStruct`s or `MeshTensor`s; no devices are needed.

        Raises:
          VerifyError: the program breaks a rule; see `jaxmesh.mesh_shard`.
          ArgumentTypeError: an argument is not an array.
        """
        if self._over is not None and (copy := self._over_legacy_mesh(self._over)) is not None:
            return copy.trace(*args, **kwargs)
        call = self._calls.flatten(args, kwargs)
        for leaf, name in zip(call.leaves, self._calls.names(call), strict=True):
            if not is_tensor(leaf):
                abstract(leaf, name)
        try:
            with progress("trace"):
                return self._trace(call, ends.carried_shardings(call.leaves, self._mesh or context_mesh()))
        except AssertionError as error:
            name_axis(error)
            raise

    def _trace(self, call: UserCall, carried: ends.Carried | None) -> Traced:
        by_hand = self._by_hand or any(map(is_tensor, call.leaves))
        with self._context():
            plain = None if by_hand else trace_plain(self._plain, call.args, call.kwargs)
            if plain is not None and uses_names(plain.jaxpr, self._mesh):
                plain = None
        names = self._calls.names(call)
        mesh = find_mesh(self._mesh, self._shardings, call.leaves, names, carried, plain)
        arguments = tuple(argument_of(x, p, mesh) for x, p in zip(call.leaves, names, strict=True))
        parameters = self._calls.parameters(call.args)
        boundary = Boundary(self._name, mesh, call.tree, arguments, call.donated, parameters=parameters)
        if plain is None:
            return Traced.of(boundary, self._trace_by_hand(call, arguments, mesh))
        shardings = plain.in_shardings, plain.out_shardings
        given = (ends.carried_sharding(x) or s for x, s in zip(call.leaves, plain.in_shardings, strict=True))
        placed = frozenset(i for i, s in enumerate(given) if isinstance(s, NamedSharding))
        boundary = dataclasses.replace(boundary, placed=placed)
        rows = call.leaves, names, mesh, *shardings, carried
        asked = ends.requested_shardings(*rows, self._full_results)
        # JAX's own cache of traces returns one jaxpr for equal calls.
        key = plain.jaxpr, boundary, asked
        if (known := self._traced.get(key)) is not None:
            return known
        program = program_of(plain, asked, mesh)
        warn_about(program, asked, boundary)
        return self._traced.put(key, traced_program(program, boundary, asked))

    def _trace_by_hand(self, call: UserCall, arguments: Sequence[Argument], mesh: AnyMesh) -> TtirProgram:
        if self._has_shardings and any(map(is_tensor, call.leaves)):
            raise UnsupportedError(
                "shardings are given, and an argument is a MeshTensor, which does not know how its "
                "shards are put together; pass arrays, or leave in_shardings and out_shardings out."
            )

        @functools.wraps(call.fun)
        def fun(*args: Any, **kwargs: object) -> Any:
            return call_placed(call.fun, self._shardings, args, kwargs)

        avals, varying = [a.aval for a in arguments], [a.varying or () for a in arguments]
        with tracing_over(mesh):
            return trace_by_hand(fun if self._has_shardings else call.fun, call.tree, avals, varying, mesh)

    @api_boundary
    def lower(self, *args: object, **kwargs: object) -> Lowered:
        """Traces and lowers: `trace(...).lower()`."""
        with progress("lower"):
            return self.trace(*args, **kwargs).lower()

    @api_boundary
    def eval_shape(self, *args: object, **kwargs: object) -> PyTree:
        """Returns the types of the results, in their tree; runs nothing. As of `jax.jit`."""
        call = self._calls.flatten(args, kwargs)
        jitted = self._jitted_for(ends.carried_shardings(call.leaves, self._mesh or context_mesh()))
        with progress("eval_shape"):
            return jitted.eval_shape(*call.args, **call.kwargs)

    def clear_cache(self) -> None:
        """Removes the programs of this function; a later call traces it again. As of `jax.jit`."""
        for jitted in (self._plain, *self._jitted.values(), *self._as_jax.values()):
            jitted.clear_cache()
        self._traced.cache_clear()
        self._known, self._jitted, self._checked, self._as_jax = {}, {}, {}, {}

    def dynamic(self, *args: object) -> tuple[Any, ...]:
        """Returns the dynamic arguments of a call, which a lowered or compiled program takes."""
        return self._calls.dynamic(args)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Binds an object, as methods do."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return printable(f"jaxmesh.jit({self._fun!r}, mesh={self._mesh!r})")
