"""Starts the real `ttnn` in a process of its own, whose NumPy and Python are others than JAX's.

`JAXMESH_TTNN_PYTHON` names a Python with `ttnn`. The variables of its mock cluster are taken from the environment;
`TT_METAL_MOCK_CLUSTER_DESC_PATH` is by default the file `t3000.yaml` in the folder of that Python's environment.
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

VARIABLE = "JAXMESH_TTNN_PYTHON"
RUNNER = Path(__file__).with_name("runner.py")

needs_ttnn = pytest.mark.skipif(
    not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no Python that has the real ttnn"
)
"""Skips a test where there is no real library."""


class RunnerError(AssertionError):
    """The real library's process failed before the first job."""


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
    python = Path(os.environ[VARIABLE])
    home = python.parents[1]
    variables = {
        "TT_METAL_CACHE": str(home / "cache"),
        "TT_METAL_SLOW_DISPATCH_MODE": "1",
        "TT_METAL_MOCK_CLUSTER_DESC_PATH": str(home / "t3000.yaml"),
        "TT_LOGGER_LEVEL": "fatal",
        **os.environ,
        "PYTHONPATH": str(RUNNER.parents[3]),
    }
    out = folder / "outcomes.jsonl"
    out.unlink(missing_ok=True)
    done = subprocess.run(
        [str(python), str(RUNNER), kind, str(first), str(folder)],
        cwd=folder, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not out.exists():
        raise RunnerError(f"the real ttnn did not start: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [json.loads(line) for line in out.read_text().splitlines()]
