"""What a call costs, beside the hand-written `jit(shard_map)`: `pytest tests/benchmarks --benchmark-only -n0`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.sharding import Mesh

import jaxmesh as jm
from tests.programs import ATTENTION, MESH, MLP, Program

SCALES = {"small": 1, "large": 16}
each_program = pytest.mark.parametrize("program", [MLP, ATTENTION], ids=lambda p: p.name)
each_way = pytest.mark.parametrize("way", ["jaxmesh", "shard_map"])


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jm.make_mesh(MESH)


def made(program: Program, way: str, mesh: Mesh) -> Callable[..., Any]:
    if way == "jaxmesh":
        return jm.jit(program.jaxmesh, mesh=mesh)
    return jax.jit(program.mapped(mesh))


@each_program
@pytest.mark.parametrize("size", list(SCALES))
@each_way
def test_call(program: Program, size: str, way: str, mesh: Mesh, benchmark: Any) -> None:
    benchmark.group = f"call, {program.name}, {size}"
    args = program.args(SCALES[size])
    f = made(program, way, mesh)
    jax.block_until_ready(f(*args))
    benchmark(lambda: jax.block_until_ready(f(*args)))


@each_program
@each_way
def test_first_call(program: Program, way: str, mesh: Mesh, benchmark: Any) -> None:
    """Trace, lower, compile."""
    benchmark.group = f"first call, {program.name}"
    args = program.args()

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        jax.clear_caches()
        return (made(program, way, mesh),), {}

    benchmark.pedantic(lambda f: f.lower(*args).compile(), setup=fresh, rounds=5)
