"""Proves which operation is wrong: with its result put right on every device, all results of the program are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxmesh.analysis.diagnose.corrections import Correction, Corrections
from jaxmesh.analysis.diagnose.earlier import EarlierText
from jaxmesh.analysis.diagnose.matching import reductions
from jaxmesh.analysis.diagnose.movements import does_nothing, is_collective, is_movement, is_transparent
from jaxmesh.analysis.diagnose.proposals import Proposal, Proposals, informative
from jaxmesh.analysis.diagnose.replay import Budget, Replay
from jaxmesh.analysis.diagnose.rounding import GROWTH, error_of
from jaxmesh.analysis.diagnose.stage import Copies
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.dialects.program import Op, Value
from jaxmesh.jaxprs.walk import same_bits

_RUNS = 96
"""The most runs of the rest of a text."""
_SEARCH = 160
"""The most runs of a search for changes."""
_FIRST, _TURN = 64, 8
"""How many changes of the first operation, and of each other one, are tried before those of the next one."""
_NEARER = 8.0
"""How many times nearer a function in another form has to bring a result."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A replacement that puts the program right.

    Attributes:
      proposal: the operation, its result, and what it has to be.
      doubtful: the operations before it that may be the wrong ones instead, in order; none if it is proven.
      change: what puts the operation right; None if that is not known.
      before: the error of each result.
      after: the same with the replacement.
      goal: the first operation that was found to put the results right.
      holds: True if all results are right with the replacement.
      infinities: what an infinite error of each result says, in words.
    """

    proposal: Proposal
    doubtful: tuple[tuple[int, Op], ...]
    change: Correction | None
    before: tuple[float, ...]
    after: tuple[float, ...]
    goal: Proposal
    holds: bool = True
    infinities: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the errors of the results before and after the replacement; None for what is not comparable."""
        sides = {"before": self.before, "after": self.after}
        return {name: [x if math.isfinite(x) else None for x in errors] for name, errors in sides.items()}

    def __str__(self) -> str:
        before, after = map(self._largest, (self.before, self.after))
        what = "the results are right" if self.holds else "not all results are right"
        return f"with the right value in its place {what}: their largest error is {before}, then {after}"

    def _largest(self, errors: Sequence[float]) -> str:
        words = [w for w, x in zip(self.infinities, errors, strict=True) if not math.isfinite(x)]
        return " and ".join(dict.fromkeys(words)) or f"{max(errors):.1e}"


