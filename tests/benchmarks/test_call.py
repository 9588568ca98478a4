"""What a call costs, beside the hand-written `jit(shard_map)`: `pytest tests/benchmarks --benchmark-only -n0`.

Arguments lie where the programs want them, as the weights and activations of a loop do: to move them there takes longer
than a small program, and would hide what a call costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from tests.benchmarks.ratios import compare
from tests.generators.programs.hand_written import ATTENTION, FSDP, LLAMA, MESH, MLP, Program

LARGE = {"mlp": 192, "attention": 128, "fsdp": 128, "llama block": 96}
"""Scales at which a program runs some ten milliseconds."""
TARGETS = {"small": 1.1, "large": 1.02}
each_program = pytest.mark.parametrize("program", [MLP, ATTENTION, FSDP, LLAMA], ids=lambda p: p.name)
each_size = pytest.mark.parametrize("size", list(TARGETS))


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jm.make_mesh(MESH)


def placed(program: Program, size: str, mesh: Mesh, small: bool) -> list[Any]:
    """The arguments; small ones too where nothing is timed."""
    args = program.args(1 if size == "small" or small else LARGE[program.name])
    return [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(args, program.in_specs, strict=True)]


def compare_calls(
    benchmark: Any, row: str, size: str, ours: Callable[..., Any], peer: Callable[..., Any], args: list[Any]
) -> None:
    rounds, repeat = (41, 40) if size == "small" else (9, 1)
    compare(
        benchmark,
        f"{row}, {size}",
        lambda: jax.block_until_ready(ours(*args)),
        lambda: jax.block_until_ready(peer(*args)),
        target=TARGETS[size],
        peer_name="hand-written jit(shard_map)",
        rounds=rounds,
        repeat=repeat,
    )


@each_program
@each_size
def test_call(program: Program, size: str, mesh: Mesh, benchmark: Any) -> None:
    args = placed(program, size, mesh, benchmark.disabled)
    ours, peer = jm.jit(program.jaxmesh, mesh=mesh), jax.jit(program.mapped(mesh))
    compare_calls(benchmark, f"call, {program.name}", size, ours, peer, args)


@each_program
@each_size
def test_call_of_a_compiled_program(program: Program, size: str, mesh: Mesh, benchmark: Any) -> None:
    """Of `.lower(...).compile()` of either."""
    args = placed(program, size, mesh, benchmark.disabled)
    ours = jm.jit(program.jaxmesh, mesh=mesh).lower(*args).compile()
    peer = jax.jit(program.mapped(mesh)).lower(*args).compile()
    compare_calls(benchmark, f"compiled call, {program.name}", size, ours, peer, args)


@each_program
def test_first_call(program: Program, mesh: Mesh, benchmark: Any) -> None:
    """Trace, lower, compile, by the function that a call of ours is served by."""
    args = program.args()
    compare(
        benchmark,
        f"first call, {program.name}",
        lambda: jax.jit(jm.jit(program.jaxmesh, mesh=mesh)).lower(*args).compile(),
        lambda: jax.jit(program.mapped(mesh)).lower(*args).compile(),
        target=1.25,
        peer_name="hand-written jit(shard_map)",
        rounds=5,
        setup=jax.clear_caches,
    )


def plus(x: Any, n: int = 1) -> Any:
    return x + n


def plus_first(leaves: Any) -> Any:
    return leaves[0] + 1


LEAVES, NUMPY = [jnp.ones(2) for _ in range(1000)], [np.ones(2, np.float32) for _ in range(1000)]
BESIDE_JIT: dict[str, tuple[Callable[..., Any], Any, dict[str, Any], float | None]] = {
    "1 argument, 1 device": (plus, (jnp.ones(8),), {}, 1.3),
    "1,000 leaves, 1 device": (plus_first, (LEAVES,), {}, 1.3),
    "a static argument, 1 device": (plus, (jnp.ones(8), 3), {"static_argnums": 1}, 1.5),
    "1 argument, 8 devices": (plus, (jnp.ones((8, 8)),), {"in_shardings": P("y")}, 1.1),
    "1 NumPy argument, 1 device": (plus, (np.ones(8, np.float32),), {}, 1.5),
    "1,000 NumPy leaves, 1 device": (plus_first, (NUMPY,), {}, None),
    "1 NumPy argument, 8 devices": (plus, (np.ones((8, 8), np.float32),), {"in_shardings": P("y")}, 1.3),
    "1,000 NumPy leaves, 8 devices": (plus_first, (NUMPY,), {"in_shardings": P("y")}, None),
}
each_call = pytest.mark.parametrize("name", BESIDE_JIT)


@each_call
def test_call_beside_jit(name: str, mesh: Mesh, benchmark: Any) -> None:
    fun, args, options, target = BESIDE_JIT[name]
    split = {k: NamedSharding(mesh, s) for k, s in options.items() if k == "in_shardings"}
    if split and "NumPy" not in name:
        args = (jax.device_put(args[0], split["in_shardings"]),)
    ours, peer = jm.jit(fun, mesh=mesh if split else None, **options), jax.jit(fun, **{**options, **split})
    compare(
        benchmark,
        f"call, {name}",
        lambda: jax.block_until_ready(ours(*args)),
        lambda: jax.block_until_ready(peer(*args)),
        target=target,
        peer_name="jax.jit",
        rounds=41,
        repeat=20 if "1,000" in name or split else 300,
    )


def test_lower_after_a_call(mesh: Mesh, benchmark: Any) -> None:
    """Of a program with shardings that was called, beside its first `.lower()`."""
    args = MLP.args()
    ours = jm.jit(MLP.plain, mesh=mesh, in_shardings=MLP.in_specs)
    ours(*args)
    compare(
        benchmark,
        "lower after a call, mlp",
        lambda: ours.lower(*args),
        lambda: jm.jit(lambda *a: MLP.plain(*a), mesh=mesh, in_shardings=MLP.in_specs).lower(*args),
        target=0.05,
        peer_name="its first lower",
    )
