"""Random calls of every function: what the emulation accepts and gives is what the real `ttnn` accepts and gives."""

from __future__ import annotations

import os
import random
from collections import Counter

import numpy as np

from jaxmesh import ttnn
from jaxmesh.tensor.host_tensor import round_to_blocks
from jaxmesh.ttnn import functions
from jaxmesh.ttnn.signatures import table
from tests.generators.real_ttnn import blocks
from tests.generators.real_ttnn.compare_calls import compare
from tests.generators.real_ttnn.draws import DRAWS, random_job
from tests.generators.real_ttnn.process import needs_ttnn, run_jobs
from tests.unit.ttnn.test_refused_calls import REFUSED, TAKEN

CASES = int(os.environ.get("JAXMESH_CASES", "1000"))
ALLOWED = 0.01
"""The part of the calls that may differ; README.md lists the kinds that do."""

UNDRAWN = frozenset({"ttnn.Tensor", "ttnn.all_to_all_dispatch", "ttnn.all_to_all_combine"})
"""A class, and exchanges of experts, which leave what no expert gets unwritten."""


def test_every_function_is_called() -> None:
    ours = {f"ttnn.{name}" for name in functions.members("ttnn")}
    inner = {
        f"{space}.{name}" for space in ("ttnn.experimental", "ttnn.transformer") for name in functions.members(space)
    }
    real = {callee for callee, signatures in table().items() if signatures}
    assert {c.removeprefix("ttnn.") for c in ((ours | inner) & real) - UNDRAWN} <= set(DRAWS)


@needs_ttnn
def test_random_calls_are_accepted_and_typed_as_in_the_real_library() -> None:
    rng = random.Random(41)
    compared = list(compare([random_job(rng) for _ in range(CASES)]))
    kinds = Counter(c.kind for c in compared)
    assert kinds["same"] > CASES // 3
    assert kinds["both refuse"] > CASES // 6
    differences = [c for c in compared if c.differs]
    assert len(differences) <= ALLOWED * CASES, "\n".join(map(str, differences))


@needs_ttnn
def test_the_listed_calls_have_the_verdicts_of_the_real_library() -> None:
    listed = [{"callee": f"ttnn.{name}", "args": args, "kwargs": kwargs} for name, args, kwargs in (*TAKEN, *REFUSED)]
    verdicts = [outcome["stage"] is None for outcome in run_jobs("calls", listed)]
    assert verdicts == [True] * len(TAKEN) + [False] * len(REFUSED)


@needs_ttnn
def test_block_floats_round_as_the_real_ones() -> None:
    for job, real in zip(blocks.JOBS, run_jobs("blocks", blocks.JOBS), strict=True):
        want = np.array(real["bits"], np.uint32).view(np.float32).reshape(job["shape"])
        got = round_to_blocks(blocks.array_of(job), ttnn.DataType[job["kind"]])
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        numbers = ~np.isnan(want)
        assert (got.view(np.uint32)[numbers] == want.view(np.uint32)[numbers]).all(), job
