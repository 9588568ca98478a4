"""What `jm.shard_map` costs beside `jax.shard_map`: `pytest tests/benchmarks --benchmark-only -n0`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.sharding import Mesh

import jaxmesh as jm
from tests.benchmarks.ratios import compare
from tests.generators.programs.hand_written import ATTENTION, FSDP, MESH, MLP, Program

SCALES = {"small": 1, "large": 64}
PEER = "jax.shard_map"
each_program = pytest.mark.parametrize("program", [MLP, ATTENTION, FSDP], ids=lambda p: p.name)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jm.make_mesh(MESH)


def both(program: Program, mesh: Mesh) -> tuple[Callable[..., Any], Callable[..., Any]]:
    specs: dict[str, Any] = {"mesh": mesh, "in_specs": program.in_specs, "out_specs": program.out_spec}
    return jm.shard_map(program.local, **specs), jax.shard_map(program.local, **specs)


def blocked(f: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(f(*args))


@each_program
@pytest.mark.parametrize("size", list(SCALES))
def test_compiled_call(program: Program, size: str, mesh: Mesh, benchmark: Any) -> None:
    """Of `jax.jit` of either; the ratio is that of the programs."""
    args = program.args(1 if benchmark.disabled else SCALES[size])
    ours, peer = (jax.jit(f).lower(*args).compile() for f in both(program, mesh))
    rounds, repeat = (31, 20) if size == "small" else (9, 1)
    row = f"jm.shard_map under jax.jit, {program.name}, {size}"
    compare(
        benchmark,
        row,
        blocked(ours, args),
        blocked(peer, args),
        target=1.02,
        peer_name=PEER,
        rounds=rounds,
        repeat=repeat,
    )


@each_program
def test_trace_and_lower(program: Program, mesh: Mesh, benchmark: Any) -> None:
    """By `jax.jit`, without the compilation: what the detour costs, once per type."""
    args = program.args()
    ours, peer = both(program, mesh)
    compare(
        benchmark,
        f"jm.shard_map, trace and lower, {program.name}",
        lambda: jax.jit(ours).lower(*args),
        lambda: jax.jit(peer).lower(*args),
        target=None,
        peer_name=PEER,
        rounds=9,
        setup=jax.clear_caches,
    )


def test_gradient(mesh: Mesh, benchmark: Any) -> None:
    args = MLP.args(1 if benchmark.disabled else SCALES["large"])

    def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(jax.grad(lambda *a: f(*a).sum(), (0, 1, 2))).lower(*args).compile()

    ours, peer = map(gradient, both(MLP, mesh))
    row = "gradient of jm.shard_map, mlp, large"
    compare(benchmark, row, blocked(ours, args), blocked(peer, args), target=1.02, peer_name=PEER, rounds=9)


def test_eager_call(mesh: Mesh, benchmark: Any) -> None:
    """Without `jax.jit` each call is traced; JAX compiles each operation by itself."""
    args = MLP.args()
    ours, peer = both(MLP, mesh)
    row = "jm.shard_map, called eagerly, mlp"
    compare(benchmark, row, blocked(ours, args), blocked(peer, args), target=None, peer_name=PEER, rounds=5)
