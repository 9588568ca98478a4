"""Compares random calls of the emulated `ttnn` with the real one, in legality and in the types of the results.

`python -m tests.generators.real_ttnn.compare_calls 3000 [--seed S] [--of NAME ...]` prints each kind of difference with
its calls; `JAXMESH_TTNN_PYTHON` names a Python that has the real library.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxmesh import ttnn
from jaxmesh.sharding.mesh import emulate
from tests.generators.outcome import DEVICES
from tests.generators.quick_compilation import quick_compilation
from tests.generators.real_ttnn import calls
from tests.generators.real_ttnn.draws import DRAWS, random_job
from tests.generators.real_ttnn.process import run_jobs


@dataclass(frozen=True)
class Compared:
    """One call, and what both libraries make of it.

    Attributes:
      job: the call.
      ours, real: its outcomes.
    """

    job: calls.Job
    ours: dict[str, Any]
    real: dict[str, Any]

    @property
    def kind(self) -> str:
        """How the outcomes compare."""
        accepted = (self.ours["stage"] is None, self.real["stage"] is None)
        if accepted == (True, True):
            return "same" if self.ours["results"] == self.real["results"] else "other types"
        return {(True, False): "accepted here", (False, True): "refused here"}.get(accepted, "both refuse")

    @property
    def differs(self) -> bool:
        """True if the emulation is not the real library's twin in this call."""
        return self.kind not in ("same", "both refuse")

    def __str__(self) -> str:
        shown = {
            side: x.get("error", x.get("results", x["stage"])) for side, x in (("ours", self.ours), ("real", self.real))
        }
        return f"{self.kind}: {json.dumps(self.job)}\n    ours: {shown['ours']}\n    real: {shown['real']}"


def compare(jobs: Sequence[calls.Job]) -> Iterator[Compared]:
    """Yields each call with its outcomes."""
    meshes = calls.Meshes(ttnn)
    with quick_compilation():
        for job, real in zip(jobs, run_jobs("calls", jobs), strict=True):
            yield Compared(job, _our_outcome(meshes, job), real)


def _our_outcome(meshes: calls.Meshes, job: calls.Job) -> dict[str, Any]:
    """Returns the outcome of a call inside a trace, which computes nothing, unless the call wants values."""
    found: list[dict[str, Any]] = []

    def trace(x: Any) -> Any:
        found.append(calls.outcome_of(ttnn, meshes, job))
        return x

    jax.eval_shape(trace, np.zeros((), np.float32))
    return calls.outcome_of(ttnn, meshes, job) if "traced array" in found[0].get("error", "") else found[0]


def main() -> None:
    """Draws calls and prints the differences, and how often each function was accepted and refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.generators.real_ttnn.compare_calls", description=__doc__)
    parser.add_argument("count", type=int, help="how many calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--of", nargs="+", default=sorted(DRAWS), metavar="NAME", help="the functions, without `ttnn.`")
    chosen = parser.parse_args()
    emulate(DEVICES)
    rng = random.Random(chosen.seed)
    jobs = [random_job(rng, chosen.of) for _ in range(chosen.count)]
    kinds: Counter[str] = Counter()
    by_function: dict[str, Counter[bool]] = defaultdict(Counter)
    for compared in compare(jobs):
        kinds[compared.kind] += 1
        by_function[compared.job["callee"]][compared.real["stage"] is None] += 1
        if compared.differs:
            print(compared)
    for callee, counts in sorted(by_function.items()):
        if not all(counts[accepted] for accepted in (True, False)):
            print(f"{callee}: the real library accepts {counts[True]} calls, refuses {counts[False]}")
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()), file=sys.stderr)


if __name__ == "__main__":
    main()
