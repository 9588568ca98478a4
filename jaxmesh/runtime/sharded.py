"""The sharded executor: a TTNN-level program as `shard_map` regions over a `jax.sharding.Mesh`.

A distribute at the start of a region is an entry of `in_specs`, an aggregate at its end an
entry of `out_specs`. Transfers inside loops run as a local slice and a gather.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxmesh.dialects.residency import DEVICE, HOST, ResidencyMap
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES, first_copy
from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs
from jaxmesh.jaxprs.strip_mesh import strip_eqn, strip_jaxpr
from jaxmesh.jaxprs.typed import typed, with_axis_types
from jaxmesh.jaxprs.untyped import lax
from jaxmesh.jaxprs.xla_faults import as_defined
from jaxmesh.runtime.regions import Plan, Region, plan_regions, with_free
from jaxmesh.sharding.distribution import axes_on_dims, mesh_axis_dims, resolve_composer, resolve_mapper
from jaxmesh.sharding.mesh import splitting_axes, storage_spec
from jaxmesh.sharding.shard_attributes import named_axes

Inside = Callable[[Any], Any]


def execute(
    plan: Plan,
    mesh: Mesh | AbstractMesh,
    args: Sequence[object],
    out_specs: Sequence[PartitionSpec] | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    kept: Sequence[PartitionSpec | None] = (),
) -> list[Any]:
    """Runs a planned program; arguments and results are full arrays, and the stored form of tensors on the devices.

    `out_specs` are the specs of full results; by default those of the transfers. `in_specs` are those of arguments on
    the devices that are passed whole, and `kept` those of results on the devices that are returned whole.
    """
    specs_in = in_specs or [None] * len(args)
    kept = kept or [None] * len(plan.residency.results)
    explicit = [n for n, t in zip(mesh.axis_names, mesh.axis_types, strict=True) if t is AxisType.Explicit]
    if not explicit:
        outs = _execute_whole(plan, mesh, _store_all(args, specs_in, mesh), kept)
        if out_specs is None:
            return outs
        rows = zip(outs, out_specs, plan.residency.results, strict=True)
        return [y if p is DEVICE else _constrain(y, s, mesh) for y, s, p in rows]
    # Inside, the executor decides on shardings; the types of arguments and results are the caller's.
    auto = plain_mesh(mesh)
    specs = _result_specs(plan, auto)
    if out_specs is not None:
        specs = [s if p is DEVICE else w for s, w, p in zip(specs, out_specs, plan.residency.results, strict=True)]
    specs = [s if k is None else k for s, k in zip(specs, kept, strict=True)]
    shardings = [NamedSharding(mesh, _only(spec, explicit)) for spec in specs]

    def run(*xs: object) -> list[Any]:
        return _execute_whole(plan, auto, _store_all(xs, specs_in, auto), kept)

    api: Any = jax.sharding
    run = api.auto_axes(run, axes=tuple(explicit), out_sharding=shardings)
    return run(*[jnp.asarray(x) for x in args])


def _constrain(y: jax.Array, spec: PartitionSpec, mesh: Mesh | AbstractMesh) -> jax.Array:
    """Returns a full result in its sharding; aggregates of axes in another order than the mesh's reshape it."""
    return lax.with_sharding_constraint(y, NamedSharding(mesh, spec)) if any(spec) else y


def _store_all(
    args: Sequence[object], specs: Sequence[PartitionSpec | None], mesh: Mesh | AbstractMesh
) -> Sequence[Any]:
    """Returns arguments in the stored form of tensors on the devices; `specs` are those of arrays passed whole."""
    return [x if s is None else store_array(x, s, mesh) for x, s in zip(args, specs, strict=True)]


def store_array(x: Any, spec: PartitionSpec, mesh: Mesh | AbstractMesh) -> Any:
    """Returns an array on the mesh in the stored form of its shards; no data moves."""
    varying = splitting_axes(mesh, named_axes(spec))
    split = _only(spec, varying)

    def local(shard: Any) -> Any:
        return jax.lax.reshape(shard, (*shard.shape, *[1] * len(varying)))

    return compat.shard_map(local, mesh=mesh, in_specs=split, out_specs=storage_spec(x.ndim, varying))(x)


def _execute_whole(
    plan: Plan, mesh: Mesh | AbstractMesh, args: Sequence[jax.Array], kept: Sequence[PartitionSpec | None]
) -> list[Any]:
    outs = _execute(plan, mesh, args)
    return [y if s is None else _whole_array(y, s, mesh) for y, s in zip(outs, kept, strict=True)]


def _whole_array(stored: Any, spec: PartitionSpec, mesh: Mesh | AbstractMesh) -> Any:
    """Returns a tensor on the devices as an array on the mesh; no data moves. The inverse of `store_array`."""
    varying = splitting_axes(mesh, named_axes(spec))
    rank = stored.ndim - len(varying)

    def local(shard: Any) -> Any:
        return jax.lax.reshape(shard, shard.shape[:rank])

    return compat.shard_map(local, mesh=mesh, in_specs=storage_spec(rank, varying), out_specs=spec)(stored)


