module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<8x8xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}) -> (tensor<8x8xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}, tensor<2x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 2x4>}> : () -> !ttnn.device
    %1 = "ttnn.distribute_tensor"(%arg0, %0) <{mapper_config = #ttnn.mesh_mapper_config<placements = [<replicate, -1 : i32>, <shard, 0 : i32>], mesh_shape_override = [2 : ui32, 4 : ui32]>}> : (tensor<8x8xf32>, !ttnn.device) -> tensor<2x8xf32>
    "ttnn.deallocate"(%arg0) <{force = false}> : (tensor<8x8xf32>) -> ()
    %2 = "ttnn.to_device"(%1, %0) : (tensor<2x8xf32>, !ttnn.device) -> tensor<2x8xf32>
    %3 = "ttnn.to_layout"(%2) {jaxmesh.layout = #ttnn.layout<tile>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %4 = "ttnn.add"(%3, %3) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
    %5 = "ttnn.neg"(%4) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %6 = "ttnn.to_layout"(%5) {jaxmesh.layout = #ttnn.layout<row_major>} : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %7 = "ttnn.from_device"(%6) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %8 = "ttnn.aggregate_tensor"(%7, %0) <{composer_config = #ttnn.mesh_composer_config<dims = [1 : i32, 0 : i32], mesh_shape_override = [1 : ui32, 4 : ui32]>}> : (tensor<2x8xf32>, !ttnn.device) -> tensor<8x8xf32>
    return %8, %4 : tensor<8x8xf32>, tensor<2x8xf32>
  }
}
