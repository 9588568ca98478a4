"""Runs a text again with some values replaced, from there on, and single operations of it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from jax.sharding import AbstractMesh

from jaxmesh.analysis.diagnose import in_numpy
from jaxmesh.analysis.diagnose.stage import (
    Array,
    Copies,
    StageProgram,
    StageTrace,
    copies_of,
    run_trace,
    trace_stage,
)
from jaxmesh.analysis.reference_rules import RULES
from jaxmesh.dialects.program import Op, Port, Program, Type, Value
from jaxmesh.dialects.residency import DEVICE, HOST
from jaxmesh.errors import JaxmeshError
from jaxmesh.frontends.mlir.module import BoundaryAttributes
from jaxmesh.frontends.mlir.text import Text
from jaxmesh.frontends.mlir.trace import trace_program
from jaxmesh.jaxprs import walk
from jaxmesh.jaxprs.compat import Eqn, Jaxpr, Literal
from jaxmesh.runtime.reference import Shards, run_again, run_reference

_PRESHARDED, _WHOLE = BoundaryAttributes("presharded", None), BoundaryAttributes(None, None)
_ELEMENTS = 1 << 14
_MOST = 512
"""The most operations that are kept alone."""


@dataclass
class Replay:
    """A run of a stage with every value kept, which goes on from replaced values.

    Attributes:
      stage: the stage.
      trace: its equations.
      known: the value of each variable.
      variables: by value of the text, its variable; of numbers of the jaxpr there is none.
      work: the operations that were performed again, and how often 16,384 of their elements.
    """

    stage: StageProgram
    trace: StageTrace
    known: dict[Any, Any]
    variables: dict[Value, Any]
    work: int = 0
    _needed: dict[frozenset[Value], set[Any]] = field(default_factory=dict[frozenset[Value], set[Any]])
    _alone_known: dict[object, tuple[object, Jaxpr | None]] = field(
        default_factory=dict[object, tuple[object, "Jaxpr | None"]]
    )

    @classmethod
    def of(cls, stage: StageProgram, placed: Sequence[Any]) -> Replay:
        """Runs a stage for arguments that are placed."""
        trace = trace_stage(stage)
        known = dict(run_trace(stage, trace, placed))
        found = cls(stage, trace, known, {n: v for v, numbers in trace.named.items() for n in numbers})
        if stage.given:
            run = found.again(found.variables)
            run.put(stage.given)
            found.known.update(run.changed if run.to(len(found.eqns)) else {})
        return found

    def copies(self, value: Value) -> Copies:
        """Returns the value of each device."""
        if value not in self.variables:
            return dict.fromkeys(self.stage.coordinates, self.trace.literals[value])
        return copies_of(self.known[self.variables[value]], self.stage.coordinates)

    def replaced(self, right: Mapping[Value, Copies], wanted: Collection[Value]) -> dict[Value, Copies]:
        """Returns the wanted values that change if other values are replaced on every device; none if the text cannot
        run with them, as where devices take different branches with a collective."""
        run = self.again(wanted)
        run.put(right)
        if not run.to(len(self.eqns)):
            return {}
        found = {v: run.changed[self.variables[v]] for v in wanted if self.variables.get(v) in run.changed}
        return {v: copies_of(x, self.stage.coordinates) for v, x in found.items()}

    def again(self, wanted: Collection[Value]) -> Rerun:
        """Returns a run that begins anew, as far as some values need it."""
        return Rerun(self, self._before(frozenset(wanted)))

    @functools.cached_property
    def eqns(self) -> Sequence[Eqn]:
        """The equations of the text."""
        return walk.open_jaxpr(self.trace.jaxpr).eqns

    @functools.cached_property
    def numbers(self) -> Mapping[Any, int]:
        """The number of the equation that computes a variable."""
        return {v: n for n, eqn in enumerate(self.eqns) for v in eqn.outvars}

    def as_known(self, value: Value, copies: Copies) -> Any:
        """Returns the value of each device as a run has it."""
        dtype = self.stage.text.program.types[value].dtype
        if dtype.kind in "iu":
            # The program may count in integers of another sign than the text.
            copies = {c: np.asarray(x).astype(dtype) if x.dtype.kind in "iu" else x for c, x in copies.items()}
        return Shards(copies) if self._is_sharded(value) or _is_sharded(copies) else next(iter(copies.values()))

    def _before(self, wanted: frozenset[Value]) -> set[Any]:
        """Returns the variables that some values are computed from."""
        if wanted not in self._needed:
            found = {self.variables[v] for v in wanted if v in self.variables}
            for eqn in reversed(self.eqns):
                if not found.isdisjoint(eqn.outvars):
                    found.update(v for v in eqn.invars if not isinstance(v, Literal))
            self._needed[wanted] = found
        return self._needed[wanted]

    def perform(self, op: Op, operands: Sequence[Copies], made: Sequence[Type] | None = None) -> list[Copies] | None:
        """Returns the results of an operation for any operands, on every device; None if it breaks a rule.

        `made` are the types of its results, if they are others than in the text.
        """
        self.work += 1 + sum(x.size for c in operands for x in c.values()) // _ELEMENTS
        shards = [_is_sharded(c) or self._is_sharded(v) for v, c in zip(self.stage.operands(op), operands, strict=True)]
        mesh = self.stage.mesh
        jaxpr = self._traced(op, [next(iter(c.values())) for c in operands], shards, made)
        if jaxpr is None:
            return None
        places = [DEVICE if s else HOST for s in shards]
        given = [dict(c) if s else next(iter(c.values())) for c, s in zip(operands, shards, strict=True)]
        try:
            found = run_reference(jaxpr, places, mesh, given, RULES["ttir"])
        except JaxmeshError:
            return None
        everywhere = self.stage.coordinates
        shares: list[Any] = [Shards(cast("Any", x)) if isinstance(x, dict) else x for x in found]
        return [copies_of(x, everywhere) for x in shares]

    def _traced(
        self, op: Op, first: Sequence[Array], shards: Sequence[bool], results: Sequence[Type] | None
    ) -> Jaxpr | None:
        """Returns an operation alone, once for all iterations of a loop; None if it breaks a rule."""
        kinds, mesh = self.stage.text.program.types, self.stage.mesh
        made = [(t.shape, t.dtype, t.kind) for t in results or [kinds[r] for r in op.results]]
        read = [v if v is None or kinds[v].kind != "tensor" else -1 for v in op.operands]
        key = op.name, id(op.attributes), *read, *made, *shards, *((x.shape, x.dtype) for x in first)
        if key not in self._alone_known:
            if len(self._alone_known) >= _MOST:
                self._alone_known.clear()
            alone = self._alone(op, first, shards, results)
            outcome = trace_program(alone, AbstractMesh(tuple(mesh.values()), tuple(mesh)), strict=False)
            # The attributes are kept, so that their id is not used again.
            self._alone_known[key] = op.attributes, None if outcome.error is not None else outcome.jaxpr
        return self._alone_known[key][1]

    def _alone(self, op: Op, first: Sequence[Array], shards: Sequence[bool], results: Sequence[Type] | None) -> Text:
        """Returns a text of an operation alone, whose arguments are its operands."""
        text, program, read = self.stage.text, self.stage.text.program, set(op.used)
        kinds = program.types
        read = {v for v in read if kinds[v].kind != "tensor"}
        handles = [o for o in program.ops if not read.isdisjoint(o.results)] if read else []
        made = [r for o in (*handles, op) for r in o.results]
        names = {r: len(first) + i for i, r in enumerate(made)}
        tensors = iter(range(len(first)))
        numbers = [None if v is None else next(tensors) if kinds[v].kind == "tensor" else names[v] for v in op.operands]
        ops = [Op(o.name, (), tuple(names[r] for r in o.results), o.attributes) for o in handles]
        ops.append(Op(op.name, tuple(numbers), tuple(names[r] for r in op.results), op.attributes))
        of_handles = [kinds[r] for o in handles for r in o.results]
        types = [Type(x.shape, x.dtype) for x in first] + of_handles + list(results or [kinds[r] for r in op.results])
        alone = Program("main", {}, types, [Port(i, False) for i in range(len(first))], ops)
        alone.results = [Port(v, False) for v in ops[-1].results]
        return replace(
            text, program=alone, lines=[0] * len(ops), names=[o.name for o in ops], results=(_WHOLE,) * len(op.results),
            arguments=tuple(_PRESHARDED if s else _WHOLE for s in shards),
        )  # fmt: skip

    def _is_sharded(self, value: Value) -> bool:
        return value in self.variables and isinstance(self.known[self.variables[value]], Shards)


@dataclass(slots=True)
class Rerun:
    """A run with replaced values, as far as it has come; what follows may be replaced as it goes on.

    Attributes:
      replay: the run before.
      needed: the variables that are asked for, and those that they are computed from.
      changed: the values that are not as before, by variable.
      done: how many equations are behind it.
    """

    replay: Replay
    needed: set[Any]
    changed: dict[Any, Any] = field(default_factory=dict[Any, Any])
    done: int = 0

    def put(self, right: Mapping[Value, Copies]) -> None:
        """Replaces values on every device."""
        variables, known = self.replay.variables, self.replay.as_known
        self.changed.update((variables[v], known(v, c)) for v, c in right.items() if v in variables)

    def to(self, end: int) -> bool:
        """Runs to an equation; returns False if the text cannot run so far."""
        replay, begin = self.replay, self.done
        self.done = max(begin, end)
        if not self.changed or end <= begin:
            return True
        about = replay.eqns[begin:end], replay.stage.mesh, replay.known, self.changed
        try:
            run_again(*about, RULES["ttir"], in_numpy.bind, self._is_needed, _is_same)
        except JaxmeshError:
            return False
        return True

    def before(self, op: Op) -> list[Copies] | None:
        """Runs to an operation; returns its operands, None if the text cannot run so far."""
        replay = self.replay
        ends = (replay.numbers.get(replay.variables.get(v), 0) for v in op.results)
        if not self.to(max(ends, default=0)):
            return None
        made = ((v, self.changed.get(replay.variables.get(v))) for v in replay.stage.operands(op))
        return [replay.copies(v) if x is None else copies_of(x, replay.stage.coordinates) for v, x in made]

    def _is_needed(self, eqn: Eqn) -> bool:
        if self.needed.isdisjoint(eqn.outvars):
            return False
        sizes = sum(v.aval.size for v in eqn.outvars)
        self.replay.work += 1 + len(self.replay.stage.coordinates) * sizes // _ELEMENTS
        return True


@dataclass(slots=True)
class Budget:
    """The runs that a search may take, and what they may perform.

    Runs are counted, and not timed, so that verdicts are the same on every machine.
    """

    replay: Replay
    runs: int
    work: int = 1 << 17

    def __post_init__(self) -> None:
        self.work += self.replay.work

    def take(self) -> bool:
        """Returns True if one more run is allowed."""
        self.runs -= 1
        return self.runs >= 0 and self.replay.work < self.work


def _is_sharded(copies: Copies) -> bool:
    return len({id(x) for x in copies.values()}) > 1


def _is_same(known: Any, found: Any) -> bool:
    """Returns True if a value has the same bits on every device as before."""
    if not isinstance(known, Shards) or not isinstance(found, Shards):
        return not isinstance(known, Shards) and not isinstance(found, Shards) and _alike(known, found)
    done = {(id(known[c]), id(found[c])): (known[c], found[c]) for c in known}
    return all(_alike(a, b) for a, b in done.values())


def _alike(x: Any, y: Any) -> bool:
    a: Array
    b: Array
    a, b = np.asarray(x), np.asarray(y)
    return a.shape == b.shape and a.dtype == b.dtype and walk.same_bits(a, b)
