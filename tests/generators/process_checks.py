# ruff: noqa: B023 (what raised() is given runs at once)
"""What each of several processes does in `test_processes.py`; every check is made in every process.

Run by `jaxmesh.run_processes` with the name of a group. A check compares with NumPy, from what all processes know.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.runtime.distributed.collectives import exchange, leaders
from tests.generators.oracles import EVERY, coordinates, oracle_shard, same_bits

CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def me() -> int:
    return jax.process_index()


def raised(kind: type[Exception], run: Callable[[], Any], *parts: str) -> None:
    """Runs it at once: lambdas may speak of loop variables."""
    with pytest.raises(kind) as caught:
        run()
    assert isinstance(caught.value, jm.JaxmeshError), caught.type
    assert [p for p in parts if p not in str(caught.value)] == [], caught.value


def meshes() -> list[Mesh]:
    """The devices in order, in an order in which no process's are contiguous, and at random; two shapes."""
    devices = jax.devices()
    turns = [d for k in range(jax.local_device_count()) for d in devices[k :: jax.local_device_count()]]
    shuffled = [devices[i] for i in np.random.default_rng(7).permutation(len(devices))]
    made = [
        jm.make_mesh((2, 4)),
        jm.make_mesh((4, 2), devices=shuffled),
        jm.make_mesh((2, 4), devices=turns),
        jm.make_mesh((2, 2, 2), devices=shuffled),
    ]
    return made if EVERY else made[:2]


def flat_meshes() -> list[Mesh]:
    """Those of axes y and x; of four processes the suite alone takes one, of two the other."""
    return meshes()[:3] if EVERY else [meshes()[jax.process_count() == 2]]


def whole_numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 23 - 7).reshape(shape).astype(dtype)


# --- devices ---------------------------------------------------------------------------------------------------------


@check
def devices_are_counted() -> None:
    local, processes = jax.local_device_count(), jax.process_count()
    assert local * processes == 8 == ttnn.get_num_devices()
    mine = jm.emulate(local)
    assert list(mine) == jax.local_devices()
    raised(jm.DeviceCountError, lambda: jm.emulate(99), "99 devices", f"only {local} exist in process {me()}")
    said = (f"only 8 exist in all {processes} processes", f"({local} of them in this one, process {me()})")
    raised(jm.DeviceCountError, lambda: jm.make_mesh((4, 8)), "32 devices", *said, f"emulate({32 // processes})")
    raised(jm.MeshError, lambda: jm.make_mesh((2, 1)), "process", "jax.local_devices()")
    raised(jm.MeshError, lambda: jm.initialize_processes("127.0.0.1:1", 2, 0), "joined")
    alone = jm.make_mesh((1, local), devices=jax.local_devices())
    double = jm.jit(lambda x: jm.shard_to_full(2 * jm.full_to_shard(x, P("x")), P("x")), mesh=alone)
    # A mesh of one process needs nothing of the others: each has another value.
    given = whole_numbers(8) + me()
    assert same_bits(jm.to_host(double(given)), 2 * given)
    assert ttnn.open_mesh_device(mesh_shape=[2, 4]).mesh.devices.size == 8


# --- transfers -------------------------------------------------------------------------------------------------------

DTYPES = (np.float32, ml_dtypes.bfloat16, np.int8, np.bool_, np.complex64, ml_dtypes.int4, np.float16)


def config_of(mesh: Mesh, dims: list[int | None]) -> Any:
    return ttnn.MeshMapperConfig([ttnn.PlacementReplicate() if d is None else ttnn.PlacementShard(d) for d in dims])


