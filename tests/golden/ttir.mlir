module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @"golden <0>"(%arg0: tensor<8x8xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}, %arg1: tensor<8xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}, %arg2: tensor<2x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<8x2xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}, tensor<f32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}, tensor<2x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x8xf32>) -> tensor<4x2xf32>
    %1 = "ttir.rms_norm"(%0) <{epsilon = 9.99999974E-6 : f32, normalized_shape = array<i64: 2>, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<4x2xf32>) -> tensor<4x2xf32>
    %2 = "ttir.constant"() <{value = dense<[[0.000000e+00, 1.000000e+00], [2.000000e+00, 3.000000e+00], [4.000000e+00, 5.000000e+00], [6.000000e+00, 7.000000e+00]]> : tensor<4x2xf32>}> : () -> tensor<4x2xf32>
    %3 = "ttir.full"() <{fill_value = 5.000000e-01 : f32, shape = array<i32: 4, 2>}> : () -> tensor<4x2xf32>
    %4 = "ttir.multiply"(%1, %3) : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
    %5 = "ttir.add"(%4, %2) : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
    %6:2 = "ttir.sort"(%5) <{descending = true, dim = 1 : si32, stable = false}> : (tensor<4x2xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)
    %7 = "ttir.all_reduce"(%6#0) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<4x2xf32>) -> tensor<4x2xf32>
    %8 = "ttir.mesh_shard"(%7) <{shard_dims = array<i64: 0, -1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<4x2xf32>) -> tensor<8x2xf32>
    %9 = "ttir.sum"(%arg1) <{dim_arg = [0 : i32], keep_dim = false}> : (tensor<8xf32>) -> tensor<f32>
    return %8, %9, %arg2 : tensor<8x2xf32>, tensor<f32>, tensor<2x2xf32>
  }
}
