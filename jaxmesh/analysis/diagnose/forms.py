"""What other forms of functions change in the results of a text."""

from __future__ import annotations

from jaxmesh.analysis.diagnose.movements import distance_of_forms
from jaxmesh.analysis.diagnose.proposals import Proposals
from jaxmesh.analysis.diagnose.replay import Replay
from jaxmesh.analysis.diagnose.rounding import error_of
from jaxmesh.analysis.diagnose.stage import Copies
from jaxmesh.analysis.diagnose.tracking import Track, Value


def errors_of_forms(run: Track) -> list[float] | None:
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
