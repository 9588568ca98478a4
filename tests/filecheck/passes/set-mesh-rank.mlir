// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// A mesh of one axis is a row of devices: every attribute that counts mesh axes counts the new one, too.

// CHECK: ttcore.meshes<[<"mesh" = 1x4>]>
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 4>]>} {
  // CHECK-LABEL: func.func @one_axis(
  func.func @one_axis(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
    // CHECK: "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x4>}>
    // CHECK: "ttnn.distribute_tensor"
    // CHECK-SAME: placements = [<replicate, -1 : i32>, <shard, 0 : i32>], mesh_shape_override = [1 : ui32, 4 : ui32]
    // CHECK: "ttnn.all_reduce"
    // CHECK-SAME: cluster_axis = 1 : ui32
    // The shards of one row are joined in their order.
    // CHECK: "ttnn.aggregate_tensor"
    // CHECK-SAME: composer_config = #ttnn.mesh_composer_config<dims = [0 : i32], mesh_shape_override = [4 : ui32]>
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 4, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x4xf32>) -> tensor<2x4xf32>
    %1 = "ttir.all_reduce"(%0) <{cluster_axis = 0 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %2 = "ttir.add"(%1, %0) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %3 = "ttir.mesh_shard"(%2) <{shard_dims = array<i64: 0>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 4, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<2x4xf32>) -> tensor<8x4xf32>
    return %3 : tensor<8x4xf32>
  }
}
