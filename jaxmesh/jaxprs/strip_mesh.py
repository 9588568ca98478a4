"""Taking the mesh out of a program's types, or putting another into them.

A traced jaxpr's types and contexts say that all axes of its mesh are manual. Outside a mapped region that is not so,
and on a mesh with devices they name those. Binding a plain equation types it again, so it does not mind; but loops,
branches and calls bring their bodies with them.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.core import ShapedArray
from jax.sharding import AbstractMesh, NamedSharding

from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs

MESH_ONLY = frozenset({"pvary", "pcast", "sharding_constraint"})
"""Primitives that say something of the mesh and leave a full value as it is."""


def plain_eqn(eqn: Eqn) -> Eqn:
    """The equation with the mesh taken out of its parameters and of every body it holds."""
    return _eqn(eqn, None)


def plain_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with the mesh taken out of every type and parameter."""
    return _body(jaxpr, None)


def on_mesh(program: Jaxpr, mesh: AbstractMesh) -> Jaxpr:
    """A program, typed over a mesh of the same axes, typed over `mesh`."""
    return _body(program, compat.manual_mesh(mesh))


def _eqn(eqn: Eqn, mesh: AbstractMesh | None) -> Eqn:
    if mesh is None and eqn.primitive.name in MESH_ONLY:
        return walk.copy_of(eqn)
    if mesh is None and eqn.primitive.name == "shard_map":
        # JAX's own, in the plain rule of a custom function: it brings its mesh with it.
        return eqn
    if any(_of_mesh(v) for v in eqn.params.values()):
        eqn = eqn.replace(params={k: _sharding(v, mesh) if _of_mesh(v) else v for k, v in eqn.params.items()})
    if not any(True for _ in walk.sub_jaxprs(eqn)):
        return eqn
    return map_sub_jaxprs(eqn, lambda j: _body(j, mesh))


def _of_mesh(value: Any) -> bool:
    """A sharding over the manual mesh; a full value has nothing to say there."""
    return isinstance(value, NamedSharding) and bool(value.mesh.abstract_mesh.manual_axes)


def _sharding(value: NamedSharding, mesh: AbstractMesh | None) -> NamedSharding | None:
    return None if mesh is None else NamedSharding(mesh, value.spec)


def _body(jaxpr: Jaxpr, mesh: AbstractMesh | None) -> Jaxpr:
    around = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    body = walk.open_jaxpr(jaxpr)
    swap: dict[Var, Var] = {}

    def var(old: Any) -> Any:
        if isinstance(old, compat.DropVar):
            return old
        if old not in swap:
            swap[old] = walk.fresh_var(_type(old.aval, mesh))
        return swap[old]

    def atom(old: Any) -> Atom:
        if isinstance(old, compat.Literal):
            return compat.Literal(evaluate.untyped(old.val), _type(old.aval, mesh))
        return var(old)

    constvars, invars = [var(v) for v in body.constvars], [var(v) for v in body.invars]
    eqns = [
        _eqn(e, mesh).replace(
            invars=[atom(a) for a in e.invars],
            outvars=[var(v) for v in e.outvars],
            ctx=walk.context_on(e, around),
        )
        for e in body.eqns
    ]
    new = walk.rebuild(body, constvars, invars, eqns, [atom(a) for a in body.outvars])
    consts = [evaluate.untyped(c) for c in walk.constants(jaxpr).values()]
    return walk.close(new, consts) if consts else walk.closed_as(jaxpr, new)


def _type(aval: Any, mesh: AbstractMesh | None) -> Any:
    if not isinstance(aval, ShapedArray):
        return aval
    if mesh is None:
        plain: Any = ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)
        return plain
    known: Any = aval
    return known if known.sharding.mesh.empty else known.update(sharding=known.sharding.update(mesh=mesh))