@dataclass
class Prover:
    """The runs of a stage with replaced values.

    Attributes:
      track: the values of the stage.
      replay: its run, which goes on from replaced values.
      asked: the numbers of the results that a replacement has to put right; None for all.
      earlier: the text before this one, if that is right.
    """

    track: Track
    replay: Replay
    asked: frozenset[int] | None = None
    earlier: EarlierText | None = None
    proposals: Proposals = field(init=False)
    changes: Corrections = field(init=False)
    trusts: dict[Value, bool] = field(default_factory=dict[Value, bool])

    def __post_init__(self) -> None:
        self.proposals = Proposals(self.track)
        self.changes = Corrections(self.track, self.replay, self.proposals)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def errors(self, right: Mapping[Value, Copies]) -> list[float] | None:
        """Returns the error of each result after a replacement; None if that makes a right result wrong."""
        ports = [p.value for p in self.track.stage.text.program.results]
        changed = self.replay.replaced(right, ports)
        found: list[float] = []
        for number, (value, known) in enumerate(zip(ports, self.track.outputs, strict=True)):
            output = self.track.output(number, value, changed[value]) if value in changed else known
            if known.is_right and output.error > known.limit:
                return None
            found.append(output.error)
        return found

    def becomes_right(self, right: Mapping[Value, Copies], target: Proposal, form: float = 0.0) -> bool:
        """Returns True if a replacement makes the result of a later operation what it has to be."""
        changed = self.replay.replaced(right, [target.value]).get(target.value)
        return changed is not None and self.is_alike(changed, target, form)

    def is_alike(self, copies: Copies, target: Proposal, form: float = 0.0) -> bool:
        """Returns True if rounding explains how far copies are from what they have to be, or another form of a function
        that differs so much."""
        pool, expected = self.track.pool, target.expected
        rounding, carried = self.track.carried(target.value, self.track.units.get(target.value, 0.0))
        scale = 1.0 if expected is None else pool.scale(expected)
        limit = 1e-5 if expected is None else pool.limit(expected, rounding, carried)
        limit, right = max(limit, GROWTH * form), target.right
        pairs = {(id(x), id(right[c])): (x, right[c]) for c, x in copies.items()}
        return all(a.shape == b.shape and error_of(a, b, scale) <= limit for a, b in pairs.values())

    def is_proven(self, proposal: Proposal, form: float = 0.0) -> bool:
        """Returns True if a replacement puts the wrong results right, up to another form of a function."""
        wanted = frozenset(range(len(self.track.outputs))) if self.asked is None else self.asked
        return wanted <= self.put_right(proposal, form)

    def put_right(self, proposal: Proposal, form: float = 0.0) -> frozenset[int]:
        """Returns the numbers of the results that are right with a replacement; none if it makes a right one wrong."""
        # Another form of a function changes far less than another function.
        limits = [max(o.limit, min(GROWTH * form, o.error / _NEARER)) for o in self.track.outputs]
        errors = self.errors(proposal.replaced)
        return frozenset(i for i, e in enumerate(errors or ()) if e <= limits[i])

    def reaches(self, proposal: Proposal, goal: Proposal, form: float) -> bool:
        """Returns True if a replacement makes the result of a later operation, or its own, what it has to be."""
        if self.proposals.reductions_after(goal.value):
            # Devices may hold the goal whole, or in parts.
            return True
        if proposal.value == goal.value:
            return self.is_alike(proposal.right, goal, form)
        return self.becomes_right(proposal.replaced, goal, form)

    def fixers(
        self,
        rows: Sequence[tuple[int, Op]],
        goal: Proposal | None,
        make: Callable[[int, Op], Iterator[Correction]],
        budget: Budget | None = None,
    ) -> dict[int, Correction]:
        """Returns by operation the first change that puts the goal, if there is one, and the results right."""
        budget, found = budget or Budget(self.replay, _SEARCH), dict[int, Correction]()
        lines = self.track.stage.text.lines
        # Of an operation in several iterations, the first.
        once = {(lines[n], op.name): n for n, op in reversed(rows)}
        every = {n: make(n, op) for n, op in rows if once[lines[n], op.name] == n}
        for number, change in _in_turns(every):
            if not budget.take():
                break
            made = change.proposal
            if (goal is None or self.reaches(made, goal, change.form)) and self.is_proven(made, change.form):
                found.setdefault(made.number, change)
                del every[number]
        return found

    # --- the proof ----------------------------------------------------------------------------------------------------

    def goal(self) -> Proposal | None:
        """Returns the first operation that is found whose result, put right, puts the results right."""
        wrong = [i for i, o in enumerate(self.track.outputs) if not o.is_right]
        steps = self.track.before(self.track.outputs[i].value for i in wrong)
        return self._first(steps, wrong) or self._result(wrong)

    def _first(self, steps: Sequence[tuple[int, Op]], wrong: Sequence[int]) -> Proposal | None:
        budget, best, most = Budget(self.replay, _RUNS), None, 0
        for proposal in self._candidates(steps):
            if not budget.take():
                break
            if self._is_held_in_parts(proposal):
                continue
            errors = self.errors(proposal.replaced)
            count = 0 if errors is None else sum(errors[i] <= self.track.outputs[i].limit for i in wrong)
            if count == len(wrong):
                return proposal
            best, most = (proposal, count) if count > most else (best, most)
        return best

    def _is_held_in_parts(self, proposal: Proposal) -> bool:
        """Returns True if the devices hold the right parts of a value, and a reduction over devices follows."""
        return bool(self.proposals.reductions_after(proposal.value)) and self.holds_parts(proposal)

    def holds_parts(self, proposal: Proposal) -> bool:
        """Returns True if a reduction over devices makes what a proposal says of what they hold."""
        copies = self.replay.copies(proposal.value)
        first = copies[min(copies)]
        read = [e for v in self.track.operands(proposal.op) for e in self.track.held(v)]
        is_whole = bool(read) and not any(e.partial or any(e.placement) for e in read) and not self._sums_copies
        if (is_whole or is_collective(proposal.op)) and all(x is first or same_bits(x, first) for x in copies.values()):
            # A reduction leaves the whole on all devices, and so does an operation on whole values.
            return False
        if all(x.size > 1 and (x == x.flat[0]).all() for x in proposal.right.values()):
            # The least or the greatest of any parts may be one number.
            return False
        found = reductions(copies, self.track.stage.mesh)
        return not self.is_alike(copies, proposal) and any(self.is_alike(x, proposal) for _, _, x in found)

    @property
    def _sums_copies(self) -> bool:
        """True if the program itself may reduce whole values over devices."""
        return any(v.op.endswith((".all_reduce", ".reduce_scatter")) for v in self.track.reference.values)

    def _candidates(self, steps: Sequence[tuple[int, Op]]) -> Iterator[Proposal]:
        """Yields the proposals for operations, the likeliest first."""
        reads = [(number, op) for number, op in steps if self.track.operands(op)]
        made = [(number, op) for number, op in steps if not self.track.operands(op)]
        types = self.track.stage.text.program.types
        first = [(number, op) for number, op in reads if self._is_first(op) or does_nothing(op, types)]
        right = [(number, op) for number, op in reads if all(map(self._is_right, op.results))]
        for number, op in reads:
            yield from self.proposals.in_place(number, op) if (number, op) not in right else ()
        for number, op in made:
            yield from self.proposals.constants(number, op)
        for number, op in first:
            yield from self.proposals.anywhere(number, op)
        for number, op in first:
            yield from (c.proposal for c in self.changes.of(number, op, alone=True) if c.is_own)
        for number, op in right:
            yield from self.proposals.in_place(number, op)

    def _is_right(self, value: Value) -> bool:
        """Returns True if a value is what the program most likely has in its place, and whole."""
        number, op = self.track.producers[value]
        likely = [] if is_transparent(op) else self.proposals.places.of(number, op, op.results.index(value))[:1]
        is_whole = not any(e.partial for e in self.track.held(value))
        return is_whole and self.is_trusted(value) and all(self.proposals.holds(value, n) for n in likely)

    def _is_first(self, op: Op) -> bool:
        """Returns True for an operation whose operands are right and whose results may not be."""
        return all(map(self.is_trusted, self.track.operands(op))) and not all(map(self.is_trusted, op.results))

    def _result(self, wrong: Sequence[int]) -> Proposal | None:
        """Returns the wrong result itself, if its shape is right."""
        for number in wrong:
            value = self.track.outputs[number].value
            right = self.track.right_output(number, value)
            if right is not None and value in self.track.producers:
                return Proposal(*self.track.producers[value], value, self.track.reference.outputs[number], right)
        return None

    # --- what is right before it --------------------------------------------------------------------------------------

    def is_trusted(self, value: Value) -> bool:
        """Returns True if a value is what the program has in its place, so that nothing before it is wrong."""
        if value not in self.trusts:
            self.trusts[value] = True
            self.trusts[value] = self._is_trusted(value)
        return self.trusts[value]

    def _is_trusted(self, value: Value) -> bool:
        track, made = self.track, self.track.producers.get(value)
        if made is None:
            return True
        number, op = made
        operands, known = track.operands(op), track.known.get(value)
        if does_nothing(op, track.stage.text.program.types):
            # It may stand for an operation of the program.
            return False
        if operands and self._passes(op):
            return self.is_trusted(operands[0])
        index = op.results.index(value)
        exact = self.proposals.places.exactly(number, op, index)
        if exact is not None and self.proposals.is_equal(value, exact):
            return True
        if known is None:
            return False
        same, count = track.pool.same, len(track.reference.values)
        if same[known.number] >= count:
            return is_collective(op) and bool(operands) and self.is_trusted(operands[0])
        if exact is not None and same[exact] != same[known.number] and self.proposals.places.misses(exact):
            return False
        places = self.proposals.places.of(number, op, index)
        if exact is not None and any(same[e.number] == same[known.number] for v in operands for e in track.held(v)):
            # It passes an operand on, where the program has another value.
            return False
        if any(same[n] == same[known.number] for n in places):
            return True
        if is_collective(op) and operands and not self.is_trusted(operands[0]):
            return False
        return informative(track.pool.arrays[known.number]) and not (places and known.kind == "" and is_movement(op))

    def _passes(self, op: Op) -> bool:
        """Returns True for a movement that the types determine, but for a cast of fractions to integers."""
        types, copies = self.track.stage.text.program.types, self.replay.copies
        kinds = [types[v].dtype.kind in "iub" for v in (*op.used[:1], *op.results)]
        is_step = kinds == [False, True] and is_transparent(op)
        return is_transparent(op) and not (
            is_step and any((x != copies(op.used[0])[c]).any() for c, x in copies(op.results[0]).items())
        )

    def doubtful(self, op: Op) -> list[tuple[int, Op]]:
        """Returns the operations before an operation that may be wrong."""
        types = self.track.stage.text.program.types

        def reads(later: Op) -> list[Value]:
            return [v for v in self.track.operands(later) if not self.is_trusted(v)]

        return [(n, o) for n, o in self.track.before(reads(op), reads) if not self._passes(o) or does_nothing(o, types)]


def _in_turns(every: dict[int, Iterator[Correction]]) -> Iterator[tuple[int, Correction]]:
    """Yields changes with the numbers of their operations, some of each in turn; an operation may be deleted."""
    size = _FIRST
    while every:
        for number in list(every):
            for _ in range(size):
                change = next(every[number], None) if number in every else None
                if change is None:
                    every.pop(number, None)
                    break
                yield number, change
            size = _TURN