def plain_mesh(mesh: Mesh | AbstractMesh) -> Mesh | AbstractMesh:
    """Returns a mesh with every axis Auto."""
    return with_axis_types(mesh, AxisType.Auto)


def _only(spec: PartitionSpec, axes: Sequence[str]) -> PartitionSpec:
    """Returns a spec of some axes alone."""
    rows: list[tuple[str, ...]] = [(e,) if isinstance(e, str) else tuple(e or ()) for e in spec]
    return PartitionSpec(*[tuple(a for a in row if a in axes) or None for row in rows])


def _result_specs(plan: Plan, mesh: Mesh | AbstractMesh) -> list[PartitionSpec]:
    """Returns the spec of each result."""
    names = tuple(mesh.axis_names)
    body = walk.open_jaxpr(plan.jaxpr)
    exits = {e.outvars[0]: _Mapped(plan, r, mesh).aggregate_spec(e) for r in plan.regions for e in r.exits}

    def spec(atom: Atom) -> PartitionSpec:
        if isinstance(atom, compat.Literal):
            return PartitionSpec()
        if plan.residencies[atom] is DEVICE:
            return storage_spec(len(atom.aval.shape), _varying_axes(atom, names))
        return exits.get(atom, PartitionSpec())

    return [spec(a) for a in body.outvars]


def _varying_axes(var: Any, names: Sequence[str]) -> list[str]:
    varying = compat.varying_axes(var.aval)
    return [n for n in names if n in varying]


def _execute(plan: Plan, mesh: Mesh | AbstractMesh, args: Sequence[jax.Array]) -> list[Any]:
    body = walk.open_jaxpr(plan.jaxpr)
    env: dict[Var, object] = dict(zip(body.constvars, map(evaluate.strip_type, plan.jaxpr.consts), strict=True))
    env.update(zip(body.invars, args, strict=True))
    for region in plan.regions:
        if region.mapped:
            _Mapped(plan, region, mesh).run(env)
        else:
            _eval_outside(region.eqns, env, plan.residency, mesh)
    return [outside(plan, env, a) for a in body.outvars]


def _eval_outside(
    eqns: Sequence[Eqn], env: dict[Var, object], residency: ResidencyMap, mesh: Mesh | AbstractMesh | None = None
) -> None:
    for eqn in as_defined(eqns):
        moves = not PRIMITIVES.isdisjoint(_held(eqn))
        evaluate.eval_eqns([_on_host(eqn, residency, mesh) if mesh is not None and moves else strip_eqn(eqn)], env)


def _held(eqn: Eqn) -> set[object]:
    return {e.primitive for j in walk.sub_jaxprs(eqn) for e in walk.all_eqns(j)}


def _on_host(eqn: Eqn, residency: ResidencyMap, mesh: Mesh | AbstractMesh) -> Eqn:
    """A loop, branch or call on the host side, each of its bodies executed in regions of its own."""

    def change(jaxpr: Jaxpr) -> Jaxpr:
        if all(e.primitive not in PRIMITIVES for e in walk.all_eqns(jaxpr)):
            return strip_jaxpr(jaxpr)
        closed = walk.as_closed(jaxpr)
        plan = plan_regions(residency.body(jaxpr, (HOST,) * len(closed.in_avals)))
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in closed.in_avals]

        def run(*xs: Any) -> list[Any]:
            return _execute(plan, mesh, xs)

        return walk.in_form_of(jaxpr, typed.make_jaxpr(run)(*structs))

    return map_sub_jaxprs(eqn, change)


def outside(plan: Plan, env: dict[Var, Any], atom: Atom) -> Any:
    """Returns a value on the host; free values are computed on demand."""
    if isinstance(atom, Var) and atom not in env:
        _eval_outside(with_free([], [atom], plan.free), env, plan.residency)
    return evaluate.read(env, atom)


