"""GSPMD's annotations: each form as a spec, the mesh that fits them, and a program of hand-written custom calls."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import errors
from jaxmesh.frontends.stablehlo.gspmd import candidate_meshes, elements, spec_of
from tests.generators.plain_programs import W, X

MESH = AbstractMesh((2, 4), ("y", "x"))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("{replicated}", P()),
        ("{maximal device=0}", P()),
        ("{devices=[2,4]<=[8]}", P("y", "x")),
        ("{devices=[4,2]<=[2,4]T(1,0)}", P("x", "y")),
        ("{devices=[8,1]<=[8]}", P(("y", "x"))),
        ("{devices=[8,1]0,1,2,3,4,5,6,7}", P(("y", "x"))),
        ("{devices=[8]<=[2,4]T(1,0)}", P(("x", "y"))),
        ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", P("y")),
        ("{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}", P(None, "x")),
        ("{devices=[2,1,4]<=[8] last_tile_dims={replicated}}", P("y")),
        ("{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", P("y")),
    ],
)
def test_a_sharding_is_a_spec_over_the_mesh(text: str, spec: P) -> None:
    found = [*spec_of(text, MESH)]
    while found and found[-1] is None:
        found.pop()
    assert P(*found) == spec


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{garbage",
        "{unknown}",
        "{maximal device=3}",
        "{devices=[4,1]<=[4]}",
        "{devices=[3,1]<=[3]}",
        "{devices=[8]0,0,1,1,2,2,3,3}",
        "{devices=[2,4]<=[8]T(0)}x",
        "{devices=[2,4]<=[2,2,2]T(2,0,1)}",
        "{devices=[2,1,4]<=[8] last_tile_dims={manual}}",
        "{devices=[2,99999999999]<=[8]}",
    ],
)
def test_any_other_text_is_an_error(text: str) -> None:
    with pytest.raises(errors.UnsupportedError, match=re.escape(f"mhlo.sharding = {text!r}")):
        spec_of(text, MESH)


def test_elements_of_tuples() -> None:
    assert elements("{{devices=[2,1,4]<=[8] last_tile_dims={replicated}}, {replicated}}") == [
        "{devices=[2,1,4]<=[8] last_tile_dims={replicated}}",
        "{replicated}",
    ]
    assert elements("{devices=[2,1]<=[2]}") == ["{devices=[2,1]<=[2]}"]


def test_meshes_that_shardings_suggest() -> None:
    assert candidate_meshes(["{replicated}", "{devices=[8,1]<=[8]}"]) == [(1, 8)]
    assert candidate_meshes(["{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"]) == [(2, 4), (4, 2)]
    assert candidate_meshes(["{replicated}"]) == []


# --- programs --------------------------------------------------------------------------------------------------------

HEAD = "func.func public @main(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>) -> tensor<8x32xf32> {"


def call(target: str, value: str, sharding: str, kinds: str) -> str:
    return f'stablehlo.custom_call @{target}({value}) {{backend_config = "", mhlo.sharding = "{sharding}"}} : {kinds}'


def by_hand(rows: str = "{devices=[2,4]<=[8]}", groups: str = "[[0, 1, 2, 3], [4, 5, 6, 7]]") -> str:
    """A product of shards and a sum over the second axis, as JAX writes a `shard_map` for GSPMD."""
    x, w = "tensor<8x16xf32>", "tensor<16x32xf32>"
    columns = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
    manual, out = "{manual}", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"
    return f"""{HEAD}
      %0 = {call("Sharding", "%x", rows, f"({x}) -> {x}")}
      %1 = {call("SPMDFullToShardShape", "%0", manual, f"({x}) -> tensor<4x4xf32>")}
      %2 = {call("Sharding", "%w", columns, f"({w}) -> {w}")}
      %3 = {call("SPMDFullToShardShape", "%2", manual, f"({w}) -> tensor<4x32xf32>")}
      %4 = call @body(%1, %3) : (tensor<4x4xf32>, tensor<4x32xf32>) -> tensor<4x32xf32>
      %5 = {call("Sharding", "%4", manual, "(tensor<4x32xf32>) -> tensor<4x32xf32>")}
      %6 = {call("SPMDShardToFullShape", "%5", out, "(tensor<4x32xf32>) -> tensor<8x32xf32>")}
      return %6 : tensor<8x32xf32>
    }}
    func.func private @body(%a: tensor<4x4xf32>, %b: tensor<4x32xf32>) -> tensor<4x32xf32> {{
      %0 = "stablehlo.dot"(%a, %b) : (tensor<4x4xf32>, tensor<4x32xf32>) -> tensor<4x32xf32>
      %1 = "stablehlo.all_reduce"(%0) <{{replica_groups = dense<{groups}> : tensor<2x4xi64>}}> ({{
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %s = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }}) : (tensor<4x32xf32>) -> tensor<4x32xf32>
      return %1 : tensor<4x32xf32>
    }}"""


def run(text: str, *args: Any) -> Any:
    return np.asarray(jm.from_mlir(text).lower().compile()(*args))


def test_hand_written_custom_calls() -> None:
    traced = jm.from_mlir(by_hand())
    assert traced.mesh.axis_sizes == (2, 4)
    assert traced.assumptions == ()
    assert [d.kind for d in traced.decisions if d.kind.startswith("all_")] == []
    np.testing.assert_allclose(run(by_hand(), X, W), X @ W, rtol=1e-5, atol=1e-5)


def test_a_local_type_that_is_no_shard_is_an_error() -> None:
    with pytest.raises(errors.UnsupportedError, match=r"line 3: .*a shard of \[8, 16\] as \[4, 4\], but .* \[1, 16\]"):
        jm.from_mlir(by_hand("{devices=[8,1]<=[8]}"))


def test_groups_that_are_no_axis_are_an_error() -> None:
    with pytest.raises(errors.UnsupportedError, match=r"line 1\d: stablehlo.all_reduce: .*not correspond to axes"):
        jm.from_mlir(by_hand(groups="[[0, 1, 2, 4], [3, 5, 6, 7]]"))


@pytest.mark.parametrize("where", ["argument", "op", "result"])
def test_annotations_without_custom_calls_are_propagated(where: str) -> None:
    tag = '{mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}'
    marks = {k: tag if k == where else "" for k in ("argument", "op", "result")}
    text = f"""
      func.func public @main(%x: tensor<8x16xf32> {marks["argument"]}) -> (tensor<8x16xf32> {marks["result"]}) {{
        %0 = stablehlo.add %x, %x {marks["op"]} : tensor<8x16xf32>
        %1 = stablehlo.tanh %0 : tensor<8x16xf32>
        return %1 : tensor<8x16xf32>
      }}"""
    ttir = jm.from_mlir(text).as_text()
    assert ttir.count("tensor<4x16xf32>") >= 3
    assert "all_gather" not in ttir
    np.testing.assert_allclose(run(text, X), np.tanh(2 * X), rtol=1e-5)


def test_the_results_of_one_op_are_annotated_by_a_tuple() -> None:
    kinds = "tensor<8x16xf32>, tensor<8x16xi32>"
    tag = '{mhlo.sharding = "{{devices=[2,1,4]<=[8] last_tile_dim_replicate}, {replicated}}"}'
    text = f"""
      func.func public @main(%x: tensor<8x16xf32>, %i: tensor<8x16xi32>) -> ({kinds}) {{
        %0:2 = stablehlo.optimization_barrier {tag} %x, %i : {kinds}
        return %0#0, %0#1 : {kinds}
      }}"""
    assert "tensor<4x16xf32>" in jm.from_mlir(text).as_text()
    short = text.replace("{{devices=[2,1,4]<=[8] last_tile_dim_replicate}, {replicated}}", "{replicated}")
    with pytest.raises(errors.UnsupportedError, match=r"has 2 results, but .* has 1 shardings; give"):
        jm.from_mlir(short)


def test_a_collective_broadcast_sends_what_the_first_device_has() -> None:
    manual, whole = "{manual}", "{devices=[8,1]<=[8]}"
    text = f"""
      func.func public @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {{
        %0 = {call("Sharding", "%x", whole, "(tensor<8x16xf32>) -> tensor<8x16xf32>")}
        %1 = {call("SPMDFullToShardShape", "%0", manual, "(tensor<8x16xf32>) -> tensor<1x16xf32>")}
        %2 = "stablehlo.collective_broadcast"(%1) <{{
          replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>
        }}> : (tensor<1x16xf32>) -> tensor<1x16xf32>
        %3 = {call("SPMDShardToFullShape", "%2", whole, "(tensor<1x16xf32>) -> tensor<8x16xf32>")}
        return %3 : tensor<8x16xf32>
      }}"""
    assert "ttir.collective_broadcast" in jm.from_mlir(text).as_text()
    np.testing.assert_array_equal(run(text, X), np.broadcast_to(X[:1], X.shape))
