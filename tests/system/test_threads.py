"""Threads: one function called by many, with other shapes, meshes and ways, equals NumPy; nothing hangs or is poisoned.

What may hang runs in a process of its own, with a time limit. Values are integers, so sums have one result.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.runtime import launch
from tests.generators.oracles import EVERY, same_bits

TIMES = 20 if EVERY else 1
BEFORE = """
import sys, faulthandler, contextlib, tempfile, threading
faulthandler.dump_traceback_later(int(sys.argv[2]), exit=True)
import numpy as np, jax, jax.numpy as jnp
from concurrent.futures import ThreadPoolExecutor
from jax.sharding import PartitionSpec as P
import jaxmesh as jm
TIMES = int(sys.argv[1])
jm.emulate(16)

def all_of(job, workers=8):
    gate = threading.Barrier(workers)
    def start(i):
        gate.wait()
        return job(i)
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(start, range(workers)))

def numbers(i, shape):
    return np.random.default_rng(i).integers(0, 9, shape).astype(np.float32)
"""


def run_alone(program: str, seconds: int = 150) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BEFORE + program, str(TIMES), str(seconds)],
        capture_output=True, text=True, timeout=seconds + 60, env={**os.environ, "JAXMESH_CHECK_REPLICATION": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


CALLS = """
AXES = ("x", "y") * 4
meshes = [jm.make_mesh((2, 8)), jm.make_mesh((4, 4), devices=jax.devices()[::-1]),
          jm.make_mesh((8, 2)), jm.make_mesh((2, 2), devices=jax.devices()[5:9])]

def body(x):
    # Every device sums its rows and columns with all others, twice over, so all of them wait for each other.
    s = jm.full_to_shard(x, P("y", "x"))
    for axis in AXES:
        s = s + jax.lax.psum(s, axis) // 16
    return jm.shard_to_full(s, P("y", "x"))

def oracle(x, mesh):
    rows, columns = mesh.devices.shape
    s = x.reshape(rows, x.shape[0] // rows, columns, x.shape[1] // columns).astype(np.int64)
    for axis in AXES:
        s = s + s.sum({"y": 0, "x": 2}[axis], keepdims=True) // 16
    return s.reshape(x.shape).astype(np.float32)

around = jm.jit(body)
given = [jm.jit(body, mesh=m) for m in meshes]

asked = [[(x := numbers(3 * j + k, (16, 16 * (1 + k))), oracle(x, mesh)) for k in range(3)]
         for j, mesh in enumerate(meshes)]

def job(i):
    # Unread for a while, and some never: programs of several threads are on their way at once.
    waiting = []
    for k in range(100 * TIMES):
        x, want = asked[j := (i + k) % 4][k % 3]
        if k % 2:
            out = given[j](x)
        else:
            with jax.set_mesh(meshes[j]):
                out = around(x)
        waiting.append((out, want) if k % 5 else None)
        if len(waiting) > 20 or k % 100 == 99:
            for out, want in filter(None, waiting):
                assert (np.asarray(out) == want).all()
            waiting = []

for _ in range(10):
    given[0](numbers(0, (16, 16)))
all_of(job, 10)
print("done")
"""


def test_calls_of_one_function() -> None:
    assert run_alone(CALLS) == "done\n"


WAYS = """
from pathlib import Path
mesh, other = jm.make_mesh((2, 4)), jm.make_mesh((2, 4), devices=jax.devices()[8:16][::-1])

def model(x, w):
    x, w = jm.full_to_shard(x, P("y", "x")), jm.full_to_shard(w, P("x"))
    return jm.shard_to_full(jax.lax.psum(x @ w, "x"), P("y"))

f = jm.jit(model, mesh=mesh)
g = jm.shard_map(lambda x, w: jax.lax.psum(x @ w, "x"), mesh=other, in_specs=(P("y", "x"), P("x")), out_specs=P("y"))
x0, w0 = numbers(1, (4, 8)), numbers(2, (8, 4))

def texts(f, x, w):
    lowered = f.lower(x, w)
    return [f.trace(x, w).as_text(), *[lowered.as_text(d) for d in ("ttnn", "python", "cpp")]]

def one(i, k, expected=None):
    x, w = numbers(i, (4, 8)), numbers(k, (8, 4 + 4 * (k % 2)))
    want = x @ w
    way = (i + k) % 7
    if way == 0:
        assert (np.asarray(f(x, w)) == want).all()
    if way == 1:
        assert (np.asarray(g(x, w)) == want).all()
    if way == 2:
        assert texts(f, x0, w0) == expected
    if way == 3:
        assert (np.asarray(f.lower(x, w).compile()(x, w)) == want).all()
        assert (np.asarray(f.lower(x, w).reference(x, w)) == want).all()
    if way == 4:
        again = jm.from_mlir(f.trace(x, w).as_text(), mesh=other)
        assert (np.asarray(again.lower().compile()(x, w)) == want).all()
    if way == 5:
        with tempfile.TemporaryDirectory() as folder:
            jm.codegen_py(f, x, w, export_path=folder + "/model")
            # Not `ast.parse`: before 3.11.8, Python fails where several threads make trees at once (its issue 106905).
            compile(Path(folder, "model", "main.py").read_text(), "main.py", "exec")
            assert (np.load(folder + "/model/tensors/expected0.npy") == want).all()
    if way == 6:
        from jaxmesh import ttnn
        device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4), physical_device_ids=range(i, i + 8))
        config = ttnn.MeshMapperConfig([ttnn.PlacementShard(0), ttnn.PlacementShard(1)])
        tensor = ttnn.to_device(ttnn.distribute_tensor(x, ttnn.create_mesh_mapper(device, config)), device)
        tensor = ttnn.add(ttnn.multiply(tensor, float(k)), tensor)
        total = ttnn.all_reduce(tensor, cluster_axis=1)
        composer = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0, 1]))
        assert (np.asarray(ttnn.aggregate_tensor(tensor, composer)) == x * k + x).all()
        once = ttnn.create_mesh_composer(device, ttnn.MeshComposerConfig([0, 1], ttnn.MeshShape(2, 1)))
        assert (np.asarray(ttnn.aggregate_tensor(total, once)) == (x * k + x).reshape(4, 4, 2).sum(1)).all()
        ttnn.close_mesh_device(device)
        try:
            ttnn.create_mesh_mapper(device, config)
        except jm.MeshError:
            pass
        else:
            raise AssertionError("closed")