class _Mapped:
    """A mapped region, run as one call of `shard_map`."""

    def __init__(self, plan: Plan, region: Region, mesh: Mesh | AbstractMesh) -> None:
        self.plan, self.region, self.mesh = plan, region, mesh
        self.names = tuple(mesh.axis_names)
        self.sizes = tuple(mesh.shape.values())

    def run(self, env: dict[Var, Any]) -> None:
        region = self.region
        # XLA cannot inline a region of operands without elements; the region creates these operands.
        empty = [v for v in region.reads if _is_empty(v)]
        reads = [v for v in region.reads if not _is_empty(v)]
        entries = [self._entry(v) for v in reads]
        exits = [self._exit_aggregate(e) for e in region.exits] + [self._exit(v) for v in region.writes]

        def body(*args: object) -> list[Any]:
            local: dict[Var, Any] = {v: self._create_empty(v) for v in empty}
            for var, (_, _, enter), arg in zip(reads, entries, args, strict=True):
                local[var] = enter(arg)
            evaluate.eval_eqns(as_defined(region.eqns), local)
            return [leave(local) for _, leave, _ in exits]

        in_specs, out_specs = tuple(spec for _, spec, _ in entries), [spec for spec, _, _ in exits]
        mapped = compat.shard_map(body, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True)
        results = mapped(*[outside(self.plan, env, source) for source, _, _ in entries])
        keys = [e.outvars[0] for e in region.exits] + list(region.writes)
        for var, (_, _, finish), result in zip(keys, exits, results, strict=True):
            env[var] = finish(result)

    def _create_empty(self, var: Atom) -> object:
        """Returns an array without elements, typed as the variable."""
        varying = _varying_axes(var, self.names)
        x = jnp.zeros(var.aval.shape, var.aval.dtype)
        return compat.vary(x, varying) if varying else x

    # --- how a value enters: the argument, its spec, the function that is applied to it inside ---

    def _entry(self, var: Atom) -> tuple[Atom, PartitionSpec, Inside]:
        if var in self.plan.entries:
            return self._entry_distribute(self.plan.entries[var])
        if self.plan.residencies[var] is not DEVICE:
            return var, PartitionSpec(), lambda x: x
        shape = var.aval.shape
        return var, storage_spec(len(shape), _varying_axes(var, self.names)), lambda x: jax.lax.reshape(x, shape)

    def _entry_distribute(self, eqn: Eqn) -> tuple[Atom, PartitionSpec, Inside]:
        (source,) = eqn.invars
        shape = source.aval.shape
        resolved = resolve_mapper(eqn.params["mapper_config"], self.sizes, shape)
        dims = mesh_axis_dims(resolved.landing, resolved.dims, drop_single=False)
        if dims is None:
            return source, PartitionSpec(), lambda x: evaluate.bind_at_source(eqn, [x])[0]
        return source, PartitionSpec(*axes_on_dims(len(shape), dims, self.names)), lambda x: x

    # --- how a value leaves: its spec, the function that reads it inside, the function applied to it outside ---

    def _exit(self, var: Atom) -> tuple[PartitionSpec, Inside, Inside]:
        if self.plan.residencies[var] is not DEVICE:
            return PartitionSpec(), lambda env: env[var], lambda x: x
        shape, varying = var.aval.shape, _varying_axes(var, self.names)
        stored = (*shape, *[1] * len(varying))
        return storage_spec(len(shape), varying), lambda env: jax.lax.reshape(env[var], stored), lambda x: x

    def aggregate_spec(self, eqn: Eqn) -> PartitionSpec:
        """Returns the spec of the result of an aggregate."""
        dims = self._aggregate_dims(eqn)
        return PartitionSpec() if dims is None else PartitionSpec(*axes_on_dims(_rank(eqn), dims, self.names))

    def _aggregate_dims(self, eqn: Eqn) -> tuple[int | None, ...] | None:
        resolved = resolve_composer(eqn.params["composer_config"], self.sizes, eqn.invars[0].aval.shape)
        return mesh_axis_dims(resolved.landing, resolved.dims, drop_single=True)

    def _exit_aggregate(self, eqn: Eqn) -> tuple[PartitionSpec, Inside, Inside]:
        (shard,) = eqn.invars
        dims = self._aggregate_dims(eqn)
        if dims is None:
            return (
                PartitionSpec(),
                lambda env: evaluate.bind_at_source(eqn, [evaluate.read(env, shard)])[0],
                lambda x: x,
            )
        joined = {n for n, d in zip(self.names, dims, strict=True) if d is not None}
        # Of axes that are dropped although the shard varies over them, an aggregate reads coordinate 0.
        dropped = [n for n in _varying_axes(shard, self.names) if n not in joined] if isinstance(shard, Var) else []
        # An axis of size 1 is joined by naming it in the spec; reading the copy of one device would take a collective.
        single = [n for n in dropped if self.mesh.shape[n] == 1]
        dropped = [n for n in dropped if n not in single]
        rank = _rank(eqn)

        def leave(env: Any) -> Any:
            return first_copy(evaluate.read(env, shard), dropped)

        if single and not rank:
            spec = PartitionSpec(tuple(single))
            return spec, lambda env: jax.lax.reshape(leave(env), (1,)), lambda x: jax.lax.reshape(x, ())
        dims = tuple(0 if n in single else d for n, d in zip(self.names, dims, strict=True))
        spec = PartitionSpec(*axes_on_dims(rank, dims, self.names))
        return spec, leave, lambda x: x


def _is_empty(var: Atom) -> bool:
    """Returns True for an array of numbers without elements."""
    return 0 in var.aval.shape and isinstance(var.aval.dtype, np.dtype)


def _rank(eqn: Eqn) -> int:
    return len(eqn.invars[0].aval.shape)
