// RUN: jaxmesh opt --const-eval-hoist-transform %s | filecheck %s

// Functions that run once, of TTIR, before it is lowered.
func.func @split(%x: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<input>}, %w: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<parameter>}, %b: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<constant>}) -> tensor<32x32xbf16> {
  %0 = "ttir.add"(%x, %w) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %1 = "ttir.neg"(%w) : (tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %2 = "ttir.exp"(%b) : (tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %3 = "ttir.multiply"(%0, %1) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %4 = "ttir.multiply"(%3, %2) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  return %4 : tensor<32x32xbf16>
}
// CHECK-LABEL: func.func private @split_const_eval_0(%arg0: tensor<32x32xbf16>) -> tensor<32x32xbf16> attributes {tt.function_type = "const_eval"} {
// CHECK-NEXT: "ttir.neg"(%arg0)
// CHECK-NEXT: return
// CHECK-LABEL: func.func private @split_const_eval_1(%arg0
// CHECK-NEXT: "ttir.exp"(%arg0)
// CHECK-NEXT: return
// CHECK-LABEL: func.func @split(
// CHECK-NEXT: %0 = ttcore.load_cached(@split_const_eval_0, [%arg1]) : (
// CHECK-NEXT: %1 = ttcore.load_cached(@split_const_eval_1, [%arg2]) : (
// CHECK-NEXT: "ttir.add"(%arg0, %arg1)
// CHECK-NEXT: "ttir.multiply"(%2, %0)
// CHECK-NEXT: "ttir.multiply"(%3, %1)

// A function that is there is one with what it is joined with.
func.func private @joined_const_eval_0(%w: tensor<32x32xbf16>) -> tensor<32x32xbf16> attributes {tt.function_type = "const_eval"} {
  %0 = "ttir.neg"(%w) : (tensor<32x32xbf16>) -> tensor<32x32xbf16>
  return %0 : tensor<32x32xbf16>
}
func.func @joined(%x: tensor<32x32xbf16>, %w: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<parameter>}) -> tensor<32x32xbf16> {
  %0 = ttcore.load_cached(@joined_const_eval_0, [%w]) : (tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %1 = "ttir.exp"(%0) : (tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %2 = "ttir.add"(%x, %1) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  return %2 : tensor<32x32xbf16>
}
// CHECK-LABEL: func.func private @joined_const_eval_0
// CHECK-NEXT: "ttir.neg"
// CHECK-NEXT: "ttir.exp"
// CHECK-LABEL: func.func @joined(
// CHECK-NEXT: ttcore.load_cached(@joined_const_eval_0, [%arg1]) : (

// Memory that an operation writes to is another in each call.
func.func @written(%c: tensor<1x8x64x64xbf16> {ttcore.argument_type = #ttcore.argument_type<constant>}, %x: tensor<1x8x32x64xbf16> {ttcore.argument_type = #ttcore.argument_type<constant>}) -> (tensor<1x8x64x64xbf16>, tensor<1x8x32x64xbf16>) {
  %0 = "ttir.neg"(%c) : (tensor<1x8x64x64xbf16>) -> tensor<1x8x64x64xbf16>
  "ttir.fill_cache"(%c, %x) <{batch_offset = 0 : i32}> : (tensor<1x8x64x64xbf16>, tensor<1x8x32x64xbf16>) -> ()
  %1 = "ttir.neg"(%x) : (tensor<1x8x32x64xbf16>) -> tensor<1x8x32x64xbf16>
  return %0, %1 : tensor<1x8x64x64xbf16>, tensor<1x8x32x64xbf16>
}
// CHECK-LABEL: func.func private @written_const_eval_0(%arg0: tensor<1x8x32x64xbf16>
// CHECK-LABEL: func.func @written(
// CHECK-NEXT: ttcore.load_cached(@written_const_eval_0, [%arg1])
// CHECK-NEXT: "ttir.neg"(%arg0)
