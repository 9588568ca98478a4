"""Failures reported upstream, as TTIR files: one test per case, by the numbers of `test_upstream.py`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jaxmesh as jm
from tests.generators.mlir_texts import (
    PRESHARDED,
    UNSHARDED,
    join,
    normal,
    on_devices,
    program,
    run,
    shards_of,
    split,
)
from tests.generators.oracles import coordinates, oracle_shard, same_bits


def test_r1_scalars() -> None:
    text = program(
        "1x2",
        f"%a: tensor<i32> {UNSHARDED}, %b: tensor<i32> {PRESHARDED}",
        f"(tensor<i32> {PRESHARDED}, tensor<i32> {PRESHARDED})",
        split("%0", "%a", [-1], [1], "tensor<i32> -> tensor<i32>", "replicate"),
        '%1 = "ttir.add"(%0, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>',
        "return %0, %1 : tensor<i32>, tensor<i32>",
    )
    traced = jm.from_mlir(text)
    lowered = traced.lower().as_text()
    # The unsharded scalar alone is distributed.
    assert lowered.count("distribute_tensor") == 1
    b = on_devices(traced.mesh, {(0, 0): np.int32(10), (0, 1): np.int32(20)})
    first, second = traced.lower().compile()(np.int32(1), b)
    assert {c: int(s) for c, s in shards_of(first).items()} == {(0, 0): 1, (0, 1): 1}
    assert {c: int(s) for c, s in shards_of(second).items()} == {(0, 0): 11, (0, 1): 21}


def test_r2_replicated_rank_one() -> None:
    kind = "tensor<512xbf16>"
    text = program(
        "1x2",
        f"%x: {kind}",
        kind,
        split("%0", "%x", [-1], [1], f"{kind} -> {kind}", "replicate"),
        join("%1", "%0", [-1], [1], f"{kind} -> {kind}", "replicate"),
        f"return %1 : {kind}",
    )
    x = normal(512).astype(jnp.bfloat16)
    assert same_bits(run(text, x), x)


@pytest.mark.parametrize("mesh", ["1x2", "2", "2x2x2"])
def test_r3_rank_zero_both_ways(mesh: str) -> None:
    text = program(
        mesh,
        "%x: tensor<f32>",
        "tensor<f32>",
        split("%0", "%x", [-1], [1], "tensor<f32> -> tensor<f32>", "replicate"),
        '%1 = "ttir.exp"(%0) : (tensor<f32>) -> tensor<f32>',
        join("%2", "%1", [-1], [1], "tensor<f32> -> tensor<f32>", "replicate"),
        "return %2 : tensor<f32>",
    )
    np.testing.assert_allclose(run(text, np.float32(0.5)), np.exp(np.float32(0.5)), rtol=1e-6)


def test_r18_an_axis_of_size_one() -> None:
    text = program(
        "1x2",
        "%x: tensor<256x256xf32>",
        "tensor<256x256xf32>",
        split("%0", "%x", [-1, 1], [1, 2], "tensor<256x256xf32> -> tensor<256x128xf32>"),
        join("%1", "%0", [-1, 1], [1, 2], "tensor<256x128xf32> -> tensor<256x256xf32>"),
        "return %1 : tensor<256x256xf32>",
    )
    x = normal(256, 256)
    assert same_bits(run(text, x), x)


@pytest.mark.parametrize(("mesh", "dims"), [("8", [0]), ("1x1x1x4x1", [-1, -1, -1, 0, -1])])
def test_r19_meshes_of_any_rank(mesh: str, dims: list[int]) -> None:
    pieces = [8 if mesh == "8" else 4]
    local = 16 // pieces[0]
    text = program(
        mesh,
        "%x: tensor<16xf32>",
        "tensor<16xf32>",
        split("%0", "%x", dims, pieces, f"tensor<16xf32> -> tensor<{local}xf32>"),
        join("%1", "%0", dims, pieces, f"tensor<{local}xf32> -> tensor<16xf32>"),
        "return %1 : tensor<16xf32>",
    )
    x = normal(16)
    assert same_bits(run(text, x), x)


def test_r24_presharded_means_the_local_shape() -> None:
    status = (
        "{ttcore.local_shape = #ttcore<local_shape local_shape = tensor<5x128x512xf32>>, "
        "ttcore.shard_status = #ttcore.shard_status<presharded>}"
    )
    text = program(
        "1x2",
        f"%x: tensor<10x128x512xf32> {status}",
        f"(tensor<5x128x512xf32> {PRESHARDED})",
        split("%0", "%x", [-1], [1], "tensor<10x128x512xf32> -> tensor<5x128x512xf32>", "identity"),
        "return %0 : tensor<5x128x512xf32>",
    )
    traced = jm.from_mlir(text)
    assert traced.in_avals[0].shape == (5, 128, 512)
    # Older files do not write the local shape; the no-op beside the argument has it.
    assert jm.from_mlir(text.replace(status, PRESHARDED)).in_avals[0].shape == (5, 128, 512)
    shards = {(0, i): np.full((5, 128, 512), i, np.float32) for i in range(2)}
    out = shards_of(traced.lower().compile()(on_devices(traced.mesh, shards)))
    assert [float(out[0, i].max()) for i in range(2)] == [0, 1]


def test_r25_all_shards_of_a_presharded_result_in_mesh_order() -> None:
    text = program(
        "1x2",
        "%x: tensor<4x6xf32>",
        f"(tensor<4x3xf32> {PRESHARDED})",
        split("%0", "%x", [-1, 1], [1, 2], "tensor<4x6xf32> -> tensor<4x3xf32>"),
        "return %0 : tensor<4x3xf32>",
    )
    x = normal(4, 6)
    out = run(text, x)
    assert out.shape == (4, 3)
    assert [tuple(c) for c, _ in out.shards()] == [(0, 0), (0, 1)]
    assert same_bits(np.concatenate([s for _, s in out.shards()], 1), x)


def test_r28_the_type_after_an_aggregate_is_the_full_one() -> None:
    text = program(
        "2x2",
        "%x: tensor<1x2x8x8xf32>",
        "tensor<1x2x8x16xf32>",
        split("%0", "%x", [2, 3], [1, 1, 2, 2], "tensor<1x2x8x8xf32> -> tensor<1x2x4x4xf32>"),
        '%1 = "ttir.all_gather"(%0) <{all_gather_dim = 3 : si32, cluster_axis = 1 : ui32}> '
        ": (tensor<1x2x4x4xf32>) -> tensor<1x2x4x8xf32>",
        '%2 = "ttir.concat"(%1, %1) <{dim = 3 : si32}> : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> '
        "tensor<1x2x4x16xf32>",
        join("%3", "%2", [2, -1], [1, 1, 2, 1], "tensor<1x2x4x16xf32> -> tensor<1x2x8x16xf32>"),
        "return %3 : tensor<1x2x8x16xf32>",
    )
    x = normal(1, 2, 8, 8)
    assert same_bits(run(text, x), np.concatenate([x, x], 3))


def test_r29_rank_five() -> None:
    text = program(
        "2x4",
        "%x: tensor<1x64x2x6x6xf32>",
        "tensor<1x64x2x6x6xf32>",
        split("%0", "%x", [-1, 1], [1, 4, 1, 1, 1], "tensor<1x64x2x6x6xf32> -> tensor<1x16x2x6x6xf32>"),
        join("%1", "%0", [-1, 1], [1, 4, 1, 1, 1], "tensor<1x16x2x6x6xf32> -> tensor<1x64x2x6x6xf32>"),
        "return %1 : tensor<1x64x2x6x6xf32>",
    )
    x = normal(1, 64, 2, 6, 6)
    assert same_bits(run(text, x), x)


def test_r30_a_partial_concat_drops_the_copies() -> None:
    text = """
    module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
      func.func @main(%x: tensor<1x2x1x3xf32>) -> tensor<1x2x1x3xf32> {
        %d = "ttnn.get_device"() : () -> !ttnn.device
        %0 = "ttnn.distribute_tensor"(%x, %d) <{mapper_config = #ttnn.mesh_mapper_config<
             placements = [<shard, 1 : i32>, <replicate, -1 : i32>]>}> : (tensor<1x2x1x3xf32>, !ttnn.device)
             -> tensor<1x1x1x3xf32>
        %1 = "ttnn.aggregate_tensor"(%0, %d) <{composer_config = #ttnn.mesh_composer_config<dims = [1 : i32, 0 : i32],
             mesh_shape_override = [2 : ui32, 1 : ui32]>}> : (tensor<1x1x1x3xf32>, !ttnn.device) -> tensor<1x2x1x3xf32>
        return %1 : tensor<1x2x1x3xf32>
      }
    }"""
    x = normal(1, 2, 1, 3)
    assert same_bits(run(text, x), x)


def test_r36_different_shard_dims_in_one_program() -> None:
    text = program(
        "2x4",
        "%x: tensor<16x8xf32>, %w: tensor<8x12xf32>",
        "tensor<16x12xf32>",
        split("%0", "%x", [0, 1], [2, 4], "tensor<16x8xf32> -> tensor<8x2xf32>"),
        split("%1", "%w", [1, 0], [4, 2], "tensor<8x12xf32> -> tensor<2x6xf32>"),
        '%2 = "ttir.all_gather"(%1) <{all_gather_dim = 1 : si32, cluster_axis = 0 : ui32}> '
        ": (tensor<2x6xf32>) -> tensor<2x12xf32>",
        '%3 = "ttir.matmul"(%0, %2) : (tensor<8x2xf32>, tensor<2x12xf32>) -> tensor<8x12xf32>',
        '%4 = "ttir.reduce_scatter"(%3) <{reduce_type = #ttcore.reduce_type<sum>, scatter_dim = 1 : si32, '
        "cluster_axis = 1 : ui32}> : (tensor<8x12xf32>) -> tensor<8x3xf32>",
        join("%5", "%4", [0, 1], [2, 4], "tensor<8x3xf32> -> tensor<16x12xf32>"),
        "return %5 : tensor<16x12xf32>",
    )
    x, w = normal(16, 8), normal(8, 12)
    np.testing.assert_allclose(run(text, x, w), x @ w, rtol=1e-4, atol=1e-4)


def test_d1_d2_two_axes_on_one_dim() -> None:
    text = program(
        "2x4",
        "%x: tensor<16xf32>",
        f"(tensor<2xf32> {PRESHARDED}, tensor<16xf32> {UNSHARDED})",
        split("%0", "%x", [0, 0], [8], "tensor<16xf32> -> tensor<2xf32>"),
        join("%1", "%0", [0, 0], [8], "tensor<2xf32> -> tensor<16xf32>"),
        "return %0, %1 : tensor<2xf32>, tensor<16xf32>",
    )
    x = np.arange(16, dtype=np.float32)
    pieces, full = run(text, x)
    assert same_bits(full, x)
    want = {c: oracle_shard(x, [[0, 1]], (2, 4), c) for c in coordinates((2, 4))}
    assert all(same_bits(s, want[c]) for c, s in shards_of(pieces).items())


def test_d5_rank_one_on_a_mesh_of_two_axes() -> None:
    text = program(
        "2x4",
        "%x: tensor<16xf32>",
        "tensor<16xf32>",
        split("%0", "%x", [-1, 0], [4], "tensor<16xf32> -> tensor<4xf32>"),
        join("%1", "%0", [-1, 0], [4], "tensor<4xf32> -> tensor<16xf32>"),
        "return %1 : tensor<16xf32>",
    )
    x = normal(16)
    assert same_bits(run(text, x), x)


D10_PLACEMENTS = [
    "[<shard, 0 : i32>, <replicate, -1 : i32>]",
    "[<shard, 0 : i64>, <replicate, -1 : i64>]",
    "[#ttnn.placement<shard, 0>, #ttnn.placement<replicate>]",
    "[#ttnn.placement<shard, 0 : i32>, <replicate>]",
]
D10_OVERRIDES = [
    "",
    ", mesh_shape_override = [2 : ui32, 2 : ui32]",
    ", mesh_shape_override = #ttnn.mesh_shape<2x2>",
    ", mesh_shape_override = <2x2>",
]


@pytest.mark.parametrize("placements", D10_PLACEMENTS)
@pytest.mark.parametrize("override", D10_OVERRIDES)
def test_d10_every_spelling_of_the_configs(placements: str, override: str) -> None:
    mapper = f"#ttnn.mesh_mapper_config<placements = {placements}{override}>"
    dims = "[0 : i32, 1 : i32]" if "i32" in placements else "[0, 1]"
    # Axis 1 holds copies, so joining along it repeats the columns.
    composer = f"#ttnn.mesh_composer_config<dims = {dims}{override}>"
    text = f"""
    func.func @main(%x: tensor<4x3xf32>) -> tensor<4x6xf32> {{
      %d = "ttnn.get_device"() <{{mesh_shape = #ttnn<mesh_shape 2x2>}}> : () -> !ttnn.device
      %0 = "ttnn.distribute_tensor"(%x, %d) <{{mapper_config = {mapper}}}>
           : (tensor<4x3xf32>, !ttnn.device) -> tensor<2x3xf32>
      %1 = "ttnn.aggregate_tensor"(%0, %d) <{{composer_config = {composer}}}>
           : (tensor<2x3xf32>, !ttnn.device) -> tensor<4x6xf32>
      return %1 : tensor<4x6xf32>
    }}"""
    x = normal(4, 3)
    assert same_bits(run(text, x), np.concatenate([x, x], 1))
