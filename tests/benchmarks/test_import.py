"""What reading a file costs: `pytest tests/benchmarks/test_import.py --benchmark-only -n0`.

The measure is the time of `from_mlir` over that of MLIR's own parser plus tracing the same ops, written by hand, in
JAX; each time is the least of several, in turns, because the machine is shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, PartitionSpec as P
from jaxlib.mlir import ir

import jaxmesh as jm
from tests.benchmarks.ratios import compare

MESH = AbstractMesh((2, 4), ("y", "x"))
KIND = "tensor<32x32xf32>"
OPS: list[tuple[str, int, str, Callable[..., Any]]] = [
    ("add", 2, "", jnp.add),
    ("multiply", 2, "", jnp.multiply),
    ("tanh", 1, "", jnp.tanh),
    ("maximum", 2, "", jnp.maximum),
    ("matmul", 2, " <{transpose_a = false, transpose_b = false}>", jnp.matmul),
]


def text_of(count: int) -> str:
    lines = list[str]()
    for i in range(count):
        name, arity, properties, _ = OPS[i % len(OPS)]
        operands = ", ".join([f"%{i - 1}" if i else "%arg0", "%arg1"][:arity])
        types = ", ".join([KIND] * arity)
        lines.append(f'    %{i} = "ttir.{name}"({operands}){properties} : ({types}) -> {KIND}')
    body = "\n".join(lines)
    return (
        'module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {\n'
        f"  func.func @main(%arg0: {KIND}, %arg1: {KIND}) -> {KIND} {{\n"
        f"{body}\n    return %{count - 1} : {KIND}\n  }}\n}}\n"
    )


def stablehlo_of(count: int) -> str:
    """Layers of a matrix product, a sum, a reduction, a broadcast, a difference and a transpose, unrolled."""
    row, lines, x = "tensor<32xf32>", list[str](), "%arg0"
    for i in range(count // 6):
        a, b, r, c, d, e = (f"%{n}_{i}" for n in "abrcde")
        lines += [
            f"{a} = stablehlo.dot_general {x}, %arg1, contracting_dims = [1] x [0] : ({KIND}, {KIND}) -> {KIND}",
            f"{b} = stablehlo.add {a}, {x} : {KIND}",
            f"{r} = stablehlo.reduce({b} init: %zero) applies stablehlo.add across dimensions = [1] : "
            f"({KIND}, tensor<f32>) -> {row}",
            f"{c} = stablehlo.broadcast_in_dim {r}, dims = [0] : ({row}) -> {KIND}",
            f"{d} = stablehlo.subtract {b}, {c} : {KIND}",
            f"{e} = stablehlo.transpose {d}, dims = [1, 0] : ({KIND}) -> {KIND}",
        ]
        x = e
    body = "\n".join(["%zero = stablehlo.constant dense<0.0> : tensor<f32>", *lines])
    return f"func.func @main(%arg0: {KIND}, %arg1: {KIND}) -> {KIND} {{\n{body}\nreturn {x} : {KIND}\n}}"


def parse(text: str) -> Any:
    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    return ir.Module.parse(text, context)


def by_hand(count: int) -> Any:
    def program(x: Any, y: Any) -> Any:
        for i in range(count):
            _, arity, _, fun = OPS[i % len(OPS)]
            x = fun(*(x, y)[:arity])
        return x

    aval = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    return jax.make_jaxpr(jax.shard_map(program, mesh=MESH, in_specs=(P(), P()), out_specs=P()))(aval, aval)


def least(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    times = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def ttnn_of(count: int) -> str:
    """The TTNN program of `text_of`, half of whose ops are deallocations."""
    return jm.from_mlir(text_of(count // 2), MESH).lower().as_text("ttnn")


@pytest.mark.parametrize(("dialect", "written"), [("StableHLO", stablehlo_of), ("TTIR", text_of), ("TTNN", ttnn_of)])
def test_reading(dialect: str, written: Callable[[int], str], benchmark: Any) -> None:
    benchmark.group = "import, beside the parser"
    text = written(10_000)
    row = f"from_mlir, {dialect}, 10,000 ops"
    ours, peer = (lambda: jm.from_mlir(text, MESH)), (lambda: parse(text))
    compare(benchmark, row, ours, peer, target=8, peer_name="jaxlib's parser", rounds=9)


@pytest.mark.parametrize("count", [1000, 10_000])
def test_import(count: int, benchmark: Any) -> None:
    benchmark.group = f"import, {count} ops"
    text = text_of(count)
    runs = {"parse": lambda: parse(text), "by hand": lambda: by_hand(count), "import": lambda: jm.from_mlir(text, MESH)}
    times = least(runs, 6)
    ratio = times["import"] / (times["parse"] + times["by hand"])
    benchmark.extra_info.update({name: round(seconds, 4) for name, seconds in times.items()}, ratio=round(ratio, 2))
    benchmark.pedantic(runs["import"], rounds=1)


def test_growth(benchmark: Any) -> None:
    """Eight times as many ops: the ratio of the times is 8 where it is linear."""
    benchmark.group = "import, growth"
    few, many = text_of(2000), text_of(16_000)
    runs = {"few": lambda: jm.from_mlir(few, MESH), "many": lambda: jm.from_mlir(many, MESH)}
    times = least(runs, 4)
    benchmark.extra_info.update(ratio=round(times["many"] / times["few"], 2))
    benchmark.pedantic(runs["few"], rounds=1)
