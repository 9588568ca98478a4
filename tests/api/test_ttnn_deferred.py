"""What `ttnn` does not do at once, or not again: reshapes, tables made of nothing, arguments that were seen before."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.errors import DeletedError
from jaxmesh.runtime import launch
from jaxmesh.tensor import chains, execute
from jaxmesh.tensor.chains import LazyReshape, chained
from jaxmesh.ttnn import helpers
from tests.generators.oracles import same_bits

X = np.arange(128, dtype=np.float32).reshape(16, 8)
WHOLE = ttnn.MeshComposerConfig([0, 1])


@pytest.fixture
def tensor(device: ttnn.MeshDevice) -> Any:
    """Eight shards of shape (8, 2)."""
    config = ttnn.MeshMapperConfig([ttnn.PlacementShard(0), ttnn.PlacementShard(1)])
    return ttnn.to_device(ttnn.distribute_tensor(X, ttnn.create_mesh_mapper(device, config)), device)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that were started by ops."""
    seen: list[Any] = []

    def launched(run: Any, *args: Any) -> Any:
        seen.append(run)
        return launch.launch(run, *args)

    monkeypatch.setattr(execute, "launch", launched)
    monkeypatch.setattr(chains, "launch", launched)
    return seen


def pieces(change: Callable[[np.ndarray], np.ndarray] = lambda piece: piece) -> list[np.ndarray]:
    return [change(part) for rows in np.split(X, 2) for part in np.split(rows, 4, axis=1)]


def shards(tensor: Any) -> list[np.ndarray]:
    return [np.asarray(s) for _, s in tensor.shards()]


def equal(tensor: Any, want: list[np.ndarray]) -> bool:
    return all(same_bits(a, b) for a, b in zip(shards(tensor), want, strict=True))


# --- reshapes --------------------------------------------------------------------------------------------------------


def test_a_reshape_starts_nothing(tensor: Any, started: list[Any]) -> None:
    made = ttnn.reshape(ttnn.reshape(tensor, [4, 4]), [2, 1, 8])
    assert (made.shape, made.ndim, made.dtype, made.is_allocated()) == ((2, 1, 8), 3, np.float32, True)
    assert "shape=(2, 1, 8)" in repr(made)
    assert not started
    both = ttnn.add(made, made)
    assert len(started) == 1
    assert equal(both, pieces(lambda p: p.reshape(2, 1, 8) * 2))
    assert equal(made, pieces(lambda p: p.reshape(2, 1, 8)))
    assert len(started) == 2
    assert equal(made, pieces(lambda p: p.reshape(2, 1, 8)))
    assert len(started) == 2


def test_a_reshaped_tensor_is_one_like_any_other(tensor: Any, device: ttnn.MeshDevice) -> None:
    def made() -> Any:
        return ttnn.reshape(tensor, [2, 8])

    want = np.concatenate([np.concatenate([p.reshape(2, 8) for p in pieces()[i : i + 4]], 1) for i in (0, 4)])
    assert same_bits(ttnn.aggregate_tensor(made(), ttnn.create_mesh_composer(device, WHOLE)), want)
    assert equal(jm.jit(lambda t: t + 1, mesh=device.mesh)(made()), pieces(lambda p: p.reshape(2, 8) + 1))
    assert equal(jax.jit(lambda t: t)(made()), pieces(lambda p: p.reshape(2, 8)))
    assert equal(ttnn.to_layout(made(), ttnn.ROW_MAJOR_LAYOUT), pieces(lambda p: p.reshape(2, 8)))
    assert made().block_until_ready().data.shape == (2, 8, 2, 4)
    gone = made()
    ttnn.deallocate(gone)
    with pytest.raises(jm.ResidencyError, match="deallocated"):
        ttnn.add(gone, gone)


def test_a_wrong_reshape_is_an_error_at_once(tensor: Any) -> None:
    for _ in range(2):
        with pytest.raises(jm.VerifyError, match=r"ttnn\.reshape"):
            ttnn.reshape(tensor, [3, 5])
    with pytest.raises(jm.VerifyError, match=r"ttnn\.reshape"):
        ttnn.reshape(ttnn.reshape(tensor, [16]), [17])


