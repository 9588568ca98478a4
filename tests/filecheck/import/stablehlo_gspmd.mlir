// A region for one device between GSPMD's custom calls; the mesh is the one that its shardings are over.
module {
  func.func public @main(%x: tensor<8x16xf32>) -> tensor<8x4xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2,4]<=[8]}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x16xf32>) -> tensor<4x4xf32>
    %2 = "stablehlo.all_reduce"(%1) <{replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %m = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %m : tensor<f32>
    }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{manual}"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<4x4xf32>) -> tensor<8x4xf32>
    return %4 : tensor<8x4xf32>
  }
}
// RUN: jaxmesh opt %s --stablehlo-to-ttir --ttir-to-ttnn | filecheck %s
// CHECK: mesh_shape = #ttnn<mesh_shape 2x4>
// CHECK: "ttnn.distribute_tensor"(%arg0, {{.*}}placements = [<shard, 0 : i32>, <shard, 1 : i32>]
// CHECK-SAME: -> tensor<4x4xf32>
// CHECK: "ttnn.all_reduce"({{.*}}) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}>
// CHECK: "ttnn.aggregate_tensor"({{.*}}dims = [0 : i32, 1 : i32], mesh_shape_override = [2 : ui32, 1 : ui32]
// CHECK-SAME: -> tensor<8x4xf32>
