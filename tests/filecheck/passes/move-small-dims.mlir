// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// A dim of size 1 that a tile would pad to 32 moves to the front of a large tensor; a small one stays as it is.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  // CHECK-LABEL: func.func @large(
  func.func @large(%arg0: tensor<512x512xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<512xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.exp"{{.*}} -> tensor<1x512x512xf32>
    // CHECK: "ttnn.max"{{.*}}dim_arg = [0 : i32, 2 : i32]
    // CHECK: return
    %0 = "ttir.reshape"(%arg0) <{shape = [512 : i32, 1 : i32, 512 : i32]}> : (tensor<512x512xf32>) -> tensor<512x1x512xf32>
    %1 = "ttir.exp"(%0) : (tensor<512x1x512xf32>) -> tensor<512x1x512xf32>
    %2 = "ttir.max"(%1) <{dim_arg = [2 : i32, 1 : i32], keep_dim = false}> : (tensor<512x1x512xf32>) -> tensor<512xf32>
    return %2 : tensor<512xf32>
  }

  // CHECK-LABEL: func.func @small(
  func.func @small(%arg0: tensor<8x1x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<8x1x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.exp"{{.*}} -> tensor<8x1x8xf32>
    // CHECK: return
    %0 = "ttir.exp"(%arg0) : (tensor<8x1x8xf32>) -> tensor<8x1x8xf32>
    return %0 : tensor<8x1x8xf32>
  }
}
