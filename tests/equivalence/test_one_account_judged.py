"""What the real ttnn runs of a program is what its estimate counts: the same operations, as often, and their memory."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import errors
from jaxmesh.analysis.judge import Verdict
from tests.generators.plain_programs import CASES, Case, jitted
from tests.generators.real_ttnn.process import needs_ttnn
from tests.generators.suite.all_programs import PROGRAMS, Entry

pytestmark = needs_ttnn

BINARY = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "maximum",
    "minimum",
    "logical_and",
)
UNARY = (
    "abs", "cos", "erf", "exp", "gelu", "log", "neg", "reciprocal", "relu", "rsqrt", "sigmoid", "sign", "silu", "sin",
    "sqrt", "tanh",
)  # fmt: skip
DEVICE_OPERATIONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(BINARY, ("BinaryNg",)), **dict.fromkeys(UNARY, ("Unary",)), "where": ("Ternary",),
    "matmul": ("Matmul",), "linear": ("Matmul",), "layer_norm": ("LayerNorm",), "rms_norm": ("LayerNorm",),
    "softmax": ("Softmax",), "typecast": ("Typecast",), "conv2d": ("Conv2d",), "max_pool2d": ("Pool2D",),
    "all_gather": ("AllGather", "AllBroadcast"), "all_reduce": ("AllReduce", "AllBroadcast", "ReduceScatter"),
    "reduce_scatter": ("ReduceScatter",), "point_to_point": ("PointToPointOp",), "concat": ("Concat",),
    "embedding": ("Embeddings",), "cumsum": ("Accumulation",),
}  # fmt: skip
"""By function the device operation that each call runs once, whatever else it runs; some have two ways."""


def executed(verdict: Verdict) -> Counter[str]:
    """Returns how often the library has run each function of the table, by the device operation that it stands for."""
    counts = Counter[str]()
    for line, operations in verdict.operations.items():
        called = re.search(r"= ttnn\.(?:experimental\.|transformer\.)?(\w+)\(", verdict.places[line].text)
        if called is not None:
            counts[called[1]] += sum(operations.get(kind, 0) for kind in DEVICE_OPERATIONS.get(called[1], ()))
    return +counts


def counted(estimate: Any) -> Counter[str]:
    """Returns how often an estimate counts each function of the table."""
    counts = Counter[str]()
    for op in estimate.ops:
        counts[op.op] += op.count if op.op in DEVICE_OPERATIONS else 0
    return +counts


def compare(lowered: Any) -> Verdict:
    verdict, estimate = lowered.judge(), lowered.estimate()
    assert verdict, str(verdict)
    assert verdict.target == estimate.machine.name
    assert executed(verdict) == counted(estimate)
    memory, held = verdict.memory("DRAM"), verdict.held
    assert held is not None
    assert held.peak == estimate.memory.peak
    # A bank holds whole pages, which small tensors fill in part.
    assert memory is None or held.peak <= memory.device_peak
    return verdict


@pytest.mark.parametrize(
    "entry", [e for e in PROGRAMS if len(e.sizes) <= 2 and math.prod(e.sizes) <= 8], ids=lambda e: e.name
)
def test_programs_of_the_suite(entry: Entry) -> None:
    compare(entry.lowered)


@pytest.mark.parametrize("case", [c for c in CASES if len(c.mesh.shape) <= 2], ids=lambda c: c.name)
def test_plain_programs(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ShardingWarning)
        lowered = jitted(case).lower(*case.args)
    if lowered.explain().uncounted:
        pytest.skip("the program has no text")
    compare(lowered)


SHIFT = [(i, (i + 1) % 4) for i in range(4)]


def turns(v: Any, body: Callable[[Any], Any]) -> Any:
    return lax.fori_loop(0, 40, lambda _, u: body(u), v)


LARGE: Mapping[str, Callable[[Any], Any]] = {
    "ppermute": lambda v: lax.ppermute(v, "x", SHIFT), "psum": lambda v: lax.psum(v, "x"),
    "psum over both": lambda v: lax.psum(v, ("y", "x")), "pmax": lambda v: lax.pmax(v, "x"),
    "all_gather": lambda v: lax.all_gather(v, "x", tiled=True),
    "psum_scatter": lambda v: lax.psum_scatter(v, "x", tiled=True),
    "all_to_all": lambda v: lax.all_to_all(v, "x", 0, 1, tiled=True),
    "product and sum": lambda v: jnp.tanh(lax.psum(v @ v.T, "x")),
    "loop": lambda v: lax.fori_loop(0, 5, lambda _, u: lax.ppermute(jnp.sin(u), "x", SHIFT), v),
    # Of each loop there is the state of the iteration before, once all are in their second one.
    "loops in loops": lambda v: turns(v, lambda u: turns(u, lambda w: turns(w, lambda x: jnp.sin(x) * jnp.cos(x)))),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_the_memory_of_large_shards_is_what_the_library_takes(name: str) -> None:
    def function(x: Any) -> Any:
        shard = LARGE[name](jm.full_to_shard(x, P("y", "x")))
        return jm.shard_to_full(shard, P("y", "x"), assume_replicated=True)

    mesh = AbstractMesh((2, 4), ("y", "x"))
    verdict = compare(jm.jit(function, mesh=mesh).lower(jax.ShapeDtypeStruct((4096, 8192), jnp.float32)))
    memory, held = verdict.memory("DRAM"), verdict.held
    assert memory is not None
    assert held is not None
    assert memory.device_peak == pytest.approx(held.peak, rel=0.02)
