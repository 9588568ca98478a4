// A TTNN-level file; the mesh is the device's.
#dram = #ttnn.buffer_type<dram>
#layout = #ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <1x1>, memref<1x1x!ttcore.tile<32x32, f32>, #dram>, <interleaved>>
func.func @main(%arg0: tensor<8x4xf32, #layout>) -> tensor<8x4xf32, #layout> {
  %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 2x2>}> : () -> !ttnn.device
  %1 = "ttnn.distribute_tensor"(%arg0, %0) <{cq_id = 0 : ui32, mapper_config = #ttnn.mesh_mapper_config<placements = [<shard, 0 : i32>, <shard, 1 : i32>], mesh_shape_override = [2 : ui32, 2 : ui32]>}> : (tensor<8x4xf32, #layout>, !ttnn.device) -> tensor<4x2xf32, #layout>
  // expected-warning@+1 {{ttnn.to_device has no attribute 'memory_config'}}
  %2 = "ttnn.to_device"(%1, %0) <{memory_config = #ttnn.memory_config<#dram, <interleaved>>}> : (tensor<4x2xf32, #layout>, !ttnn.device) -> tensor<4x2xf32, #layout>
  %3 = "ttnn.multiply"(%2, %2) : (tensor<4x2xf32, #layout>, tensor<4x2xf32, #layout>) -> tensor<4x2xf32, #layout>
  "ttnn.deallocate"(%2) <{force = false}> : (tensor<4x2xf32, #layout>) -> ()
  %4 = "ttnn.from_device"(%3) : (tensor<4x2xf32, #layout>) -> tensor<4x2xf32, #layout>
  %5 = "ttnn.aggregate_tensor"(%4, %0) <{composer_config = #ttnn.mesh_composer_config<dims = [0 : i32, 1 : i32], mesh_shape_override = [2 : ui32, 2 : ui32]>}> : (tensor<4x2xf32, #layout>, !ttnn.device) -> tensor<8x4xf32, #layout>
  return %5 : tensor<8x4xf32, #layout>
}
// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// CHECK: %[[HOST:.*]] = "ttnn.distribute_tensor"(%arg0
// CHECK-SAME: placements = [<shard, 0 : i32>, <shard, 1 : i32>], mesh_shape_override = [2 : ui32, 2 : ui32]
// CHECK: %[[ROWS:.*]] = "ttnn.to_device"(%[[HOST]]
// CHECK: "ttnn.multiply"
// CHECK: %[[BACK:.*]] = "ttnn.from_device"
// CHECK: "ttnn.aggregate_tensor"(%[[BACK]]
