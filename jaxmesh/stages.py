"""The stages of a program, as in JAX's ahead-of-time API: Traced, Lowered, Compiled, and `jit` that runs them all.

The only module that sees two rooms: it hands a traced program to the pass, and a lowered one to a runtime.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxmesh import jaxprs
from jaxmesh.errors import ArgumentTypeError, MeshError, MeshMismatchError, UnsupportedError
from jaxmesh.frontends.trace import Signature, abstract, trace
from jaxmesh.mesh import as_mesh
from jaxmesh.passes.ttir_to_ttnn import lower
from jaxmesh.residency import DEVICE, HOST
from jaxmesh.runtime.reference import run_reference
from jaxmesh.runtime.regions import Plan, plan_regions
from jaxmesh.runtime.sharded import execute
from jaxmesh.runtime.tensor import MeshTensor, spec_of

AnyMesh = Mesh | AbstractMesh


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a program: its type and, of a tensor on the devices, the axes it varies over."""

    aval: jax.ShapeDtypeStruct
    varying: tuple[str, ...] | None

    @property
    def stored(self) -> tuple[int, ...]:
        """How many dims follow the local shape in the stored form."""
        return tuple(1 for _ in self.varying or ())


@dataclass(frozen=True, slots=True)
class Boundary:
    """What crosses a program's boundary: trees, argument types, donated leaves."""

    name: str
    mesh: AnyMesh
    in_tree: Any
    arguments: tuple[Argument, ...]
    donated: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[Any, ...]:
        return tuple(HOST if a.varying is None else DEVICE for a in self.arguments)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.mesh.shape)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, MeshTensor)


def _flatten(tree: Any) -> tuple[list[Any], Any, list[str]]:
    paths, treedef = jax.tree.flatten_with_path(tree, is_leaf=_is_tensor)
    return [leaf for _, leaf in paths], treedef, [jax.tree_util.keystr(p) for p, _ in paths]


def _argument(leaf: Any, path: str, mesh: AnyMesh) -> Argument:
    if not isinstance(leaf, MeshTensor):
        return Argument(abstract(leaf, f"argument{path}"), None)
    if leaf.partial:
        raise UnsupportedError(
            f"argument{path} is {leaf!r}: some devices hold nothing of it, but every device runs the program. "
            "Aggregate it and distribute it over the whole mesh."
        )
    if _identity(leaf.mesh) != _identity(mesh):
        raise MeshMismatchError(
            f"argument{path} is on the mesh {_show(leaf.mesh)}, the program runs on {_show(mesh)}; one program has one "
            "mesh. Aggregate the tensor and distribute it over the program's mesh."
        )
    return Argument(abstract(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), f"argument{path}"), leaf.varying)


def _identity(mesh: AnyMesh) -> tuple[Any, ...]:
    devices = tuple(mesh.devices.flat) if isinstance(mesh, Mesh) else None
    return tuple(mesh.axis_names), tuple(mesh.shape.values()), devices


def _show(mesh: AnyMesh) -> str:
    axes = ", ".join(f"{n}={s}" for n, s in mesh.shape.items())
    if isinstance(mesh, AbstractMesh):
        return f"({axes}) without devices"
    return f"({axes}) of devices {[d.id for d in mesh.devices.flat]}"


class Traced:
    """A TTIR-level program: a jaxpr typed by varying axes, in which `mesh_shard` splits and joins."""

    def __init__(self, boundary: Boundary, jaxpr: Any, out_tree: Any) -> None:
        self._boundary = boundary
        self._jaxpr = jaxpr
        self._out_tree = out_tree

    @property
    def jaxpr(self) -> Any:
        """The closed jaxpr."""
        return self._jaxpr

    @property
    def mesh(self) -> AnyMesh:
        """The mesh of the program."""
        return self._boundary.mesh

    @property
    def in_avals(self) -> list[Any]:
        """The types of the arguments, flattened; local types for tensors on the devices."""
        return list(self._jaxpr.in_avals)

    @property
    def out_avals(self) -> list[Any]:
        """The types of the results, flattened; local types for those that stay on the devices."""
        return list(self._jaxpr.out_avals)

    @property
    def out_tree(self) -> Any:
        """The tree of the results."""
        return self._out_tree

    def lower(self) -> Lowered:
        """Runs the pass from TTIR to TTNN; needs no devices.

        Raises:
          MissingRuleError: a transfer inside a primitive that has no rule.
        """
        lowered = lower(self._jaxpr, self._boundary.places, self._boundary.sizes)
        return Lowered(self._boundary, lowered, self._out_tree)

    def as_text(self) -> str:
        """The program as jaxpr text."""
        return str(self._jaxpr)

    def __repr__(self) -> str:
        return f"Traced({self._boundary.name}, mesh={self._boundary.sizes})"


