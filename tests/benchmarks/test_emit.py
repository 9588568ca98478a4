"""What printing costs: `pytest tests/benchmarks/test_emit.py --benchmark-only -n0`.

Emission is linear in the equations, and takes no longer than lowering. Three measures say it:

- `text / lower`: `as_text` of a lowered program, which flattens it, makes every op one of TTNN, verifies and prints it,
  over `jm.jit(f).lower(*args)`, which is how JAX counts lowering: from the function.
- `print / flat`: the printing alone, over the lowering to the flat TTNN program that is printed.
- `text / pass`: `as_text` over `traced.lower()` alone, the one pass from `mesh_shard` to the two transfers, which looks
  at most equations once.

Each time is the least of several, because the machine is shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm

MESH = AbstractMesh((2, 4), ("y", "x"))


def function(count: int) -> tuple[Any, jax.Array]:
    """A sharded program of about so many equations, never traced before, and its two arguments in one."""

    def program(x: Any, w: Any) -> Any:
        y, v = jm.full_to_shard(x, P("y", "x")), jm.full_to_shard(w, P("y", "x"))
        for _ in range(count // 5):
            y = jnp.tanh(y * 1.5 + v) - jnp.maximum(y, v)
        return jm.shard_to_full(y, P("y", "x"))

    return jm.jit(program, mesh=MESH), jnp.zeros((4, 8))


def traced(count: int) -> jm.Traced:
    """It traced."""
    made, shape = function(count)
    return made.trace(shape, shape)


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
    long_count, short_count = (1_000, 100) if benchmark.disabled else (10_000, 1_000)
    program, small = traced(long_count), traced(short_count)

    def text(stage: jm.Lowered) -> str:
        return stage.as_text(dialect)

    def ready() -> jm.Lowered:
        # A stage keeps its flat program for the next text: after one text, the next is printing alone.
        stage = program.lower()
        stage.as_text(dialect)
        return stage

    long, printing = least(text, program.lower), least(text, ready)
    benchmark.extra_info.update(
        {
            "text / lower": round(
                long / least(lambda made: made[0].lower(made[1], made[1]), lambda: function(long_count)), 2
            ),
            "print / flat": round(printing / (long - printing + least(program.lower)), 2),
            "text / pass": round(long / least(program.lower), 2),
            "10,000 / 1,000": round(long / least(text, small.lower), 1),
        }
    )
    benchmark.pedantic(text, setup=lambda: ((program.lower(),), {}), rounds=1)


def test_ttir_of_ten_thousand_equations(benchmark: Any) -> None:
    count = 1_000 if benchmark.disabled else 10_000
    text = least(lambda stage: stage.as_text(), lambda: traced(count))
    lower = least(lambda made: made[0].lower(made[1], made[1]), lambda: function(count))
    benchmark.extra_info.update({"text / lower": round(text / lower, 2)})
    benchmark.pedantic(lambda stage: stage.as_text(), setup=lambda: ((traced(count),), {}), rounds=1)