@check
def host_arrays_are_distributed_and_joined() -> None:
    pairs = itertools.product(meshes(), DTYPES) if EVERY else zip(itertools.cycle(meshes()), DTYPES, strict=False)
    for number, (mesh, dtype) in enumerate(pairs):
        rng = np.random.default_rng(number)
        sizes = mesh.devices.shape
        dims: list[int | None] = [int(d) if rng.integers(3) else None for d in rng.permutation(3)[: len(sizes)]]
        full = whole_numbers(4, 8, 8, dtype=dtype)
        if dtype == np.float32:
            full.flat[:4] = np.float32([np.nan, -0.0, np.inf, 0])
            full.view(np.uint32).flat[1] = 0x7FC12345
        mapper = ttnn.create_mesh_mapper(mesh, config_of(mesh, dims))
        tensor = ttnn.distribute_tensor(full, mapper, mesh)
        rows = [[a for a, d in enumerate(dims) if d == dim] for dim in range(3)]
        mine = [c for c in coordinates(sizes) if mesh.devices[c].process_index == me()]
        assert [tuple(c) for c, _ in tensor.shards()] == mine
        assert len(ttnn.get_device_tensors(tensor)) == len(mine)
        for c in coordinates(sizes):
            if c in mine:
                assert same_bits(tensor.shard(c), oracle_shard(full, rows, sizes, c)), (dims, c)
            else:
                holder = mesh.devices[c].process_index
                raised(
                    jm.NotAddressableError,
                    lambda c=c: tensor.shard(c),
                    f"belongs to process {holder}",
                    f"process {me()}",
                )
        free = [d for d in range(3) if d not in dims]
        composer = ttnn.create_mesh_composer(
            mesh,
            ttnn.MeshComposerConfig(
                [free.pop() if d is None else d for d in dims],
                ttnn.MeshShape([1 if d is None else n for d, n in zip(dims, sizes, strict=True)]),
            ),
        )
        assert same_bits(ttnn.aggregate_tensor(tensor, composer), full), (dims, dtype)
        one = number % jax.process_count()
        got = jm.to_host(tensor, composer, process=one)
        assert same_bits(got, full) if me() == one else got is None
        # Without a word to the others.
        if me() == 0:
            assert f"shape={tensor.shape}" in repr(tensor)
            assert tensor._repr_html_().count('class="device ') == 8
        raised(jm.ResidencyError, lambda: jm.to_host(tensor), "composer")
        raised(jm.ArgumentTypeError, lambda: jm.to_host(tensor, composer, process=9), "9")
    raised(jm.MeshError, lambda: tensor.shard((9, 9, 9)), "[9, 9, 9]")


@check
def some_devices_hold_nothing() -> None:
    for mesh in meshes()[:2]:
        config = ttnn.MeshMapperConfig([ttnn.PlacementShard(0)], ttnn.MeshShape(3))
        full = whole_numbers(6, 2)
        tensor = ttnn.distribute_tensor(full, ttnn.create_mesh_mapper(mesh, config), mesh)
        first = ttnn.create_mesh_composer(mesh, ttnn.MeshComposerConfig([0], ttnn.MeshShape(3)))
        every = ttnn.create_mesh_composer(mesh, ttnn.MeshComposerConfig([0], ttnn.MeshShape(8)))
        assert "on 3 of 8 devices" in repr(tensor)
        assert same_bits(ttnn.aggregate_tensor(tensor, first), full)
        # The real composer joins the shards that exist.
        assert same_bits(ttnn.aggregate_tensor(tensor, every), full)
        raised(jm.VerifyError, lambda: tensor.shard([n - 1 for n in tensor.mesh.devices.shape]), "stores no shard")


