"""What `repair` makes of a program that Tenstorrent's compiler gets wrong or refuses, beside the program unsharded."""

from __future__ import annotations

import json
import math
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax

import jaxmesh as jm
from jaxmesh.errors import JaxmeshError, UpstreamError
from jaxmesh.frontends.stablehlo.text import read_boundary
from tests.generators.hlo_traffic import moved
from tests.generators.outcome import Say
from tests.generators.quick_compilation import quick_compilation
from tests.generators.upstream.judge import (
    NOT_LOWERED,
    REFUSED,
    RIGHT,
    ROUNDED,
    SECONDS,
    difference,
    is_mesh_tensor,
    unsharded,
)
from tests.generators.upstream.program import Candidate
from tests.generators.upstream.programs import candidates

UNCHANGED, REPAIRED, STAYS = "right", "repaired", "stays"
FALSE = "called right, and is not"


@dataclass(frozen=True)
class Repaired:
    """What a repair made of a program.

    Attributes:
      family: of the program.
      text: the program.
      before: the verdict on what the compiler makes of it alone.
      after: the verdict on the repaired program.
      changes: what was changed.
      reason: why it stays, with the verdict that it has.
      errors: by text, and of the function, the largest difference from the unsharded program, as a part of its largest
        number; of those that the repair calls right.
      sent: the bytes that the devices send in the repaired program, and in XLA's own partition of the program with the
        same shardings, as the optimized HLO of both has them; empty if nothing was changed.
      seconds: of the repair, with the compilations.
    """

    family: str
    text: str
    before: str
    after: str = ""
    changes: list[str] = field(default_factory=list[str])
    reason: str = ""
    errors: dict[str, float] = field(default_factory=dict[str, float])
    seconds: float = 0.0
    sent: list[int] = field(default_factory=list[int])

    @property
    def outcome(self) -> str:
        """`right` as it is, `repaired`, `stays`, or called right although the values say otherwise."""
        if any(e > 2 * max(ROUNDED.values()) for e in self.errors.values()):
            return FALSE
        if self.after != RIGHT:
            return STAYS if self.after != "less precise" else self.after
        return REPAIRED if self.changes else UNCHANGED


def judge_repair(candidate: Candidate) -> Repaired:
    """Compiles a program, repairs it, and compares the repaired one with the program unsharded."""
    with warnings.catch_warnings(), jax.enable_x64(candidate.wide):
        warnings.simplefilter("ignore")
        about, started = (candidate.family, candidate.text), time.perf_counter()
        try:
            lowered = jm.jit(candidate.fun, **candidate.options).lower(*candidate.args)
        except JaxmeshError as error:
            return Repaired(*about, NOT_LOWERED, NOT_LOWERED, [], f"{type(error).__name__}: {error}")
        try:
            made = lowered.upstream(timeout=SECONDS).repair(*candidate.args)
        except UpstreamError as error:
            if "cannot compile" in str(error):
                raise  # It did not start, which says nothing of the program.
            return Repaired(*about, REFUSED, REFUSED, [], str(error))
        seconds, before = time.perf_counter() - started, made.before.verdict
        changes = [c.what for c in made.changes]
        errors = _errors(candidate, made) if made else {}
        sent = _sent(candidate, made) if made and made.changes else []
        return Repaired(*about, before, made.verdict, changes, made.reason, errors, seconds, sent)


def _sent(candidate: Candidate, made: Any) -> list[int]:
    """Returns what the devices send in the repaired program, and in XLA's own partition with the same shardings."""
    ours = made.function.lower(*candidate.args).compile()
    args, kwargs = ours.input_shardings
    if kwargs or len(args) != len(candidate.args):
        return []
    theirs = jax.jit(candidate.fun, in_shardings=args, out_shardings=ours.output_shardings)
    texts = [str(c.as_text()) for c in (ours, theirs.lower(*candidate.args).compile())]
    if any(" while(" in line and "known_trip_count" not in line for text in texts for line in text.splitlines()):
        return []  # It depends on the values how often they send.
    sizes = dict(candidate.options["mesh"].shape)
    return [sum(sent for _, sent in moved(text, sizes).values()) for text in texts]


def _errors(candidate: Candidate, made: Any) -> dict[str, float]:
    wanted, arguments, found = unsharded(candidate), jax.tree.leaves(candidate.args), dict[str, float]()
    ends = read_boundary(made.upstream.text("shlo_compiler"))
    for dialect in ROUNDED:
        try:
            values = made.upstream.program(dialect).lower().compile()(*arguments)
        except JaxmeshError:
            continue  # It is not read, which the diagnosis says.
        found[dialect] = difference(jax.tree.leaves(values, is_leaf=is_mesh_tensor), wanted, ends)
    if made.changes:
        values = made.function(*candidate.args)
        found["function"] = difference(jax.tree.leaves(values), wanted, ends)
    return found


def hunt_repairs(results: Path, count: int | None, part: int, parts: int, say: Say) -> None:
    """Repairs the programs of one part that the file does not have, and appends them to it."""
    known = {r.text for r in read_repairs(results)} if results.exists() else set[str]()
    makers, started = candidates()[:count], time.perf_counter()
    with results.open("a") as file, quick_compilation():
        for done, number in enumerate(range(part, len(makers), parts)):
            made = makers[number]()
            if made.text in known:
                continue
            row = asdict(judge_repair(made))
            # JSON has no infinity.
            row["errors"] = {d: min(e, 1e30) for d, e in row["errors"].items()}
            file.write(json.dumps(row) + "\n")
            file.flush()
            if done % 50 == 49:
                jax.clear_caches()
                say(f"{done + 1} programs, {time.perf_counter() - started:.0f} s")


def read_repairs(results: Path) -> Iterator[Repaired]:
    """Yields what a file has."""
    for line in results.read_text().splitlines():
        yield Repaired(**json.loads(line))


def repair_table(found: Sequence[Repaired]) -> str:
    """Returns the counts of outcomes by family, and what the repaired programs send."""
    rows: dict[str, Counter[str]] = {}
    for r in found:
        rows.setdefault(r.family, Counter())[r.outcome] += 1
    outcomes = [UNCHANGED, REPAIRED, "less precise", STAYS, FALSE]
    lines = [f"| family | {' | '.join(outcomes)} |", "|---" * (len(outcomes) + 1) + "|"]
    total = sum(rows.values(), Counter[str]())
    for family, counts in [*sorted(rows.items()), ("all", total)]:
        lines.append(f"| {family} | {' | '.join(str(counts[o]) for o in outcomes)} |")
    ratios = [_ratio(*r.sent) for r in found if r.sent]
    if ratios:
        median = f"{statistics.median(ratios):.2f} times what XLA's own partition with the same shardings sends"
        lines += ["", f"Of {len(ratios):,} repaired programs the median sends {median}."]
    return "\n".join(lines)


def _ratio(ours: int, theirs: int) -> float:
    return ours / theirs if theirs else math.inf if ours else 1.0


def unrepaired(found: Iterable[Repaired]) -> list[str]:
    """Returns what is not right after the repair, with the reason."""
    return [f"{r.outcome}: {r.text}: {r.after} {r.reason} {r.errors if r.outcome == FALSE else ''}".strip()
            for r in found if r.outcome in (STAYS, FALSE)]  # fmt: skip
