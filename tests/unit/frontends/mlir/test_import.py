"""TTIR files become programs that compute what the text says, compared with NumPy on sharded data."""

from __future__ import annotations

import gc
import itertools
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.frontends.mlir import trace
from tests.generators.mlir_texts import (
    FILES,
    PRESHARDED,
    UNSHARDED,
    join,
    normal,
    on_devices,
    program,
    row,
    run,
    shards_of,
    split,
)
from tests.generators.oracles import coordinates, oracle_shard, same_bits
from tests.generators.upstream_definitions import check_text, read_table

# --- whole files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["path", "name", "text"])
def test_a_matmul_as_tt_mlir_prints_it(how: str) -> None:
    path = FILES / "matmul_2x4.mlir"
    source: Any = {"path": path, "name": str(path), "text": path.read_text()}[how]
    x, w = normal(16, 8), normal(8, 12)
    np.testing.assert_allclose(run(source, x, w), x @ w, rtol=1e-4, atol=1e-4)


def test_presharded_arguments_and_results() -> None:
    traced = jm.from_mlir(FILES / "presharded.mlir")
    x, w = normal(4, 8), normal(8, 6)
    shards = {(0, i): w[:, 3 * i : 3 * i + 3] for i in range(2)}
    out = traced.lower().compile()(x, on_devices(traced.mesh, shards))
    assert traced.assumptions == ()
    assert traced.out_avals[0].shape == (4, 3)
    for c, piece in shards_of(out).items():
        np.testing.assert_allclose(piece, x @ shards[c], rtol=1e-4, atol=1e-4)


def test_pieces_and_private_functions() -> None:
    file = FILES / "several.mlir"
    x = normal(4)
    assert same_bits(run(file, x, func="first"), -x)
    two, four = run(file, x, func="second")
    assert same_bits(two, 2 * x)
    assert same_bits(four, 4 * x)
    assert dict(jm.from_mlir(file, func="second").mesh.shape) == {"y": 2, "x": 2}
    assert dict(jm.from_mlir(file, func="first@3").mesh.shape) == {"y": 1, "x": 2}


@pytest.mark.filterwarnings("ignore::jaxmesh.DeviationWarning")
def test_old_spellings() -> None:
    x = normal(4, 6)
    assert same_bits(run(FILES / "old_style.mlir", x), x * x)


@pytest.mark.filterwarnings("ignore::jaxmesh.DeviationWarning")
def test_a_ttnn_level_file() -> None:
    x = normal(8, 4)
    assert same_bits(run(FILES / "ttnn.mlir", x), x * x)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('%0 = "ttir.sinh"(%x) : (tensor<4xf32>) -> tensor<4xf32>', "line 2: ttir.sinh is no op"),
        ('%0 = "ttir.leaky_relu"(%x) : (tensor<4xf32>) -> tensor<4xf32>',
         "line 2: ttir.leaky_relu needs the attribute 'parameter'"),
        ('%0 = "ttir.exp"(%x) <{layout = 1 : i32}> : (tensor<4xf32>) -> tensor<4xf32>',
         "line 2: ttir.exp has no attribute 'layout'"),
        ('%0 = "ttir.cumsum"(%x) <{dim = 0 : si32}> : (tensor<4xf32>) -> tensor<4xf32>',
         "line 2: ttir.cumsum has 'dim' as i64, not as si32"),
        ('%0 = "ttnn.to_layout"(%x) <{layout = #ttnn.layout<tile>}> : (tensor<4xf32>) -> tensor<4xf32>',
         "line 2: ttnn.to_layout has no attribute 'layout'"),
        ('%0 = "ttir.rms_norm"(%x) <{normalized_shape = array<i64: 4>}> : (tensor<4xf32>) -> tensor<4xf32>',
         "line 2: ttir.rms_norm needs the attribute 'operandSegmentSizes', of 3 sizes"),
    ],
)  # fmt: skip
def test_what_upstream_does_not_define_is_read_with_a_warning(line: str, message: str) -> None:
    text = f"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{\n{line}\nreturn %0 : tensor<4xf32> }}\n"
    with pytest.warns(jm.DeviationWarning) as caught:
        traced = jm.from_mlir(text)
    assert [str(w.message).startswith(message) for w in caught] == [True]
    for printed in (traced.as_text(), traced.lower().as_text()):
        assert check_text(printed, read_table())[1] == []
    with pytest.raises(jm.VerifyError, match="that is an error when strict"):
        jm.from_mlir(text, strict=True)


CACHE = """func.func @main(%c: tensor<2x1x4x2xf32>, %x: tensor<1x1x2x2xf32>) -> tensor<2x1x4x2xf32> {
{line}
return %c : tensor<2x1x4x2xf32> }
"""


def test_an_op_without_result_writes_to_its_operand() -> None:
    line = (
        '"ttir.fill_cache"(%c, %x) <{batch_offset = 1 : i32}> : (tensor<2x1x4x2xf32>, tensor<1x1x2x2xf32>) -> ()\n'
        '%i = "ttir.constant"() <{value = dense<3> : tensor<1xi32>}> : () -> tensor<1xi32>\n'
        '"ttir.update_cache"(%c, %x, %i) <{batch_offset = 0 : i32}> : '
        "(tensor<2x1x4x2xf32>, tensor<1x1x2x2xf32>, tensor<1xi32>) -> ()"
    )
    cache, new = normal(2, 1, 4, 2), normal(1, 1, 2, 2)
    traced = jm.from_mlir(CACHE.replace("{line}", line))
    want = cache.copy()
    want[1, :, :2] = new[0]
    want[:, :, 3] = new[0].swapaxes(0, 1)
    kept = cache.copy()
    for each in (traced, jm.from_mlir(traced.as_text()), jm.from_mlir(traced.lower().as_text(strict=False))):
        assert same_bits(np.asarray(each.lower().compile()(cache, new)), want)
    assert same_bits(cache, kept)


