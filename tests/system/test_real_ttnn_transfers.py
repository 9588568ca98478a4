"""`distribute_tensor` and `aggregate_tensor` against Tenstorrent's own `ttnn`, over random configs, bit for bit."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from jaxmesh import ttnn
from tests.generators.real_ttnn import transfers
from tests.generators.real_ttnn.process import needs_ttnn, run_jobs

CASES = int(os.environ.get("JAXMESH_CASES", "1500"))
STEPS = ("mapper", "distribute", "composer", "aggregate", None)


@needs_ttnn
@pytest.mark.usefixtures("unequal_copies")
def test_transfers_are_the_real_ones() -> None:
    """The same configs are refused in the same step; shards, topology and joined tensor are equal."""
    rng = random.Random(11)
    jobs = sorted((transfers.random_job(rng) for _ in range(CASES)), key=lambda j: j["mesh"])
    meshes = transfers.Meshes(ttnn)
    reached: Counter[str | None] = Counter()
    for job, real in zip(jobs, run_jobs("transfers", jobs), strict=True):
        ours = transfers.outcome_of(ttnn, meshes, job)
        reached[real["stage"]] += 1
        for outcome in (ours, real):
            outcome.pop("error", None)
        assert ours == real, job
    # The jobs reach every step, and most of them the last.
    assert set(reached) == set(STEPS)
    assert reached[None] > len(jobs) // 3
