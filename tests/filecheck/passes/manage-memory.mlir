// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s
// Each buffer is deallocated once, after its last use, but for arguments on the devices, which are the caller's; what a
// caller keeps is copied before an op works in place.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x2>]>} {
  // CHECK-LABEL: func.func @last_uses(
  func.func @last_uses(%arg0: tensor<32x32xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<32x32xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %[[X:.*]] = "ttnn.exp"(%arg0)
    // CHECK-NEXT: %[[Y:.*]] = "ttnn.neg"(%[[X]])
    // CHECK-NEXT: %[[Z:.*]] = "ttnn.add"(%[[X]], %[[Y]])
    // CHECK-NEXT: "ttnn.deallocate"(%[[X]])
    // CHECK-NEXT: "ttnn.deallocate"(%[[Y]])
    // CHECK-NEXT: return %[[Z]]
    %0 = "ttir.exp"(%arg0) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %1 = "ttir.neg"(%0) : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %2 = "ttir.add"(%0, %1) : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
    return %2 : tensor<32x32xf32>
  }

  // A reshape of whole tiles is a view: one buffer, freed once, whoever shares it.
  // CHECK-LABEL: func.func @a_view(
  func.func @a_view(%arg0: tensor<64x32xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x32x32xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %[[X:.*]] = "ttnn.exp"(%arg0)
    // CHECK: %[[V:.*]] = "ttnn.reshape"(%[[X]])
    // CHECK-NEXT: %[[Y:.*]] = "ttnn.neg"(%[[V]])
    // CHECK-NEXT: "ttnn.deallocate"(%[[V]]) <{force = true}>
    // CHECK-NEXT: return %[[Y]]
    %0 = "ttir.exp"(%arg0) : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %1 = "ttir.reshape"(%0) <{shape = [2 : i32, 32 : i32, 32 : i32]}> : (tensor<64x32xf32>) -> tensor<2x32x32xf32>
    %2 = "ttir.neg"(%1) : (tensor<2x32x32xf32>) -> tensor<2x32x32xf32>
    return %2 : tensor<2x32x32xf32>
  }

  // CHECK-LABEL: func.func @in_place(
  func.func @in_place(%arg0: tensor<2x4x32x32xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<2x4x8x32xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x4x32x32xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %[[C:.*]] = "ttnn.assign"(%arg0)
    // CHECK: "ttnn.fill_cache"(%[[C]], %arg1)
    // CHECK: return %[[C]]
    // expected-warning@+1 {{ttir.fill_cache has no result}}
    %0 = "ttir.fill_cache"(%arg0, %arg1) <{batch_offset = 0 : i32}> : (tensor<2x4x32x32xf32>, tensor<2x4x8x32xf32>) -> tensor<2x4x32x32xf32>
    return %0 : tensor<2x4x32x32xf32>
  }
}
