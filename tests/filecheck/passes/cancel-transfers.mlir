// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// A value that is joined and split again as it was stays on the devices.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  // CHECK-LABEL: func.func @joined_and_split_again(
  func.func @joined_and_split_again(%arg0: tensor<16x8xf32>) -> tensor<16x8xf32> {
    // CHECK: "ttnn.distribute_tensor"
    // CHECK: %[[Y:.*]] = "ttnn.exp"
    // CHECK-NOT: ttnn.aggregate_tensor
    // CHECK: "ttnn.neg"(%[[Y]])
    // CHECK: "ttnn.aggregate_tensor"
    // CHECK-NOT: ttnn.aggregate_tensor
    // CHECK: return
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    %1 = "ttir.exp"(%0) : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %2 = "ttir.mesh_shard"(%1) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x2xf32>) -> tensor<16x8xf32>
    %3 = "ttir.mesh_shard"(%2) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    %4 = "ttir.neg"(%3) : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %5 = "ttir.mesh_shard"(%4) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x2xf32>) -> tensor<16x8xf32>
    return %5 : tensor<16x8xf32>
  }

  // Split in another way: each device holds other rows than before.
  // CHECK-LABEL: func.func @split_in_another_way(
  func.func @split_in_another_way(%arg0: tensor<16x8xf32>) -> (tensor<4x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.distribute_tensor"
    // CHECK-SAME: placements = [<shard, 0 : i32>, <shard, 1 : i32>]
    // CHECK: "ttnn.exp"
    // CHECK: "ttnn.aggregate_tensor"
    // CHECK: "ttnn.distribute_tensor"
    // CHECK-SAME: placements = [<shard, 1 : i32>, <shard, 0 : i32>]
    // CHECK: return
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    %1 = "ttir.exp"(%0) : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %2 = "ttir.mesh_shard"(%1) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x2xf32>) -> tensor<16x8xf32>
    %3 = "ttir.mesh_shard"(%2) <{shard_dims = array<i64: 1, 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 4, 2>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<4x4xf32>
    return %3 : tensor<4x4xf32>
  }
}
