// RUN: jaxmesh opt --ttcore-register-device --ttnn-layout --convert-ttnn-to-emitc %s | filecheck %s

// Weights in the order of a kernel, files, and functions that give tuples and optional tensors, as upstream prints them.
#dram = #ttnn.buffer_type<dram>
#host = #ttnn.ttnn_layout<(d0, d1, d2, d3) -> (d0 * 24 + d1 * 3 + d2, d3), <1x1>, memref<384x3xbf16, #ttnn.buffer_type<system_memory>>>
#tiles = #ttnn.ttnn_layout<(d0, d1, d2, d3) -> (d0 * 96 + d1 * 96 + d2, d3), <1x1>, memref<3x1x!ttcore.tile<32x32, bf16>, #dram>, <interleaved>>
#config = #ttnn.conv2d_config<weights_dtype = bf16>
func.func @weights(%w: tensor<16x8x3x3xbf16, #host>) -> tensor<1x1x72x16xbf16, #tiles> {
  %0 = "ttnn.get_device"() <{mesh_shape = #ttnn<mesh_shape 1x1>}> : () -> !ttnn.device
  %1 = "ttnn.prepare_conv2d_weights"(%w, %0) <{batch_size = 3 : i32, conv2d_config = #config, dilation = array<i32: 1, 1>, groups = 1 : i32, has_bias = true, in_channels = 8 : i32, input_dtype = #ttcore.supportedDataTypes<bf16>, input_height = 32 : i32, input_memory_config = #ttnn.memory_config<#dram, <interleaved>>, input_tensor_layout = #ttnn.layout<tile>, input_width = 32 : i32, kernel_size = array<i32: 3, 3>, out_channels = 16 : i32, padding = array<i32: 0, 2, 1, 3>, stride = array<i32: 2, 2>, weights_format = "OIHW"}> : (tensor<16x8x3x3xbf16, #host>, !ttnn.device) -> tensor<1x1x72x16xbf16, #tiles>
  return %1 : tensor<1x1x72x16xbf16, #tiles>
}
// CHECK-LABEL: weights(
// CHECK: ttnn::operations::conv::conv2d::prepare_conv_weights(v2, ::ttnn::MemoryConfig{::ttnn::TensorMemoryLayout::INTERLEAVED, ::ttnn::BufferType::DRAM, ::std::nullopt}, ::ttnn::Layout::TILE, "OIHW", 8, 16, 3, 32, 32, ::std::array<uint32_t, 2>{3, 3}, ::std::array<uint32_t, 2>{2, 2}, ::std::array<uint32_t, 4>{0, 2, 1, 3}, ::std::array<uint32_t, 2>{1, 1}, true, 1, {{v[0-9]+}}, ::ttnn::DataType::BFLOAT16, ::std::nullopt, ::ttnn::Conv2dConfig{.weights_dtype = ::ttnn::DataType::BFLOAT16}, ::std::nullopt, ::std::nullopt);

func.func @file(%x: tensor<1x1x72x16xbf16, #tiles>) -> tensor<1x1x72x16xbf16, #tiles> {
  %0 = "ttnn.get_device"() <{mesh_shape = #ttnn<mesh_shape 1x1>}> : () -> !ttnn.device
  "ttnn.dump_tensor"(%x) <{file_path = "x.tensorbin"}> : (tensor<1x1x72x16xbf16, #tiles>) -> ()
  %1 = "ttnn.load_tensor"(%0) <{file_path = "x.tensorbin"}> : (!ttnn.device) -> tensor<1x1x72x16xbf16, #tiles>
  return %1 : tensor<1x1x72x16xbf16, #tiles>
}
// CHECK-LABEL: file(
// CHECK: dump_tensor_flatbuffer("x.tensorbin", v2);
// CHECK: ttnn::loadTensor("x.tensorbin", ::ttnn::Layout::TILE, ::ttnn::DataType::BFLOAT16, {{v[0-9]+}}, ::ttnn::MemoryConfig{

func.func @attention(%q: tensor<1x1x8x64xbf16>, %k: tensor<1x8x64x64xbf16>, %at: tensor<1xi32>) -> tensor<1x1x8x64xbf16> {
  %0 = "ttnn.scaled_dot_product_attention_decode"(%q, %k, %k, %at) <{is_causal = true, operandSegmentSizes = array<i32: 1, 1, 1, 0, 1, 0>, scale = 1.0 : f32}> : (tensor<1x1x8x64xbf16>, tensor<1x8x64x64xbf16>, tensor<1x8x64x64xbf16>, tensor<1xi32>) -> tensor<1x1x8x64xbf16>
  return %0 : tensor<1x1x8x64xbf16>
}
// CHECK-LABEL: attention(
// CHECK: ttnn::transformer::scaled_dot_product_attention_decode(v2, v3, v3, true, ::std::nullopt, std::vector<uint32_t>(), v4, ::std::nullopt, 1.0f, ::std::nullopt, ::ttnn::MemoryConfig{

func.func @training(%q: tensor<1x1x32x32xbf16>) -> (tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>) {
  %0 = "ttnn.sdpa_fw"(%q, %q, %q) <{dropout_probability = 0.0 : f32, mask_type = #ttcore.attention_mask_type<causal>, return_intermediates = false}> : (tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>) -> tensor<1x1x32x32xbf16>
  %1:3 = "ttnn.sdpa_bw"(%q, %0, %q, %q, %q, %0) <{dropout_probability = 0.0 : f32, mask_type = #ttcore.attention_mask_type<causal>}> : (tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>) -> (tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>)
  return %1#0, %1#1, %1#2 : tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>, tensor<1x1x32x32xbf16>
}
// CHECK-LABEL: training(
// CHECK: ::std::vector<::std::optional<::ttnn::Tensor>> [[OPTIONAL:v[0-9]+]] = ttml::metal::sdpa_fw(
// CHECK: = util_get_optional_value([[OPTIONAL]][0]);
// CHECK: ::std::tuple<::ttnn::Tensor, ::ttnn::Tensor, ::ttnn::Tensor> [[TUPLE:v[0-9]+]] = ttml::metal::sdpa_bw(
// CHECK: = ::std::get<0>([[TUPLE]]);
// CHECK: = ::std::get<2>([[TUPLE]]);
