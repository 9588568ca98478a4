"""Removes the mesh from a program's types, or replaces it; splices equations into a typed trace, unchanged.

The types and contexts of a traced jaxpr state that all axes of its mesh are manual, which does not hold outside a
mapped region, and name the devices of the mesh. Binding a plain equation infers its types anew; the bodies of loops,
branches and calls keep theirs, so they are rewritten here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.core import ShapedArray
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxmesh.jaxprs import compat, evaluate, walk
from jaxmesh.jaxprs.compat import Atom, Aval, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.emit import emit_eqn
from jaxmesh.jaxprs.evaluate import read, splice_p
from jaxmesh.jaxprs.primitives import RETYPES
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs
from jaxmesh.jaxprs.typed import with_axis_types
from jaxmesh.jaxprs.user_frames import nearest

MESH_ONLY = RETYPES | {"sharding_constraint"}
"""Primitives that change the type of a value over the mesh, and do nothing to a full value."""


def strip_eqn(eqn: Eqn) -> Eqn:
    """Removes the mesh from an equation's parameters and bodies."""
    return Mover(None).eqn(eqn)


def strip_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """Removes the mesh from every type and parameter of a jaxpr."""
    return Mover(None).jaxpr(jaxpr)


def move_to_mesh(program: Jaxpr, mesh: AbstractMesh) -> Jaxpr:
    """Moves a program to `mesh`, which has the same axes as the mesh of the program's types."""
    return Mover(with_axis_types(mesh, AxisType.Manual)).jaxpr(program)


class Mover:
    """Moves equations to a mesh whose axes are manual, or, with None, off their mesh.

    A program has few types and contexts, so each is moved once.
    """

    def __init__(self, mesh: AbstractMesh | None) -> None:
        self._mesh = mesh
        self._context = jax.sharding.get_abstract_mesh() if mesh is None else mesh
        # A moved object is kept beside its outcome, so that its id is not used again.
        self._types: dict[int, tuple[Any, Any]] = {}
        self._contexts: dict[int, tuple[Any, Any]] = {}

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        """Returns a jaxpr with other types, parameters and contexts."""
        body = walk.open_jaxpr(jaxpr)
        swap: dict[Var, Atom] = {v: walk.fresh_var(self.type(v.aval)) for v in (*body.constvars, *body.invars)}
        inputs: list[Any] = list(swap.values())
        constvars, invars = inputs[: len(body.constvars)], inputs[len(body.constvars) :]
        eqns = self.eqns(body.eqns, swap)
        new = walk.rebuild(body, constvars, invars, eqns, [self._atom(a, swap) for a in body.outvars])
        consts = [evaluate.strip_type(c) for c in walk.constants(jaxpr).values()]
        return walk.close(new, consts) if consts else walk.close_like(jaxpr, new)

    def eqns(self, eqns: Iterable[Eqn], swap: dict[Var, Atom], caller: Any = None) -> list[Eqn]:
        """Returns moved equations.

        Args:
          eqns: equations in the order of their program.
          swap: what stands for their variables; those without an entry get one.
          caller: the source of the equation in whose place they are.
        """
        moved: list[Eqn] = []
        for eqn in eqns:
            new = self.eqn(eqn)
            invars = [self._atom(a, swap) for a in eqn.invars]
            outvars = [swap.get(v) or swap.setdefault(v, walk.fresh_var(self.type(v.aval))) for v in eqn.outvars]
            where = new.source_info
            if caller is not None:
                stack = caller.name_stack + where.name_stack
                where = where.replace(name_stack=stack, traceback=nearest(where.traceback, caller.traceback))
            moved.append(new.replace(invars=invars, outvars=outvars, ctx=self._moved_context(eqn), source_info=where))
        return moved

    def eqn(self, eqn: Eqn) -> Eqn:
        """Returns an equation with other parameters and bodies, and its own variables and context."""
        mesh = self._mesh
        if mesh is None and eqn.primitive.name in MESH_ONLY:
            return walk.copy_eqn(eqn)
        if mesh is None and eqn.primitive.name == "shard_map":
            # JAX's shard_map, in the rule of a custom function, has its own mesh.
            return eqn
        if any(map(_of_mesh, eqn.params.values())):
            eqn = eqn.replace(params={k: self._sharding(v) if _of_mesh(v) else v for k, v in eqn.params.items()})
        return map_sub_jaxprs(eqn, self.jaxpr)

    def type(self, aval: object) -> Any:
        """Returns the type of a variable over the mesh."""
        known = self._types.get(id(aval))
        if known is None:
            known = self._types[id(aval)] = aval, self._moved_type(aval)
        return known[1]

    def _moved_type(self, aval: Aval) -> Aval:
        if not isinstance(aval, ShapedArray):
            return aval
        if self._mesh is None:
            return _plain_type(aval)
        known: Any = aval
        if known.sharding.mesh.manual_axes:
            return known.update(sharding=known.sharding.update(mesh=self._mesh))
        return known.update(sharding=NamedSharding(self._mesh, PartitionSpec(*[None] * len(known.shape))))

    def _moved_context(self, eqn: Eqn) -> object:
        known = self._contexts.get(id(eqn.ctx))
        if known is None:
            known = self._contexts[id(eqn.ctx)] = eqn.ctx, walk.context_on(eqn, self._context)
        return known[1]

    def _atom(self, atom: Atom, swap: Mapping[Var, Atom]) -> Atom:
        if isinstance(atom, compat.Literal):
            # The type of a number names no mesh.
            named = isinstance(atom.aval, ShapedArray) and not atom.aval.sharding.mesh.empty
            return compat.Literal(evaluate.strip_type(atom.val), _plain_type(atom.aval)) if named else atom
        return swap[atom]

    def _sharding(self, value: NamedSharding) -> NamedSharding | None:
        return None if self._mesh is None else NamedSharding(self._mesh, value.spec)


def _plain_type(aval: Aval) -> Aval:
    return ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _of_mesh(value: object) -> bool:
    """Returns True for a sharding over the manual mesh, which is meaningless for a full value."""
    return isinstance(value, NamedSharding) and bool(value.mesh.abstract_mesh.manual_axes)


# --- splicing ---------------------------------------------------------------------------------------------------------


def splice(body: Jaxpr, operands: Sequence[jax.Array]) -> list[Any] | None:
    """Adds the equations of an open jaxpr to a typed trace, without a call of JAX for each of them.

    They stand for one equation until `evaluate.expand` writes them out; the trace must not be transformed before that.

    Args:
      body: its types are those that JAX would infer for the operands, but for the mesh.
      operands: arrays and tracers.

    Returns:
      The results; None if nothing is being traced.
    """
    mover = Mover(jax.sharding.get_abstract_mesh())
    inputs = dict(zip(body.invars, operands, strict=True))
    made = [v for v in dict.fromkeys(a for a in body.outvars if isinstance(a, Var)) if v not in inputs]
    params = {"body": body, "made": made, "mover": mover}
    values = emit_eqn(splice_p, operands, [mover.type(v.aval) for v in made], params, body.effects)
    if values is None:
        return None
    env = inputs | dict(zip(made, values, strict=True))
    return [read(env, a) for a in body.outvars]