@pytest.mark.parametrize("upstreams", [True, False], ids=["as the compiler has it", "one position of each sequence"])
def test_a_cache_as_a_result_takes_both_layouts_of_its_input(upstreams: bool) -> None:
    shape = (1, 1, 2, 2) if upstreams else (2, 1, 1, 2)
    types = f"tensor<2x1x4x2xf32>, tensor<{'x'.join(map(str, shape))}xf32>, tensor<1xi32>"
    text = f"""module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x2>]>}} {{
      func.func @main(%c: tensor<2x1x4x2xf32>, %x: tensor<{"x".join(map(str, shape))}xf32>, %i: tensor<1xi32>)
          -> tensor<2x1x4x2xf32> {{
        %0 = "ttir.update_cache"(%c, %x, %i) <{{batch_offset = 0 : i32}}> : ({types}) -> tensor<2x1x4x2xf32>
        return %0 : tensor<2x1x4x2xf32>
      }}
    }}"""
    with pytest.warns(jm.errors.DeviationWarning, match="has no result"):
        traced = jm.from_mlir(text)
    cache, new = normal(2, 1, 4, 2), normal(*shape)
    want = cache.copy()
    want[:, :, 3] = new[0].swapaxes(0, 1) if upstreams else new[:, :, 0]
    for each in (traced, jm.from_mlir(traced.as_text())):
        assert same_bits(np.asarray(each.lower().compile()(cache, new, np.array([3], np.int32))), want)


def test_generic_forms_and_odd_layout() -> None:
    text = (
        '"builtin.module"() ({ "func.func"() <{function_type = (tensor<2xf32>) -> tensor<2xf32>, sym_name = "a b"}> '
        "({ ^bb0(%arg0: tensor<2xf32>): // ttcore.device_module {\n"
        '%0 = "ttir.add"(%arg0, // a comment with a " quote\n %arg0) : (tensor<2xf32>, tensor<2xf32>)\n\n'
        '-> tensor<2xf32> "func.return"(%0) : (tensor<2xf32>) -> () }) : () -> () }) : () -> ()\n'
    )
    assert same_bits(run(text, np.float32([1, 2])), np.float32([2, 4]))


def test_strings_are_not_rewritten() -> None:
    text = program(
        None,
        "%x: tensor<2xf32>",
        "tensor<2xf32>",
        '%0 = "ttir.neg"(%x) {ttcore.note = "ttir.empty() : tensor<2xf32> loc(\\"a\\") // }"} '
        ": (tensor<2xf32>) -> tensor<2xf32>",
        "return %0 : tensor<2xf32>",
    )
    assert same_bits(run(text, np.float32([1, 2])), np.float32([-1, -2]))


@pytest.mark.filterwarnings("ignore::jaxmesh.DeviationWarning")
def test_a_module_for_the_cpu_beside_the_one_for_devices() -> None:
    kind = "tensor<2xf32>"
    text = f"""
    module {{
      ttcore.device_module attributes {{a.b = 1}} {{ builtin.module {{
        func.func private @hoisted({kind}) -> {kind}
        func.func @main(%x: {kind}) -> {kind} {{
          %0 = ttir.empty() {{a.b = 1}} : {kind}
          %1 = call @hoisted(%x) : ({kind}) -> {kind}
          %2 = "ttir.add"(%1, %x, %0) : ({kind}, {kind}, {kind}) -> {kind}
          return %2 : {kind}
        }}
      }} }}
      ttcore.cpu_module {{ builtin.module {{
        func.func private @hoisted(%x: {kind}) -> {kind} {{
          %0 = "ttir.neg"(%x) : ({kind}) -> {kind}
          return %0 : {kind}
        }}
      }} }}
    }}
    """
    assert same_bits(run(text, np.float32([1, 2])), np.float32([0, 0]))


def test_no_argument_no_result() -> None:
    assert run("func.func @main() { return }") == ()
    out = run(
        'func.func @main() -> tensor<3xi32> { %0 = "ttir.full"() <{shape = array<i32: 3>, fill_value = 7 : i32}> '
        ": () -> tensor<3xi32>\n return %0 : tensor<3xi32> }"
    )
    assert same_bits(out, np.int32([7, 7, 7]))


# --- constants -------------------------------------------------------------------------------------------------------

