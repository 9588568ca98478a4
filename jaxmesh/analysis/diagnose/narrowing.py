"""Narrows what puts the results right to one operation: no other one before it can be the wrong one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from jaxmesh.analysis.diagnose.corrections import LEFT_OUT, OTHER, UNREAD, Correction
from jaxmesh.analysis.diagnose.movements import (
    does_nothing,
    is_alike,
    is_collective,
    is_movement,
    is_transparent,
)
from jaxmesh.analysis.diagnose.proof import Proof
from jaxmesh.analysis.diagnose.proposals import Proposal, informative
from jaxmesh.analysis.diagnose.replay import Budget
from jaxmesh.analysis.diagnose.source_lines import line
from jaxmesh.analysis.diagnose.stage import Copies
from jaxmesh.analysis.diagnose.tracking import Track, Value
from jaxmesh.analysis.diagnose.unlike import EarlierProver, Named
from jaxmesh.dialects.program import Op

_RUNS = 160
"""The most runs of a part of a text."""
_EVERY = 2048
"""The most runs of a text, to try all changes of the operations of an interval."""
_ALIKE = 12
"""The most values put right together."""


class Narrowing(EarlierProver):
    """The search for the operation that made a value wrong."""

    def proof(self, goal: Proposal) -> Proof:
        """Returns the proof for the one operation that can have made a value wrong, where several may have."""
        named = self._narrowed(goal)
        wrong = {i for i, o in enumerate(self.track.outputs) if not o.is_right}
        right = self.put_right(goal)
        if named[1] and right & wrong and not wrong <= right:
            # Another error makes the other results wrong.
            self.asked = right
            named = self._narrowed(goal)
        return self._proof(goal, self._alone(named))

    def _alone(self, named: Named) -> Named:
        """Returns the only operation of an interval that puts the results right as another one."""
        proposal, doubtful, change = named
        rows, budget = [*doubtful, (proposal.number, proposal.op)], Budget(self.replay, _EVERY)
        found = {} if change is not None or not doubtful else self.fixers(rows, None, self._own_changes, budget)
        if len(found) != 1 or not budget.take():
            return named
        (change,) = found.values()
        return change.proposal, (), change

    def _own_changes(self, number: int, op: Op) -> Iterator[Correction]:
        changes = self.changes.of(number, op, alone=True)
        return (c for c in changes if c.is_own and not self.is_counted(number, c))

    def _proof(self, goal: Proposal, named: Named) -> Proof:
        proposal, doubtful, change = named
        after = self.errors(proposal.replaced)
        before = tuple(o.error for o in self.track.outputs)
        rows = list(zip(after or before, self.track.outputs, strict=True))
        holds = all(e <= o.limit for e, o in rows)
        expected = proposal.expected
        is_alike = expected is not None and self._is_counterpart(proposal, expected)
        if not is_alike and not any(e <= o.limit < o.error for e, o in rows):
            # It puts no result right: any operation may be wrong whose result may be.
            doubtful = tuple(r for r in self.proposals.live if not all(map(self.is_trusted, r[1].results)))
        infinities = tuple(_kind_of_infinity(self.track, i) for i in range(len(before)))
        return Proof(proposal, doubtful, change, before, tuple(after or before), goal, holds, infinities)

    def _narrowed(self, goal: Proposal) -> Named:
        if (found := self.unlike_earlier()) is not None:
            return found
        first, own = self._earliest(goal, Budget(self.replay, _RUNS)), functools.partial(self.changes.of, alone=True)
        target = self._lacking(first, Budget(self.replay, _RUNS))
        doubtful, lines = self.doubtful(target.op), self.track.stage.text.lines
        if all(lines[n] == lines[target.number] for n, _ in doubtful):
            # None, or the operation itself in earlier iterations.
            doubtful = []
        if self.holds_parts(target):
            # The devices hold the right parts; what does nothing stands in the place of their reduction.
            idle = [row for row in doubtful if self.is_idle(row[1])]
            change = next(iter(self.fixers(idle, goal, self.changes.missing).values()), None)
            return (target, (), None) if change is None else (change.proposal, (), change)
        rows = [*doubtful, (target.number, target.op)]
        steps = [n for n, o in rows if self.track.operands(o) and self.proposals.is_last(o)]
        ordered = sorted(rows, key=lambda r: (r[0] != target.number, r[0] not in steps, not self._is_first(r[1])))
        feeding, readers, every = self.feeding(rows), self.proposals.reductions_after(goal.value), self.changes.of
        fixers = self.fixers(ordered, goal, every)
        if fixers and not informative(next(iter(target.right.values()))):
            # Other operations up to the goal may make another value of so few numbers right.
            known = {n for n, _ in rows}
            between = [row for row in (*self.doubtful(goal.op), (goal.number, goal.op)) if row[0] not in known]
            fixers |= self.fixers(between, goal, every)
        # The goal may be parts that a later operation reduces wrongly. The operands may seem right: an exchange is
        # missing, or a movement moves another value. Another value of the goal may put the results right, too.
        # If the goal puts some of the results right alone, they may have one source.
        one_source = [] if self.is_proven(goal) else feeding[::-1]
        searches = (one_source, None, own), (readers, goal, own), (feeding, goal, self.changes.missing)
        later = [] if target is goal else self.feeding([(goal.number, goal.op)])
        for search in (*searches, (feeding, goal, every), (later, goal, own), ([*rows, *feeding], None, every)):
            fixers = fixers or self.fixers(*search)
        # A number is right if no other number of the program puts the results right; a list of numbers may be wrong.
        rest = [row for row in doubtful if not self._is_constant(row[1])]
        chosen = self._chosen(fixers, target, goal) if fixers else self._together(goal)
        if chosen is None and fixers:
            *others, last = [fixers[n].proposal for n in sorted(fixers)]
            return last, tuple((p.number, p.op) for p in others), None
        return self._proven(chosen or (target, tuple(rest), None), target)

    def _proven(self, chosen: Named, target: Proposal) -> Named:
        """Returns an operation that is proven, or the operations among which the wrong one is."""
        named, before, change = chosen
        lines = self.track.stage.text.lines
        if change is not None and change.words == LEFT_OUT and self.proposals.places.is_stray(named.number, named.op):
            return chosen
        is_other = change is None or not change.is_own
        later = self._later(target) if is_other or self.is_trusted(named.value) else []
        is_like = named.expected is not None and self._is_counterpart(named, named.expected)
        if later and (change is not None or not is_like):
            # Several operations are each right as other ones: no operation of these is proven.
            *others, last = (*((named,) if change is not None else ()), *(c.proposal for c in later))
            return last, tuple((p.number, p.op) for p in others if p.number != last.number), None
        read = [row for row in self.doubtful(named.op) if self.track.operands(row[1])]
        rest = [row for row in read if lines[row[0]] != lines[named.number]]
        if change is not None and change.words == OTHER and rest:
            # Its operand may be wrong instead.
            return named, tuple(rest), None
        if change is None or not is_movement(named.op) or is_collective(named.op):
            return self._without_cause(named) if change is None and not before else chosen
        # Of two movements one moves as the other one should, and either may.
        feeding = [row for row in self.feeding([(named.number, named.op)]) if not is_collective(row[1])]
        alike = self.fixers(feeding, None, functools.partial(self._changes_to, change.words))
        return (named, tuple((n, c.proposal.op) for n, c in alike.items()), None) if alike else chosen

    def _changes_to(self, words: str, number: int, op: Op) -> Iterator[Correction]:
        return (c for c in self.changes.of(number, op, alone=True) if c.words == words)

    def _without_cause(self, target: Proposal) -> Named:
        """Returns an operation without a cause: with the operands of its counterpart it is proven; else the operations
        before it on the user's line are returned, too."""
        track, number, op = self.track, target.number, target.op
        values, types = track.reference.values, track.stage.text.program.types
        if target.expected is not None and does_nothing(op, types):
            name = values[target.expected].op
            words = f"left out: it does nothing, and the program has {name} in its place"
            return target, (), Correction(target, words)
        if target.expected is not None and self._is_counterpart(target, target.expected):
            return target, (), None
        source, around = line(track.stage.source(number)), {n for n, _ in self.track.before([target.value])}
        beside = [row for row in self.proposals.live if row[0] in around and line(track.stage.source(row[0])) == source]
        rows = beside if source and len(beside) > 1 else [*self.feeding([(number, op)]), (number, op)]
        return target, tuple(rows), None

    def _is_counterpart(self, target: Proposal, expected: int) -> bool:
        """Returns True if a value of the program is of the kind of a result, and computed from its operands."""
        track, value = self.track, self.track.reference.values[expected]
        kinds = {track.stage.text.program.types[target.value].dtype.kind, value.array.dtype.kind}
        is_read = all(self.proposals.reads(expected, v) for v in track.operands(target.op))
        return len(kinds - {"V"}) == 1 and is_alike(target.op, value.op) and is_read

    def _is_constant(self, op: Op) -> bool:
        """Returns True for an operation that makes one number everywhere from nothing."""
        first = next(iter(self.replay.copies(op.results[0]).values()))
        return not self.track.operands(op) and bool((first == first.reshape(-1)[:1]).all())

    def _later(self, target: Proposal) -> list[Correction]:
        """Returns the changes of the later operations on the line of a target that are right as other ones."""
        stage, budget, found = self.track.stage, Budget(self.replay, _RUNS), list[Correction]()
        source = line(stage.source(target.number))
        for number, op in self.proposals.live:
            is_beside = number > target.number and line(stage.source(number)) == source
            if is_beside and not self.is_in_its_place(number, op):
                changes = [c for c in self.changes.of(number, op, alone=True) if c.is_own or c.words == LEFT_OUT]
                plausible = (c for c in changes if not self.is_counted(number, c))
                right = (c for c in plausible if budget.take() and self.is_proven(c.proposal, c.form))
                found += itertools.islice(right, 1)
        return found

    def _earliest(self, target: Proposal, budget: Budget) -> Proposal:
        """Returns the first operation before a target that may be wrong, and whose result the program has."""
        rows = [row for row in self.doubtful(target.op) if self.track.operands(row[1])]
        for number, op in sorted(rows, key=lambda row: not self.is_idle(row[1])):
            for proposal in (*self.proposals.in_place(number, op), *self.proposals.anywhere(number, op)):
                if not budget.take():
                    return target
                if self.becomes_right(proposal.replaced, target) and self.is_proven(proposal):
                    return proposal
        return target

    def _lacking(self, target: Proposal, budget: Budget) -> Proposal:
        """Returns the first operation of a chain that each have another value for the next than the program reads."""
        for proposal in self._read_instead(target):
            if not budget.take():
                return target
            if self.becomes_right(proposal.replaced, target) and self.is_proven(proposal):
                return self._lacking(proposal, budget)
        return target

    def _read_instead(self, target: Proposal) -> Iterator[Proposal]:
        """Yields what the program reads for the value of an operation, and no device holds, for what it reads."""
        track = self.track
        missing = (
            []
            if target.expected is None
            else [n for n in self.proposals.unmoved(target.expected) if self.proposals.places.misses(n)]
        )
        rest = list(track.operands(target.op))
        while rest and missing:
            value = rest.pop()
            made = track.producers.get(value)
            if made is not None and is_transparent(made[1]):
                rest += track.operands(made[1])
            if made is not None and track.operands(made[1]) and self._computes(made[1]):
                for n in missing:
                    yield from self.proposals.placed(*made, value, n)

    def _computes(self, op: Op) -> bool:
        """Returns False for a movement that the types determine; if it does nothing, an operation may be left out."""
        return not is_transparent(op) or self.is_idle(op)

    def _together(self, goal: Proposal) -> Named | None:
        """Returns the first of several wrong operations, which put a value right if they are put right together."""
        doubtful, budget = self.doubtful(goal.op), Budget(self.replay, _RUNS)
        rows = [list(itertools.islice(self.proposals.in_place(*row), 3)) for row in doubtful]
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
            beside = _joined(others)
            for change in (c for row in doubtful for c in self.changes.of(*row, alone=True) if c.is_own):
                if not budget.take():
                    break
                if self.becomes_right({**beside, **change.proposal.replaced}, goal):
                    return replace(change.proposal, others=beside), (), change
            return replace(first, others=beside), tuple(self.doubtful(first.op)), None
        return None

    def _chosen(self, fixers: Mapping[int, Correction], target: Proposal, goal: Proposal) -> Named | None:
        """Returns the wrong operation, if no other can be wrong; of an operation and its reader, the reader."""
        # A change before the goal also puts the goal in its place.
        after = {target.number, goal.number}
        for number, change in sorted(fixers.items(), key=lambda row: (self._is_constant(row[1].proposal.op), row[0])):
            if (number not in after or change.words == LEFT_OUT) and self._is_in_place(change):
                return change.proposal, (), change
        idle = {n: c for n, c in fixers.items() if self.is_idle(c.proposal.op) and c.words not in (OTHER, UNREAD)}
        fixers = idle or {n: c for n, c in fixers.items() if c.is_own} or fixers
        fixers = {n: c for n, c in fixers.items() if not self.is_counted(n, c)} or fixers
        *others, last = sorted(fixers)
        left_out = [n for n in others if fixers[n].words == LEFT_OUT]
        if left_out and fixers[last].words == OTHER:
            # An operation that the program lacks, and not its reader, is one too many.
            others, last = others[: others.index(left_out[-1])], left_out[-1]
        change = fixers[last]
        track, op = self.track, change.proposal.op
        direct = dict(track.before(track.operands(op), track.moved_operands))
        if not all(n in direct for n in others):
            return None
        return (target if last == target.number else change.proposal), (), change

    def _is_in_place(self, change: Correction) -> bool:
        """Returns True if a change makes what the program has in the place of an operation, which has another value."""
        proposal, pool = change.proposal, self.track.pool
        number, op, held = proposal.number, proposal.op, self.replay.copies(proposal.value)
        if proposal.value not in op.results:
            return False
        index = op.results.index(proposal.value)
        if change.words == LEFT_OUT:
            return self.proposals.places.is_stray(number, op) or not self.proposals.places.of(number, op, index)
        shape = self.track.stage.text.program.types[proposal.value].shape
        for n in self.proposals.places.of(number, op, index) if not is_transparent(op) else ():
            limit = pool.limit(n, *self.track.carried(proposal.value, 0.0))
            if informative(pool.arrays[n]) and any(
                pool.error(proposal.right, n, p) <= limit < pool.error(held, n, p) for p in pool.placements(n, shape)
            ):
                return True
        return False


def _joined(proposals: Sequence[Proposal]) -> dict[Value, Copies]:
    return {v: c for p in proposals for v, c in p.replaced.items()}


def _kind_of_infinity(track: Track, number: int) -> str:
    """Returns what an infinite error of a result says, in words."""
    value, status = track.outputs[number].value, track.stage.text.results[number].status
    if track.is_misplaced(number, value):
        return "another layout"
    if status == "presharded" and track.reference.results[number] is None:
        return "another value in each layout"
    return "other shapes" if track.right_output(number, value) is None else "NaN or infinities"
