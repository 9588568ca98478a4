"""Loops and branches of functions, in the form of today's compiler: values are those of Python's loops."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

MESHES = '{ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>}'
PRESHARDED = "{ttcore.shard_status = #ttcore.shard_status<presharded>}"
FUNCTIONS = """
  func.func private @half(%n: tensor<i32>, %x: tensor<4xf32>, %w: tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>) {
    %0 = "ttir.constant"() <{value = dense<1> : tensor<i32>}> : () -> tensor<i32>
    %1 = "ttir.add"(%n, %0) : (tensor<i32>, tensor<i32>) -> tensor<i32>
    %2 = "ttir.all_reduce"(%x) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}>
        : (tensor<4xf32>) -> tensor<4xf32>
    %3 = "ttir.multiply"(%2, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %1, %3 : tensor<i32>, tensor<4xf32>
  }
  func.func private @few(%n: tensor<i32>, %x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<i1> {
    %0 = "ttir.constant"() <{value = dense<3> : tensor<i32>}> : () -> tensor<i32>
    %1 = "ttir.lt"(%n, %0) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    return %1 : tensor<i1>
  }
  func.func private @negated(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "ttir.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @same(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }
"""


def loop(how: str, n: str = "%n") -> str:
    shared = "body_program = @half, output_indices = array<i32: 1, 0>, state_count = 2 : i32"
    return f"""module attributes {MESHES} {{
  func.func public @main(%x: tensor<4xf32> {PRESHARDED}, %n: tensor<i32>, %w: tensor<4xf32>)
      -> (tensor<4xf32>, tensor<i32>) {{
    %0:2 = "ttcore.while_loop"({n}, %x, %w) <{{{shared}, {how}}}>
        : (tensor<i32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<i32>)
    return %0#0, %0#1 : tensor<4xf32>, tensor<i32>
  }}{FUNCTIONS}}}"""


def bound(**names: str) -> str:
    return ", ".join(f"{name} = #ttcore.loop_bound<{value}>" for name, value in names.items())


MESH = jm.make_mesh((2, 4))
X = np.arange(32, dtype=np.float32).reshape(8, 4) + 1


@jm.jit(mesh=MESH)
def split(x: Any) -> Any:
    return jm.full_to_shard(x, P(("y", "x"))).reshape(4)


def shards_of(x: Any) -> dict[tuple[int, ...], np.ndarray]:
    return {tuple(c): np.asarray(s) for c, s in x.shards()}


@pytest.mark.parametrize("start", [0, 2])
def test_a_counter_that_is_declared_on_the_devices_is_copied_there(start: int) -> None:
    text = loop("condition_program = @few", "%c").replace(", %n: tensor<i32>, %w", ", %w", 1)
    made = f'    %c = "ttir.constant"() <{{value = dense<{start}> : tensor<i32>}}> : () -> tensor<i32>\n    %0:2'
    text = text.replace("    %0:2", made, 1).replace("tensor<i32>) {", f"tensor<i32> {PRESHARDED}) {{", 1)
    _, count = jm.from_mlir(text).lower().compile()(split(X), np.ones(4, np.float32))
    assert [x.tolist() for x in shards_of(count).values()] == [3] * 8


@pytest.mark.parametrize(
    ("how", "start", "times"),
    [
        (bound(initial="0", limit="3", step="1"), 5, 3),
        (bound(initial="1", limit="6", step="2"), 0, 3),
        (bound(initial="4", limit="4", step="1"), 0, 0),
        (bound(initial="-1", limit="1", step="1"), 0, 2),
        (bound(initial="0", limit="0, 0 : i32", step="1"), 2, 2),
        ("condition_program = @few", 1, 2),
        ("condition_program = @few", 7, 0),
    ],
)
@pytest.mark.parametrize("level", ["traced", "compiled"])
def test_a_loop_is_a_loop(how: str, start: int, times: int, level: str) -> None:
    w = np.float32([0.5, 0.25, 1, 2])
    traced = jm.from_mlir(loop(how), MESH)
    x = split(X)
    run = traced.reference if level == "traced" else traced.lower().compile()
    result, count = run(x, np.int32(start), w)
    rows = X.reshape(2, 4, 4).copy()
    for _ in range(times):
        rows = np.broadcast_to(rows.sum(1, keepdims=True), rows.shape) * w
    shards = result if isinstance(result, dict) else shards_of(result)
    for place, shard in shards.items():
        np.testing.assert_allclose(np.asarray(shard), rows[place], rtol=1e-6)
    assert int(count) == start + times


CASE = """module {
  func.func public @main(%i: tensor<KIND>, %x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "ttcore.case"(%i, %x) <{branch_programs = [@same, @negated]}> : (tensor<KIND>, tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }FUNCTIONS}""".replace("FUNCTIONS", FUNCTIONS[FUNCTIONS.index("  func.func private @negated") - 1 :])


@pytest.mark.parametrize(
    ("kind", "index", "sign"),
    [
        ("i32", 0, 1),
        ("i32", 1, -1),
        ("i32", 2, -1),
        ("i32", -1, -1),
        ("i1", False, 1),
        ("i1", True, -1),
        ("f32", 1, -1),
    ],
)
def test_a_branch_is_chosen_as_in_stablehlo(kind: str, index: Any, sign: int) -> None:
    traced = jm.from_mlir(CASE.replace("KIND", kind), jm.make_mesh((1, 1)))
    x = np.float32([1, -2, 3, 0])
    dtype = {"i32": np.int32, "i1": np.bool_, "f32": np.float32}[kind]
    np.testing.assert_array_equal(traced.lower().compile()(np.array(index, dtype), x), sign * x)


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        (loop(bound(initial="0", limit="1, 0 : i32", step="1")), jm.UnsupportedError, "limit = .* is not a bound"),
        (loop(bound(initial="0", limit="3", step="0")), jm.UnsupportedError, "counts in steps of 0"),
        (loop("condition_program = @none"), jm.VerifyError, "calls @none, which the file does not define"),
        (loop("condition_program = @main"), jm.VerifyError, "a function that calls itself"),
        (
            loop("condition_program = @few").replace("state_count = 2", "state_count = 3"),
            jm.VerifyError,
            "gives 2 results for 3",
        ),
        (CASE.replace("KIND", "3xi32"), jm.VerifyError, r"decides by one number, got int32\[3\]"),
        (CASE.replace("KIND", "i32").replace("@same, ", "@none, "), jm.VerifyError, "calls @none"),
    ],
)
def test_a_loop_or_a_branch_that_breaks_a_rule(text: str, error: type[Exception], reason: str) -> None:
    line = 1 + text[: re.search('= "ttcore', text).start()].count("\n")  # type: ignore[union-attr]
    with pytest.raises(error, match=rf"^line {line}: ttcore\.(while_loop|case).*{reason}"):
        jm.from_mlir(text, MESH if "meshes" in text else jm.make_mesh((1, 1)))
