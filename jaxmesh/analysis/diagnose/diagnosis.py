"""The result of a diagnosis: a verdict, and the first wrong operation with its wrong elements."""

from __future__ import annotations

import math
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxmesh.analysis.diagnose.culprit import Culprit, cause_of
from jaxmesh.analysis.diagnose.movements import distance_of_forms
from jaxmesh.analysis.diagnose.proof import Proof
from jaxmesh.analysis.diagnose.rounding import EXACT, is_exact
from jaxmesh.analysis.diagnose.stage import Coordinate, StageProgram
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.analysis.diagnose.wrong_values import WrongElements, WrongValue
from jaxmesh.analysis.record.metrics import rounding_unit
from jaxmesh.dialects.program import Op
from jaxmesh.drawing.html import escape_lines, fragment
from jaxmesh.drawing.picture import TensorPicture, tensor_html
from jaxmesh.drawing.placement import Shard, cut_boxes, make_placement
from jaxmesh.frontends.stablehlo.shardings import show
from jaxmesh.jaxprs.source_locations import short_location

RIGHT, LESS_PRECISE, WRONG, REFUSED, NOT_COMPARABLE = (
    "right",
    "less precise",
    "wrong",
    "refused",
    "not comparable",
)
ORDER = (RIGHT, LESS_PRECISE, NOT_COMPARABLE, REFUSED, WRONG)
EXIT_CODES: Mapping[str, int] = {RIGHT: 0, LESS_PRECISE: 0, WRONG: 1, REFUSED: 3, NOT_COMPARABLE: 4}
"""The exit code of the command for each verdict."""
_SHOWN = 8
"""The devices whose wrong elements are listed."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """The verdict on a compiled program; true unless it is wrong.

    Attributes:
      verdict: `right`, `less precise`, `wrong`, `refused` or `not comparable`.
      stage: the text with the wrong operation, `ttir` or `ttnn`.
      op: the wrong operation; the first one that rounds, if the program is less precise.
      line: its line in the text.
      between: the lines of the text between which it is, if none is proven to be wrong; then `op` is empty.
      iteration: the iteration of a loop whose operation is wrong, from 0; of loops within each other that of each, the
        outermost first; None outside of loops.
      source: the user's source line, as `file:line:column`.
      expected: the operation of the unsharded program whose value it should compute.
      axes: the mesh axes of the error.
      dims: the tensor dims of the operand that these axes split.
      devices: the mesh coordinates of the devices with wrong elements.
      elements: the wrong elements, by device.
      pcc: the correlation with the unsharded run, over all devices.
      cause: why; empty if the kind of error is not known.
      stages: what is known of each text, and the verdict of each function of a file with several.
      unexplained: by stage, the operations with unexplained results, with their lines.
      value: the wrong value.
      proof: the replacement that puts the results right.
      outermost: finds the wrong operation of the text with its values, which may be a loop.
      track: the run of the stage with the wrong operation.
      unexercised: what no drawn arguments have exercised.
    """

    verdict: str
    stage: str = ""
    op: str = ""
    line: int = 0
    between: tuple[int, int] | None = None
    iteration: int | tuple[int, ...] | None = None
    source: str = ""
    expected: str = ""
    axes: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    devices: tuple[Coordinate, ...] = ()
    elements: tuple[WrongElements, ...] = ()
    pcc: float = 1.0
    cause: str = ""
    stages: Mapping[str, str] = field(default_factory=dict[str, str])
    unexplained: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    value: WrongValue | None = field(default=None, repr=False)
    proof: Proof | None = field(default=None, repr=False)
    outermost: Callable[[], Culprit] | None = field(default=None, repr=False)
    track: Track | None = field(default=None, repr=False)
    unexercised: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict in (RIGHT, LESS_PRECISE)

    @property
    def culprit(self) -> Culprit | None:
        """The wrong operation of the text with its values, which may be a loop."""
        return None if self.outermost is None else self.outermost()

    @property
    def exit_code(self) -> int:
        """The exit code of `jaxmesh diagnose`."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict as data; numbers that are not finite are None."""
        return {
            "verdict": self.verdict,
            "stage": self.stage,
            "op": self.op,
            "line": self.line,
            "between": None if self.between is None else list(self.between),
            "iteration": list(self.iteration) if isinstance(self.iteration, tuple) else self.iteration,
            "source": self.source,
            "expected": self.expected,
            "axes": list(self.axes),
            "dims": list(self.dims),
            "devices": [list(c) for c in self.devices],
            "elements": [e.to_dict() for e in self.elements],
            "pcc": _finite(self.pcc),
            "cause": self.cause,
            "proof": None if self.proof is None else self.proof.to_dict(),
            "stages": dict(self.stages),
            "unexplained": {stage: list(names) for stage, names in self.unexplained.items()},
        }

    @property
    def picture(self) -> TensorPicture | None:
        """A picture of the wrong value's pieces on the devices, with the wrong elements; None without such a value."""
        if self.value is None or self.track is None:
            return None
        value, mesh = self.value, self.track.stage.mesh
        wrong = {e.device: f"{e.count} of {e.size} wrong, in [{e.shown_box}]" for e in self.elements}
        shards = [Shard.of_box(box) for box in cut_boxes(value.wanted.shape, value.placement, mesh)]
        placement = make_placement(
            mesh, shards, dtype=value.wanted.dtype, itemsize=value.wanted.dtype.itemsize, shape=value.wanted.shape,
            how=show(value.placement), over=value.placement,
            device_notes=[wrong.get(c, "right") for c in self.track.stage.coordinates],
        )  # fmt: skip
        return TensorPicture(placement)

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self._sentence()}" if self._sentence() else self.verdict]
        if self.cause and self.cause not in lines[0]:
            lines.append(f"  cause: {self.cause}")
        if self.proof is not None and self.verdict == WRONG:
            lines.append(f"  proof: {self.proof}")
        if self.op and self.axes:
            lines.append(f"  mesh axes: {', '.join(self.axes)}; dims of the operand: {list(self.dims)}")
        if self.op and not math.isnan(self.pcc):
            lines.append(f"  pcc: {self.pcc:.6g}")
        rows = dict[str, list[str]]()
        for element in self.elements:
            rows.setdefault(element.text, []).append(str(element.device))
        lines += [f"  {_devices(names)}: {text}" for text, names in list(rows.items())[:_SHOWN]]
        if len(rows) > _SHOWN:
            lines.append(f"  ... and {len(rows) - _SHOWN} more")
        lines += [f"  not exercised: {text}" for text in self.unexercised]
        lines += [f"  {stage}: {text}" for stage, text in self.stages.items()]
        return "\n".join(lines)

    def _sentence(self) -> str:
        """Returns what is wrong, at which line of the user, and what it should have been; empty if nothing is."""
        if self.verdict in (REFUSED, NOT_COMPARABLE):
            return self.cause
        of = f" of {short_location(self.source)}" if self.source else ""
        wanted = f", should compute {self.expected} of the unsharded program" if self.expected else ""
        if self.between is not None:
            first, last = self.between
            return f"an operation{of} between line {first} and line {last} of the {self.stage} text{wanted}"
        if not self.op:
            return ""
        rounds = self.iteration if isinstance(self.iteration, tuple) else (self.iteration,)
        iteration = "" if self.iteration is None else f", in iteration {', '.join(map(str, rounds))}"
        place = f", line {self.line}" if self.line else ""
        return f"{self.op}{of}{place} of the {self.stage} text{iteration}{wanted}"

    def to_html(self) -> str:
        """Returns the verdict and the picture as a part of a page."""
        text, picture = f"<pre>{escape_lines(str(self))}</pre>", self.picture
        if picture is None:
            return fragment(lambda name: f".{name}{{color:inherit}}", text, str(self))
        return text + tensor_html(picture.placement)

    def _repr_html_(self) -> str:
        return self.to_html()


