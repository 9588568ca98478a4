"""What `jm.shard_map` costs beside `jax.shard_map`: `pytest tests/benchmarks --benchmark-only -n0`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.sharding import Mesh

import jaxmesh as jm
from tests.programs import ATTENTION, FSDP, MESH, MLP, Program

SCALES = {"small": 1, "large": 16}
WAYS: dict[str, Any] = {"jaxmesh": jm.shard_map, "jax": jax.shard_map}
each_program = pytest.mark.parametrize("program", [MLP, ATTENTION, FSDP], ids=lambda p: p.name)
each_way = pytest.mark.parametrize("way", list(WAYS))


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jm.make_mesh(MESH)


def made(program: Program, way: str, mesh: Mesh) -> Callable[..., Any]:
    return WAYS[way](program.local, mesh=mesh, in_specs=program.in_specs, out_specs=program.out_spec)


@each_program
@pytest.mark.parametrize("size", list(SCALES))
@each_way
def test_compiled_call(program: Program, size: str, way: str, mesh: Mesh, benchmark: Any) -> None:
    """Of `jax.jit` of either; the ratio is that of the programs."""
    benchmark.group = f"compiled call, {program.name}, {size}"
    args = program.args(SCALES[size])
    f = jax.jit(made(program, way, mesh)).lower(*args).compile()
    jax.block_until_ready(f(*args))
    benchmark(lambda: jax.block_until_ready(f(*args)))


@each_program
@each_way
def test_trace_and_lower(program: Program, way: str, mesh: Mesh, benchmark: Any) -> None:
    """By `jax.jit`, without the compilation: what the detour costs, once per type."""
    benchmark.group = f"trace and lower, {program.name}"
    args = program.args()

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        jax.clear_caches()
        return (jax.jit(made(program, way, mesh)),), {}

    benchmark.pedantic(lambda f: f.lower(*args), setup=fresh, rounds=5)


@each_way
def test_gradient(way: str, mesh: Mesh, benchmark: Any) -> None:
    benchmark.group = "compiled gradient, mlp"
    args = MLP.args(SCALES["large"])
    f = made(MLP, way, mesh)
    grad = jax.jit(jax.grad(lambda *a: f(*a).sum(), (0, 1, 2))).lower(*args).compile()
    jax.block_until_ready(grad(*args))
    benchmark(lambda: jax.block_until_ready(grad(*args)))


@each_way
def test_eager_call(way: str, mesh: Mesh, benchmark: Any) -> None:
    """Without `jax.jit` each call is traced; JAX compiles each operation by itself."""
    benchmark.group = "eager call, mlp"
    args = MLP.args()
    f = made(MLP, way, mesh)
    jax.block_until_ready(f(*args))
    benchmark.pedantic(lambda: jax.block_until_ready(f(*args)), rounds=3)