def test_what_becomes_of_the_other_tensor_changes_nothing(tensor: Any, device: ttnn.MeshDevice) -> None:
    giving = jm.jit(lambda t: t + 1, mesh=device.mesh, donate_argnums=0)
    made = ttnn.reshape(tensor, [4, 4])
    giving(tensor)
    assert equal(made, pieces(lambda p: p.reshape(4, 4)))

    first = ttnn.add(made, 0.0)
    second, third = ttnn.reshape(first, [16]), ttnn.reshape(first, [2, 8])
    giving(second)
    ttnn.deallocate(first)
    assert equal(third, pieces(lambda p: p.reshape(2, 8)))
    assert equal(ttnn.reshape(third, [16]), pieces(lambda p: p.reshape(16)))


def test_deleting_an_array_deletes_no_other_tensor(tensor: Any) -> None:
    own = ttnn.add(tensor, 0.0)
    made = ttnn.reshape(own, [4, 4])
    own.data.delete()
    assert equal(made, pieces(lambda p: p.reshape(4, 4)))


def test_an_array_that_was_given_away_before_and_deleted_is_a_named_error(tensor: Any) -> None:
    own = ttnn.add(tensor, 0.0)
    array = own.data
    made = ttnn.reshape(own, [4, 4])
    array.delete()
    for use in (lambda: made.data, lambda: ttnn.add(made, made)):
        with pytest.raises(DeletedError, match="or deleted"):
            use()


def test_a_trace_leaves_nothing_in_a_reshaped_tensor(tensor: Any, device: ttnn.MeshDevice) -> None:
    made = ttnn.reshape(tensor, [4, 4])
    total = jax.jit(lambda y: made.data.sum() + y)(1.0)
    assert total == X.sum() + 1
    assert equal(made, pieces(lambda p: p.reshape(4, 4)))

    inside: list[Any] = []

    @jax.jit
    def traced(t: Any) -> Any:
        inside.append(ttnn.reshape(t, [4, 4]))
        return ttnn.add(inside[0], inside[0])

    assert equal(traced(tensor), pieces(lambda p: p.reshape(4, 4) * 2))
    assert not isinstance(inside[0]._stored, LazyReshape)
    assert equal(jax.vmap(lambda t: ttnn.reshape(t, [16]), axis_size=1, in_axes=None)(tensor), pieces_of_vmap())


def pieces_of_vmap() -> list[np.ndarray]:
    return pieces(lambda p: p.reshape(1, 16))


def test_a_reshape_forgets_no_proof_of_equal_copies(device: ttnn.MeshDevice) -> None:
    every = ttnn.replicate_tensor_to_mesh_mapper(device)
    tensor = ttnn.to_device(ttnn.distribute_tensor(X, every), device)
    assert tensor.is_proven
    ttnn.reshape(tensor, [128])
    assert tensor.is_proven
    assert tensor.data.shape == (16, 8)
    assert tensor.is_proven