@check
def shards_come_from_their_processes() -> None:
    for mesh in meshes():
        places = coordinates(mesh.devices.shape)
        mine = [c for c in places if mesh.devices[c].process_index == me()]
        other = next(c for c in places if c not in mine)
        # Each process knows its own shards only.
        held = {c: np.full((2, 3), places.index(c), np.float32) for c in mine}
        tensor = jm.from_process_shards(held, mesh)
        config = ttnn.MeshComposerConfig([0], ttnn.MeshShape(8))
        joined = ttnn.aggregate_tensor(tensor, ttnn.create_mesh_composer(mesh, config))
        assert same_bits(joined, np.repeat(np.arange(8, dtype=np.float32), 2)[:, None] * np.ones((1, 3), np.float32))
        axes = mesh.axis_names
        total = jm.jit(lambda t, axes=axes: jm.shard_to_full(lax.psum(t, axes), P()), mesh=mesh)(tensor)
        assert same_bits(jm.to_host(total), np.full((2, 3), 28, np.float32))
        equal = {c: np.full(2, c[0], np.int32) for c in mine}
        assert jm.from_process_shards(equal, mesh, varying=axes[0]).varying == (axes[0],)
        raised(jm.ReplicationError, lambda: jm.from_process_shards(equal, mesh, varying=axes[1:]), "equal")
        raised(jm.NotAddressableError, lambda: jm.from_process_shards({**held, other: held[mine[0]]}, mesh), "belongs")
        raised(jm.VerifyError, lambda: jm.from_process_shards(dict(list(held.items())[1:]), mesh), "missing")
        apart = {c: np.zeros(2 + me()) for c in mine}
        raised(jm.ProcessMismatchError, lambda: jm.from_process_shards(apart, mesh), "0 and 1", "[2]", "[3]")


@check
def files_and_other_devices() -> None:
    first, second = jm.make_mesh((2, 4)), jm.make_mesh((2, 4), devices=jax.devices()[::-1])
    full = whole_numbers(8, 4)
    tensor = ttnn.distribute_tensor(full, ttnn.shard_tensor_to_mesh_mapper(first, 0))
    moved = ttnn.to_device(tensor, second)
    assert same_bits(ttnn.aggregate_tensor(moved, ttnn.concat_mesh_to_tensor_composer(second, 0)), full)
    path = Path(os.environ["JAXMESH_TEST_FOLDER"]) / "tensor"
    ttnn.dump_tensor(path, moved)
    read = ttnn.load_tensor(path, device=first)
    assert same_bits(ttnn.aggregate_tensor(read, ttnn.concat_mesh_to_tensor_composer(first, 0)), full)


# --- programs --------------------------------------------------------------------------------------------------------


def collectives(x: Any, over: Any, size: int) -> list[Any]:
    ring = [(i, (i + 1) % size) for i in range(size)]
    one = over[0] if isinstance(over, tuple) else over
    return [
        lax.psum(x, over),
        lax.pmax(x, over),
        lax.all_gather(x, over, tiled=True),
        lax.psum_scatter(x, over, tiled=True),
        lax.all_to_all(x, one, 0, 1, tiled=True),
        lax.ppermute(x, over, ring),
        x + lax.axis_index(one).astype(x.dtype),
    ]


def collectives_oracle(shards: dict[Any, np.ndarray], mesh: Mesh, over: Any) -> dict[Any, list[np.ndarray]]:
    """Written from the meaning alone: a loop over the devices of each group."""
    names = mesh.axis_names
    chosen = [names.index(a) for a in (over if isinstance(over, tuple) else (over,))]

    def group(c: tuple[int, ...], axes: list[int]) -> list[tuple[int, ...]]:
        found = itertools.product(*[range(mesh.devices.shape[a]) for a in axes])
        return [tuple(dict(zip(axes, g, strict=True)).get(a, v) for a, v in enumerate(c)) for g in found]

    def at(c: tuple[int, ...]) -> list[np.ndarray]:
        whole, one = group(c, chosen), group(c, chosen[:1])
        rows = [shards[g] for g in whole]
        place, place_one = whole.index(c), one.index(c)
        total = sum(rows[1:], rows[0])
        return [
            total,
            np.maximum.reduce(rows),
            np.concatenate(rows),
            np.split(total, len(rows))[place],
            np.concatenate([np.split(shards[g], len(one))[place_one] for g in one], 1),
            rows[place - 1],
            shards[c] + np.float32(c[chosen[0]]),
        ]

    return {c: at(c) for c in shards}


