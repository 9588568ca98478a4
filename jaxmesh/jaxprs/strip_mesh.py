"""Removes the mesh from a program's types, or replaces it.

The types and contexts of a traced jaxpr state that all axes of its mesh are manual, which does not hold outside a
mapped region, and name the devices of the mesh. Binding a plain equation infers its types anew; the bodies of loops,
branches and calls keep theirs, so they are rewritten here.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.core import ShapedArray
from jax.sharding import AbstractMesh, NamedSharding

from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.primitives import RETYPES
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs

MESH_ONLY = RETYPES | {"sharding_constraint"}
"""Primitives that change the type of a value over the mesh, and do nothing to a full value."""


def strip_eqn(eqn: Eqn) -> Eqn:
    """Removes the mesh from an equation's parameters and bodies."""
    return _eqn(eqn, None)


def strip_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """Removes the mesh from every type and parameter of a jaxpr."""
    return _body(jaxpr, None)


def move_to_mesh(program: Jaxpr, mesh: AbstractMesh) -> Jaxpr:
    """Types a program over `mesh`, which has the same axes as the mesh that it is typed over."""
    return _body(program, compat.manual_mesh(mesh))


def _eqn(eqn: Eqn, mesh: AbstractMesh | None) -> Eqn:
    if mesh is None and eqn.primitive.name in MESH_ONLY:
        return walk.copy_eqn(eqn)
    if mesh is None and eqn.primitive.name == "shard_map":
        # JAX's shard_map, in the rule of a custom function, has its own mesh.
        return eqn
    if any(_of_mesh(v) for v in eqn.params.values()):
        eqn = eqn.replace(params={k: _sharding(v, mesh) if _of_mesh(v) else v for k, v in eqn.params.items()})
    if not any(True for _ in walk.sub_jaxprs(eqn)):
        return eqn
    return map_sub_jaxprs(eqn, lambda j: _body(j, mesh))


def _of_mesh(value: Any) -> bool:
    """Returns True for a sharding over the manual mesh, which is meaningless for a full value."""
    return isinstance(value, NamedSharding) and bool(value.mesh.abstract_mesh.manual_axes)


def _sharding(value: NamedSharding, mesh: AbstractMesh | None) -> NamedSharding | None:
    return None if mesh is None else NamedSharding(mesh, value.spec)


def _body(jaxpr: Jaxpr, mesh: AbstractMesh | None) -> Jaxpr:
    context = jax.sharding.get_abstract_mesh() if mesh is None else mesh
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
            return compat.Literal(evaluate.strip_type(old.val), _type(old.aval, mesh))
        return var(old)

    constvars, invars = [var(v) for v in body.constvars], [var(v) for v in body.invars]
    eqns = [
        _eqn(e, mesh).replace(
            invars=[atom(a) for a in e.invars],
            outvars=[var(v) for v in e.outvars],
            ctx=walk.context_on(e, context),
        )
        for e in body.eqns
    ]
    new = walk.rebuild(body, constvars, invars, eqns, [atom(a) for a in body.outvars])
    consts = [evaluate.strip_type(c) for c in walk.constants(jaxpr).values()]
    return walk.close(new, consts) if consts else walk.close_like(jaxpr, new)


def _type(aval: Any, mesh: AbstractMesh | None) -> Any:
    if not isinstance(aval, ShapedArray):
        return aval
    if mesh is None:
        plain: Any = ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)
        return plain
    known: Any = aval
    return known if known.sharding.mesh.empty else known.update(sharding=known.sharding.update(mesh=mesh))
