"""What a judgement costs beside JAX's own compilation: `pytest tests/benchmarks/test_judge.py --benchmark-only -n0`.

Counted are the seconds of processors, of all processes, since JAX compiles in threads and ttnn runs in another process.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import pytest

from tests.benchmarks.ratios import compare
from tests.generators.real_ttnn.process import needs_ttnn
from tests.models.molecules import SYSTEMS, nvt_step, sharded
from tests.models.sizes import processor_seconds

FUSES = "xla_cpu_use_fusion_emitters"
AS_FOR_USERS: Any = {FUSES: True} if FUSES in os.environ.get("XLA_FLAGS", "") else None
"""The tests' own flags leave out a part of XLA's work."""

pytestmark = [needs_ttnn, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("particles", SYSTEMS)
def test_judge_of_molecular_dynamics(benchmark: Any, particles: int) -> None:
    try:
        step, state = nvt_step(particles)
    except ImportError as error:
        pytest.skip(f"{error.name} is not installed")

    program, lowered = sharded(step, state, particles), list[Any]()

    def lower() -> None:
        # A lowered program keeps its flat program for the next question.
        lowered[:] = [program.trace(state).lower()]

    def judge() -> None:
        assert lowered[0].judge("t3000")

    benchmark.group = "judge"
    compare(
        benchmark,
        f"judge, a step of molecular dynamics, {particles} particles",
        judge,
        lambda: jax.jit(lambda x: step(x)).lower(state).compile(AS_FOR_USERS),
        target=4,
        peer_name="jax.jit, lowered and compiled, in processor time",
        rounds=5,
        setup=lower,
        clock=processor_seconds,
    )
