"""What the pass costs, and that no cost grows with the mesh: `pytest tests/benchmarks --benchmark-only -n0`."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from tests.benchmarks.ratios import compare
from tests.generators.programs.hand_written import ATTENTION, FSDP, LLAMA, MLP, Program

MESH = AbstractMesh((2, 4), ("y", "x"), axis_types=(AxisType.Auto,) * 2)
SPEC = P("y", "x")
X = jax.ShapeDtypeStruct((4, 8), jnp.float32)


def step(y: Any, v: Any) -> Any:
    """Five equations."""
    return jnp.tanh(y * 1.5 + v) - jnp.maximum(y, v)


def straight(y: Any, v: Any, count: int) -> Any:
    for _ in range(count // 5):
        y = step(y, v)
    return y


def scanned(y: Any, v: Any, count: int) -> Any:
    return jax.lax.scan(lambda c, _: (straight(c, v, count), None), y, None, length=2)[0]


def branched(y: Any, v: Any, count: int) -> Any:
    def half(c: Any, scale: float) -> Any:
        return straight(c, v * scale, count // 2)

    return jax.lax.cond(v.sum() > 0, lambda c: half(c, 1.5), lambda c: half(c, 2.5), y)


def called(y: Any, v: Any, count: int) -> Any:
    """So many equations in calls that share one body."""
    part = jax.jit(lambda c: straight(c, v, 100))
    for _ in range(count // 100):
        y = part(y)
    return y


WAYS = [straight, scanned, branched, called]
Local = Callable[[Any, Any, int], Any]


def sharded(local: Local, count: int) -> jm.Traced:
    def program(x: Any, w: Any) -> Any:
        return jm.shard_to_full(local(jm.full_to_shard(x, SPEC), jm.full_to_shard(w, SPEC), count), SPEC)

    return jm.jit(program, mesh=MESH).trace(X, X)


def by_hand(local: Local, count: int) -> Any:
    mapped = jax.shard_map(lambda x, w: local(x, w, count), mesh=MESH, in_specs=(SPEC, SPEC), out_specs=SPEC)
    return jax.make_jaxpr(mapped)(X, X)


def moved(count: int) -> jm.Traced:
    """So many equations, half of which are transfers."""

    def program(x: Any) -> Any:
        for _ in range(count // 4):
            x = jnp.sin(jm.shard_to_full(jnp.tanh(jm.full_to_shard(x, SPEC)), SPEC))
        return x

    return jm.jit(program, mesh=MESH).trace(X)


@pytest.mark.parametrize("local", WAYS, ids=lambda w: w.__name__)
def test_pass(local: Local, benchmark: Any) -> None:
    count = 1_000 if benchmark.disabled else 10_000
    traced = sharded(local, count)
    compare(
        benchmark,
        f"the pass, 10,000 equations, {local.__name__}",
        traced.lower,
        lambda: by_hand(local, count),
        # Calls are traced once for all.
        target=None if local is called else 0.25,
        peer_name="jax.make_jaxpr of the same program",
        rounds=5,
        setup=gc.collect,
    )


def on_thread(work: Callable[[], Any]) -> Any:
    """Runs on an empty stack: Python keeps its stack in chunks, and at the edge of one every call allocates."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


FORMS: dict[str, tuple[str, float | None]] = {
    "by hand": ("jax.make_jaxpr of the same program", 1.5),
    "shard_map": ("jax.make_jaxpr of the same program", 1.5),
    "plain": ("jax.make_jaxpr of the same program", 1.5),
    "plain, in_shardings": ("jax.make_jaxpr of the same program", None),
    "plain, in_shardings, ahead of time": ("jax.jit with in_shardings, lowered", 2),
}


@pytest.mark.parametrize("form", FORMS)
def test_trace(form: str, benchmark: Any) -> None:
    """Each round traces a new function, so that JAX has no trace of it."""
    count = 500 if benchmark.disabled else 5_000
    split = NamedSharding(MESH, SPEC)

    def plain(x: Any, w: Any) -> Any:
        return straight(x, w, count)

    def mapped() -> Any:
        return jax.shard_map(lambda x, w: plain(x, w), mesh=MESH, in_specs=(SPEC, SPEC), out_specs=SPEC)

    def program() -> Any:
        match form:
            case "by hand":
                return jm.jit(
                    lambda x, w: jm.shard_to_full(plain(jm.full_to_shard(x, SPEC), jm.full_to_shard(w, SPEC)), SPEC),
                    mesh=MESH,
                )
            case "shard_map":
                return jm.jit(mapped(), mesh=MESH)
            case "plain":
                return jm.jit(lambda x, w: plain(x, w), mesh=MESH)
            case _:
                return jm.jit(lambda x, w: plain(x, w), mesh=MESH, in_shardings=SPEC)

    def peer() -> Any:
        if form.endswith("ahead of time"):
            return jax.jit(lambda x, w: plain(x, w), in_shardings=split).trace(X, X).lower(lowering_platforms=("cpu",))
        return jax.make_jaxpr(mapped() if form in ("by hand", "shard_map") else lambda x, w: plain(x, w))(X, X)

    name, target = FORMS[form]
    compare(
        benchmark,
        f"trace, 5,000 equations, {form}",
        lambda: on_thread(lambda: program().trace(X, X)),
        lambda: on_thread(peer),
        target=target,
        peer_name=name,
        rounds=5,
        setup=gc.collect,
    )