@check
def collectives_cross_processes() -> None:
    for mesh in meshes() if EVERY else flat_meshes():
        names = mesh.axis_names
        full = whole_numbers(64, 16)
        rows = [list(range(len(names))), []]
        shards = {c: oracle_shard(full, rows, mesh.devices.shape, c) for c in coordinates(mesh.devices.shape)}
        for over in (*names, names):
            size = 8 if isinstance(over, tuple) else mesh.shape[over]

            def body(x: Any, over: Any = over, size: int = size) -> Any:
                return collectives(jm.full_to_shard(x, P(names)), over, size)

            run = jm.jit(body, mesh=mesh)
            wanted = collectives_oracle(shards, mesh, over)
            lowered = run.lower(full)
            for outs in (run(full), lowered.compile()(full)):
                for number, out in enumerate(outs):
                    for c, got in out.shards():
                        assert same_bits(got, wanted[tuple(c)][number]), (over, number, tuple(c))
            reference = lowered.reference(full)
            for c, number in itertools.product(wanted, range(len(reference))):
                assert same_bits(reference[number][c], wanted[c][number]), (over, number, c)
            # The real ttnn opens meshes of two dims.
            text = lowered.as_text(strict=len(names) <= 2)
            jm.check_processes([text, run.trace(full).as_text()], "the program")


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    x, w1, w2 = jm.full_to_shard(x, P("y")), jm.full_to_shard(w1, P(None, "x")), jm.full_to_shard(w2, P("x"))
    return jm.shard_to_full(lax.psum((x @ w1) * (x @ w1) @ w2, "x"), P("y"))


def plain_mlp(x: Any, w1: Any, w2: Any) -> Any:
    return (x @ w1) * (x @ w1) @ w2


def small(*shape: int) -> np.ndarray:
    """Few and small whole numbers: every sum of their products is exact."""
    return whole_numbers(*shape) % 3 - 1


@check
def programs_take_and_give_full_arrays() -> None:
    args = small(8, 8), small(8, 16), small(16, 4)
    want = plain_mlp(*args)
    for mesh in flat_meshes():
        run = jm.jit(mlp, mesh=mesh)
        compiled = run.lower(*args).compile()
        held = [jax.device_put(a, jax.local_devices()[-1]) for a in args]
        on_mesh = jax.jit(lambda *xs: xs, out_shardings=jax.sharding.NamedSharding(mesh, P(None, "x")))(*args)
        for got in (
            run(*args),
            run(*map(jnp.asarray, args)),
            run(*on_mesh),
            compiled(*args),
            compiled(*map(jnp.asarray, args)),
            compiled(*held),
            compiled(*on_mesh),
            jax.jit(run)(*args),
        ):
            assert same_bits(jm.to_host(got), want)
            one = jm.to_host({"got": got}, process=1)
            assert same_bits(one["got"], want) if me() == 1 else one is None
            assert "shape=(8, 4)" in repr(got)
        assert same_bits(run.lower(*args).reference(*on_mesh), want)
        batch = np.stack([args[0], args[0] + 1])
        many = jax.vmap(run, (0, None, None))(batch, *args[1:])
        assert same_bits(jm.to_host(many), np.stack([want, plain_mlp(args[0] + 1, *args[1:])]))
        with jax.set_mesh(mesh):
            assert same_bits(jm.to_host(jm.jit(mlp)(*args)), want)
            assert same_bits(jm.to_host(compiled(*args)), want)
        raised(jm.UnsupportedError, lambda run=run: run.lower(*args).export(tempfile.gettempdir()), "several processes")


@check
def gradients_inside_and_outside() -> None:
    args = small(8, 8), small(8, 16), small(16, 4)
    want = jax.grad(lambda *a: (plain_mlp(*a) ** 2).sum(), (0, 1, 2))(*map(jnp.asarray, args))
    for mesh in flat_meshes():
        run = jm.jit(mlp, mesh=mesh)
        outside = jax.grad(lambda *a, run=run: (run(*a) ** 2).sum(), (0, 1, 2))(*map(jnp.asarray, args))
        inside = jm.jit(jax.grad(lambda *a: (mlp(*a) ** 2).sum(), (0, 1, 2)), mesh=mesh)(*args)
        for a, b, c in zip(jm.to_host(outside), jm.to_host(inside), want, strict=True):
            assert same_bits(a, c)
            assert same_bits(b, c)


