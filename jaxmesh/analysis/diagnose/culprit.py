"""Names the wrong operation of a stage, if a run proves it, and why: a cause is named if performing what it says gives
the right value."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxmesh.analysis.diagnose.corrections import PARTS, Correction
from jaxmesh.analysis.diagnose.earlier import EarlierText
from jaxmesh.analysis.diagnose.keeper import is_unrounded
from jaxmesh.analysis.diagnose.matching import HeldValue, split_axes
from jaxmesh.analysis.diagnose.movements import does_nothing, is_alike, is_collective, is_transparent, short_name
from jaxmesh.analysis.diagnose.narrowing import Narrowing
from jaxmesh.analysis.diagnose.proof import Proof, Prover
from jaxmesh.analysis.diagnose.proposals import MOVES, Proposal
from jaxmesh.analysis.diagnose.reference_value import Reference, ReferenceValue
from jaxmesh.analysis.diagnose.replay import Budget, Replay
from jaxmesh.analysis.diagnose.rounding import EXACT, as_numbers
from jaxmesh.analysis.diagnose.source_lines import line
from jaxmesh.analysis.diagnose.stage import Copies
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.analysis.diagnose.wrong_values import WrongValue, compare_parts, compare_with
from jaxmesh.dialects.definitions import has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op
from jaxmesh.frontends.stablehlo.gspmd import walk
from jaxmesh.frontends.stablehlo.shardings import axes_of, show


@dataclass(frozen=True, slots=True)
class Culprit:
    """The wrong operation of a stage.

    Attributes:
      track: the values of the stage.
      number: the number of the operation in the text.
      op: the operation.
      operands: the explanations of its operands.
      expected: the value of the unsharded run that it should compute; None if it is not known.
      value: the wrong elements; None where the shapes cannot be compared.
      proof: the replacement that puts the results right; None of a result that is none of the program's.
      prover: the runs that prove it.
      corrected: the wrong elements beside what a change of the operation makes; None for an expected value.
    """

    track: Track
    number: int
    op: Op
    operands: tuple[HeldValue, ...]
    expected: ReferenceValue | None
    value: WrongValue | None
    proof: Proof | None = None
    prover: Prover | None = None
    corrected: WrongValue | None = None

    @property
    def between(self) -> tuple[int, int] | None:
        """The numbers of the first and the last operation that may be the wrong one; None if it is this one."""
        numbers = {self.number, *(n for n, _ in self.proof.doubtful)} if self.proof is not None else {self.number}
        # Iterations of a loop have their lines in common.
        lines = {n: line for n, line in enumerate(self.track.stage.text.lines) if n in numbers}
        is_one = len(numbers) == 1 or (len(set(lines.values())) == 1 and lines.keys() == numbers)
        return None if is_one else (min(numbers), max(numbers))


def find_culprit(track: Track, earlier: EarlierText | None = None) -> Culprit:
    """Returns the wrong operation of a stage, or the last operation that may be wrong; `earlier` is a right text."""
    prover = Narrowing(track, Replay.of(track.stage, track.placed), earlier=earlier)
    goal = prover.goal()
    proof = None if goal is None else prover.proof(goal)
    index = next(i for i, o in enumerate(track.outputs) if not o.is_right)
    value = track.outputs[index].value
    if proof is None or (
        proof.change is None
        and proof.proposal.value == value
        and prover.is_trusted(value)
        and not any(e.partial for e in track.held(value))
    ):
        return _of_return(track, index)
    proposal, expected = proof.proposal, proof.proposal.expected
    number, op = _taking_parts(prover, proof) or (proposal.number, proposal.op)
    known = tuple(track.known[v] for v in track.operands(op) if v in track.known)
    copies, unit = prover.replay.copies(proposal.value), track.units.get(proposal.value, 0.0)
    wrong = None if expected is None else compare_with(track.pool, copies, expected, unit)
    # The reader of parts computes another value.
    is_own = op is proposal.op or does_nothing(op, track.stage.text.program.types)
    reference = track.reference.values[expected] if expected is not None and is_own else None
    corrected = compare_parts(copies, proposal.right, unit) if expected is None else None
    return Culprit(track, number, op, known, reference, wrong, proof, prover, corrected)


def _taking_parts(prover: Prover, proof: Proof) -> tuple[int, Op] | None:
    """Returns the first operation that takes the right parts of a reduction for the whole; None if they are not these.

    A movement that does nothing stands in the place of the reduction.
    """
    proposal, track = proof.proposal, prover.track
    given = proof.change is not None and not proof.change.words.startswith(PARTS)
    is_whole = is_collective(proposal.op) and not (
        has_trait(proposal.op.name, Trait.REDUCES) and proof.change is not None
    )
    if given or (proof.change is None and not prover.holds_parts(proposal)):
        return None
    made, ops = proposal.op, track.stage.text.program.ops
    while is_transparent(made) and (row := track.producers.get(track.operands(made)[0])) is not None:
        made = row[1]
    live, values = prover.proposals.live, set(made.results)
    for n, op in enumerate(ops):
        if values & set(op.used) and has_trait(op.name, Trait.REDUCES) and (n, op) not in live:
            # A reduction whose result nothing reads.
            values = {op.used[0]}
            break
        values |= set(op.results) if is_transparent(op) and values & set(op.used) else set()
    else:
        values = set(made.results)
    first = rest = [(n, o) for n, o in live if values & set(o.used)]
    while rest and is_transparent(rest[0][1]):
        if does_nothing(rest[0][1], track.stage.text.program.types):
            return rest[0]
        rest = [(n, o) for n, o in live if set(rest[0][1].results) & set(o.used)]
    if rest and is_collective(rest[0][1]) and has_trait(rest[0][1].name, Trait.REDUCES):
        # It reduces over another axis.
        return rest[0]
    if is_whole:
        return None
    if not first:
        return len(ops), Op("func.return", (proposal.value,), (proposal.value,))
    for row in first:
        whole = prover.replay.replaced(proposal.replaced, row[1].results)
        errors = prover.errors(whole) if whole else None
        if errors is not None and all(e <= o.limit for e, o in zip(errors, track.outputs, strict=True)):
            return row
    return next((row for row in first if not has_trait(row[1].name, Trait.REDUCES)), None)


def _of_return(track: Track, index: int) -> Culprit:
    """Returns the culprit of a result that is another value of the program, or is laid out otherwise."""
    value, wanted = track.outputs[index].value, track.reference.outputs[index]
    values, same, known = track.reference.values, track.pool.same, track.held(value)
    last = values[wanted]
    while last.op == "sdy.sharding_constraint":
        last = values[last.operands[0]]
    is_other = bool(known) and same[known[0].number] != same[wanted]
    end = len(track.stage.text.program.ops)
    return Culprit(track, end, Op("func.return", (value,), (value,)), known, last if is_other else None, None)


def counterparts(track: Track, number: int, op: Op) -> list[int]:
    """Returns the values of the unsharded run that an operation may have to compute, the likeliest first.

    No device holds them; devices hold their operands. Values on the line of the operation come first.
    """
    values, same = track.reference.values, track.pool.same
    missing = [i for i in track.used if same[i] not in track.reproduced and values[i].op not in MOVES]
    source, shape = track.stage.source(number), track.stage.text.program.types[op.results[0]].shape

    def rank(i: int) -> tuple[bool, bool, bool, int]:
        fits = next(track.pool.placements(i, shape), None) is not None
        return line(values[i].source) != line(source), not is_alike(op, values[i].op), not fits, i

    return sorted(missing, key=rank)


# --- rounding --------------------------------------------------------------------------------------------------------

_RUNS = 24
"""The most runs with other roundings."""
_LEAST = {2: 0.1, 8: 0.5}
"""By the number of runs, the share of the wrong elements below which more runs are given up."""
_FACTOR, _SHARE = 1.5, 0.9
"""By how much more than in these runs elements may differ, and the share of the wrong elements that have to."""


def decided_by_rounding(culprit: Culprit, rounded: Callable[[float, int], Reference]) -> list[bool]:
    """Returns which results are wrong because of a value that other roundings of the unsharded program move as far as
    the devices are from it.

    Args:
      culprit: an operation whose right value puts the results right.
      rounded: runs the program with results that differ at random by up to a rounding unit, for a unit and a seed.
    """
    proof, prover, outputs = culprit.proof, culprit.prover, culprit.track.outputs
    if proof is None or prover is None or not _rounding_decides(culprit, rounded):
        return [False] * len(outputs)
    errors = prover.errors(proof.goal.replaced)
    after = [o.error for o in outputs] if errors is None else errors
    return [e <= o.limit < o.error for e, o in zip(after, outputs, strict=True)]


def _rounding_decides(culprit: Culprit, rounded: Callable[[float, int], Reference]) -> bool:
    """Returns True if other roundings of the unsharded program move its own value as far as the devices are from it."""
    proof, prover, track, pool = culprit.proof, culprit.prover, culprit.track, culprit.track.pool
    if proof is None or prover is None or (number := proof.goal.expected) is None:
        return False
    if prover.holds_parts(proof.proposal):
        return False
    expected = track.reference.values[number]
    if is_unrounded(expected.op, expected.value) and _is_exact_before(track, proof.goal.op):
        return False
    # A value without floats in its history has exact results.
    own = culprit.track.units.get(proof.goal.value, 0.0)
    unit, value = own or EXACT, compare_with(pool, prover.replay.copies(proof.goal.value), number, own)
    if value is None or (proof.change is not None and _is_mostly_wrong(value)):
        # A change of the text makes it of the same operands.
        return False
    apart = len(pool.apart.get(number, ()))
    spread = {c: np.zeros(block.shape) for c, block in value.blocks.items()}
    for seed in range(_RUNS):
        moved = as_numbers(rounded(unit, seed).values[number].array)
        with np.errstate(all="ignore"):
            for c, block in value.blocks.items():
                other = pool.block(number, value.placement[apart:], c, moved)
                spread[c] = np.fmax(spread[c], np.abs(np.asarray(other, np.float64) - np.asarray(block, np.float64)))
            share = _explained(value, spread)
        if share >= _SHARE or share < _LEAST.get(seed + 1, 0.0):
            return share >= _SHARE
    return False


def _is_mostly_wrong(value: WrongValue) -> bool:
    """Returns True if more than half of the elements are wrong, which no choice between two neighbours explains."""
    elements = value.elements()
    return 2 * sum(e.count for e in elements) > sum(e.size for e in elements)


def _is_exact_before(track: Track, op: Op) -> bool:
    """Returns True if the devices hold each operand of an operation without an error, so that nothing was rounded."""
    return all(v in track.known and not track.known[v].error for v in track.operands(op))


def _explained(value: WrongValue, spread: Copies) -> float:
    """Returns the share of the wrong elements that differ no more than a spread."""
    wrong = explained = 0
    for c, at in value.wrong.items():
        gap = np.abs(np.asarray(value.found[c], np.float64) - np.asarray(value.blocks[c], np.float64))
        wrong += int(at.sum())
        explained += int((gap <= _FACTOR * spread[c])[at].sum())
    return explained / wrong if wrong else 0.0


_REDUCTIONS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
_CHANGES = 96
"""The most changes that are tried for a cause."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause: one sentence, the mesh axes, and the tensor dims of the operand that they split."""

    text: str
    axes: tuple[str, ...]
    dims: tuple[int, ...]


