"""Divides a TTNN-level program into host work and mapped regions.

Each equation gets a phase: even phases are full-shape work on the host, odd phases run on the devices. A transfer at
the top level lies between two phases and is only a spec. So every such distribute and aggregate is hoisted to the
boundary of its region, and full-shape work stays outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from jaxmesh.dialects.residency import DEVICE, FREE, ON_HOST, Residency, ResidencyMap, has_transfer, of_atom
from jaxmesh.dialects.ttnn.transfers import PRIMITIVES, aggregate_tensor_p, distribute_tensor_p
from jaxmesh.jaxprs import compat, evaluate, remarks, walk
from jaxmesh.jaxprs.compat import Atom, Eqn, Jaxpr, Var
from jaxmesh.jaxprs.control_flow import CUSTOM, LOOPS, REMAT
from jaxmesh.jaxprs.rewrite import inline_calls
from jaxmesh.jaxprs.typed import typed, with_axis_types


@dataclass(slots=True)
class Region:
    """One phase of a program.

    Attributes:
      mapped: True if it runs on the devices.
      eqns: its equations.
      exits: the aggregates at the end of a mapped region.
      reads: the outside values that it reads.
      writes: its values that are read outside.
    """

    mapped: bool
    eqns: list[Eqn] = field(default_factory=list[Eqn])
    exits: list[Eqn] = field(default_factory=list[Eqn])
    reads: tuple[Var, ...] = ()
    writes: tuple[Var, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A program divided into regions.

    Attributes:
      residency: the program, with plain calls inlined, and the residency of every value.
      regions: the regions, in order.
      entries: the distributes, by result; each region that reads such a result performs the distribute at its start.
      free: the equations that depend on no array, by result; every region rematerialises the results it reads.
    """

    residency: ResidencyMap
    regions: tuple[Region, ...]
    entries: Mapping[Var, Eqn]
    free: Mapping[Var, Eqn]

    @property
    def jaxpr(self) -> Jaxpr:
        """The program, with plain calls inlined."""
        return self.residency.program

    @property
    def residencies(self) -> Mapping[Var, Residency]:
        """The residency of each value."""
        return self.residency.values


HOSTED = LOOPS | REMAT | ON_HOST
"""Primitives that can run on the host even if their bodies move tensors; the bodies are then divided into regions.

Custom functions can, too, unless their derivative rules need a mesh around them.
"""


class _Kind(Enum):
    ENTRY, EXIT, FREE, HOST, MAPPED = range(5)


def plan_regions(residency: ResidencyMap) -> Plan:
    """Plans a lowered program; inlines plain calls so that transfers inside them can be hoisted, too."""
    program = walk.as_closed(residency.program)
    inlined = inline_calls(program)
    if inlined is not residency.program:
        residency = residency.with_calls_inlined(inlined)
    body, residencies = walk.open_jaxpr(residency.program), residency.values
    kinds = _kinds(body, residencies)
    entries = {e.outvars[0]: e for e, k in zip(body.eqns, kinds, strict=True) if k is _Kind.ENTRY}
    free = {v: e for e, k in zip(body.eqns, kinds, strict=True) if k is _Kind.FREE for v in e.outvars}
    _note(body, kinds)
    regions, ready = _phases(body, kinds, residencies)
    results = [a for a in body.outvars if isinstance(a, Var)]
    _pass_through(regions, {v: ready[v] for v in results if v in entries})
    ordered = tuple(regions[p] for p in sorted(regions))
    _connect(ordered, results, entries, free)
    return Plan(residency, ordered, entries, free)


def _note(body: Jaxpr, kinds: Sequence[_Kind]) -> None:
    log = remarks.COLLECTED.get()
    rule = "a transfer between host work and device work is a spec of the region's shard_map, never a copy in it"
    for eqn, kind in zip(body.eqns, kinds, strict=True):
        if log is not None and kind is _Kind.ENTRY:
            log.add(eqn.outvars[0], "hoisted", "to the start of the regions that read it", rule)
        elif log is not None and kind is _Kind.EXIT:
            log.add(eqn.outvars[0], "hoisted", "to the end of the region that makes its operand", rule)


