"""`jaxmesh.shard_map`: a drop-in for `jax.shard_map` that goes through the one pass."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Sequence, Set as AbstractSet
from typing import Any, TypeVar, overload

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxmesh.dialects.replication import is_enabled
from jaxmesh.dialects.residency import HOST
from jaxmesh.errors import ArgumentTypeError, InexpressibleError, SpecError
from jaxmesh.frontends.jax.shard_map import check_expressible, raise_one
from jaxmesh.frontends.jax.trace_shard_maps import call_inline, call_to_jaxpr, eval_call, is_region, tracing
from jaxmesh.jaxprs import compat, evaluate
from jaxmesh.jaxprs.compat import Eqn
from jaxmesh.jaxprs.evaluate import trace_typed
from jaxmesh.passes.lowering import lower
from jaxmesh.runtime.launch import launch
from jaxmesh.runtime.single_region import SingleRegion
from jaxmesh.stages.arguments import flatten, prepare_tree
from jaxmesh.stages.checked_calls import CheckedCalls, Checks, check_results
from jaxmesh.stages.jit import jit
from jaxmesh.stages.stages import Lowered, Traced
from jaxmesh.ttnn.mesh_tensor import is_tensor
from jaxmesh.validate import check_size, quote

F = TypeVar("F", bound=Callable[..., Any])
_INFER: Any = inspect.signature(compat.shard_map).parameters["in_specs"].default


@overload
def shard_map(
    f: F,
    /,
    *,
    out_specs: Any,
    in_specs: Any = ...,
    mesh: Mesh | AbstractMesh | None = ...,
    axis_names: AbstractSet[Any] = ...,
    check_vma: bool = ...,
) -> F: ...


@overload
def shard_map(
    f: None = None,
    /,
    *,
    out_specs: Any,
    in_specs: Any = ...,
    mesh: Mesh | AbstractMesh | None = ...,
    axis_names: AbstractSet[Any] = ...,
    check_vma: bool = ...,
) -> Callable[[F], F]: ...


def shard_map(
    f: Any = None,
    /,
    *,
    out_specs: Any,
    in_specs: Any = _INFER,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: AbstractSet[Any] = frozenset(),
    check_vma: bool = True,
) -> Any:
    """`jax.shard_map`, by way of `mesh_shard`, the pass and `distribute_tensor` / `aggregate_tensor`.

    The function becomes full_to_shard of its arguments, its body, shard_to_full of its results. It is lowered, and
    the lowered program runs under the same specs. Results, their shardings, gradients and errors are those of
    `jax.shard_map`. The function that is returned also has `.trace(*args)` and `.lower(*args)`, as `jaxmesh.jit` of it.

    Functions that TTIR cannot express (axes that are not manual, unreduced specs, effects, references) run as in JAX.
    So do functions with `check_vma=False`, whose gradients follow other rules.

    Args:
      f: the function of the shards; left out, a decorator is returned.
      out_specs: a `PartitionSpec` per result, or a prefix of the results' tree.
      in_specs: a `PartitionSpec` per argument, or a prefix of the arguments' tree; inferred on Explicit meshes.
      mesh: the mesh; by default that of `jax.set_mesh`.
      axis_names: the mesh axes that are manual; by default all.
      check_vma: whether types check replication. With False, a program whose text is requested records its
        assumptions (`Traced.assumptions`), and a call compares the copies of its results if that is switched on
        (`jaxmesh.check_replication`).

    Raises:
      TypeError, ValueError: as `jax.shard_map` does.
      ReplicationError: in a call that compares copies, those of a result differ.

    >>> import jax, jax.numpy as jnp, jaxmesh as jm
    >>> from jax.sharding import PartitionSpec as P
    >>> mesh = jm.make_mesh((2, 4))
    >>> @jm.shard_map(mesh=mesh, in_specs=P("y", "x"), out_specs=P("y"))
    ... def rows(block):
    ...     return jax.lax.psum(block.sum(1), "x")
    >>> rows(jnp.ones((4, 8)))
    Array([8., 8., 8., 8.], dtype=float32)
    >>> rows.trace(jnp.ones((4, 8))).jaxpr.eqns[0].params["shard_dims"]
    (0, 1)
    """
    options: dict[str, Any] = {
        "out_specs": out_specs,
        "in_specs": in_specs,
        "mesh": mesh,
        "axis_names": axis_names,
        "check_vma": check_vma,
    }
    try:
        check_vma = bool(check_vma)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"shard_map takes True or False as check_vma, got {quote(check_vma)}.") from None
    if f is None:
        return functools.partial(shard_map, **options)
    mapped: Any = compat.shard_map(f, **options)

    def checked(checks: Checks) -> Any:
        return compat.shard_map(check_results(f, out_specs, checks.collector), **options)

    return ShardMapped(mapped, mesh, None if check_vma else CheckedCalls(checked, claims=True))


class ShardMapped:
    """A function built by `jaxmesh.shard_map`."""

    # Outside of the instance's dictionary, which functools.wraps copies to whatever wraps this function.
    __slots__ = ("__dict__", "__weakref__", "_mapped", "_mesh", "_unproven")

    def __init__(
        self, mapped: Callable[..., Any], mesh: Mesh | AbstractMesh | None, unproven: CheckedCalls | None
    ) -> None:
        # With check_vma=False, the calls in which the claims of the specs are checked.
        self._mapped, self._mesh, self._unproven = mapped, mesh, unproven
        functools.update_wrapper(self, mapped)
        # As of JAX's own function.
        self.__wrapped__ = getattr(mapped, "__wrapped__", mapped)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function, or makes it a part of the program that is being traced."""
        if kwargs:
            # Not allowed; JAX reports it.
            return self._mapped(*args, **kwargs)
        program = tracing()
        if program is not None and program.inline and self._unproven is None and self._mesh is not None:
            return call_inline(self._mapped, args, program)
        if program is not None or jax.sharding.get_abstract_mesh().manual_axes:
            return self._mapped(*args)
        if self._unproven is not None:
            return self._unproven(args, {}) if is_enabled() else self._mapped(*args)
        return _run(self._mapped, prepare_tree(args))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds an object, as methods do."""
        return self if instance is None else types.MethodType(self, instance)

    def trace(self, *args: Any) -> Traced:
        """The TTIR-level program for arguments like these; see `jaxmesh.jit`.

        Raises:
          ArgumentTypeError: an argument is a `MeshTensor`, which is no full array.
        """
        for number, arg in enumerate(args):
            if any(is_tensor(x) for x in flatten(arg)[0]):
                raise ArgumentTypeError(
                    f"argument {number} of a function made by shard_map holds a MeshTensor, but such a function splits "
                    "full arrays; give the full array, or call the function's body under jaxmesh.jit."
                )
        return jit(self, mesh=self._mesh).trace(*args)

    def lower(self, *args: Any) -> Lowered:
        """The TTNN-level program for arguments like these."""
        return self.trace(*args).lower()

    def __repr__(self) -> str:
        return f"jaxmesh.shard_map({self._mapped!r})"


def _run(mapped: Callable[..., Any], args: Sequence[Any]) -> Any:
    try:
        call = call_to_jaxpr(mapped, args)
    except (TypeError, ValueError, jax.errors.JAXIndexError):
        # Wrong use, which JAX reports, or Python that reads values, which JAX runs eagerly.
        return launch(mapped, *args)
    for const in call[0].consts:
        if isinstance(const, jax.ShapeDtypeStruct):
            check_size(const.shape, const.dtype, "an argument of a function made by shard_map")
    regions: list[Any] = []
    # Inexpressible in TTIR, or a wrong spec, which JAX reports: the equation runs as it is.
    with contextlib.suppress(InexpressibleError, SpecError):
        regions = [lower_region(e) for e in call[0].eqns if is_region(e)]
    ready = iter(regions)

    def region(eqn: Eqn, operands: list[Any]) -> list[Any]:
        return next(ready)(operands, eqn.params["mesh"]) if regions else evaluate.bind(eqn, operands)

    return launch(eval_call, *call, region)


def lower_region(eqn: Eqn) -> SingleRegion:
    """Returns one `shard_map` of a traced call, lowered."""
    check_expressible(eqn)
    mesh: Any = eqn.params["mesh"]
    abstract: AbstractMesh = mesh.abstract_mesh
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in eqn.invars]
    with evaluate.at_source_of(eqn):
        typed = trace_typed(lambda *xs: raise_one(eqn, xs, mesh, {}), avals, [()] * len(avals), abstract)
    sizes = dict(mesh.shape)
    program = lower(typed, [HOST] * len(avals), sizes).program
    return SingleRegion(program, sizes, eqn.params["in_specs"], eqn.params["out_specs"])
