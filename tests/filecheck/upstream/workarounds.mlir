// RUN: jaxmesh opt --ttir-to-ttnn-backend-pipeline=enable-const-eval=false %s | filecheck %s

func.func @compare(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> (tensor<8x8xi1>, tensor<8x8xi1>) {
  %0 = "ttir.le"(%a, %b) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xi1>
  %1 = "ttir.lt"(%a, %b) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xi1>
  return %0, %1 : tensor<8x8xi1>, tensor<8x8xi1>
}
// CHECK-LABEL: func.func @compare(
// CHECK: "ttnn.ge"(%arg1, %arg0)
// CHECK: "ttnn.gt"(%arg1, %arg0)

func.func @fold_cast(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "ttir.typecast"(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
// CHECK-LABEL: func.func @fold_cast(
// CHECK-NOT: "ttnn.typecast"
// CHECK: return %arg0

func.func @narrow(%a: tensor<8x8xf32>, %p: tensor<8x8xi1>) -> (tensor<8x8xf32>, tensor<8xf32>, tensor<8x8xf32>) {
  %0 = "ttir.tanh"(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "ttir.prod"(%a) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<8x8xf32>) -> tensor<8xf32>
  %2 = "ttir.where"(%p, %a, %a) : (tensor<8x8xi1>, tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0, %1, %2 : tensor<8x8xf32>, tensor<8xf32>, tensor<8x8xf32>
}
// CHECK-LABEL: func.func @narrow(
// CHECK: "ttnn.typecast"(%arg0) {{.*}} -> tensor<8x8xbf16
// CHECK: "ttnn.tanh"{{.*}} -> tensor<8x8xbf16
// CHECK: "ttnn.typecast"{{.*}} -> tensor<8x8xf32
// CHECK: "ttnn.prod"{{.*}} <{dim_arg = 1 : si64, keep_dim = false}> {{.*}} -> tensor<8xbf16
// CHECK: "ttnn.typecast"{{.*}} -> tensor<8xf32
// CHECK: %[[P:.*]] = "ttnn.typecast"(%arg1) {{.*}} -> tensor<8x8xf32
// CHECK: "ttnn.where"(%[[P]], %arg0, %arg0)

func.func @any(%a: tensor<8x8xbf16>) -> tensor<8xbf16> {
  %0 = "ttir.reduce_or"(%a) <{dim_arg = [0 : i32], keep_dim = false}> : (tensor<8x8xbf16>) -> tensor<8xbf16>
  return %0 : tensor<8xbf16>
}
// CHECK-LABEL: func.func @any(
// CHECK: "ttnn.sum"(%arg0) <{dim_arg = [0 : i32], keep_dim = false}>

func.func @powers(%a: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %two = "ttir.full"() <{fill_value = 2.0 : f32, shape = array<i32: 8, 8>}> : () -> tensor<8x8xf32>
  %less = "ttir.full"() <{fill_value = -2.0 : f32, shape = array<i32: 8, 8>}> : () -> tensor<8x8xf32>
  %0 = "ttir.pow"(%a, %two) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "ttir.pow"(%a, %less) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}
// CHECK-LABEL: func.func @powers(
// CHECK: "ttnn.pow_scalar"(%arg0) <{rhs = 2.000000e+00 : f32}>
// CHECK: "ttnn.pow_tensor"(%arg0

func.func @clamp(%a: tensor<8xi32>, %low: tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>) {
  %one = "ttir.full"() <{fill_value = 1 : i32, shape = array<i32: 8>}> : () -> tensor<8xi32>
  %ten = "ttir.full"() <{fill_value = 10 : i32, shape = array<i32: 8>}> : () -> tensor<8xi32>
  %0 = "ttir.clamp_tensor"(%a, %one, %ten) : (tensor<8xi32>, tensor<8xi32>, tensor<8xi32>) -> tensor<8xi32>
  %1 = "ttir.clamp_tensor"(%a, %low, %ten) : (tensor<8xi32>, tensor<8xi32>, tensor<8xi32>) -> tensor<8xi32>
  return %0, %1 : tensor<8xi32>, tensor<8xi32>
}
// CHECK-LABEL: func.func @clamp(
// CHECK: "ttnn.clamp_scalar"(%arg0) <{max = 10 : i32, min = 1 : i32}>
// CHECK: "ttnn.clamp_tensor"(%arg0, %arg1, %

func.func @moves(%a: tensor<4x6xf32>, %i: tensor<4x3xui32>, %none: tensor<0x6xf32>, %b: tensor<2xi32>) -> (tensor<4x3xf32>, tensor<4x6xf32>, tensor<2x2xf32>) {
  %0 = "ttir.gather"(%a, %i) <{dim = -1 : i32}> : (tensor<4x6xf32>, tensor<4x3xui32>) -> tensor<4x3xf32>
  %1 = "ttir.concat"(%none, %a) <{dim = 0 : si32}> : (tensor<0x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  %2 = "ttir.slice_dynamic"(%a, %b, %b) <{step = [1 : i32, 1 : i32]}> : (tensor<4x6xf32>, tensor<2xi32>, tensor<2xi32>) -> tensor<2x2xf32>
  return %0, %1, %2 : tensor<4x3xf32>, tensor<4x6xf32>, tensor<2x2xf32>
}
// CHECK-LABEL: func.func @moves(
// CHECK: "ttnn.gather"(%arg0, %arg1) <{dim = -1 : si32}>
// CHECK-NOT: "ttnn.concat"
// CHECK: "ttnn.slice_dynamic"(%arg0

func.func @lookup(%i: tensor<2x4xui32>, %w: tensor<1x1x1x10x12xf32>) -> tensor<2x4x12xf32> {
  %0 = "ttir.embedding"(%i, %w) : (tensor<2x4xui32>, tensor<1x1x1x10x12xf32>) -> tensor<2x4x12xf32>
  return %0 : tensor<2x4x12xf32>
}
// CHECK-LABEL: func.func @lookup(
// CHECK: "ttnn.reshape"(%arg1) <{shape = [1 : i32, 1 : i32, 10 : i32, 12 : i32]}>
// CHECK: "ttnn.embedding"{{.*}} -> tensor<2x4x12xbf16

func.func @slopes(%i: tensor<1x10xi32>, %w: tensor<50x64xbf16>, %g: tensor<1x10x64xbf16>) -> tensor<50x64xbf16> {
  %0 = "ttir.embedding_backward"(%i, %w, %g) : (tensor<1x10xi32>, tensor<50x64xbf16>, tensor<1x10x64xbf16>) -> tensor<50x64xbf16>
  return %0 : tensor<50x64xbf16>
}
// CHECK-LABEL: func.func @slopes(
// CHECK-DAG: "ttnn.pad"{{.*}} -> tensor<1x32x64xbf16
// CHECK-DAG: "ttnn.pad"{{.*}} -> tensor<1x32xsi32
// CHECK: "ttnn.embedding_bw"{{.*}} -> tensor<1x1x50x64xbf16
// CHECK: "ttnn.reshape"{{.*}} <{shape = [50 : i32, 64 : i32]}>

func.func @pool(%x: tensor<1x8x8x32xf32>) -> tensor<1x4x4x32xf32> {
  %0 = "ttir.avg_pool2d"(%x) <{kernel = array<i32: 2, 2>, stride = array<i32: 2, 2>, dilation = array<i32: 1, 1>, padding = array<i32: 0, 0, 0, 0>, ceil_mode = false}> : (tensor<1x8x8x32xf32>) -> tensor<1x4x4x32xf32>
  return %0 : tensor<1x4x4x32xf32>
}
// CHECK-LABEL: func.func @pool(
// CHECK: "ttnn.avg_pool2d"{{.*}} -> tensor<1x1x16x32xbf16
// CHECK: "ttnn.typecast"{{.*}} -> tensor<1x4x4x32xf32

func.func @heads(%x: tensor<1x20x96xbf16>) -> (tensor<1x4x20x8xbf16>, tensor<1x4x8x20xbf16>, tensor<1x4x20x8xbf16>) {
  %q, %k, %v = "ttir.split_query_key_value_and_split_heads"(%x) <{num_heads = 4 : ui32, transpose_key = true}> : (tensor<1x20x96xbf16>) -> (tensor<1x4x20x8xbf16>, tensor<1x4x8x20xbf16>, tensor<1x4x20x8xbf16>)
  return %q, %k, %v : tensor<1x4x20x8xbf16>, tensor<1x4x8x20xbf16>, tensor<1x4x20x8xbf16>
}
// CHECK-LABEL: func.func @heads(
// CHECK-COUNT-3: "ttnn.slice_static"
// CHECK-COUNT-3: "ttnn.reshape"
// CHECK-COUNT-3: "ttnn.permute"
// CHECK-NOT: "ttnn.permute"

func.func @names(%x: tensor<4x64xbf16>) -> (tensor<4x64xbf16>, tensor<4x64xi16>, tensor<4x64xbf16>) {
  %0, %1 = "ttir.sort"(%x) : (tensor<4x64xbf16>) -> (tensor<4x64xbf16>, tensor<4x64xi16>)
  %2, %3 = "ttir.sort"(%0) : (tensor<4x64xbf16>) -> (tensor<4x64xbf16>, tensor<4x64xi16>)
  return %0, %1, %2 : tensor<4x64xbf16>, tensor<4x64xi16>, tensor<4x64xbf16>
}
// CHECK-LABEL: func.func @names(
// CHECK: %values, %indices = "ttnn.sort"(%arg0) {{.*}} -> (tensor<4x64xbf16, {{.*}}>, tensor<4x64xui16
// CHECK: %values_0, %indices_1 = "ttnn.sort"(%values)

func.func @strided(%x: tensor<8x64xui16>) -> (tensor<4x64xui16>, tensor<4x64xui16>) {
  %0 = "ttir.slice_static"(%x) <{begins = [0 : i32, 0 : i32], ends = [8 : i32, 64 : i32], step = [2 : i32, 1 : i32]}> : (tensor<8x64xui16>) -> tensor<4x64xui16>
  %1 = "ttir.slice_static"(%x) <{begins = [0 : i32, 0 : i32], ends = [4 : i32, 64 : i32], step = [1 : i32, 1 : i32]}> : (tensor<8x64xui16>) -> tensor<4x64xui16>
  return %0, %1 : tensor<4x64xui16>, tensor<4x64xui16>
}
// CHECK-LABEL: func.func @strided(
// CHECK: "ttnn.slice_static"{{.*}} : (tensor<8x64xui32, {{.*}}>) -> tensor<4x64xui32
// CHECK: "ttnn.typecast"{{.*}} -> tensor<4x64xui16
// CHECK: "ttnn.slice_static"{{.*}} : (tensor<8x64xui16, {{.*}}>) -> tensor<4x64xui16

func.func @implicit(%x: tensor<4x64xf32>, %row: tensor<1x64xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %0 = "ttir.broadcast"(%row) <{broadcast_dimensions = array<i64: 4, 1>}> : (tensor<1x64xf32>) -> tensor<4x64xf32>
  %1 = "ttir.add"(%x, %0) : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
  %2 = "ttir.exp"(%0) : (tensor<4x64xf32>) -> tensor<4x64xf32>
  return %1, %2 : tensor<4x64xf32>, tensor<4x64xf32>
}
// CHECK-LABEL: func.func @implicit(
// CHECK: "ttnn.add"(%arg0, %arg1) : (tensor<4x64xf32, {{.*}}>, tensor<1x64xf32, {{.*}}>) -> tensor<4x64xf32
// CHECK: %[[EXP:.*]] = "ttnn.exp"(%arg1) {{.*}} -> tensor<1x64xf32
// CHECK: "ttnn.repeat"(%[[EXP]]) <{repeat_dims = #ttnn.shape<4x1>}>

func.func @created(%x: tensor<4x64xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %two = "ttir.full"() <{fill_value = 2.0 : f32, shape = array<i32: 4, 64>}> : () -> tensor<4x64xf32>
  %three = "ttir.full"() <{fill_value = 3.0 : f32, shape = array<i32: 4, 64>}> : () -> tensor<4x64xf32>
  %0 = "ttir.multiply"(%x, %two) : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
  %1 = "ttir.add"(%0, %three) : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
  return %1, %three : tensor<4x64xf32>, tensor<4x64xf32>
}
// CHECK-LABEL: func.func @created(
// CHECK-DAG: "ttnn.full"{{.*}}fill_value = 2.000000e+00 : f32, shape = #ttnn.shape<1x1>
// CHECK-DAG: "ttnn.full"{{.*}}fill_value = 3.000000e+00 : f32, shape = #ttnn.shape<4x64>

func.func @unit_dims(%x: tensor<32x8x1x64xbf16>) -> (tensor<1x32x8x64xbf16>, tensor<8x32x64xbf16>) {
  %0 = "ttir.permute"(%x) <{permutation = array<i64: 2, 0, 1, 3>}> : (tensor<32x8x1x64xbf16>) -> tensor<1x32x8x64xbf16>
  %1 = "ttir.reshape"(%x) <{shape = [32 : i32, -1 : i32, 64 : i32]}> : (tensor<32x8x1x64xbf16>) -> tensor<32x8x64xbf16>
  %2 = "ttir.permute"(%1) <{permutation = array<i64: 1, 0, 2>}> : (tensor<32x8x64xbf16>) -> tensor<8x32x64xbf16>
  return %0, %2 : tensor<1x32x8x64xbf16>, tensor<8x32x64xbf16>
}
// CHECK-LABEL: func.func @unit_dims(
// CHECK: "ttnn.reshape"(%arg0) <{shape = [1 : i32, 32 : i32, 8 : i32, 64 : i32]}>
// CHECK: "ttnn.reshape"(%arg0) <{shape = [32 : i32, 8 : i32, 64 : i32]}>
// CHECK: "ttnn.permute"

func.func @empty_slice(%x: tensor<10x64xf32>) -> tensor<10x0xf32> {
  %0 = "ttir.slice_static"(%x) <{begins = [0 : i32, 128 : i32], ends = [10 : i32, 128 : i32], step = [1 : i32, 8 : i32]}> : (tensor<10x64xf32>) -> tensor<10x0xf32>
  return %0 : tensor<10x0xf32>
}
// CHECK-LABEL: func.func @empty_slice(
// CHECK: "ttnn.slice_static"{{.*}} -> tensor<10x0xf32