class Lowered:
    """A TTNN-level program: `distribute_tensor` and `aggregate_tensor` say every transfer it makes."""

    def __init__(self, boundary: Boundary, jaxpr: Any, out_tree: Any) -> None:
        self._boundary = boundary
        self._jaxpr = jaxpr
        self._out_tree = out_tree

    @property
    def jaxpr(self) -> Any:
        """The closed jaxpr."""
        return self._jaxpr

    @property
    def mesh(self) -> AnyMesh:
        """The mesh of the program."""
        return self._boundary.mesh

    @property
    def in_avals(self) -> list[Any]:
        """The types of the arguments, flattened; local types for tensors on the devices."""
        return list(self._jaxpr.in_avals)

    @property
    def out_avals(self) -> list[Any]:
        """The types of the results, flattened; local types for those that stay on the devices."""
        return list(self._jaxpr.out_avals)

    @property
    def out_tree(self) -> Any:
        """The tree of the results."""
        return self._out_tree

    @functools.cached_property
    def plan(self) -> Plan:
        """The program cut into host work and mapped regions."""
        return plan_regions(self._jaxpr, self._boundary.places)

    def as_text(self) -> str:
        """The program as jaxpr text."""
        return str(self._jaxpr)

    def compile(self) -> Compiled:
        """Compiles the program for the devices of its mesh.

        Raises:
          MeshError: the mesh is abstract.
        """
        return Compiled(self, _with_devices(self._boundary.mesh))

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program on the reference executor: NumPy, a plain loop over mesh coordinates; slow, the oracle.

        Takes and gives what the function does, statics left out; a result that stays on the devices is a dict from
        mesh coordinate to array.
        """
        leaves = _check_call(self._boundary, args, kwargs)
        shards = [_reference_input(x) for x in leaves]
        outs = run_reference(self._jaxpr, self._boundary.places, self._boundary.sizes, shards)
        return jax.tree.unflatten(self._out_tree, outs)

    def run(self, args: Sequence[Any], mesh: AnyMesh) -> Any:
        """Runs on flat arguments inside a trace, or eagerly."""
        stored = [x.data if isinstance(x, MeshTensor) else x for x in args]
        results = execute(self.plan, mesh, stored)
        outs = zip(results, self._jaxpr.out_avals, self.plan.outs, strict=True)
        return jax.tree.unflatten(self._out_tree, [_wrap(x, a, p, mesh) for x, a, p in outs])

    def __repr__(self) -> str:
        return f"Lowered({self._boundary.name}, mesh={self._boundary.sizes})"


def _wrap(x: Any, aval: Any, place: Any, mesh: AnyMesh) -> Any:
    if place is not DEVICE:
        return x
    varying = jaxprs.varying_axes(aval)
    return MeshTensor(x, mesh, [a for a in mesh.axis_names if a in varying])


def _reference_input(x: Any) -> Any:
    return {tuple(c): s for c, s in x.shards()} if isinstance(x, MeshTensor) else x


def _check_call(boundary: Boundary, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The flat arguments of a call of a lowered or compiled program.

    Raises:
      ArgumentTypeError: another tree or other types than the program was traced for.
    """
    leaves, tree, paths = _flatten((tuple(args), kwargs))
    if tree != boundary.in_tree:
        raise ArgumentTypeError(
            f"{boundary.name} was traced for arguments of the tree {boundary.in_tree}, called with {tree}; call it with "
            "the same structure (static arguments left out), or trace it again."
        )
    for leaf, path, want in zip(leaves, paths, boundary.arguments, strict=True):
        got = _argument(leaf, path, boundary.mesh)
        if (got.aval.shape, got.aval.dtype, got.varying) != (want.aval.shape, want.aval.dtype, want.varying):
            raise ArgumentTypeError(
                f"argument{path} of {boundary.name} was traced as {_type(want)}, called with {_type(got)}; call it with "
                "the same type, or trace it again."
            )
    return leaves