"""


def test_every_way_to_use_it() -> None:
    tail = """
expected = texts(f, x0, w0)
all_of(lambda i: [one(i, k, expected) for k in range(7 * TIMES)])
print("done")
"""
    assert run_alone(WAYS + tail) == "done\n"


def test_first_use_in_many_threads() -> None:
    # Modules that are loaded late, tables made when first asked for, and the devices themselves.
    first = """
def begin(i):
    jm.emulate(16)
    return jm.make_mesh((2, 8))

assert len({id(m) for m in all_of(begin)}) == 1
"""
    tail = "all_of(lambda i: one(0, i if i % 7 != 2 else 0))\nprint('done')"
    program = BEFORE.replace("jm.emulate(16)\n", "")
    assert "emulate" not in program
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program + first + WAYS + tail, "1", "150"],
        capture_output=True, text=True, timeout=200, env={**os.environ, "JAXMESH_CHECK_REPLICATION": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "done\n"


# --- what one thread does is nothing to another ----------------------------------------------------------------------

MESH = jm.make_mesh((2, 4))
X = np.arange(32, dtype=np.float32).reshape(4, 8)


def doubled(x: Any) -> Any:
    return jm.shard_to_full(2 * jm.full_to_shard(x, P("y", "x")), P("y", "x"))


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, jm.VerifyError])
def test_an_error_while_tracing_leaves_nothing(kind: type[BaseException]) -> None:
    fail = [True]

    def body(x: Any) -> Any:
        shard = jm.full_to_shard(x, P("y", "x"))
        if fail[0]:
            raise kind("now")
        return jm.shard_to_full(2 * shard, P("y", "x"))

    f = jm.jit(body, mesh=MESH)
    for call in (f, f.trace, f.lower):
        with pytest.raises(kind, match="now"):
            call(X)
        assert jax.sharding.get_abstract_mesh().empty
        assert launch._started.depth == 0
        with pytest.raises(jm.UnloweredError):
            jm.full_to_shard(X, P("y"))
    # Another mesh is no part of the program that was left.
    assert same_bits(jm.jit(doubled, mesh=jm.make_mesh((4, 2)))(X), 2 * X)
    fail[0] = False
    assert same_bits(f(X), 2 * X)
    with ThreadPoolExecutor(1) as pool:
        assert same_bits(pool.submit(f, X).result(60), 2 * X)


def test_errors_of_one_thread_are_its_own() -> None:
    f = jm.jit(doubled, mesh=MESH)

    def job(i: int) -> None:
        for k in range(6):
            if (i + k) % 3 == 0:
                with pytest.raises(jm.VerifyError, match="3"):
                    f(np.zeros((3, 8), np.float32))
            elif (i + k) % 3 == 1:
                with jax.set_mesh(jm.make_mesh((4, 2))), pytest.raises(jm.MeshMismatchError):
                    f(X)
            else:
                assert same_bits(f(X + i), 2 * (X + i))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(job, range(8)))


def test_functions_in_functions() -> None:
    inner = jm.jit(lambda s: 2 * s, mesh=MESH)
    outer = jm.jit(lambda x: jm.shard_to_full(inner(jm.full_to_shard(x, P("y", "x"))), P("y", "x")), mesh=MESH)

    def job(i: int) -> None:
        x = np.full((4, 8 * (1 + i % 3)), i, np.float32)
        assert same_bits(outer(x), 2 * x)
        assert same_bits(jax.jit(lambda x: outer(x) + 1)(x), 2 * x + 1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(job, range(8)))


def test_a_function_may_wait_for_threads_while_it_is_traced() -> None:
    f = jm.jit(doubled, mesh=MESH)
    with ThreadPoolExecutor(1) as pool:

        def body(x: Any) -> Any:
            # Another thread runs a program, and this one waits for it.
            known = np.asarray(pool.submit(f, X).result(60))
            return doubled(x) + known

        for _ in range(2):
            assert same_bits(jm.jit(body, mesh=MESH)(X), 4 * X)


def test_a_program_waits_for_those_of_other_threads() -> None:
    class Result:
        """As a result of a program that is running."""

        def __init__(self) -> None:
            self.waited = 0

        def block_until_ready(self) -> None:
            self.waited += 1
            if self.waited:
                raise ValueError("what another thread's program ended with")

    launch.launch(lambda: None)
    mine = Result()
    launch._started.results.append(mine)
    launch.launch(lambda: None)
    assert not mine.waited
    launch._started.results.append(mine)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(launch.launch, lambda: 7).result(60) == 7
    assert mine.waited
    launch.launch(lambda: None)


def test_a_result_is_let_go() -> None:
    f = jm.jit(doubled, mesh=MESH)
    out = f(X)
    out.block_until_ready()
    launch.forget()
    assert not launch._started.results
    jax.clear_caches()


def test_coroutines() -> None:
    f = jm.jit(doubled, mesh=MESH)

    async def one(i: int) -> bool:
        with jax.set_mesh(MESH) if i % 2 else contextlib.nullcontext():
            here = f(X + i)
        there = await asyncio.to_thread(f, X - i)
        return same_bits(here, 2 * (X + i)) and same_bits(there, 2 * (X - i))

    async def every() -> list[bool]:
        return await asyncio.gather(*map(one, range(8)))

    assert all(asyncio.run(every()))


def test_folders_run_one_at_a_time(tmp_path: Path) -> None:
    from jaxmesh.cli.run_folder import run_folder

    for i in range(4):
        jm.codegen_py(doubled, jnp.asarray(X + i), mesh=MESH, export_path=tmp_path / str(i))
    here = Path.cwd()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: run_folder(tmp_path / str(i), ["--check"]), range(4))) == [0] * 4
    assert Path.cwd() == here


FORK = """
import os, signal, warnings
mesh = jm.make_mesh((2, 4))
f = jm.jit(lambda x: jm.shard_to_full(jm.full_to_shard(x, P("y", "x")), P("y", "x")), mesh=mesh)
x = numbers(0, (4, 8))
lowered = f.lower(x)
from jaxmesh import ttnn
mapper = ttnn.shard_tensor_to_mesh_mapper(ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4)), 0)
assert (np.asarray(f(x)) == x).all()
# The lock is held when the process is forked.
holding, go = threading.Event(), threading.Event()
from jaxmesh.runtime.launch import launch
thread = threading.Thread(target=launch, args=[lambda: (holding.set(), go.wait())])
thread.start()
holding.wait()
warnings.simplefilter("ignore")
faulthandler.cancel_dump_traceback_later()
signal.alarm(100)
child = os.fork()
if not child:
    signal.alarm(60)
    for call in (lambda: f(x), lambda: lowered.reference(x), lambda: ttnn.distribute_tensor(np.ones(8), mapper)):
        try:
            call()
        except jm.ForkError as error:
            assert "spawn" in str(error)
        else:
            os._exit(1)
    os._exit(0 if "mesh_shard" in f.trace(x).as_text() else 2)
go.set()
thread.join()
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_says_that_it_cannot_run() -> None:
    assert run_alone(FORK, 100) == "0\n"


def test_locks_are_free_again() -> None:
    assert launch._started.lock.acquire(timeout=10)
    launch._started.lock.release()
    assert threading.current_thread() is threading.main_thread()
