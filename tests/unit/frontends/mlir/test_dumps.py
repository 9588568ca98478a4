"""Texts as tt-xla dumps them for models on several chips, compared with NumPy on unsharded data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import jaxmesh as jm
from tests.generators.mlir_texts import normal, on_devices, shards_of

DEVICE = '%d = "ttnn.get_device"() <{mesh_shape = #ttnn<mesh_shape 1x2>}> : () -> !ttnn.device'
STATUS = "ttcore.shard_status = #ttcore.shard_status<presharded>"


def layout(name: str, rows: str = "f32, #ttnn.buffer_type<dram>") -> str:
    return f"#{name} = #ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <1x1>, memref<8x8x{rows}>, <interleaved>>\n"


def boundary(local: str) -> str:
    return f"{STATUS}, ttcore.local_shape = #ttcore<local_shape local_shape = tensor<{local}>>"


def read(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jm.DeviationWarning)
        warnings.simplefilter("ignore", jm.BlockFloatWarning)
        return jm.from_mlir(text)


def identity(operand: str, full: str, local: str, direction: str = "full_to_shard") -> str:
    types = (full, local) if direction == "full_to_shard" else (local, full)
    return (
        f'"ttnn.mesh_shard"({operand}, %d) <{{shard_dims = array<i64: -1, 1>, shard_direction = '
        f"#ttcore.shard_direction<{direction}>, shard_shape = array<i64: 1, 2>, shard_type = "
        f"#ttcore.shard_type<identity>}}> : ({types[0]}, !ttnn.device) -> {types[1]}"
    )


@pytest.mark.parametrize("says_local", [True, False])
def test_layouts_of_presharded_values_change_before_their_mesh_shard(says_local: bool) -> None:
    full, local = "tensor<4x8xf32, #l>", "tensor<4x4xf32, #l>"
    ends = boundary("4x4xf32") if says_local else STATUS
    traced = read(f"""
{layout("l")}
module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x2>]>}} {{
func.func private @const(%a: {full}) -> {local} attributes {{tt.function_type = "const_eval"}} {{
{DEVICE}
%0 = "ttnn.to_device"(%a, %d) : ({full}, !ttnn.device) -> {full}
%1 = "ttnn.to_layout"(%0) <{{layout = #ttnn.layout<tile>}}> : ({full}) -> {full}
%2 = {identity("%1", full, local)}
return %2 : {local}
}}
func.func @main(%a: {full} {{{ends}}}) -> ({full} {{{boundary("4x4xf32")}}}) {{
{DEVICE}
%0 = ttcore.load_cached(@const, [%a]) : ({full}) -> {local}
%1 = "ttnn.neg"(%0) : ({local}) -> {local}
%2 = {identity("%1", full, local, "shard_to_full")}
%3 = "ttnn.from_device"(%2) : ({full}) -> {full}
return %3 : {full}
}}
}}""")
    assert traced.in_avals[0].shape == traced.out_avals[0].shape == (4, 4)
    shards = {(0, i): normal(4, 4) for i in range(2)}
    out = traced.lower().compile()(on_devices(traced.mesh, shards))
    for place, piece in shards_of(out).items():
        np.testing.assert_array_equal(piece, -shards[place[0], place[1]])


def test_a_presharded_argument_keeps_the_element_type_that_ttnn_gives_it() -> None:
    kind = "tensor<4xsi32, #l>"
    traced = read(f"{layout('l', 'si32, #ttnn.buffer_type<dram>')}module attributes {{ttcore.meshes = #ttcore.meshes<"
                  f'[<"mesh" = 1x2>]>}} {{ func.func @main(%a: {kind} {{{boundary("4xi64")}}}) -> {kind} {{\n'
                  f"return %a : {kind} }} }}")  # fmt: skip
    assert traced.in_avals[0].dtype == np.int32


def test_with_a_layout_the_dims_of_tiles_count_elements() -> None:
    kind = "tensor<64x96x!ttcore.tile<32x32, bfp_bf8>, #l>"
    rows = "!ttcore.tile<32x32, bfp_bf8>, #ttnn.buffer_type<dram>"
    traced = read(f"{layout('l', rows)}func.func @main(%a: {kind}) -> {kind} {{ return %a : {kind} }}")
    assert (traced.in_avals[0].shape, traced.in_avals[0].dtype) == ((64, 96), jnp.bfloat16)


TRACE = """
func.func private @work(%cache: tensor<1x2x4x8xf32>, %new: tensor<1x2x1x8xf32>, %at: tensor<1xi32>)
    -> tensor<1x2x4x8xf32> {
"ttnn.update_cache"(%cache, %new, %at) <{batch_offset = 0 : i32}>
    : (tensor<1x2x4x8xf32>, tensor<1x2x1x8xf32>, tensor<1xi32>) -> ()
%0 = "ttnn.neg"(%cache) : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
return %0 : tensor<1x2x4x8xf32>
}
func.func private @capture(%cache: tensor<1x2x4x8xf32>, %new: tensor<1x2x1x8xf32>, %at: tensor<1xi32>)
    -> (tensor<ui32, #ttnn.trace_id>, tensor<1x2x4x8xf32>) {
%d = "ttnn.get_device"() : () -> !ttnn.device
%t = "ttnn.begin_trace_capture"(%d) <{cq_id = 0 : ui32}> : (!ttnn.device) -> tensor<ui32, #ttnn.trace_id>
%0 = call @work(%cache, %new, %at)
    : (tensor<1x2x4x8xf32>, tensor<1x2x1x8xf32>, tensor<1xi32>) -> tensor<1x2x4x8xf32>
"ttnn.end_trace_capture"(%d, %t) <{cq_id = 0 : ui32}> : (!ttnn.device, tensor<ui32, #ttnn.trace_id>) -> ()
return %t, %0 : tensor<ui32, #ttnn.trace_id>, tensor<1x2x4x8xf32>
}
func.func private @execute(%t: tensor<ui32, #ttnn.trace_id>) { return }
func.func @main(%cache: tensor<1x2x4x8xf32>, %new: tensor<1x2x1x8xf32>, %at: tensor<1xi32>)
    -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) {
%d = "ttnn.get_device"() : () -> !ttnn.device
%0 = "ttnn.capture_or_execute_trace"(%d, CACHES, %at)
    <{capture_callee = @capture, execute_callee = @execute}>
    : (!ttnn.device, tensor<1x2x4x8xf32>, tensor<1x2x1x8xf32>, tensor<1xi32>) -> tensor<1x2x4x8xf32>
return %0, %cache : tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>
}
"""


def test_a_trace_computes_what_is_captured_and_writes_to_its_operands() -> None:
    traced = read(TRACE.replace("CACHES", "%cache, %new"))
    cache, new = normal(1, 2, 4, 8), normal(1, 2, 1, 8)
    negated, after = traced.lower().compile()(cache, new, np.array([2], np.int32))
    want = cache.copy()
    want[:, :, 2:3] = new
    np.testing.assert_array_equal(after, want)
    np.testing.assert_array_equal(negated, -want)


def test_a_tensor_that_a_function_writes_to_is_passed_once() -> None:
    text = TRACE.replace("1x2x1x8", "1x2x4x8").replace("CACHES", "%cache, %cache")
    with pytest.raises(jm.UnsupportedError, match="passes a tensor twice to a function that writes to it"):
        read(text)


def test_a_rotation_at_one_place_of_the_sequence() -> None:
    traced = read("""
func.func @main(%x: tensor<1x3x32x8xf32>, %cos: tensor<1x1x5x8xf32>, %sin: tensor<1x1x5x8xf32>)
    -> tensor<1x3x32x8xf32> {
%0 = "ttnn.rotary_embedding"(%x, %cos, %sin) <{token_index = 3 : ui32}>
    : (tensor<1x3x32x8xf32>, tensor<1x1x5x8xf32>, tensor<1x1x5x8xf32>) -> tensor<1x3x32x8xf32>
return %0 : tensor<1x3x32x8xf32> }""")
    x, cos, sin = normal(1, 3, 32, 8), normal(1, 1, 5, 8), normal(1, 1, 5, 8)
    want = x * cos[:, :, 3:4] + np.concatenate([-x[..., 4:], x[..., :4]], -1) * sin[:, :, 3:4]
    np.testing.assert_allclose(traced.lower().compile()(x, cos, sin), want, rtol=1e-5, atol=1e-5)


HOST = """
func.func private @constants() -> tensor<32x32xf32>
func.func private @hoisted(tensor<32x32xf32>) -> tensor<32x32xf32>
func.func @main(%x: tensor<32x32xf32>) -> tensor<32x32xf32> {
%0 = call @hoisted(%x) {ttir.cpu_hoist_call} : (tensor<32x32xf32>) -> tensor<32x32xf32>
%1 = "ttnn.neg"(%0) : (tensor<32x32xf32>) -> tensor<32x32xf32>
%2 = call @constants() {ttir.cpu_hoist_call} : () -> tensor<32x32xf32>
%3 = "ttnn.add"(%1, %2) : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
return %3 : tensor<32x32xf32> }"""


def test_a_compiled_function_of_the_host_costs_only_itself() -> None:
    traced = read(HOST)
    assert {cost.line for cost in traced.lower().estimate("n150").lines} >= {"(host_call)", "(neg)", "(add)"}
    with pytest.raises(jm.MissingRuleError, match=r"@hoisted, a function of the host in LLVM's code .*cannot be exec"):
        traced.lower().compile()(normal(32, 32))
    refusals: dict[Callable[[], Any], str] = {
        traced.lower().as_text: r"\. It is compiled for the host; ",
        partial(traced.lower().as_text, "python", strict=False): "does not have a call in Python",
        partial(traced.lower().as_text, "cpp", strict=False): r"does not have a call in C\+\+",
        traced.lower().judge: "does not have a call in Python",
    }
    for call, message in refusals.items():
        # No text of it can be run, so none is offered.
        with pytest.raises(jm.JaxmeshError, match=rf"{message}.*take the text from before that pass, ttnn_\*\.mlir\.$"):
            call()


WRITES = '"ttnn.paged_fill_cache"(%y, %y, %i) : (tensor<2x2x2x2xi16>, tensor<2x2x2x2xi16>, tensor<2x2xi32>) -> ()'


@pytest.mark.parametrize(
    ("inside", "offer"), [("", "; or ask for the text with strict=False, which the emulation runs."), (WRITES, ".")]
)
def test_a_refusal_offers_a_text_only_if_the_emulation_runs_it(inside: str, offer: str) -> None:
    traced = read(f"""
func.func @main(%y: tensor<2x2x2x2xi16>, %i: tensor<2x2xi32>) -> tensor<2x2x2x2xi16> {{
{inside}
%0 = "ttnn.neg"(%y) : (tensor<2x2x2x2xi16>) -> tensor<2x2x2x2xi16>
return %0 : tensor<2x2x2x2xi16> }}""")
    with pytest.raises(jm.UnsupportedError, match=f"uint8 or int8{offer}$"):
        traced.lower().as_text()
    text = traced.lower().as_text(strict=False)
    ran = read(text).lower()
    values = np.zeros((2, 2, 2, 2), np.int16), np.zeros((2, 2), np.int32)
    if inside:
        with pytest.raises(jm.MissingRuleError, match="paged_fill_cache cannot be executed"):
            ran.compile()(*values)
    else:
        np.testing.assert_array_equal(ran.compile()(*values), values[0])


@pytest.mark.parametrize("groups", [1, 2])
def test_a_prepared_weight_of_a_convolution(groups: int) -> None:
    ins, outs, size = 4, 6, 5
    sizes = (
        f"batch_size = 1 : i32, dilation = array<i32: 1, 1>, groups = {groups} : i32, in_channels = {ins} : i32, "
        f"input_height = {size} : i32, input_width = {size} : i32, kernel_size = array<i32: 3, 2>, out_channels = "
        f"{outs} : i32, padding = array<i32: 0, 0, 0, 0>, stride = array<i32: 1, 1>"
    )
    kind, rows = f"tensor<{outs}x{ins // groups}x3x2xf32>", f"tensor<1x1x{ins // groups * 6}x{outs}xf32>"
    image, result = f"tensor<1x1x{size * size}x{ins}xf32>", f"tensor<1x1x12x{outs}xf32>"
    traced = read(f"""
func.func @main(%x: {image}, %w: {kind}) -> {result} {{
%d = "ttnn.get_device"() : () -> !ttnn.device
%0 = "ttnn.prepare_conv2d_weights"(%w, %d) <{{{sizes}, has_bias = false, input_dtype =
    #ttcore.supportedDataTypes<f32>, input_memory_config = #ttnn.memory_config<#ttnn.buffer_type<dram>, <interleaved>>,
    input_tensor_layout = #ttnn.layout<tile>, weights_format = "OIHW"}}> : ({kind}, !ttnn.device) -> {rows}
%1 = "ttnn.conv2d"(%x, %0, %d) <{{{sizes}}}> : ({image}, {rows}, !ttnn.device) -> {result}
return %1 : {result} }}""")
    x, w = normal(1, 1, size * size, ins), normal(outs, ins // groups, 3, 2)
    pixels, want = x.reshape(size, size, ins), np.zeros((3, 4, outs), np.float32)
    for row, column, out in np.ndindex(3, 4, outs):
        first = out // (outs // groups) * (ins // groups)
        window = pixels[row : row + 3, column : column + 2, first : first + ins // groups]
        want[row, column, out] = np.sum(window.transpose(2, 0, 1) * w[out])
    got = traced.lower().compile()(x, w)
    np.testing.assert_allclose(got, want.reshape(1, 1, 12, outs), rtol=1e-4, atol=1e-4)


def test_the_versioned_form_of_stablehlo() -> None:
    def program(x: Any) -> Any:
        return jnp.tanh(x) @ x.T

    lowered: Any = jax.jit(program).lower(np.zeros((2, 4), np.float32))
    data: Any = stablehlo
    artifact = data.serialize_portable_artifact_str(str(lowered.compiler_ir()), data.get_minimum_version())
    context: Any = mlir.make_ir_context()
    text = str(ir.Module.parse(artifact, context))
    assert "vhlo.func_v1" in text
    x = normal(2, 4)
    np.testing.assert_allclose(read(text).lower().compile()(x), np.tanh(x) @ x.T, rtol=1e-4, atol=1e-4)


def test_calls_of_torch_xla() -> None:
    shard, whole = "tensor<2x4xf32>", "tensor<2x8xf32>"
    traced = read(f"""
module {{
sdy.mesh @mesh = <["a"=1, "b"=2]>
func.func @main(%x: {whole}, %w: tensor<8xf32>) -> {whole} {{
%0 = mhlo.copy %x : {whole}
%1 = stablehlo.custom_call @tt.weight_dtype_override(%w) {{mhlo.frontend_attributes =
    {{ttcore.weight_dtype = "bfp_bf4"}}}} : (tensor<8xf32>) -> tensor<8xf32>
%2 = sdy.manual_computation(%0, %1) in_shardings=[<@mesh, [{{}}, {{"b"}}]>, <@mesh, [{{"b"}}]>]
    out_shardings=[<@mesh, [{{}}, {{"b"}}]>] manual_axes={{"a", "b"}} (%y: {shard}, %v: tensor<4xf32>) {{
  %3 = stablehlo.custom_call @tenstorrent.distributed_rms_norm(%y, %v) {{tt.composite_attributes =
      {{cluster_axis = 1 : i32, epsilon = 0.1 : f32}}}} : ({shard}, tensor<4xf32>) -> {shard}
  sdy.return %3 : {shard}
}} : ({whole}, tensor<8xf32>) -> {whole}
return %2 : {whole} }} }}""")
    x, w = normal(2, 8), normal(8)
    want = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 0.1) * w
    np.testing.assert_allclose(traced.lower().compile()(x, w), want, rtol=1e-4, atol=1e-4)


def test_modules_in_a_log() -> None:
    body = "func.func @{}(%x: tensor<2xf32>) -> tensor<2xf32> {{ return %x : tensor<2xf32> }}\n"
    log = "2026-04-06 14:05:36.664 [1]      module_builder.cc:1220     1| MLIR Module {}:\n"
    end = "------------------ END OF MLIR MODULE ------------------\n"
    text = "".join(log.format(name) + body.format(name) + end for name in ("shlo", "ttir"))
    for name in ("shlo", "ttir"):
        assert jm.from_mlir(text, func=name).in_avals[0].shape == (2,)
    with pytest.raises(jm.ParseError, match="line 5"):
        jm.from_mlir(text.replace("@ttir(", "ttir("))


@pytest.mark.parametrize("name", ["ttir", "ttnn"])
def test_groups_of_channels_are_normalized(name: str) -> None:
    shape, vector, dim = ("2x4x3x5", "4", "channel_dim = 1 : i64, ") if name == "ttir" else ("2x1x15x4", "1x1x1x4", "")
    traced = read(f"""
func.func @main(%x: tensor<{shape}xf32>, %w: tensor<{vector}xf32>, %b: tensor<{vector}xf32>) -> tensor<{shape}xf32> {{
%0 = "{name}.group_norm"(%x, %w, %b) <{{{dim}epsilon = 0.1 : f32, num_groups = 2 : i64, operandSegmentSizes =
    array<i32: 1, 0, 1, 1>}}> : (tensor<{shape}xf32>, tensor<{vector}xf32>, tensor<{vector}xf32>) -> tensor<{shape}xf32>
return %0 : tensor<{shape}xf32> }}""")
    x, w, b = normal(2, 4, 15), normal(4), normal(4)
    grouped = x.reshape(2, 2, 30)
    mean, variance = grouped.mean(-1, keepdims=True), grouped.var(-1, keepdims=True)
    want = ((grouped - mean) / np.sqrt(variance + 0.1)).reshape(2, 4, 15) * w[:, None] + b[:, None]
    given, want = (a if name == "ttir" else a.transpose(0, 2, 1) for a in (x, want))
    full = tuple(map(int, shape.split("x")))
    sizes = tuple(map(int, vector.split("x")))
    printed = read(traced.lower().as_text("ttnn", strict=False))
    for program in (traced, printed):
        got = program.lower().compile()(given.reshape(full), w.reshape(sizes), b.reshape(sizes))
        np.testing.assert_allclose(got, want.reshape(full), rtol=1e-4, atol=1e-4)


def test_the_weights_of_groups_of_channels_are_rows_of_32() -> None:
    traced = read("""
func.func @main(%x: tensor<1x64x3x5xbf16>, %w: tensor<64xbf16>, %b: tensor<64xbf16>) -> tensor<1x64x3x5xbf16> {
%0 = "ttir.group_norm"(%x, %w, %b) <{channel_dim = 1 : i64, num_groups = 2 : i64, operandSegmentSizes = array<i32: 1, 0,
    1, 1>}> : (tensor<1x64x3x5xbf16>, tensor<64xbf16>, tensor<64xbf16>) -> tensor<1x64x3x5xbf16>
return %0 : tensor<1x64x3x5xbf16> }""")
    text = traced.lower().as_text()
    assert '"ttnn.group_norm"' in text
    assert "(tensor<1x1x15x64xbf16>, tensor<1x1x2x32xbf16>, tensor<1x1x2x32xbf16>)" in text
    # The image alone is in tiles.
    assert text.count("#ttnn.layout<tile>") == 1
    again = read(text)
    x, w, b = (normal(*shape).astype(jnp.bfloat16) for shape in ((1, 64, 3, 5), (64,), (64,)))
    for program in (traced, again):
        got = np.asarray(program.lower().compile()(x, w, b), np.float32).reshape(2, 32, 15)
        plain = (got - np.float32(b).reshape(2, 32, 1)) / np.float32(w).reshape(2, 32, 1)
        grouped = np.float32(x).reshape(2, 32, 15)
        want = (grouped - grouped.mean((1, 2), keepdims=True)) / grouped.std((1, 2), keepdims=True)
        sure = np.abs(np.float32(w)).reshape(2, 32) > 0.2
        np.testing.assert_allclose(plain[sure], want[sure], rtol=0.05, atol=0.1)


def test_main_is_chosen_before_the_functions_whose_results_are_kept() -> None:
    traced = read("""
func.func @main_const_eval_0(%w: tensor<2xf32>) -> tensor<2xf32> attributes {const_eval} {
%0 = "ttnn.neg"(%w) : (tensor<2xf32>) -> tensor<2xf32>
return %0 : tensor<2xf32> }
func.func @forward_or_so(%x: tensor<2xf32>, %w: tensor<2xf32>) -> tensor<2xf32> {
%0 = ttcore.load_cached(@main_const_eval_0, [%w]) : (tensor<2xf32>) -> tensor<2xf32>
%1 = "ttnn.add"(%x, %0) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
return %1 : tensor<2xf32> }""")
    np.testing.assert_array_equal(
        traced.lower().compile()(np.array([3, 4], np.float32), np.array([1, 2], np.float32)), [2, 2]
    )


def test_a_broadcast_to_no_elements() -> None:
    traced = read("""
func.func @main(%x: tensor<1x3xf32>) -> tensor<0x3xf32> {
%0 = "ttir.broadcast"(%x) <{broadcast_dimensions = array<i64: 0, 1>}> : (tensor<1x3xf32>) -> tensor<0x3xf32>
return %0 : tensor<0x3xf32> }""")
    assert traced.lower().compile()(normal(1, 3)).shape == (0, 3)


def test_only_functions_that_may_be_meant_are_offered() -> None:
    line = "func.func {}@{}(%x: tensor<2xf32>) -> tensor<2xf32> {{ return %x : tensor<2xf32> }}\n"
    text = "".join(line.format(*f) for f in (("private ", "helper"), ("", "first"), ("", "second")))
    with pytest.raises(jm.ParseError, match=r"give func= one of @first \(line 2\), @second \(line 3\), or name@line"):
        read(text)
