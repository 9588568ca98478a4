// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// What an operation on the devices reads from the host is copied to every device, once for all readers.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  // CHECK-LABEL: func.func @a_host_operand_of_two_operations(
  func.func @a_host_operand_of_two_operations(%arg0: tensor<8x4xf32>, %arg1: tensor<4x4xf32>) -> (tensor<4x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.distribute_tensor"(%arg0
    // CHECK-SAME: placements = [<shard, 0 : i32>, <replicate, -1 : i32>]
    // CHECK: "ttnn.distribute_tensor"(%arg1
    // CHECK-SAME: placements = [<replicate, -1 : i32>, <replicate, -1 : i32>]
    // CHECK-NOT: ttnn.distribute_tensor
    // CHECK: "ttnn.multiply"
    // CHECK-NOT: ttnn.distribute_tensor
    // CHECK: return
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, -1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x4xf32>) -> tensor<4x4xf32>
    %1 = "ttir.add"(%0, %arg1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = "ttir.multiply"(%1, %arg1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %2 : tensor<4x4xf32>
  }

  // distribute_tensor takes a host tensor: a part of what every device holds whole is a mesh_partition.
  // CHECK-LABEL: func.func @a_split_of_a_replicated_tensor(
  func.func @a_split_of_a_replicated_tensor(%arg0: tensor<8x4xf32>) -> (tensor<2x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.distribute_tensor"
    // CHECK: "ttnn.all_reduce"
    // CHECK-NOT: ttnn.aggregate_tensor
    // CHECK-NOT: ttnn.distribute_tensor
    // CHECK: "ttnn.mesh_partition"
    // CHECK-SAME: cluster_axis = 0 : ui32, dim = 0 : si32
    // CHECK: return
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: -1, 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 4, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x4xf32>) -> tensor<2x4xf32>
    %1 = "ttir.all_reduce"(%0) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %2 = "ttir.concat"(%1, %1) <{dim = 0 : si32}> : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
    %3 = "ttir.mesh_shard"(%2) <{shard_dims = array<i64: 0, -1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<4x4xf32>) -> tensor<2x4xf32>
    return %3 : tensor<2x4xf32>
  }
}
