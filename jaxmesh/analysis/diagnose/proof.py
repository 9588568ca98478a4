"""Proves which operation is wrong: with its result put right on every device, all results of the program are right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxmesh.analysis.diagnose.movements import is_collective, is_movement, is_transparent
from jaxmesh.analysis.diagnose.proposals import Proposal, Proposals, informative
from jaxmesh.analysis.diagnose.repairs import reductions, repairs
from jaxmesh.analysis.diagnose.replay import Budget, Replay
from jaxmesh.analysis.diagnose.rounding import error_of
from jaxmesh.analysis.diagnose.stage import Copies
from jaxmesh.analysis.diagnose.tracking import Track, Value
from jaxmesh.dialects.program import Op

_RUNS, _LOCAL = 96, 160
"""The most runs of the rest of a text, and of parts of it."""
_ALIKE = 12
"""The most places of a missing reduction, and values put right together."""
_NEAR = 6
"""The most other operands of one type that are tried."""
Named = tuple[Proposal, tuple[tuple[int, Op], ...], str]
_LEFT_OUT, _OTHER = "nothing in its place", "another operand"
"""The repairs of an operation that is one too many, and of one that reads another value."""
_SECONDS, _LOCAL_SECONDS = 30.0, 6.0
"""The longest time of such runs."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A replacement that puts the program right.

    Attributes:
      proposal: the operation, its result, and what it has to be.
      doubtful: the operations before it that may be the wrong ones instead, in order; none if it is proven.
      repair: what puts the operation right, in words; empty if that is not known.
      before: the error of each result.
      after: the same with the replacement.
      holds: True if all results are right with the replacement.
    """

    proposal: Proposal
    doubtful: tuple[tuple[int, Op], ...]
    repair: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    holds: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Returns the errors of the results before and after the replacement; None for what is not comparable."""
        sides = {"before": self.before, "after": self.after}
        return {name: [x if math.isfinite(x) else None for x in errors] for name, errors in sides.items()}

    def __str__(self) -> str:
        sides = map(max, (self.before, self.after))
        before, after = (f"{x:.1e}" if math.isfinite(x) else "other shapes" for x in sides)
        what = "the results are right" if self.holds else "not all results are right"
        return f"with the right value in its place {what}: their largest error is {before}, then {after}"


