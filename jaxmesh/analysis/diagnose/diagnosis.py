"""The result of a diagnosis: a verdict, and the first wrong operation with its wrong elements."""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxmesh.analysis.diagnose.causes import cause_of
from jaxmesh.analysis.diagnose.culprit import Culprit, unexplained_before
from jaxmesh.analysis.diagnose.movements import distance_of_forms
from jaxmesh.analysis.diagnose.rounding import EXACT, is_exact, rounding_unit
from jaxmesh.analysis.diagnose.stage import Coordinate
from jaxmesh.analysis.diagnose.tracking import Track
from jaxmesh.analysis.diagnose.wrong_values import WrongElements
from jaxmesh.dialects.program import Op
from jaxmesh.drawing.html import escape_lines, fragment
from jaxmesh.drawing.picture import TensorPicture, tensor_html
from jaxmesh.drawing.placement import Shard, cut_boxes, make_placement
from jaxmesh.frontends.stablehlo.shardings import show

RIGHT, LESS_PRECISE, WRONG, REFUSED, NOT_COMPARABLE = (
    "right",
    "less precise",
    "wrong",
    "refused",
    "not comparable",
)
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
      source: the user's source line, as `file:line:column`.
      expected: the operation of the unsharded program whose value it should compute.
      axes: the mesh axes of the error.
      dims: the tensor dims of the operand that these axes split.
      devices: the mesh coordinates of the devices with wrong elements.
      elements: the wrong elements, by device.
      pcc: the correlation with the unsharded run, over all devices.
      cause: why; empty if the kind of error is not known.
      stages: what is known of each text.
      culprit: the wrong operation with its values.
      track: the run of the stage with the wrong operation.
      unexercised: what no drawn arguments have exercised.
    """

    verdict: str
    stage: str = ""
    op: str = ""
    line: int = 0
    source: str = ""
    expected: str = ""
    axes: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    devices: tuple[Coordinate, ...] = ()
    elements: tuple[WrongElements, ...] = ()
    pcc: float = 1.0
    cause: str = ""
    stages: Mapping[str, str] = field(default_factory=dict[str, str])
    culprit: Culprit | None = field(default=None, repr=False)
    track: Track | None = field(default=None, repr=False)
    unexercised: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict in (RIGHT, LESS_PRECISE)

    @property
    def exit_code(self) -> int:
        """The exit code of `jaxmesh diagnose`."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict as data."""
        return {
            "verdict": self.verdict,
            "op": self.op,
            "source": self.source,
            "axes": list(self.axes),
            "devices": [list(c) for c in self.devices],
            "pcc": self.pcc if math.isfinite(self.pcc) else None,
            "cause": self.cause,
        }

    @property
    def picture(self) -> TensorPicture | None:
        """A picture of the wrong value's pieces on the devices, with the wrong elements; None without such a value."""
        if self.culprit is None or self.culprit.value is None or self.track is None:
            return None
        value, mesh = self.culprit.value, self.track.stage.mesh
        wrong = {e.device: f"{e.count} of {e.size} wrong" for e in self.elements}
        shards = [Shard.of_box(box) for box in cut_boxes(value.wanted.shape, value.placement, mesh)]
        placement = make_placement(
            mesh, shards, dtype=value.wanted.dtype, itemsize=value.wanted.dtype.itemsize, shape=value.wanted.shape,
            how=show(value.placement), over=value.placement, notes=[str(e) for e in self.elements[:_SHOWN]],
            device_notes=[wrong.get(c, "right") for c in self.track.stage.coordinates],
        )  # fmt: skip
        return TensorPicture(placement)

    def __str__(self) -> str:
        lines = [f"verdict: {self.verdict}"]
        lines += [f"  {stage}: {text}" for stage, text in self.stages.items()]
        if self.op:
            which = "first wrong operation" if self.verdict == WRONG else "first less precise operation"
            place = f" ({_short(self.source)})" if self.source else ""
            lines.append(f"{which}: {self.op}{place}, line {self.line} of the {self.stage} text")
        if self.expected:
            lines.append(f"  should compute: {self.expected} of the unsharded program")
        if self.cause:
            lines.append(f"  cause: {self.cause}")
        if self.op and self.axes:
            lines.append(f"  mesh axes: {', '.join(self.axes)}; dims of the operand: {list(self.dims)}")
        if self.op:
            lines.append(f"  pcc: {self.pcc:.6g}")
        lines += [f"  {e}" for e in self.elements[:_SHOWN]]
        if len(self.elements) > _SHOWN:
            lines.append(f"  ... and {len(self.elements) - _SHOWN} more devices")
        lines += [f"  not exercised: {text}" for text in self.unexercised]
        return "\n".join(lines)

    def to_html(self) -> str:
        """Returns the verdict and the picture as a part of a page."""
        text, picture = f"<pre>{escape_lines(str(self))}</pre>", self.picture
        if picture is None:
            return fragment(lambda name: f".{name}{{color:inherit}}", text, str(self))
        return text + tensor_html(picture.placement)

    def _repr_html_(self) -> str:
        return self.to_html()


