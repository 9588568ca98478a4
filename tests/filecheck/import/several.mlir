// Two pieces, as lit tests have them, with a private function in the second.
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x2>]>} {
  func.func @first(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "ttir.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x2>]>} {
  func.func private @twice(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "ttir.add"(%arg0, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func @second(%arg0: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %0 = func.call @twice(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = call @twice(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %0, %1 : tensor<4xf32>, tensor<4xf32>
  }
}
// RUN: jaxmesh opt %s | filecheck %s
// CHECK: // @first (line 3)
// CHECK: "mesh" = 1x2
// CHECK: // @second (line 16)
// CHECK: "mesh" = 2x2
// CHECK-NOT: @twice