def cause_of(track: Track, culprit: Culprit) -> Cause:
    """Returns why an operation is wrong; the text is empty if no cause is proven."""
    axes = tuple(split_axes(culprit.operands))
    none = Cause("", axes, _dims(culprit.operands, axes))
    if culprit.op.name == "func.return" and culprit.proof is None:
        return _left_out(track, culprit) or _laid_out(track, culprit) or none
    proof, prover = culprit.proof, culprit.prover
    if proof is None or prover is None or culprit.between is not None:
        return none
    target = proof.proposal
    if (found := _other_type(track, culprit, target)) is not None:
        return found
    if prover.is_alike(prover.replay.copies(target.value), target):
        return none
    change = proof.change or _change(prover, target)
    if change is not None:
        return Cause(_words(culprit, change), change.axes or axes, change.dims or _dims(culprit.operands, axes))
    return _other_reduction(culprit, target) or none


def _change(prover: Prover, target: Proposal) -> Correction | None:
    """Returns the first change of an operation that makes its result what it has to be."""
    budget = Budget(prover.replay, _CHANGES)
    for change in prover.changes.of(target.number, target.op):
        if not budget.take():
            return None
        made = change.proposal
        if made.value == target.value and prover.is_alike(made.right, target, change.form):
            # In a loop, it may be right in one iteration alone.
            return change if prover.is_proven(made, change.form) or not made.others else None
    return None