@check
def shard_maps_and_texts() -> None:
    x, w = small(4, 8), small(8, 16)
    for mesh in flat_meshes():
        specs: Any = {"mesh": mesh, "in_specs": (P("y", "x"), P("x")), "out_specs": P("y")}

        def body(x: Any, w: Any) -> Any:
            return lax.psum(x @ w, "x")

        for run in (jm.shard_map(body, **specs), jm.jit(jax.shard_map(body, **specs), mesh=mesh)):
            assert same_bits(jm.to_host(run(x, w)), x @ w)
        text = jm.jit(jax.shard_map(body, **specs), mesh=mesh).trace(x, w).as_text()
        program = jm.from_mlir(text, mesh=mesh).lower()
        assert same_bits(jm.to_host(program.compile()(x, w)), x @ w)
        assert same_bits(program.reference(x, w), x @ w)


@check
def tensors_enter_and_leave_programs() -> None:
    x = whole_numbers(16, 8)
    for mesh in flat_meshes():
        split = jm.jit(lambda x: (jm.full_to_shard(x, P("y")), jm.full_to_shard(x, P("y", "x"))), mesh=mesh)
        rows, blocks = split(x)

        def step(rows: Any, blocks: Any) -> Any:
            back = lax.all_gather(blocks, "x", axis=1, tiled=True)
            return rows * 2 + back, jm.shard_to_full(lax.psum(rows, "y"), P())

        run = jm.jit(step, mesh=mesh)
        tripled, total = run(rows, blocks)
        sizes = dict(mesh.shape)
        composer = ttnn.create_mesh_composer(
            mesh, ttnn.MeshComposerConfig([0, 1], ttnn.MeshShape(sizes["y"], sizes["x"]))
        )
        joined = ttnn.aggregate_tensor(tripled, composer)
        assert same_bits(joined, np.tile(3 * x, (1, sizes["x"])))
        summed = sum(np.split(x, sizes["y"])[1:], np.split(x, sizes["y"])[0])
        assert same_bits(jm.to_host(total), summed)
        reference = run.lower(rows, blocks).reference(rows, blocks)
        assert same_bits(reference[1], summed)
        for c in coordinates(mesh.devices.shape):
            assert same_bits(reference[0][c], 3 * np.split(x, sizes["y"])[c[0]])
        compiled = run.lower(rows, blocks).compile()
        assert same_bits(jm.to_host(compiled(rows, blocks)[1]), summed)
        # Eager ops, one of them over an axis.
        added = ttnn.add(ttnn.multiply(rows, rows), 3.0)
        first = ttnn.create_mesh_composer(mesh, ttnn.MeshComposerConfig([0, 1], ttnn.MeshShape(sizes["y"], 1)))
        assert same_bits(ttnn.aggregate_tensor(added, first), x * x + 3)


# --- what the processes must say alike -------------------------------------------------------------------------------


@check
def differing_processes_are_told() -> None:
    mesh = meshes()[0]
    jm.check_processes({"a": np.ones(3), "b": "text", "c": 1})
    last = jax.process_count() - 1
    apart = {"a": np.ones(3), "b": np.zeros(2) + (me() == last)}
    raised(jm.ProcessMismatchError, lambda: jm.check_processes(apart, "weights"), "weights['b']", f"0 and {last}")
    shapes = np.zeros((2, 2 + (me() == last)))
    raised(jm.ProcessMismatchError, lambda: jm.check_processes(shapes, "x"), "[2, 2]", "[2, 3]", f"0 and {last}")
    more = [1] * (2 + (me() == last))
    raised(jm.ProcessMismatchError, lambda: jm.check_processes(more, "list"), "2 leaves", "3 leaves")
    mapper = ttnn.shard_tensor_to_mesh_mapper(mesh, 0)
    with jm.check_replication():
        ttnn.distribute_tensor(np.ones(8), mapper)
        raised(
            jm.ProcessMismatchError, lambda: ttnn.distribute_tensor(np.ones(8) * (1 + (me() == last)), mapper), "same"
        )
    spread = jax.jit(lambda x: x, out_shardings=jax.sharding.NamedSharding(mesh, P("y")))(np.zeros(4))
    raised(jm.ArgumentTypeError, lambda: jm.check_processes(spread), "to_host")
    keys = jax.random.split(jax.random.key(0), 2)
    raised(jm.ArgumentTypeError, lambda: jm.to_host(keys), "key_data")
    # Nobody waits for words of a program that another does not run: also where it says more than fits in one piece.
    copy = jax.jit(lambda x: x, out_shardings=jax.sharding.NamedSharding(mesh, P("y", "x")))
    for rows in (8, 1 << 12):
        mine = copy(np.zeros((rows * (1 + (me() == last)), 64), np.float32))
        raised(jm.ProcessMismatchError, lambda: jm.to_host(mine), f"processes 0 and {last} have", "bytes")
    assert same_bits(jm.to_host(copy(np.ones((8, 64), np.float32))), np.ones((8, 64), np.float32))


