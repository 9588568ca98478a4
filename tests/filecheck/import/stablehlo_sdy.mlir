// A product over a split dim, with the calls and the composite inlined.
module {
  sdy.mesh @mesh = <["data"=2, "model"=4]>
  func.func public @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>},
                         %w: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>})
      -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    %0 = func.call @product(%x, %w) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    %1 = stablehlo.composite "my.square" %0 {decomposition = @square} : (tensor<8x32xf32>) -> tensor<8x32xf32>
    return %1 : tensor<8x32xf32>
  }
  func.func private @product(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>) -> tensor<8x32xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
  func.func private @square(%x: tensor<8x32xf32>) -> tensor<8x32xf32> {
    %0 = stablehlo.multiply %x, %x : tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
}
// RUN: jaxmesh opt %s --stablehlo-to-ttir | filecheck %s
// CHECK: #ttcore.meshes<[<"mesh" = 2x4>]>
// CHECK: "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>
// CHECK-SAME: -> tensor<4x4xf32>
// CHECK: "ttir.mesh_shard"(%arg1) <{shard_dims = array<i64: -1, 0>
// CHECK-SAME: -> tensor<4x32xf32>
// CHECK: "ttir.dot_general"
// CHECK: "ttir.all_reduce"({{.*}}) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}>
// CHECK: "ttir.multiply"
// CHECK: "ttir.mesh_shard"({{.*}}) <{shard_dims = array<i64: 0, -1>, shard_direction = #ttcore.shard_direction<shard_to_full>
// CHECK-SAME: -> tensor<8x32xf32>
// CHECK-NOT: func.func
