"""The tools on models of published sizes, by their types alone: a table of docs/tables.

`python -m tests.models.sizes` writes it; `--print` prints it and writes nothing; names of models print their rows.
Every model has a process of its own. Times are seconds of a processor, with those of processes that a step starts; the
time of `ttir` and of `ttnn` is with the passes to the flat program, which `python` and `cpp` share. The memory is the
most that the process held, or one that it started.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

import jaxmesh as jm
from tests.benchmarks.peak import resident
from tests.generators.readme_tables import write
from tests.models.published import PUBLISHED, Published

MIB = 2**20
TEXTS = ("ttir", "ttnn", "python", "cpp")
STEPS = ("trace", "lower", *TEXTS, "explain", "estimate", "judge")
COLUMNS = ("model", "parameters", "lines", *STEPS, "largest text, MiB", "memory, MiB")
CLUSTER = "t3000"


def processor_seconds() -> float:
    """What this process and those that it waited for have taken."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measure(model: Published, *, judged: bool) -> dict[str, Any]:
    """Returns the seconds of each step, and what it gave."""
    found: dict[str, Any] = {"model": model.name, "parameters": model.parameters}

    def step(name: str, work: Callable[[], Any]) -> Any:
        start = processor_seconds()
        made = work()
        found[name] = processor_seconds() - start
        return made

    traced: jm.Traced = step("trace", lambda: model.function.trace(*model.arguments))
    lowered: jm.Lowered = step("lower", traced.lower)
    texts = {
        name: step(name, lambda stage=stage, name=name: stage.as_text(name))
        for name, stage in zip(TEXTS, (traced, lowered, lowered, lowered), strict=True)
    }
    step("explain", lambda: str(lowered.explain()))
    estimate = step("estimate", lambda: lowered.estimate(CLUSTER))
    if judged:
        verdict = step("judge", lambda: lowered.judge(cluster=CLUSTER))
        found["verdict"] = str(verdict)
        found["accepted"] = bool(verdict)
    return {
        **found,
        "lines": texts["ttnn"].count("\n"),
        "largest text, MiB": max(map(len, texts.values())) / MIB,
        "memory, MiB": max(resident("VmHWM"), 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / MIB,
        "estimate, ms": 1e3 * estimate.seconds,
    }


def measure_apart(name: str, *, judged: bool) -> dict[str, Any]:
    """Measures a model in a process of its own."""
    command = [sys.executable, "-m", "tests.models.sizes", "--json", name, *(["judge"] if judged else [])]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def row(found: dict[str, Any]) -> str:
    def shown(value: Any) -> str:
        if isinstance(value, str):
            return value
        return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 100 else f"{value:.2g}"

    return "| " + " | ".join(shown(found.get(c, "")) for c in COLUMNS) + " |"


def table(rows: Sequence[dict[str, Any]]) -> str:
    head = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    refused = [f"{found['model']} is refused." for found in rows if not found.get("accepted", True)]
    closing = f"Seconds of a processor, JAX {jax.__version__}; `lines` are those of the TTNN text."
    return "\n".join([*head, *map(row, rows), "", " ".join([closing, *refused])])


def main(arguments: Sequence[str]) -> None:
    names = [a for a in arguments if a in PUBLISHED]
    if "--json" in arguments:
        print(json.dumps(measure(PUBLISHED[names[0]](), judged="judge" in arguments)))
        return
    text = table(
        [measure_apart(name, judged=bool(os.environ.get("JAXMESH_TTNN_PYTHON"))) for name in names or PUBLISHED]
    )
    if names or "--print" in arguments:
        print(text)
    else:
        write("sizes", text)


if __name__ == "__main__":
    main(sys.argv[1:])
