// RUN: jaxmesh opt %s --mesh 1x1 --ttir-to-ttnn --layouts | filecheck %s

func.func @scans(%x: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %bits: tensor<4x8xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %0 = "ttir.cumprod"(%x) <{dim = 1 : i64}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "ttir.bitcast_convert"(%bits) : (tensor<4x8xui32>) -> tensor<4x8xf32>
  %2 = "ttir.dropout"(%x) <{prob = 0.5 : f32, scale = 2.0 : f32, seed = 3 : ui32}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0, %1, %2 : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}
// CHECK-LABEL: func.func @scans(
// CHECK: "ttnn.cumprod"(%arg0) <{dim = 1 : si32}>
// CHECK: "ttnn.bitcast_convert"(%arg1) : (tensor<4x8xui32, {{.*}}>) -> tensor<4x8xf32
// CHECK: "ttnn.dropout"(%arg0) <{prob = 5.000000e-01 : f32, scale = 2.000000e+00 : f32, seed = 3 : ui32, use_per_device_seed = true}>

func.func @sampled(%v: tensor<32x64xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %i: tensor<32x64xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %k: tensor<32xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %p: tensor<32xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<32xi32> {
  %0 = "ttir.sampling"(%v, %i, %k, %p, %p) : (tensor<32x64xbf16>, tensor<32x64xi32>, tensor<32xui32>, tensor<32xbf16>, tensor<32xbf16>) -> tensor<32xi32>
  return %0 : tensor<32xi32>
}
// CHECK-LABEL: func.func @sampled(
// CHECK-COUNT-2: "ttnn.reshape"{{.*}} <{shape = [1 : i32, 1 : i32, 32 : i32, 64 : i32]}>
// CHECK: "ttnn.sampling"{{.*}} -> tensor<1x1x1x32xsi32
// CHECK: "ttnn.reshape"{{.*}} <{shape = [32 : i32]}>

func.func @experts(%x: tensor<32x64xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %w: tensor<64x16xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %b: tensor<32x16xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %t: tensor<1x32x1x4xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<32x4xui16>, tensor<32x4xbf16>, tensor<32x64xbf16>) {
  %0, %1 = "ttir.topk_router_gpt"(%x, %w, %b) <{k = 4 : i32, num_experts = 16 : i32}> : (tensor<32x64xbf16>, tensor<64x16xbf16>, tensor<32x16xbf16>) -> (tensor<32x4xui16>, tensor<32x4xbf16>)
  %2 = "ttir.selective_reduce_combine"(%x, %x, %t, %t) <{batch_size = 32 : ui32, experts = 16 : ui32, hidden_size = 64 : ui32, select_experts_k = 4 : ui32, seq_size = 1 : ui32}> : (tensor<32x64xbf16>, tensor<32x64xbf16>, tensor<1x32x1x4xi32>, tensor<1x32x1x4xi32>) -> tensor<32x64xbf16>
  return %0, %1, %2 : tensor<32x4xui16>, tensor<32x4xbf16>, tensor<32x64xbf16>
}
// CHECK-LABEL: func.func @experts(
// CHECK: "ttnn.topk_router_gpt"{{.*}} <{k = 8 : i32, num_experts = 16 : i32}> {{.*}} -> (tensor<32x8xui16
// CHECK: "ttnn.slice_static"{{.*}} -> tensor<32x4xui16
// CHECK: "ttnn.slice_static"{{.*}} -> tensor<32x4xbf16
// CHECK: "ttnn.selective_reduce_combine"

func.func @caches(%c: tensor<8x4x32x64xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %x: tensor<1x4x32x64xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %p: tensor<1x8xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %at: tensor<1xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<8x4x32x64xbf16> {
  "ttir.paged_fill_cache"(%c, %x, %p) : (tensor<8x4x32x64xbf16>, tensor<1x4x32x64xbf16>, tensor<1x8xi32>) -> ()
  "ttir.paged_update_cache"(%c, %x, %at, %p) <{share_cache = false}> : (tensor<8x4x32x64xbf16>, tensor<1x4x32x64xbf16>, tensor<1xi32>, tensor<1x8xi32>) -> ()
  return %c : tensor<8x4x32x64xbf16>
}
// CHECK-LABEL: func.func @caches(
// CHECK: "ttnn.paged_fill_cache"(%arg0, %arg1, %{{.*}}) : {{.*}} -> ()
// CHECK: "ttnn.paged_update_cache"(%arg0, {{.*}} <{share_cache = false}> : {{.*}} -> ()
// CHECK: return %arg0

func.func @attention(%q: tensor<1x1x12x64xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %c: tensor<128x12x32x64xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %p: tensor<1x4xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %at: tensor<1xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<1x1x12x64xf32>, tensor<1x1x12x64xf32>, tensor<1x1x12x64xf32>) {
  %e = ttir.empty() : tensor<1x1x12x64xf32>
  %0 = "ttir.paged_scaled_dot_product_attention_decode"(%q, %c, %c, %p, %e, %at) <{operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 1, 0>}> : (tensor<1x1x12x64xf32>, tensor<128x12x32x64xf32>, tensor<128x12x32x64xf32>, tensor<1x4xi32>, tensor<1x1x12x64xf32>, tensor<1xi32>) -> tensor<1x1x12x64xf32>
  %1 = "ttir.chunked_scaled_dot_product_attention"(%q, %c, %c, %p, %at, %e) <{scale = 0.125 : f32}> : (tensor<1x1x12x64xf32>, tensor<128x12x32x64xf32>, tensor<128x12x32x64xf32>, tensor<1x4xi32>, tensor<1xi32>, tensor<1x1x12x64xf32>) -> tensor<1x1x12x64xf32>
  %2 = "ttir.paged_flash_multi_latent_attention_decode"(%q, %c, %p, %at) <{head_dim_v = 64 : ui32, operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 1, 0>}> : (tensor<1x1x12x64xf32>, tensor<128x12x32x64xf32>, tensor<1x4xi32>, tensor<1xi32>) -> tensor<1x1x12x64xf32>
  return %0, %1, %2 : tensor<1x1x12x64xf32>, tensor<1x1x12x64xf32>, tensor<1x1x12x64xf32>
}
// CHECK-LABEL: func.func @attention(
// CHECK: "ttnn.paged_scaled_dot_product_attention_decode"(%arg0, %arg1, %arg1, %arg2, %arg3) <{is_causal = true, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0>}>
// CHECK: "ttnn.chunked_scaled_dot_product_attention"(%arg0, %arg1, %arg1, %arg2, %arg3) <{scale = 1.250000e-01 : f32}>
// CHECK: "ttnn.paged_flash_multi_latent_attention_decode"(%arg0, %arg1, %arg2, %arg3) <{head_dim_v = 64 : ui32, is_causal = true, operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 1, 0>}>

func.func @heads(%x: tensor<1x2x32x128xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<1x1x2x4096xbf16> {
  %0 = "ttnn.nlp_concat_heads_decode"(%x) <{num_heads = 32 : ui32}> : (tensor<1x2x32x128xbf16>) -> tensor<1x1x2x4096xbf16>
  return %0 : tensor<1x1x2x4096xbf16>
}
// CHECK-LABEL: func.func @heads(
// CHECK: "ttnn.nlp_concat_heads_decode"(%arg0) <{num_heads = 32 : ui32}>

func.func @statistics(%x: tensor<2x3x4x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %s: tensor<3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>) {
  %0:3 = "ttir.batch_norm_training"(%x, %s, %s, %s, %s) <{dimension = 1 : i32, epsilon = 1.0e-5 : f32, momentum = 0.1 : f32}> : (tensor<2x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<2x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>)
  return %0#0, %0#1, %0#2 : tensor<2x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>
}
// CHECK-LABEL: func.func @statistics(
// CHECK: "ttnn.batch_norm_training"(%arg0, {{.*}}momentum = 1.000000e-01 : f32, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1>}>
// CHECK-COUNT-2: "ttnn.reshape"{{.*}} <{shape = [3 : i32]}>

func.func @windows(%x: tensor<1x8x8x32xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %l: tensor<1x32x64xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %wl: tensor<16x64x3xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %v: tensor<1x8x9x10x4xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %wv: tensor<16x4x3x3x3xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<1x4x4x32xbf16>, tensor<1x4x4x32xi32>, tensor<1x30x16xbf16>, tensor<1x6x7x8x16xbf16>) {
  %a = ttir.empty() : tensor<1x4x4x32xbf16>
  %b = ttir.empty() : tensor<1x4x4x32xi32>
  %0, %1 = "ttir.max_pool2d_with_indices"(%x, %a, %b) <{kernel = array<i32: 2, 2>, stride = array<i32: 2, 2>, dilation = array<i32: 1, 1>, padding = array<i32: 0, 0, 0, 0>, ceil_mode = false}> : (tensor<1x8x8x32xbf16>, tensor<1x4x4x32xbf16>, tensor<1x4x4x32xi32>) -> (tensor<1x4x4x32xbf16>, tensor<1x4x4x32xi32>)
  %2 = "ttir.conv1d"(%l, %wl) <{stride = 1 : i32, padding = 0 : i32, dilation = 1 : i32, groups = 1 : i32}> : (tensor<1x32x64xbf16>, tensor<16x64x3xbf16>) -> tensor<1x30x16xbf16>
  %3 = "ttir.conv3d"(%v, %wv) <{stride = array<i32: 1, 1, 1>, padding = array<i32: 0, 0, 0>, groups = 1 : i32}> : (tensor<1x8x9x10x4xbf16>, tensor<16x4x3x3x3xbf16>) -> tensor<1x6x7x8x16xbf16>
  return %0, %1, %2, %3 : tensor<1x4x4x32xbf16>, tensor<1x4x4x32xi32>, tensor<1x30x16xbf16>, tensor<1x6x7x8x16xbf16>
}
// CHECK-LABEL: func.func @windows(
// CHECK: %{{.*}}:2 = "ttnn.max_pool2d_with_indices"{{.*}} -> (tensor<1x1x16x32xbf16
// CHECK: "ttnn.conv1d"{{.*}}in_channels = 64 : i32, input_length = 32 : i32, kernel_size = 3 : i32, out_channels = 16 : i32, padding = array<i32: 0, 0>
// CHECK: "ttnn.pad"(%arg3) {{.*}} -> tensor<1x8x9x10x32xbf16
// CHECK: "ttnn.prepare_conv3d_weights"{{.*}} <{alignment = 32 : i32, c_in_block = 32 : i32, groups = 1 : i32}> {{.*}} -> tensor<864x16xbf16
// CHECK: "ttnn.conv3d"{{.*}} padding_mode = "zeros"

// A composite is its decomposition.
func.func @composed(%x: tensor<8x8xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<8x8xbf16> {
  %0 = "ttcore.composite"(%x) <{composite_name = "doubled", decomposition = @doubled}> : (tensor<8x8xbf16>) -> tensor<8x8xbf16>
  return %0 : tensor<8x8xbf16>
}
func.func private @doubled(%x: tensor<8x8xbf16>) -> tensor<8x8xbf16> {
  %0 = "ttir.add"(%x, %x) : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xbf16>
  return %0 : tensor<8x8xbf16>
}
// CHECK-LABEL: func.func @composed(
// CHECK: "ttnn.add"(%arg0, %arg0)
// CHECK-NOT: composite
// CHECK-NOT: @doubled

// An op of TTNN that has no call in Python or C++ stays.
func.func @cut(%x: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %i: tensor<2xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<2x2xf32> {
  %0 = "ttnn.slice_dynamic"(%x, %i, %i) <{step = [1 : i32, 1 : i32]}> : (tensor<4x8xf32>, tensor<2xi32>, tensor<2xi32>) -> tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}
// CHECK-LABEL: func.func @cut(
// CHECK: "ttnn.slice_dynamic"(%arg0, %[[I:.*]], %[[I]])

// Ops of TTNN with numbers that upstream knows, which have calls.
func.func @powers(%x: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %low: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<4x8xf32> {
  %0 = "ttnn.pow_scalar"(%x) <{rhs = 2.5 : f32}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "ttnn.clamp_tensor"(%0, %low, %x) : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
// CHECK-LABEL: func.func @powers(
// CHECK: "ttnn.pow_scalar"(%arg0) <{rhs = 2.500000e+00 : f32}>
// CHECK: "ttnn.clamp_tensor"(%{{.*}}, %arg1, %arg0)

// What upstream prepares before a convolution keeps its shape.
func.func @prepared(%w: tensor<32x32x3x3xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %b: tensor<1x1x1x32xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<1x1x288x32xbf16>, tensor<1x1x1x32xbf16>, tensor<1x1x288x32xbf16>, tensor<1x1x1x32xbf16>) {
  %d = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x1>}> : () -> !ttnn.device
  %0 = "ttnn.prepare_conv2d_weights"(%w, %d) <{batch_size = 1 : i32, dilation = array<i32: 1, 1>, groups = 1 : i32, in_channels = 32 : i32, input_height = 8 : i32, input_width = 8 : i32, kernel_size = array<i32: 3, 3>, out_channels = 32 : i32, padding = array<i32: 0, 0, 0, 0>, stride = array<i32: 1, 1>, input_dtype = #ttcore.supportedDataTypes<bf16>, input_memory_config = #ttnn.memory_config<#ttnn.buffer_type<dram>, <interleaved>>, input_tensor_layout = #ttnn.layout<tile>, has_bias = true, weights_format = "OIHW"}> : (tensor<32x32x3x3xbf16>, !ttnn.device) -> tensor<1x1x288x32xbf16>
  %1 = "ttnn.prepare_conv2d_bias"(%b, %d) <{batch_size = 1 : i32, dilation = array<i32: 1, 1>, groups = 1 : i32, in_channels = 32 : i32, input_height = 8 : i32, input_width = 8 : i32, kernel_size = array<i32: 3, 3>, out_channels = 32 : i32, padding = array<i32: 0, 0, 0, 0>, stride = array<i32: 1, 1>, input_dtype = #ttcore.supportedDataTypes<bf16>, input_memory_config = #ttnn.memory_config<#ttnn.buffer_type<dram>, <interleaved>>, input_tensor_layout = #ttnn.layout<tile>}> : (tensor<1x1x1x32xbf16>, !ttnn.device) -> tensor<1x1x1x32xbf16>
  %2 = "ttnn.prepare_conv_transpose2d_weights"(%w, %d) <{batch_size = 1 : i32, dilation = array<i32: 1, 1>, groups = 1 : i32, in_channels = 32 : i32, input_height = 8 : i32, input_width = 8 : i32, kernel_size = array<i32: 3, 3>, out_channels = 32 : i32, padding = array<i32: 0, 0, 0, 0>, stride = array<i32: 1, 1>, input_dtype = #ttcore.supportedDataTypes<bf16>, input_memory_config = #ttnn.memory_config<#ttnn.buffer_type<dram>, <interleaved>>, input_tensor_layout = #ttnn.layout<tile>, has_bias = true, weights_format = "OIHW"}> : (tensor<32x32x3x3xbf16>, !ttnn.device) -> tensor<1x1x288x32xbf16>
  %3 = "ttnn.prepare_conv_transpose2d_bias"(%b, %d) <{batch_size = 1 : i32, dilation = array<i32: 1, 1>, groups = 1 : i32, in_channels = 32 : i32, input_height = 8 : i32, input_width = 8 : i32, kernel_size = array<i32: 3, 3>, out_channels = 32 : i32, padding = array<i32: 0, 0, 0, 0>, stride = array<i32: 1, 1>, input_dtype = #ttcore.supportedDataTypes<bf16>, input_memory_config = #ttnn.memory_config<#ttnn.buffer_type<dram>, <interleaved>>, input_tensor_layout = #ttnn.layout<tile>}> : (tensor<1x1x1x32xbf16>, !ttnn.device) -> tensor<1x1x1x32xbf16>
  return %0, %1, %2, %3 : tensor<1x1x288x32xbf16>, tensor<1x1x1x32xbf16>, tensor<1x1x288x32xbf16>, tensor<1x1x1x32xbf16>
}
// CHECK-LABEL: func.func @prepared(
// CHECK: "ttnn.prepare_conv2d_weights"{{.*}} -> tensor<1x1x288x32xbf16
// CHECK: "ttnn.prepare_conv2d_bias"{{.*}} -> tensor<1x1x1x32xbf16
// CHECK: "ttnn.prepare_conv_transpose2d_weights"{{.*}} -> tensor<1x1x288x32xbf16
// CHECK: "ttnn.prepare_conv_transpose2d_bias"{{.*}} -> tensor<1x1x1x32xbf16

func.func @groups(%x: tensor<1x1x64x64xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %s: tensor<64xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %r: tensor<1x1x2x32xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<1x1x64x64xbf16>, tensor<1x1x64x64xbf16>) {
  %0 = "ttir.group_norm"(%x, %s, %s) <{channel_dim = 3 : i64, epsilon = 1.0e-5 : f32, num_groups = 2 : i64, operandSegmentSizes = array<i32: 1, 0, 1, 1>}> : (tensor<1x1x64x64xbf16>, tensor<64xbf16>, tensor<64xbf16>) -> tensor<1x1x64x64xbf16>
  %1 = "ttnn.group_norm"(%x, %r, %r) <{epsilon = 1.0e-5 : f32, num_groups = 2 : i64, operandSegmentSizes = array<i32: 1, 0, 1, 1>}> : (tensor<1x1x64x64xbf16>, tensor<1x1x2x32xbf16>, tensor<1x1x2x32xbf16>) -> tensor<1x1x64x64xbf16>
  return %0, %1 : tensor<1x1x64x64xbf16>, tensor<1x1x64x64xbf16>
}
// CHECK-LABEL: func.func @groups(
// CHECK-COUNT-2: "ttnn.group_norm"{{.*}} <{epsilon = {{.*}} : f32, num_groups = 2 : i64, operandSegmentSizes = array<i32: 1, 0, 1, 1>}>
