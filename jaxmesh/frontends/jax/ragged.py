"""Writes `ragged_all_to_all` as an all_gather and a gather of rows, since TTIR and XLA for CPUs lack such an op."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxmesh.frontends.jax.shard_map import is_region
from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import lax
from jaxmesh.sharding.mesh import AnyMesh

_NAME = "ragged_all_to_all"


@dataclass(frozen=True, slots=True)
class _Manual:
    """A mapped region: its mesh, the axes that have names in it, and whether its types say what varies."""

    mesh: AnyMesh
    manual: AbstractSet[str]
    typed: bool


def has_ragged_exchanges(program: Jaxpr) -> bool:
    """Returns True if a program has a `ragged_all_to_all` at any depth."""
    return any(e.primitive.name == _NAME for e in walk.all_eqns(program))


def without_ragged_exchanges(program: Jaxpr, mesh: AnyMesh, manual: Collection[str] = ()) -> Jaxpr:
    """Replaces each `ragged_all_to_all` of a closed jaxpr, at any depth, by a call of what it computes.

    Outside of `shard_map`s the `manual` axes have names, and types say what varies over them.
    """
    if not has_ragged_exchanges(program):
        return program
    return _expand(program, region=_Manual(mesh, frozenset(manual), typed=True))


def _expand(jaxpr: Jaxpr, *, region: _Manual) -> Jaxpr:
    body = walk.open_jaxpr(jaxpr)
    return walk.with_eqns(jaxpr, [_without(eqn, region) for eqn in body.eqns], body.outvars)


def _without(eqn: Eqn, region: _Manual) -> Eqn:
    if eqn.primitive.name == _NAME:
        return _call(eqn, region)
    params = eqn.params
    if is_region(eqn):
        region = _Manual(params["mesh"], region.manual | params["newly_manual_axes"], params["check_vma"])
    return map_sub_jaxprs(eqn, partial(_expand, region=region))


def _call(eqn: Eqn, region: _Manual) -> Eqn:
    """Returns a call of the exchange in JAX, traced for the types of the operands."""
    exchange = typed.jit(partial(_exchange, names=eqn.params["axis_name"], groups=eqn.params["axis_index_groups"]))
    sizes: object = dict(region.mesh.shape)
    given: list[jax.ShapeDtypeStruct] = []
    specs: list[PartitionSpec] = []
    for atom in (*eqn.invars, *eqn.outvars):
        (rows, *rest), axes = atom.aval.shape, tuple(sorted(compat.varying_axes(atom.aval)))
        specs.append(PartitionSpec(axes) if axes else PartitionSpec())
        given.append(jax.ShapeDtypeStruct((rows * math.prod(sizes[a] for a in axes), *rest), atom.aval.dtype))
    mapped = typed.shard_map(
        exchange,
        mesh=region.mesh,
        in_specs=tuple(specs[:-1]),
        out_specs=specs[-1],
        axis_names=set(region.manual),
        check_vma=region.typed,
    )
    with compat.without_mesh(), evaluate.at_source_of(eqn):
        outer = typed.make_jaxpr(mapped)(*given[:-1])
    (traced,) = [e for e in outer.eqns if is_region(e)]
    inner = traced.params["jaxpr"]
    (call,) = [e for e in inner.eqns if walk.sub_jaxprs(e)]
    swap = dict(zip(inner.invars, eqn.invars, strict=True))
    return call.replace(invars=walk.substitute(call.invars, swap), outvars=eqn.outvars, source_info=eqn.source_info)


def _exchange(
    x: jax.Array,
    out: jax.Array,
    starts: jax.Array,
    sent: jax.Array,
    places: jax.Array,
    received: jax.Array,
    *,
    names: str | tuple[str, ...],
    groups: Sequence[Sequence[int]] | None,
) -> jax.Array:
    """Computes `jax.lax.ragged_all_to_all`; where slices overlap in the result, the last one stays."""
    del sent  # `received` on the other devices has the same numbers
    starts, places = (lax.all_to_all(t, names, 0, 0, tiled=True, axis_index_groups=groups) for t in (starts, places))
    shards = lax.all_gather(x, names, axis_index_groups=groups)
    count, per_device = starts.shape[0], starts.shape[0] // shards.shape[0]
    rows, numbers = (jnp.arange(n, dtype=starts.dtype) for n in (out.shape[0], count))
    hit = (rows[:, None] >= places) & (rows[:, None] < places + received)
    last = jnp.max(jnp.where(hit, numbers, -1), axis=1)
    # Of each slice, the row of all shards that its first row in the result would be.
    first = starts - places + lax.div(numbers, jnp.full_like(numbers, per_device)) * x.shape[0]
    row = rows + jnp.take(first, last, mode="clip")
    taken = jnp.take(shards.reshape(-1, *x.shape[1:]), row, axis=0, mode="clip")
    return jnp.where((last >= 0).reshape(-1, *[1] * (x.ndim - 1)), taken, out)
