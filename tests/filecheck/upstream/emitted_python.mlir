// RUN: jaxmesh opt --ttcore-register-device --ttnn-layout --convert-ttnn-to-emitpy %s | filecheck %s

// Tensors that are spread over cores, program configs of attention, and arguments by name, as upstream prints them.
#dram = #ttnn.buffer_type<dram>
#rows = #ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <1x1>, memref<2x2x!ttcore.tile<32x32, f32>, #dram>, <interleaved>>
#cores = #ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <2x1>, memref<1x2x!ttcore.tile<32x32, f32>, #ttnn.buffer_type<l1>>, <height_sharded>, core_ranges = #ttnn.core_range_set<[#ttnn.core_range<(0, 0), (1, 0)>]>>
func.func @spread(%x: tensor<64x64xf32, #rows>) -> tensor<64x64xf32, #cores> {
  %0 = "ttnn.to_memory_config"(%x) : (tensor<64x64xf32, #rows>) -> tensor<64x64xf32, #cores>
  return %0 : tensor<64x64xf32, #cores>
}
// CHECK-LABEL: def spread(arg)
// CHECK: ttnn.to_memory_config(arg[0], ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, ttnn.ShardSpec(ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 0))]), [32, 64], ttnn.ShardOrientation.ROW_MAJOR)))

func.func @attention(%q: tensor<1x1x4x512xbf16>, %c: tensor<128x4x32x512xbf16>, %p: tensor<1x64xi32>, %at: tensor<1xi32>) -> tensor<1x1x4x512xbf16> {
  %0 = "ttnn.paged_scaled_dot_product_attention_decode"(%q, %c, %c, %p, %at) <{is_causal = true, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0>, program_config = #ttnn.sdpa_program_config<compute_with_storage_grid_size = #ttnn.core_coord<8, 4>, q_chunk_size = 32, k_chunk_size = 64>}> : (tensor<1x1x4x512xbf16>, tensor<128x4x32x512xbf16>, tensor<128x4x32x512xbf16>, tensor<1x64xi32>, tensor<1xi32>) -> tensor<1x1x4x512xbf16>
  return %0 : tensor<1x1x4x512xbf16>
}
// CHECK-LABEL: def attention(arg)
// CHECK: program_config=ttnn.SDPAProgramConfig(compute_with_storage_grid_size=ttnn.CoreCoord(8, 4), q_chunk_size=32, k_chunk_size=64))

func.func @scatter(%x: tensor<64x64xf32, #rows>, %i: tensor<64x64xi32>) -> tensor<64x64xf32, #rows> {
  %0 = "ttnn.scatter"(%x, %i, %x) <{dim = -1 : si32, scatter_reduce_type = #ttcore.reduce_type<invalid>}> : (tensor<64x64xf32, #rows>, tensor<64x64xi32>, tensor<64x64xf32, #rows>) -> tensor<64x64xf32, #rows>
  return %0 : tensor<64x64xf32, #rows>
}
// CHECK-LABEL: def scatter(arg)
// CHECK: ttnn.scatter(input=arg_{{.*}}, dim=-1, index=arg[1], src=arg_{{.*}}, memory_config=
