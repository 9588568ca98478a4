// RUN: jaxmesh opt %s --stablehlo-to-ttir | filecheck %s

// Ops and composites of StableHLO that are one op of TTIR, as upstream's conversion makes it.
func.func @product(%a: tensor<16x32xf32>, %b: tensor<8x32xf32>) -> tensor<16x8xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [1] : (tensor<16x32xf32>, tensor<8x32xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}
// CHECK-LABEL: func.func @product(
// CHECK: "ttir.dot_general"(%arg0, %arg1) <{batch_dims_lhs = array<i64>, batch_dims_rhs = array<i64>, contract_dims_lhs = array<i64: 1>, contract_dims_rhs = array<i64: 1>}>

func.func @sort(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xi32>) {
  %0 = stablehlo.iota dim = 1 : tensor<4x8xi32>
  %1:2 = "stablehlo.sort"(%x, %0) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>):
    %2 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  }) : (tensor<4x8xf32>, tensor<4x8xi32>) -> (tensor<4x8xf32>, tensor<4x8xi32>)
  return %1#0, %1#1 : tensor<4x8xf32>, tensor<4x8xi32>
}
// CHECK-LABEL: func.func @sort(
// CHECK-NEXT: %0:2 = "ttir.sort"(%arg0) <{descending = true, dim = 1 : si32, stable = true}> : (tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xi32>)
// CHECK-NEXT: return %0#0, %0#1

func.func @bits(%x: tensor<4xf32>) -> tensor<4xui32> {
  %0 = stablehlo.bitcast_convert %x : (tensor<4xf32>) -> tensor<4xui32>
  return %0 : tensor<4xui32>
}
// CHECK-LABEL: func.func @bits(
// CHECK: "ttir.bitcast_convert"(%arg0)

func.func @size(%x: tensor<4x8xf32>) -> tensor<i32> {
  %0 = stablehlo.get_dimension_size %x, dim = 1 : (tensor<4x8xf32>) -> tensor<i32>
  return %0 : tensor<i32>
}
// CHECK-LABEL: func.func @size(
// CHECK: "ttir.full"() <{fill_value = 8 : i32, shape = array<i32>}> : () -> tensor<i32>

func.func @random() -> tensor<8x4xf32> {
  %low = stablehlo.constant dense<-1.0> : tensor<f32>
  %one = stablehlo.constant dense<2.0> : tensor<1xf32>
  %high = stablehlo.reshape %one : (tensor<1xf32>) -> tensor<f32>
  %shape = stablehlo.constant dense<[8, 4]> : tensor<2xi32>
  %0 = stablehlo.rng %low, %high, %shape, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<2xi32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
// CHECK-LABEL: func.func @random(
// CHECK: "ttir.rand"() <{high = 2.000000e+00 : f32, low = -1.000000e+00 : f32, seed = 0 : ui32, size = [8 : i32, 4 : i32]}>

func.func @composites(%x: tensor<4x8xf32>, %i: tensor<4x3xi32>) -> (tensor<4x8xf32>, tensor<4x3xf32>, tensor<4x8xf32>) {
  %0 = stablehlo.composite "tenstorrent.gelu_tanh" %x {decomposition = @same} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.composite "tenstorrent.gather" %0, %i {composite_attributes = {dim = 1 : i64}, decomposition = @three} : (tensor<4x8xf32>, tensor<4x3xi32>) -> tensor<4x3xf32>
  %2 = stablehlo.composite "tenstorrent.layer_norm" %x {composite_attributes = {epsilon = 1.0e-05 : f32, normalized_shape = dense<8> : tensor<1xi64>}, decomposition = @same} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0, %1, %2 : tensor<4x8xf32>, tensor<4x3xf32>, tensor<4x8xf32>
}
// CHECK-LABEL: func.func @composites(
// CHECK: %[[G:.*]] = "ttir.gelu"(%arg0)
// CHECK: %[[I:.*]] = "ttir.typecast"(%arg1) {{.*}} -> tensor<4x3xui32>
// CHECK: "ttir.gather"(%[[G]], %[[I]]) <{dim = 1 : i32}>
// CHECK: "ttir.layer_norm"(%arg0)

func.func @attention(%q: tensor<2x16x8xf32>, %m: tensor<2x16x16xf32>) -> tensor<2x16x8xf32> {
  %0 = stablehlo.composite "tenstorrent.scaled_dot_product_attention" %q, %q, %q, %m {composite_attributes = {is_causal = false}, decomposition = @first} : (tensor<2x16x8xf32>, tensor<2x16x8xf32>, tensor<2x16x8xf32>, tensor<2x16x16xf32>) -> tensor<2x16x8xf32>
  return %0 : tensor<2x16x8xf32>
}
// CHECK-LABEL: func.func @attention(
// CHECK: %[[Q:.*]] = "ttir.reshape"(%arg0) {{.*}} -> tensor<2x1x16x8xf32>
// CHECK: %[[M:.*]] = "ttir.reshape"(%arg1) {{.*}} -> tensor<2x1x16x16xf32>
// CHECK: "ttir.scaled_dot_product_attention"(%[[Q]], %{{.*}}, %{{.*}}, %[[M]]) <{is_causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>}> {{.*}} -> tensor<2x1x16x8xf32>

func.func @top(%x: tensor<1x40xf32>) -> (tensor<1x5xf32>, tensor<1x5xi32>) {
  %0 = stablehlo.composite "tenstorrent.topk_values" %x {composite_attributes = {k = 5 : i64, sorted = true}, decomposition = @five} : (tensor<1x40xf32>) -> tensor<1x5xf32>
  %1:2 = stablehlo.custom_call @mhlo.topk(%x) {mhlo.attributes = {k = 5 : i64, largest = false}} : (tensor<1x40xf32>) -> (tensor<1x5xf32>, tensor<1x5xi32>)
  return %0, %1#1 : tensor<1x5xf32>, tensor<1x5xi32>
}
// CHECK-LABEL: func.func @top(
// CHECK-NEXT: %0:2 = "ttir.topk"(%arg0) <{dim = -1 : i32, k = 5 : i32, largest = true, sorted = true}>
// CHECK-NEXT: %1:2 = "ttir.topk"(%arg0) <{dim = -1 : i32, k = 5 : i32, largest = false, sorted = false}>

// A composite of another name is what its decomposition says.
func.func @other(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = stablehlo.composite "other.name" %x {decomposition = @same} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
// CHECK-LABEL: func.func @other(
// CHECK: "ttir.neg"(%arg0)

func.func private @same(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = stablehlo.negate %x : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
func.func private @three(%x: tensor<4x8xf32>, %i: tensor<4x3xi32>) -> tensor<4x3xf32> {
  %0 = stablehlo.slice %x [0:4, 0:3] : (tensor<4x8xf32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}
func.func private @first(%q: tensor<2x16x8xf32>, %k: tensor<2x16x8xf32>, %v: tensor<2x16x8xf32>, %m: tensor<2x16x16xf32>) -> tensor<2x16x8xf32> {
  return %q : tensor<2x16x8xf32>
}
func.func private @five(%x: tensor<1x40xf32>) -> tensor<1x5xf32> {
  %0 = stablehlo.slice %x [0:1, 0:5] : (tensor<1x40xf32>) -> tensor<1x5xf32>
  return %0 : tensor<1x5xf32>
}