CONSTANTS: list[tuple[str, str, Any]] = [
    ("dense<[1.5, -2.0]>", "2xf32", np.float32([1.5, -2])),
    ("dense<[[1, 2], [3, 4]]>", "2x2xi32", np.int32([[1, 2], [3, 4]])),
    ("dense<-3>", "2xsi16", np.int16([-3, -3])),
    ("dense<[255, 0]>", "2xui8", np.uint8([255, 0])),
    ("dense<4294967295>", "2xui32", np.uint32([2**32 - 1] * 2)),
    ("dense<[true, false]>", "2xi1", np.array([True, False])),
    ("dense<true>", "2xi1", np.array([True, True])),
    ("dense<[1.0, 0x7FC0, 0xFF80]>", "3xbf16", np.array([1, np.nan, -np.inf], jnp.bfloat16)),
    ("dense<0x7F80>", "2xbf16", np.array([np.inf] * 2, jnp.bfloat16)),
    ("dense<1.0e-9>", "2xbf16", np.array([1e-9] * 2, jnp.bfloat16)),
    ("dense<[1.0, 0x7E00]>", "2xf16", np.array([1, np.nan], np.float16)),
    ("dense<[1.0, -2.0]>", "2xf8E4M3FN", np.array([1, -2], jnp.float8_e4m3fn)),
    ("dense<[1.0, -2.0]>", "2xf8E5M2", np.array([1, -2], jnp.float8_e5m2)),
    ("dense<[7, -8]>", "2xi4", np.array([7, -8], jnp.int4)),
    ("dense<[15, 1]>", "2xui4", np.array([15, 1], jnp.uint4)),
    ('dense<"0x0000803F00000040">', "2xf32", np.float32([1, 2])),
    ('dense<"0x803F0040">', "2xbf16", np.array([1, 2], jnp.bfloat16)),
    ("dense<2.0>", "f32", np.float32(2)),
    ("dense<2.0>", "bf16", np.array(2, jnp.bfloat16)),
    ("dense<>", "0x3xf32", np.zeros((0, 3), np.float32)),
    (f"dense<{[float(i) for i in range(150)]}>", "150xbf16", np.arange(150).astype(jnp.bfloat16)),
    (f"dense<{[i % 8 for i in range(150)]}>", "150xi4", (np.arange(150) % 8).astype(jnp.int4)),
    ("dense_resource<blob>", "2xf32", np.float32([1, 2])),
    ('dense_resource<"the blob">', "2xf32", np.float32([3, 4])),
    ("dense_resource<half>", "2xbf16", np.array([1, 2], jnp.bfloat16)),
]
BLOBS = """
{-#
  dialect_resources: {
    builtin: {
      blob: "0x040000000000803F00000040", "the blob": "0x040000000000404000008040", half: "0x02000000803F0040"
    }
  }
#-}
"""


@pytest.mark.parametrize(("value", "kind", "want"), CONSTANTS, ids=[f"{v[:20]}:{k}" for v, k, _ in CONSTANTS])
def test_constants(value: str, kind: str, want: np.ndarray) -> None:
    text = f"""func.func @main() -> tensor<{kind}> {{
      %0 = "ttir.constant"() <{{value = {value} : tensor<{kind}>}}> : () -> tensor<{kind}>
      return %0 : tensor<{kind}>
    }}{BLOBS if "resource" in value else ""}"""
    assert same_bits(run(text), want)


def test_lists_of_device_ids_are_64_bits_wide_without_x64() -> None:
    kind = "tensor<2x4xf32>"
    text = program(
        "1x2",
        "%x: tensor<2x8xf32>",
        "tensor<2x8xf32>",
        split("%0", "%x", [-1, 1], [1, 2], f"tensor<2x8xf32> -> {kind}"),
        f'%1 = "ttir.collective_permute"(%0) <{{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}}> '
        f": ({kind}) -> {kind}",
        join("%2", "%1", [-1, 1], [1, 2], f"{kind} -> tensor<2x8xf32>"),
        "return %2 : tensor<2x8xf32>",
    )
    x = normal(2, 8)
    assert same_bits(run(text, x), np.concatenate([x[:, 4:], x[:, :4]], 1))


def test_a_huge_splat_is_not_made_in_memory() -> None:
    text = """func.func @main() -> tensor<1000000x1000000xf32> {
      %0 = "ttir.constant"() <{value = dense<1.0> : tensor<1000000x1000000xf32>}> : () -> tensor<1000000x1000000xf32>
      return %0 : tensor<1000000x1000000xf32>
    }"""
    assert jm.from_mlir(text).out_avals[0].shape == (10**6, 10**6)


def test_one_blob_name_in_two_pieces() -> None:
    piece = """func.func @NAME() -> tensor<1xf32> {
      %0 = "ttir.constant"() <{value = dense_resource<b> : tensor<1xf32>}> : () -> tensor<1xf32>
      return %0 : tensor<1xf32>
    }
    {-# dialect_resources: { builtin: { b: "0x04000000BYTES" } } #-}
    """
    text = "// -----\n".join(
        piece.replace("NAME", n).replace("BYTES", b) for n, b in [("one", "0000803F"), ("two", "00000040")]
    )
    assert [float(run(text, func=f)[0]) for f in ("one", "two")] == [1, 2]


# --- types -----------------------------------------------------------------------------------------------------------

