"""`jaxmesh selftest`: what jaxmesh proves about itself with this machine's Python, JAX and devices."""

from __future__ import annotations

import platform
import time
from importlib.metadata import version

import jax

from jaxmesh.sharding.mesh import emulate
from tests.generators.faults import wrong_copies
from tests.generators.matrix import table
from tests.generators.outcome import Outcome, Say
from tests.generators.programs import run as random_programs

DEVICES = 16
"""What the meshes of the self-test need."""
SHOWN = 10
"""How many failures of one part are printed."""


def run(count: int, seed: int, say: Say) -> list[Outcome]:
    """The three parts in their short form.

    Args:
      count: how many random programs are compared.
      seed: of the random programs.
      say: is told of every step as it starts.

    Raises:
      DeviceCountError: fewer devices than the meshes need, and too late to emulate them.
    """
    emulate(DEVICES)
    return [table.run(say), random_programs.run(count, seed, say), wrong_copies.run(say)]


def run_matrix(say: Say) -> tuple[str, Outcome]:
    """The whole matrix: its table, and what it proves.

    Raises:
      DeviceCountError: as of `run`.
    """
    emulate(DEVICES)
    return table.run_whole(say)


def versions() -> str:
    """The versions this run speaks of, and how many devices there are."""
    return (
        f"Python {platform.python_version()}, JAX {version('jax')}, jaxlib {version('jaxlib')}, "
        f"NumPy {version('numpy')}, {jax.device_count()} {jax.default_backend()} devices"
    )


def report(outcomes: list[Outcome], start: float) -> str:
    """One line per part, the failures under it, and the verdict."""
    lines = [versions()]
    for outcome in outcomes:
        verdict = "ok" if outcome.passed else "FAILED"
        said = outcome.proved if outcome.passed else f"{len(outcome.failures)} of {outcome.checks} checks failed"
        lines.append(f"{outcome.name}: {verdict}: {said} [{outcome.checks} checks, {outcome.seconds:.0f} s]")
        lines += [f"  {failure}" for failure in outcome.failures[:SHOWN]]
        rest = len(outcome.failures) - SHOWN
        lines += [f"  and {rest} more"] if rest > 0 else []
    verdict = "holds" if all(o.passed for o in outcomes) else "FAILED"
    lines.append(f"selftest {verdict} in {time.monotonic() - start:.0f} s")
    return "\n".join(lines)