def _type(a: Argument) -> str:
    where = "" if a.varying is None else f" on the devices, varying over {a.varying}"
    return f"{a.aval.dtype}{list(a.aval.shape)}{where}"


def _with_devices(mesh: AnyMesh) -> AnyMesh:
    if isinstance(mesh, Mesh):
        return mesh
    context = jax.sharding.get_abstract_mesh()
    if not context.empty and context.shape == mesh.shape:
        return context
    raise MeshError(
        f"the mesh {_show(mesh)} is abstract: a program over it can be traced and lowered, but not run. Give "
        f"mesh=jaxmesh.make_mesh({tuple(mesh.shape.values())}, {tuple(mesh.axis_names)}), or set a mesh with jax.set_mesh."
    )


class Compiled:
    """An executable program on the devices of a mesh; call it like the function, statics left out."""

    def __init__(self, lowered: Lowered, mesh: AnyMesh) -> None:
        boundary = lowered._boundary  # pyright: ignore[reportPrivateUsage]
        self._boundary = boundary

        def run(*leaves: Any) -> Any:
            return lowered.run(leaves, mesh)

        run.__name__ = run.__qualname__ = boundary.name
        avals = [_stored_aval(a, mesh) for a in boundary.arguments]
        self._compiled = jax.jit(run, donate_argnums=boundary.donated).lower(*avals).compile()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*_check_call(self._boundary, args, kwargs))

    def as_text(self) -> str:
        """The optimized HLO."""
        return self._compiled.as_text() or ""

    def cost_analysis(self) -> Any:
        """XLA's cost analysis."""
        return self._compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's memory analysis."""
        return self._compiled.memory_analysis()

    def __repr__(self) -> str:
        return f"Compiled({self._boundary.name}, mesh={self._boundary.sizes})"


def _stored_aval(a: Argument, mesh: AnyMesh) -> Any:
    if a.varying is None:
        return a.aval
    shape = (*a.aval.shape, *[mesh.shape[n] for n in a.varying])
    sharding = jax.sharding.NamedSharding(mesh, spec_of(len(a.aval.shape), a.varying))
    return MeshTensor(jax.ShapeDtypeStruct(shape, a.aval.dtype, sharding=sharding), mesh, a.varying)