def _words(culprit: Culprit, change: Correction) -> str:
    """Returns a cause; of a reduction in the place of another one both."""
    expected = culprit.expected
    if expected is None or expected.op != "stablehlo.reduce" or "in its place" not in change.words:
        return change.words
    return _of_reductions(expected, culprit.op)


def _of_reductions(expected: ReferenceValue, op: Op) -> str:
    body = [o.name.partition(".")[2] for o in walk(expected.value.owner) if o.name != "stablehlo.return"]
    return f"another reduction: the program's is by {', '.join(body)}, and the operation is {short_name(op)}"


def _other_reduction(culprit: Culprit, target: Proposal) -> Cause | None:
    """Finds reductions of truth values or of two operations by one operation of numbers, which is another function."""
    expected, name = culprit.expected, short_name(target.op)
    if expected is None or expected.op != "stablehlo.reduce" or name not in _REDUCTIONS:
        return None
    words = _of_reductions(expected, culprit.op)
    return None if f"by {_REDUCTIONS[name]}, and" in words else Cause(words, (), ())


def _dims(operands: Sequence[HeldValue], axes: Sequence[str]) -> tuple[int, ...]:
    return tuple(sorted({d for e in operands for d, split in enumerate(e.placement) if set(split) & set(axes)}))


def _other_type(track: Track, culprit: Culprit, target: Proposal) -> Cause | None:
    """Finds integers of another width than in the program, which wrap elsewhere."""
    if culprit.expected is None or culprit.prover is None or is_collective(target.op):
        return None
    wanted, held = culprit.expected.array.dtype, track.stage.text.program.types[target.value].dtype
    if {wanted.kind, held.kind} - {"i", "u"} or wanted.itemsize == held.itemsize:
        return None
    copies = culprit.prover.replay.copies(target.value)
    narrow = {c: x.astype(wanted).astype(held) for c, x in copies.items()}
    if wanted.itemsize < held.itemsize and not culprit.prover.is_alike(narrow, target):
        return None
    return Cause(f"integers of another width: {wanted} in the program, and {held} in the operation", (), ())


