"""`jaxmesh.jit`: a function that is traced, lowered and run over a mesh when called."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import jax
from jax.sharding import Mesh

from jaxmesh.dialects.replication import is_enabled
from jaxmesh.dialects.signature import Boundary
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, JaxmeshError
from jaxmesh.frontends.jax.static_arguments import ArgumentSet, Static
from jaxmesh.frontends.jax.trace import abstract, trace
from jaxmesh.frontends.jax.trace_shard_maps import mesh_of_calls, tracing
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.backend import is_multi_process
from jaxmesh.jaxprs.caches import placement_of, unkeyed_settings
from jaxmesh.runtime.distributed.agreement import compare_launch_arguments, synchronised_launch
from jaxmesh.runtime.launch import before_tracing, launch
from jaxmesh.sharding.mesh import (
    AnyMesh,
    as_mesh,
    check_inner_mesh,
    check_surroundings,
    context_mesh,
    program_mesh,
    tracing_over,
    with_devices,
)
from jaxmesh.stages import shardings as ends
from jaxmesh.stages.arguments import (
    argument_of,
    check_devices,
    check_donated,
    check_has_values,
    flatten,
    prepare_call,
    prepare_tree,
    show_path,
)
from jaxmesh.stages.checked_calls import CheckedCalls, Checks
from jaxmesh.stages.partitioned import Partitioned, run_partitioned, traced_program
from jaxmesh.stages.stages import Lowered, Traced
from jaxmesh.ttnn.mesh_tensor import is_tensor
from jaxmesh.validate import is_hashable, quote

_tree: Any = jax.tree
_CACHED_SHARDINGS = 64
"""The number of sets of shardings of arguments that a function keeps programs for."""


class JitFunction:
    """A function that is traced, lowered and run over a mesh when called; built by `jaxmesh.jit`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        mesh: AnyMesh | None,
        static: ArgumentSet,
        donated: ArgumentSet,
        check_replication: bool | None = None,
        shardings: tuple[Any, Any] = (ends.UNSPECIFIED, ends.UNSPECIFIED),
    ) -> None:
        self._fun = fun
        self._mesh = mesh
        self._static = static
        self._donated = donated
        # No static and no donated arguments: calls take the fast path.
        self._simple = not (static or donated)
        self._check_replication = check_replication
        self._shardings = shardings
        # By the implementation of random keys, and by the shardings of arrays, which JAX's cache does not look up by.
        self._jitted: dict[Hashable, Any] = {}
        self._last_placements: tuple[Any, ends.Carried | None, bool] = None, None, False
        self._checked: dict[Hashable, CheckedCalls] = {}
        functools.update_wrapper(self, fun, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function over its mesh, compiled once per tree, types and static arguments."""
        check_surroundings(self._mesh)
        try:
            args, kwargs = prepare_call(args, kwargs) if self._simple else self._prepare(args, kwargs)
            if not is_multi_process():
                return self._launch(args, kwargs)
            with synchronised_launch(self._mesh):
                return self._launch(args, kwargs)
        except JaxmeshError:
            raise
        except (TypeError, ValueError, OverflowError, RuntimeError, SystemError):
            # JAX looked at the arguments first; jaxmesh's own errors for them are plainer.
            self._check_arguments(args, kwargs)
            raise

    def _launch(self, args: Any, kwargs: Any) -> Any:
        outer = tracing()
        if outer is not None and not outer.inline and self._shardings != (ends.UNSPECIFIED, ends.UNSPECIFIED):
            # A part of a plain program: its shardings are constraints there.
            plain = tuple(x.value if isinstance(x, Static) else x for x in args)
            mesh = self._mesh or outer.mesh or context_mesh()
            return ends.call_constrained(self._fun, self._static.argnums, self._shardings, mesh, plain, kwargs)
        compat.require_region()
        # A part of a program that is being traced is checked by that program.
        carried, args, kwargs = self._carried_shardings(args, kwargs)
        if tracing() is None and is_enabled(self._check_replication):
            compare_launch_arguments((args, kwargs))
            return self._checked_calls(carried)(args, kwargs)
        kind = carried, unkeyed_settings()
        jitted = self._jitted.get(kind)
        if jitted is None:
            if len(self._jitted) >= _CACHED_SHARDINGS:
                self._jitted = {}
            jitted = self._jitted.setdefault(kind, self._make_jitted(None, carried))
        return launch(jitted, *args, **kwargs)

    def _carried_shardings(self, args: Any, kwargs: Any) -> tuple[ends.Carried | None, Any, Any]:
        """Returns `carried_shardings` of a call, at once if the call before was given the same, and the call moved."""
        leaves, tree = _tree.flatten((args, kwargs))
        mesh = self._mesh or context_mesh()
        placements = tree, list(map(placement_of, leaves)), mesh
        if self._last_placements[0] != placements:
            self._last_placements = placements, *ends.read_placements(args, kwargs, mesh)
        _, carried, moves = self._last_placements
        return carried, *(ends.moved_to_mesh(args, kwargs, mesh) if moves else (args, kwargs))

    def _checked_calls(self, carried: ends.Carried | None) -> CheckedCalls:
        if carried not in self._checked:
            if len(self._checked) >= _CACHED_SHARDINGS:
                self._checked = {}
            self._checked[carried] = CheckedCalls(lambda checks: self._make_jitted(checks, carried))
        return self._checked[carried]

    def _make_jitted(self, checks: Checks | None, carried: ends.Carried | None) -> Any:
        @functools.wraps(self._fun)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._trace_lower_run(args, kwargs, checks, carried)

        return jax.jit(
            run,
            static_argnums=tuple(sorted(self._static.argnums)) or None,
            static_argnames=tuple(sorted(self._static.argnames)) or None,
            donate_argnums=tuple(sorted(self._donated.argnums)) or None,
            donate_argnames=tuple(sorted(self._donated.argnames)) or None,
        )

    # The cache of programs is JAX's own. `jax.jit` runs this body if it has no program for the types, static arguments
    # and settings of a call, and compiles what the body does to traced arguments. Every later call of the same types
    # runs that program without coming here.
    def _trace_lower_run(
        self, args: Sequence[Any], kwargs: dict[str, Any], checks: Checks | None, carried: ends.Carried | None
    ) -> Any:
        if not self._simple:
            args = [x.value if isinstance(x, Static) else x for x in args]
            kwargs = {k: x.value if isinstance(x, Static) else x for k, x in kwargs.items()}
        context = jax.sharding.get_abstract_mesh()
        if context.manual_axes:
            # Inside another program over the same mesh, the function is a part of that program.
            if self._mesh is not None:
                check_inner_mesh(self._mesh, context)
            return self._fun(*args, **kwargs)
        before_tracing()
        call = self._flatten(args, kwargs)
        if checks is not None:
            checks.note_arguments(call.leaves)
        traced, partitioned = self._trace(call, carried)
        lowered = traced.lower()
        mesh, leaves = with_devices(lowered.mesh), [compat.in_device_memory(x) for x in call.leaves]
        if partitioned is None:
            return lowered.run(leaves, mesh, checks)
        return run_partitioned(traced, lowered, partitioned, leaves, mesh, checks)

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Prepares a call with static or donated arguments: static ones are wrapped, to be looked up by type too."""
        if self._donated:
            call = self._flatten(args, kwargs)
            check_donated(call.leaves, call.donated)
        if not self._static:
            return prepare_tree((args, kwargs))
        dynamic, dynamic_kw = prepare_tree(self._static.split(args, kwargs))
        full, full_kw = self._static.join(args, kwargs, dynamic, dynamic_kw)
        marked = zip(full, self._static.marks(len(full)), strict=True)
        keyed = tuple(Static(x) if static else x for x, static in marked)
        return keyed, {k: Static(x) if k in self._static.argnames else x for k, x in full_kw.items()}

    def _check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Checks the arguments of a call that JAX has refused.

        Raises:
          ArgumentTypeError: an argument is not an array, or a static one is not hashable.
          ArgumentValueError: a number that no array can hold.
          MeshMismatchError: an array is committed to other devices.
        """
        marked = [*zip(args, self._static.marks(len(args)), map(str, range(len(args))), strict=True)]
        marked += [(v, k in self._static.argnames, repr(k)) for k, v in kwargs.items()]
        for value, static, name in marked:
            value = value.value if isinstance(value, Static) else value
            if static and (not is_hashable(value) or is_tensor(value)):
                raise ArgumentTypeError(
                    f"the static argument {name} is {quote(value)}, which is not hashable, or a tensor; a static "
                    "argument is part of the program and is looked up by its value: pass a tuple for a "
                    "list, or do not make it static."
                )
        call = self._flatten(args, kwargs)
        for leaf, path in zip(call.leaves, call.paths, strict=True):
            if not is_tensor(leaf):
                what = show_path(path)
                abstract(leaf, what)
                check_has_values(leaf, what)
                check_devices(leaf, what, self._mesh)

    def _flatten(self, args: Sequence[Any], kwargs: dict[str, Any]) -> _Call:
        """Flattens a call, once: everything that follows takes its leaves."""
        if self._simple:
            return _Call(self._fun, *flatten((tuple(args), kwargs)), ())
        dynamic, dynamic_kw = self._static.split(args, kwargs)

        def fun(*dynamic: Any, **dynamic_kw: Any) -> Any:
            full, full_kw = self._static.join(args, kwargs, dynamic, dynamic_kw)
            return self._fun(*full, **full_kw)

        leaves, tree, paths = flatten((tuple(dynamic), dynamic_kw))
        marks = zip(self._donated.marks(len(args)), self._static.marks(len(args)), strict=True)
        by_position: list[bool] = [donated for donated, static in marks if not static]

        def is_donated(path: Any) -> bool:
            if path[0].idx == 1:
                return path[1].key in self._donated.argnames
            return by_position[int(path[1].idx)]

        return _Call(fun, leaves, tree, paths, tuple(i for i, path in enumerate(paths) if is_donated(path)))

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Traces for arguments like these: arrays, `jax.ShapeDtypeStruct`s or `MeshTensor`s; no devices are needed.

        Raises:
          VerifyError: the program breaks a rule; see `jaxmesh.mesh_shard`.
          ArgumentTypeError: an argument or a result is not an array.
        """
        call = self._flatten(args, kwargs)
        return self._trace(call, ends.carried_shardings(call.leaves))[0]

    def _trace(self, call: _Call, carried: ends.Carried | None) -> tuple[Traced, Partitioned | None]:
        given = self._mesh
        if given is None and context_mesh() is None:
            args, kwargs = jax.tree.unflatten(call.tree, call.leaves)
            given = mesh_of_calls(call.fun, args, kwargs)
        mesh = program_mesh(given)
        arguments = tuple(argument_of(x, p, mesh) for x, p in zip(call.leaves, call.paths, strict=True))
        boundary = Boundary(getattr(self._fun, "__name__", "function"), mesh, call.tree, arguments, call.donated)
        asked = ends.requested_shardings(call.leaves, call.paths, call.tree, mesh, self._shardings, carried)
        with tracing_over(mesh):
            program = trace(
                call.fun, call.tree, [a.aval for a in arguments], [a.varying or () for a in arguments], mesh, asked
            )
        if program.plain is None:
            return Traced.of(boundary, program), None
        return traced_program(program, boundary, asked, warns=True)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Traces and lowers: `trace(...).lower()`."""
        return self.trace(*args, **kwargs).lower()

    def dynamic(self, *args: Any) -> tuple[Any, ...]:
        """Returns the arguments of a call that a lowered or compiled program takes: those that are not static."""
        return tuple(self._static.split(args, {})[0])

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds an object, as methods do."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"jaxmesh.jit({self._fun!r}, mesh={self._mesh!r})"


@dataclass(frozen=True, slots=True)
class _Call:
    """A call: the function of its dynamic arguments, and their leaves, structure, key paths and donated leaves."""

    fun: Callable[..., Any]
    leaves: list[Any]
    tree: Any
    paths: list[Any]
    donated: tuple[int, ...]


@overload
def jit(
    fun: Callable[..., Any],
    *,
    mesh: AnyMesh | None = ...,
    in_shardings: Any = ...,
    out_shardings: Any = ...,
    static_argnums: int | Iterable[int] | None = ...,
    static_argnames: str | Iterable[str] | None = ...,
    donate_argnums: int | Iterable[int] | None = ...,
    donate_argnames: str | Iterable[str] | None = ...,
    check_replication: bool | None = ...,
) -> JitFunction: ...
@overload
def jit(
    fun: None = ...,
    *,
    mesh: AnyMesh | None = ...,
    in_shardings: Any = ...,
    out_shardings: Any = ...,
    static_argnums: int | Iterable[int] | None = ...,
    static_argnames: str | Iterable[str] | None = ...,
    donate_argnums: int | Iterable[int] | None = ...,
    donate_argnames: str | Iterable[str] | None = ...,
    check_replication: bool | None = ...,
) -> Callable[[Callable[..., Any]], JitFunction]: ...
def jit(
    fun: Callable[..., Any] | None = None,
    *,
    mesh: AnyMesh | None = None,
    in_shardings: Any = ends.UNSPECIFIED,
    out_shardings: Any = ends.UNSPECIFIED,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    check_replication: bool | None = None,
) -> JitFunction | Callable[[Callable[..., Any]], JitFunction]:
    """Runs a function over a mesh: traced with `mesh_shard`, lowered to TTNN's two operations, jit-compiled.

    The result behaves like a `jax.jit` function: it is cached by shape and type, and works under `jax.jit`,
    `jax.grad`, `jax.vmap` and `jax.make_jaxpr`. Arguments are full arrays, or `MeshTensor`s, which the function sees as
    shards of their local shape. A result that no `shard_to_full` aggregates is a `MeshTensor`.

    Threads may call it at once, with different arguments and different meshes of `jax.set_mesh`; this holds for all of
    jaxmesh. jaxmesh launches programs in order: a thread waits until the programs that other threads launched are done,
    because XLA's emulated devices would otherwise deadlock. One thread alone never waits. Programs that JAX launches
    itself are not ordered (`jax.jit` or `jax.grad` around the function, operations on results on several devices):
    read a result with `numpy.asarray` first, or set the environment variable PJRT_NPROC to more than 32 threads per
    device. A process that is forked after the devices have started can trace and print; running is a `ForkError`.

    A call is looked up by the types, trees and meshes of its arguments, by the mesh and JAX's settings around it, and
    by its static arguments with their types and bits: `1`, `True` and `1.0` are three programs, as are `(0.0,)` and
    `(-0.0,)`. Values that a function closes over, and globals that it reads, are read when it is traced. Every cache
    is bounded, and `jax.clear_caches()` empties it; the programs of a function are freed with it.

    Args:
      fun: the function; left out, a decorator is returned.
      mesh: a `jax.sharding.Mesh`, or an `AbstractMesh` to trace and lower without devices; by default the mesh of
        `jax.set_mesh` when the function is called.
      in_shardings: as of `jax.jit`: a PartitionSpec or NamedSharding per argument, or a prefix of the arguments' tree;
        None leaves it to the partitioner, Shardy. Arrays that carry a sharding keep it.
      out_shardings: the same of the results.
      static_argnums: positions of arguments that are part of the program.
      static_argnames: their names.
      donate_argnums: positions of arguments whose memory may be reused.
      donate_argnames: their names.
      check_replication: whether copies that no type proves equal are compared at run time; calls with such copies
        then wait for the devices, and raise a `ReplicationError`. See `jaxmesh.check_replication`, the default.

    Raises:
      ArgumentTypeError: `fun` is not callable, or `mesh` is not a mesh.
      ArgumentValueError: the function has no argument of such a position or name, or one is static and donated.

    >>> import jax.numpy as jnp, jaxmesh as jm
    >>> from jax.sharding import PartitionSpec as P
    >>> @jm.jit(mesh=jm.make_mesh((2, 4)))
    ... def double(x):
    ...     return jm.shard_to_full(2 * jm.full_to_shard(x, P("y", "x")), P("y", "x"))
    >>> double(jnp.ones((4, 4))).sum()
    Array(32., dtype=float32)
    """
    if fun is None:
        return functools.partial(
            jit,
            mesh=mesh,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            check_replication=check_replication,
        )
    # A mesh is callable, as a decorator.
    if not callable(fun) or isinstance(fun, Mesh):
        raise ArgumentTypeError(f"jit takes a function, got {quote(fun)}.")
    if mesh is not None:
        mesh = as_mesh(mesh)
    static = ArgumentSet.of(fun, static_argnums, static_argnames)
    donated = ArgumentSet.of(fun, donate_argnums, donate_argnames, "donate")
    both = sorted(static.argnums & donated.argnums) or sorted(static.argnames & donated.argnames)
    if both:
        raise ArgumentValueError(
            f"the argument {both[0]!r} is static, so it is no array, and donated; name it in static_argnums or in "
            "donate_argnums, not in both."
        )
    if check_replication is not None:
        is_enabled(check_replication)
    return JitFunction(fun, mesh, static, donated, check_replication, (in_shardings, out_shardings))
