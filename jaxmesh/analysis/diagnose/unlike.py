"""Finds what a text has otherwise than the right text before it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxmesh.analysis.diagnose.corrections import LEFT_OUT, OTHER, Correction, Wanted
from jaxmesh.analysis.diagnose.earlier import EarlierText, HeldBefore, passes_on
from jaxmesh.analysis.diagnose.movements import does_nothing, is_alike, is_collective, is_movement
from jaxmesh.analysis.diagnose.proof import Prover
from jaxmesh.analysis.diagnose.proposals import Proposal, informative
from jaxmesh.dialects.program import Op, Type

_BEFORE = 64
"""The most operations before those whose results a right text lacks, and the most that pass an operand on."""
Named = tuple[Proposal, tuple[tuple[int, Op], ...], Correction | None]
"""An operation with its right value, the others that may be wrong, and the change that puts it right."""


class EarlierProver(Prover):
    """The search for the operation whose results the right text before this one lacks."""

    def unlike_earlier(self) -> Named | None:
        """Returns the operation that differs from the right text, if one change of it puts the results right."""
        if self.earlier is None:
            return None
        tried = _Otherwise.of(self, self.earlier)
        makes = tried.likely, tried.constants, tried.numbers, tried.values, tried.others
        # Operations that the right text has, too, are wrong only if no other one is.
        doubtful = [row for row in tried.rows if row[0] not in tried.performed]
        every = [doubtful, tried.rows] if len(doubtful) < len(tried.rows) else [doubtful]
        searches = [(rows, make) for rows in every for make in makes]
        found = next((fixers for rows, make in searches if (fixers := self.fixers(rows, None, make))), None)
        if found is None:
            return None
        change = self._likeliest(found, tried.lacking)
        placed = self._in_place(change.proposal) if change.words == LEFT_OUT else change.proposal
        if placed.expected is not None and is_alike(placed.op, self.track.reference.values[placed.expected].op):
            # The program has the operation: it may be right, and read a wrong number.
            rows = list(self.before({placed.number: placed.op}).items())
            change = next(iter(self.fixers(rows, None, tried.constants).values()), change)
        if not change.words:
            # A movement before may be the wrong one, whose right result the right text lacks, too.
            made = change.proposal
            row = made.number, made.op
            before = self.before(dict([*self.feeding([row]), row]))
            moved = self.fixers(list(before.items()), None, tried.movements)
            if len(moved) != 1:
                return self._settled(made, tried)
            (change,) = moved.values()
        before = self.doubtful(change.proposal.op) if change.words == OTHER else []
        if any(number in tried.lacking for number, _ in before):
            # With other operands it would be right, but what is before it would not be.
            rest = [row for row in before if self.track.operands(row[1])]
            return self._in_place(change.proposal), tuple(rest), None
        return self._in_place(change.proposal), (), change

    def _likeliest(self, found: Mapping[int, Correction], lacking: Mapping[int, Op]) -> Correction:
        """Returns the change of the operation that is likeliest wrong: its result is new, and not what the program has
        in its place. A view without effect may stand in the place of another operation."""
        dropped = [n for n, c in found.items() if c.words.startswith("dropped")]
        own = [n for n in found if n in lacking and n not in dropped and found[n].words]
        idle = [n for n, c in found.items() if self.is_idle(c.proposal.op) and (n in dropped or not c.words)]
        # The right text has the results of the others, so that none is one too many.
        kept = [n for n, c in found.items() if c.words != LEFT_OUT]
        other = [n for n in kept if not self.is_in_its_place(n, found[n].proposal.op)]
        first = min(own, default=-1)
        made = found[first].proposal if own and found[first].words == LEFT_OUT else None
        if made is not None and is_movement(made.op) and not self.proposals.places.is_stray(first, made.op):
            # It may be right, and its reader read it otherwise.
            own = [n for n in own if first in dict(self.feeding([(n, found[n].proposal.op)]))] or own
        # The program lacks an operation of the kind there.
        new = [n for n in found if self.proposals.places.exactly(n, found[n].proposal.op, 0) is None]
        return found[min(own or idle or dropped or [n for n in found if n in lacking] or new or other or kept or found)]

    def _settled(self, made: Proposal, tried: _Otherwise) -> Named:
        """Returns the operation that lacks a value of the right text; several may make that value in turns."""
        later = [row for row in tried.lacking.items() if row[0] > made.number and not is_movement(row[1])]
        placed = (p for row in later for p in EarlierText([HeldBefore(made.right)]).in_place(*row, tried.kinds))
        steps = [(made.number, made.op), *((p.number, p.op) for p in placed if self.is_proven(p))]
        # In all iterations it also puts right what several operations before it make wrong together.
        fed = self.track.before(self.track.operands(made.op)) if made.others else ()
        before = [(n, op) for n, op in fed if n in tried.lacking and not is_movement(op)]
        return self._in_place(made), (*before, *steps[1:]), None

    def _in_place(self, made: Proposal) -> Proposal:
        """Returns the value of the program in the place of an operation, if that is the value that it has to make."""
        rows = self.proposals.in_place(made.number, made.op), self.proposals.anywhere(made.number, made.op)
        places = (p for p in itertools.chain(*rows) if p.value == made.value)
        return next((p for p in places if self.is_alike(made.right, p) and self.is_proven(p)), made)

    def before(self, rows: Mapping[int, Op]) -> dict[int, Op]:
        """Returns the operations that some operations read, through movements, operations that pass an operand on, and
        values of a few numbers: the right text may have their results in other places."""
        found, rest = dict[int, Op](), [v for op in rows.values() for v in self.track.operands(op)]
        while rest and len(found) < _BEFORE:
            made = self.track.producers.get(rest.pop(0))
            if made is not None and made[0] not in found:
                found[made[0]] = made[1]
                first = next(iter(self.replay.copies(made[1].results[0]).values()))
                is_step = is_movement(made[1]) or not informative(first) or passes_on(made[1], self.replay)
                # Depth first: operands of the first operations come before operands of later ones.
                rest = [*self.track.operands(made[1]), *rest] if is_step else rest
        return found

    def feeding(self, rows: Sequence[tuple[int, Op]]) -> list[tuple[int, Op]]:
        """Returns the operations whose results some operations read, through movements, exchanges, and values
        that no device holds."""

        def reads(op: Op) -> list[int]:
            is_step = is_movement(op) or is_collective(op)
            return [v for v in self.track.operands(op) if is_step or not self.track.held(v)]

        return self.track.before((v for _, op in rows for v in self.track.operands(op)), reads)

    def is_in_its_place(self, number: int, op: Op) -> bool:
        """Returns True if an operation makes what the program has at its place among operations of its kind."""
        found = self.proposals.places.exactly(number, op, 0)
        return found is not None and len(op.results) == 1 and self.proposals.is_equal(op.results[0], found)

    def is_counted(self, number: int, change: Correction) -> bool:
        """Returns True for a change to another kind of operation where the program has as many of the kind."""
        op = change.proposal.op
        found = self.proposals.places.exactly(number, op, 0) if op.used and "in its place" in change.words else None
        # The body of a reduction, or the direction of a comparison, says which it is.
        is_open = is_alike(op, "stablehlo.reduce") or is_alike(op, "stablehlo.compare")
        return found is not None and (not is_open or self.proposals.places.is_same(op, found))

    def is_idle(self, op: Op) -> bool:
        """Returns True for a movement that does nothing; no compiler prints it, so it stands for something else."""
        return does_nothing(op, self.track.stage.text.program.types)


@dataclass(frozen=True, slots=True)
class _Otherwise:
    """Changes of a text that differs from the right text before it.

    Attributes:
      prover: the runs of the text.
      known: the values of the right text.
      missing: those of them that the text lacks.
      lacking: the operations whose results the right text lacks.
      rows: these, those before them, and those that pass an operand on.
      performed: the operations of few numbers that the right text has, too.
      feeding: the operations before the first ones whose results the right text lacks.
    """

    prover: EarlierProver
    known: EarlierText
    missing: EarlierText
    lacking: Mapping[int, Op]
    rows: Sequence[tuple[int, Op]]
    performed: frozenset[int]
    feeding: frozenset[int]

    @classmethod
    def of(cls, prover: EarlierProver, earlier: EarlierText) -> _Otherwise:
        """Compares a text with the right one before it."""
        live, replay = prover.proposals.live, prover.replay
        known = earlier.also(replay.copies(p.value) for p in prover.track.stage.text.program.arguments)
        lacking = known.lacks(live, replay)
        passing = dict(itertools.islice(((n, op) for n, op in live if passes_on(op, replay)), _BEFORE))
        # A movement may be lacking in one shape alone.
        first = min((n for n, op in lacking.items() if not is_movement(op)), default=min(lacking, default=0))
        # The nearest ones first: the search ends after so many runs.
        rows = sorted((passing | prover.before(lacking) | lacking).items(), key=lambda row: abs(row[0] - first))
        made = {v for op in lacking.values() for v in op.results}
        feeding = prover.before({n: op for n, op in lacking.items() if made.isdisjoint(op.used)})
        missing, performed = known.without(prover.track, replay), known.performs(live, replay)
        return cls(prover, known, missing, lacking, rows, performed, frozenset(feeding))

    @property
    def kinds(self) -> Sequence[Type]:
        """The types of the values of the text."""
        return self.prover.track.stage.text.program.types

    def changes(self, number: int, op: Op, words: str = OTHER, wanted: Wanted | None = None) -> Iterator[Correction]:
        """Yields the changes of an operation, but those with some words and to a kind that the program has as often."""
        made = self.prover.changes.of(number, op, every=True, wanted=wanted)
        for change in made if self.prover.track.operands(op) else ():
            if change.words != words and not self.prover.is_counted(number, change):
                yield change

    def movements(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields the changes of a movement to another movement of its kind; another operation is left out."""
        if is_movement(op):
            return (c for c in self.changes(number, op) if c.is_own)
        return self.prover.changes.left_out(number, op, True) if number in self.lacking else iter(())

    def likely(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields the changes of an operation to what the right text has."""
        if self.prover.track.operands(op):
            return self.changes(number, op, wanted=self.known.has)
        return self.constants(number, op) if number in self.lacking else iter(())

    def constants(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields the numbers of the right text in the place of a number."""
        pool = self.known if number in self.lacking or number in self.feeding else self.missing
        rows = () if self.prover.track.operands(op) else pool.in_place(number, op, self.kinds)
        return (self.prover.changes.constant(self.prover.proposals.everywhere(p)) for p in rows)

    def numbers(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields the numbers of the program in the place of a number that the right text lacks."""
        is_new = number in self.lacking and not self.prover.track.operands(op)
        return self.prover.changes.of(number, op, alone=True) if is_new else iter(())

    def values(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields the values that the text lacks in the place of a result that the right text lacks; in a loop that
        lacks as many in each iteration, one for each."""
        is_idle, ops = self.prover.is_idle(op), self.prover.track.stage.text.program.ops
        later = self.prover.proposals.alike(number)[1:]
        lacked = self.missing.by_origin(number, op, self.kinds) if is_idle or number in self.lacking else {}
        # The text may have the value of an operation that is left out elsewhere, too, or a value of another iteration.
        known = self.known.by_origin(number, op, self.kinds) if later or is_idle else {}
        alike = [rows for origin, rows in known.items() if origin in lacked and origin is not None]
        for rows in alike if later else [*lacked.values(), *known.values()]:
            count, rest = divmod(len(rows), len(later) + 1)
            for at in range(len(rows) if rest else count):
                others = [] if rest else rows[at + count :: count]
                right = {ops[n].results[0]: p.right for n, p in zip(later, others, strict=not rest)}
                yield Correction(replace(rows[at], others=right), "")

    def others(self, number: int, op: Op) -> Iterator[Correction]:
        """Yields the changes of an operation to what the right text has, also of its operands, and of any number."""
        is_number = not self.prover.track.operands(op)
        known = self.known.has
        return (
            self.prover.changes.of(number, op, alone=True, wanted=known)
            if is_number
            else self.changes(number, op, "", known)
        )