# --- what is claimed and what is recorded ----------------------------------------------------------------------------


def told_by_some(run: Callable[[], Any], *parts: str) -> None:
    """Some process, the one that comes last, is told; those that came before have waited for nobody."""
    try:
        run()
        said = ""
    except jm.ProcessMismatchError as error:
        said = str(error)
        assert [p for p in parts if p not in said] == [], said
    rows = exchange(np.frombuffer(bytes([bool(said)]), np.uint8), leaders(jax.devices()))
    assert rows.any()


def negated(x: Any) -> Any:
    return jm.shard_to_full(-jm.full_to_shard(x, P("y", "x")), P("y", "x"))


def unchecked_programs() -> None:
    # Without collectives, in which those that come first would wait.
    mesh, x = jm.make_mesh((2, 4)), whole_numbers(8, 8)

    def scaled(x: Any, factor: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(x, P("y")) * factor, P("y"))

    # One alone may look at a program, fail with one, run one for itself and lose its caches.
    run, other = jm.jit(scaled, mesh=mesh, static_argnums=1), jm.jit(negated, mesh=mesh)
    run(x, 3)
    if me() == 0:
        run.lower(x, 4).compile()
        jax.make_jaxpr(other)(x)
        raised(jm.VerifyError, lambda: other(x[:7]), "7")
        jm.jit(scaled, mesh=jm.make_mesh((1, 1), devices=jax.local_devices()[:1]), static_argnums=1)(x, 5)
        jax.clear_caches()
    run(x, 3)
    other(x)
    told_by_some(lambda: run(x, 10 + me()), "scaled(float32[8,8]) differs in equations or constants")
    held = np.arange(8, dtype=np.float32) + me()
    told_by_some(lambda: jm.jit(lambda v: scaled(v, held), mesh=mesh)(x), "differs in equations or constants")
    told_by_some(lambda: run(whole_numbers(8 * (1 + me()), 8), 4), "starts scaled(float32[", "and process")
    specs = [P("y"), P("x")][me() % 2]
    turned = jm.jit(lambda v: jm.shard_to_full(jm.full_to_shard(v, specs) * 2, specs), mesh=mesh)
    told_by_some(lambda: turned(x), "distribute_tensor of float32[8,8] to float32[", "process_checks.py")
    compiled = [run.lower(x, 20 + me()).compile(), other.lower(x).compile()]
    told_by_some(lambda: compiled[0](x), "differs in equations")
    assert same_bits(jm.to_host(compiled[1](x)), -x)


@check
def other_programs_are_told() -> None:
    with jm.check_replication(False):
        unchecked_programs()
    mesh, x = jm.make_mesh((2, 4)), whole_numbers(8, 8)
    negate = jm.jit(negated, mesh=mesh)
    # Where replication is checked, so are the arguments of every call; all are told.
    for call in (jm.jit(negated, mesh=mesh, check_replication=True), negate.lower(x).compile(check_replication=True)):
        assert same_bits(jm.to_host(call(x)), -x)
        raised(jm.ProcessMismatchError, lambda: call(x + me()), "argument x", "with different values")
        assert same_bits(jm.to_host(call(x + 1)), -(x + 1))


