module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @"<lambda>"(%arg0: tensor<8x16xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}) -> (tensor<16xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}) {
    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 2x4>}> : () -> !ttnn.device
    %1 = "ttnn.distribute_tensor"(%arg0, %0) <{mapper_config = #ttnn.mesh_mapper_config<placements = [<shard, 0 : i32>, <replicate, -1 : i32>], mesh_shape_override = [2 : ui32, 4 : ui32]>}> : (tensor<8x16xf32>, !ttnn.device) -> tensor<4x16xf32>
    "ttnn.deallocate"(%arg0) <{force = false}> : (tensor<8x16xf32>) -> ()
    %2 = "ttnn.to_device"(%1, %0) : (tensor<4x16xf32>, !ttnn.device) -> tensor<4x16xf32>
    "ttnn.deallocate"(%1) <{force = false}> : (tensor<4x16xf32>) -> ()
    %3 = "ttnn.to_layout"(%2) {jaxmesh.layout = #ttnn.layout<tile>} : (tensor<4x16xf32>) -> tensor<4x16xf32>
    "ttnn.deallocate"(%2) <{force = false}> : (tensor<4x16xf32>) -> ()
    %4 = "ttnn.tanh"(%3) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    "ttnn.deallocate"(%3) <{force = false}> : (tensor<4x16xf32>) -> ()
    %5 = "ttnn.sum"(%4) <{dim_arg = [0 : i32], keep_dim = false}> : (tensor<4x16xf32>) -> tensor<16xf32>
    "ttnn.deallocate"(%4) <{force = false}> : (tensor<4x16xf32>) -> ()
    %6 = "ttnn.reshape"(%5) <{shape = [1 : i32, 1 : i32, 1 : i32, 16 : i32]}> : (tensor<16xf32>) -> tensor<1x1x1x16xf32>
    %7 = "ttnn.all_reduce"(%6) <{cluster_axis = 0 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<1x1x1x16xf32>) -> tensor<1x1x1x16xf32>
    "ttnn.deallocate"(%6) <{force = true}> : (tensor<1x1x1x16xf32>) -> ()
    %8 = "ttnn.reshape"(%7) <{shape = [16 : i32]}> : (tensor<1x1x1x16xf32>) -> tensor<16xf32>
    %9 = "ttnn.to_layout"(%8) {jaxmesh.layout = #ttnn.layout<row_major>} : (tensor<16xf32>) -> tensor<16xf32>
    "ttnn.deallocate"(%8) <{force = true}> : (tensor<16xf32>) -> ()
    %10 = "ttnn.from_device"(%9) : (tensor<16xf32>) -> tensor<16xf32>
    "ttnn.deallocate"(%9) <{force = false}> : (tensor<16xf32>) -> ()
    %11 = "ttnn.aggregate_tensor"(%10, %0) <{composer_config = #ttnn.mesh_composer_config<dims = [0 : i32], mesh_shape_override = [1 : ui32]>}> : (tensor<16xf32>, !ttnn.device) -> tensor<16xf32>
    "ttnn.deallocate"(%10) <{force = false}> : (tensor<16xf32>) -> ()
    return %11 : tensor<16xf32>
  }
}
