"""`jaxmesh.jit`: builds a function that is traced, lowered and run over a mesh when called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypedDict, Unpack, overload

from jax.sharding import Mesh

from jaxmesh.dialects.replication import is_enabled
from jaxmesh.errors import ArgumentTypeError, ArgumentValueError
from jaxmesh.jaxprs.untyped import PyTree
from jaxmesh.jaxprs.user_trace import UNSPECIFIED
from jaxmesh.sharding.mesh import AnyMesh, as_mesh
from jaxmesh.stages.jit_function import JitFunction
from jaxmesh.stages.user_calls import ArgumentSet
from jaxmesh.validate import as_bool, quote


class JitOptions(TypedDict, total=False):
    """The keywords of `jaxmesh.jit`."""

    mesh: AnyMesh | None
    in_shardings: PyTree
    out_shardings: PyTree
    static_argnums: int | Iterable[int] | None
    static_argnames: str | Iterable[str] | None
    donate_argnums: int | Iterable[int] | None
    donate_argnames: str | Iterable[str] | None
    keep_unused: bool
    device: Any
    backend: str | None
    inline: Any
    compiler_options: dict[str, Any] | None
    check_replication: bool | None
    full_results: bool | None


@overload
def jit(fun: Callable[..., object], **options: Unpack[JitOptions]) -> JitFunction: ...
@overload
def jit(fun: None = ..., **options: Unpack[JitOptions]) -> Callable[[Callable[..., Any]], JitFunction]: ...
def jit(
    fun: Callable[..., object] | None = None,
    *,
    mesh: AnyMesh | None = None,
    in_shardings: PyTree = UNSPECIFIED,
    out_shardings: object = UNSPECIFIED,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: object = None,
    backend: str | None = None,
    inline: object = False,
    compiler_options: dict[str, object] | None = None,
    check_replication: bool | None = None,
    full_results: bool | None = None,
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
      mesh: a `jax.sharding.Mesh`, or an `AbstractMesh` to trace and lower without devices. By default the mesh of the
        shardings that are given, else of the arguments, else of `jax.set_mesh`, else of a `with mesh:` block, else of
        the `shard_map`s and constraints inside, else one device.
      in_shardings: as of `jax.jit`: a PartitionSpec or NamedSharding per argument, or a prefix of the arguments' tree;
        None leaves it to the partitioner, Shardy. Arrays that carry a sharding keep it.
      out_shardings: the same of the results.
      static_argnums: positions of arguments that are part of the program.
      static_argnames: their names.
      donate_argnums: positions of arguments whose memory may be reused.
      donate_argnames: their names.
      keep_unused: as of `jax.jit`, like `device`, `backend`, `inline` and `compiler_options`.
      device: as of `jax.jit`; only for a program over one device.
      backend: as of `jax.jit`.
      inline: as of `jax.jit`.
      compiler_options: as of `jax.jit`.
      check_replication: whether copies that no type proves equal are compared at run time; calls with such copies
        then wait for the devices, and raise a `ReplicationError`. See `jaxmesh.check_replication`, the default.
      full_results: whether the text of a partitioned program aggregates its results. By default it does unless an
        argument is an array on the mesh: then results stay there too, as `ttcore.shard_status<presharded>`, so that a
        training step can be called with its own results. The arrays that a call returns are the same.

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
    keywords = {name: value for name, value in locals().items() if name != "fun"}
    if fun is None:
        return functools.partial(jit, **keywords)
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
            f"the argument {both[0]!r} is static and donated, but only arrays can be donated; name it in "
            "static_argnums or in donate_argnums, not in both."
        )
    if check_replication is not None:
        is_enabled(check_replication)
    of_jax = {name: keywords[name] for name in ("keep_unused", "device", "backend", "inline", "compiler_options")}
    full_results = None if full_results is None else as_bool("jit", "full_results", full_results)
    shardings = in_shardings, out_shardings
    return JitFunction(fun, mesh, static, donated, check_replication, shardings, of_jax, full_results)
