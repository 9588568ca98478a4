// Spellings of 2024 and 2025: the tt dialect, attributes instead of properties, destinations, identity.
module attributes {tt.meshes = #tt.meshes<[<"mesh" = 1x2>]>} {
  func.func @forward(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    // expected-warning@+1 {{ttir.mesh_shard has 'shard_type' as #ttcore.shard_type, not as #tt.shard_type}}
    %0 = "ttir.mesh_shard"(%arg0) {shard_dims = array<i64: -1, 1>, shard_direction = #tt.shard_direction<full_to_shard>, shard_shape = array<i64: 1, 2>, shard_type = #tt.shard_type<devices>} : (tensor<4x6xf32>) -> tensor<4x3xf32>
    %1 = "ttir.mesh_shard"(%0) <{shard_dims = array<i64: 1>, shard_direction = #tt.shard_direction<shard_to_full>, shard_shape = array<i64: 1>, shard_type = #tt.shard_type<identity>}> : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %2 = ttir.empty() : tensor<4x3xf32>
    // expected-warning@+1 {{ttir.multiply reads 2, not 3 tensors}}
    %3 = "ttir.multiply"(%1, %0, %2) <{operandSegmentSizes = array<i32: 2, 1>}> : (tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
    %4 = "ttir.empty"() : () -> tensor<4x6xf32>
    // expected-warning@+1 {{reads 1, not 2 tensors}}
    %5 = "ttir.mesh_shard"(%3, %4) <{shard_dims = array<i64: -1, 1>, shard_direction = #tt.shard_direction<shard_to_full>, shard_shape = #tt.grid<1x2>, shard_type = #tt.shard_type<devices>}> : (tensor<4x3xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    return %5 : tensor<4x6xf32>
  }
}
// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// CHECK: func.func @forward(
// CHECK: %[[HOST:.*]] = "ttnn.distribute_tensor"(%arg0
// CHECK-SAME: placements = [<replicate, -1 : i32>, <shard, 1 : i32>]
// CHECK: %[[X:.*]] = "ttnn.to_layout"
// CHECK: "ttnn.multiply"(%[[X]], %[[X]]) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
// CHECK: "ttnn.aggregate_tensor"
// CHECK-SAME: dims = [0 : i32, 1 : i32]
