"""Why an operation is wrong: a cause is named if performing what it says gives the right value."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxmesh.analysis.diagnose.corrections import Correction
from jaxmesh.analysis.diagnose.culprit import Culprit
from jaxmesh.analysis.diagnose.matching import HeldValue, split_axes
from jaxmesh.analysis.diagnose.movements import is_collective, short_name
from jaxmesh.analysis.diagnose.proof import Prover
from jaxmesh.analysis.diagnose.proposals import Proposal
from jaxmesh.analysis.diagnose.reference_value import ReferenceValue
from jaxmesh.analysis.diagnose.replay import Budget
from jaxmesh.analysis.diagnose.stage import Array
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.dialects.program import Op
from jaxmesh.frontends.stablehlo.gspmd import walk
from jaxmesh.frontends.stablehlo.shardings import axes_of, show

_REDUCTIONS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
_CHANGES, _SECONDS = 96, 4.0
"""The most changes that are tried for a cause, and the longest time."""


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
    return _permuted(track, culprit, target) or _other_reduction(culprit, target) or none


def _change(prover: Prover, target: Proposal) -> Correction | None:
    """Returns the first change of an operation that makes its result what it has to be."""
    budget = Budget(_CHANGES, _SECONDS)
    for change in prover.changes.of(target.number, target.op):
        if not budget.take():
            return None
        if change.proposal.value == target.value and prover.is_alike(change.proposal.right, target, change.form):
            return change
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


def _permuted(track: Track, culprit: Culprit, target: Proposal) -> Cause | None:
    """Finds devices with the blocks of other devices."""
    value = culprit.value
    if value is None or not is_collective(target.op):
        return None
    number = next(iter(track.operands(target.op)), -1)
    axes = tuple(split_axes(culprit.operands) or axes_of(value.placement))
    if track.misplaced.intersection(target.op.results) and number < len(track.reference.arguments):
        declared, held = track.reference.arguments[number] or (), track.known[target.value].placement
        return Cause(
            f"permuted shards: argument {number} is declared {show(declared)}, and the devices hold it as {show(held)}",
            tuple(dict.fromkeys([*axes_of(declared), *axes_of(held)])),
            tuple(d for d, split in enumerate(held) if split),
        )
    swapped = [c for c in value.devices if any(_is_block(value.found[c], b) for b in value.blocks.values())]
    if not swapped or len(swapped) < len(value.devices):
        return None
    return Cause("permuted shards: the devices hold each other's blocks", axes, _dims(culprit.operands, axes))


def _is_block(x: Array, block: Array) -> bool:
    scale = float(np.max(np.abs(block), initial=0.0)) if block.dtype.kind in "fc" else 0.0
    return x.size > 1 and bool(np.allclose(x, block, rtol=0, atol=1e-5 * scale))


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
    return Cause(
        f"result {number} is asked as {show(asked)} and made as {show(known.placement)}",
        axes,
        tuple(d for d, (a, b) in enumerate(itertools.zip_longest(asked, known.placement, fillvalue=())) if a != b),
    )
