// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// Each value gets a layout, and is deallocated behind its last reader.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  // CHECK-LABEL: func.func @layouts(
  func.func @layouts(%arg0: tensor<16x8xf32>) -> (tensor<16x8xf32>) {
    // CHECK: %[[HOST:.*]] = "ttnn.distribute_tensor"(%arg0
    // CHECK: "ttnn.deallocate"(%arg0) <{force = false}>
    // CHECK: %[[ROWS:.*]] = "ttnn.to_device"(%[[HOST]]
    // CHECK: "ttnn.deallocate"(%[[HOST]])
    // CHECK: %[[X:.*]] = "ttnn.to_layout"(%[[ROWS]]) {jaxmesh.layout = #ttnn.layout<tile>}
    // CHECK: %[[Y:.*]] = "ttnn.exp"(%[[X]])
    // CHECK: "ttnn.deallocate"(%[[X]])
    // CHECK: %[[OUT:.*]] = "ttnn.to_layout"(%[[Y]]) {jaxmesh.layout = #ttnn.layout<row_major>}
    // CHECK: %[[BACK:.*]] = "ttnn.from_device"(%[[OUT]])
    // CHECK: "ttnn.aggregate_tensor"(%[[BACK]]
    // CHECK: return
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    %1 = "ttir.exp"(%0) : (tensor<8x2xf32>) -> tensor<8x2xf32>
    %2 = "ttir.mesh_shard"(%1) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x2xf32>) -> tensor<16x8xf32>
    return %2 : tensor<16x8xf32>
  }

  // A view of a buffer: the two are deallocated once, by force.
  // CHECK-LABEL: func.func @views(
  func.func @views(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<8x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %[[Y:.*]] = "ttnn.exp"
    // CHECK: %[[FOUR:.*]] = "ttnn.reshape"(%[[Y]]) <{shape = [1 : i32, 1 : i32, 4 : i32, 8 : i32]}>
    // CHECK: %[[SUM:.*]] = "ttnn.all_reduce"(%[[FOUR]])
    // CHECK: "ttnn.deallocate"(%[[FOUR]]) <{force = true}>
    // CHECK: return
    %0 = "ttir.exp"(%arg0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %1 = "ttir.all_reduce"(%0) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %2 = "ttir.transpose"(%1) <{dim0 = 0 : si32, dim1 = 1 : si32}> : (tensor<4x8xf32>) -> tensor<8x4xf32>
    return %2 : tensor<8x4xf32>
  }
}