def _short(source: str) -> str:
    """Returns a source line without folders and column."""
    found = re.fullmatch(r"(.+?):(\d+):\d+", source)
    return source if found is None else f"{pathlib.PurePath(found[1]).name}:{found[2]}"


def wrong_diagnosis(track: Track, culprit: Culprit, stages: Mapping[str, str]) -> Diagnosis:
    """Returns the diagnosis of a stage with a wrong operation."""
    cause, value, text = cause_of(track, culprit), culprit.value, track.stage.text
    expected = culprit.expected
    source = _source(track, culprit.number, culprit.op)
    source = source or (expected.place if expected else "")
    return Diagnosis(
        verdict=WRONG,
        stage=track.stage.name,
        op=track.stage.written_name(culprit.op),
        line=text.lines[culprit.number] if culprit.number < len(text.lines) else text.end,
        source=source,
        expected="" if expected is None else f"{expected.op} ({_short(expected.place)})",
        axes=cause.axes,
        dims=cause.dims,
        devices=() if value is None else value.devices,
        elements=() if value is None else value.elements(),
        pcc=track.pcc if value is None else value.pcc,
        cause=cause.text,
        stages=stages,
        culprit=culprit,
        track=track,
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


def less_precise(track: Track, stages: Mapping[str, str]) -> Diagnosis:
    """Returns the diagnosis of a stage with rounded results: the first operation that rounds."""
    text = track.stage.text
    for at, made in enumerate(text.program.ops):
        for value in [v for v in made.results if v in track.known and not is_exact(track.known[v].error)]:
            before = [row for v in track.operands(made) for row in unexplained_before(track, v)]
            rounding = [row for row in sorted(before, key=lambda row: row[0]) if _rounds(track, row[1])]
            number, op = (*rounding, (at, made))[0]
            name, kind = track.stage.written_name(op), text.program.types[op.results[0]].dtype
            form = "has another form of the function than the program" if distance_of_forms(op) else f"rounds to {kind}"
            return Diagnosis(
                LESS_PRECISE, track.stage.name, name, text.lines[number], _source(track, number, op), stages=stages,
                cause=f"{name} {form}; it differs by {track.known[value].error:.1e} of the largest magnitude",
                pcc=track.pcc,
            )  # fmt: skip
    return Diagnosis(LESS_PRECISE, track.stage.name, stages=stages, pcc=track.pcc)


def _rounds(track: Track, op: Op) -> bool:
    """Returns True for functions of another form, and results of few bits."""
    kinds = [track.stage.text.program.types[v] for v in op.results]
    return distance_of_forms(op) > 0 or any(k.kind == "tensor" and rounding_unit(k.dtype) > EXACT for k in kinds)
