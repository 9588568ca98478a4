"""The errors of results that other roundings of the program, and other forms of its functions, explain."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from jaxmesh.analysis.diagnose.culprit import Culprit
from jaxmesh.analysis.diagnose.movements import distance_of_forms, is_transparent
from jaxmesh.analysis.diagnose.proof import Proof
from jaxmesh.analysis.diagnose.proposals import Proposals
from jaxmesh.analysis.diagnose.reference_value import Reference
from jaxmesh.analysis.diagnose.region import INSIDE, REGION
from jaxmesh.analysis.diagnose.replay import Replay
from jaxmesh.analysis.diagnose.rounding import EXACT, error_of
from jaxmesh.analysis.diagnose.stage import Copies
from jaxmesh.analysis.diagnose.tracking import Output, Track
from jaxmesh.dialects.program import Value

Rounded = Callable[[bool, float, int], Reference]
"""Runs the program with other roundings: also in the bodies of loops or not, of a rounding unit, for a seed."""
_SPREADS, _FURTHER = 3, 8
"""The runs with other roundings for one result, and by how much more than in these it may differ."""
_LIKELY, _NEARER = 2, 4
"""By how much more than in these runs it differs at random, and how many times nearer a change brings it that is no
rounding."""
_WHOLE = frozenset({REGION, *INSIDE, "func.call"})
"""The operations within which they are not drawn otherwise."""


def limited(run: Track, rounded: Rounded) -> list[Output]:
    """Returns the results of a stage with the errors that roundings and forms of functions explain."""
    kinds = {v.op for v in run.reference.values}
    if _WHOLE & kinds:
        # Each iteration of a loop may enlarge the roundings of the one before it.
        return _widened(run, rounded) if INSIDE & kinds and not run.is_right else run.outputs
    units = [run.units.get(o.value, 0.0) for o in run.outputs if o.exact < min(o.error, o.limit)]
    apart = _errors_of_forms(run) if units else None
    if apart is None:
        return run.outputs
    spreads = map(sum, zip(_spread(run, rounded, False, max(EXACT, *units)), apart, strict=True))
    rows = list(zip(run.outputs, spreads, strict=True))
    limits = [max(o.exact, min(o.limit, _FURTHER * x)) if o.is_right else o.limit for o, x in rows]
    return [replace(o, limit=limit, spread=x) for limit, (o, x) in zip(limits, rows, strict=True)]


def nearest(run: Track, find: Callable[[], Culprit]) -> Culprit | None:
    """Returns the wrong operation that `find` names under stricter limits, which stay then; None if it names none.

    The limits are the errors that other roundings of the program make likely, and a quarter of each error. Results that
    were right are wrong only if a change of the text meets these limits, which no rounding does.
    """
    outputs = run.outputs
    unlikely = [math.isfinite(o.spread) and o.error > min(o.limit, _LIKELY * o.spread) for o in outputs]
    near = [max(o.exact, min(o.limit, _LIKELY * o.spread, o.error / _NEARER)) for o in outputs]
    run.outputs = [replace(o, limit=n) if u else o for o, n, u in zip(outputs, near, unlikely, strict=True)]
    culprit = None if run.is_right or run.outputs == outputs else find()
    proof = None if culprit is None else culprit.proof
    if proof is None or not proof.holds or not (any(not o.is_right for o in outputs) or _is_no_rounding(proof)):
        run.outputs = outputs
        return None
    return culprit


def _is_no_rounding(proof: Proof) -> bool:
    moves = proof.change is not None and not is_transparent(proof.proposal.op)
    return moves and _NEARER * max(proof.after) <= max(proof.before)


def _widened(run: Track, rounded: Rounded) -> list[Output]:
    """Returns the results of a program with loops, which may differ as far as with other roundings in their bodies."""
    unit = max(EXACT, *(run.units.get(o.value, 0.0) for o in run.outputs))
    rows = zip(run.outputs, _spread(run, rounded, True, unit), strict=True)
    return [replace(o, limit=max(o.limit, x)) if math.isfinite(x) else o for o, x in rows]


def _spread(run: Track, rounded: Rounded, inside: bool, unit: float) -> list[float]:
    """Returns the largest error of each result in some runs of the program with other roundings."""
    numbers, spread = run.reference.outputs, [0.0] * len(run.outputs)
    for seed in range(_SPREADS):
        made = rounded(inside, unit, seed)
        pairs = zip(made.outputs, numbers, strict=True)
        rows = [(made.values[m].array, run.reference.values[n].array, run.pool.scale(n)) for m, n in pairs]
        spread = [max(known, error_of(*row)) for known, row in zip(spread, rows, strict=True)]
    return spread


def _errors_of_forms(run: Track) -> list[float] | None:
    """Returns how far each result is from what it is with the program's forms of functions; None if that is unknown."""
    rows = [(n, op) for n, op in enumerate(run.stage.text.program.ops) if distance_of_forms(op)]
    if not rows:
        return [0.0] * len(run.outputs)
    if not all(v in run.known for _, op in rows for v in op.results):
        return None
    proposals, replay, right = Proposals(run), Replay.of(run.stage, run.placed), dict[Value, Copies]()
    for number, op in rows:
        for value in op.results:
            found = next(proposals.placed(number, op, value, run.known[value].number), None)
            right |= {} if found is None else found.replaced
    changed, scales = replay.replaced(right, [o.value for o in run.outputs]), map(run.pool.scale, run.reference.outputs)
    held = [(replay.copies(o.value), changed.get(o.value), scale) for o, scale in zip(run.outputs, scales, strict=True)]
    return [max((error_of(x, new[c], s) for c, x in old.items()), default=0.0) if new else 0.0 for old, new, s in held]
