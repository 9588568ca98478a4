"""What a judgement costs beside JAX's own compilation: `pytest tests/benchmarks/test_judge.py --benchmark-only -n0`.

Both start from the function, and both end with a program that is accepted, for 8 devices or for one. Counted are the
seconds of processors, of all processes, since JAX compiles in threads and ttnn runs in another process.
"""

from __future__ import annotations

from typing import Any

import jax
import pytest

from tests.benchmarks.ratios import compare
from tests.generators.real_ttnn.process import needs_ttnn
from tests.models.molecules import SYSTEMS, nvt_step, sharded
from tests.models.sizes import processor_seconds

pytestmark = [needs_ttnn, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("particles", SYSTEMS)
def test_judge_of_molecular_dynamics(benchmark: Any, particles: int) -> None:
    try:
        step, state = nvt_step(particles)
    except ImportError as error:
        pytest.skip(f"{error.name} is not installed")

    def judge() -> None:
        assert sharded(lambda x: step(x), state, particles).lower(state).judge("t3000")

    benchmark.group = "judge"
    compare(
        benchmark,
        f"judge, a step of molecular dynamics, {particles} particles",
        judge,
        lambda: jax.jit(lambda x: step(x)).lower(state).compile(),
        target=4,
        peer_name="jax.jit, lowered and compiled, in processor time",
        rounds=5,
        clock=processor_seconds,
    )
