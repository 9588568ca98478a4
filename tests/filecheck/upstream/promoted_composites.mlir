// RUN: jaxmesh opt --ttir-to-emitpy-pipeline=composite-resolution=force-promote %s | filecheck %s

// A composite is the operation of TTNN of its name where that is asked for; operands that are absent keep their places.
func.func @masked(%q: tensor<1x16x32x128xbf16>, %k: tensor<1x1x32x128xbf16>, %m: tensor<1x1x32x32xbf16>) -> tensor<1x16x32x64xbf16> {
  %0 = "ttcore.composite"(%q, %k, %m) <{composite_name = "flash_mla_prefill", decomposition = @part, composite_attributes = {head_dim_v = 64 : ui32, is_causal = false, has_value = false, has_attention_mask = true}}> : (tensor<1x16x32x128xbf16>, tensor<1x1x32x128xbf16>, tensor<1x1x32x32xbf16>) -> tensor<1x16x32x64xbf16>
  return %0 : tensor<1x16x32x64xbf16>
}
// CHECK-LABEL: def masked(arg)
// CHECK: ttnn.transformer.flash_mla_prefill(arg_0, arg_1, 64, attn_mask=arg_2, is_causal=False, scale=None, memory_config=
func.func private @part(%q: tensor<1x16x32x128xbf16>, %k: tensor<1x1x32x128xbf16>, %m: tensor<1x1x32x32xbf16>) -> tensor<1x16x32x64xbf16> {
  %0 = "ttir.slice_static"(%q) <{begins = [0 : i32, 0 : i32, 0 : i32, 0 : i32], ends = [1 : i32, 16 : i32, 32 : i32, 64 : i32], step = [1 : i32, 1 : i32, 1 : i32, 1 : i32]}> : (tensor<1x16x32x128xbf16>) -> tensor<1x16x32x64xbf16>
  return %0 : tensor<1x16x32x64xbf16>
}

func.func @scores(%q: tensor<1x8x32x128xbf16>, %k: tensor<1x1x64x128xbf16>, %w: tensor<1x8x32x1xbf16>) -> tensor<1x1x32x64xbf16> {
  %0 = "ttcore.composite"(%q, %k, %w) <{composite_name = "indexer_score_dsa", decomposition = @other, composite_attributes = {chunk_start_idx = 32 : ui32, cluster_axis = 1 : ui32}}> : (tensor<1x8x32x128xbf16>, tensor<1x1x64x128xbf16>, tensor<1x8x32x1xbf16>) -> tensor<1x1x32x64xbf16>
  return %0 : tensor<1x1x32x64xbf16>
}
// CHECK-LABEL: def scores(arg)
// CHECK: ttnn.experimental.indexer_score_dsa(arg_{{[0-9]+}}, arg_{{[0-9]+}}, arg_{{[0-9]+}}, chunk_start_idx=32, seq_shard_axes=[1])
func.func private @other(%q: tensor<1x8x32x128xbf16>, %k: tensor<1x1x64x128xbf16>, %w: tensor<1x8x32x1xbf16>) -> tensor<1x1x32x64xbf16> {
  %0 = "ttir.slice_static"(%k) <{begins = [0 : i32, 0 : i32, 0 : i32, 0 : i32], ends = [1 : i32, 1 : i32, 32 : i32, 64 : i32], step = [1 : i32, 1 : i32, 1 : i32, 1 : i32]}> : (tensor<1x1x64x128xbf16>) -> tensor<1x1x32x64xbf16>
  return %0 : tensor<1x1x32x64xbf16>
}
