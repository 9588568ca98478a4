// RUN: ttmlir-opt --ttir-to-ttnn-backend-pipeline="mesh-shape=2,4" %s
// A matmul, contracted over mesh axis 1, as tt-mlir prints it: old device module, an empty tensor, locations.
#loc = loc("model.py":1:1)
module @matmul attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
  ttcore.device_module {
    builtin.module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {
      ttcore.device @default_device = <workerGrid = #ttcore.grid<8x8, (d0, d1) -> (0, d0, d1)>, l1Map = (d0, d1)[s0] -> (0, d0, d1, s0), meshShape = 2x4, chipIds = [0, 1, 2, 3, 4, 5, 6, 7]> loc(#loc)
      func.func @main(%arg0: tensor<16x8xf32> {ttcore.argument_type = #ttcore.argument_type<input>, ttcore.shard_status = #ttcore.shard_status<unsharded>} loc("x"), %arg1: tensor<8x12xf32> {ttcore.argument_type = #ttcore.argument_type<parameter>, ttcore.shard_status = #ttcore.shard_status<unsharded>} loc("w")) -> (tensor<16x12xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}) {
        %0 = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 2, 4>, shard_type = #ttcore.shard_type<devices>}> : (tensor<16x8xf32>) -> tensor<8x2xf32> loc(#loc1)
        %1 = "ttir.mesh_shard"(%arg1) <{shard_dims = array<i64: -1, 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 4, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x12xf32>) -> tensor<2x12xf32> loc(#loc1)
        %2 = ttir.empty() : tensor<8x12xf32> loc(#loc1)
        %3 = "ttir.matmul"(%0, %1) <{transpose_a = false, transpose_b = false}> : (tensor<8x2xf32>, tensor<2x12xf32>) -> tensor<8x12xf32> loc(#loc1)
        %4 = "ttir.all_reduce"(%3) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<8x12xf32>) -> tensor<8x12xf32> loc(#loc2)
        %5 = "ttir.mesh_shard"(%4) <{shard_dims = array<i64: 0, -1>, shard_direction = #ttcore.shard_direction<shard_to_full>, shard_shape = array<i64: 2, 1>, shard_type = #ttcore.shard_type<devices>}> : (tensor<8x12xf32>) -> tensor<16x12xf32> loc(#loc2)
        return %5 : tensor<16x12xf32> loc(#loc)
      } loc(#loc)
    } loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("model.py":7:3)
#loc2 = loc(callsite(#loc1 at #loc))
// RUN: jaxmesh opt %s | filecheck %s
// CHECK: func.func @main(%arg0: tensor<16x8xf32>{{.*}}, %arg1: tensor<8x12xf32>
// CHECK: %[[X:.*]] = "ttir.mesh_shard"(%arg0) <{shard_dims = array<i64: 0, 1>
// CHECK: %[[W:.*]] = "ttir.mesh_shard"(%arg1) <{shard_dims = array<i64: -1, 0>
// CHECK: %[[Y:.*]] = "ttir.matmul"(%[[X]], %[[W]]
// CHECK: %[[SUM:.*]] = "ttir.all_reduce"(%[[Y]]
// CHECK: %[[OUT:.*]] = "ttir.mesh_shard"(%[[SUM]]
// CHECK: return %[[OUT]]
