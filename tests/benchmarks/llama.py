"""Llama 3 8B on 2x4 devices, by its types alone: `python -m tests.benchmarks.llama`.

The program computes its tables, or holds them: then each of the 32 layers has arrays of its own. Every row is a process
of its own. Times are in seconds; those of `ttir` and `ttnn` are with the passes to the flat program, which the other
texts share. The memory is the most that the process held, less what it held before, in MiB.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from jax.sharding import AbstractMesh, AxisType

import jaxmesh as jm
from tests.benchmarks.peak import resident
from tests.benchmarks.scale import timed
from tests.generators.llama import Llama, program

MIB = 2**20
MESH = AbstractMesh((2, 4), ("y", "x"), (AxisType.Auto,) * 2)
WAYS = ("computed", "held")
TEXTS = ("ttir", "ttnn", "python", "cpp")
STEPS = ("trace", "lower", *TEXTS, "read back", "explain")
COLUMNS = ("tables", *STEPS, "MiB")


def stages(sizes: Llama) -> dict[str, float]:
    """Seconds of each step, and the MiB of each text."""
    found: dict[str, float] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        found[name], made = timed(work)
        if isinstance(made, str):
            found[f"{name} MiB"] = len(made) / MIB
        return made

    f = program(sizes, MESH)
    before = resident("VmRSS")
    traced: jm.Traced = step("trace", lambda: f.trace(*sizes.arguments()))
    lowered: jm.Lowered = step("lower", traced.lower)
    for name in TEXTS:
        stage = traced if name == "ttir" else lowered
        # The first text makes the flat program, which the others share.
        step(name, lambda stage=stage, name=name: stage.as_text(name))
    step("read back", lambda: jm.from_mlir(traced.as_text()))
    step("explain", lambda: lowered.explain())
    return {**found, "MiB": (resident("VmHWM") - before) / MIB}


def table() -> str:
    """A row of seconds, and a row of the sizes of texts, for each way."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for way in WAYS:
        command = [sys.executable, "-m", "tests.benchmarks.llama", way]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        lines.append(f"| {way}, s | " + " | ".join(f"{found[c]:.3g}" for c in COLUMNS[1:]) + " |")
        sizes = [f"{found[f'{c} MiB']:.3g}" if c in TEXTS else "" for c in COLUMNS[1:]]
        lines.append(f"| {way}, MiB | " + " | ".join(sizes) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        # Another program first: it pays for what every process does once.
        small = Llama(layers=1, width=64, heads=8, kv_heads=8, head=16, hidden=128, vocabulary=64, sequence=64)
        stages(small)
        print(json.dumps(stages(Llama(held_tables=sys.argv[1] == "held"))))
    else:
        print(table())
