// The weight is on the devices already; so is the result.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x2>]>} {
  func.func @main(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>},
                  %arg1: tensor<8x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>})
      -> (tensor<4x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: -1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 1>, shard_type = #ttcore.shard_type<replicate>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %1 = "ttir.matmul"(%0, %arg1) : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
    return %1 : tensor<4x3xf32>
  }
}
// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// CHECK: %arg1: tensor<8x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>})
// CHECK: "ttnn.distribute_tensor"(%arg0
// CHECK: "ttnn.matmul"({{.*}}, %arg1)
// CHECK-NOT: ttnn.aggregate_tensor
// CHECK: return
