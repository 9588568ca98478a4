"""Inserts a check before every operation that assumes copies to be equal without proof by a type.

Such operations are aggregates of a lowered program and `mesh_shard`s of a traced one. The pass is applied before a run;
texts never show the checks. A program without such operations stays the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxmesh.dialects.check_copies import EFFECTS, check_copies_p
from jaxmesh.dialects.replication import Claim, Collector
from jaxmesh.dialects.ttir.mesh_shard import assumed_axes, mesh_shard_p
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p
from jaxmesh.jaxprs import compat, source_locations, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.rewrite import at_every_depth, map_sub_jaxprs
from jaxmesh.jaxprs.source_locations import line_of
from jaxmesh.sharding.distribution import equality_claims, resolve_composer


def add_checks(program: Jaxpr, mesh: Mapping[str, int], collector: Collector | None = None) -> Jaxpr:
    """Returns a closed jaxpr of either level with checks of its claims; the same object without claims.

    Args:
      program: the program.
      mesh: axis names and sizes.
      collector: collects the differences; by default they are pending for all.
    """
    return at_every_depth(_Adder(dict(mesh), collector).body)(program)


class _Adder:
    def __init__(self, mesh: dict[str, int], collector: Collector | None) -> None:
        self.mesh, self.collector = mesh, collector
        self.count = 0

    def body(self, jaxpr: Jaxpr, change: Callable[[Jaxpr], Jaxpr]) -> Jaxpr:
        eqns: list[Eqn] = []
        makers: dict[Var, Eqn] = {}
        for eqn in jaxpr.eqns:
            new = self._insert_check(eqn, eqns, makers) if eqn.primitive in (aggregate_tensor_p, mesh_shard_p) else None
            eqns.append(_with_effects(map_sub_jaxprs(eqn, change)) if new is None else new)
            makers.update((v, eqn) for v in eqn.outvars)
        opened = walk.open_jaxpr(jaxpr)
        new = walk.with_eqns(opened, eqns, opened.outvars)
        if new is opened:
            return jaxpr
        effects = frozenset[object]().union(jaxpr.effects, *(e.effects for e in eqns))
        return walk.close_like(jaxpr, new.replace(effects=effects))

    def _insert_check(self, eqn: Eqn, eqns: list[Eqn], makers: Mapping[Var, Eqn]) -> Eqn | None:
        """Appends the check of an equation and returns the equation that reads it; None if types prove its claims."""
        (operand,) = eqn.invars
        axes, limits = claimed_axes(eqn, self.mesh)
        if not axes:
            return None
        value = _before_reshape(eqn, makers)
        aval = value.aval
        made = _describe_maker(makers.get(value)) if isinstance(value, Var) else ""
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
    """Returns the equation with the effects of the checks in its bodies: JAX orders and awaits checks by effects."""
    inside = EFFECTS & frozenset[object]().union(*(j.effects for j in walk.sub_jaxprs(eqn)))
    return eqn if inside <= frozenset(eqn.effects) else eqn.replace(effects=frozenset({*eqn.effects, *inside}))


def _before_reshape(eqn: Eqn, makers: Mapping[Var, Eqn]) -> Atom:
    """Returns the value that an aggregate's operand was before the pass reshaped it."""
    (operand,) = eqn.invars
    maker = makers.get(operand) if isinstance(operand, Var) else None
    line = line_of(eqn)
    if maker is None or maker.primitive.name != "reshape" or not line or line_of(maker) != line:
        return operand
    return maker.invars[0]


def _describe_maker(maker: Eqn | None) -> str:
    """Describes the equation that computes a value."""
    if maker is None:
        return ""
    line = source_locations.source_line(maker)
    return f", made by {maker.primitive.name}{f' ({line})' if line else ''},"


def claimed_axes(eqn: Eqn, mesh: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Returns the axes along which an equation assumes copies to be equal without proof by a type.

    The second result limits the claim to some coordinates of other axes.
    """
    (operand,) = eqn.invars
    if eqn.primitive is mesh_shard_p:
        return assumed_axes(operand.aval, mesh, eqn.params), ()
    joined = resolve_composer(eqn.params["composer_config"], tuple(mesh.values()), operand.aval.shape)
    equal, limits = equality_claims(joined)
    names, varying = list(mesh), compat.varying_axes(operand.aval)
    axes = tuple(names[a] for a in equal if names[a] in varying and mesh[names[a]] > 1)
    return axes, tuple((names[a], n) for a, n in limits)