# --- results ---------------------------------------------------------------------------------------------------------


def _left_out(track: Track, culprit: Culprit) -> Cause | None:
    """Finds a result that is an argument, or another value, where the program has an operation of it."""
    expected, (value,) = culprit.expected, culprit.op.used
    held = {track.pool.same[e.number] for e in track.held(value)}
    if expected is None or not held & {track.pool.same[n] for n in expected.operands}:
        return None
    name = "the operand" if value in track.producers else f"argument {value}"
    return Cause(f"left out: the result is {name} itself, without {expected.op}", (), ())


def _laid_out(track: Track, culprit: Culprit) -> Cause | None:
    """Finds a result that the devices hold otherwise than the program asks."""
    (value,) = culprit.op.used
    number = next(i for i, o in enumerate(track.outputs) if o.value == value)
    known, asked = track.known.get(value), track.reference.results[number]
    if known is None or asked is None or culprit.expected is not None or known.partial:
        return None
    axes = tuple(dict.fromkeys([*axes_of(asked), *axes_of(known.placement)]))
    if track.is_misplaced(number, value):
        return Cause(
            f"result {number} is asked as {show(asked)} and marked unsharded, which says one whole array of the host; "
            f"the devices hold {show(known.placement)}",
            axes,
            tuple(d for d, a in enumerate(asked) if a),
        )
    return Cause(
        f"result {number} is asked as {show(asked)} and made as {show(known.placement)}",
        axes,
        tuple(d for d, (a, b) in enumerate(itertools.zip_longest(asked, known.placement, fillvalue=())) if a != b),
    )