@dataclass
class Prover:
    """The runs of a stage with replaced values.

    Attributes:
      track: the values of the stage.
      replay: its run, which goes on from replaced values.
    """

    track: Track
    replay: Replay
    proposals: Proposals = field(init=False)
    trusts: dict[Value, bool] = field(default_factory=dict[Value, bool])

    def __post_init__(self) -> None:
        self.proposals = Proposals(self.track)

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

    def becomes_right(self, right: Mapping[Value, Copies], target: Proposal) -> bool:
        """Returns True if a replacement makes the result of a later operation what it has to be."""
        changed = self.replay.replaced(right, [target.value]).get(target.value)
        return changed is not None and self.is_alike(changed, target)

    def is_alike(self, copies: Copies, target: Proposal) -> bool:
        """Returns True if rounding explains how far copies are from what they have to be."""
        pool, expected = self.track.pool, target.expected
        rounding, carried = self.track.carried(target.value, self.track.units.get(target.value, 0.0))
        scale = 1.0 if expected is None else pool.scale(expected)
        limit = 1e-5 if expected is None else pool.limit(expected, rounding, carried)
        right = target.right
        if target.parts is not None:
            # Any parts of the right sum are right.
            copies, right = (
                next(x for axes, kind, x in reductions(v, self.track.stage.mesh) if (axes, kind) == target.parts)
                for v in (copies, right)
            )
        pairs = {(id(x), id(right[c])): (x, right[c]) for c, x in copies.items()}
        return all(a.shape == b.shape and error_of(a, b, scale) <= limit for a, b in pairs.values())

    # --- the proof ----------------------------------------------------------------------------------------------------

    def prove(self) -> Proof | None:
        """Returns the first operation whose result, put right, puts the results right."""
        wrong = [i for i, o in enumerate(self.track.outputs) if not o.is_right]
        steps = self.proposals.before([self.track.outputs[i].value for i in wrong])
        found = self._first(steps, wrong) or self._result(wrong)
        if found is None:
            return None
        for proposal in itertools.islice(self.proposals.unreduced(found.op), _ALIKE):
            errors = self.errors(proposal.replaced)
            if errors is not None and all(errors[i] <= self.track.outputs[i].limit for i in wrong):
                return self._proof(*self._or_reader(proposal, Budget(_LOCAL, _LOCAL_SECONDS)))
        return self._narrowed(found)

    def _first(self, steps: Sequence[tuple[int, Op]], wrong: Sequence[int]) -> Proposal | None:
        budget, best, most = Budget(_RUNS, _SECONDS), None, 0
        for proposal in self._candidates(steps):
            if not budget.take():
                break
            errors = self.errors(proposal.replaced)
            count = 0 if errors is None else sum(errors[i] <= self.track.outputs[i].limit for i in wrong)
            if count == len(wrong):
                return proposal
            best, most = (proposal, count) if count > most else (best, most)
        return best

    def _candidates(self, steps: Sequence[tuple[int, Op]]) -> Iterator[Proposal]:
        """Yields the proposals for operations, the likeliest first."""
        reads = [(number, op) for number, op in steps if self.track.operands(op)]
        made = [(number, op) for number, op in steps if not self.track.operands(op)]
        for number, op in reads:
            yield from self.proposals.in_place(number, op)
        for number, op in made:
            yield from self.proposals.constants(number, op)
        for number, op in reads:
            if self._is_first(op):
                yield from self.proposals.anywhere(number, op)

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
        if is_transparent(op) and operands:
            return self.is_trusted(operands[0])
        if not operands and self.proposals.is_number(value):
            return True
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
        if any(same[n] == same[known.number] for n in places):
            return True
        if is_collective(op) and operands and not self.is_trusted(operands[0]):
            return False
        return informative(track.pool.arrays[known.number]) and not (places and known.kind == "" and is_movement(op))

    def doubtful(self, op: Op) -> list[tuple[int, Op]]:
        """Returns the operations before an operation that may be wrong."""
        found, rest, seen = dict[int, Op](), list(self.track.operands(op)), set[Value]()
        while rest:
            value = rest.pop()
            if value in seen or self.is_trusted(value):
                continue
            seen.add(value)
            number, made = self.track.producers[value]
            if not is_transparent(made):
                found[number] = made
            rest += self.track.operands(made)
        return sorted(found.items())

    # --- which of several ---------------------------------------------------------------------------------------------

    def _narrowed(self, goal: Proposal) -> Proof:
        """Returns the proof for the one operation that can have made a value wrong, where several may have."""
        budget = Budget(_LOCAL, _LOCAL_SECONDS)
        target = self._earliest(goal, budget)
        doubtful = self.doubtful(target.op)
        lines = self.track.stage.text.lines
        if all(lines[n] == lines[target.number] for n, _ in doubtful):
            # None, or the operation itself in earlier iterations.
            return self._proof(*self._or_reader(target, budget))
        copies = self.replay.copies(target.value)
        if any(self.is_alike(x, target) for _, _, x in reductions(copies, self.track.stage.mesh)):
            # The devices hold the right parts.
            return self._proof(*self._or_reader(target, budget))
        fixers: dict[int, tuple[Proposal, str]] = {}
        for number, op in (*doubtful, (target.number, target.op)):
            for proposal, words in self._repaired(number, op):
                if not budget.take():
                    break
                if self._reaches(proposal, goal) and self._is_proven(proposal):
                    fixers[number] = proposal, words
                    break
        chosen = self._chosen(fixers, target, doubtful) or (None if fixers else self._together(goal))
        if chosen is not None and not chosen[1] and chosen[0] is target and not fixers:
            chosen = self._or_reader(target, budget)
        return self._proof(*(chosen or (target, tuple(doubtful), "")))

    def _reaches(self, proposal: Proposal, goal: Proposal) -> bool:
        """Returns True if a replacement makes the result of a later operation, or its own, what it has to be."""
        if proposal.value == goal.value:
            return self.is_alike(proposal.right, goal)
        return self.becomes_right(proposal.replaced, goal)

    def _earliest(self, target: Proposal, budget: Budget) -> Proposal:
        """Returns the first operation before a target that may be wrong, and whose result the program has."""
        for number, op in [row for row in self.doubtful(target.op) if self.track.operands(row[1])]:
            for proposal in (*self.proposals.in_place(number, op), *self.proposals.anywhere(number, op)):
                if not budget.take():
                    return target
                if self.becomes_right(proposal.replaced, target) and self._is_proven(proposal):
                    return proposal
        return target

    def _is_proven(self, proposal: Proposal) -> bool:
        """Returns True if a replacement puts each wrong result right."""
        errors = self.errors(proposal.replaced)
        return errors is not None and all(e <= o.limit for e, o in zip(errors, self.track.outputs, strict=True))

    def _or_reader(self, target: Proposal, budget: Budget) -> Named:
        """Returns a target; of a movement the operation that reads it, if that alone can be repaired."""
        row = self._reader(target.value)
        if row is None or not (is_movement(target.op) or is_collective(row[1])):
            return target, (), ""
        number, op = row
        changed = self.replay.replaced(target.replaced, op.results)
        goals = [Proposal(number, op, v, None, changed[v]) for v in op.results if v in changed]
        goals += [p for p in itertools.islice(self.proposals.in_place(number, op), _NEAR) if self._is_proven(p)]
        for proposal, words in self._repaired(number, op, alone=True) if goals else ():
            for goal in goals if budget.take() else ():
                if self.is_alike(proposal.right, goal):
                    return goal, (), words
        return target, (), ""

    def _reader(self, value: Value) -> tuple[int, Op] | None:
        """Returns the only operation that reads a value, through movements that the types determine."""
        ops = self.track.stage.text.program.ops
        readers = [(n, o) for n, o in enumerate(ops) if value in o.used and o.results]
        if len(readers) != 1:
            return None
        (row,) = readers
        return self._reader(row[1].results[0]) if is_transparent(row[1]) else row

    def _together(self, goal: Proposal) -> Named | None:
        """Returns the first of several wrong operations, which put a value right if they are put right together."""
        rows = [list(itertools.islice(self.proposals.in_place(*row), 3)) for row in self.doubtful(goal.op)]
        rows = [row for row in rows if row]
        for chosen in itertools.islice(itertools.product(*rows), _ALIKE) if 1 < len(rows) <= _ALIKE else ():
            needed = list(chosen)
            if not self.becomes_right(_joined(needed), goal):
                continue
            # Later operations follow from earlier ones.
            for left in reversed(chosen):
                rest = [p for p in needed if p is not left]
                needed = rest if rest and self.becomes_right(_joined(rest), goal) else needed
            first, *others = needed
            return replace(first, others=_joined(others)), tuple(self.doubtful(first.op)), ""
        return None

    def _chosen(
        self, fixers: Mapping[int, tuple[Proposal, str]], target: Proposal, doubtful: Sequence[tuple[int, Op]]
    ) -> Named | None:
        """Returns the wrong operation, if no other can be wrong; of an operation and its reader, the reader."""
        if not fixers:
            return self._unrepaired(target, doubtful)
        *others, last = sorted(fixers)
        left_out = [n for n in others if fixers[n][1] == _LEFT_OUT]
        if left_out and fixers[last][1] == _OTHER:
            # An operation that the program lacks, and not its reader, is one too many.
            others, last = others[: others.index(left_out[-1])], left_out[-1]
        proposal, words = fixers[last]
        if last == target.number:
            proposal = target
        direct = self._direct(proposal.op)
        return (proposal, (), words) if all(n in direct for n in others) else None

    def _unrepaired(self, target: Proposal, doubtful: Sequence[tuple[int, Op]]) -> Named | None:
        """Returns the only operation that can have made a value wrong, where no single change puts it right."""
        rest = [row for row in doubtful if not self._is_constant(row[1])] or list(doubtful)
        if len(rest) != 1 or rest[0][0] not in self._direct(target.op):
            return None
        (number, made), types = rest[0], self.track.stage.text.program.types
        if self._is_reshaped(target, made) and {n for n, _ in doubtful} <= {number} | self._direct(made):
            right = {c: x.reshape(types[made.results[0]].shape) for c, x in target.right.items()}
            return Proposal(number, made, made.results[0], target.expected, right), (), ""
        # Of a constant, an index or a movement, the reader stands for it.
        is_index = all(types[v].dtype.kind in "iub" for v in made.results)
        small = is_index or not self.track.operands(made) or is_movement(made) or is_collective(made)
        return (target, (), "") if small and len(doubtful) == 1 else None

    def _is_reshaped(self, target: Proposal, made: Op) -> bool:
        """Returns True if a value is the result of an operation in another shape."""
        op, types = target.op, self.track.stage.text.program.types
        while is_transparent(op) and (row := self.track.producers.get(self.track.operands(op)[0])) is not None:
            op = row[1]
        sizes = {math.prod(types[v].shape) for v in (target.value, made.results[0])}
        return op is made and op is not target.op and len(sizes) == 1

    def _is_constant(self, op: Op) -> bool:
        """Returns True for an operation on constants alone."""
        rows = map(self.track.producers.get, self.track.operands(op))
        return all(row is not None and self._is_constant(row[1]) for row in rows)

    def _direct(self, op: Op) -> set[int]:
        """Returns the operations whose results an operation reads, through movements."""
        found, rest = set[int](), list(self.track.operands(op))
        while rest:
            made = self.track.producers.get(rest.pop())
            if made is not None:
                found.add(made[0])
                rest += self.track.operands(made[1]) if is_movement(made[1]) else []
        return found

    def _repaired(self, number: int, op: Op, *, alone: bool = False) -> Iterator[tuple[Proposal, str]]:
        """Yields the result of an operation with one change, and the change; `alone`, of no other operands."""
        track, types = self.track, self.track.stage.text.program.types
        if len(op.results) != 1:
            return
        read = track.operands(op)
        if not read:
            yield from ((proposal, "") for proposal in self.proposals.constants(number, op))
        kind, held = types[op.results[0]], [self.replay.copies(v) for v in read]
        for copies, value in zip(held[:1], read, strict=False):
            if (types[value].shape, types[value].dtype) == (kind.shape, kind.dtype):
                yield Proposal(number, op, op.results[0], None, copies), _LEFT_OUT
        others = [] if alone else self._others(number, op)
        for repaired, words in (*repairs(op, [types[v].shape for v in read], len(track.stage.mesh)), *others):
            found = self.replay.perform(repaired, [self.replay.copies(v) for v in track.operands(repaired)])
            if found is not None:
                yield Proposal(number, op, op.results[0], None, found[0]), words

    def _others(self, number: int, op: Op) -> list[tuple[Op, str]]:
        """Returns an operation of other operands: of values of the same type just before it."""
        types, found = self.track.stage.text.program.types, list[tuple[Op, str]]()
        before = [v for o in self.track.stage.text.program.ops[:number] for v in o.results]
        for at, value in enumerate(op.operands):
            alike = [v for v in before if value is not None and types[v] == types[value] and v != value]
            for other in alike[: -_NEAR - 1 : -1] if types[value or 0].kind == "tensor" else ():
                operands = (*op.operands[:at], other, *op.operands[at + 1 :])
                found.append((replace(op, operands=operands), _OTHER))
        return found

    def _proof(self, proposal: Proposal, doubtful: tuple[tuple[int, Op], ...], repair: str) -> Proof:
        after = self.errors(proposal.replaced)
        before = tuple(o.error for o in self.track.outputs)
        rows = zip(after or before, self.track.outputs, strict=True)
        return Proof(proposal, doubtful, repair, before, tuple(after or before), all(e <= o.limit for e, o in rows))


def _joined(proposals: Sequence[Proposal]) -> dict[Value, Copies]:
    return {v: c for p in proposals for v, c in p.replaced.items()}
