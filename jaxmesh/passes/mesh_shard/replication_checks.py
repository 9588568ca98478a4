"""Puts a check before everything that takes copies to be equal which no type proves.

That is an aggregate of a lowered program, or a `mesh_shard` of a traced one. It is applied to a program when it is
about to run; texts never show it. A program that claims nothing stays the same object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jaxmesh.dialects.check_copies import EFFECTS, check_copies_p
from jaxmesh.dialects.replication import Claim, Collector
from jaxmesh.dialects.ttir.mesh_shard import assumed_axes, mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p
from jaxmesh.jaxprs import compat, source_locations, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.rewrite import map_sub_jaxprs
from jaxmesh.sharding.distribution import claimed_equal, resolve_composer

_TEXT_LINE = re.compile(r"line [0-9]+: [\w.]+")


def add_checks(program: Jaxpr, mesh: Mapping[str, int], collector: Collector | None = None) -> Jaxpr:
    """A closed jaxpr of either level with its claims checked; the same object when it makes none.

    Args:
      program: the program.
      mesh: axis names and sizes.
      collector: takes what is found; by default it is pending for all.
    """
    return _Adder(dict(mesh), collector).body(program)


class _Adder:
    def __init__(self, mesh: dict[str, int], collector: Collector | None) -> None:
        self.mesh, self.collector = mesh, collector
        self.count = 0
        self.memo = walk.Memo[Jaxpr]()

    def body(self, jaxpr: Jaxpr) -> Jaxpr:
        return self.memo.get(jaxpr, lambda: self._body(jaxpr))

    def _body(self, jaxpr: Jaxpr) -> Jaxpr:
        eqns: list[Eqn] = []
        made_by: dict[Var, Eqn] = {}
        for eqn in jaxpr.eqns:
            new = self._checked(eqn, eqns, made_by) if eqn.primitive in (aggregate_tensor_p, mesh_shard_p) else None
            eqns.append(_with_effects(map_sub_jaxprs(eqn, self.body)) if new is None else new)
            made_by.update((v, eqn) for v in eqn.outvars)
        if len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return jaxpr
        effects = frozenset[object]().union(jaxpr.effects, *(e.effects for e in eqns))
        opened = walk.with_eqns(walk.open_jaxpr(jaxpr), eqns, jaxpr.outvars).replace(effects=effects)
        return walk.closed_as(jaxpr, opened)

    def _checked(self, eqn: Eqn, eqns: list[Eqn], made_by: Mapping[Var, Eqn]) -> Eqn | None:
        """The equation behind its check, which is appended; None where types prove all that it takes as equal."""
        (operand,) = eqn.invars
        axes, limits = claimed_axes(eqn, self.mesh)
        if not axes:
            return None
        told = _told(eqn, made_by)
        aval: Any = told.aval
        made = _made(made_by.get(told)) if isinstance(told, Var) else ""
        claim = Claim(
            self.count,
            line_of(eqn) or f"{eqn.primitive.name} of unknown source",
            f"{compat.describe(aval)}{made}",
            self.mesh,
            axes,
            limits,
            aval.shape,
            self.collector,
        )
        self.count += 1
        params = {"claim": claim, "mapped": (), "tangent": False}
        eqns.append(walk.new_eqn(check_copies_p, [operand], params, eqn))
        return eqn.replace(invars=[eqns[-1].outvars[0]])


def _with_effects(eqn: Eqn) -> Eqn:
    """The equation with the effects of the checks in its bodies: by them JAX knows what it has to wait for."""
    inside = EFFECTS & frozenset[object]().union(*(j.effects for j in walk.sub_jaxprs(eqn)))
    return eqn if inside <= frozenset(eqn.effects) else eqn.replace(effects=frozenset({*eqn.effects, *inside}))


def _told(eqn: Eqn, made_by: Mapping[Var, Eqn]) -> Atom:
    """The value that an aggregate's operand is in the program, before the pass gave it a shape that can be said."""
    (operand,) = eqn.invars
    maker = made_by.get(operand) if isinstance(operand, Var) else None
    line = line_of(eqn)
    if maker is None or maker.primitive.name != "reshape" or not line or line_of(maker) != line:
        return operand
    return maker.invars[0]


def _made(maker: Eqn | None) -> str:
    """What made a value."""
    if maker is None:
        return ""
    line = source_locations.source_line(maker)
    return f", made by {maker.primitive.name}{f' ({line})' if line else ''},"


def claimed_axes(eqn: Eqn, mesh: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """The axes along which an equation takes copies to be equal that no type proves so, and of how many coordinates
    of other axes."""
    (operand,) = eqn.invars
    if eqn.primitive is mesh_shard_p:
        return assumed_axes(operand.aval, mesh, eqn.params), ()
    joined = resolve_composer(eqn.params["composer_config"], tuple(mesh.values()), operand.aval.shape)
    equal, limits = claimed_equal(joined)
    names, varying = list(mesh), compat.varying_axes(operand.aval)
    axes = tuple(names[a] for a in equal if names[a] in varying and mesh[names[a]] > 1)
    return axes, tuple((names[a], n) for a, n in limits)


def line_of(eqn: Eqn) -> str:
    """The line of the text of an imported program, else of the source; empty if neither is known."""
    said = _TEXT_LINE.search(str(eqn.source_info.name_stack))
    return said.group() if said else source_locations.source_line(eqn)
