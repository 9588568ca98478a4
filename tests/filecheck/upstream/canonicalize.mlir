// RUN: jaxmesh opt %s --canonicalize | filecheck %s

func.func @twice(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %0 = "ttir.neg"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "ttir.neg"(%0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = "ttir.relu"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = "ttir.relu"(%2) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %4 = "ttir.maximum"(%x, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1, %3, %4 : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}
// CHECK-LABEL: func.func @twice(
// CHECK-NOT: "ttir.neg"
// CHECK: %[[RELU:.*]] = "ttir.relu"(%arg0)
// CHECK-NEXT: return %arg0, %[[RELU]], %arg0

func.func @moves(%x: tensor<2x3x4xf32>) -> (tensor<4x3x2xf32>, tensor<2x12xf32>, tensor<2x3x4xf32>, tensor<2x3x4xf32>, tensor<1x2x3x4xf32>) {
  %0 = "ttir.transpose"(%x) <{dim0 = 0 : si32, dim1 = 1 : si32}> : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
  %1 = "ttir.permute"(%0) <{permutation = array<i64: 2, 0, 1>}> : (tensor<3x2x4xf32>) -> tensor<4x3x2xf32>
  %2 = "ttir.reshape"(%x) <{shape = [6 : i32, 4 : i32]}> : (tensor<2x3x4xf32>) -> tensor<6x4xf32>
  %3 = "ttir.reshape"(%2) <{shape = [2 : i32, 12 : i32]}> : (tensor<6x4xf32>) -> tensor<2x12xf32>
  %4 = "ttir.reverse"(%x) <{dimensions = array<i64: 0, 1>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %5 = "ttir.reverse"(%4) <{dimensions = array<i64: 1, 2>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %6 = "ttir.typecast"(%x) : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %7 = "ttir.unsqueeze"(%x) <{dim = 0 : si32}> : (tensor<2x3x4xf32>) -> tensor<1x2x3x4xf32>
  return %1, %3, %5, %6, %7 : tensor<4x3x2xf32>, tensor<2x12xf32>, tensor<2x3x4xf32>, tensor<2x3x4xf32>, tensor<1x2x3x4xf32>
}
// CHECK-LABEL: func.func @moves(
// CHECK-NEXT: %{{.*}} = "ttir.permute"(%arg0) <{permutation = array<i64: 2, 1, 0>}>
// CHECK-NEXT: %{{.*}} = "ttir.reshape"(%arg0) <{shape = [2 : i32, 12 : i32]}>
// CHECK-NEXT: %{{.*}} = "ttir.reverse"(%arg0) <{dimensions = array<i64: 0, 2>}>
// CHECK-NEXT: %{{.*}} = "ttir.reshape"(%arg0) <{shape = [1 : i32, 2 : i32, 3 : i32, 4 : i32]}>
// CHECK-NEXT: return %{{.*}}, %{{.*}}, %{{.*}}, %arg0, %

func.func @forms(%a: tensor<4xf32>, %b: tensor<4xf32>, %none: tensor<0xf32>) -> (tensor<4xi1>, tensor<8xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0 = "ttir.lt"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %1 = "ttir.concat"(%a, %none, %b) <{dim = 0 : si32}> : (tensor<4xf32>, tensor<0xf32>, tensor<4xf32>) -> tensor<8xf32>
  %zeros = "ttir.zeros"() <{shape = array<i32: 4>}> : () -> tensor<4xi1>
  %2 = "ttir.where"(%zeros, %a, %b) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %five = "ttir.full"() <{fill_value = 5.0 : f32, shape = array<i32: 4>}> : () -> tensor<4xf32>
  %3 = "ttir.logical_or"(%a, %five) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0, %1, %2, %3 : tensor<4xi1>, tensor<8xf32>, tensor<4xf32>, tensor<4xf32>
}
// CHECK-LABEL: func.func @forms(
// CHECK-NEXT: %[[GT:.*]] = "ttir.gt"(%arg1, %arg0)
// CHECK-NEXT: %[[BOTH:.*]] = "ttir.concat"(%arg0, %arg1) <{dim = 0 : si32}>
// CHECK-NEXT: %[[ONES:.*]] = "ttir.ones"()
// CHECK-NEXT: return %[[GT]], %[[BOTH]], %arg1, %[[ONES]]

func.func @kept(%a: tensor<1x4xf32>, %b: tensor<4x4xf32>, %i: tensor<4xi32>) -> (tensor<4x4xf32>, tensor<4xi32>) {
  %ones = "ttir.ones"() <{shape = array<i32: 4, 4>}> : () -> tensor<4x4xi1>
  %0 = "ttir.where"(%ones, %a, %b) : (tensor<4x4xi1>, tensor<1x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "ttir.logical_and"(%i, %i) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0, %1 : tensor<4x4xf32>, tensor<4xi32>
}
// CHECK-LABEL: func.func @kept(
// CHECK: "ttir.where"
// CHECK: "ttir.logical_and"
