// RUN: jaxmesh opt --convert-ttnn-to-ttir %s | filecheck %s

// Ops of TTNN that are marked for the D2M compiler become ops of TTIR, with their layouts and the element types of TTIR;
// others stay.
#dram = #ttnn.buffer_type<dram>
#rows = #ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <1x1>, memref<1x1x!ttcore.tile<32x32, f32>, #dram>, <interleaved>>
#cores = #ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <1x1>, memref<1x1x!ttcore.tile<32x32, f32>, #ttnn.buffer_type<l1>>, <block_sharded>, core_ranges = <[#ttnn.core_range<(0, 0), (0, 0)>]>>
func.func @marked(%x: tensor<32x32xf32, #rows>, %y: tensor<32x32xf32, #rows>) -> tensor<32xi32, #rows> {
  %0 = "ttnn.to_memory_config"(%x) : (tensor<32x32xf32, #rows>) -> tensor<32x32xf32, #cores>
  %1 = "ttnn.divide"(%0, %0) {ttnn.hoist_generic_via_d2m} : (tensor<32x32xf32, #cores>, tensor<32x32xf32, #cores>) -> tensor<32x32xf32, #cores>
  %2 = "ttnn.exp"(%1) : (tensor<32x32xf32, #cores>) -> tensor<32x32xf32, #cores>
  %3 = "ttnn.argmax"(%2) <{dim = 1 : si32, keep_dim = false}> {ttnn.hoist_generic_via_d2m} : (tensor<32x32xf32, #cores>) -> tensor<32xi32, #cores>
  %4 = "ttnn.to_memory_config"(%3) : (tensor<32xi32, #cores>) -> tensor<32xi32, #rows>
  return %4 : tensor<32xi32, #rows>
}
// CHECK: #dram = #ttnn.buffer_type<dram>
// CHECK: #l1 = #ttnn.buffer_type<l1>
// CHECK: #ttnn_layout1 = {{.*}}, #l1>, <block_sharded>
// CHECK-LABEL: func.func @marked(
// CHECK: "ttnn.to_memory_config"(%arg0) {{.*}} -> tensor<32x32xf32, #ttnn_layout1>
// CHECK: "ttir.div"(%{{.*}}, %{{.*}}) : (tensor<32x32xf32, #ttnn_layout1>, tensor<32x32xf32, #ttnn_layout1>)
// CHECK: "ttnn.exp"(
// CHECK: "ttir.argmax"(%{{.*}}) <{dim_arg = [1 : i32], keep_dim = false}> : {{.*}} -> tensor<32xi32, #ttnn_layout1>

// -----

#rows = #ttnn.ttnn_layout<(d0, d1) -> (d0, d1), <1x1>, memref<1x1x!ttcore.tile<32x32, f32>, #ttnn.buffer_type<dram>>, <interleaved>>
func.func @kept(%x: tensor<32x32xf32, #rows>) -> tensor<32x32xf32, #rows> {
  %0 = "ttnn.exp"(%x) {ttnn.hoist_generic_via_d2m} : (tensor<32x32xf32, #rows>) -> tensor<32x32xf32, #rows>
  return %0 : tensor<32x32xf32, #rows>
}
// CHECK-LABEL: func.func @kept(
// CHECK: "ttir.exp"(%arg0)
