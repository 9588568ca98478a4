// RUN: jaxmesh opt %s --ttir-to-ttnn --verify-diagnostics
// One placement per axis of the distribution shape.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    %d = "ttnn.get_device"() <{mesh_shape = #ttnn<mesh_shape 2x4>}> : () -> !ttnn.device
    // expected-error@+1 {{ttnn.distribute_tensor: distribute_tensor needs one placement per axis of the distribution shape [2, 4], got 1 placements for 2 axes: [PlacementShard(}}
    %0 = "ttnn.distribute_tensor"(%arg0, %d) <{mapper_config = #ttnn.mesh_mapper_config<placements = [<shard, 0 : i32>]>}> : (tensor<16x8xf32>, !ttnn.device) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// A placement names a dim that the tensor does not have.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    %d = "ttnn.get_device"() <{mesh_shape = #ttnn<mesh_shape 2x4>}> : () -> !ttnn.device
    // expected-error@+1 {{ttnn.distribute_tensor: PlacementShard(2) names dim 2 of a tensor of rank 2; allowed dims: -2 to 1}}
    %0 = "ttnn.distribute_tensor"(%arg0, %d) <{mapper_config = #ttnn.mesh_mapper_config<placements = [<shard, 0 : i32>, <shard, 2 : i32>]>}> : (tensor<16x8xf32>, !ttnn.device) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// The declared type is not the shard.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    %d = "ttnn.get_device"() <{mesh_shape = #ttnn<mesh_shape 2x4>}> : () -> !ttnn.device
    // expected-error@+1 {{ttnn.distribute_tensor: the result is float32[8, 8], but the declared type is float32[8, 2]}}
    %0 = "ttnn.distribute_tensor"(%arg0, %d) <{mapper_config = #ttnn.mesh_mapper_config<placements = [<shard, 0 : i32>, <replicate, -1 : i32>]>}> : (tensor<16x8xf32>, !ttnn.device) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// A distribution over more places than devices.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    %d = "ttnn.get_device"() <{mesh_shape = #ttnn<mesh_shape 2x4>}> : () -> !ttnn.device
    // expected-error@+1 {{ttnn.distribute_tensor: the distribution shape [4, 4] has 16 coordinates, but the mesh [2, 4] has only 8 devices}}
    %0 = "ttnn.distribute_tensor"(%arg0, %d) <{mapper_config = #ttnn.mesh_mapper_config<placements = [<shard, 0 : i32>, <shard, 1 : i32>], mesh_shape_override = [4 : ui32, 4 : ui32]>}> : (tensor<16x8xf32>, !ttnn.device) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// A composer joins two axes on one dim.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<8x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<64x2xf32> {
    %d = "ttnn.get_device"() <{mesh_shape = #ttnn<mesh_shape 2x4>}> : () -> !ttnn.device
    // expected-error@+1 {{ttnn.aggregate_tensor: aggregate_tensor: dims must be unique, but axes 0 and 1 both name tensor dim 0 (given [0, 0])}}
    %0 = "ttnn.aggregate_tensor"(%arg0, %d) <{composer_config = #ttnn.mesh_composer_config<dims = [0 : i32, 0 : i32]>}> : (tensor<8x2xf32>, !ttnn.device) -> tensor<64x2xf32>
    return %0 : tensor<64x2xf32>
  }
}

// -----

// A mapper without its config.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    %d = "ttnn.get_device"() <{mesh_shape = #ttnn<mesh_shape 2x4>}> : () -> !ttnn.device
    // expected-error@+1 {{ttnn.distribute_tensor: needs the attribute 'mapper_config'; it is missing}}
    %0 = "ttnn.distribute_tensor"(%arg0, %d) : (tensor<16x8xf32>, !ttnn.device) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// An op that TTNN does not have.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<8x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<8x2xf32> {
    %d = "ttnn.get_device"() <{mesh_shape = #ttnn<mesh_shape 2x4>}> : () -> !ttnn.device
    // expected-error@+1 {{ttnn.frobnicate has no definition; add one in jaxmesh/dialects/ttnn/ (see the files there for its like)}}
    %0 = "ttnn.frobnicate"(%arg0) : (tensor<8x2xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}
