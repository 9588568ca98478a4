module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @"<lambda>"(%arg0: tensor<8x16xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}) -> (tensor<16xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}) {
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, -1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x16xf32>) -> tensor<4x16xf32>
    %1 = "ttir.tanh"(%0) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %2 = "ttir.sum"(%1) <{dim_arg = [0 : i32], keep_dim = false}> : (tensor<4x16xf32>) -> tensor<16xf32>
    %3 = "ttir.all_reduce"(%2) <{cluster_axis = 0 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<16xf32>) -> tensor<16xf32>
    %4 = "ttir.mesh_shard"(%3) <{shard_dims = array<i64: -1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 1>, shard_type = #ttcore.shard_type<replicate>}> : (tensor<16xf32>) -> tensor<16xf32>
    return %4 : tensor<16xf32>
  }
}
