// RUN: jaxmesh opt %s --stablehlo-to-ttir | filecheck %s

// Calls that stand for operations of TTIR without a meaning here: attributes are strings, and flags say which operands
// are there.
func.func public @decode(%q: tensor<1x1x12x64xbf16>, %c: tensor<128x12x32x64xbf16>, %p: tensor<1x4xi32>, %at: tensor<1xi32>) -> tensor<1x1x12x64xbf16> {
  %0 = stablehlo.custom_call @tt.paged_scaled_dot_product_attention_decode(%q, %c, %c, %p, %at) {mhlo.frontend_attributes = {has_cur_pos_tensor = "True", has_attention_mask = "False", has_attention_sink = "False", is_causal = "True", sliding_window_size = "512"}} : (tensor<1x1x12x64xbf16>, tensor<128x12x32x64xbf16>, tensor<128x12x32x64xbf16>, tensor<1x4xi32>, tensor<1xi32>) -> tensor<1x1x12x64xbf16>
  return %0 : tensor<1x1x12x64xbf16>
}
// CHECK-LABEL: func.func public @decode(
// CHECK: "ttir.paged_scaled_dot_product_attention_decode"(%arg0, %arg1, %arg1, %arg2, %{{.*}}, %arg3) <{is_causal = true, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 1, 0>, sliding_window_size = 512 : ui32}>

func.func @update(%c: tensor<128x1x32x128xbf16>, %x: tensor<1x8x32x128xbf16>, %at: tensor<8xi32>, %p: tensor<8x16xi32>) -> tensor<128x1x32x128xbf16> {
  %0 = stablehlo.custom_call @tt.paged_update_cache(%c, %x, %at, %p) : (tensor<128x1x32x128xbf16>, tensor<1x8x32x128xbf16>, tensor<8xi32>, tensor<8x16xi32>) -> tensor<128x1x32x128xbf16>
  return %0 : tensor<128x1x32x128xbf16>
}
// CHECK-LABEL: func.func @update(
// CHECK: "ttir.paged_update_cache"(%arg0, %arg1, %arg2, %arg3) : {{.*}} -> ()
// CHECK: return %arg0

func.func @sample(%v: tensor<1x64xbf16>, %i: tensor<1x64xi32>, %k: tensor<1xui32>, %p: tensor<1xbf16>) -> tensor<1xi32> {
  %0 = stablehlo.custom_call @tt.sampling(%v, %i, %k, %p, %p) {mhlo.frontend_attributes = {seed = "42"}} : (tensor<1x64xbf16>, tensor<1x64xi32>, tensor<1xui32>, tensor<1xbf16>, tensor<1xbf16>) -> tensor<1xi32>
  return %0 : tensor<1xi32>
}
// CHECK-LABEL: func.func @sample(
// CHECK: "ttir.sampling"(%arg0, %arg1, %arg2, %arg3, %arg3) <{seed = 42 : ui32}>
