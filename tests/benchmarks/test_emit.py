"""What printing costs: `pytest tests/benchmarks/test_emit.py --benchmark-only -n0`.

The measure is the time of `as_text` of a lowered program over that of lowering it; each time is the least of several,
in turns, because the machine is shared. Emission is linear in the equations, and takes no longer than lowering.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm

MESH = AbstractMesh((2, 4), ("y", "x"))


def traced(count: int) -> jm.Traced:
    """A sharded program of about so many equations."""

    def program(x: Any, w: Any) -> Any:
        y, v = jm.full_to_shard(x, P("y", "x")), jm.full_to_shard(w, P("y", "x"))
        for _ in range(count // 5):
            y = jnp.tanh(y * 1.5 + v) - jnp.maximum(y, v)
        return jm.shard_to_full(y, P("y", "x"))

    shape = jnp.zeros((4, 8))
    return jm.jit(program, mesh=MESH).trace(shape, shape)


def least(run: Callable[..., Any], setup: Callable[[], Any] = lambda: None, rounds: int = 3) -> float:
    """The least time of several runs, each on what `setup` makes anew."""
    times: list[float] = []
    for _ in range(rounds):
        made = setup()
        start = time.perf_counter()
        run() if made is None else run(made)
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.parametrize("dialect", ["ttnn", "python", "cpp"])
def test_text_of_ten_thousand_equations(benchmark: Any, dialect: str) -> None:
    program, small = traced(10_000), traced(1_000)

    def text(stage: jm.Lowered) -> str:
        return stage.as_text(dialect)

    # A stage keeps its flat program for the next text, so each round has a stage of its own.
    lower, long, short = least(program.lower), least(text, program.lower), least(text, small.lower)
    benchmark.extra_info.update({"text / lower": round(long / lower, 2), "10,000 / 1,000": round(long / short, 1)})
    benchmark.pedantic(text, setup=lambda: ((program.lower(),), {}), rounds=1)


def test_ttir_of_ten_thousand_equations(benchmark: Any) -> None:
    lower = least(traced(10_000).lower)
    text = least(lambda stage: stage.as_text(), lambda: traced(10_000))
    benchmark.extra_info.update({"text / lower": round(text / lower, 2)})
    benchmark.pedantic(lambda stage: stage.as_text(), setup=lambda: ((traced(10_000),), {}), rounds=1)
