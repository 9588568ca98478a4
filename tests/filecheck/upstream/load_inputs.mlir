// RUN: jaxmesh opt --ttir-to-emitpy-pipeline="load-input-tensors-from-disk=true tensor-load-directory=tensors tensor-load-file-prefix=input" %s | filecheck %s

// The inputs are those of files, which have the numbers of the arguments.
func.func @add(%w: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<constant>}, %x: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<input>}) -> tensor<32x32xbf16> {
  %0 = "ttir.add"(%w, %w) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %1 = "ttir.subtract"(%x, %0) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  return %1 : tensor<32x32xbf16>
}
// CHECK: def load_activations_for_add():
// CHECK: utils.load_tensor("tensors/input1.tensorbin", ttnn.Layout.ROW_MAJOR, ttnn.DataType.BFLOAT16, utils_DeviceGetter_get_device_{{.*}}, ttnn.MemoryConfig(
// CHECK: def load_weights_for_add():
// CHECK: utils.load_tensor("tensors/input0.tensorbin", ttnn.Layout.ROW_MAJOR, ttnn.DataType.BFLOAT16, None, None)
// CHECK: def main():
// CHECK-NEXT: {{^  }}[[X:\w+]] = load_activations_for_add()
// CHECK-NEXT: {{^  }}[[W:\w+]] = load_weights_for_add()
// CHECK-NEXT: add({{.*}}[[X]], [[W]])
