// RUN: jaxmesh opt --ttir-to-ttnn-backend-pipeline %s | filecheck %s

// What depends on parameters and constants alone is a function that a load_cached calls; operations that read one
// another are one. Its arguments stay in host memory if nothing else reads them, and those of an input come in rows.
func.func @joined(%x: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<input>}, %w: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<parameter>}, %b: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<parameter>}, %c: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<constant>}) -> tensor<32x32xbf16> {
  %0 = "ttir.add"(%x, %w) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %1 = "ttir.add"(%w, %b) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %2 = "ttir.add"(%b, %c) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %3 = "ttir.subtract"(%1, %2) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %4 = "ttir.multiply"(%0, %3) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %5 = "ttir.multiply"(%4, %2) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  return %5 : tensor<32x32xbf16>
}
// CHECK: #[[HOST:.*]] = #ttnn.ttnn_layout<{{.*}}, #system_memory>>
// CHECK: func.func private @joined_const_eval_0(%arg0: {{.*}}, %arg1: tensor<32x32xbf16, #[[HOST]]>, %arg2: tensor<32x32xbf16, #[[HOST]]>) -> ({{.*}}) attributes {tt.function_type = "const_eval"} {
// CHECK: "ttnn.to_device"(%arg2,
// CHECK: "ttnn.to_device"(%arg1,
// CHECK: "ttnn.add"(%arg0,
// CHECK: "ttnn.add"
// CHECK: %[[DIFFERENCE:.*]] = "ttnn.subtract"
// CHECK-NOT: "ttnn.deallocate"(%arg
// CHECK: return %{{.*}}, %[[DIFFERENCE]] :
// CHECK: func.func @joined(%arg0: {{.*}}argument_type<input>
// CHECK: %0:2 = ttcore.load_cached(@joined_const_eval_0, [%arg1, %arg2, %arg3]) : (
// CHECK: %[[TILES:.*]] = "ttnn.to_layout"(%arg0)
// CHECK: "ttnn.add"(%[[TILES]], %arg1)
// CHECK-NOT: "ttnn.deallocate"(%0#
// CHECK: return

// Those that share an argument alone are not joined, and what is made from nothing is constant.
func.func @split(%x: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<input>}, %w: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<parameter>}) -> (tensor<32x32xbf16>, tensor<32x32xbf16>) {
  %0 = "ttir.exp"(%w) : (tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %1 = "ttir.add"(%x, %0) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %2 = "ttir.neg"(%w) : (tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %3 = "ttir.full"() <{fill_value = 3.0 : f32, shape = array<i32: 32, 32>}> : () -> tensor<32x32xbf16>
  %4 = "ttir.multiply"(%1, %3) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  return %2, %4 : tensor<32x32xbf16>, tensor<32x32xbf16>
}
// CHECK-LABEL: func.func private @split_const_eval_0
// CHECK: "ttnn.exp"
// CHECK-LABEL: func.func private @split_const_eval_1
// CHECK: "ttnn.neg"
// CHECK-LABEL: func.func private @split_const_eval_2() ->
// CHECK: "ttnn.full"
// CHECK-LABEL: func.func @split(
// CHECK: ttcore.load_cached(@split_const_eval_0, [%arg1]) : (
// CHECK: ttcore.load_cached(@split_const_eval_1, [%arg1]) : (
// CHECK: ttcore.load_cached(@split_const_eval_2, []) : () ->

// A random number is another one in each call, and so is not computed once.
func.func @random(%x: tensor<32x32xbf16>) -> tensor<32x32xbf16> {
  %0 = "ttir.rand"() <{high = 1.0 : f32, low = 0.0 : f32, seed = 0 : ui32, size = [32 : i32, 32 : i32]}> : () -> tensor<32x32xbf16>
  %1 = "ttir.add"(%x, %0) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  return %1 : tensor<32x32xbf16>
}
// CHECK-LABEL: func.func @random
// CHECK-NOT: load_cached
// CHECK: "ttnn.rand"