def at_coordinates(mesh: Mesh, value: Callable[[tuple[int, ...]], np.ndarray], varying: Any) -> Any:
    """A tensor of which nobody has compared the copies."""
    placed = {c: value(c) for c in coordinates(mesh.devices.shape)}
    sizes = [mesh.shape[a] for a in varying]
    first = next(iter(placed.values()))
    sharding = jax.sharding.NamedSharding(mesh, P(*[None] * first.ndim, *varying))
    held = [
        jax.device_put(placed[c].reshape(*first.shape, *[1] * len(sizes)), mesh.devices[c])
        for c in placed
        if mesh.devices[c].process_index == me()
    ]
    data = jax.make_array_from_single_device_arrays((*first.shape, *sizes), sharding, held)
    return jm.MeshTensor(data, mesh, varying)


@check
def every_process_is_told_of_copies_that_differ() -> None:
    full = whole_numbers(8, 8)
    for mesh in flat_meshes() if EVERY or jax.process_count() == 2 else []:
        cut = tuple(mesh.shape[a] for a in "yx")

        def claim(x: Any) -> Any:
            return jm.shard_to_full(jm.full_to_shard(x, P("y", "x")), P("y"), assume_replicated=True)

        run, wide = jm.jit(claim, mesh=mesh), 8 // cut[1]
        equal = np.tile(full[:, :wide], (1, cut[1]))
        there = f"{full[0, wide]} (bits", "mesh coordinate [0, 1]", f"{full[0, 0]} (bits"
        compiled = run.lower(full).compile(check_replication=True)
        mapped: Any = {"mesh": mesh, "in_specs": P("y", "x"), "out_specs": P("y"), "check_vma": False}
        with jm.check_replication():
            assert same_bits(jm.to_host(run(equal)), equal[:, :wide])
            raised(jm.ReplicationError, lambda: run(full), *there)
            raised(jm.ReplicationError, lambda: jax.vmap(run)(np.stack([equal, full])), *there, "element [1]")
            raised(jm.ReplicationError, lambda: jm.shard_map(lambda x: x, **mapped)(full), *there)
        raised(jm.ReplicationError, lambda: compiled(full), *there)

        def later() -> None:
            with jm.check_replication():
                jax.jit(lambda x: run(x) * 2)(full)

        raised(jm.ReplicationError, later, *there)
        # Copies that differ between two processes, and in none of them.
        places = coordinates(mesh.devices.shape)
        processes = {c: mesh.devices[c].process_index for c in places}
        # Where no column has devices of two processes, copies differ within one.
        odd = max((c for c in places if c[0]), key=lambda c: processes[c] != processes[0, c[1]])
        assert len({*processes.values()}) == jax.process_count()
        lying = at_coordinates(mesh, lambda c: np.full(2, c == odd, np.int8), ("x",))
        first = ttnn.create_mesh_composer(mesh, ttnn.MeshComposerConfig([0, 1], ttnn.MeshShape(1, cut[1])))
        use = jm.jit(lambda t: jm.shard_to_full(t, P("x")), mesh=mesh)
        said = f"mesh coordinate {list(odd)}", f"1 there, 0 at {[0, odd[1]]}"
        with jm.check_replication():
            raised(jm.ReplicationError, lambda: use(lying), *said)
            two = at_coordinates(mesh, lambda c: np.full((2, 1), c == odd, np.int8), ("x",))
            raised(jm.ReplicationError, lambda: ttnn.aggregate_tensor(two, first), *said)
            true = at_coordinates(mesh, lambda c: np.full(2, c[1], np.int8), ("x",))
            assert same_bits(jm.to_host(use(true)), np.repeat(np.arange(cut[1], dtype=np.int8), 2))