def _kinds(body: Jaxpr, residencies: Mapping[Var, Residency]) -> list[_Kind]:
    """Returns the kind of every equation.

    An equation that depends on no array is rematerialised at each use, unless it reads a result that
    is not: a loop over shards may carry a table along, which has the residency of the loop.
    """
    anywhere: set[Var] = {*body.constvars, *body.invars}
    kinds: list[_Kind] = []
    moving = walk.Memo[bool]()
    for eqn in body.eqns:
        kind = _kind(eqn, residencies, moving)
        if kind is _Kind.FREE:
            if all(a in anywhere for a in eqn.invars if isinstance(a, Var)):
                anywhere.update(eqn.outvars)
            else:
                kind = _Kind.HOST
        kinds.append(kind)
    return kinds


def _kind(eqn: Eqn, residencies: Mapping[Var, Residency], moving: walk.Memo[bool]) -> _Kind:
    if eqn.primitive is distribute_tensor_p:
        return _Kind.ENTRY
    if eqn.primitive is aggregate_tensor_p:
        return _Kind.EXIT
    outs = [residencies[v] for v in eqn.outvars]
    if DEVICE in outs or any(of_atom(a, residencies) is DEVICE for a in eqn.invars):
        return _Kind.MAPPED
    if any(moving.get(j, lambda j=j: has_transfer(j)) for j in walk.sub_jaxprs(eqn)):
        return _Kind.HOST if _on_host(eqn) else _Kind.MAPPED
    if _rules_move(eqn):
        return _Kind.MAPPED
    if eqn.effects and not walk.is_ordered(eqn):
        # The equation names a mesh axis, in a body whose results do not depend on the axis.
        return _Kind.MAPPED
    return _Kind.FREE if outs and all(p is FREE for p in outs) and not eqn.effects else _Kind.HOST


def _on_host(eqn: Eqn) -> bool:
    return eqn.primitive.name in HOSTED or (eqn.primitive.name in CUSTOM and _rules_run_outside(eqn))


def _phases(
    body: Jaxpr, kinds: Sequence[_Kind], residencies: Mapping[Var, Residency]
) -> tuple[dict[int, Region], dict[Var, int]]:
    """Assigns every equation to the first phase of its kind after its operands are available."""
    phase: dict[Var, int] = dict.fromkeys([*body.invars, *body.constvars], 0)
    regions: dict[int, Region] = {}
    done = 0
    for eqn, kind in zip(body.eqns, kinds, strict=True):
        ready = max((phase[a] for a in eqn.invars if isinstance(a, Var)), default=0)
        in_order = walk.is_ordered(eqn)
        ready = max(ready, done) if in_order else ready
        if kind in (_Kind.ENTRY, _Kind.FREE):
            phase.update((v, ready) for v in eqn.outvars)
            continue
        mapped = kind is not _Kind.HOST
        at = ready if ready % 2 == int(mapped) else ready + 1
        # Effects (callbacks, references) stay in program order.
        done = at if in_order else done
        region = regions.setdefault(at, Region(mapped))
        (region.exits if kind is _Kind.EXIT else region.eqns).append(eqn)
        # The host can read the results of a mapped region one phase later.
        phase.update((v, at + int(mapped and residencies[v] is not DEVICE)) for v in eqn.outvars)
    return regions, phase


def _pass_through(regions: dict[int, Region], results: Mapping[Var, int]) -> None:
    """Assigns distributed values that are results of the program to the next mapped region, which transfers them."""
    writes: dict[int, list[Var]] = {}
    for var, ready in results.items():
        writes.setdefault(ready if ready % 2 else ready + 1, []).append(var)
    for at, written in writes.items():
        regions.setdefault(at, Region(mapped=True)).writes = tuple(written)


