"""Bytes and times of collectives, beside rings and lines that are simulated piece by piece."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.machines import MACHINES
from tests.generators.simulated_ring import loads

KINDS = {
    "all_gather": lambda x, axis: lax.all_gather(x, axis, tiled=True),
    "reduce_scatter": lambda x, axis: lax.psum_scatter(x, axis, tiled=True),
    "all_reduce": lambda x, axis: lax.psum(x, axis),
}
WIRES = {"n300": 2, "t3000": 2, "galaxy": 4}
"""Between neighbours, as the makers' descriptions of the machines have them."""
PLACES = [
    ("n300", (1, 2), "x", False), ("t3000", (2, 4), "y", False), ("t3000", (2, 4), "x", False),
    ("t3000", (1, 8), "x", True), ("galaxy", (8, 4), "y", True), ("galaxy", (8, 4), "x", True),
    ("galaxy", (4, 2), "x", False),
]  # fmt: skip


def estimated(kind: str, cluster: str, shape: tuple[int, int], axis: str, **options: Any) -> Any:
    mesh = AbstractMesh(shape, ("y", "x"))

    def fun(x: Any) -> Any:
        y = KINDS[kind](jm.full_to_shard(x, P(axis)), axis)
        return jm.shard_to_full(y, P() if kind == "all_reduce" else P(axis), assume_replicated=kind != "all_reduce")

    x = jax.ShapeDtypeStruct((mesh.shape[axis] * 64, 96), np.float32)
    return jm.jit(fun, mesh=mesh).lower(x).estimate(cluster, **options)


@pytest.mark.parametrize(("cluster", "shape", "axis", "ring"), PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_collective_sends_what_a_simulation_sends(
    kind: str, cluster: str, shape: tuple[int, int], axis: str, ring: bool
) -> None:
    estimate = estimated(kind, cluster, shape, axis)
    count, size = dict(zip("yx", shape, strict=True))[axis], 64 * 96 * 4
    sent = loads(kind, count, size, ring)
    (op,) = [op for op in estimate.ops if op.link_bytes]
    assert op.op == kind
    assert op.link_bytes == {axis: sent.sum() / count}
    assert estimate.link_bytes[axis] == op.link_bytes[axis]
    assert op.busiest_bytes == {axis: sent.max()}
    assert math.isclose(op.times["links"], sent.max() / (WIRES[cluster] * 12.5e9))
    assert MACHINES[cluster].is_ring(count) == ring


def permuted(shape: tuple[int, int], pairs: list[tuple[int, int]], cluster: str = "t3000") -> Any:
    mesh = AbstractMesh(shape, ("y", "x"))

    def fun(x: Any) -> Any:
        return jm.shard_to_full(lax.ppermute(jm.full_to_shard(x, P("x")), "x", pairs), P("x"))

    lowered = jm.jit(fun, mesh=mesh).lower(jax.ShapeDtypeStruct((32 * shape[1], 96), np.float32))
    found = lowered.estimate(cluster)
    assert found.totals() == lowered.explain().totals()
    return found


SHARD = 32 * 96 * 4


@pytest.mark.parametrize(
    ("shape", "pairs", "by_device", "over_link"),
    [
        # A ring of all eight: every device sends its shard to a neighbour, over a link of its own.
        ((1, 8), [(i, (i + 1) % 8) for i in range(8)], 1, 1),
        # A line of four: the last sends to the first over all links, against the others.
        ((2, 4), [(i, (i + 1) % 4) for i in range(4)], 1, 1),
        # The two in the middle of a line carry what passes through, both ways.
        ((2, 4), [(0, 2), (1, 3), (2, 0), (3, 1)], 1, 2),
        # Two by two at once; devices without a source are sent zeros.
        ((1, 4), [(0, 1), (1, 0), (2, 3), (3, 2)], 1, 1),
        # Half way round a ring, four shards cross each link.
        ((1, 8), [(i, (i + 4) % 8) for i in range(8)], 1, 4),
    ],
)
def test_a_permute_counts_what_a_device_sends_and_what_the_busiest_link_carries(
    shape: tuple[int, int], pairs: list[tuple[int, int]], by_device: int, over_link: int
) -> None:
    found = permuted(shape, pairs)
    ops = [op for op in found.ops if op.moves and op.moves[0].kind == "point_to_point"]
    assert len(ops) == len(pairs) * shape[0]
    assert found.link_bytes["x"] == by_device * SHARD
    assert sum(op.busiest_bytes["x"] for op in ops) == over_link * SHARD
    assert math.isclose(sum(op.times["links"] for op in ops), over_link * SHARD / (WIRES["t3000"] * 12.5e9))


def carried(pairs: list[tuple[int, int]], count: int, ring: bool) -> int:
    """The shards over the busiest link in one direction, where each goes hop by hop the shorter way."""
    links = Counter[tuple[int, int]]()
    for here, end in pairs:
        ahead = (end - here) % count
        step = 1 if end > here else -1
        if ring and 2 * ahead != count:
            step = 1 if 2 * ahead < count else -1
        while here != end:
            links[here, (here + step) % count] += 1
            here = (here + step) % count
    return max(links.values())


@pytest.mark.parametrize("seed", range(6))
def test_a_send_takes_the_time_of_the_busiest_link_hop_by_hop(seed: int) -> None:
    draws = np.random.default_rng(seed)
    for shape, cluster in (((1, 8), "t3000"), ((2, 4), "t3000"), ((8, 4), "galaxy")):
        count = shape[1]
        ends = zip(range(count), draws.permutation(count).tolist(), strict=True)
        pairs = [(a, b) for a, b in ends if a != b][: draws.integers(1, count + 1)] or [(0, count - 1)]
        found, ring = permuted(shape, pairs, cluster), (count, cluster) != (4, "t3000")
        seconds = sum(op.times["links"] for op in found.ops if op.op == "point_to_point")
        assert math.isclose(seconds, carried(pairs, count, ring) * SHARD / (WIRES[cluster] * 12.5e9)), (pairs, shape)


def test_weights_are_gathered_as_they_are_stored() -> None:
    whole, stored = (
        estimated("all_gather", "t3000", (1, 8), "x", stored=name).link_bytes["x"] for name in (None, "bfloat8_b")
    )
    assert stored == math.ceil(whole / 4 * (1 + 1 / 16))
