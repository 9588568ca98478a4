"""Bytes of DRAM: inputs once, what does not fit into L1, caches written in place, and inputs in block formats."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.estimate import Estimate, estimate_program
from jaxmesh.dialects.program import Op, Port, Program, Type

MESH = AbstractMesh((1, 1), ("y", "x"))
L1 = 72 * 1536 * 1024
"""Of an n150."""


def estimated(fun: Any, *shapes: tuple[int, ...], dtype: Any = jnp.bfloat16, **options: Any) -> Estimate:
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return jm.jit(fun, mesh=MESH).lower(*types).estimate("n150", **options)


def dram(estimate: Estimate) -> dict[str, list[int]]:
    """Bytes by op, of ops that move any."""
    found: dict[str, list[int]] = {}
    for op in estimate.ops:
        if op.dram_bytes:
            found.setdefault(op.op, []).append(op.dram_bytes)
    return found


def test_an_input_is_read_once_and_what_is_computed_stays_in_l1() -> None:
    found = estimated(lambda x, w: (jnp.exp(x @ w) @ w, x + 1), (64, 256), (256, 256))
    assert dram(found) == {"matmul": [2 * (64 * 256 + 256 * 256)]}


def test_what_l1_cannot_keep_is_written_and_read_again() -> None:
    size = 2 * 16384 * 8192
    found = estimated(lambda x: jnp.tanh(jnp.exp(x)), (16384, 8192))
    assert dram(found) == {"exp": [size + size - L1], "tanh": [2 * (size - L1)]}
    again = estimated(lambda x: (jnp.exp(x), jnp.tanh(x)), (16384, 8192))
    assert dram(again) == {"exp": [2 * size - L1], "tanh": [2 * (size - L1)]}


def test_a_slice_and_a_lookup_read_what_they_take() -> None:
    assert dram(estimated(lambda x: jnp.exp(jm.full_to_shard(x, P())[:32]), (4096, 64))) == {
        "slice_static": [32 * 64 * 2]
    }
    table, ids = jax.ShapeDtypeStruct((4096, 64), jnp.bfloat16), jax.ShapeDtypeStruct((8,), jnp.int32)
    found = jm.jit(lambda t, i: t[i] * 2, mesh=MESH).lower(table, ids).estimate("n150")
    assert sum(dram(found)["embedding"]) >= 8 * 64 * 2
    assert sum(op.dram_bytes for op in found.ops) < 4096 * 64


def test_block_formats_take_their_bytes_and_the_first_pattern_counts() -> None:
    def fun(p: dict[str, Any], x: Any) -> Any:
        return (x @ p["up"]) @ p["down"]

    weights = {name: jax.ShapeDtypeStruct((256, 256), jnp.bfloat16) for name in ("up", "down")}
    x = jax.ShapeDtypeStruct((32, 256), jnp.bfloat16)
    lowered, n, row = jm.jit(fun, mesh=MESH).lower(weights, x), 256 * 256, 32 * 256
    stored = {"up": "bfloat4_b", r"\[0\]\[0\]": "bfloat8_b"}
    first, second = dram(lowered.estimate("n150", stored=stored))["matmul"]
    assert (first, second) == (n * 9 // 16 + 2 * row, n * 17 // 16)
    every = lowered.estimate("n150", stored="bfloat4_b")
    assert dram(every)["matmul"] == [(n + row) * 9 // 16, n * 9 // 16]
    assert [op.fidelity for op in every.ops if op.fidelity] == ["LoFi", "HiFi2"]
    assert [op.fidelity for op in lowered.estimate("n150").ops if op.fidelity] == ["HiFi2"] * 2


def test_float32_products_take_four_passes() -> None:
    (slow,) = [op for op in estimated(jnp.matmul, (512, 512), (512, 512), dtype=np.float32).ops if op.fidelity]
    (fast,) = [
        op for op in estimated(jnp.matmul, (512, 512), (512, 512), dtype=np.float32, fidelity="LoFi").ops if op.fidelity
    ]
    assert (slow.fidelity, fast.fidelity) == ("HiFi4", "LoFi")
    assert slow.times["compute"] == pytest.approx(4 * fast.times["compute"])
    assert slow.times["compute"] == pytest.approx(2 * 512**3 / (72 * 1024e9))


@pytest.mark.parametrize("name", ["fill_cache", "update_cache"])
def test_a_cache_is_written_where_it_lies(name: str) -> None:
    bf16 = np.dtype(jnp.bfloat16)
    program = Program("f", {"y": 1, "x": 1})
    cache = program.new(Type((8, 4, 128, 64), bf16))
    rows = program.new(Type((8, 4, 1, 64), bf16))
    index = program.new(Type((8,), np.dtype("uint32")))
    filled, read = (program.new(Type((8, 4, 128, 64), bf16)) for _ in range(2))
    program.arguments = [Port(cache, True), Port(rows, True), Port(index, True)]
    program.ops = [
        Op(f"ttnn.{name}", (cache, rows, index)[: 2 + (name == "update_cache")], (filled,), {"batch_offset": 0}),
        Op("ttnn.exp", (filled,), (read,)),
    ]
    program.results = [Port(read, True)]
    found = estimate_program(program, "n150")
    positions = 8 * 4 if name == "update_cache" else 0
    assert dram(found) == {name: [2 * 2 * 8 * 4 * 64 + positions], "exp": [2 * 8 * 4 * 128 * 64]}


def test_transfers_from_the_host_are_bytes_and_no_time() -> None:
    found = estimated(lambda x: x + 1, (1024, 1024))
    moved = [op for op in found.ops if op.host_bytes]
    assert sum(op.host_bytes for op in moved) == 2 * 2 * 1024 * 1024
    assert all(op.seconds == 0 and op.bound_by == "" for op in moved)
    assert "4.19 MB between host and device" in str(found)
