"""The one trace of a user's function by JAX, and the boundary at which its errors leave jaxmesh.

`jax.stages.Traced` does not publish the shardings of a function, or the values that it closes over.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
from jax._src import core as core_lib, mesh as mesh_lib, sharding_impls, traceback_util
from jax.sharding import AbstractMesh, Mesh
from jax.tree_util import PyTreeDef

from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Jaxpr
from jaxmesh.jaxprs.tracing_state import PLAIN, RegionRequired, traced_as
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import PyTree

F = TypeVar("F", bound=Callable[..., Any])
_util: Any = traceback_util
_impls: Any = sharding_impls
_core: Any = core_lib
_unspecified: Any = sharding_impls.UnspecifiedValue


def api_boundary(fun: F) -> F:
    """Returns a public function whose errors leave without the frames of JAX and jaxmesh, as JAX's own do."""
    return _util.api_boundary(fun)


def name_axis(error: AssertionError) -> None:
    """Adds to JAX's bare `AssertionError` for an axis that no mesh has the axis and the mesh's."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    given = frame.f_locals
    if frame.f_code.co_filename == _core.__file__ and {"axes", "cur_mesh"} <= set(given):
        known = given["cur_mesh"].axis_names
        unknown = next(a for a in given["axes"] if a not in known)
        error.add_note(f"Found an unbound axis name: {unknown}. The axes of the mesh are: {', '.join(known)}.")


@dataclass(frozen=True, slots=True)
class FunctionTrace:
    """A function as JAX traced it.

    Attributes:
      jaxpr: the closed jaxpr of full values; its constants include the values of outer traces that it closes over.
      out_tree: the tree of its results.
      in_shardings: for each leaf of the arguments the sharding that `jax.jit` was given; None if it has none.
      out_shardings: the same for the results.
    """

    jaxpr: Jaxpr
    out_tree: PyTreeDef
    in_shardings: tuple[PyTree, ...]
    out_shardings: tuple[PyTree, ...]


def trace_plain(jitted: object, args: Sequence[object], kwargs: Mapping[str, object]) -> FunctionTrace | None:
    """Traces a function of `jax.jit` as JAX does; returns None if it splits tensors by hand outside of mapped regions.

    Errors of the function are raised unchanged.
    """
    try:
        with traced_as(PLAIN):
            return trace_function(jitted, args, kwargs)
    except RegionRequired:
        return None
    except (NameError, ValueError) as error:
        if "unbound axis name" in str(error) or "manual_axis_type" in str(error):
            error.add_note(
                "In a program that splits tensors by hand, the axes of a mesh that is given as jaxmesh.jit(f, "
                "mesh=mesh) have names; those of another mesh, and types of varying axes, only after its first "
                "jaxmesh.full_to_shard or mesh_shard."
            )
        raise


def trace_function(jitted: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> FunctionTrace:
    """Traces a function of `jax.jit` for arguments, which may be types or values of a trace."""
    traced: Any = jitted.trace(*args, **kwargs)
    count, params = len(traced._consts), traced._params
    ins, outs = (tuple(map(_given, params[name])) for name in ("in_shardings", "out_shardings"))
    return FunctionTrace(_with_constants(traced.jaxpr, traced._consts), traced.out_tree, ins[count:], outs)


def argument_shardings(shardings: object, args: Sequence[object]) -> tuple[Any, ...]:
    """Returns for each leaf of arguments the sharding that `jax.jit` reads from `in_shardings`; None for none.

    Raises:
      ValueError: as `jax.jit` does, the trees do not fit, or a dim does not divide.
    """

    def nothing(*_: object) -> tuple[()]:
        return ()

    return _resolved("in_shardings", typed.jit(nothing, in_shardings=shardings), args)


def result_shardings(shardings: object, results: object) -> tuple[Any, ...]:
    """Returns for each leaf of results the sharding that `jax.jit` reads from `out_shardings`; None for none."""

    def same(x: jax.Array) -> Any:
        return x

    return _resolved("out_shardings", typed.jit(same, out_shardings=shardings), (results,))


def _resolved(name: str, jitted: Any, args: Sequence[object]) -> tuple[object, ...]:
    structs = jax.tree.map(_struct, tuple(args))
    with traced_as(None), jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        return tuple(map(_given, jitted.trace(*structs)._params[name]))


def _struct(x: object) -> jax.ShapeDtypeStruct:
    aval = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


UNSPECIFIED: Any = sharding_impls.UNSPECIFIED
"""The default of `in_shardings` and `out_shardings`: None is a sharding that is left to the partitioner."""


def _given(sharding: object) -> Any:
    return None if isinstance(sharding, _unspecified) else sharding


def _with_constants(jaxpr: Jaxpr, consts: Sequence[Any]) -> Jaxpr:
    """Returns a jaxpr whose first arguments are values that the function closes over with them as constants."""
    if not consts:
        return jaxpr
    body, known, count = walk.open_jaxpr(jaxpr), walk.constants(jaxpr), len(consts)
    constvars = [*known, *body.invars[:count]]
    opened = walk.rebuild(body, constvars, body.invars[count:], body.eqns, body.outvars)
    return walk.close(opened, [*known.values(), *consts])


@contextlib.contextmanager
def mesh_context(mesh: Mesh | AbstractMesh) -> Generator[None]:
    """Runs its body as under `jax.set_mesh`, also inside of a trace, where the axes of the mesh have names.

    A mesh without devices is set as by `use_abstract_mesh`. A mesh that is set already stays; so do manual axes.
    """
    current = jax.sharding.get_abstract_mesh()
    if current.manual_axes:
        yield
        return
    names = _core.extend_axis_env_nd(list(mesh.shape.items()))
    if not current.empty:
        with names:
            yield
        return
    abstract = jax.sharding.use_abstract_mesh(mesh if isinstance(mesh, AbstractMesh) else mesh.abstract_mesh)
    devices = _impls._internal_use_concrete_mesh(mesh) if isinstance(mesh, Mesh) else contextlib.nullcontext()
    with names, devices, abstract:
        yield


def uses_names(jaxpr: Jaxpr, mesh: Mesh | AbstractMesh | None) -> bool:
    """Returns True if a program has collectives over axes of a mesh outside of mapped regions."""
    names = () if mesh is None else mesh.axis_names
    return any(getattr(effect, "name", None) in names for effect in jaxpr.effects)


def legacy_mesh() -> Mesh | None:
    """Returns the mesh of a `with mesh:` block, which JAX has deprecated; None outside of one."""
    mesh: Mesh = mesh_lib.thread_resources.env.physical_mesh
    return None if mesh.empty else mesh
