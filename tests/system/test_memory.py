"""Nothing leaks: loops hold memory flat, and what a program was given dies with its last name.

Resident memory is what the kernel says. `--every` runs 1,000 distributes of 64 MiB in every form, and 1,000 calls of
every kind; the suite alone runs fewer, still so many that a leak of each would be seen.
"""

from __future__ import annotations

import ctypes
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from tests.generators.oracles import EVERY, same_bits

STATM = Path("/proc/self/statm")
MIB = 2**20
BOTH = P("y", "x")
needs_statm = pytest.mark.skipif(not STATM.exists(), reason="the kernel does not say how much memory a process holds")


def resident() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(body: Callable[[], Any], count: int) -> tuple[int, int]:
    """By how much memory grows from the third run of a body to the last: in the end, and at most on the way."""
    for _ in range(3):
        body()
    gc.collect()
    start, peak = resident(), 0
    for _ in range(count):
        body()
        peak = max(peak, resident() - start)
    gc.collect()
    return resident() - start, peak


FORMS = [(kind, cut) for kind in ("jax", "numpy") for cut in ("copies", "rows", "columns")]
SIZES = [(1000, MIB // 4), (1000, 64 * MIB)] if EVERY else [(200, MIB // 4), (8, 64 * MIB)]


@needs_statm
@pytest.mark.parametrize(("kind", "cut"), FORMS)
@pytest.mark.parametrize(("count", "size"), SIZES)
def test_a_loop_of_distributes_holds_memory_flat(kind: str, cut: str, count: int, size: int, device: Any) -> None:
    host = np.ones((size // 4096, 1024), np.float32)
    source: Any = jnp.asarray(host) + 0 if kind == "jax" else host
    mapper = ttnn.replicate_tensor_to_mesh_mapper(device)
    if cut != "copies":
        mapper = ttnn.shard_tensor_to_mesh_mapper(device, int(cut == "columns"))
    end, peak = growth(lambda: ttnn.distribute_tensor(source, mapper, device).block_until_ready(), count)
    print(f"{count} x {size // MIB or size / MIB} MiB {kind} {cut}: +{end / MIB:.1f} MiB, at most {peak / MIB:.1f}")
    # One that leaks holds all of them, and each is at least one copy of what was not used where it lies.
    allowed = 2 * size + 24 * MIB
    assert end < allowed < count * size
    assert peak < allowed


@needs_statm
@pytest.mark.parametrize("kind", ["jit", "compiled", "op", "aggregate", "shards", "twin", "donated", "reference"])
def test_a_loop_of_calls_holds_memory_flat(kind: str, device: Any) -> None:
    size, count = MIB // 4, 1000 if EVERY else 200
    x = np.ones((size // 512, 128), np.float32)
    rows = ttnn.shard_tensor_to_mesh_mapper(device, 0)
    tensor = ttnn.distribute_tensor(x, rows, device)
    composer = ttnn.concat_mesh_to_tensor_composer(device, 0)
    f = jm.jit(lambda v: jm.shard_to_full(jm.full_to_shard(v, BOTH) + 1, BOTH), mesh=device.mesh)
    more = jm.jit(lambda t: t + 1, mesh=device.mesh, donate_argnums=0)
    compiled, lowered = f.lower(x).compile(), f.lower(x)
    bodies: dict[str, Callable[[], Any]] = {
        "jit": lambda: f(x).block_until_ready(),
        "compiled": lambda: compiled(x).block_until_ready(),
        "op": lambda: ttnn.add(tensor, tensor).block_until_ready(),
        "aggregate": lambda: ttnn.aggregate_tensor(tensor, composer),
        "shards": lambda: ttnn.get_device_tensors(tensor),
        "twin": lambda: more(ttnn.to_layout(tensor, ttnn.Layout.ROW_MAJOR)).block_until_ready(),
        "donated": lambda: more(ttnn.distribute_tensor(x, rows, device)).block_until_ready(),
        "reference": lambda: lowered.reference(x),
    }
    end, peak = growth(bodies[kind], count)
    print(f"{count} x {size / MIB} MiB {kind}: +{end / MIB:.1f} MiB, at most {peak / MIB:.1f}")
    assert max(end, peak) < 24 * MIB <= count * size
    assert same_bits(ttnn.aggregate_tensor(tensor, composer), x)


CUTS = {"blocks": BOTH, "rows": P(("y", "x"))} | ({"copies": P()} if EVERY else {})


@pytest.fixture
def thrifty() -> Iterator[None]:
    """Blocks of 1 MiB and more are given back to the system as they are freed.

    Else the allocator keeps some for each thread, in JAX too, hundreds of MiB that rise and fall and are no leak.
    """
    library, threshold = ctypes.CDLL(None), -3
    assert library.mallopt(threshold, MIB) == 1
    yield
    # The most that it sets by itself.
    library.mallopt(threshold, 32 * MIB)


@needs_statm
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="an allocator of other rules")
@pytest.mark.usefixtures("thrifty")
@pytest.mark.parametrize("cut", CUTS)
def test_a_loop_of_calls_with_large_numpy_arrays_leaves_nothing(cut: str, device: Any) -> None:
    size, count = 64 * MIB, 200 if EVERY else 24
    spec, x = CUTS[cut], np.ones((size // 4096, 1024), np.float32)
    f = jm.jit(lambda v: jm.shard_to_full(jm.full_to_shard(v, spec) * 2, spec), mesh=device.mesh)
    for _ in range(3):
        f(x).block_until_ready()
    gc.collect()
    start = resident()
    for _ in range(count):
        f(x).block_until_ready()
    gc.collect()
    end = resident() - start
    print(f"{count} x {size // MIB} MiB {cut}: +{end / MIB:.1f} MiB")
    # That of the last call may be held until the next; a leak would hold all.
    assert end < size + 24 * MIB < count * size // 4


def _dies(make: Callable[[], Any], give: Callable[[Any], Any]) -> bool:
    """Whether an argument dies with its last name, although what came out of it lives."""
    x = make()
    alive = weakref.ref(x)
    kept = give(x)
    del x
    gc.collect()
    assert kept is not None
    return alive() is None


WAYS = ["jit", "trace", "lower", "compiled", "compile", "reference", "traced reference", "shard_map", "grad", "text"]


@pytest.mark.parametrize("kind", ["jax", "numpy"])
@pytest.mark.parametrize("way", WAYS)
def test_no_program_keeps_its_arguments(way: str, kind: str, device: Any) -> None:
    x = np.ones((8, 8), np.float32)
    f = jm.jit(lambda v: jm.shard_to_full(jm.full_to_shard(v, BOTH) * 2, BOTH), mesh=device.mesh)
    lowered = f.lower(x)
    compiled = lowered.compile()
    mapped = jm.shard_map(lambda v: v * 2, mesh=device.mesh, in_specs=BOTH, out_specs=BOTH)
    ways: dict[str, Callable[[Any], Any]] = {
        "jit": f,
        "trace": f.trace,
        "lower": f.lower,
        "compiled": compiled,
        "compile": lambda v: f.lower(v).compile(),
        "reference": lowered.reference,
        "traced reference": f.trace(x).reference,
        "shard_map": mapped,
        "grad": lambda v: jax.grad(lambda w: f(w).sum())(v),
        "text": lambda v: (stage := f.trace(v), stage.as_text(), stage.lower().as_text("python"))[0],
    }

    def give(v: Any) -> Any:
        return jax.block_until_ready(ways[way](v)) if way in _RUN else ways[way](v)

    for _ in range(2):
        assert _dies(lambda: jnp.asarray(x) + 0 if kind == "jax" else x.copy(), give)


_RUN = {"jit", "compiled", "shard_map", "grad"}


@pytest.mark.parametrize("way", ["jit", "compiled", "reference", "lower", "op", "twin", "aggregate", "shards"])
def test_no_program_keeps_a_tensor(way: str, device: Any) -> None:
    rows = ttnn.shard_tensor_to_mesh_mapper(device, 0)
    composer = ttnn.concat_mesh_to_tensor_composer(device, 0)
    f = jm.jit(lambda t: t + 1, mesh=device.mesh)
    first = ttnn.distribute_tensor(np.ones((8, 8), np.float32), rows, device)
    lowered = f.lower(first)
    compiled = lowered.compile()
    ways: dict[str, Callable[[Any], Any]] = {
        "jit": lambda t: f(t).block_until_ready(),
        "compiled": lambda t: compiled(t).block_until_ready(),
        "reference": lowered.reference,
        "lower": f.lower,
        "op": lambda t: ttnn.add(t, 1).block_until_ready(),
        "twin": lambda t: f(ttnn.to_layout(t, ttnn.Layout.ROW_MAJOR)).block_until_ready(),
        "aggregate": lambda t: ttnn.aggregate_tensor(t, composer),
        "shards": lambda t: [np.array(s) for s in ttnn.get_device_tensors(t)],
    }
    for _ in range(2):
        tensor = ttnn.distribute_tensor(np.ones((8, 8), np.float32), rows, device)
        data, shard = weakref.ref(tensor.data), weakref.ref(tensor.data.addressable_shards[0].data)
        kept = ways[way](tensor)
        del tensor
        gc.collect()
        assert kept is not None
        assert data() is None
        assert shard() is None


def test_what_a_tensor_was_made_of_lives_no_longer_than_it(device: Any) -> None:
    every = ttnn.replicate_tensor_to_mesh_mapper(device)
    x: Any = np.ones((64, 64), np.float32)
    alive = weakref.ref(x)
    tensor = ttnn.distribute_tensor(x, every, device)
    del x
    assert alive() is None
    full: Any = jnp.ones((64, 64)) + 0
    tensor = ttnn.distribute_tensor(full, every, device)
    address = full.unsafe_buffer_pointer()
    del full
    gc.collect()
    _ = [jnp.zeros((64, 64)) + 0 for _ in range(20)]
    assert tensor.data.addressable_shards[3].data.unsafe_buffer_pointer() == address
    assert same_bits(ttnn.get_device_tensors(tensor)[7], np.ones((64, 64), np.float32))


def test_deallocated_tensors_hold_nothing(device: Any) -> None:
    tensor = ttnn.distribute_tensor(np.ones((8, 8), np.float32), ttnn.replicate_tensor_to_mesh_mapper(device), device)
    data = weakref.ref(tensor.data)
    ttnn.deallocate(tensor)
    gc.collect()
    assert data() is None
