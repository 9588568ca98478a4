// RUN: jaxmesh opt %s --mesh 1x2 --ttir-to-ttnn --layouts | filecheck %s

// Layouts stand in the types: memory, tiles or rows, and how dims collapse to rows. Integers have their sign, truth
// values are bfloat16.
func.func @collapse(%x: tensor<2x40x64xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %row: tensor<70xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %one: tensor<f32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x40x64xi1>, tensor<70xi32>, tensor<f32>) {
  %0 = "ttir.gt"(%x, %x) : (tensor<2x40x64xf32>, tensor<2x40x64xf32>) -> tensor<2x40x64xi1>
  %1 = "ttir.add"(%row, %row) : (tensor<70xi32>, tensor<70xi32>) -> tensor<70xi32>
  %2 = "ttir.neg"(%one) : (tensor<f32>) -> tensor<f32>
  return %0, %1, %2 : tensor<2x40x64xi1>, tensor<70xi32>, tensor<f32>
}
// CHECK: #dram = #ttnn.buffer_type<dram>
// CHECK: #ttnn_layout = #ttnn.ttnn_layout<(d0, d1, d2) -> (d0 * 64 + d1, d2), <1x1>, memref<4x2x!ttcore.tile<32x32, f32>, #dram>, <interleaved>>
// CHECK: #ttnn_layout1 = #ttnn.ttnn_layout<(d0) -> (0, d0), <1x1>, memref<1x3x!ttcore.tile<32x32, si32>, #dram>, <interleaved>>
// CHECK: #ttnn_layout2 = #ttnn.ttnn_layout<() -> (0, 0), <1x1>, memref<1x1x!ttcore.tile<32x32, f32>, #dram>, <interleaved>>
// CHECK: #ttnn_layout3 = #ttnn.ttnn_layout<(d0, d1, d2) -> (d0 * 64 + d1, d2), <1x1>, memref<4x2x!ttcore.tile<32x32, bf16>, #dram>, <interleaved>>
// CHECK-LABEL: func.func @collapse(
// CHECK-SAME: %arg0: tensor<2x40x64xf32, #ttnn_layout>
// CHECK-NOT: ttnn.get_device
// CHECK: "ttnn.gt"(%arg0, %arg0) : {{.*}} -> tensor<2x40x64xbf16, #ttnn_layout3>
// CHECK: "ttnn.add"(%arg1, %arg1) : {{.*}} -> tensor<70xsi32, #ttnn_layout1>
// CHECK: "ttnn.neg"(%arg2) : {{.*}} -> tensor<f32, #ttnn_layout2>

// -----

// Arguments and results that are not presharded are on the host; a visibility that is written stays.
func.func public @shard(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = "ttir.mesh_shard"(%x) <{shard_dims = array<i64: -1, 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<64x64xf32>) -> tensor<32x64xf32>
  %1 = "ttir.exp"(%0) : (tensor<32x64xf32>) -> tensor<32x64xf32>
  %2 = "ttir.mesh_shard"(%1) <{shard_dims = array<i64: -1, 0>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<32x64xf32>) -> tensor<64x64xf32>
  return %2 : tensor<64x64xf32>
}
// CHECK: #[[HOST:.*]] = #ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <1x1>, memref<64x64xf32, #system_memory>>
// CHECK-DAG: #[[ROWS:.*]] = #ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <1x1>, memref<32x64xf32, #dram>, <interleaved>>
// CHECK-DAG: #[[TILES:.*]] = #ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <1x1>, memref<1x2x!ttcore.tile<32x32, f32>, #dram>, <interleaved>>
// CHECK: func.func public @shard(%arg0: tensor<64x64xf32, #[[HOST]]>
// CHECK: "ttnn.distribute_tensor"(%arg0
// CHECK: "ttnn.to_device"{{.*}} -> tensor<32x64xf32, #[[ROWS]]>
// CHECK: "ttnn.to_layout"(%{{.*}}) : (tensor<32x64xf32, #[[ROWS]]>) -> tensor<32x64xf32, #[[TILES]]>
// CHECK: "ttnn.exp"
// CHECK: "ttnn.aggregate_tensor"{{.*}} -> tensor<64x64xf32, #[[HOST]]>
