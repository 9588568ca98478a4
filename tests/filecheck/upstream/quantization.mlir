// RUN: jaxmesh opt %s --ttir-to-ttnn | filecheck %s

// A number of a type stands for (number - zero point) * scale; i8 is clipped to what it holds.
func.func @by_type(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %0 = "ttir.quantize"(%x) : (tensor<2x4xf32>) -> tensor<2x4x!quant.uniform<i8:f32, 5.000000e-01:3>>
  %1 = "ttir.requantize"(%0) : (tensor<2x4x!quant.uniform<i8:f32, 5.000000e-01:3>>) -> tensor<2x4x!quant.uniform<i32:f32, 2.500000e-01>>
  %2 = "ttir.dequantize"(%1) : (tensor<2x4x!quant.uniform<i32:f32, 2.500000e-01>>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
// CHECK-LABEL: func.func @by_type(
// CHECK: "ttnn.divide"
// CHECK: "ttnn.add"
// CHECK: "ttnn.minimum"
// CHECK: "ttnn.typecast"{{.*}} -> tensor<2x4xi32>
// CHECK: "ttnn.subtract"
// CHECK: "ttnn.multiply"
// CHECK: "ttnn.divide"
// CHECK-NOT: "ttnn.minimum"
// CHECK: "ttnn.multiply"

func.func @by_operands(%x: tensor<2x4xf32>, %s: tensor<4xf32>, %z: tensor<4xi32>) -> tensor<2x4xf32> {
  %0 = "ttir.quantize_unrolled"(%x, %s, %z) <{axis = 1 : i32}> : (tensor<2x4xf32>, tensor<4xf32>, tensor<4xi32>) -> tensor<2x4x!quant.uniform<i32:f32:1, {1.0, 2.0, 3.0, 4.0}>>
  %1 = "ttir.requantize_unrolled"(%0, %s, %z, %s, %z) <{axis = 1 : i32}> : (tensor<2x4x!quant.uniform<i32:f32:1, {1.0,2.0,3.0,4.0}>>, tensor<4xf32>, tensor<4xi32>, tensor<4xf32>, tensor<4xi32>) -> tensor<2x4x!quant.uniform<i32:f32:1, {1.0,2.0,3.0,4.0}>>
  %2 = "ttir.dequantize_unrolled"(%1, %s, %z) <{axis = 1 : i32}> : (tensor<2x4x!quant.uniform<i32:f32:1, {1.0,2.0,3.0,4.0}>>, tensor<4xf32>, tensor<4xi32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
// CHECK-LABEL: func.func @by_operands(
// CHECK: "ttnn.reshape"{{.*}} <{shape = [1 : i32, 4 : i32]}>
// CHECK: "ttnn.divide"
// CHECK: "ttnn.multiply"

func.func @of_ttnn(%x: tensor<2x4xf32>, %s: tensor<1xf32>, %z: tensor<1xi32>) -> tensor<2x4xf32> {
  %0 = "ttnn.quantize"(%x, %s, %z) <{output_dtype = #ttcore.supportedDataTypes<si32>}> : (tensor<2x4xf32>, tensor<1xf32>, tensor<1xi32>) -> tensor<2x4xsi32>
  %1 = "ttnn.requantize"(%0, %s, %z, %s, %z) : (tensor<2x4xsi32>, tensor<1xf32>, tensor<1xi32>, tensor<1xf32>, tensor<1xi32>) -> tensor<2x4xsi32>
  %2 = "ttnn.dequantize"(%1, %s, %z) : (tensor<2x4xsi32>, tensor<1xf32>, tensor<1xi32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
// CHECK-LABEL: func.func @of_ttnn(
// CHECK: "ttnn.divide"
// CHECK: "ttnn.multiply"
