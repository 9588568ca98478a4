// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// A slice of a replicated tensor that starts at the device's own coordinate, times the size, is a mesh_partition.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  // CHECK-LABEL: func.func @the_own_part(
  func.func @the_own_part(%arg0: tensor<8xf32> {jaxmesh.varying = array<i64>, ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: ttnn.distribute_tensor
    // CHECK-NOT: ttnn.slice_dynamic
    // CHECK: "ttnn.mesh_partition"
    // CHECK-SAME: cluster_axis = 1 : ui32, dim = 0 : si32
    // CHECK: return
    %0 = "ttir.constant"() <{value = dense<[0, 1, 2, 3]> : tensor<4xi32>}> : () -> tensor<4xi32>
    %1 = "ttir.mesh_shard"(%0) <{shard_dims = array<i64: -1, 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<4xi32>) -> tensor<1xi32>
    %2 = "ttir.full"() <{fill_value = 2 : i32, shape = array<i32: 1>}> : () -> tensor<1xi32>
    %3 = "ttir.multiply"(%1, %2) : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi32>
    %4 = "ttir.add"(%3, %2) : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi32>
    %5 = "ttir.slice_dynamic"(%arg0, %3, %4) : (tensor<8xf32>, tensor<1xi32>, tensor<1xi32>) -> tensor<2xf32>
    return %5 : tensor<2xf32>
  }

  // The part of the next device is none: the slice stays.
  // CHECK-LABEL: func.func @the_part_of_the_next_device(
  func.func @the_part_of_the_next_device(%arg0: tensor<10xf32> {jaxmesh.varying = array<i64>, ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: ttnn.mesh_partition
    // CHECK: "ttnn.gather"
    // CHECK-NOT: ttnn.mesh_partition
    // CHECK: return
    %0 = "ttir.constant"() <{value = dense<[1, 2, 3, 4]> : tensor<4xi32>}> : () -> tensor<4xi32>
    %1 = "ttir.mesh_shard"(%0) <{shard_dims = array<i64: -1, 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<4xi32>) -> tensor<1xi32>
    %2 = "ttir.full"() <{fill_value = 2 : i32, shape = array<i32: 1>}> : () -> tensor<1xi32>
    %3 = "ttir.multiply"(%1, %2) : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi32>
    %4 = "ttir.add"(%3, %2) : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi32>
    %5 = "ttir.slice_dynamic"(%arg0, %3, %4) : (tensor<10xf32>, tensor<1xi32>, tensor<1xi32>) -> tensor<2xf32>
    return %5 : tensor<2xf32>
  }
}