def test_threads_read_one_reshaped_tensor(tensor: Any) -> None:
    made, found = ttnn.reshape(tensor, [4, 4]), list[bool]()
    threads = [
        threading.Thread(target=lambda: found.append(equal(made, pieces(lambda p: p.reshape(4, 4))))) for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [True] * 4


# --- tables made of nothing ------------------------------------------------------------------------------------------


@pytest.mark.beyond
def test_a_small_table_is_made_once(device: ttnn.MeshDevice, started: list[Any]) -> None:
    def table() -> Any:
        return ttnn.arange(0, 7, 1, dtype=ttnn.int32, device=device)

    want = [np.arange(7, dtype=np.int32)] * 8
    first, count = ttnn.add(table(), table()), len(started)
    assert equal(first, [2 * w for w in want])
    first = table()
    giving = jm.jit(lambda t: t + 1, mesh=device.mesh, donate_argnums=0)
    giving(first)
    assert equal(table(), want)
    second, third = table(), table()
    second.data.delete()
    assert equal(third, want)
    assert equal(table(), want)
    assert len(started) == count
    with jax.enable_x64(True):
        assert ttnn.arange(0, 7, 1, dtype=ttnn.DataType.INT64, device=device).dtype == np.int64
    assert ttnn.arange(0, 7, 1, dtype=ttnn.DataType.INT64, device=device).dtype == np.int32


def test_a_large_table_is_not_kept(device: ttnn.MeshDevice) -> None:
    before = len(execute._constants)
    ttnn.full(shape=[2**16], fill_value=0.5, dtype=ttnn.float32, device=device)
    assert len(execute._constants) == before


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.beyond
def test_a_call_as_one_before_says_the_same(tensor: Any, device: ttnn.MeshDevice) -> None:
    for memory in (ttnn.DRAM_MEMORY_CONFIG, ttnn.L1_MEMORY_CONFIG) * 2:
        for kind in (ttnn.float32, ttnn.int32):
            made = ttnn.add(tensor, tensor, dtype=kind, memory_config=memory)
            assert (made.dtype, made.memory_config()) == (kind, memory)
            assert equal(made, pieces(lambda p, kind=kind: (p * 2).astype(kind.dtype)))
    for bound in (1, True, 2, 1):
        assert equal(ttnn.clamp(tensor, bound, 5), pieces(lambda p, low=bound: np.clip(p, low, 5)))
    for shape in ([4, -1], [-1, 2]) * 2:
        assert equal(ttnn.reshape(tensor, shape), pieces(lambda p, shape=shape: p.reshape(shape)))
    with pytest.raises(jm.ResidencyError, match="host memory"):
        ttnn.add(tensor, ttnn.from_device(tensor))
    gone = ttnn.add(tensor, tensor)
    ttnn.deallocate(gone)
    with pytest.raises(jm.ResidencyError, match="deallocated"):
        ttnn.add(tensor, gone)


def test_a_closed_device_is_an_error_for_a_call_as_one_before() -> None:
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    t = ttnn.to_device(helpers.from_numpy(X), device)
    ttnn.add(t, t)
    ttnn.close_mesh_device(device)
    with pytest.raises(jm.MeshError, match="closed"):
        ttnn.add(t, t)


# --- processes and programs ------------------------------------------------------------------------------------------


def test_no_more_programs_are_running_than_xla_takes(tensor: Any) -> None:
    most = 0
    for _ in range(200):
        made = ttnn.all_reduce(tensor, cluster_axis=1)
        most = max(most, len(launch._started.results))
    assert most <= launch.MOST_RUNNING < 32
    assert equal(made, [np.add.reduce(pieces()[i : i + 4]) for i in (0, 4) for _ in range(4)])


def test_importing_jaxmesh_reads_what_is_needed_for_its_names_alone() -> None:
    needed = [
        "errors",
        "jaxprs",
        "jaxprs.backend",
        "jaxprs.trees",
        "runtime",
        "runtime.interrupts",
        "sharding",
        "sharding.configs",
        "validate",
    ]
    code = f"""
import jax, sys
before = set(sys.modules)
import jaxmesh
read = [n for n in sys.modules if n.startswith("jaxmesh.") and n.removeprefix("jaxmesh.") not in {needed}]
others = [n for n in set(sys.modules) - before if n.partition(".")[0] in ("jax", "jaxlib", "numpy", "re", "inspect")]
assert not read and not others, (read, others)
missing = [n for n in dir(jaxmesh) if not n.startswith("__") and getattr(jaxmesh, n, None) is None]
assert not missing, missing
from jaxmesh import MeshTensor, jit, shard_map
assert jit is jaxmesh.jit and isinstance(jaxmesh.Traced, type)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_are_those_of_the_stub() -> None:
    """What `from jaxmesh import *` brings and what the reference lists."""
    names: dict[str, Any] = {}
    exec("from jaxmesh import *", names)
    assert set(jm.__all__) == set(names) - {"__builtins__"}
    assert {"jit", "Traced", "ttnn", "errors"} < set(jm.__all__) <= set(dir(jm))
    errors = {n for n, e in vars(jm.errors).items() if isinstance(e, type) and not n.startswith("_")}
    assert not errors.intersection(jm.__all__)
    assert all(getattr(jm, name) is getattr(jm.errors, name) for name in errors)
    assert not any(hasattr(jm, name) for name in ("printable", "nothing", "_LONG"))


# --- chains of ops ---------------------------------------------------------------------------------------------------


def test_ops_of_a_chain_are_one_program(tensor: Any, started: list[Any], device: ttnn.MeshDevice) -> None:
    with chained():
        doubled = ttnn.add(tensor, tensor)
        made = ttnn.to_layout(ttnn.reshape(ttnn.subtract(doubled, 1.0), [4, 4]), ttnn.TILE_LAYOUT)
        negative, ones = ttnn.neg(made), ttnn.ones([4, 4], ttnn.float32, ttnn.TILE_LAYOUT, device)
        ttnn.deallocate(doubled)
        assert (made.shape, made.ndim, made.dtype, made.layout) == ((4, 4), 2, np.float32, ttnn.TILE_LAYOUT)
        assert not started
        assert equal(made, pieces(lambda p: (p * 2 - 1).reshape(4, 4)))
        assert equal(negative, pieces(lambda p: (1 - p * 2).reshape(4, 4)))
        assert all((np.asarray(s) == 1).all() for s in shards(ones))
        assert len(started) == 1
        again = ttnn.add(made, negative)
    # A chain ends where it is looked at, also behind the block.
    assert equal(ttnn.add(again, again), pieces(lambda p: np.zeros((4, 4), np.float32)))
    assert len(started) == 3


def test_a_chain_rounds_as_its_ops_do(tensor: Any) -> None:
    def called() -> Any:
        thirds = ttnn.multiply(ttnn.typecast(tensor, ttnn.bfloat16), 1 / 3)
        return ttnn.typecast(ttnn.subtract(ttnn.add(thirds, 256.0), 256.0), ttnn.float32)

    want = shards(called())
    with chained():
        assert equal(called(), want)
    assert not equal(ttnn.multiply(tensor, 1 / 3), want)


def test_equal_chains_compile_once(tensor: Any) -> None:
    # A full cache evicts as many as it takes in.
    chains._programs.cache_clear()
    with chained():
        for _ in range(3):
            made = ttnn.exp(ttnn.add(tensor, 2.0))
            assert equal(made, pieces(lambda p: np.asarray(jax.jit(jax.numpy.exp)(p + 2))))
        before = len(chains._programs)
        assert equal(ttnn.exp(ttnn.add(tensor, tensor)), shards(ttnn.exp(ttnn.add(tensor, tensor))))
    assert len(chains._programs) == before + 1


def test_a_long_chain_runs_in_parts(tensor: Any, started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "_LONGEST", 4)
    with chained():
        made = tensor
        for _ in range(10):
            made = ttnn.add(made, 1.0)
        assert len(started) == 2
        assert equal(made, pieces(lambda p: p + 10))


def test_an_op_of_a_chain_that_is_wrong_fails_when_it_is_called(tensor: Any) -> None:
    with chained():
        made = ttnn.add(tensor, 1.0)
        with pytest.raises(jm.VerifyError, match=r"ttnn\.reshape"):
            ttnn.reshape(made, [3, 5])
        ttnn.deallocate(made)
        with pytest.raises(jm.ResidencyError, match="deallocated"):
            ttnn.add(made, made)


def test_a_trace_takes_what_a_chain_computed(tensor: Any) -> None:
    with chained():
        made, other = ttnn.add(tensor, 1.0), ttnn.add(tensor, 2.0)
        assert equal(jax.jit(lambda t: ttnn.add(t, made))(tensor), pieces(lambda p: p * 2 + 1))
        assert equal(made, pieces(lambda p: p + 1))
        assert equal(ttnn.add(made, other), pieces(lambda p: p * 2 + 3))
