"""Random programs: drawn from a seed, run in every way, compared with an oracle of plain loops."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.generators.outcome import Outcome, Say
from tests.generators.programs.execution_paths import FORMS, check
from tests.generators.programs.program import Program, draw_program
from tests.generators.programs.values import Seeded

Check = Callable[[Program], Sequence[str]]
"""The failures of a program."""


def run(count: int, seed: int, say: Say) -> Outcome:
    """Draws programs and runs each in every way.

    Args:
      count: how many programs.
      seed: of the first; the next one's is one more.
      say: takes lines of progress.

    Returns:
      What was proved; each failure holds the program as a Python file that runs, reduced, and both values.
    """
    started, checks, failures = time.perf_counter(), 0, list[str]()
    for number in range(count):
        program = draw_program(Seeded(seed + number))
        report = check(program)
        checks += len(report.ran)
        if report.failures:
            failures.append(described(program, seed + number, lambda p: check(p).failures))
        if (number + 1) % 10 == 0:
            say(f"random programs: {number + 1} of {count}")
    proved = (
        f"{count} random programs give what a loop over the devices gives in each of {len(FORMS)} ways: "
        f"{', '.join(FORMS)}"
    )
    return Outcome("random programs", proved, checks, tuple(failures), time.perf_counter() - started)


def described(program: Program, seed: int, failures_of: Check) -> str:
    """A failing program as a report shows it: the smallest part that fails, and what is wrong with it."""
    small = reduced(program, failures_of)
    return "\n".join([f"random program of seed {seed}:", small.shown(), *failures_of(small)])


def reduced(program: Program, failures_of: Check) -> Program:
    """The part of a program up to its first value that fails; the program itself if no value alone does."""
    if program.style == "drop-in":
        return program
    for s in program.statements:
        for name in s.results:
            part = program.only(name)
            if failures_of(part):
                return part
    return program