TYPES: list[tuple[str, Any, tuple[int, ...]]] = [
    ("2x3xf32", jnp.float32, (2, 3)),
    ("2xbf16", jnp.bfloat16, (2,)),
    ("f16", jnp.float16, ()),
    ("2xi1", jnp.bool_, (2,)),
    ("2xi8", jnp.int8, (2,)),
    ("2xsi32", jnp.int32, (2,)),
    ("2xui16", jnp.uint16, (2,)),
    ("2xui4", jnp.uint4, (2,)),
    ("2xsi2", jnp.int2, (2,)),
    ("2xf8E4M3FN", jnp.float8_e4m3fn, (2,)),
    ("2xf8E5M2", jnp.float8_e5m2, (2,)),
    ("2xcomplex<f32>", jnp.complex64, (2,)),
    ("2x4xf32, #ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <1x1>>", jnp.float32, (2, 4)),
    ("1x2x3x!ttcore.tile<32x32, bf16>", jnp.bfloat16, (1, 64, 96)),
    ("2x3x!tt.tile<32x32, f32>", jnp.float32, (64, 96)),
    ("2x3x!ttcore.tile<32x32, u32>", jnp.uint32, (64, 96)),
]


@pytest.mark.parametrize(("text", "dtype", "shape"), TYPES, ids=[t for t, _, _ in TYPES])
def test_types(text: str, dtype: Any, shape: tuple[int, ...]) -> None:
    traced = jm.from_mlir(f"func.func @main(%x: tensor<{text}>) -> tensor<{text}> {{ return %x : tensor<{text}> }}")
    (aval,) = traced.in_avals
    assert (aval.shape, aval.dtype) == (shape, jnp.dtype(dtype))


def test_wide_types_need_x64() -> None:
    text = "func.func @main(%x: tensor<2xf64>) -> tensor<2xf64> { return %x : tensor<2xf64> }"
    with pytest.raises(jm.UnsupportedError, match=r"line 1: .*f64.*jax_enable_x64"):
        jm.from_mlir(text)
    with jax.enable_x64(True):
        assert jm.from_mlir(text).in_avals[0].dtype == np.float64


@pytest.mark.parametrize("kind", ["f64", "complex<f64>"])
def test_wide_numbers_are_never_narrowed(kind: str) -> None:
    text = f'func.func @main() {{\n%0 = "ttir.zeros"() : () -> tensor<2x{kind}>\nreturn }}'
    with pytest.raises(jm.UnsupportedError, match=r"line 2: ttir.zeros: .*64 bits"):
        jm.from_mlir(text)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("i64", "int32"), ("ui64", "uint32"), ("si64", "int32"), ("index", "int32")]
)
def test_wide_indices_are_held_as_jax_holds_them(kind: str, dtype: str) -> None:
    def text(value: int, op: str = "add") -> str:
        return (
            f"func.func @main(%x: tensor<2x{kind}>) -> tensor<2x{kind}> {{\n"
            f'%0 = "ttir.constant"() <{{value = dense<{value}> : tensor<2x{kind}>}}> : () -> tensor<2x{kind}>\n'
            f'%1 = "ttir.{op}"(%x, %0) : (tensor<2x{kind}>, tensor<2x{kind}>) -> tensor<2x{kind}>\n'
            f"return %1 : tensor<2x{kind}> }}"
        )

    traced = jm.from_mlir(text(5))
    assert traced.in_avals[0].dtype == dtype
    np.testing.assert_array_equal(traced.lower().compile()(np.array([1, 2], dtype)), [6, 7])
    with pytest.raises(jm.VerifyError, match=r"line 2: ttir.constant: .*1099511627776"):
        jm.from_mlir(text(2**40))
    with pytest.warns(jm.DeviationWarning, match=r"line 3: ttir.multiply of .* is computed in 32 bits"):
        jm.from_mlir(text(5, "multiply"))
    with jax.enable_x64(True):
        assert jm.from_mlir(text(2**40)).in_avals[0].dtype == dtype.replace("32", "64")


def test_block_floats_are_bfloat16_with_a_warning() -> None:
    kind = "tensor<1x1x!ttcore.tile<32x32, bfp_bf8>>"
    text = f"func.func @main(%x: {kind}) -> {kind} {{ return %x : {kind} }}"
    with pytest.warns(jm.BlockFloatWarning, match=r"line 1: .*bfp_bf8.*bfloat16"):
        assert jm.from_mlir(text).in_avals[0].dtype == jnp.bfloat16
    with pytest.raises(jm.UnsupportedError, match=r"line 1.*bfp_bf8.*strict"):
        jm.from_mlir(text, strict=True)


# --- the mesh --------------------------------------------------------------------------------------------------------

BODY = [
    split("%0", "%x", [0, 1], [2, 4], "tensor<8x8xf32> -> tensor<4x2xf32>"),
    join("%1", "%0", [0, 1], [2, 4], "tensor<4x2xf32> -> tensor<8x8xf32>"),
    "return %1 : tensor<8x8xf32>",
]


def text_for(mesh: str | None) -> str:
    return program(mesh, "%x: tensor<8x8xf32>", "tensor<8x8xf32>", *BODY)


def test_the_mesh_of_the_module_the_first_of_several() -> None:
    assert dict(jm.from_mlir(text_for("2x4")).mesh.shape) == {"y": 2, "x": 4}
    several = text_for('2x4>, <"other" = 4x4')
    assert dict(jm.from_mlir(several).mesh.shape) == {"y": 2, "x": 4}
    old = text_for("2x4").replace("ttcore.meshes", "tt.meshes")
    assert dict(jm.from_mlir(old).mesh.shape) == {"y": 2, "x": 4}