def _connect(
    regions: Sequence[Region], results: Iterable[Var], entries: Mapping[Var, Eqn], free: Mapping[Var, Eqn]
) -> None:
    """Sets what each region reads and writes."""
    wanted: set[Var] = set(results)
    for region in regions:
        region.eqns = with_free(region.eqns, [e.invars[0] for e in region.exits], free)
        written = {v for e in region.eqns for v in e.outvars}
        atoms = [a for e in (*region.eqns, *region.exits) for a in e.invars]
        reads = dict.fromkeys(a for a in (*atoms, *region.writes) if isinstance(a, Var) and a not in written)
        region.reads = tuple(reads)
        for var in reads:
            source = entries[var].invars[0] if var in entries else var
            wanted |= {source} if isinstance(source, Var) else set()
    for region in regions:
        written = [v for e in region.eqns for v in e.outvars if v in wanted and v not in free]
        region.writes = tuple(dict.fromkeys([*region.writes, *written]))


def with_free(eqns: Sequence[Eqn], results: Iterable[Atom], free: Mapping[Var, Eqn]) -> list[Eqn]:
    """Inserts before each equation the free equations whose results it reads, unless they precede it already."""
    done: dict[int, Eqn] = {}

    def need(atoms: Iterable[Atom]) -> None:
        stack: list[tuple[Eqn, bool]] = [(free[a], False) for a in atoms if isinstance(a, Var) and a in free]
        while stack:
            eqn, ready = stack.pop()
            if id(eqn) in done:
                continue
            if ready:
                done[id(eqn)] = eqn
                continue
            stack.append((eqn, True))
            stack += [(free[a], False) for a in eqn.invars if isinstance(a, Var) and a in free]

    for eqn in eqns:
        need(eqn.invars)
        done[id(eqn)] = eqn
    need(results)
    return list(done.values())


# --- derivative rules that move tensors -------------------------------------------------------------------------------

# A custom function whose rules move tensors, although its body does not, runs inside of a mapped region: outside, its
# rules would be traced without a mesh. They are Python functions, so they are traced once to find out.


def _rules_move(eqn: Eqn) -> bool:
    """Returns True if an equation is, or contains, a custom function whose rules move tensors."""
    inner = [e for j in walk.sub_jaxprs(eqn) for e in walk.all_eqns(j)]
    return any(_moves(e) for e in [eqn, *inner] if e.primitive.name in CUSTOM)


def _moves(eqn: Eqn) -> bool:
    derivative = partial(_derivative, eqn)
    try:
        # In a region over the mesh of the equation.
        mesh = walk.mesh_of(eqn)
        mesh = with_axis_types(mesh, AxisType.Auto)
        mapped: Any = compat.shard_map(derivative, mesh=mesh, in_specs=(), out_specs=PartitionSpec(), check_vma=True)
        traced = typed.make_jaxpr(mapped)()
    except Exception:
        # Rules that cannot be differentiated this way, e.g. for integer results, are judged elsewhere.
        return False
    return any(e.primitive in PRIMITIVES for e in walk.all_eqns(traced))


def _rules_run_outside(eqn: Eqn) -> bool:
    """Returns True if the rules of a custom function can be traced without a mesh; they may call `shard_map`."""
    try:
        typed.make_jaxpr(lambda: _derivative(eqn))()
    except Exception:
        return False
    return True


def _derivative(eqn: Eqn) -> list[Any]:
    def primal(*xs: object) -> list[Any]:
        return evaluate.bind(eqn, xs)

    api: Any = jax
    outs, pullback = api.vjp(primal, *[jnp.zeros(v.aval.shape, v.aval.dtype) for v in eqn.invars])
    cotangents: Any = pullback([jnp.ones_like(y) for y in outs])
    return [ct for ct in cotangents if jnp.issubdtype(ct.dtype, jnp.inexact)]
