"""The TTNN dialect's two sharding operations, `distribute_tensor` and `aggregate_tensor`.

Their meaning is section 2 of the semantics, checked by `sharding/distribution.py`. Inside a mapped program they
compile to a local slice and to a gather; at a program's boundary the runtime turns them into specs, which cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching

from jaxmesh.dialects.ttir.collectives import gather
from jaxmesh.dialects.ttir.replica_groups import row_major_index
from jaxmesh.dialects.varying import first_copy_only
from jaxmesh.errors import ResidencyError, UnsupportedError
from jaxmesh.jaxprs import compat
from jaxmesh.jaxprs.untyped import Shape
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, Placement, PlacementReplicate, PlacementShard
from jaxmesh.sharding.distribution import (
    Composition,
    Distribution,
    Landing,
    mesh_axis_dims,
    resolve_composer,
    resolve_mapper,
)
from jaxmesh.sharding.shard_attributes import plan_aggregate, plan_distribute

_jax: Any = jax
"""For what JAX leaves without annotations."""

distribute_tensor_p = compat.unlowered_primitive("distribute_tensor")
aggregate_tensor_p = compat.unlowered_primitive("aggregate_tensor")


# --- distribute_tensor -----------------------------------------------------------------------------------------------


def _distribute_abstract_eval(x: compat.Aval, *, mapper_config: MeshMapperConfig) -> compat.Aval:
    mesh = compat.program_mesh("distribute_tensor")
    varying = {a for a in compat.varying_axes(x) if mesh[a] > 1}
    if varying:
        raise ResidencyError(
            f"distribute_tensor needs a host tensor, one value for all devices, but {compat.describe(x)} is a shard "
            f"that varies over mesh axis {', '.join(map(repr, sorted(varying)))}; aggregate_tensor brings it to the "
            "host."
        )
    resolved = resolve_traced_mapper(mapper_config, mesh, x.shape)
    return compat.retype(x, resolved.local, cut_axes(resolved, mesh))


def resolve_traced_mapper(config: MeshMapperConfig, mesh: Mapping[str, int], full: Shape) -> Distribution:
    """Resolves a mapper for a traced program, whose devices must all have a shard."""
    resolved = resolve_mapper(config, tuple(mesh.values()), full)
    if math.prod(resolved.chunks) < math.prod(mesh.values()):
        raise UnsupportedError(
            f"distribute_tensor inside a program must give every device a shard, but {config} on the mesh "
            f"{dict(mesh)} places {math.prod(resolved.chunks)} shards on {math.prod(mesh.values())} devices; "
            "distribute eagerly with jaxmesh.ttnn.distribute_tensor, or use the whole mesh."
        )
    return resolved


def cut_axes(resolved: Distribution, mesh: Mapping[str, int]) -> frozenset[str]:
    """Returns the varying mesh axes of a distribution's shards."""
    names = [a for a, n in mesh.items() if n > 1]
    dims = mesh_axis_dims(resolved.landing, resolved.dims, drop_single=False)
    if dims is None:
        return frozenset(names if any(d is not None for d in resolved.dims) else ())
    return frozenset(a for a, d in zip(mesh, dims, strict=True) if d is not None)


def _place(landing: Landing, mesh: Mapping[str, int], axis: int) -> jax.Array:
    """Returns this device's coordinate along one axis of a distribution that covers the mesh."""
    names = list(mesh)
    groups = landing.axis_groups()
    if groups is not None:
        own = [names[a] for a in groups[axis]]
        return row_major_index(own, [mesh[a] for a in own])
    assert landing.is_row_major
    below = math.prod(landing.shape[axis + 1 :])
    return row_major_index(names, list(mesh.values())) // below % landing.shape[axis]


def _distribute(x: jax.Array, *, mapper_config: MeshMapperConfig) -> jax.Array:
    mesh = compat.program_mesh("distribute_tensor")
    resolved = resolve_traced_mapper(mapper_config, mesh, x.shape)
    starts: list[Any] = [jnp.int32(0)] * x.ndim
    for axis, dim in enumerate(resolved.dims):
        if dim is not None:
            starts[dim] = _place(resolved.landing, mesh, axis) * resolved.local[dim]
    return jax.lax.dynamic_slice(x, starts, resolved.local) if resolved.local != x.shape else x


def _distribute_transpose(ct: jax.Array, x: jax.Array, *, mapper_config: MeshMapperConfig) -> list[jax.Array]:
    mesh = compat.program_mesh("distribute_tensor")
    aval = compat.linear_operand_aval(x)
    resolved = resolve_traced_mapper(mapper_config, mesh, aval.shape)
    dims = mesh_axis_dims(resolved.landing, resolved.dims, drop_single=False)
    if dims is None:
        return list(_jax.linear_transpose(partial(_distribute, mapper_config=mapper_config), aval)(ct))
    plan = plan_aggregate(resolved.local, [-1 if d is None else d for d in dims], tuple(mesh.values()))
    joined = aggregate_tensor_p.bind(_reshape(ct, plan.before), composer_config=plan.config)
    return [_reshape(joined, plan.after)]


def _reshape(x: jax.Array, shape: Shape | None) -> jax.Array:
    return x if shape is None else jax.lax.reshape(x, shape)


