"""Operations and bytes of random programs, beside those that plain Python counts in the jaxpr."""

from __future__ import annotations

import math

import jax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.account.work import work
from tests.generators.count_jaxpr import Counting, program_to_count

MESH = AbstractMesh((1, 1), ("y", "x"))


@pytest.mark.parametrize("seed", range(24))
def test_a_random_program_counts_as_its_jaxpr(seed: int) -> None:
    fun, args = program_to_count(seed)
    jaxpr = jax.make_jaxpr(fun)(*args)
    # What nothing reads is left out of the program, too.
    counted = Counting(without_dead(jaxpr))
    # Each input goes to the devices whole, and once.
    lowered = jm.jit(lambda *xs: fun(*(jm.full_to_shard(x, P()) for x in xs)), mesh=MESH).lower(*args)
    program = lowered._program(False, 10_000, False)
    ops = [op for op in program.ops if op.results and not all(program.types[v].host for v in op.results)]
    found = [work(op, program) for op in ops]
    kinds = ("products", "reduced", "elementwise")
    assert {k: sum(getattr(w, k) for w in found) for k in kinds} == {k: counted.counts[k] for k in kinds}
    estimate = lowered.estimate("n150", groups=False)
    assert sum(op.flops for op in estimate.ops) == sum(counted.counts.values())
    assert sum(op.dram_bytes for op in estimate.ops) == counted.bytes
    assert estimate.overlapped_seconds <= estimate.seconds
    assert math.isclose(sum(estimate.shares.values()), 1)


def without_dead(jaxpr: jax.core.ClosedJaxpr) -> jax.core.ClosedJaxpr:
    live, kept = set(jaxpr.jaxpr.outvars), []
    for eqn in reversed(jaxpr.jaxpr.eqns):
        if live.intersection(eqn.outvars):
            live.update(v for v in eqn.invars if not hasattr(v, "val"))
            kept.append(eqn)
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=kept[::-1]))
