"""Goes on without the operations of a text that cannot be read: they are taken as given."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jaxmesh.analysis.diagnose.culprit import Culprit, decided_by_rounding, find_culprit
from jaxmesh.analysis.diagnose.limits import limited
from jaxmesh.analysis.diagnose.matching import Globals
from jaxmesh.analysis.diagnose.movements import is_movement
from jaxmesh.analysis.diagnose.proof import Prover
from jaxmesh.analysis.diagnose.proposals import MOVES, Proposal
from jaxmesh.analysis.diagnose.reference_value import Reference
from jaxmesh.analysis.diagnose.replay import Replay
from jaxmesh.analysis.diagnose.source_lines import line
from jaxmesh.analysis.diagnose.stage import Copies, place_arguments, placed_otherwise, read_stage
from jaxmesh.analysis.diagnose.tracking import Track, Value, track
from jaxmesh.errors import JaxmeshError, UnsupportedError
from jaxmesh.runtime.progress import progress

MOST = 8
"""The most operations of a text that are left out."""
_TRIED = 64
"""The most values that are tried in place of one operation, or of several together."""
_SEARCHED = 4
"""The most of them with which a wrong operation is looked for."""
_LINE = re.compile(r"line (\d+): ")
_OP = re.compile(
    r'^(?P<indent>\s*)(?:(?P<result>%[\w$.-]+)(?::\d+)? = )?"(?P<name>[\w.]+)"\((?P<operands>[^)]*)\).* -> '
    r"(?P<type>.*?)(?P<loc> loc\(.*\))?$"
)
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(\w+)(?:,[^<>]*(?:<[^<>]*>[^<>]*)*)?>")


def without_operation(text: str, error: Exception) -> tuple[str, int, str] | None:
    """Returns a text whose operation that an error names is a constant for each result, its line, and its name.

    None if the error names no line, or its operation has another form than upstream prints.
    """
    found = _LINE.match(str(error))
    lines = text.split("\n")
    op = _OP.match(lines[int(found[1]) - 1]) if found and 0 < int(found[1]) <= len(lines) else None
    if found is None or op is None:
        return None
    types = list(_TENSOR.finditer(op["type"])) if op["result"] else []
    if op["result"] and ", ".join(t[0] for t in types) != op["type"].removeprefix("(").removesuffix(")"):
        return None
    number, result, made = int(found[1]), op["result"], list[str]()
    for index, kind in enumerate(types):
        zero = "false" if kind[2] == "i1" else "0.0" if "f" in kind[2] else "0"
        value = f"dense<{zero}> : tensor<{kind[1]}{kind[2]}>"
        own = result if len(types) == 1 else f"%_{result[1:]}_{index}"
        made.append(f'{own} = "ttir.constant"() <{{value = {value}}}> : () -> {kind[0]}{op["loc"] or ""}')
    lines[number - 1] = op["indent"] + " ".join(made)
    if len(types) > 1:
        # Its readers keep their lines.
        read = re.compile(rf"{re.escape(result)}#(\d+)")
        lines[number:] = [read.sub(rf"%_{result[1:]}_\1", row) for row in lines[number:]]
    return "\n".join(lines), number, op["name"]


def follow(name: str, text: str, reference: Reference, pool: Globals) -> Track | str:
    """Returns the run of a stage, or why it cannot be read; an operation that is not read is taken as given."""
    unread: list[tuple[int, str]] = []
    while True:
        try:
            found = _track(name, text, reference, pool)
        except JaxmeshError as error:
            rest = without_operation(text, error) if len(unread) < MOST else None
            if rest is None or rest[1] in {line for line, _ in unread}:
                return f"not read: {error}"
            text = rest[0]
            unread.append(rest[1:])
        else:
            found.unread = tuple(unread)
            return found


def _track(name: str, text: str, reference: Reference, pool: Globals) -> Track:
    stage = read_stage(name, text, reference.axes)
    placed = place_arguments(stage, reference.inputs, reference.arguments)
    if len(stage.text.program.results) != len(reference.outputs):
        raise UnsupportedError(f"it has {len(stage.text.program.results)} results, not {len(reference.outputs)}.")
    with progress(f"{name} on {len(stage.coordinates)} devices"):
        return track(stage, reference, pool, placed)


def otherwise_in(name: str, text: str, reference: Reference) -> list[str]:
    """Returns one sentence for each argument that a text lays out in another way than is asked; none of a text that
    cannot be read."""
    try:
        stage = read_stage(name, text, reference.axes)
    except JaxmeshError:
        return []
    return placed_otherwise(stage, reference.inputs, reference.arguments)


class Unread:
    """The operations of a stage that are not read, with values of the program in their place.

    Args:
      track: the stage, with zeros in their place.
      text: its text, as it is written.
      rounded: runs the program with other roundings: with values inside its loops or without, for a unit and a seed.
    """

    def __init__(self, track: Track, text: str, rounded: Callable[[bool, float, int], Reference]) -> None:
        self.track, self.rows, self.rounded = track, text.split("\n"), rounded
        self.prover = Prover(track, Replay.of(track.stage, track.placed))
        lines, live = {number for number, _ in track.unread}, {n for n, _ in self.prover.proposals.live}
        self.numbers = [n for n, at in enumerate(track.stage.text.lines) if at in lines and n in live]

    def result(self) -> Track | Culprit | None:
        """Returns the stage with values that put every result right, or the operation that is wrong with any of them.

        None if neither is proven. Operations that nothing reads are left out.
        """
        track, ops = self.track, self.track.stage.text.program.ops
        results = {o.value for o in track.outputs}
        results.update(v for _, op in track.before(results, track.moved_operands) for v in track.moved_operands(op))
        if not self.numbers:
            return track
        if any(v in results for n in self.numbers for v in ops[n].results):
            # Nothing says what that result is.
            return None
        anywhere = self.prover.proposals.anywhere
        proposals = [list(itertools.islice(anywhere(n, ops[n]), _TRIED)) for n in self.numbers]
        tried = list(itertools.islice(itertools.product(*proposals), _TRIED))
        for chosen in tried:
            right = {v: c for p in chosen for v, c in p.replaced.items()}
            errors = self.prover.errors(right)
            if errors is not None and all(e <= o.limit for e, o in zip(errors, track.outputs, strict=True)):
                followed = self._with(right, chosen)
                # No result shows an error that these operations alone read.
                is_held = all(all(map(self._holds(followed), self._read(p))) for p in chosen)
                return followed if followed.is_right and is_held else None
        if track.is_right:
            return track
        near = [row for row in tried if all(map(self._is_near, row))][:_SEARCHED]
        found = [c for c in map(self._culprit, near) if c is not None]
        # Another operation with other values: none of them is proven.
        return found[0] if len({c.number for c in found}) == 1 else None

    def _with(self, right: Mapping[Value, Copies], chosen: Sequence[Proposal]) -> Track:
        """Returns the stage with values in the place of others."""
        track = self.track
        stage = replace(track.stage, given=dict(right))
        replay = Replay.of(stage, track.placed)
        followed = Track(stage, track.reference, track.pool.on(stage.mesh), track.placed, unread=track.unread)
        kinds = stage.text.program.types
        followed.follow((v, replay.copies(v)) for v, kind in enumerate(kinds) if kind.kind == "tensor")
        values = track.reference.values
        followed.given = tuple(values[p.expected].op for p in chosen if p.expected is not None)
        followed.outputs = limited(followed, self.rounded)
        return followed

    def _holds(self, track: Track, expected: int | None = None) -> Callable[[Value | None], bool]:
        """Returns a test that devices hold a value of the program; with an expected value, an operand of that value.

        Without an expected value, values that the text hands over from another function pass.
        """
        reads = self.prover.proposals.unmoved
        wanted = None if expected is None else {track.pool.same[n] for n in reads(expected)}

        def test(value: Value | None) -> bool:
            held = () if value is None else track.held(value)
            if wanted is None:
                return value is None or bool(held)
            return any(not e.partial and wanted & {track.pool.same[o] for o in track.origins(e.number)} for e in held)

        return test

    def _is_near(self, proposal: Proposal) -> bool:
        """Returns True for a value of the program that is computed on the user's line of the operation."""
        own, number = line(self.track.stage.source(proposal.number)), proposal.expected
        value = None if number is None else self.track.reference.values[number]
        return value is not None and value.op not in MOVES and (not own or line(value.source) == own)

    def _culprit(self, chosen: Sequence[Proposal]) -> Culprit | None:
        """Returns the wrong operation with some values, if a run proves it and speaks for these values.

        Then devices hold, once it is right, the operands of these values in the program, and compute what the program
        does of them.
        """
        given = {v: c for p in chosen for v, c in p.replaced.items()}
        followed = self._with(given, chosen)
        if followed.is_right or followed.rounded:
            return None
        culprit = find_culprit(followed)
        if culprit.proof is None or culprit.between or culprit.number in self.numbers or not culprit.proof.holds:
            return None
        fixed = self._with(given | culprit.proof.proposal.replaced, chosen)
        if not fixed.is_right or any(decided_by_rounding(culprit, functools.partial(self.rounded, False))):
            return None
        are_read = all(
            p.expected is not None and (read := self._read(p)) and all(map(self._holds(fixed, p.expected), read))
            for p in chosen
        )
        return culprit if are_read and all(self._is_read_rightly(fixed, p, culprit.number) for p in chosen) else None

    def _is_read_rightly(self, fixed: Track, proposal: Proposal, culprit: int) -> bool:
        """Returns True if an operation that is not the wrong one computes a value of the program from a given one, and
        none computes another value."""
        moved, readers = {proposal.value}, list[bool]()
        for number, op in self.prover.proposals.live:
            if moved & set(op.used) and number != culprit:
                moved |= set(op.results) if is_movement(op) else set()
                readers += [] if is_movement(op) else [v in fixed.known for v in op.results]
        return bool(readers) and all(readers)

    def _read(self, proposal: Proposal) -> list[Value | None]:
        """Returns the tensors that an unread operation reads in the text; None for a tensor that is not found."""
        text = self.track.stage.text
        at = text.lines[proposal.number]
        op = _OP.match(self.rows[at - 1])
        names = re.findall(r"%[\w$.-]+(?:#\d+)?", op["operands"]) if op else []
        found = [self._named(name, at) for name in names]
        return [v for v in found if v is None or text.program.types[v].kind == "tensor"]

    def _named(self, name: str, before: int) -> Value | None:
        """Returns the value of a name that is read on a line."""
        text = self.track.stage.text
        name, _, index = name.partition("#")
        made = re.compile(rf"\s*{re.escape(name)}(?::\d+)? = ")
        for at in range(before - 1, 0, -1):
            if made.match(self.rows[at - 1]):
                values = [v for n, op in enumerate(text.program.ops) if text.lines[n] == at for v in op.results]
                return values[int(index or 0)] if int(index or 0) < len(values) else None
        number = name.removeprefix("%arg")
        return int(number) if number.isdigit() and int(number) < len(text.arguments) else None
