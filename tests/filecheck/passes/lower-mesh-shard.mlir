// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// Each function is lowered to TTNN; its text must match the lines below it.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x2>]>} {
  // CHECK-LABEL: func.func @split
  func.func @split(%arg0: tensor<8192x784xf32>) -> tensor<8192x392xf32> {
    // CHECK: %[[DEVICE:.*]] = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x2>}> : () -> !ttnn.device
    // CHECK: "ttnn.distribute_tensor"(%arg0, %[[DEVICE]]) <{mapper_config = #ttnn.mesh_mapper_config<placements = [<replicate, -1 : i32>, <shard, 1 : i32>], mesh_shape_override = [1 : ui32, 2 : ui32]>}> : (tensor<8192x784xf32>, !ttnn.device) -> tensor<8192x392xf32>
    // CHECK-NOT: ttnn.to_device
    // CHECK: return
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: -1, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 1, 2>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8192x784xf32>) -> tensor<8192x392xf32>
    return %0 : tensor<8192x392xf32>
  }

  // CHECK-LABEL: func.func @split_by_every_axis
  func.func @split_by_every_axis(%arg0: tensor<64x128xbf16>) -> tensor<64x64xbf16> {
    // CHECK: "ttnn.distribute_tensor"
    // CHECK-SAME: <{mapper_config = #ttnn.mesh_mapper_config<placements = [<shard, 0 : i32>, <shard, 1 : i32>], mesh_shape_override = [1 : ui32, 2 : ui32]>}>
    // CHECK-SAME: -> tensor<64x64xbf16>
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 1, 2>, shard_type = #ttcore.shard_type<devices>}> : (tensor<64x128xbf16>) -> tensor<64x64xbf16>
    return %0 : tensor<64x64xbf16>
  }

  // CHECK-LABEL: func.func @there_and_back
  func.func @there_and_back(%arg0: tensor<64x128xf32>) -> tensor<64x128xf32> {
    // CHECK: %[[DEVICE:.*]] = "ttnn.get_device"
    // CHECK: %[[HOST:.*]] = "ttnn.distribute_tensor"(%arg0, %[[DEVICE]])
    // CHECK: %[[ROWS:.*]] = "ttnn.to_device"(%[[HOST]], %[[DEVICE]])
    // CHECK: %[[X:.*]] = "ttnn.to_layout"(%[[ROWS]])
    // CHECK: %[[Y:.*]] = "ttnn.neg"(%[[X]]) : (tensor<64x64xf32>) -> tensor<64x64xf32>
    // CHECK: %[[OUT:.*]] = "ttnn.from_device"
    // CHECK: "ttnn.aggregate_tensor"(%[[OUT]], %[[DEVICE]]) <{composer_config = #ttnn.mesh_composer_config<dims = [0 : i32, 1 : i32], mesh_shape_override = [1 : ui32, 2 : ui32]>}> : (tensor<64x64xf32>, !ttnn.device) -> tensor<64x128xf32>
    // CHECK-NOT: ttir
    // CHECK: return
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 1, 2>, shard_type = #ttcore.shard_type<devices>}> : (tensor<64x128xf32>) -> tensor<64x64xf32>
    %1 = "ttir.neg"(%0) : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %2 = "ttir.mesh_shard"(%1) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 1, 2>, shard_type = #ttcore.shard_type<devices>}> : (tensor<64x64xf32>) -> tensor<64x128xf32>
    return %2 : tensor<64x128xf32>
  }
}

// -----

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  // CHECK-LABEL: func.func @replicated
  func.func @replicated(%arg0: tensor<32x32xf32>) -> tensor<32x32xf32> {
    // CHECK: mesh_shape = #ttnn<mesh_shape 2x4>
    // CHECK: "ttnn.distribute_tensor"
    // CHECK-SAME: placements = [<replicate, -1 : i32>, <replicate, -1 : i32>], mesh_shape_override = [2 : ui32, 4 : ui32]
    // CHECK: "ttnn.exp"
    // CHECK: "ttnn.aggregate_tensor"
    // CHECK-SAME: <{composer_config = #ttnn.mesh_composer_config<dims = [0 : i32], mesh_shape_override = [1 : ui32]>}>
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: -1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 1>, shard_type = #ttcore.shard_type<replicate>}> : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %1 = "ttir.exp"(%0) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %2 = "ttir.mesh_shard"(%1) <{shard_dims = array<i64: -1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 1>, shard_type = #ttcore.shard_type<replicate>}> : (tensor<32x32xf32>) -> tensor<32x32xf32>
    return %2 : tensor<32x32xf32>
  }

  // CHECK-LABEL: func.func @a_dim_left_over
  func.func @a_dim_left_over(%arg0: tensor<8x8x8xf32>) -> tensor<8x8x8xf32> {
    // CHECK: "ttnn.distribute_tensor"
    // CHECK-SAME: placements = [<replicate, -1 : i32>, <shard, 0 : i32>]
    // CHECK: "ttnn.aggregate_tensor"
    // CHECK-SAME: dims = [2 : i32, 0 : i32], mesh_shape_override = [1 : ui32, 4 : ui32]
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: -1, 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 4, 1, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x8x8xf32>) -> tensor<2x8x8xf32>
    %1 = "ttir.neg"(%0) : (tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
    %2 = "ttir.mesh_shard"(%1) <{shard_dims = array<i64: -1, 0>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 4, 1, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<2x8x8xf32>) -> tensor<8x8x8xf32>
    return %2 : tensor<8x8x8xf32>
  }

  // Two axes on one dim: one axis of all eight devices, where upstream gives the dim twice.
  // CHECK-LABEL: func.func @two_axes_on_one_dim
  func.func @two_axes_on_one_dim(%arg0: tensor<64x8xf32>) -> tensor<8x8xf32> {
    // CHECK: "ttnn.distribute_tensor"
    // CHECK-SAME: placements = [<shard, 0 : i32>], mesh_shape_override = [8 : ui32]
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 8, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<64x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
