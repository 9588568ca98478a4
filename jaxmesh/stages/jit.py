"""`jaxmesh.jit`: a function that is traced, lowered and run over a mesh when called."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import types
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, overload

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh

from jaxmesh.dialects.replication import is_enabled
from jaxmesh.dialects.signature import Boundary
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError, JaxmeshError, MeshMismatchError
from jaxmesh.frontends.jax.static_arguments import Static
from jaxmesh.frontends.jax.trace import Signature, abstract, trace
from jaxmesh.frontends.jax.trace_shard_maps import mesh_of_calls, tracing
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.caches import unkeyed
from jaxmesh.jaxprs.coordination import is_multi_process
from jaxmesh.runtime.distributed.agreement import compared_arguments, synchronised_launch
from jaxmesh.runtime.launch import before_tracing, launch
from jaxmesh.sharding.mesh import AnyMesh, as_mesh, context_mesh
from jaxmesh.stages.arguments import check_donated, handed_call, handed_tree
from jaxmesh.stages.checked_calls import CheckedCalls, Checks
from jaxmesh.stages.opaque import UnsaidTraced
from jaxmesh.stages.signature import argument_of, check_holds, flatten, same_mesh, show_mesh, with_devices
from jaxmesh.stages.stages import Lowered, Traced
from jaxmesh.ttnn.mesh_tensor import is_tensor
from jaxmesh.validate import is_hashable, quote


class JitFunction:
    """A function that is traced, lowered and run over a mesh when called; made by `jaxmesh.jit`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        mesh: AnyMesh | None,
        static: Signature,
        donated: Signature,
        check_replication: bool | None = None,
    ) -> None:
        self._fun = fun
        self._mesh = mesh
        self._static = static
        self._donated = donated
        # Arguments are neither told apart nor given up: there is little to do to them.
        self._simple = not (static.argnums or static.argnames or donated.argnums or donated.argnames)
        self._check_replication = check_replication
        # One for each kind of random keys, which JAX's cache does not tell apart.
        self._jitted: dict[Hashable, Any] = {}
        self._checked = CheckedCalls(self._make_jitted)
        functools.update_wrapper(self, fun, updated=())

    def _make_jitted(self, checks: Checks | None) -> Any:
        @functools.wraps(self._fun)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._run([_plain(x) for x in args], {k: _plain(x) for k, x in kwargs.items()}, checks)

        # JAX's own cache and dispatch serve every later call of the same types.
        return jax.jit(
            run,
            static_argnums=tuple(sorted(self._static.argnums)) or None,
            static_argnames=tuple(sorted(self._static.argnames)) or None,
            donate_argnums=tuple(sorted(self._donated.argnums)) or None,
            donate_argnames=tuple(sorted(self._donated.argnames)) or None,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function over its mesh, compiled once per tree, types and static arguments."""
        _check_surroundings(self._mesh)
        try:
            given, given_kw = handed_call(args, kwargs) if self._simple else self._handed(args, kwargs)
            if not is_multi_process():
                return self._start(given, given_kw)
            with synchronised_launch(self._mesh):
                return self._start(given, given_kw)
        except JaxmeshError:
            raise
        except (TypeError, ValueError, OverflowError, RuntimeError, SystemError):
            # JAX looked at the arguments first; what is wrong with them has a name of ours.
            self._check_arguments(args, kwargs)
            raise

    def _start(self, args: Any, kwargs: Any) -> Any:
        # A part of a program that is being traced is checked by that one.
        if tracing() is None and is_enabled(self._check_replication):
            compared_arguments((args, kwargs))
            return self._checked(args, kwargs)
        kind = unkeyed()
        jitted = self._jitted.get(kind) or self._jitted.setdefault(kind, self._make_jitted(None))
        return launch(jitted, *args, **kwargs)

    def _check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Checks what a call gave.

        Raises:
          ArgumentTypeError: an argument is no array, or a static one is not hashable.
          ArgumentValueError: a number that no array holds.
        """
        marked = [*zip(args, self._static.marks(len(args)), map(str, range(len(args))), strict=True)]
        marked += [(v, k in self._static.argnames, repr(k)) for k, v in kwargs.items()]
        for value, static, name in marked:
            if static and (not is_hashable(value) or is_tensor(value)):
                raise ArgumentTypeError(
                    f"the static argument {name} is {quote(value)}, which is not hashable, or a tensor; a static "
                    "argument is part of the program and is looked up by its value: pass a tuple for a "
                    "list, or do not make it static."
                )
        leaves, _, paths = flatten(self._static.split(args, kwargs))
        for leaf, path in zip(leaves, paths, strict=True):
            if not is_tensor(leaf):
                abstract(leaf, f"argument{path}")
                check_holds(leaf, f"argument{path}")
                _check_devices(leaf, f"argument{path}", self._mesh)

    def _handed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._donated.argnums or self._donated.argnames:
            dynamic, dynamic_kw = self._static.split(args, kwargs)
            leaves = jax.tree.leaves((dynamic, dynamic_kw), is_leaf=is_tensor)
            check_donated(leaves, self._donated_leaves(args, kwargs))
        if not self._static.argnums and not self._static.argnames:
            return handed_tree((args, kwargs))
        dynamic, dynamic_kw = handed_tree(self._static.split(args, kwargs))
        full, full_kw = self._static.join(args, kwargs, dynamic, dynamic_kw)
        marked = zip(full, self._static.marks(len(full)), strict=True)
        keyed = tuple(Static(x) if static else x for x, static in marked)
        return keyed, {k: Static(x) if k in self._static.argnames else x for k, x in full_kw.items()}

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method binds its object, as functions do."""
        return self if instance is None else types.MethodType(self, instance)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Traces for arguments like these: arrays, `jax.ShapeDtypeStruct`s or `MeshTensor`s; no devices are needed.

        Raises:
          VerifyError: the program breaks a rule; see `jaxmesh.mesh_shard`.
          ArgumentTypeError: an argument or a result is no array.
        """
        dynamic, dynamic_kw = self._static.split(args, kwargs)

        def call(*dyn: Any, **dyn_kw: Any) -> Any:
            full, full_kw = self._static.join(args, kwargs, dyn, dyn_kw)
            return self._fun(*full, **full_kw)

        given = self._mesh
        if given is None and context_mesh() is None:
            given = mesh_of_calls(call, dynamic, dynamic_kw)
        mesh = program_mesh(given)
        leaves, tree, paths = flatten((tuple(dynamic), dynamic_kw))
        arguments = tuple(argument_of(x, p, mesh) for x, p in zip(leaves, paths, strict=True))
        donated = self._donated_leaves(args, kwargs)
        boundary = Boundary(getattr(self._fun, "__name__", "function"), mesh, tree, arguments, donated)
        varying = [a.varying or () for a in arguments]
        token = _outer.set(mesh)
        try:
            program = trace(call, tree, [a.aval for a in arguments], varying, mesh)
        finally:
            _outer.reset(token)
        if program.missing is not None:
            return UnsaidTraced(boundary, program.jaxpr, program.out_tree, program.missing)
        boundary = dataclasses.replace(boundary, out_specs=program.out_specs)
        return Traced(boundary, program.jaxpr, program.out_tree, program.assumptions)

    def _donated_leaves(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[int, ...]:
        rows = zip(args, self._donated.marks(len(args)), self._static.marks(len(args)), strict=True)
        marks = [[d] * len(jax.tree.leaves(a, is_leaf=is_tensor)) for a, d, static in rows if not static]
        names = sorted(k for k in kwargs if k not in self._static.argnames)
        marks += [[k in self._donated.argnames] * len(jax.tree.leaves(kwargs[k], is_leaf=is_tensor)) for k in names]
        flat = [m for row in marks for m in row]
        return tuple(i for i, m in enumerate(flat) if m)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """`trace(...).lower()`."""
        return self.trace(*args, **kwargs).lower()

    def dynamic(self, *args: Any) -> tuple[Any, ...]:
        """The arguments of a call that a lowered or compiled program takes: those that are not static."""
        return tuple(self._static.split(args, {})[0])

    def _run(self, args: Sequence[Any], kwargs: dict[str, Any], checks: Checks | None) -> Any:
        context = jax.sharding.get_abstract_mesh()
        if context.manual_axes:
            return self._inline(context, args, kwargs)
        dynamic, dynamic_kw = self._static.split(args, kwargs)
        leaves, _, _ = flatten((tuple(dynamic), dynamic_kw))
        if checks is not None:
            checks.look_at(leaves)
        before_tracing()
        lowered = self.lower(*args, **kwargs)
        return lowered.run(leaves, with_devices(lowered.mesh), checks)

    def _inline(self, context: AbstractMesh, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Inside another program over the same mesh the function is a part of that program."""
        if self._mesh is not None and not same_mesh(self._mesh, context):
            raise _two_meshes(self._mesh, context)
        return self._fun(*args, **kwargs)

    def __repr__(self) -> str:
        return f"jaxmesh.jit({self._fun!r}, mesh={self._mesh!r})"


def _plain(x: Any) -> Any:
    return x.value if isinstance(x, Static) else x


_outer: contextvars.ContextVar[AnyMesh | None] = contextvars.ContextVar("mesh being traced over", default=None)


def _check_surroundings(mesh: AnyMesh | None) -> None:
    """Refuses other devices than those around, also when JAX has the program in its cache already.

    Raises:
      MeshMismatchError: `jax.set_mesh`, or the program this one is called in, has other devices or another order.
    """
    outer = _outer.get()
    if mesh is not None and outer is not None and not same_mesh(mesh, outer):
        raise _two_meshes(mesh, outer)
    devices = compat.context_devices()
    if isinstance(mesh, Mesh) and devices is not None and devices != tuple(mesh.devices.flat):
        raise MeshMismatchError(
            f"the program's mesh is {show_mesh(mesh)}, but jax.set_mesh has set the devices {[d.id for d in devices]}; "
            "one program has one mesh. Leave the context, or make the function for its mesh."
        )


def _check_devices(leaf: Any, what: str, mesh: AnyMesh | None) -> None:
    """Checks that an array that was put on certain devices is on those of the mesh, all of them.

    Raises:
      MeshMismatchError: it is on others.
    """
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer) or not leaf.committed or not isinstance(mesh, Mesh):
        return
    lies: Any = leaf.sharding
    given, wanted_ids = sorted(d.id for d in lies.device_set), sorted(d.id for d in mesh.devices.flat)
    if given != wanted_ids:
        raise MeshMismatchError(
            f"{what} {leaf.dtype}{list(leaf.shape)} was put on the devices {given} (by jax.device_put, from_dlpack, or "
            f"a program over them), but the program's mesh {show_mesh(mesh)} has the devices {wanted_ids}; pass "
            "numpy.asarray(x), or put it on that mesh."
        )


def _two_meshes(inner: AnyMesh, outer: AnyMesh) -> MeshMismatchError:
    return MeshMismatchError(
        f"a function for the mesh {show_mesh(inner)} is called inside a program over {show_mesh(outer)}; one program "
        "has one mesh."
    )


def program_mesh(given: AnyMesh | None) -> AnyMesh:
    """The mesh to trace over: the given one, with the axis types of the context if one is set."""
    mesh = as_mesh(given)
    _check_surroundings(mesh)
    context = jax.sharding.get_abstract_mesh()
    if context.empty:
        return mesh
    if dict(context.shape) != dict(mesh.shape) or context.axis_names != mesh.axis_names:
        raise MeshMismatchError(
            f"the program's mesh is {show_mesh(mesh)}, but jax.set_mesh has set {show_mesh(context)}; one program "
            "has one mesh. Leave the context, or make the function for its mesh."
        )
    if isinstance(mesh, AbstractMesh):
        return context
    if mesh.axis_types == context.axis_types:
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=context.axis_types)


@overload
def jit(
    fun: Callable[..., Any],
    *,
    mesh: AnyMesh | None = ...,
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
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    check_replication: bool | None = None,
) -> JitFunction | Callable[[Callable[..., Any]], JitFunction]:
    """Makes a function run over a mesh: traced with `mesh_shard`, lowered to TTNN's two operations, jit-compiled.

    The result behaves like a `jax.jit` function: it is cached by shape and type, and works under `jax.jit`,
    `jax.grad`, `jax.vmap` and `jax.make_jaxpr`. Arguments are full arrays, or `MeshTensor`s, which the function sees as
    shards of their local shape. A result that no `shard_to_full` brings back is a `MeshTensor`.

    Threads may call it at once, with different arguments and different meshes of `jax.set_mesh`, and so all else that
    jaxmesh has. What jaxmesh starts, it starts in order: a thread waits until the programs that other threads started
    are done, because XLA's emulated devices would otherwise wait for each other for ever. One thread alone never waits.
    What JAX starts by itself is not ordered (`jax.jit` or `jax.grad` around the function, operations on results that
    lie on several devices): read a result with `numpy.asarray` first, or set the environment variable PJRT_NPROC to
    more than 32 threads per device. A process that is forked when the devices have started can trace and print, and
    not run: that is a ForkError.

    A call is looked up by the types, trees and meshes of its arguments, by the mesh and JAX's settings around it, and
    by its static arguments, told apart by type and bits: `1`, `True` and `1.0` are three programs, as are `(0.0,)` and
    `(-0.0,)`. What a function is closed over, and globals that it reads, are looked at when it is traced. Every cache
    is bounded, and `jax.clear_caches()` empties it; a function that nobody holds any more takes its programs with it.

    Args:
      fun: the function; left out, a decorator is returned.
      mesh: a `jax.sharding.Mesh`, or an `AbstractMesh` to trace and lower without devices; by default the mesh of
        `jax.set_mesh` when the function is called.
      static_argnums: positions of arguments that are part of the program.
      static_argnames: their names.
      donate_argnums: positions of arguments whose memory may be reused.
      donate_argnames: their names.
      check_replication: whether copies that no type proves equal are compared at run time; calls that have such copies
        then wait for the devices, and raise a `ReplicationError`. See `jaxmesh.check_replication`, the default.

    Raises:
      ArgumentTypeError: `fun` is not callable, or `mesh` is no mesh.
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
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            check_replication=check_replication,
        )
    if isinstance(fun, Mesh):
        # As a context manager a mesh can be called, too.
        raise ArgumentTypeError(f"jit takes a function, got {quote(fun)}; name the mesh: jit(fun, mesh=mesh).")
    if not callable(fun):
        raise ArgumentTypeError(f"jit takes a function, got {quote(fun)}.")
    if mesh is not None:
        mesh = as_mesh(mesh)
    static = Signature.of(fun, static_argnums, static_argnames)
    donated = Signature.of(fun, donate_argnums, donate_argnames, "donate")
    both = sorted(static.argnums & donated.argnums) or sorted(static.argnames & donated.argnames)
    if both:
        raise ArgumentValueError(
            f"the argument {both[0]!r} is static, so it is no array, and donated; name it in static_argnums or in "
            "donate_argnums, not in both."
        )
    if check_replication is not None:
        is_enabled(check_replication)
    return JitFunction(fun, mesh, static, donated, check_replication)
