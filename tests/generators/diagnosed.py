"""Texts in the layout of tt-xla's export_path, made by jaxmesh from plain programs, and errors planted in them.

`python -m tests.generators.diagnosed [FOLDER]` plants errors in every program, or in the texts of a folder of folders,
and says which are named at the planted operation.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.generators.issue_patterns import PATTERNS
from tests.generators.plain_programs import CASES, Case, jitted
from tests.generators.planted import Planted, plant

Texts = dict[str, str]


def exported(case: Case) -> Texts:
    """Returns the texts of a program by stage."""
    plain = jax.jit(case.fun, **case.jax_options()).lower(*case.args)
    traced = jitted(case).trace(*case.args)
    return {
        "shlo_frontend": plain.as_text("stablehlo", debug_info=True),
        "ttir": traced.as_text(debug_info=True),
        "ttnn": traced.lower().as_text(debug_info=True, strict=False),
    }


def write_folder(texts: Mapping[str, str], folder: Path) -> Path:
    """Writes texts as tt-xla's export_path does."""
    (folder / "irs").mkdir(parents=True, exist_ok=True)
    for number, (stage, text) in enumerate(texts.items()):
        (folder / "irs" / f"{stage}_{1795531310770 + number}.mlir").write_text(text)
    return folder


# --- the outcome -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a diagnosis says of a text with a planted error.

    Attributes:
      planted: the text.
      diagnosis: the diagnosis.
      changes: whether the results differ from those of the text without the error.
    """

    planted: Planted
    diagnosis: Any
    changes: bool

    @property
    def is_named(self) -> bool:
        """Whether a rounding is not called wrong, or an error is named where it is."""
        if self.planted.rounding:
            return self.diagnosis.verdict in ("right", "less precise")
        return self.diagnosis.verdict == "wrong" and self.diagnosis.line in self.planted.lines

    @property
    def is_honest(self) -> bool:
        """Whether an error is named where it is, or no operation is named."""
        return self.is_named or (self.diagnosis.verdict == "wrong" and not self.diagnosis.op)

    @property
    def text(self) -> str:
        d = self.diagnosis
        return f"{self.planted.kind}, lines {sorted(self.planted.lines)}: {d.verdict} {d.op} line {d.line} {d.cause}"


def outcomes(texts: Texts, stage: str, most: int = 1 << 30) -> Iterator[Outcome]:
    """Plants errors in one stage alone, at most so many of a kind, and diagnoses each."""
    from jaxmesh.analysis.diagnose import diagnose

    counts = Counter[str]()
    for planted in plant(texts[stage]):
        counts[planted.kind] += 1
        if counts[planted.kind] <= most:
            alone = {k: t for k, t in texts.items() if k.startswith("shlo")} | {stage: planted.text}
            found = diagnose(alone)
            passed = found.verdict in ("right", "less precise")
            changes = not passed or planted.rounding or differs(texts, stage, planted.text)
            yield Outcome(planted, found, changes)


def differs(texts: Texts, stage: str, changed: str) -> bool:
    """Whether two texts of a stage have other results, on the devices themselves."""
    wanted, found = results(texts, stage, texts[stage]), results(texts, stage, changed)
    for x, y in zip(found, wanted, strict=True):
        for device, part in y.items():
            scale = max(1e-30, float(np.max(np.abs(part), initial=0.0)))
            if not np.allclose(x[device], part, rtol=1e-5, atol=1e-5 * scale, equal_nan=True):
                return True
    return False


def results(texts: Texts, stage: str, text: str) -> list[dict[Any, Any]]:
    """Returns the results of a text on each device, for the arguments of a diagnosis."""
    from jaxmesh.analysis.diagnose.reference import run_draws
    from jaxmesh.analysis.diagnose.stage import place_arguments, read_stage, run_stage

    reference = next(run_draws(texts["shlo_frontend"], texts.get("shlo_compiler", ""), None, 0))
    program = read_stage(stage, text, reference.axes)
    values = dict(run_stage(program, place_arguments(program, reference.inputs, reference.arguments)))
    ports = program.text.program.results
    return [{c: np.asarray(x, np.float64) for c, x in values[port.value].items()} for port in ports]


def texts_of_folder(folder: Path) -> Texts:
    """Returns the texts of a folder of export_path."""
    return {
        stage: path.read_text()
        for stage in ("shlo_frontend", "shlo_compiler", "ttir", "ttnn")
        for path in sorted((folder / "irs").glob(f"{stage}*.mlir"))
        if re.fullmatch(rf"{stage}(_\d+)?", path.stem)
    }


def main() -> None:
    programs = (
        {f.name: texts_of_folder(f) for f in sorted(Path(sys.argv[1]).iterdir())}
        if len(sys.argv) > 1
        else {c.name: exported(c) for c in (*CASES, *PATTERNS) if c.text}
    )
    for stage in ("ttir", "ttnn"):
        counts: dict[str, list[int]] = {}
        for name, texts in programs.items():
            for outcome in outcomes(texts, stage, 3) if stage in texts else ():
                if outcome.changes:
                    row = counts.setdefault(outcome.planted.kind, [0, 0])
                    row[0] += outcome.is_named
                    row[1] += 1
                if outcome.changes and not outcome.is_named:
                    print(name, "|", outcome.text, flush=True)
        print(stage, counts, sum(n for n, _ in counts.values()), "of", sum(n for _, n in counts.values()))


if __name__ == "__main__":
    main()