class JitFunction:
    """A function that is traced, lowered and run over a mesh when called; made by `jaxmesh.jit`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        mesh: AnyMesh | None,
        static: Signature,
        donated: Signature,
    ) -> None:
        self._fun = fun
        self._mesh = mesh
        self._static = static
        self._donated = donated

        @functools.wraps(fun)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._run(args, kwargs)

        # JAX's own cache and dispatch serve every later call of the same types.
        self._jitted = jax.jit(
            run,
            static_argnums=tuple(sorted(static.argnums)),
            static_argnames=tuple(sorted(static.argnames)),
            donate_argnums=tuple(sorted(donated.argnums)),
            donate_argnames=tuple(sorted(donated.argnames)),
        )
        functools.update_wrapper(self, fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Traces for arguments like these: arrays, `jax.ShapeDtypeStruct`s or `MeshTensor`s; no devices are needed.

        Raises:
          VerifyError: the program breaks a rule; see `jaxmesh.mesh_shard`.
          ArgumentTypeError: an argument or a result is no array.
        """
        mesh = _program_mesh(self._mesh)
        dynamic, dynamic_kw = self._static.split(args, kwargs)
        leaves, tree, paths = _flatten((tuple(dynamic), dynamic_kw))
        arguments = tuple(_argument(x, p, mesh) for x, p in zip(leaves, paths, strict=True))
        donated = self._donated_leaves(args, kwargs)
        boundary = Boundary(getattr(self._fun, "__name__", "function"), mesh, tree, arguments, donated)

        def call(*dyn: Any, **dyn_kw: Any) -> Any:
            full, full_kw = self._static.join(args, kwargs, dyn, dyn_kw)
            return self._fun(*full, **full_kw)

        abstract_mesh = mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
        varying = [a.varying or () for a in arguments]
        program = trace(call, tree, [a.aval for a in arguments], varying, abstract_mesh)
        return Traced(boundary, program.jaxpr, program.out_tree)

    def _donated_leaves(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[int, ...]:
        marks = [
            [i in self._donated.argnums] * len(jax.tree.leaves(a, is_leaf=_is_tensor))
            for i, a in enumerate(args)
            if i not in self._static.argnums
        ]
        names = sorted(k for k in kwargs if k not in self._static.argnames)
        marks += [
            [k in self._donated.argnames] * len(jax.tree.leaves(kwargs[k], is_leaf=_is_tensor)) for k in names
        ]
        flat = [m for row in marks for m in row]
        return tuple(i for i, m in enumerate(flat) if m)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """`trace(...).lower()`."""
        return self.trace(*args, **kwargs).lower()

    def _run(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        context = jax.sharding.get_abstract_mesh()
        if context.manual_axes:
            return self._inline(context, args, kwargs)
        lowered = self.lower(*args, **kwargs)
        dynamic, dynamic_kw = self._static.split(args, kwargs)
        leaves, _, _ = _flatten((tuple(dynamic), dynamic_kw))
        return lowered.run(leaves, _with_devices(lowered.mesh))

    def _inline(self, context: AbstractMesh, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Inside another program over the same mesh the function is a part of that program."""
        mesh = as_mesh(self._mesh) if self._mesh is not None else context
        if dict(mesh.shape) != dict(context.shape):
            raise MeshMismatchError(
                f"a function for the mesh {_show(mesh)} is called inside a program over {_show(context)}; one program "
                "has one mesh."
            )
        return self._fun(*args, **kwargs)

    def __repr__(self) -> str:
        return f"jaxmesh.jit({self._fun!r}, mesh={self._mesh!r})"


def _program_mesh(given: AnyMesh | None) -> AnyMesh:
    """The mesh to trace over: the given one, with the axis types of the context if one is set."""
    mesh = as_mesh(given)
    context = jax.sharding.get_abstract_mesh()
    if context.empty:
        return mesh
    if dict(context.shape) != dict(mesh.shape) or context.axis_names != mesh.axis_names:
        raise MeshMismatchError(
            f"the program's mesh is {_show(mesh)}, but jax.set_mesh has set {_show(context)}; one program has one mesh. "
            "Leave the context, or make the function for its mesh."
        )
    if mesh.axis_types == context.axis_types:
        return mesh
    if isinstance(mesh, AbstractMesh):
        return context
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
) -> Callable[[Callable[..., Any]], JitFunction]: ...
def jit(
    fun: Callable[..., Any] | None = None,
    *,
    mesh: AnyMesh | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
) -> JitFunction | Callable[[Callable[..., Any]], JitFunction]:
    """Makes a function run over a mesh: traced with `mesh_shard`, lowered to TTNN's two operations, jit-compiled.

    The result behaves like a `jax.jit` function: it is cached by shape and type, and works under `jax.jit`,
    `jax.grad`, `jax.vmap` and `jax.make_jaxpr`. Arguments are full arrays, or `MeshTensor`s, which the function sees as
    shards of their local shape. A result that no `shard_to_full` brings back is a `MeshTensor`.

    Args:
      fun: the function; left out, a decorator is returned.
      mesh: a `jax.sharding.Mesh`, or an `AbstractMesh` to trace and lower without devices; by default the mesh of
        `jax.set_mesh` when the function is called.
      static_argnums: positions of arguments that are part of the program.
      static_argnames: their names.
      donate_argnums: positions of arguments whose memory may be reused.
      donate_argnames: their names.

    Raises:
      ArgumentTypeError: `fun` is not callable, or `mesh` is no mesh.

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
        )
    if not callable(fun):
        raise ArgumentTypeError(f"jit takes a function, got {fun!r}.")
    if mesh is not None:
        mesh = as_mesh(mesh)
    static = Signature.of(fun, static_argnums, static_argnames)
    donated = Signature.of(fun, donate_argnums, donate_argnames)
    return JitFunction(fun, mesh, static, donated)
