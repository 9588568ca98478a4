// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  // What is only moved between the host and an op that takes rows is never in tiles.
  // CHECK-LABEL: func.func @rows(
  // CHECK: "ttnn.to_device"
  // CHECK-NOT: layout<tile>
  // CHECK: "ttnn.mesh_partition"
  // CHECK-NOT: "ttnn.to_layout"
  // CHECK: "ttnn.from_device"
  func.func @rows(%x: tensor<8x8xf32>) -> tensor<4x2xf32> {
    %0 = "ttir.mesh_shard"(%x) <{shard_dims = array<i64: -1, -1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 1>, shard_type = #ttcore.shard_type<replicate>}> : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = "ttir.mesh_partition"(%0) <{cluster_axis = 1 : ui32, dim = 1 : si32}> : (tensor<8x8xf32>) -> tensor<8x2xf32>
    %2 = "ttir.mesh_partition"(%1) <{cluster_axis = 0 : ui32, dim = 0 : si32}> : (tensor<8x2xf32>) -> tensor<4x2xf32>
    %3 = "ttir.mesh_shard"(%2) <{shard_dims = array<i64: -1, -1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 1>, shard_type = #ttcore.shard_type<replicate>}> {jaxmesh.assume_replicated} : (tensor<4x2xf32>) -> tensor<4x2xf32>
    return %3 : tensor<4x2xf32>
  }

  // Tables of bfloat16 are looked up by embedding, whose operands are in rows and whose ids are unsigned.
  // CHECK-LABEL: func.func @lookup_bf16(
  // CHECK: "ttnn.typecast"(%{{.*}}) : (tensor<3xi32>) -> tensor<3xui32>
  // CHECK: "ttnn.embedding"(%{{.*}}) : (tensor<3xui32>, tensor<5x4xbf16>) -> tensor<3x4xbf16>
  func.func @lookup_bf16(%ids: tensor<3xi32>, %w: tensor<5x4xbf16>) -> tensor<3x4xbf16> {
    %0 = "ttir.embedding"(%ids, %w) : (tensor<3xi32>, tensor<5x4xbf16>) -> tensor<3x4xbf16>
    return %0 : tensor<3x4xbf16>
  }

  // Others by gather, which loses no bits.
  // CHECK-LABEL: func.func @lookup_f32(
  // CHECK-NOT: "ttnn.embedding"
  // CHECK: "ttnn.gather"(%{{.*}}) <{dim = 0 : si32}> : (tensor<5x4xf32>, tensor<3x4xui32>) -> tensor<3x4xf32>
  func.func @lookup_f32(%ids: tensor<3xi32>, %w: tensor<5x4xf32>) -> tensor<3x4xf32> {
    %0 = "ttir.embedding"(%ids, %w) : (tensor<3xi32>, tensor<5x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // A sum of uint32 over devices is one of int32, modulo 2^32.
  // CHECK-LABEL: func.func @sum_of_unsigned(
  // CHECK: "ttnn.typecast"(%{{.*}}) : (tensor<1x1x8x8xui32>) -> tensor<1x1x8x8xi32>
  // CHECK: "ttnn.all_reduce"(%{{.*}}) {{.*}} : (tensor<1x1x8x8xi32>) -> tensor<1x1x8x8xi32>
  // CHECK: "ttnn.typecast"(%{{.*}}) : (tensor<1x1x8x8xi32>) -> tensor<1x1x8x8xui32>
  func.func @sum_of_unsigned(%x: tensor<8x8xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<8x8xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttir.all_reduce"(%x) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<8x8xui32>) -> tensor<8x8xui32>
    return %0 : tensor<8x8xui32>
  }

  // Places of maxima are uint32; a test gives the type of what it tests.
  // CHECK-LABEL: func.func @tests(
  // CHECK: "ttnn.argmax"(%{{.*}}) {{.*}} : (tensor<4x8xf32>) -> tensor<4xui32>
  // CHECK: "ttnn.isfinite"(%{{.*}}) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // CHECK: "ttnn.typecast"(%{{.*}}) : (tensor<4x8xf32>) -> tensor<4x8xi1>
  func.func @tests(%x: tensor<4x8xf32>) -> (tensor<4xi32>, tensor<4x8xi1>) {
    %0 = "ttir.argmax"(%x) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<4x8xf32>) -> tensor<4xi32>
    %1 = "ttir.isfinite"(%x) : (tensor<4x8xf32>) -> tensor<4x8xi1>
    return %0, %1 : tensor<4xi32>, tensor<4x8xi1>
  }

  // Rounded quotients and products of integers are exact.
  // CHECK-LABEL: func.func @integers(
  // CHECK: "ttnn.divide"(%{{.*}}) {jaxmesh.rounding_mode = "trunc"} : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi32>
  // CHECK-NOT: "ttnn.matmul"
  // CHECK: "ttnn.sum"(%{{.*}}) {{.*}} : (tensor<1x4x4x4xi32>) -> tensor<1x4x4xi32>
  func.func @integers(%x: tensor<4x4xi32>, %y: tensor<4x4xi32>) -> (tensor<4x4xi32>, tensor<4x4xi32>) {
    %0 = "ttir.div"(%x, %y) : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi32>
    %1 = "ttir.matmul"(%x, %y) <{transpose_a = false, transpose_b = false}> : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi32>
    return %0, %1 : tensor<4x4xi32>, tensor<4x4xi32>
  }
}