def _devices(names: Sequence[str]) -> str:
    return f"device {names[0]}" if len(names) == 1 else f"devices {', '.join(names)}"


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def worst_of(found: Iterable[Diagnosis]) -> Diagnosis:
    """Returns the first diagnosis with the worst verdict."""
    return max(found, key=lambda d: ORDER.index(d.verdict))


def named(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> Diagnosis:
    """Returns a diagnosis with the name of the file in the lines of a text that was parsed without a name."""

    def whole(text: str, name: str = pathlib.Path(path).name) -> str:
        return re.sub(r"(?<![^\s(])-:(?=\d)", lambda _: f"{name}:", text) if name else text

    unexercised = tuple(map(whole, diagnosis.unexercised))
    texts = {"cause": whole(diagnosis.cause), "expected": whole(diagnosis.expected)}
    return replace(diagnosis, source=whole(diagnosis.source, str(path)), unexercised=unexercised, **texts)


def wrong_diagnosis(
    run: Track, culprit: Culprit, stages: Mapping[str, str], outermost: Callable[[], Culprit]
) -> Diagnosis:
    """Returns the diagnosis of the run of a stage with a wrong operation, which may be within an iteration or a branch;
    `outermost` finds the operation around it."""
    track = culprit.track
    cause, value, expected = cause_of(track, culprit), culprit.value, culprit.expected
    lines = (*track.stage.text.lines, track.stage.text.end)
    between = None if culprit.between is None else (lines[culprit.between[0]], lines[culprit.between[1]])
    shown, rounds = value or culprit.corrected, track.stage.iterations.get(culprit.number, ())
    source = _source(track, culprit.number, culprit.op)
    return Diagnosis(
        verdict=WRONG,
        stage=track.stage.name,
        op="" if between else track.stage.written_name(culprit.number),
        line=0 if between else lines[culprit.number],
        between=between,
        iteration=None if between else rounds[0] if len(rounds) == 1 else rounds or None,
        source=source or (expected.place if expected else ""),
        expected="" if expected is None else f"{expected.op} ({short_location(expected.place)})",
        axes=cause.axes,
        dims=cause.dims,
        devices=() if shown is None else shown.devices,
        elements=() if shown is None else shown.elements(),
        pcc=track.pcc if shown is None else shown.pcc,
        cause=cause.text,
        stages=stages,
        value=value,
        proof=culprit.proof,
        outermost=outermost,
        track=run,
    )


def freed_diagnosis(stage: StageProgram, use: tuple[str, int, int], stages: Mapping[str, str]) -> Diagnosis:
    """Returns the diagnosis of a stage with an operation that reads a deallocated value."""
    name, at, line = use
    return Diagnosis(
        WRONG,
        stage.name,
        name,
        at,
        source=stage.locations.at(at) if name != "func.return" else "",
        pcc=float("nan"),
        cause=f"it reads a value that line {line} deallocates",
        stages={**stages, stage.name: f"wrong, {name} (line {at}) reads a value that line {line} deallocates"},
    )


def _source(track: Track, number: int, op: Op) -> str:
    """Returns the user's line of an operation; for an operation that the compiler added, the first reader's."""
    ops, values = track.stage.text.program.ops, set(op.results)
    own = track.stage.source(number) if number < len(ops) else ""
    if re.search(r":\d+:\d+$", own):
        return own
    for later in range(number + 1, len(ops)):
        if values.intersection(ops[later].used):
            line = track.stage.source(later)
            if re.search(r":\d+:\d+$", line):
                return line
            values.update(ops[later].results)
    return own


def _decided(culprit: Culprit, stages: Mapping[str, str]) -> Diagnosis:
    """Returns the diagnosis of a stage with an operation at which rounding decides."""
    track, value = culprit.track, culprit.value
    name, elements = track.stage.written_name(culprit.number), () if value is None else value.elements()
    count, size = sum(e.count for e in elements), sum(e.size for e in elements)
    return Diagnosis(
        LESS_PRECISE,
        track.stage.name,
        name,
        track.stage.text.lines[culprit.number],
        source=_source(track, culprit.number, culprit.op),
        cause=f"rounding decides at {name}, in {count} of {size} elements: its operands agree within rounding, and "
        "other roundings of the unsharded program move the same elements",
        stages=stages,
        pcc=track.pcc,
    )


def less_precise(track: Track, stages: Mapping[str, str]) -> Diagnosis:
    """Returns the diagnosis of a stage with rounded results: the first operation that rounds."""
    if track.decided is not None:
        return _decided(track.decided, stages)
    text = track.stage.text

    def unexplained(op: Op) -> list[int]:
        return [v for v in track.operands(op) if v in track.unexplained]

    for at, made in enumerate(text.program.ops):
        for value in [v for v in made.results if v in track.known and not is_exact(track.known[v].error)]:
            rounding = [row for row in track.before(unexplained(made), unexplained) if _rounds(track, row[1])]
            number, op = (*rounding, (at, made))[0]
            name, kind = track.stage.written_name(number), text.program.types[op.results[0]].dtype
            form = "has another form of the function than the program" if distance_of_forms(op) else f"rounds to {kind}"
            return Diagnosis(
                LESS_PRECISE, track.stage.name, name, text.lines[number], stages=stages,
                source=_source(track, number, op),
                cause=f"{name} {form}; it differs by {track.known[value].error:.1e} of the largest magnitude",
                pcc=track.pcc,
            )  # fmt: skip
    return Diagnosis(LESS_PRECISE, track.stage.name, stages=stages, pcc=track.pcc)


def _rounds(track: Track, op: Op) -> bool:
    """Returns True for functions of another form, and results of few bits."""
    kinds = [track.stage.text.program.types[v] for v in op.results]
    return distance_of_forms(op) > 0 or any(k.kind == "tensor" and rounding_unit(k.dtype) > EXACT for k in kinds)