@check
def every_process_records_the_whole_run() -> None:
    x = small(8, 8)
    for mesh in flat_meshes() if EVERY or jax.process_count() == 2 else []:

        @jm.jit(mesh=mesh)
        def steps(x: Any, t: Any) -> Any:
            part = jm.full_to_shard(x, P("y", "x"))
            part, sums = lax.scan(lambda c, _: (2 * c - 1, lax.psum(c, "x").sum()), part, None, length=3)
            return jm.shard_to_full(lax.psum(part, "x"), P("y")), lax.psum(sums, "y"), t * 2

        t = ttnn.distribute_tensor(x, ttnn.shard_tensor_to_mesh_mapper(mesh, 0), mesh)
        spread = jax.jit(lambda x: x, out_shardings=jax.sharding.NamedSharding(mesh, P(None, "x")))(x)
        traced = steps.trace(x, t)
        recordings = [s.record(a, t) for a in (x, spread) for s in (traced, traced.lower(), traced.lower().compile())]
        for other in recordings[1:]:
            assert jm.compare(recordings[0], other, exact=True)
        (doubled,) = [e for e in recordings[2].entries if e.place.op == "mul" and e.data.shape == (8, 1, 8)]
        assert same_bits(doubled.data[:, 0], 2 * x)
        path = Path(os.environ["JAXMESH_TEST_FOLDER"]) / f"run{me()}.npz"
        recordings[2].save(path)
        assert jm.compare(jm.Recording.load(path), recordings[0], exact=True)


# --- ends ------------------------------------------------------------------------------------------------------------


def end(kind: str, victim: int) -> None:
    """After one program that ran, process `victim` ends or does something else; the others run another one."""
    mesh = jm.make_mesh((2, 4))

    def total(x: Any, factor: int) -> Any:
        return jm.shard_to_full(lax.psum(factor * jm.full_to_shard(x, P("y", "x")), ("y", "x")), P())

    run = jm.jit(total, mesh=mesh, static_argnums=1)
    x = whole_numbers(8, 4)
    jm.to_host(run(x, 1))
    print("ran", flush=True)
    # None ends before all have got so far.
    jm.check_processes(kind)
    if me() == victim:
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "raises":
            raise ValueError("a mistake of one process")
        if kind == "shape":
            x = whole_numbers(16, 4)
    for factor in itertools.count(2):
        if kind == "shape":
            jm.check_processes(x, "the argument")
        jm.to_host(run(x, factor % 3))


def end_at(phase: str, victim: int) -> None:
    """Process `victim` is killed when it has come to a phase; the others go on, and come to what needs it."""

    def come_to(here: str) -> None:
        if here == phase and me() == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    come_to("joined")
    mesh = jm.make_mesh((2, 4))
    x = whole_numbers(8, 8)

    def total(x: Any) -> Any:
        part = jm.full_to_shard(x, P("y", "x"))
        for _ in range(40):
            part = jnp.sin(lax.psum(part, "x")) + jm.full_to_shard(x, P("y", "x"))
        return jm.shard_to_full(lax.psum(part, ("y", "x")), P())

    lowered = jm.jit(total, mesh=mesh).lower(x)
    if phase == "compiling":
        threading.Timer(0.1, come_to, [phase]).start()
    compiled = lowered.compile()
    come_to("compiled")
    compiled(x)
    tensor = ttnn.distribute_tensor(x, ttnn.shard_tensor_to_mesh_mapper(mesh, 0), mesh)
    come_to("aggregating")
    while True:
        ttnn.aggregate_tensor(tensor, ttnn.concat_mesh_to_tensor_composer(mesh, 0))
        compiled(x)
        if phase == "running":
            threading.Timer(0.2, come_to, [phase]).start()


def main(group: str, *more: str) -> None:
    tempfile.tempdir = os.environ["JAXMESH_TEST_FOLDER"]
    jm.initialize_processes(connect_timeout=60, death_timeout=10, exit_timeout=60)
    if group == "end":
        return end(more[0], int(more[1]))
    if group == "end_at":
        return end_at(more[0], int(more[1]))
    for run in CHECKS:
        if group in ("all", run.__name__):
            run()
            print(f"passed {run.__name__}", flush=True)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
