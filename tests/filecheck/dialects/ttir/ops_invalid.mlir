// RUN: jaxmesh opt %s --verify-diagnostics
// An axis names a dim that the tensor does not have.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    // expected-error@+1 {{ttir.mesh_shard: mesh_shard: shard_dims [0, 2] names dim 2 for mesh axis 'x' of size 4, but the tensor has rank 2}}
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 2>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// One entry of shard_dims per mesh axis.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    // expected-error@+1 {{ttir.mesh_shard: mesh_shard: shard_dims has one entry per mesh axis, but [0] has 1 entries and the mesh y=2, x=4 has 2 axes}}
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// shard_shape has one entry per dim.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    // expected-warning@+1 {{ttir.mesh_shard: shard_shape [2] disagrees with shard_dims [0, 1] on the mesh [2, 4], which make [2, 4]}}
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// shard_shape and shard_dims contradict each other.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    // expected-warning@+1 {{ttir.mesh_shard: shard_shape [4, 2] disagrees with shard_dims [0, 1] on the mesh [2, 4], which make [2, 4]}}
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 4, 2>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// The declared type is not the shard.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    // expected-error@+1 {{ttir.mesh_shard: the result is float32[8, 8], but the declared type is float32[8, 2]}}
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, -1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// An unknown shard type.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    // expected-error@+1 {{ttir.mesh_shard: 'some' is no ShardType; allowed: 'replicate', 'devices', 'maximal', 'identity'}}
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<some>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// A shard type that upstream lists and does not lower.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    // expected-error@+1 {{ttir.mesh_shard: mesh_shard: shard_type 'maximal' (one device holds all) has no TTNN form}}
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<maximal>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// An unknown direction.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    // expected-error@+1 {{ttir.mesh_shard: 'up' is no ShardDirection; allowed: 'full_to_shard', 'shard_to_full'}}
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<up>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// An unknown attribute.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x2xf32> {
    // expected-error@+1 {{ttir.mesh_shard: has no attribute 'extra'}}
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>, extra = 1 : i32}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// A dim that the devices do not divide.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<15x8xf32>) -> tensor<7x2xf32> {
    // expected-error@+1 {{ttir.mesh_shard: mesh_shard full_to_shard: dim 0 has size 15, which 2 devices ('y' of size 2) do not divide}}
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<15x8xf32>) -> tensor<7x2xf32>
    return %0 : tensor<7x2xf32>
  }
}

// -----

// A value that varies over an axis that is not joined.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<16x2xf32> {
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    // expected-error@+1 {{ttir.mesh_shard: mesh_shard shard_to_full with shard_dims [0, -1] does not aggregate mesh axis 'x', but float32[8,2]{V:(y,x)} still varies over it, so}}
    %1 = "ttir.mesh_shard"(%0) <{shard_dims = array<i64: 0, -1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x2xf32>) -> tensor<16x2xf32>
    return %1 : tensor<16x2xf32>
  }
}

// -----

// A shard is split again.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<4x1xf32> {
    %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32>
    // expected-error@+1 {{ttir.mesh_shard: mesh_shard full_to_shard needs a full tensor, one value on all devices, but float32[8,2]{V:(y,x)} varies over mesh axis 'x', 'y'}}
    %1 = "ttir.mesh_shard"(%0) <{shard_dims = array<i64: 0, -1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x2xf32>) -> tensor<4x1xf32>
    return %1 : tensor<4x1xf32>
  }
}

// -----

// An op that TTIR does not have.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<16x8xf32> {
    // expected-error@+1 {{ttir.mat_mul has no definition; add one in jaxmesh/dialects/ttir/ (see the files there for its like)}}
    %0 = "ttir.mat_mul"(%arg0) : (tensor<16x8xf32>) -> tensor<16x8xf32>
    return %0 : tensor<16x8xf32>
  }
}

// -----

// Shapes that do not broadcast.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<3x8xf32>) -> tensor<16x8xf32> {
    // expected-error@+1 {{ttir.add: the shapes [16, 8] and [3, 8] do not broadcast}}
    %0 = "ttir.add"(%arg0, %arg1) : (tensor<16x8xf32>, tensor<3x8xf32>) -> tensor<16x8xf32>
    return %0 : tensor<16x8xf32>
  }
}

// -----

// A declared result that the op does not give.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<8x16xf32> {
    // expected-error@+1 {{ttir.relu: the result is float32[16, 8], but the declared type is float32[8, 16]}}
    %0 = "ttir.relu"(%arg0) : (tensor<16x8xf32>) -> tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }
}

// -----

// A missing attribute.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<32x8xf32> {
    // expected-error@+1 {{ttir.concat needs the attribute 'dim' (int); it is missing}}
    %0 = "ttir.concat"(%arg0, %arg0) : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<32x8xf32>
    return %0 : tensor<32x8xf32>
  }
}

// -----

// A dim out of range.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<32x8xf32> {
    // expected-error@+1 {{ttir.concat: dim = 2 is out of range for rank 2; allowed: -2 to 1}}
    %0 = "ttir.concat"(%arg0, %arg0) <{dim = 2 : si32}> : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<32x8xf32>
    return %0 : tensor<32x8xf32>
  }
}

// -----

// A reshape to another number of elements.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<16x8xf32>) -> tensor<16x9xf32> {
    // expected-error@+1 {{ttir.reshape: shape = [16, 9] holds 144 elements, but float32[16, 8] holds 128}}
    %0 = "ttir.reshape"(%arg0) <{shape = [16 : i32, 9 : i32]}> : (tensor<16x8xf32>) -> tensor<16x9xf32>
    return %0 : tensor<16x9xf32>
  }
}

// -----

// A mesh axis that does not exist.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<8x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<8x8xf32> {
    // expected-error@+1 {{ttir.all_gather: cluster_axis = 2 is no axis of the mesh y=2, x=4; allowed: 0 to 1}}
    %0 = "ttir.all_gather"(%arg0) <{all_gather_dim = 1 : si32, cluster_axis = 2 : ui32}> : (tensor<8x2xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}

// -----

// An unknown reduction.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<8x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<8x2xf32> {
    // expected-error@+1 {{ttir.all_reduce: reduce_type 'product' is not supported; allowed: sum, mean, max, min, prod}}
    %0 = "ttir.all_reduce"(%arg0) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<product>}> : (tensor<8x2xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}

// -----

// A device that receives from two.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  func.func @main(%arg0: tensor<8x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> tensor<8x2xf32> {
    // expected-error@+1 {{ttir.collective_permute: source_target_pairs (targets) names device 1 twice: [1, 1]}}
    %0 = "ttir.collective_permute"(%arg0) <{source_target_pairs = dense<[[0, 1], [2, 1]]> : tensor<2x2xi64>}> : (tensor<8x2xf32>) -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}
