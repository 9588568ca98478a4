"""Cancels transfers that undo each other.

A `distribute_tensor` of the result of an `aggregate_tensor` is replaced by the operand of the aggregate, if the two
configs agree and the types prove the operand replicated along every axis that the aggregate drops. Reshapes that the
lowering inserted between them are ignored. A program that drops unequal copies keeps both transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from jaxmesh.dialects.residency import Residency
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.jaxprs import compat, remarks, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.rewrite import at_every_depth, map_sub_jaxprs, with_operands
from jaxmesh.sharding.distribution import Factors, factors, mesh_axis_dims, resolve_composer, resolve_mapper, rows_of


def cancel_transfers(program: Jaxpr, inputs: Sequence[Residency], mesh: Mapping[str, int]) -> Jaxpr:
    """Returns the program with inverse transfers cancelled at every depth."""
    return at_every_depth(partial(_body, mesh=mesh))(program)


def _body(jaxpr: Jaxpr, change: Callable[[Jaxpr], Jaxpr], mesh: Mapping[str, int]) -> Jaxpr:
    aggregates: dict[Var, Eqn] = {}
    bases: dict[Var, Atom] = {}
    swap: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    for old in jaxpr.eqns:
        eqn = with_operands(old, swap) if swap else old
        same = _find_equal(eqn, aggregates, bases, mesh)
        if same is None:
            eqn = map_sub_jaxprs(eqn, change)
        elif same.aval.shape == eqn.outvars[0].aval.shape:
            _note(eqn, same)
            swap[eqn.outvars[0]] = same
            continue
        else:
            _note(eqn, same)
            eqn = walk.reshape_eqn(same, eqn.outvars[0].aval.shape, eqn)
            swap[old.outvars[0]] = eqn.outvars[0]
        if eqn.primitive is aggregate_tensor_p:
            aggregates[eqn.outvars[0]] = eqn
        elif _is_reshape(eqn):
            bases[eqn.outvars[0]] = _base(eqn.invars[0], bases)
        eqns.append(eqn)
    outvars = walk.substitute(jaxpr.outvars, swap)
    return walk.with_eqns(jaxpr, _drop_unused(eqns, outvars) if swap else eqns, outvars)


def _note(eqn: Eqn, same: Atom) -> None:
    log = remarks.COLLECTED.get()
    if log is not None and eqn.primitive is distribute_tensor_p:
        text = "distribute_tensor of what aggregate_tensor put together: the shards before are the shards after"
        rule = "a distribute undoes an aggregate of the same config whose dropped copies are proven equal"
        log.remove(eqn, same, text, rule)


def _note_unused(eqn: Eqn) -> None:
    log = remarks.COLLECTED.get()
    if log is not None and not _is_reshape(eqn):
        text = f"nothing reads the result of this {eqn.primitive.name} any more"
        log.remove(eqn, eqn.invars[0], text, "a transfer whose result is not read is not made")


def _find_equal(
    eqn: Eqn, aggregates: Mapping[Var, Eqn], bases: Mapping[Var, Atom], mesh: Mapping[str, int]
) -> Atom | None:
    """Returns the earlier value that an equation recomputes, up to a reshape, or None.

    `aggregates` are the aggregates by result, `bases` the values before all reshapes by the result of the last.
    """
    if _is_reshape(eqn):
        base = _base(eqn.invars[0], bases)
        return base if base.aval.shape == eqn.outvars[0].aval.shape and base is not eqn.invars[0] else None
    if eqn.primitive is not distribute_tensor_p:
        return None
    base = _base(eqn.invars[0], bases)
    source = aggregates.get(base) if isinstance(base, Var) else None
    if source is None:
        return None
    if not _is_inverse(source, eqn, mesh):
        return None
    base = _base(source.invars[0], bases)
    return base if base.aval.shape == eqn.outvars[0].aval.shape else source.invars[0]


def _is_reshape(eqn: Eqn) -> bool:
    return eqn.primitive.name == "reshape" and eqn.params["dimensions"] is None and len(eqn.invars) == 1


def _base(atom: Atom, bases: Mapping[Var, Atom]) -> Atom:
    """Returns the value before all reshapes."""
    return bases.get(atom, atom) if isinstance(atom, Var) else atom


def _is_inverse(aggregate: Eqn, distribute: Eqn, mesh: Mapping[str, int]) -> bool:
    """Returns True if the distribute returns to every device the shard that the aggregate read."""
    sizes = tuple(mesh.values())
    shard = aggregate.invars[0].aval
    joined = resolve_composer(aggregate.params["composer_config"], sizes, shard.shape)
    cut = resolve_mapper(distribute.params["mapper_config"], sizes, distribute.invars[0].aval.shape)
    up = mesh_axis_dims(joined.landing, joined.dims, drop_single=True)
    down = mesh_axis_dims(cut.landing, cut.dims, drop_single=False)
    if up is None or down is None or _product(up, joined.local) != _product(down, cut.local):
        return False
    # A distribute's result varies over the axes it cuts alone. Those are the axes joined, so with equal types the
    # operand does not vary over the dropped ones.
    return compat.varying_axes(shard) == compat.varying_axes(distribute.outvars[0].aval)


def _product(dims: Sequence[int | None], local: Sequence[int]) -> Factors:
    return factors(rows_of(dims, len(local)), local)


def _drop_unused(eqns: list[Eqn], outvars: list[Atom]) -> list[Eqn]:
    """Returns the equations without the transfers and reshapes whose results nothing reads."""
    used: set[Var] = {v for v in outvars if isinstance(v, Var)}
    live: list[Eqn] = []
    for eqn in reversed(eqns):
        removable = eqn.primitive in (aggregate_tensor_p, distribute_tensor_p) or _is_reshape(eqn)
        if removable and eqn.outvars[0] not in used:
            _note_unused(eqn)
            continue
        used.update(v for v in eqn.invars if isinstance(v, Var))
        live.append(eqn)
    return live[::-1]