def test_the_mesh_of_a_run_line() -> None:
    line = "// RUN: ttmlir-opt --ttcore-register-device='mesh-shape=2,4' %s\n"
    assert dict(jm.from_mlir(line + text_for(None)).mesh.shape) == {"y": 2, "x": 4}
    assert dict(jm.from_mlir(line * 2 + text_for(None)).mesh.shape) == {"y": 2, "x": 4}
    with pytest.raises(jm.MeshError, match=r"line 1: .*2x4 \(line 1\), 1x8 \(line 2\)"):
        jm.from_mlir(line + line.replace("2,4", "1,8") + text_for(None))


def test_a_given_mesh_and_the_context() -> None:
    mesh = jm.make_mesh((2, 4), ("a", "b"))
    assert jm.from_mlir(text_for(None), mesh).mesh is mesh
    with jax.set_mesh(mesh):
        traced = jm.from_mlir(text_for("2x4"))
        x = normal(8, 8)
        assert same_bits(traced.lower().compile()(x), x)
    assert traced.mesh.axis_names == ("a", "b")
    abstract = AbstractMesh((2, 4), ("y", "x"))
    assert jm.from_mlir(text_for("2x4"), abstract).lower().out_avals[0].shape == (8, 8)


def test_meshes_that_disagree() -> None:
    with pytest.raises(jm.MeshMismatchError, match=r"line 1: ttcore.meshes is 2x4, but the given mesh is 4x2"):
        jm.from_mlir(text_for("2x4"), jm.make_mesh((4, 2)))
    with (
        jax.set_mesh(jm.make_mesh((8,))),
        pytest.raises(jm.MeshMismatchError, match=r"2x4, but jax.set_mesh has set the mesh 8"),
    ):
        jm.from_mlir(text_for("2x4"))


def test_no_mesh() -> None:
    twice = text_for(None).replace("i64: 0, 1>", "i64: 0, 0>")
    with pytest.raises(
        jm.MeshError, match=r"line 3: ttir.mesh_shard needs a mesh, .*give mesh=.*--mesh 2x4.*mesh-shape"
    ):
        jm.from_mlir(twice)
    plain = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
    assert dict(jm.from_mlir(plain).mesh.shape) == {"y": 1, "x": 1}


def test_the_mesh_that_the_ops_fix() -> None:
    """A dim that is split over one axis alone fixes it; one of copies is of one device; a collective fixes its axis."""
    text = text_for(None)
    assert tuple(jm.from_mlir(text).mesh.shape.values()) == (2, 4)
    row = text.replace("i64: 0, 1>", "i64: -1, 1>").replace("i64: 2, 4>", "i64: 1, 4>").replace("4x2xf32", "8x2xf32")
    assert tuple(jm.from_mlir(row).mesh.shape.values()) == (1, 4)
    shard = (
        '"ttir.mesh_shard"(%{}) <{{shard_dims = array<i64: {}>, shard_shape = array<i64: {}>, shard_direction = {}}}>'
    )
    down = shard.format("x", "-1, 1", "1, 2", "#ttcore.shard_direction<full_to_shard>")
    up = shard.format("1", "-1", "1", "#ttcore.shard_direction<shard_to_full>")
    gather = f"""func.func @main(%x: tensor<8x4xf32>) -> tensor<8xNxf32> {{
  %0 = {down.replace("}>", ", shard_type = #ttcore.shard_type<devices>}>")} : (tensor<8x4xf32>) -> tensor<8x2xf32>
  %1 = "ttir.all_gather"(%0) <{{all_gather_dim = 1 : si32, cluster_axis = 1 : ui32}}>
    : (tensor<8x2xf32>) -> tensor<8xNxf32>
  %2 = {up.replace("}>", ", shard_type = #ttcore.shard_type<replicate>}>")} : (tensor<8xNxf32>) -> tensor<8xNxf32>
  return %2 : tensor<8xNxf32>
}}"""
    assert tuple(jm.from_mlir(gather.replace("xN", "x4")).mesh.shape.values()) == (1, 2)
    with pytest.raises(jm.VerifyError, match=r"line 3: ttir.all_gather takes mesh axis 1 to be of size 4, .*line 2 of"):
        jm.from_mlir(gather.replace("xN", "x8"))


@pytest.mark.parametrize(("op", "dim", "size", "mesh"), [
    ("ttir.all_gather", "all_gather_dim", 32, (1, 4)), ("ttnn.all_gather", "all_gather_dim", 16, (1, 2)),
    ("ttir.mesh_partition", "dim", 4, (1, 2)),
])  # fmt: skip
def test_the_mesh_that_a_collective_fixes_alone(op: str, dim: str, size: int, mesh: tuple[int, ...]) -> None:
    text = f"""func.func @main(%x: tensor<8xf32>) -> tensor<{size}xf32> {{
  %0 = "{op}"(%x) <{{{dim} = 0 : si32, cluster_axis = 1 : ui32}}> : (tensor<8xf32>) -> tensor<{size}xf32>
  return %0 : tensor<{size}xf32>
}}"""
    assert tuple(jm.from_mlir(text).mesh.shape.values()) == mesh


def test_a_mesh_of_more_devices_than_there_are_is_abstract() -> None:
    traced = jm.from_mlir(text_for("2x4").replace("2x4>", "2x4x16>").replace("0, 1>", "0, 1, -1>"))
    assert isinstance(traced.mesh, AbstractMesh)
    assert traced.lower().out_avals[0].shape == (8, 8)