def _distribute_batch(args: tuple[Any], dims: tuple[int], *, mapper_config: MeshMapperConfig) -> tuple[Any, int]:
    (x,), (at,) = args, dims
    rank = x.ndim - 1

    def shift(p: Placement) -> Placement:
        if isinstance(p, PlacementReplicate):
            return p
        dim = p.dim % rank
        return PlacementShard(dim + 1 if dim >= at else dim)

    config = MeshMapperConfig([shift(p) for p in mapper_config.placements], mapper_config.mesh_shape_override)
    return distribute_tensor_p.bind(x, mapper_config=config), at


distribute_tensor_p.def_abstract_eval(_distribute_abstract_eval)
compat.lower_as(distribute_tensor_p, _distribute)
compat.define_linear(distribute_tensor_p, _distribute_transpose)
batching.primitive_batchers[distribute_tensor_p] = _distribute_batch


# --- aggregate_tensor ------------------------------------------------------------------------------------------------


def _aggregate_abstract_eval(x: compat.Aval, *, composer_config: MeshComposerConfig) -> compat.Aval:
    mesh = compat.program_mesh("aggregate_tensor")
    return compat.retype(x, resolve_composer(composer_config, tuple(mesh.values()), x.shape).full, ())


def _aggregate(x: jax.Array, *, composer_config: MeshComposerConfig) -> jax.Array:
    mesh = compat.program_mesh("aggregate_tensor")
    resolved = resolve_composer(composer_config, tuple(mesh.values()), x.shape)
    if x.size == 0:
        # StableHLO cannot gather an empty tensor.
        return jnp.zeros(resolved.full, x.dtype)
    dims = mesh_axis_dims(resolved.landing, resolved.dims, drop_single=True)
    if dims is None:
        for axis in reversed(list(mesh)):
            x = gather(x, axis, 0, tiled=False)
        return _compose(x, resolved)
    for axis, dim in reversed(list(zip(mesh, dims, strict=True))):
        x = first_copy(x, [axis]) if dim is None else gather(x, axis, dim, tiled=True)
    return x


def first_copy(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """Returns the copy at coordinate 0 of each axis, on every device; bit for bit, unlike a sum with zeros."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        words = first_copy(jax.random.key_data(x), axes)
        return _jax.random.wrap_key_data(words, impl=_jax.random.key_impl(x))
    for axis in axes:
        if axis in compat.varying_axes(jax.typeof(x)):
            x = jnp.zeros(x.shape, x.dtype) if x.size == 0 else gather(x, axis, 0, tiled=False)[0]
    return x


def _compose(stacked: jax.Array, resolved: Composition) -> jax.Array:
    """Joins shards, stacked over the mesh axes, that stand at the coordinates of a distribution."""
    index = tuple(jnp.array(c) for c in zip(*resolved.landing.coordinates(), strict=True))
    shards = stacked[index].reshape(resolved.landing.shape + resolved.local)
    for dim in reversed(resolved.dims):
        assert dim is not None
        at = len(shards.shape) - len(resolved.local) - 1
        shards = jnp.moveaxis(shards, at, at + dim)
        shards = jax.lax.collapse(shards, at + dim, at + dim + 2)
    return shards


def _aggregate_transpose(ct: jax.Array, x: jax.Array, *, composer_config: MeshComposerConfig) -> list[jax.Array]:
    mesh = compat.program_mesh("aggregate_tensor")
    aval = compat.linear_operand_aval(x)
    resolved = resolve_composer(composer_config, tuple(mesh.values()), aval.shape)
    dims = mesh_axis_dims(resolved.landing, resolved.dims, drop_single=True)
    if dims is None:
        return list(_jax.linear_transpose(partial(_aggregate, composer_config=composer_config), aval)(ct))
    plan = plan_distribute(resolved.full, [-1 if d is None else d for d in dims], tuple(mesh.values()))
    out = _reshape(distribute_tensor_p.bind(_reshape(ct, plan.before), mapper_config=plan.config), plan.after)
    # Only coordinate 0 of a dropped axis was read.
    return [first_copy_only(out, compat.varying_axes(aval))]


def _aggregate_batch(args: tuple[Any], dims: tuple[int], *, composer_config: MeshComposerConfig) -> tuple[Any, int]:
    (x,), (at,) = args, dims
    mesh = compat.program_mesh("aggregate_tensor")
    rank = x.ndim - 1
    resolved = resolve_composer(composer_config, tuple(mesh.values()), (1,) * rank)
    if resolved.landing.size == 1:
        return aggregate_tensor_p.bind(x, composer_config=composer_config), at
    shifted = [d % rank + (d % rank >= at) for d in composer_config.dims]
    config = MeshComposerConfig(shifted, composer_config.mesh_shape_override)
    return aggregate_tensor_p.bind(x, composer_config=config), at


aggregate_tensor_p.def_abstract_eval(_aggregate_abstract_eval)
compat.lower_as(aggregate_tensor_p, _aggregate)
compat.define_linear(aggregate_tensor_p, _aggregate_transpose)
batching.primitive_batchers[aggregate_tensor_p] = _aggregate_batch

PRIMITIVES = frozenset({distribute_tensor_p, aggregate_tensor_p})