@pytest.mark.parametrize("what", ["straight", "transfers"])
def test_growth(what: str, benchmark: Any) -> None:
    count = 500 if benchmark.disabled else 10_000
    make = moved if what == "transfers" else lambda n: sharded(straight, n)
    few, many = make(count), make(10 * count)
    compare(
        benchmark,
        f"the pass, 100,000 equations, {what}",
        many.lower,
        few.lower,
        target=11,
        peer_name="10,000 equations",
        rounds=3,
    )


@pytest.mark.parametrize("program", [MLP, ATTENTION, FSDP, LLAMA], ids=lambda p: p.name)
@pytest.mark.parametrize("side", [64, 256])
def test_mesh(program: Program, side: int, benchmark: Any) -> None:
    """Trace and lower, without devices."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes(program)]

    def work(mesh: AbstractMesh) -> Callable[[], Any]:
        f = jm.jit(program.jaxmesh, mesh=mesh)
        return lambda: f.lower(*args)

    compare(
        benchmark,
        f"trace and lower on {side}x{side} devices, {program.name}",
        work(AbstractMesh((side, side), ("y", "x"), axis_types=MESH.axis_types)),
        work(MESH),
        target=1.1,
        peer_name="the same on 2x4",
        rounds=15,
    )


def shapes(program: Program) -> list[tuple[int, ...]]:
    """Shapes that 65,536 devices divide, along whatever dim the program splits."""
    if program is FSDP:
        return [(256 * 256, 256), (256, 256), (256, 256)]
    if program is ATTENTION:
        return [(256, 4, 8), *[(8, 256, 2)] * 3, (256, 2, 8)]
    if program is LLAMA:
        norm, into = (8,), (8, 1024)
        return [(256, 4, 8), norm, (8, 1024), (8, 512), (8, 512), (1024, 8), norm, into, into, (1024, 8)]
    return [(256, 8), (8, 256), (256, 8)]


# --- plain programs with shardings -----------------------------------------------------------------------------------


def layers(x: Any, w: Any, count: int) -> Any:
    """So many equations on full arrays, a product of matrices in every sixth."""
    for _ in range(count // 6):
        x = jnp.tanh(x @ w) + x * 0.5
        x = x - jnp.maximum(x, 0)
    return x


def partitioned(mesh: AbstractMesh, count: int, **shardings: Any) -> jm.Traced:
    """Traces so many equations anew: neither JAX nor jaxmesh has seen the function."""
    args = jax.ShapeDtypeStruct((128, 512), jnp.float32), jax.ShapeDtypeStruct((512, 512), jnp.float32)
    return jm.jit(lambda x, w: layers(x, w, count), mesh=mesh, **shardings).trace(*args)


SHARDINGS = {"in_shardings": (P("y"), P(None, "x"))}


def test_tracing_with_shardings(benchmark: Any) -> None:
    count = 300 if benchmark.disabled else 3_000
    compare(
        benchmark,
        "tracing a plain program with in_shardings, 3,000 equations",
        lambda: partitioned(MESH, count, **SHARDINGS),
        lambda: partitioned(MESH, count),
        target=2,
        peer_name="tracing it without",
        rounds=5,
    )


def test_the_partitioner_on_a_large_mesh(benchmark: Any) -> None:
    count = 300 if benchmark.disabled else 3_000
    large = AbstractMesh((64, 64), ("y", "x"), axis_types=(AxisType.Auto,) * 2)
    compare(
        benchmark,
        "tracing with in_shardings on 64x64 devices",
        lambda: partitioned(large, count, **SHARDINGS),
        lambda: partitioned(MESH, count, **SHARDINGS),
        target=1.25,
        peer_name="the same on 2x4",
        rounds=5,
    )