# --- shard_shape -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [[1, 1], [4, 2], [2], [2, 4, 1]])
def test_a_wrong_shard_shape_alone_is_a_warning(pieces: list[int]) -> None:
    lines = [split("%0", "%x", [0, 1], pieces, "tensor<8x8xf32> -> tensor<4x2xf32>"), *BODY[1:]]
    text = program("2x4", "%x: tensor<8x8xf32>", "tensor<8x8xf32>", *lines)
    with pytest.warns(jm.ShardShapeWarning, match=r"line 3: ttir.mesh_shard: shard_shape .*make \[2, 4\]") as caught:
        traced = jm.from_mlir(text)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    x = normal(8, 8)
    assert same_bits(traced.lower().compile()(x), x)
    with pytest.raises(jm.VerifyError, match=r"line 3: .*write shard_shape = \[2, 4\]"):
        jm.from_mlir(text, strict=True)


# --- presharded ------------------------------------------------------------------------------------------------------


def presharded_join(dims: list[int], pieces: list[int], full: str, kind: str = "devices") -> str:
    return program(
        "2x4",
        f"%x: tensor<4x2xf32> {PRESHARDED}",
        f"(tensor<{full}xf32> {UNSHARDED})",
        '%0 = "ttir.neg"(%x) : (tensor<4x2xf32>) -> tensor<4x2xf32>',
        join("%1", "%0", dims, pieces, f"tensor<4x2xf32> -> tensor<{full}xf32>", kind),
        f"return %1 : tensor<{full}xf32>",
    )


@pytest.mark.usefixtures("unequal_copies")
def test_what_only_presharded_arguments_leave_open_is_assumed_and_listed() -> None:
    with pytest.warns(jm.AssumptionWarning, match="line 4: ttir.mesh_shard takes coordinate 0"):
        traced = jm.from_mlir(presharded_join([0, -1], [2, 1], "8x2"))
    with pytest.raises(jm.ReplicationError, match="line 4: "):
        jm.from_mlir(presharded_join([0, -1], [2, 1], "8x2"), strict=True)
    assert len(traced.assumptions) == 1
    assert traced.assumptions[0].startswith("line 4: ttir.mesh_shard takes coordinate 0 of mesh axis 'x'")
    shards = {c: normal(4, 2) for c in coordinates((2, 4))}
    out = traced.lower().compile()(on_devices(traced.mesh, shards))
    assert same_bits(out, -np.concatenate([shards[0, 0], shards[1, 0]]))


def test_nothing_is_assumed_where_every_axis_is_joined() -> None:
    traced = jm.from_mlir(presharded_join([0, 1], [2, 4], "8x8"))
    assert traced.assumptions == ()
    full = normal(8, 8)
    shards = {c: oracle_shard(full, [[0], [1]], (2, 4), c) for c in coordinates((2, 4))}
    assert same_bits(traced.lower().compile()(on_devices(traced.mesh, shards)), -full)


def test_a_forgotten_all_reduce_is_an_error_also_beside_presharded_arguments() -> None:
    text = program(
        "2x4",
        f"%x: tensor<8x8xf32>, %w: tensor<2x3xf32> {PRESHARDED}",
        "tensor<8x3xf32>",
        split("%0", "%x", [0, 1], [2, 4], "tensor<8x8xf32> -> tensor<4x2xf32>"),
        '%1 = "ttir.matmul"(%0, %w) : (tensor<4x2xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>',
        join("%2", "%1", [0, -1], [2, 1], "tensor<4x3xf32> -> tensor<8x3xf32>"),
        "return %2 : tensor<8x3xf32>",
    )
    with pytest.raises(jm.ReplicationError, match=r"line 5: .*mesh axis 'x'.*all_reduce"):
        jm.from_mlir(text)


@pytest.mark.parametrize("varying", [(), ("y",), ("x",), ("y", "x")])
def test_a_tensor_that_varies_over_fewer_axes_is_taken(varying: tuple[str, ...]) -> None:
    traced = jm.from_mlir(presharded_join([0, 1], [2, 4], "8x8"))
    base = {c: normal(4, 2) for c in coordinates((2, 4))}
    held = {(i, j): base[i if "y" in varying else 0, j if "x" in varying else 0] for i, j in base}
    stored = {c: held[c] for c in base}
    compiled, lowered = traced.lower().compile(), traced.lower()
    want = -np.block([[held[i, j] for j in range(4)] for i in range(2)])
    tensor = on_devices(traced.mesh, stored, varying)
    assert same_bits(compiled(tensor), want)
    assert same_bits(lowered.reference(tensor), want)


def test_a_tensor_from_a_replicating_mapper_is_taken() -> None:
    traced = jm.from_mlir(presharded_join([0, 1], [2, 4], "8x8"))
    device = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(2, 4))
    x = normal(4, 2)
    tensor = ttnn.distribute_tensor(x, ttnn.replicate_tensor_to_mesh_mapper(device))
    assert same_bits(traced.lower().compile()(tensor), -np.tile(x, (2, 4)))


def test_a_tensor_that_varies_over_an_axis_of_size_one_is_taken() -> None:
    text = program(
        "1x2", f"%x: tensor<2xf32> {PRESHARDED}", f"(tensor<2xf32> {PRESHARDED})", "return %x : tensor<2xf32>"
    )
    traced = jm.from_mlir(text)
    held = {(0, 0): np.float32([1, 2]), (0, 1): np.float32([3, 4])}
    made = jm.jit(lambda x: jm.full_to_shard(x, jax.sharding.PartitionSpec(("y", "x"))), mesh=traced.mesh)
    out = traced.lower().compile()(made(np.float32([1, 2, 3, 4])))
    assert {c: s.tolist() for c, s in shards_of(out).items()} == {c: s.tolist() for c, s in held.items()}


