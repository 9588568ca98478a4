"""What a set of checks proved, and how a command reports it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import jax

DEVICES = 16
"""What the meshes of the generated programs need."""
SHOWN = 10
"""Failures that a report prints of one outcome."""

Say = Callable[[str], None]
"""Prints a line of progress."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a set of checks.

    `proved` is one sentence that holds if there is no failure, `checks` how many comparisons stand behind it; each of
    the `failures` names its case and both values.
    """

    name: str
    proved: str
    checks: int
    failures: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Returns True if every check holds; no check proves nothing."""
        return self.checks > 0 and not self.failures


def say(step: str) -> None:
    """Prints a line of progress on standard error."""
    print(step, file=sys.stderr, flush=True)


def report(outcomes: Sequence[Outcome]) -> str:
    """The versions, and a line per outcome with its failures below it."""
    lines = [
        f"Python {platform.python_version()}, JAX {version('jax')}, jaxlib {version('jaxlib')}, "
        f"NumPy {version('numpy')}, {jax.device_count()} {jax.default_backend()} devices"
    ]
    for outcome in outcomes:
        verdict = "ok" if outcome.passed else "FAILED"
        proved = outcome.proved if outcome.passed else f"{len(outcome.failures)} of {outcome.checks} checks failed"
        lines.append(f"{outcome.name}: {verdict}: {proved} [{outcome.checks} checks, {outcome.seconds:.0f} s]")
        lines += [f"  {failure}" for failure in outcome.failures[:SHOWN]]
        rest = len(outcome.failures) - SHOWN
        lines += [f"  and {rest} more"] if rest > 0 else []
    return "\n".join(lines)
