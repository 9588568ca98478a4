"""Explains a lowered program: writes a row for every value and equation, with the moves of the program's text.

The module decides nothing: it runs the passes again and collects their remarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jax.tree_util import PyTreeDef

from jaxmesh.analysis.account import Move, OpMoves, entries, executed as movement
from jaxmesh.analysis.account.memory import padded_arguments, padded_values
from jaxmesh.analysis.account.moves import distribute
from jaxmesh.analysis.explain.attribute import Attribution
from jaxmesh.analysis.explain.explanation import Explanation
from jaxmesh.analysis.explain.records import Row, Value
from jaxmesh.dialects.imported_op import decompose
from jaxmesh.dialects.program import Program
from jaxmesh.dialects.residency import DEVICE, FREE, HOST, Residency, ResidencyMap, has_transfer, of_atom
from jaxmesh.dialects.signature import Boundary
from jaxmesh.dialects.ttnn.transfers import aggregate_tensor_p, distribute_tensor_p
from jaxmesh.errors import JaxmeshError
from jaxmesh.frontends.stablehlo.decisions import Decision
from jaxmesh.jaxprs import compat, control_flow, remarks, walk
from jaxmesh.jaxprs.compat import Atom, Aval, Eqn, Jaxpr, Literal, Var
from jaxmesh.jaxprs.control_flow import Call, Cond, Scan, While
from jaxmesh.jaxprs.remarks import Remark, Remarks, Removed
from jaxmesh.jaxprs.source_locations import line_of, named_scopes, origin
from jaxmesh.jaxprs.trees import show_paths
from jaxmesh.jaxprs.walk import variable_names
from jaxmesh.passes.lowering import lower
from jaxmesh.passes.mesh_shard.replication_checks import claimed_axes
from jaxmesh.runtime.regions import plan_regions

Env = Mapping[Var, Residency]


def explain(
    boundary: Boundary,
    lowered: ResidencyMap,
    out_tree: PyTreeDef,
    flat: Callable[[Callable[[Eqn], str]], Program],
    deployed: Callable[[], Program],
    traced: Jaxpr | None,
    assumptions: Sequence[str] = (),
    decisions: Sequence[Decision] = (),
) -> Explanation:
    """Explains a lowered program; runs the pass again on `traced`, if given, to collect its remarks.

    `flat` returns the program that is printed, each op with the mark of its equation as its line. If it raises an error
    of the package, moves are counted as the program runs. `deployed` returns the program with its arguments on the
    devices.
    """
    marks, printed, reason, padded = dict[str, str](), list[OpMoves](), "", dict[int, Remark]()

    def mark(eqn: Eqn) -> str:
        key = origin(eqn)
        marks.setdefault(key, line_of(eqn))
        return key

    with remarks.collect() as log:
        residency = lowered if traced is None else lower(traced, boundary.residencies, boundary.sizes)
        inlined = decompose(residency.program)
        if inlined is not residency.program:
            residency = residency.with_calls_inlined(inlined)
        try:
            program = flat(mark)
            printed = list(entries(program))
            for op, size, text in padded_values(program):
                log.add_at(op.line, Remark("padded", text, _TILES, size))
            whole = [argument.whole for argument in boundary.arguments]
            padded = {i: Remark("padded", text, _TILES, size) for i, size, text in padded_arguments(deployed(), whole)}
        except JaxmeshError as error:
            reason = str(error)
    walker = _Walker(boundary.sizes, variable_names(residency.program), log, residency, decisions, bool(reason))
    walker.program(boundary, out_tree, padded)
    if not reason:
        Attribution(walker.rows, walker.origins, walker.own, marks, log).add(printed)
    return Explanation(boundary.name, boundary.sizes, walker.rows, tuple(assumptions), tuple(decisions), reason)


@dataclass(frozen=True, slots=True)
class _Facts:
    """The plan of a body on the host: the results computed on the devices, and remarks by variable."""

    mapped: frozenset[Var]
    notes: Mapping[Var, Sequence[Remark]]


@dataclass(frozen=True, slots=True)
class _BodyContext:
    """The context of a body, the line and scopes of its caller; `facts` is None if the body has one residency."""

    path: tuple[str, ...] = ()
    executions: int | None = 1
    conditional: bool = False
    mapped: bool = False
    facts: _Facts | None = None
    line: str = ""
    scope: tuple[str, ...] = ()


class _Walker:
    def __init__(
        self,
        mesh: Mapping[str, int],
        names: Mapping[Var, str],
        log: Remarks,
        residency: ResidencyMap,
        decisions: Sequence[Decision] = (),
        executed: bool = False,
    ) -> None:
        # By kind and line: the partitioner's decisions that no collective has been explained by.
        self.decisions: dict[tuple[str, str], list[Decision]] = {}
        for d in decisions:
            self.decisions.setdefault((d.kind, d.line), []).append(d)
        self.mesh, self.names, self.log, self.residency, self.executed = mesh, names, log, residency, executed
        self.rows: list[Row] = []
        # By the number of a row: where its equation comes from, and the moves of the equation as it runs.
        self.origins: dict[int, str] = {}
        self.own: dict[int, tuple[Move, ...]] = {}
        self.removed: dict[object, list[Removed]] = {}
        for gone in log.removed:
            self.removed.setdefault(gone.beside if isinstance(gone.beside, Var) else None, []).append(gone)
        self.shown: set[int] = set()

    def program(self, boundary: Boundary, out_tree: object, notes: Mapping[int, Remark]) -> None:
        """Appends all rows of a program, with the remarks on arguments."""
        body, env = walk.open_jaxpr(self.residency.program), self.residency.values
        full = _full_shapes(body)
        for i, (var, path) in enumerate(zip(body.invars, boundary.paths, strict=True)):
            noted = (notes[i],) if i in notes else ()
            self.row(Row("argument", (), (path,), (self.value(var, env, full),), notes=noted), [var])
        place = _BodyContext(facts=_facts(self.residency))
        self.body(self.residency, place, list(body.outvars))
        for atom, path in zip(body.outvars, (f"result{p}" for p in show_paths(out_tree)), strict=True):
            self.row(Row("result", (), (path,), (self.value(atom, env, full),)), [])
        # Equations that were removed together with the values beside them.
        for gone in self.log.removed:
            self._add_removed(gone, ())

    def row(self, row: Row, about: Sequence[Var]) -> None:
        """Appends a row, and the equations that were removed beside its values."""
        self.rows.append(row)
        for var in about:
            for old in self.log.origins(var):
                for gone in self.removed.get(old, ()):
                    self._add_removed(gone, row.path)

    def _add_removed(self, gone: Removed, path: tuple[str, ...]) -> None:
        if id(gone) not in self.shown:
            self.shown.add(id(gone))
            name = gone.eqn.primitive.name
            self.rows.append(
                Row(name, path, (), (), notes=(gone.note,), executions=0, cancelled=True, line=line_of(gone.eqn))
            )

    # --- bodies ---

    def body(self, residency: ResidencyMap, place: _BodyContext, results: Sequence[Atom]) -> None:
        """Appends the rows of a body, of whose results the caller reads `results`."""
        body, env = walk.open_jaxpr(residency.program), residency.values
        full, live = _full_shapes(body), _live(body, results)
        for var in body.constvars:
            self.row(Row("constant", place.path, (), (self.value(var, env, full),)), [var])
        for eqn in body.eqns:
            here = place if id(eqn) in live else replace(place, executions=0)
            self.eqn(eqn, body, env, full, here)
            self._bodies(eqn, residency, here, [v for v in eqn.outvars if v in live.get(id(eqn), ())])

    def _bodies(self, eqn: Eqn, residency: ResidencyMap, place: _BodyContext, read: Sequence[Var]) -> None:
        mapped = place.mapped or (place.facts is not None and not place.facts.mapped.isdisjoint(eqn.outvars))
        for body in bodies(eqn, residency):
            inner = self._inside(body, eqn, place, mapped)
            results = walk.open_jaxpr(body.residency.program).outvars
            if body.inline:
                results = [a for a, v in zip(results, eqn.outvars, strict=True) if v in read]
            self.body(body.residency, inner, results)

    def _inside(self, body: EquationBody, eqn: Eqn, place: _BodyContext, mapped: bool) -> _BodyContext:
        times = None if place.executions is None or body.times is None else place.executions * body.times
        times = 0 if place.executions == 0 else times
        branch, line = place.conditional or body.conditional, line_of(eqn, place.line)
        path, scope = (*place.path, body.label), named_scopes(eqn, place.scope)
        inner = _BodyContext(path, times, branch, mapped, line=line, scope=scope)
        if body.inline and not place.mapped:
            # The planner has inlined this body.
            return replace(inner, mapped=False, facts=place.facts)
        moves = not mapped and has_transfer(body.residency.program)
        return replace(inner, facts=_facts(body.residency)) if moves else inner

    # --- equations ---

    def eqn(self, eqn: Eqn, body: Jaxpr, env: Env, full: Mapping[Var, tuple[int, ...]], place: _BodyContext) -> None:
        """Appends the row of one equation."""
        moves, own = self._moves(eqn, place)
        notes = [n for v in eqn.outvars for n in self.log.about(v)]
        if place.facts is not None:
            notes += [n for v in eqn.outvars for n in place.facts.notes.get(v, ())]
        notes += own
        notes += self._decision(moves, line_of(eqn, place.line))
        if moves and place.executions == 0:
            notes.append(Remark("dead", "nothing reads its result", "XLA and the texts leave it out"))
        self.origins[len(self.rows)], self.own[len(self.rows)] = origin(eqn), tuple(moves)
        times, exact = 1 if place.executions is None else place.executions, place.executions is not None
        counted = [replace(m, count=times, exact=exact and not place.conditional) for m in moves if times]
        row = Row(
            eqn.primitive.name,
            place.path,
            tuple(self.name(a) for a in eqn.invars),
            tuple(self.value(v, env, full) for v in eqn.outvars),
            tuple(counted) if self.executed else (),
            tuple(dict.fromkeys(notes)),
            place.executions,
            place.conditional,
            line=line_of(eqn, place.line),
            scope=named_scopes(eqn, place.scope),
        )
        self.row(row, eqn.outvars)

    def _decision(self, moves: Sequence[Move], line: str) -> list[Remark]:
        """Returns the partitioner's reason for a collective at a line; each of its decisions explains one
        collective."""
        for move in moves:
            if line and (left := self.decisions.get((move.kind, line))):
                d = left.pop(0)
                return [Remark("partitioned", f"{d.op}: {d.text}", "Shardy's propagation and explicit reshards")]
        return []

    def _moves(self, eqn: Eqn, place: _BodyContext) -> tuple[list[Move], list[Remark]]:
        """Returns the moves of an equation as it runs, and remarks."""
        if eqn.primitive is distribute_tensor_p:
            if not place.mapped:
                (x,), config = eqn.invars, eqn.params["mapper_config"]
                return [distribute(config, self.mesh, x.aval.shape, x.aval.dtype.itemsize)], []
            return [], [Remark("local", "each device cuts its shard out of the copy that it has", _INSIDE)]
        if eqn.primitive is not aggregate_tensor_p:
            notes = [Remark("legalised", *_COORDINATE)] if _reads_coordinate(eqn, self.mesh) else []
            return movement.collective(eqn, self.mesh), notes
        axes, _ = claimed_axes(eqn, self.mesh)
        notes: list[Remark] = []
        if axes:
            text = f"the copies along {', '.join(axes)} are taken to be equal, and coordinate 0 is read"
            notes.append(Remark("assumed", text, "assume_replicated: no type proves it, check_replication looks"))
        if not place.mapped:
            return movement.aggregate(eqn, self.mesh), notes
        notes.append(Remark("local", "each device gathers the full tensor", _INSIDE))
        return movement.aggregate_inside(eqn, self.mesh), notes

    # --- values ---

    def name(self, atom: Atom) -> str:
        """Returns the name of a variable in the text, or the number of a literal."""
        if isinstance(atom, Literal):
            literal: Literal = atom
            return str(np.asarray(literal.val).item()) if np.size(literal.val) == 1 else "[...]"
        return "_" if isinstance(atom, compat.DropVar) else self.names.get(atom, "?")

    def value(self, atom: Atom, env: Env, full: Mapping[Var, tuple[int, ...]]) -> Value:
        """Describes the residency, type and bytes of a value."""
        aval: Aval = atom.aval
        place = _PLACES.get(of_atom(atom, env), "host")
        if not compat.is_array_type(aval):
            return Value(self.name(atom), place, (), (), (), compat.describe(aval), 0)
        varying = tuple(a for a in self.mesh if a in compat.varying_axes(aval) and self.mesh[a] > 1)
        known = full.get(atom) if varying and isinstance(atom, Var) else tuple(aval.shape)
        size = movement.nbytes([aval])
        return Value(self.name(atom), place, varying, tuple(aval.shape), known, str(aval.dtype), size)


_PLACES = {FREE: "anywhere", DEVICE: "devices"}
_TILES = "a tile is 32x32: no dim of few elements among the last two"
_COORDINATE = (
    "the numbers from 0 on are distributed along the axis",
    "TTNN has no op for the coordinate of a device",
)
_INSIDE = "in the midst of device work XLA has slices and gathers; the TTNN program goes through the host"


def _reads_coordinate(eqn: Eqn, mesh: Mapping[str, int]) -> bool:
    return eqn.primitive.name == "axis_index" and mesh.get(eqn.params["axis_name"], 1) > 1


def _facts(residency: ResidencyMap) -> _Facts:
    """Plans a body and collects the remarks of the planner."""
    with remarks.collect() as log:
        plan = plan_regions(residency)
    computed = [v for r in plan.regions if r.mapped for e in r.eqns for v in e.outvars]
    return _Facts(frozenset(log.origins(v)[-1] for v in computed), log.by_origin())


def _full_shapes(body: Jaxpr) -> dict[Var, tuple[int, ...]]:
    """Returns the global shapes of shards that a distribute produces or an aggregate reads."""
    shapes: dict[Var, tuple[int, ...]] = {}
    for eqn in body.eqns:
        if eqn.primitive is distribute_tensor_p:
            shapes[eqn.outvars[0]] = tuple(eqn.invars[0].aval.shape)
        elif eqn.primitive is aggregate_tensor_p and isinstance(eqn.invars[0], Var):
            shapes.setdefault(eqn.invars[0], tuple(eqn.outvars[0].aval.shape))
    return shapes


def _live(body: Jaxpr, results: Sequence[Atom]) -> dict[int, frozenset[Var]]:
    """Returns by identity the equations with results that are read, each with these results."""
    read: set[Var] = {a for a in results if isinstance(a, Var)}
    live: dict[int, frozenset[Var]] = {}
    for eqn in reversed(body.eqns):
        used = read.intersection(eqn.outvars)
        if used or walk.is_ordered(eqn):
            live[id(eqn)] = frozenset(used)
            read.update(a for a in eqn.invars if isinstance(a, Var))
    return live


@dataclass(frozen=True, slots=True)
class EquationBody:
    """One body with its label in a path and the residencies of its values.

    Attributes:
      times: the number of its executions per execution of the equation; None if not known statically.
      conditional: True if it may not run at all.
      inline: True if the equation means nothing but this body.
    """

    label: str
    residency: ResidencyMap
    times: int | None = 1
    conditional: bool = False
    inline: bool = False


def bodies(eqn: Eqn, residency: ResidencyMap) -> Iterator[EquationBody]:
    """Yields the bodies of an equation of a program with the given residencies."""
    inner = residency.bodies(eqn)
    match control_flow.control_flow(eqn):
        case Call(kind=kind):
            called = eqn.params.get("name")
            label = f"{kind} {called}" if isinstance(called, str) else kind
            yield EquationBody(label, inner[0], inline=kind in control_flow.INLINE)
        case Scan() as scan:
            yield EquationBody(f"scan of {scan.length}", inner[0], int(scan.length))
        case While():
            yield EquationBody("test of while", inner[0], None)
            yield EquationBody("while", inner[1], None)
        case Cond():
            for i, branch in enumerate(inner):
                yield EquationBody(f"branch {i} of {len(inner)}", branch, conditional=True)
        case None:
            for jaxpr in walk.sub_jaxprs(eqn):
                inputs = (HOST,) * len(walk.open_jaxpr(jaxpr).invars)
                yield EquationBody(str(eqn.primitive.name), residency.body(jaxpr, inputs), None)
