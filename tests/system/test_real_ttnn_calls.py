"""Random calls of every function: what the emulation accepts and gives is what the real `ttnn` accepts and gives."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import numpy as np

from jaxmesh import ttnn
from jaxmesh.ttnn.block_floats import round_to_blocks
from tests.generators.quick_compilation import quick_compilation
from tests.generators.real_ttnn import blocks, calls
from tests.generators.real_ttnn.process import needs_ttnn, run_jobs

CASES = int(os.environ.get("JAXMESH_CASES", "400"))
ALLOWED = 0.02
"""The part of the calls that may differ; over 3,000 calls it is below 0.01."""


def kind_of(ours: dict[str, Any], real: dict[str, Any]) -> str:
    """Returns how the outcomes of one call compare."""
    accepted = (ours["stage"] is None, real["stage"] is None)
    if accepted == (True, True):
        return "same" if ours["results"] == real["results"] else "other types"
    return {(True, False): "accepted here", (False, True): "refused here"}.get(accepted, "both refuse")


@needs_ttnn
def test_random_calls_are_accepted_and_typed_as_in_the_real_library() -> None:
    rng = random.Random(41)
    jobs = [calls.random_job(rng) for _ in range(CASES)]
    meshes = calls.Meshes(ttnn)
    kinds: Counter[str] = Counter()
    differences: list[str] = []
    with quick_compilation():
        for job, real in zip(jobs, run_jobs("calls", jobs), strict=True):
            kind = kind_of(calls.outcome_of(ttnn, meshes, job), real)
            kinds[kind] += 1
            if kind not in ("same", "both refuse"):
                differences.append(f"{kind}: {job} {real}"[:400])
    assert kinds["same"] > len(jobs) // 3
    assert kinds["both refuse"] > len(jobs) // 6
    assert len(differences) <= ALLOWED * len(jobs), "\n".join(differences)


@needs_ttnn
def test_block_floats_round_as_the_real_ones() -> None:
    for job, real in zip(blocks.JOBS, run_jobs("blocks", blocks.JOBS), strict=True):
        want = np.array(real["bits"], np.uint32).view(np.float32).reshape(job["shape"])
        got = round_to_blocks(blocks.array_of(job), ttnn.DataType[job["kind"]])
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        numbers = ~np.isnan(want)
        assert (got.view(np.uint32)[numbers] == want.view(np.uint32)[numbers]).all(), job
