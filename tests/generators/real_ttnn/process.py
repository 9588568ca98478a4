"""Starts the real `ttnn` in a process of its own, whose NumPy and Python are others than JAX's.

`JAXMESH_TTNN_PYTHON` names a Python with `ttnn`. Its devices are those of a described T3000, unless the environment's
`TT_METAL_MOCK_CLUSTER_DESC_PATH` names another description.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxmesh.analysis.cluster_description import describe_cluster
from jaxmesh.analysis.machines import MACHINES

VARIABLE = "JAXMESH_TTNN_PYTHON"
RUNNER = Path(__file__).with_name("runner.py")

needs_ttnn = pytest.mark.skipif(
    not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no Python that has the real ttnn"
)
"""Skips a test where there is no real library."""


class RunnerError(AssertionError):
    """The real library's process failed before the first job."""


def settings(folder: Path) -> dict[str, str]:
    """Returns the environment of a process with the real library; writes what it reads to the folder."""
    description = folder / "t3000.yaml"
    description.write_text(describe_cluster(MACHINES["t3000"]))
    return {
        "TT_METAL_CACHE": str(Path(os.environ[VARIABLE]).parents[1] / "cache"),
        "TT_METAL_SLOW_DISPATCH_MODE": "1",
        "TT_METAL_MOCK_CLUSTER_DESC_PATH": str(description),
        "TT_LOGGER_LEVEL": "fatal",
        **os.environ,
    }


def run_jobs(kind: str, jobs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns the outcome of each job in the real library, as `outcome_of` of the module `kind` describes it.

    A job that ends the process has the outcome `{"stage": "crash"}`; the next jobs run in a new process.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "jobs.json").write_text(json.dumps([dict(j) for j in jobs]))
        outcomes: list[Any] = []
        while len(outcomes) < len(jobs):
            found = _run_from(kind, len(outcomes), Path(folder))
            outcomes += found
            if len(outcomes) < len(jobs):
                outcomes.append({"stage": "crash"})
        return outcomes


def _run_from(kind: str, first: int, folder: Path) -> list[Any]:
    """Runs the jobs from one number on; returns the outcomes up to the end, or to the job that ended the process."""
    out = folder / "outcomes.jsonl"
    out.unlink(missing_ok=True)
    command = [os.environ[VARIABLE], str(RUNNER), kind, str(first), str(folder)]
    variables = settings(folder) | {"PYTHONPATH": str(RUNNER.parents[3])}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if not out.exists():
        raise RunnerError(f"the real ttnn did not start: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [json.loads(line) for line in out.read_text().splitlines()]