def test_other_tensors_are_refused() -> None:
    traced = jm.from_mlir(presharded_join([0, 1], [2, 4], "8x8"))
    compiled = traced.lower().compile()
    wrong = on_devices(traced.mesh, {c: normal(2, 2) for c in coordinates((2, 4))})
    with pytest.raises(jm.ArgumentTypeError, match=r"float32\[4, 2\].*float32\[2, 2\]"):
        compiled(wrong)
    with pytest.raises(jm.ArgumentTypeError, match="on the devices"):
        compiled(normal(4, 2))


@pytest.mark.parametrize(
    "status",
    [
        "ttcore.shard_status = #ttcore.shard_status<presharded>",
        "tt.shard_status = #tt.shard_status<presharded>",
        "ttcore.runtime_tensor_sharding = #ttcore<runtime_tensor_sharding shard_status = <presharded>, "
        "local_shape = tensor<2x3xf32>>",
        "ttcore.local_shape = #ttcore<local_shape local_shape = tensor<2x3xf32>>, "
        "ttcore.shard_status = #ttcore.shard_status<presharded>",
    ],
)
def test_spellings_of_the_status(status: str) -> None:
    text = program(
        "1x2", f"%x: tensor<2x3xf32> {{{status}}}", f"(tensor<2x3xf32> {{{status}}})", "return %x : tensor<2x3xf32>"
    )
    traced = jm.from_mlir(text)
    shards = {(0, i): normal(2, 3) for i in range(2)}
    out = shards_of(traced.lower().compile()(on_devices(traced.mesh, shards)))
    assert all(same_bits(out[c], shards[c]) for c in shards)


def test_results_that_are_not_where_they_are_declared() -> None:
    text = presharded_join([0, 1], [2, 4], "8x8")
    with pytest.raises(
        jm.VerifyError, match=r"line 5: .*result 0 .*declared presharded \(line 2\), but it is unsharded"
    ):
        jm.from_mlir(text.replace(UNSHARDED, PRESHARDED))
    stays = program(
        "2x4", f"%x: tensor<4xf32> {PRESHARDED}", f"(tensor<4xf32> {UNSHARDED})", "return %x : tensor<4xf32>"
    )
    with pytest.raises(jm.VerifyError, match=r"line 3: .*declared unsharded .*but it is presharded"):
        jm.from_mlir(stays)


