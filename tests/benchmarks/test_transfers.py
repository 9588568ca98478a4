"""Between the host and the devices: against a memcpy, and against what JAX does.

A memcpy is `np.copyto` into memory that the process has already touched. What is made anew (`distribute_tensor`,
`aggregate_tensor`, `jax.device_put`, `np.asarray`) has its memory cleared by the system first.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from tests.benchmarks.ratios import compare

S, R = ttnn.PlacementShard, ttnn.PlacementReplicate()
LARGE = (8192, 8192)
"""256 MiB of float32."""
LINES = (1 << 20, 64)
"""As many, in pieces whose runs are 64 bytes: a line of the cache each."""
CUTS: dict[str, tuple[list[Any], P]] = {
    "replicated": ([R, R], P()),
    "on the leading dim": ([S(0)], P(("y", "x"))),
    "on the last dim": ([S(1)], P(None, ("y", "x"))),
    "on the last dim, over one axis": ([R, S(1)], P(None, "x")),
    "on two dims": ([S(0), S(1)], P("y", "x")),
    "on two dims, swapped": ([S(1), S(0)], P("x", "y")),
}
COPIED = list(CUTS)[2:]


@functools.cache
def mesh() -> Mesh:
    return jm.make_mesh((2, 4))


def shape(benchmark: Any, full: tuple[int, int] = LARGE) -> tuple[int, int]:
    """A sixteenth of the rows where nothing is timed: enough for every way to copy."""
    return (full[0] // 16, full[1]) if benchmark.disabled else full


@functools.cache
def on_host(size: tuple[int, int]) -> np.ndarray:
    return np.arange(size[0] * size[1], dtype=np.float32).reshape(size)


@functools.cache
def on_jax(size: tuple[int, int]) -> jax.Array:
    return jax.block_until_ready(jax.device_put(on_host(size).copy(), jax.devices()[0]))


@functools.cache
def room(size: tuple[int, int]) -> np.ndarray:
    """Memory to copy to, touched before."""
    return np.full(size, 1, np.float32)


def mapper(way: str) -> ttnn.TensorToMesh:
    placements = CUTS[way][0]
    override = ttnn.MeshShape(8) if len(placements) == 1 else None
    return ttnn.create_mesh_mapper(mesh(), ttnn.MeshMapperConfig(placements, override))


def composer(way: str) -> ttnn.MeshToTensor:
    placements = CUTS[way][0]
    dims = [p.dim if isinstance(p, ttnn.PlacementShard) else 0 for p in placements]
    shape = [n if isinstance(p, ttnn.PlacementShard) else 1 for p, n in zip(placements, (2, 4), strict=False)]
    if len(placements) == 1:
        return ttnn.create_mesh_composer(mesh(), ttnn.MeshComposerConfig(dims, ttnn.MeshShape(8)))
    if dims[0] == dims[1]:
        dims = [1, 0] if shape[0] > 1 else [0, 1]
    return ttnn.create_mesh_composer(mesh(), ttnn.MeshComposerConfig(dims, ttnn.MeshShape(*shape)))


def distributed(x: Any, way: str) -> Callable[[], Any]:
    over, device = mapper(way), mesh()
    return lambda: ttnn.distribute_tensor(x, over, device).block_until_ready()


def put(x: Any, way: str) -> Callable[[], Any]:
    sharding = NamedSharding(mesh(), CUTS[way][1])
    return lambda: jax.device_put(x, sharding).block_until_ready()


def memcpy(size: tuple[int, int]) -> Callable[[], Any]:
    to, of = room(size), on_host(size)
    return lambda: np.copyto(to, of)


SIZE = "256 MiB"


@pytest.mark.parametrize(("way", "target"), [("replicated", 0.01), ("on the leading dim", 0.05)])
def test_what_is_not_copied(benchmark: Any, way: str, target: float) -> None:
    x = on_jax(shape(benchmark))
    ours, peer = distributed(x, way), put(x, way)
    row = f"distribute, {way}, jax.Array, {SIZE}"
    compare(benchmark, row, ours, peer, target=target, peer_name="device_put", rounds=5)
    pointers = {s.unsafe_buffer_pointer() for _, s in ours().shards()}
    assert min(pointers) == x.unsafe_buffer_pointer()


def test_a_writable_array(benchmark: Any) -> None:
    size = shape(benchmark)
    row = f"distribute, replicated, writable NumPy, {SIZE}"
    ours = distributed(on_host(size), "replicated")
    compare(benchmark, row, ours, memcpy(size), target=1.3, peer_name="memcpy")


@pytest.mark.parametrize("way", COPIED)
def test_one_pass(benchmark: Any, way: str) -> None:
    size = shape(benchmark)
    ours = distributed(on_jax(size), way)
    compare(benchmark, f"distribute, {way}, {SIZE}", ours, memcpy(size), target=1.5, peer_name="memcpy")


@pytest.mark.parametrize("way", ["on the last dim, over one axis", "on two dims"])
def test_short_runs(benchmark: Any, way: str) -> None:
    size = shape(benchmark, LINES)
    row = f"distribute, {way}, runs of 64 bytes, {SIZE}"
    compare(benchmark, row, distributed(on_jax(size), way), memcpy(size), target=1.5, peer_name="memcpy")


@pytest.mark.parametrize("way", COPIED)
def test_beside_device_put(benchmark: Any, way: str) -> None:
    x = on_jax(shape(benchmark))
    row = f"distribute, {way}, {SIZE}"
    compare(benchmark, row, distributed(x, way), put(x, way), target=1.0, peer_name="device_put", rounds=5)


@pytest.mark.parametrize("way", CUTS)
def test_aggregate(benchmark: Any, way: str) -> None:
    size = shape(benchmark)
    tensor, over = distributed(on_jax(size), way)(), composer(way)

    def ours() -> Any:
        return ttnn.aggregate_tensor(tensor, over)

    assert np.array_equal(ours(), on_host(size))
    compare(benchmark, f"aggregate, {way}, {SIZE}", ours, memcpy(size), target=1.3, peer_name="memcpy")


@pytest.mark.parametrize("way", COPIED)
def test_aggregate_beside_asarray(benchmark: Any, way: str) -> None:
    """An array keeps what `np.asarray` made of it, so each round has a fresh one."""
    size = shape(benchmark)
    tensor, over, put_again = distributed(on_jax(size), way)(), composer(way), put(on_jax(size), way)
    fresh: list[Any] = []

    def theirs() -> Any:
        return np.asarray(fresh.pop() if fresh else put_again())

    def setup() -> None:
        fresh[:] = [put_again()]

    compare(
        benchmark,
        f"aggregate, {way}, {SIZE}",
        lambda: ttnn.aggregate_tensor(tensor, over),
        theirs,
        target=1.0,
        peer_name="np.asarray",
        rounds=5,
        setup=setup,
    )


@pytest.mark.parametrize("source", ["jax.Array", "NumPy"])
@pytest.mark.parametrize("way", ["replicated", "on the leading dim", "on two dims"])
def test_small(benchmark: Any, way: str, source: str) -> None:
    size = (32, 32)
    x = on_jax(size) if source == "jax.Array" else on_host(size)
    row = f"distribute, {way}, {source}, 32x32"
    compare(benchmark, row, distributed(x, way), put(x, way), target=1.2, peer_name="device_put", repeat=50)


@pytest.mark.parametrize("way", ["on the leading dim", "on two dims"])
def test_small_aggregate(benchmark: Any, way: str) -> None:
    size, repeat = (32, 32), 1 if benchmark.disabled else 50
    tensor, over, put_again = distributed(on_jax(size), way)(), composer(way), put(on_jax(size), way)
    fresh: list[Any] = []

    def setup() -> None:
        fresh[:] = [put_again() for _ in range(repeat)]

    compare(
        benchmark,
        f"aggregate, {way}, 32x32",
        lambda: ttnn.aggregate_tensor(tensor, over),
        lambda: np.asarray(fresh.pop()),
        target=1.2,
        peer_name="np.asarray",
        repeat=repeat,
        setup=setup,
    )


@pytest.mark.parametrize("way", ["replicated", "on the leading dim", "on two dims"])
def test_peak_memory(benchmark: Any, way: str) -> None:
    """The most memory a process of its own needed, the JAX array that it distributes included."""
    rows = shape(benchmark)[0]
    command = [sys.executable, "-m", "tests.benchmarks.peak", way, str(rows)]

    def measured() -> dict[str, float]:
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    found = benchmark.pedantic(measured, rounds=1)
    benchmark.extra_info.update(
        row=f"peak memory, distribute, {way}, {SIZE}",
        peer="bytes of the tensor",
        ratio=found["peak"] / found["bytes"],
        target=1.0 if way == "replicated" else 2.0,
        rounds=1,
    )
