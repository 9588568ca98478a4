"""Goes on without the operations of a text that cannot be read: they are taken as given."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from jaxmesh.analysis.diagnose.proof import Prover
from jaxmesh.analysis.diagnose.replay import Replay
from jaxmesh.analysis.diagnose.tracking import Track

MOST = 8
"""The most operations of a text that are left out."""
_TRIED = 64
"""The most values that are tried in place of one operation, or of several together."""
_LINE = re.compile(r"line (\d+): ")
_OP = re.compile(
    r'^(?P<indent>\s*)(?:(?P<result>%[\w$.-]+) = )?"(?P<name>[\w.]+)"\(.*\) -> (?P<type>.*?)(?P<loc> loc\(.*\))?$'
)
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(\w+)(?:,.*)?>")


def without_operation(text: str, error: Exception) -> tuple[str, int, str] | None:
    """Returns a text whose operation that an error names is a constant, its line, and its name.

    None if the error names no line, or its operation has several results or another form than upstream prints.
    """
    found = _LINE.match(str(error))
    lines = text.split("\n")
    op = _OP.match(lines[int(found[1]) - 1]) if found and 0 < int(found[1]) <= len(lines) else None
    if found is None or op is None:
        return None
    tensor = _TENSOR.fullmatch(op["type"])
    if op["result"] and tensor is None:
        return None
    line = ""
    if op["result"] and tensor is not None:
        zero = "false" if tensor[2] == "i1" else "0.0" if "f" in tensor[2] else "0"
        value = f"dense<{zero}> : tensor<{tensor[1]}{tensor[2]}>"
        made = f'"ttir.constant"() <{{value = {value}}}> : () -> {op["type"]}'
        line = f"{op['indent']}{op['result']} = {made}{op['loc'] or ''}"
    number = int(found[1])
    return "\n".join([*lines[: number - 1], line, *lines[number:]]), number, op["name"]


def is_right_with(track: Track, lines: Sequence[int]) -> bool:
    """Returns True if values of the program in place of the operations on some lines put every result right, and keeps
    these results."""
    prover = Prover(track, Replay.of(track.stage, track.placed))
    ops = track.stage.text.program.ops
    live = {n for n, _ in prover.proposals.live}
    given = [n for n, line in enumerate(track.stage.text.lines) if line in lines and n in live]
    results = {o.value for o in track.outputs}
    results.update(v for _, op in track.before(results, track.moved_operands) for v in track.moved_operands(op))
    if any(v in results for n in given for v in ops[n].results):
        # Nothing says what that result is.
        return False
    proposals = [list(itertools.islice(prover.proposals.anywhere(n, ops[n]), _TRIED)) for n in given]
    for chosen in itertools.islice(itertools.product(*proposals), _TRIED):
        right = {v: c for p in chosen for v, c in p.replaced.items()}
        errors = prover.errors(right)
        if errors is not None and all(e <= o.limit for e, o in zip(errors, track.outputs, strict=True)):
            track.results.update(prover.replay.replaced(right, [o.value for o in track.outputs]))
            track.outputs = [replace(o, error=e) for o, e in zip(track.outputs, errors, strict=True)]
            return True
    return False
