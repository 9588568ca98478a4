// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// Ops that compute a softmax become one op; the largest value of another dim is no softmax.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  // CHECK-LABEL: func.func @softmax_by_hand(
  func.func @softmax_by_hand(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.softmax"(%arg0) <{dimension = 1 : si32
    // CHECK: return
    %0 = "ttir.max"(%arg0) <{dim_arg = [1 : i32], keep_dim = true}> : (tensor<4x8xf32>) -> tensor<4x1xf32>
    %1 = "ttir.subtract"(%arg0, %0) : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
    %2 = "ttir.exp"(%1) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %3 = "ttir.sum"(%2) <{dim_arg = [1 : i32], keep_dim = true}> : (tensor<4x8xf32>) -> tensor<4x1xf32>
    %4 = "ttir.div"(%2, %3) : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
    return %4 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @other_dim(
  func.func @other_dim(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: ttnn.softmax
    // CHECK: "ttnn.divide"
    // CHECK: return
    %0 = "ttir.max"(%arg0) <{dim_arg = [1 : i32], keep_dim = true}> : (tensor<4x8xf32>) -> tensor<4x1xf32>
    %1 = "ttir.subtract"(%arg0, %0) : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
    %2 = "ttir.exp"(%1) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %3 = "ttir.sum"(%2) <{dim_arg = [0 : i32], keep_dim = true}> : (tensor<4x8xf32>) -> tensor<1x8xf32>
    %4 = "ttir.div"(%2, %3) : (tensor<4x8xf32>, tensor<1x8xf32>) -> tensor<4x8xf32>
    return %4 : tensor<4x8xf32>
  }
}