@pytest.mark.parametrize("dims", list(itertools.product([-1, 0, 1], repeat=2)), ids=str)
def test_every_way_to_split_and_join(dims: tuple[int, int]) -> None:
    mesh = (2, 4)
    on = [[a for a, d in enumerate(dims) if d == dim] for dim in range(2)]
    pieces = [int(np.prod([mesh[a] for a in axes])) for axes in on]
    kind = "tensor<8x16xf32>"
    local = f"tensor<{8 // pieces[0]}x{16 // pieces[1]}xf32>"
    text = program(
        "2x4",
        f"%x: {kind}",
        f"({local}, {kind})",
        split("%0", "%x", dims, pieces, f"{kind} -> {local}"),
        join("%1", "%0", dims, pieces, f"{local} -> {kind}"),
        f"return %0, %1 : {local}, {kind}",
    )
    x = normal(8, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shards, full = run(text, x)
    assert same_bits(full, x)
    if any(d >= 0 for d in dims):
        assert all(same_bits(s, oracle_shard(x, on, mesh, c)) for c, s in shards_of(shards).items())


def test_repeated_ops_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "tensor<4x8xf32>"
    ops = {
        "relu": "",
        "softmax": "dimension = 1 : si32",
        "all_reduce": "cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>",
        "collective_permute": "source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>",
        "clamp_scalar": "min = -1.0 : f32, max = 1.0 : f32",
    }
    names = [*ops] * 4
    lines = [
        f'%{i} = "ttir.{name}"({f"%{i - 1}" if i else "%x"}) <{{{ops[name]}}}> : ({kind}) -> {kind}'
        for i, name in enumerate(names)
    ]
    end = f"return %{len(names) - 1} : {kind}"
    text = program("2x2", f"%x: {kind} {PRESHARDED}", f"({kind} {PRESHARDED})", *lines, end)
    bound_again = jm.from_mlir(text).as_text()
    run_class: Any = trace._Run
    perform: Any = run_class._perform
    monkeypatch.setattr(run_class, "_perform", lambda run, op, operands, _: perform(run, op, operands, object()))
    assert bound_again == jm.from_mlir(text).as_text()


def test_functions_whose_results_are_cached_are_inlined() -> None:
    """Upstream computes what depends on parameters alone in functions that `ttcore.load_cached` calls."""
    kind, tall = "tensor<4x8xf32>", "tensor<8x4xf32>"
    text = f"""
      func.func private @two(%w: {kind}, %b: {kind}) -> ({kind}, {tall}) {{
        %0 = "ttir.subtract"(%w, %b) : ({kind}, {kind}) -> {kind}
        %1 = "ttir.permute"(%b) <{{permutation = array<i64: 1, 0>}}> : ({kind}) -> {tall}
        return %0, %1 : {kind}, {tall}
      }}
      func.func private @three() -> {kind} attributes {{tt.function_type = "const_eval"}} {{
        %0 = "ttir.full"() <{{fill_value = 3.0 : f32, shape = array<i32: 4, 8>}}> : () -> {kind}
        return %0 : {kind}
      }}
      func.func @main(%x: {kind}, %w: {kind}, %b: {kind}) -> ({kind}, {tall}) {{
        %0:2 = ttcore.load_cached(@two, [%w, %b]) : ({kind}, {kind}) -> ({kind}, {tall})
        %1 = ttcore.load_cached(@three, []) : () -> {kind}
        %2 = "ttir.multiply"(%x, %0#0) : ({kind}, {kind}) -> {kind}
        %3 = "ttir.add"(%2, %1) : ({kind}, {kind}) -> {kind}
        return %3, %0#1 : {kind}, {tall}
      }}"""
    x, w, b = (np.arange(32, dtype=np.float32).reshape(4, 8) + i * i for i in range(3))
    lowered = jm.from_mlir(text, mesh=jm.make_mesh((1, 1))).lower()
    for found, wanted in zip(lowered.compile()(x, w, b), (x * (w - b) + 3, b.T), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert "load_cached" not in lowered.as_text()


def test_numbers_as_attributes_of_ttnn() -> None:
    """Upstream writes a power with a known exponent as `ttnn.pow_scalar`."""
    kind = "tensor<4x8xf32>"
    text = f"""
      func.func @main(%x: {kind} {PRESHARDED}, %high: {kind} {PRESHARDED}) -> ({kind} {PRESHARDED}) {{
        %0 = "ttnn.pow_scalar"(%x) <{{rhs = 2.5 : f32}}> : ({kind}) -> {kind}
        %1 = "ttnn.clamp_tensor"(%0, %x, %high) : ({kind}, {kind}, {kind}) -> {kind}
        return %1 : {kind}
      }}"""
    x, high = np.abs(normal(4, 8)), np.full((4, 8), 1.5, np.float32)
    there = jax.sharding.NamedSharding(mesh := jm.make_mesh((1, 1)), jax.sharding.PartitionSpec())
    tensors = [jm.MeshTensor(jax.device_put(a, there), mesh, ()) for a in (x, high)]
    (found,) = jm.from_mlir(text, mesh=mesh).lower().reference(*tensors).values()
    np.testing.assert_allclose(found, np.minimum(np.maximum(x**2.5, x), high), rtol=1e-6)


def test_traced_programs_compose() -> None:
    compiled = jm.from_mlir(FILES / "several.mlir", func="second").lower().compile()
    assert len(row(compiled(normal(4)))) == 2
    assert "main" in repr(jm.from_mlir(FILES / "presharded.mlir"))


def test_a_missing_file(tmp_path: Path) -> None:
    for source in (tmp_path / "none.mlir", str(tmp_path / "none.mlir"), tmp_path):
        with pytest.raises(jm.MissingFileError, match="cannot read") as caught:
            jm.from_mlir(source)
        assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(jm.ArgumentTypeError, match="text or a path"):
        jm.from_mlir(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled: bool) -> None:
    try:
        (gc.enable if enabled else gc.disable)()
        jm.from_mlir("func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }")
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


NAMED = """
#loc1 = loc("params['w']")
module {
  func.func public @"a b"(%x: tensor<8x4xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>, jax.note = ")"},
      %1: tensor<4x8xf32> loc(#loc1), %bias: tensor<8xf32> loc("b"("f.py":3:4)), %last: tensor<8xf32> loc("f.py":3:4))
      -> (tensor<8x8xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.dot_general %x, %1, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32> loc("dot")
    return %0 : tensor<8x8xf32>
  }
}
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (NAMED, ["%x", "params['w']", "b", "%last"]),
        # Names that two arguments share are none.
        (NAMED.replace('"b"(', "\"params['w']\"("), ["%x", "%1", "%bias", "%last"]),
        (NAMED.replace("%last:", "%last :"), ["%x", "params['w']", "b", "%last"]),
        ("func.func @f(%arg0: tensor<2xf32>) -> tensor<2xf32> { return %arg0 : tensor<2xf32> }", ["%arg0"]),
    ],
)
def test_arguments_have_the_names_of_the_file(text: str, names: list[str]) -> None:
    lowered = jm.from_mlir(text, jm.make_mesh((1, 1))).lower()
    assert [row.operands[0] for row in lowered.explain() if row.op == "argument"] == names
    held = {t.name for t in lowered.estimate().memory.tensors if t.role == "argument"}
    assert held <= {*names}
    if names[1:2] == ["params['w']"]:
        assert lowered.estimate(resident="params").memory.arguments == 32 * 32 * 4


def test_names_of_jax_are_found_in_what_it_prints() -> None:
    def function(params: Any, x: Any) -> Any:
        return x @ params["w"] + params["b"]

    types = {name: jax.ShapeDtypeStruct(s, "float32") for name, s in (("w", (8, 8)), ("b", (8,)))}
    text = jax.jit(function).lower(types, types["w"]).as_text(debug_info=True)
    lowered = jm.from_mlir(text, jm.make_mesh((1, 1))).lower()
    names = [row.operands[0] for row in lowered.explain() if row.op == "argument"]
    assert names == ["params['b']", "params['w']", "x"]
