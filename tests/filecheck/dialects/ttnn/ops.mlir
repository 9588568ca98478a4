// RUN: jaxmesh opt %s --ttir-to-ttnn --for-emulation | filecheck %s
// Ops of TTNN are read and printed again. Deallocations are added by the pass.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x2>]>} {
  // CHECK-LABEL: func.func @abs(
  func.func @abs(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.abs"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.abs"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @neg(
  func.func @neg(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.neg"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.neg"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @sign(
  func.func @sign(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.sign"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.sign"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @exp(
  func.func @exp(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.exp"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.exp"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @expm1(
  func.func @expm1(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.expm1"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.expm1"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @log(
  func.func @log(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.log"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.log"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @log1p(
  func.func @log1p(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.log1p"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.log1p"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @sqrt(
  func.func @sqrt(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.sqrt"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.sqrt"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @rsqrt(
  func.func @rsqrt(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.rsqrt"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.rsqrt"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @cbrt(
  func.func @cbrt(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.cbrt"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.cbrt"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @reciprocal(
  func.func @reciprocal(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.reciprocal"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.reciprocal"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @sin(
  func.func @sin(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.sin"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.sin"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @cos(
  func.func @cos(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.cos"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.cos"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @tan(
  func.func @tan(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.tan"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.tan"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @asin(
  func.func @asin(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.asin"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.asin"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @acos(
  func.func @acos(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.acos"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.acos"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @atan(
  func.func @atan(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.atan"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.atan"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @tanh(
  func.func @tanh(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.tanh"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.tanh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @asinh(
  func.func @asinh(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.asinh"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.asinh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @erf(
  func.func @erf(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.erf"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.erf"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @erfc(
  func.func @erfc(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.erfc"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.erfc"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @floor(
  func.func @floor(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.floor"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.floor"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @ceil(
  func.func @ceil(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.ceil"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.ceil"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @relu(
  func.func @relu(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.relu"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.relu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @relu6(
  func.func @relu6(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.relu6"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.relu6"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @gelu(
  func.func @gelu(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.gelu"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.gelu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @silu(
  func.func @silu(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.silu"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.silu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @sigmoid(
  func.func @sigmoid(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.sigmoid"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.sigmoid"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @hardsigmoid(
  func.func @hardsigmoid(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.hardsigmoid"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.hardsigmoid"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @mish(
  func.func @mish(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.mish"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.mish"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @bitwise_not(
  func.func @bitwise_not(%arg0: tensor<7xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<7xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.bitwise_not"(%{{[a-z0-9]+}}) : (tensor<7xi32>) -> tensor<7xi32>
    %0 = "ttnn.bitwise_not"(%arg0) : (tensor<7xi32>) -> tensor<7xi32>
    return %0 : tensor<7xi32>
  }

  // CHECK-LABEL: func.func @bitwise_and(
  func.func @bitwise_and(%arg0: tensor<3x4xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.bitwise_and"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    %0 = "ttnn.bitwise_and"(%arg0, %arg1) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    return %0 : tensor<3x4xi32>
  }

  // CHECK-LABEL: func.func @bitwise_or(
  func.func @bitwise_or(%arg0: tensor<3x4xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.bitwise_or"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    %0 = "ttnn.bitwise_or"(%arg0, %arg1) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    return %0 : tensor<3x4xi32>
  }

  // CHECK-LABEL: func.func @bitwise_xor(
  func.func @bitwise_xor(%arg0: tensor<3x4xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.bitwise_xor"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    %0 = "ttnn.bitwise_xor"(%arg0, %arg1) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    return %0 : tensor<3x4xi32>
  }

  // CHECK-LABEL: func.func @logical_left_shift(
  func.func @logical_left_shift(%arg0: tensor<8xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<8xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<8xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.logical_left_shift"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<8xui32>, tensor<8xui32>) -> tensor<8xui32>
    %0 = "ttnn.logical_left_shift"(%arg0, %arg1) : (tensor<8xui32>, tensor<8xui32>) -> tensor<8xui32>
    return %0 : tensor<8xui32>
  }

  // CHECK-LABEL: func.func @logical_right_shift(
  func.func @logical_right_shift(%arg0: tensor<8xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<8xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<8xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.logical_right_shift"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<8xui32>, tensor<8xui32>) -> tensor<8xui32>
    %0 = "ttnn.logical_right_shift"(%arg0, %arg1) : (tensor<8xui32>, tensor<8xui32>) -> tensor<8xui32>
    return %0 : tensor<8xui32>
  }

  // CHECK-LABEL: func.func @add(
  func.func @add(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.add"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.add"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @subtract(
  func.func @subtract(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.subtract"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.subtract"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @multiply(
  func.func @multiply(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.multiply"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.multiply"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @maximum(
  func.func @maximum(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.maximum"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.maximum"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @minimum(
  func.func @minimum(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.minimum"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.minimum"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @div(
  func.func @div(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<3x1xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.divide"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.divide"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @remainder(
  func.func @remainder(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<3x1xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.remainder"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.remainder"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @pow(
  func.func @pow(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.pow_tensor"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.pow_tensor"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @atan2(
  func.func @atan2(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.atan2"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.atan2"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @eq(
  func.func @eq(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.eq"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.eq"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @ne(
  func.func @ne(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.ne"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.ne"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @ge(
  func.func @ge(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.ge"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.ge"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @gt(
  func.func @gt(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.gt"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.gt"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @le(
  func.func @le(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.le"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.le"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @lt(
  func.func @lt(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.lt"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.lt"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @logical_and(
  func.func @logical_and(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.logical_and"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.logical_and"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @logical_or(
  func.func @logical_or(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.logical_or"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.logical_or"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @logical_xor(
  func.func @logical_xor(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.logical_xor"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.logical_xor"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @isfinite(
  func.func @isfinite(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.isfinite"(%{{[a-z0-9]+}}) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.isfinite"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @logical_not(
  func.func @logical_not(%arg0: tensor<9xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<9xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.logical_not"(%{{[a-z0-9]+}}) : (tensor<9xi32>) -> tensor<9xi32>
    %0 = "ttnn.logical_not"(%arg0) : (tensor<9xi32>) -> tensor<9xi32>
    // CHECK: "ttnn.typecast"(%{{[a-z0-9]+}}) : (tensor<9xi32>) -> tensor<9xi32>
    %1 = "ttnn.typecast"(%0) : (tensor<9xi32>) -> tensor<9xi32>
    return %1 : tensor<9xi32>
  }

  // CHECK-LABEL: func.func @where(
  func.func @where(%arg0: tensor<3x4xi1> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.where"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<3x4xi1>, tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.where"(%arg0, %arg1, %arg2) : (tensor<3x4xi1>, tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @leaky_relu(
  func.func @leaky_relu(%arg0: tensor<9xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<9xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.leaky_relu"(%{{[a-z0-9]+}}) <{parameter = 2.000000e-01 : f32}> : (tensor<9xf32>) -> tensor<9xf32>
    %0 = "ttnn.leaky_relu"(%arg0) <{parameter = 2.000000e-01 : f32}> : (tensor<9xf32>) -> tensor<9xf32>
    return %0 : tensor<9xf32>
  }

  // CHECK-LABEL: func.func @clamp_scalar(
  func.func @clamp_scalar(%arg0: tensor<9xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<9xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.clamp_scalar"(%{{[a-z0-9]+}}) <{max = 2.000000e+00 : f32, min = -1.000000e+00 : f32}> : (tensor<9xf32>) -> tensor<9xf32>
    %0 = "ttnn.clamp_scalar"(%arg0) <{max = 2.000000e+00 : f32, min = -1.000000e+00 : f32}> : (tensor<9xf32>) -> tensor<9xf32>
    return %0 : tensor<9xf32>
  }

  // CHECK-LABEL: func.func @gelu_backward(
  func.func @gelu_backward(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.gelu_bw"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{approximate = "none"}> : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.gelu_bw"(%arg0, %arg1) <{approximate = "none"}> : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @matmul(
  func.func @matmul(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.matmul"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{transpose_a = false, transpose_b = false}> : (tensor<2x3x4xf32>, tensor<4x5xf32>) -> tensor<2x3x5xf32>
    %0 = "ttnn.matmul"(%arg0, %arg1) <{transpose_a = false, transpose_b = false}> : (tensor<2x3x4xf32>, tensor<4x5xf32>) -> tensor<2x3x5xf32>
    return %0 : tensor<2x3x5xf32>
  }

  // CHECK-LABEL: func.func @linear(
  func.func @linear(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.linear"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{transpose_a = false, transpose_b = false}> : (tensor<2x3x4xf32>, tensor<4x5xf32>, tensor<5xf32>) -> tensor<2x3x5xf32>
    %0 = "ttnn.linear"(%arg0, %arg1, %arg2) <{transpose_a = false, transpose_b = false}> : (tensor<2x3x4xf32>, tensor<4x5xf32>, tensor<5xf32>) -> tensor<2x3x5xf32>
    return %0 : tensor<2x3x5xf32>
  }

  // CHECK-LABEL: func.func @dot_general(
  func.func @dot_general(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4x2x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.permute"(%{{[a-z0-9]+}}) <{permutation = array<i64: 1, 0, 2>}> : (tensor<4x2x5xf32>) -> tensor<2x4x5xf32>
    %0 = "ttnn.permute"(%arg1) <{permutation = array<i64: 1, 0, 2>}> : (tensor<4x2x5xf32>) -> tensor<2x4x5xf32>
    %1 = "ttnn.matmul"(%arg0, %0) <{transpose_a = false, transpose_b = false}> : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
    return %1 : tensor<2x3x5xf32>
  }

  // CHECK-LABEL: func.func @sum(
  func.func @sum(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.sum"(%{{[a-z0-9]+}}) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    %0 = "ttnn.sum"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @mean(
  func.func @mean(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.mean"(%{{[a-z0-9]+}}) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    %0 = "ttnn.mean"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @max(
  func.func @max(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.max"(%{{[a-z0-9]+}}) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    %0 = "ttnn.max"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @min(
  func.func @min(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.min"(%{{[a-z0-9]+}}) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    %0 = "ttnn.min"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @prod(
  func.func @prod(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.prod"(%{{[a-z0-9]+}}) <{dim_arg = 1 : si64, keep_dim = true}> : (tensor<2x3x4xf32>) -> tensor<2x1x4xf32>
    %0 = "ttnn.prod"(%arg0) <{dim_arg = 1 : si64, keep_dim = true}> : (tensor<2x3x4xf32>) -> tensor<2x1x4xf32>
    // CHECK: "ttnn.reshape"(%{{[a-z0-9]+}}) <{shape = [2 : i32, 4 : i32]}> : (tensor<2x1x4xf32>) -> tensor<2x4xf32>
    %1 = "ttnn.reshape"(%0) <{shape = [2 : i32, 4 : i32]}> : (tensor<2x1x4xf32>) -> tensor<2x4xf32>
    return %1 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @argmax(
  func.func @argmax(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x1xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.argmax"(%{{[a-z0-9]+}}) <{dim = 1 : si32, keep_dim = true}> : (tensor<3x4xf32>) -> tensor<3x1xui32>
    %0 = "ttnn.argmax"(%arg0) <{dim = 1 : si32, keep_dim = true}> : (tensor<3x4xf32>) -> tensor<3x1xui32>
    return %0 : tensor<3x1xui32>
  }

  // CHECK-LABEL: func.func @cumsum(
  func.func @cumsum(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.cumsum"(%{{[a-z0-9]+}}) <{dim = 0 : si32}> : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.cumsum"(%arg0) <{dim = 0 : si32}> : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @softmax(
  func.func @softmax(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.softmax"(%{{[a-z0-9]+}}) <{dimension = 0 : si32, numericStable = false}> : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttnn.softmax"(%arg0) <{dimension = 0 : si32, numericStable = false}> : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @sort(
  func.func @sort(%arg0: tensor<3x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, tensor<3x5xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.sort"(%{{[a-z0-9]+}}) <{descending = false, dim = 0 : si8, stable = true}> : (tensor<3x5xf32>) -> (tensor<3x5xf32>, tensor<3x5xui32>)
    %0:2 = "ttnn.sort"(%arg0) <{descending = false, dim = 0 : si8, stable = true}> : (tensor<3x5xf32>) -> (tensor<3x5xf32>, tensor<3x5xui32>)
    return %0#0, %0#1 : tensor<3x5xf32>, tensor<3x5xui32>
  }

  // CHECK-LABEL: func.func @topk(
  func.func @topk(%arg0: tensor<3x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, tensor<3x2xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.topk"(%{{[a-z0-9]+}}) <{dim = 1 : si32, k = 2 : i32, largest = false, sorted = true}> : (tensor<3x5xf32>) -> (tensor<3x2xf32>, tensor<3x2xui32>)
    %0:2 = "ttnn.topk"(%arg0) <{dim = 1 : si32, k = 2 : i32, largest = false, sorted = true}> : (tensor<3x5xf32>) -> (tensor<3x2xf32>, tensor<3x2xui32>)
    return %0#0, %0#1 : tensor<3x2xf32>, tensor<3x2xui32>
  }

  // CHECK-LABEL: func.func @reverse(
  func.func @reverse(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x2>}> : () -> !ttnn.device
    %1 = "ttnn.reshape"(%arg0) <{shape = [2 : i32, 12 : i32]}> : (tensor<2x3x4xf32>) -> tensor<2x12xf32>
    // CHECK: "ttnn.constant"(%{{[a-z0-9]+}}) <{value = dense<[1, 0]> : tensor<2xi32>}> : (!ttnn.device) -> tensor<2xi32>
    %2 = "ttnn.constant"(%0) <{value = dense<[1, 0]> : tensor<2xi32>}> : (!ttnn.device) -> tensor<2xi32>
    // CHECK: "ttnn.embedding"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<2xui32>, tensor<2x12xf32>) -> tensor<2x12xf32>
    %ids0 = "ttnn.typecast"(%2) : (tensor<2xi32>) -> tensor<2xui32>
    %3 = "ttnn.embedding"(%ids0, %1) : (tensor<2xui32>, tensor<2x12xf32>) -> tensor<2x12xf32>
    %4 = "ttnn.reshape"(%3) <{shape = [2 : i32, 3 : i32, 4 : i32]}> : (tensor<2x12xf32>) -> tensor<2x3x4xf32>
    %5 = "ttnn.permute"(%4) <{permutation = array<i64: 2, 0, 1>}> : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
    %6 = "ttnn.reshape"(%5) <{shape = [4 : i32, 6 : i32]}> : (tensor<4x2x3xf32>) -> tensor<4x6xf32>
    // CHECK: "ttnn.constant"(%{{[a-z0-9]+}}) <{value = dense<[3, 2, 1, 0]> : tensor<4xi32>}> : (!ttnn.device) -> tensor<4xi32>
    %7 = "ttnn.constant"(%0) <{value = dense<[3, 2, 1, 0]> : tensor<4xi32>}> : (!ttnn.device) -> tensor<4xi32>
    // CHECK: "ttnn.embedding"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<4xui32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %ids1 = "ttnn.typecast"(%7) : (tensor<4xi32>) -> tensor<4xui32>
    %8 = "ttnn.embedding"(%ids1, %6) : (tensor<4xui32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %9 = "ttnn.reshape"(%8) <{shape = [4 : i32, 2 : i32, 3 : i32]}> : (tensor<4x6xf32>) -> tensor<4x2x3xf32>
    %10 = "ttnn.permute"(%9) <{permutation = array<i64: 1, 2, 0>}> : (tensor<4x2x3xf32>) -> tensor<2x3x4xf32>
    return %10 : tensor<2x3x4xf32>
  }

  // CHECK-LABEL: func.func @repeat(
  func.func @repeat(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x3x12xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.repeat"(%{{[a-z0-9]+}}) <{repeat_dims = #ttnn.shape<2x1x3>}> : (tensor<2x3x4xf32>) -> tensor<4x3x12xf32>
    %0 = "ttnn.repeat"(%arg0) <{repeat_dims = #ttnn.shape<2x1x3>}> : (tensor<2x3x4xf32>) -> tensor<4x3x12xf32>
    return %0 : tensor<4x3x12xf32>
  }

  // CHECK-LABEL: func.func @repeat_interleave(
  func.func @repeat_interleave(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x9x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.repeat_interleave"(%{{[a-z0-9]+}}) <{dim = -2 : si32, repeats = 3 : ui32}> : (tensor<2x3x4xf32>) -> tensor<2x9x4xf32>
    %0 = "ttnn.repeat_interleave"(%arg0) <{dim = -2 : si32, repeats = 3 : ui32}> : (tensor<2x3x4xf32>) -> tensor<2x9x4xf32>
    return %0 : tensor<2x9x4xf32>
  }

  // CHECK-LABEL: func.func @concat(
  func.func @concat(%arg0: tensor<2x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<2x1xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<2x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x6xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.concat"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{dim = 1 : si32}> : (tensor<2x3xf32>, tensor<2x1xf32>, tensor<2x2xf32>) -> tensor<2x6xf32>
    %0 = "ttnn.concat"(%arg0, %arg1, %arg2) <{dim = 1 : si32}> : (tensor<2x3xf32>, tensor<2x1xf32>, tensor<2x2xf32>) -> tensor<2x6xf32>
    return %0 : tensor<2x6xf32>
  }

  // CHECK-LABEL: func.func @slice_static(
  func.func @slice_static(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x2x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.slice_static"(%{{[a-z0-9]+}}) <{begins = [0 : i32, 0 : i32, 1 : i32], ends = [2 : i32, 3 : i32, 3 : i32], step = [1 : i32, 2 : i32, 1 : i32]}> : (tensor<2x3x4xf32>) -> tensor<2x2x2xf32>
    %0 = "ttnn.slice_static"(%arg0) <{begins = [0 : i32, 0 : i32, 1 : i32], ends = [2 : i32, 3 : i32, 3 : i32], step = [1 : i32, 2 : i32, 1 : i32]}> : (tensor<2x3x4xf32>) -> tensor<2x2x2xf32>
    return %0 : tensor<2x2x2xf32>
  }

  // CHECK-LABEL: func.func @concatenate_heads(
  func.func @concatenate_heads(%arg0: tensor<2x3x4x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x4x15xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.concatenate_heads"(%{{[a-z0-9]+}}) : (tensor<2x3x4x5xf32>) -> tensor<2x4x15xf32>
    %0 = "ttnn.concatenate_heads"(%arg0) : (tensor<2x3x4x5xf32>) -> tensor<2x4x15xf32>
    return %0 : tensor<2x4x15xf32>
  }

  // CHECK-LABEL: func.func @pad(
  func.func @pad(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x8x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.pad"(%{{[a-z0-9]+}}) <{padding = array<i32: 1, 0, 2, 3, 0, 0>, use_multicore = true, value = 2.000000e+00 : f32}> : (tensor<2x3x4xf32>) -> tensor<3x8x4xf32>
    %0 = "ttnn.pad"(%arg0) <{padding = array<i32: 1, 0, 2, 3, 0, 0>, use_multicore = true, value = 2.000000e+00 : f32}> : (tensor<2x3x4xf32>) -> tensor<3x8x4xf32>
    return %0 : tensor<3x8x4xf32>
  }

  // CHECK-LABEL: func.func @slice_dynamic(
  func.func @slice_dynamic(%arg0: tensor<4x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<2xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<2xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x2>}> : () -> !ttnn.device
    %1 = "ttnn.reshape"(%arg1) <{shape = [1 : i32, 2 : i32]}> : (tensor<2xi32>) -> tensor<1x2xi32>
    %2 = "ttnn.reshape"(%arg0) <{shape = [20 : i32, 1 : i32]}> : (tensor<4x5xf32>) -> tensor<20x1xf32>
    %3 = "ttnn.constant"(%0) <{value = dense<[[0, 2, 5, 7]]> : tensor<1x4xi32>}> : (!ttnn.device) -> tensor<1x4xi32>
    // CHECK: "ttnn.full"(%{{[a-z0-9]+}}) <{fill_value = 0 : i32, shape = #ttnn.shape<>}> : (!ttnn.device) -> tensor<i32>
    %4 = "ttnn.full"(%0) <{fill_value = 0 : i32, shape = #ttnn.shape<>}> : (!ttnn.device) -> tensor<i32>
    %5 = "ttnn.maximum"(%1, %4) : (tensor<1x2xi32>, tensor<i32>) -> tensor<1x2xi32>
    // CHECK: "ttnn.full"(%{{[a-z0-9]+}}) <{fill_value = 2 : i32, shape = #ttnn.shape<2>}> : (!ttnn.device) -> tensor<2xi32>
    %6 = "ttnn.full"(%0) <{fill_value = 2 : i32, shape = #ttnn.shape<2>}> : (!ttnn.device) -> tensor<2xi32>
    %7 = "ttnn.minimum"(%5, %6) : (tensor<1x2xi32>, tensor<2xi32>) -> tensor<1x2xi32>
    %8 = "ttnn.constant"(%0) <{value = dense<[5, 1]> : tensor<2xi32>}> : (!ttnn.device) -> tensor<2xi32>
    %9 = "ttnn.multiply"(%7, %8) : (tensor<1x2xi32>, tensor<2xi32>) -> tensor<1x2xi32>
    %10 = "ttnn.sum"(%9) <{dim_arg = [1 : i32], keep_dim = true}> : (tensor<1x2xi32>) -> tensor<1x1xi32>
    %11 = "ttnn.add"(%10, %3) : (tensor<1x1xi32>, tensor<1x4xi32>) -> tensor<1x4xi32>
    %12 = "ttnn.reshape"(%11) <{shape = [4 : i32]}> : (tensor<1x4xi32>) -> tensor<4xi32>
    %ids2 = "ttnn.typecast"(%12) : (tensor<4xi32>) -> tensor<4xui32>
    %13 = "ttnn.embedding"(%ids2, %2) : (tensor<4xui32>, tensor<20x1xf32>) -> tensor<4x1xf32>
    %14 = "ttnn.reshape"(%13) <{shape = [1 : i32, 2 : i32, 2 : i32]}> : (tensor<4x1xf32>) -> tensor<1x2x2xf32>
    %15 = "ttnn.reshape"(%14) <{shape = [2 : i32, 2 : i32]}> : (tensor<1x2x2xf32>) -> tensor<2x2xf32>
    return %15 : tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func @zeros(
  func.func @zeros() -> (tensor<2x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x2>}> : () -> !ttnn.device
    // CHECK: "ttnn.zeros"(%{{[a-z0-9]+}}) <{shape = #ttnn.shape<2x3>}> : (!ttnn.device) -> tensor<2x3xf32>
    %1 = "ttnn.zeros"(%0) <{shape = #ttnn.shape<2x3>}> : (!ttnn.device) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func @ones(
  func.func @ones() -> (tensor<2x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x2>}> : () -> !ttnn.device
    // CHECK: "ttnn.ones"(%{{[a-z0-9]+}}) <{shape = #ttnn.shape<2x3>}> : (!ttnn.device) -> tensor<2x3xf32>
    %1 = "ttnn.ones"(%0) <{shape = #ttnn.shape<2x3>}> : (!ttnn.device) -> tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func @empty(
  func.func @empty() -> (tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x2>}> : () -> !ttnn.device
    // CHECK: "ttnn.empty"(%{{[a-z0-9]+}}) <{shape = #ttnn.shape<4>}> : (!ttnn.device) -> tensor<4xf32>
    %1 = "ttnn.empty"(%0) <{shape = #ttnn.shape<4>}> : (!ttnn.device) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func @arange(
  func.func @arange() -> (tensor<2x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x2>}> : () -> !ttnn.device
    // CHECK: "ttnn.arange"(%{{[a-z0-9]+}}) <{end = 12 : si64, start = 3 : si64, step = 4 : si64}> : (!ttnn.device) -> tensor<3xf32>
    %1 = "ttnn.arange"(%0) <{end = 12 : si64, start = 3 : si64, step = 4 : si64}> : (!ttnn.device) -> tensor<3xf32>
    %2 = "ttnn.reshape"(%1) <{shape = [1 : i32, 3 : i32]}> : (tensor<3xf32>) -> tensor<1x3xf32>
    %3 = "ttnn.repeat"(%2) <{repeat_dims = #ttnn.shape<2x1>}> : (tensor<1x3xf32>) -> tensor<2x3xf32>
    return %3 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func @gather(
  func.func @gather(%arg0: tensor<5x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<2x4xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.gather"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{dim = 0 : si32}> : (tensor<5x4xf32>, tensor<2x4xui32>) -> tensor<2x4xf32>
    %0 = "ttnn.gather"(%arg0, %arg1) <{dim = 0 : si32}> : (tensor<5x4xf32>, tensor<2x4xui32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @scatter(
  func.func @scatter(%arg0: tensor<4x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<2x3xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<2x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.scatter"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{dim = 0 : si32, scatter_reduce_type = #ttcore.reduce_type<sum>}> : (tensor<4x3xf32>, tensor<2x3xi32>, tensor<2x3xf32>) -> tensor<4x3xf32>
    %0 = "ttnn.scatter"(%arg0, %arg1, %arg2) <{dim = 0 : si32, scatter_reduce_type = #ttcore.reduce_type<sum>}> : (tensor<4x3xf32>, tensor<2x3xi32>, tensor<2x3xf32>) -> tensor<4x3xf32>
    return %0 : tensor<4x3xf32>
  }

  // CHECK-LABEL: func.func @embedding_backward(
  func.func @embedding_backward(%arg0: tensor<2x3xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<5x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<5x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.embedding_bw"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<2x3xui32>, tensor<5x4xf32>, tensor<2x3x4xf32>) -> tensor<5x4xf32>
    %0 = "ttnn.embedding_bw"(%arg0, %arg1, %arg2) : (tensor<2x3xui32>, tensor<5x4xf32>, tensor<2x3x4xf32>) -> tensor<5x4xf32>
    return %0 : tensor<5x4xf32>
  }

  // CHECK-LABEL: func.func @fill_cache(
  func.func @fill_cache(%arg0: tensor<3x2x6x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<1x2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x2x6x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %[[CACHE:.*]] = "ttnn.assign"(%{{[a-z0-9]+}}) : (tensor<3x2x6x4xf32>) -> tensor<3x2x6x4xf32>
    %0 = "ttnn.assign"(%arg0) : (tensor<3x2x6x4xf32>) -> tensor<3x2x6x4xf32>
    // CHECK: "ttnn.fill_cache"(%[[CACHE]], %{{[a-z0-9]+}}) <{batch_offset = 0 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x3x4xf32>) -> ()
    "ttnn.fill_cache"(%0, %arg1) <{batch_offset = 0 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x3x4xf32>) -> ()
    // CHECK: return %[[CACHE]]
    return %0 : tensor<3x2x6x4xf32>
  }

  // CHECK-LABEL: func.func @update_cache(
  func.func @update_cache(%arg0: tensor<3x2x6x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<1x2x1x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<1xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x2x6x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %[[CACHE:.*]] = "ttnn.assign"(%{{[a-z0-9]+}}) : (tensor<3x2x6x4xf32>) -> tensor<3x2x6x4xf32>
    %0 = "ttnn.assign"(%arg0) : (tensor<3x2x6x4xf32>) -> tensor<3x2x6x4xf32>
    // CHECK: "ttnn.update_cache"(%[[CACHE]], %{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{batch_offset = 2 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x1x4xf32>, tensor<1xi32>) -> ()
    "ttnn.update_cache"(%0, %arg1, %arg2) <{batch_offset = 2 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x1x4xf32>, tensor<1xi32>) -> ()
    // CHECK: return %[[CACHE]]
    return %0 : tensor<3x2x6x4xf32>
  }

  // CHECK-LABEL: func.func @layer_norm(
  func.func @layer_norm(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.layer_norm"(%{{[a-z0-9]+}}) <{epsilon = 9.99999974E-6 : f32, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %0 = "ttnn.layer_norm"(%arg0) <{epsilon = 9.99999974E-6 : f32, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    return %0 : tensor<2x3x4xf32>
  }

  // CHECK-LABEL: func.func @rms_norm(
  func.func @rms_norm(%arg0: tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.rms_norm"(%{{[a-z0-9]+}}) <{epsilon = 9.99999974E-6 : f32, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %0 = "ttnn.rms_norm"(%arg0) <{epsilon = 9.99999974E-6 : f32, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    return %0 : tensor<2x3x4xf32>
  }

  // CHECK-LABEL: func.func @batch_norm_inference(
  func.func @batch_norm_inference(%arg0: tensor<2x3x2x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg3: tensor<3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg4: tensor<3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x2x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.reshape"(%arg3) <{shape = [1 : i32, 3 : i32, 1 : i32, 1 : i32]}> : (tensor<3xf32>) -> tensor<1x3x1x1xf32>
    %1 = "ttnn.reshape"(%arg4) <{shape = [1 : i32, 3 : i32, 1 : i32, 1 : i32]}> : (tensor<3xf32>) -> tensor<1x3x1x1xf32>
    %2 = "ttnn.reshape"(%arg1) <{shape = [1 : i32, 3 : i32, 1 : i32, 1 : i32]}> : (tensor<3xf32>) -> tensor<1x3x1x1xf32>
    %3 = "ttnn.reshape"(%arg2) <{shape = [1 : i32, 3 : i32, 1 : i32, 1 : i32]}> : (tensor<3xf32>) -> tensor<1x3x1x1xf32>
    // CHECK: "ttnn.batch_norm_inference"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{epsilon = 5.000000e-01 : f32, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1>}> : (tensor<2x3x2x3xf32>, tensor<1x3x1x1xf32>, tensor<1x3x1x1xf32>, tensor<1x3x1x1xf32>, tensor<1x3x1x1xf32>) -> tensor<2x3x2x3xf32>
    %4 = "ttnn.batch_norm_inference"(%arg0, %0, %1, %2, %3) <{epsilon = 5.000000e-01 : f32, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1>}> : (tensor<2x3x2x3xf32>, tensor<1x3x1x1xf32>, tensor<1x3x1x1xf32>, tensor<1x3x1x1xf32>, tensor<1x3x1x1xf32>) -> tensor<2x3x2x3xf32>
    return %4 : tensor<2x3x2x3xf32>
  }

  // CHECK-LABEL: func.func @conv2d(
  func.func @conv2d(%arg0: tensor<2x5x6x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<6x4x3x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x5x6xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x2>}> : () -> !ttnn.device
    %1 = "ttnn.reshape"(%arg0) <{shape = [1 : i32, 1 : i32, 60 : i32, 4 : i32]}> : (tensor<2x5x6x4xf32>) -> tensor<1x1x60x4xf32>
    // CHECK: "ttnn.conv2d"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{batch_size = 2 : i32, dilation = array<i32: 1, 1>, groups = 1 : i32, in_channels = 4 : i32, input_height = 5 : i32, input_width = 6 : i32, kernel_size = array<i32: 3, 2>, out_channels = 6 : i32, padding = array<i32: 0, 0>, stride = array<i32: 1, 1>}> : (tensor<1x1x60x4xf32>, tensor<6x4x3x2xf32>, !ttnn.device) -> tensor<1x1x30x6xf32>
    %2 = "ttnn.conv2d"(%1, %arg1, %0) <{batch_size = 2 : i32, dilation = array<i32: 1, 1>, groups = 1 : i32, in_channels = 4 : i32, input_height = 5 : i32, input_width = 6 : i32, kernel_size = array<i32: 3, 2>, out_channels = 6 : i32, padding = array<i32: 0, 0>, stride = array<i32: 1, 1>}> : (tensor<1x1x60x4xf32>, tensor<6x4x3x2xf32>, !ttnn.device) -> tensor<1x1x30x6xf32>
    %3 = "ttnn.reshape"(%2) <{shape = [2 : i32, 3 : i32, 5 : i32, 6 : i32]}> : (tensor<1x1x30x6xf32>) -> tensor<2x3x5x6xf32>
    return %3 : tensor<2x3x5x6xf32>
  }

  // CHECK-LABEL: func.func @conv_transpose2d(
  func.func @conv_transpose2d(%arg0: tensor<2x5x6x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<4x3x3x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x7x7x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x2>}> : () -> !ttnn.device
    %1 = "ttnn.reshape"(%arg0) <{shape = [1 : i32, 1 : i32, 60 : i32, 4 : i32]}> : (tensor<2x5x6x4xf32>) -> tensor<1x1x60x4xf32>
    // CHECK: "ttnn.conv_transpose2d"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{batch_size = 2 : i32, dilation = array<i32: 1, 1>, groups = 1 : i32, in_channels = 4 : i32, input_height = 5 : i32, input_width = 6 : i32, kernel_size = array<i32: 3, 2>, out_channels = 3 : i32, output_padding = array<i32: 0, 0>, padding = array<i32: 0, 0>, stride = array<i32: 1, 1>}> : (tensor<1x1x60x4xf32>, tensor<4x3x3x2xf32>, !ttnn.device) -> tensor<1x1x98x3xf32>
    %2 = "ttnn.conv_transpose2d"(%1, %arg1, %0) <{batch_size = 2 : i32, dilation = array<i32: 1, 1>, groups = 1 : i32, in_channels = 4 : i32, input_height = 5 : i32, input_width = 6 : i32, kernel_size = array<i32: 3, 2>, out_channels = 3 : i32, output_padding = array<i32: 0, 0>, padding = array<i32: 0, 0>, stride = array<i32: 1, 1>}> : (tensor<1x1x60x4xf32>, tensor<4x3x3x2xf32>, !ttnn.device) -> tensor<1x1x98x3xf32>
    %3 = "ttnn.reshape"(%2) <{shape = [2 : i32, 7 : i32, 7 : i32, 3 : i32]}> : (tensor<1x1x98x3xf32>) -> tensor<2x7x7x3xf32>
    return %3 : tensor<2x7x7x3xf32>
  }

  // CHECK-LABEL: func.func @max_pool2d(
  func.func @max_pool2d(%arg0: tensor<2x6x7x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x3x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.reshape"(%arg0) <{shape = [1 : i32, 1 : i32, 84 : i32, 2 : i32]}> : (tensor<2x6x7x2xf32>) -> tensor<1x1x84x2xf32>
    // CHECK: "ttnn.max_pool2d"(%{{[a-z0-9]+}}) <{batch_size = 2 : si32, ceil_mode = false, channels = 2 : si32, dilation = array<i32: 1, 1>, input_height = 6 : si32, input_width = 7 : si32, kernel_size = array<i32: 2, 2>, padding = array<i32: 0, 0>, stride = array<i32: 2, 2>}> : (tensor<1x1x84x2xf32>) -> tensor<1x1x18x2xf32>
    %1 = "ttnn.max_pool2d"(%0) <{batch_size = 2 : si32, ceil_mode = false, channels = 2 : si32, dilation = array<i32: 1, 1>, input_height = 6 : si32, input_width = 7 : si32, kernel_size = array<i32: 2, 2>, padding = array<i32: 0, 0>, stride = array<i32: 2, 2>}> : (tensor<1x1x84x2xf32>) -> tensor<1x1x18x2xf32>
    %2 = "ttnn.reshape"(%1) <{shape = [2 : i32, 3 : i32, 3 : i32, 2 : i32]}> : (tensor<1x1x18x2xf32>) -> tensor<2x3x3x2xf32>
    return %2 : tensor<2x3x3x2xf32>
  }

  // CHECK-LABEL: func.func @avg_pool2d(
  func.func @avg_pool2d(%arg0: tensor<2x6x7x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x3x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.reshape"(%arg0) <{shape = [1 : i32, 1 : i32, 84 : i32, 2 : i32]}> : (tensor<2x6x7x2xf32>) -> tensor<1x1x84x2xf32>
    // CHECK: "ttnn.avg_pool2d"(%{{[a-z0-9]+}}) <{batch_size = 2 : si32, ceil_mode = false, channels = 2 : si32, count_include_pad = true, dilation = array<i32: 1, 1>, input_height = 6 : si32, input_width = 7 : si32, kernel_size = array<i32: 2, 2>, padding = array<i32: 0, 0>, stride = array<i32: 2, 2>}> : (tensor<1x1x84x2xf32>) -> tensor<1x1x18x2xf32>
    %1 = "ttnn.avg_pool2d"(%0) <{batch_size = 2 : si32, ceil_mode = false, channels = 2 : si32, count_include_pad = true, dilation = array<i32: 1, 1>, input_height = 6 : si32, input_width = 7 : si32, kernel_size = array<i32: 2, 2>, padding = array<i32: 0, 0>, stride = array<i32: 2, 2>}> : (tensor<1x1x84x2xf32>) -> tensor<1x1x18x2xf32>
    %2 = "ttnn.reshape"(%1) <{shape = [2 : i32, 3 : i32, 3 : i32, 2 : i32]}> : (tensor<1x1x18x2xf32>) -> tensor<2x3x3x2xf32>
    return %2 : tensor<2x3x3x2xf32>
  }

  // CHECK-LABEL: func.func @global_avg_pool2d(
  func.func @global_avg_pool2d(%arg0: tensor<2x3x4x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x1x1x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.global_avg_pool2d"(%{{[a-z0-9]+}}) : (tensor<2x3x4x2xf32>) -> tensor<2x1x1x2xf32>
    %0 = "ttnn.global_avg_pool2d"(%arg0) : (tensor<2x3x4x2xf32>) -> tensor<2x1x1x2xf32>
    return %0 : tensor<2x1x1x2xf32>
  }

  // CHECK-LABEL: func.func @upsample2d(
  func.func @upsample2d(%arg0: tensor<2x3x4x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x6x12x2xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.upsample"(%{{[a-z0-9]+}}) <{mode = "nearest", scale_factor = array<i32: 2, 3>}> : (tensor<2x3x4x2xf32>) -> tensor<2x6x12x2xf32>
    %0 = "ttnn.upsample"(%arg0) <{mode = "nearest", scale_factor = array<i32: 2, 3>}> : (tensor<2x3x4x2xf32>) -> tensor<2x6x12x2xf32>
    return %0 : tensor<2x6x12x2xf32>
  }

  // CHECK-LABEL: func.func @scaled_dot_product_attention(
  func.func @scaled_dot_product_attention(%arg0: tensor<2x4x3x6xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<2x2x5x6xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<2x2x5x6xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x4x3x6xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.scaled_dot_product_attention"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{is_causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>}> : (tensor<2x4x3x6xf32>, tensor<2x2x5x6xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x3x6xf32>
    %0 = "ttnn.scaled_dot_product_attention"(%arg0, %arg1, %arg2) <{is_causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>}> : (tensor<2x4x3x6xf32>, tensor<2x2x5x6xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x3x6xf32>
    return %0 : tensor<2x4x3x6xf32>
  }

  // CHECK-LABEL: func.func @split_query_key_value_and_split_heads(
  func.func @split_query_key_value_and_split_heads(%arg0: tensor<2x3x30xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x2x3x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, tensor<2x2x3x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, tensor<2x2x3x5xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.split_query_key_value_and_split_heads"(%{{[a-z0-9]+}}) <{num_heads = 2 : ui32, transpose_key = false}> : (tensor<2x3x30xf32>) -> (tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>)
    %0:3 = "ttnn.split_query_key_value_and_split_heads"(%arg0) <{num_heads = 2 : ui32, transpose_key = false}> : (tensor<2x3x30xf32>) -> (tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>)
    return %0#0, %0#1, %0#2 : tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>
  }

  // CHECK-LABEL: func.func @rotary_embedding(
  func.func @rotary_embedding(%arg0: tensor<2x3x4x6xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<1x1x4x6xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<1x1x4x6xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x3x4x6xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.rotary_embedding"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}, %{{[a-z0-9]+}}) : (tensor<2x3x4x6xf32>, tensor<1x1x4x6xf32>, tensor<1x1x4x6xf32>) -> tensor<2x3x4x6xf32>
    %0 = "ttnn.rotary_embedding"(%arg0, %arg1, %arg2) : (tensor<2x3x4x6xf32>, tensor<1x1x4x6xf32>, tensor<1x1x4x6xf32>) -> tensor<2x3x4x6xf32>
    return %0 : tensor<2x3x4x6xf32>
  }

  // CHECK-LABEL: func.func @all_gather(
  func.func @all_gather(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x16xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.all_gather"(%{{[a-z0-9]+}}) <{all_gather_dim = 1 : si32, cluster_axis = 1 : ui32}> : (tensor<4x8xf32>) -> tensor<4x16xf32>
    %0 = "ttnn.all_gather"(%arg0) <{all_gather_dim = 1 : si32, cluster_axis = 1 : ui32}> : (tensor<4x8xf32>) -> tensor<4x16xf32>
    return %0 : tensor<4x16xf32>
  }

  // CHECK-LABEL: func.func @all_reduce(
  func.func @all_reduce(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.reshape"(%arg0) <{shape = [1 : i32, 1 : i32, 4 : i32, 8 : i32]}> : (tensor<4x8xf32>) -> tensor<1x1x4x8xf32>
    // CHECK: "ttnn.all_reduce"(%{{[a-z0-9]+}}) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<1x1x4x8xf32>) -> tensor<1x1x4x8xf32>
    %1 = "ttnn.all_reduce"(%0) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<1x1x4x8xf32>) -> tensor<1x1x4x8xf32>
    %2 = "ttnn.reshape"(%1) <{shape = [4 : i32, 8 : i32]}> : (tensor<1x1x4x8xf32>) -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @all_reduce_async(
  func.func @all_reduce_async(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.reshape"(%arg0) <{shape = [1 : i32, 1 : i32, 4 : i32, 8 : i32]}> : (tensor<4x8xf32>) -> tensor<1x1x4x8xf32>
    // The importer reads both forms as one op.
    // CHECK: "ttnn.all_reduce{{(_async)?}}"(%{{[a-z0-9]+}}) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<1x1x4x8xf32>) -> tensor<1x1x4x8xf32>
    %1 = "ttnn.all_reduce_async"(%0) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<1x1x4x8xf32>) -> tensor<1x1x4x8xf32>
    %2 = "ttnn.reshape"(%1) <{shape = [4 : i32, 8 : i32]}> : (tensor<1x1x4x8xf32>) -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @reduce_scatter(
  func.func @reduce_scatter(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.reshape"(%arg0) <{shape = [1 : i32, 1 : i32, 4 : i32, 8 : i32]}> : (tensor<4x8xf32>) -> tensor<1x1x4x8xf32>
    // CHECK: "ttnn.reduce_scatter"(%{{[a-z0-9]+}}) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>, scatter_dim = 3 : si32}> : (tensor<1x1x4x8xf32>) -> tensor<1x1x4x4xf32>
    %1 = "ttnn.reduce_scatter"(%0) <{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>, scatter_dim = 3 : si32}> : (tensor<1x1x4x8xf32>) -> tensor<1x1x4x4xf32>
    %2 = "ttnn.reshape"(%1) <{shape = [4 : i32, 4 : i32]}> : (tensor<1x1x4x4xf32>) -> tensor<4x4xf32>
    return %2 : tensor<4x4xf32>
  }

  // CHECK-LABEL: func.func @collective_permute(
  func.func @collective_permute(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.assign"(%arg0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    // CHECK: "ttnn.point_to_point"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{receiver_coord = array<i64: 0, 1>, sender_coord = array<i64: 0, 0>}> : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %1 = "ttnn.point_to_point"(%arg0, %0) <{receiver_coord = array<i64: 0, 1>, sender_coord = array<i64: 0, 0>}> : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    // CHECK: "ttnn.point_to_point"(%{{[a-z0-9]+}}, %{{[a-z0-9]+}}) <{receiver_coord = array<i64: 0, 0>, sender_coord = array<i64: 0, 1>}> : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %2 = "ttnn.point_to_point"(%arg0, %1) <{receiver_coord = array<i64: 0, 0>, sender_coord = array<i64: 0, 1>}> : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @mesh_partition(
  func.func @mesh_partition(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.mesh_partition"(%{{[a-z0-9]+}}) <{cluster_axis = 1 : ui32, dim = 1 : si32}> : (tensor<4x8xf32>) -> tensor<4x4xf32>
    %0 = "ttnn.mesh_partition"(%arg0) <{cluster_axis = 1 : ui32, dim = 1 : si32}> : (tensor<4x8xf32>) -> tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }

  // CHECK-LABEL: func.func @rand(
  func.func @rand() -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.get_device"() <{mesh_offset = #ttnn<mesh_offset 0x0>, mesh_shape = #ttnn<mesh_shape 1x2>}> : () -> !ttnn.device
    // CHECK: "ttnn.rand"(%{{[a-z0-9]+}}) <{high = 1.000000e+00 : f32, low = 0.000000e+00 : f32, seed = 3 : ui32, size = #ttnn.shape<4x8>}> : (!ttnn.device) -> tensor<4x8xf32>
    %1 = "ttnn.rand"(%0) <{high = 1.000000e+00 : f32, low = 0.000000e+00 : f32, seed = 3 : ui32, size = #ttnn.shape<4x8>}> : (!ttnn.device) -> tensor<4x8xf32>
    return %1 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @two_dims_exchanged(
  func.func @two_dims_exchanged(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x3xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.transpose"(%{{[a-z0-9]+}}) <{dim0 = 0 : si32, dim1 = 1 : si32}> : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %0 = "ttnn.transpose"(%arg0) <{dim0 = 0 : si32, dim1 = 1 : si32}> : (tensor<3x4xf32>) -> tensor<4x3xf32>
    return %0 : tensor<4x3xf32>
  }

  // CHECK-LABEL: func.func @exchanges_of_experts(
  func.func @exchanges_of_experts(%arg0: tensor<2x1x4x8xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<2x1x4x2xui16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<1x1x4x2xui16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg3: tensor<2x4x4x8xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<1x4x4x8xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, tensor<2x2x4x8xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttnn.all_to_all_dispatch"(%{{[a-z0-9#]+}}, %{{[a-z0-9#]+}}, %{{[a-z0-9#]+}}) <{cluster_axis = 1 : i64, num_devices = 2 : i64}> : (tensor<2x1x4x8xbf16>, tensor<2x1x4x2xui16>, tensor<1x1x4x2xui16>) -> (tensor<1x4x4x8xbf16>, tensor<1x4x4x2xui16>)
    %0:2 = "ttnn.all_to_all_dispatch"(%arg0, %arg1, %arg2) <{cluster_axis = 1 : i64, num_devices = 2 : i64}> : (tensor<2x1x4x8xbf16>, tensor<2x1x4x2xui16>, tensor<1x1x4x2xui16>) -> (tensor<1x4x4x8xbf16>, tensor<1x4x4x2xui16>)
    // CHECK: "ttnn.all_to_all_combine"(%{{[a-z0-9#]+}}, %{{[a-z0-9#]+}}, %{{[a-z0-9#]+}}) <{cluster_axis = 1 : i64, num_devices = 2 : i64, num_experts_per_tok = 2 : i64, output_shard_dim = 1 : i64}> : (tensor<2x4x4x8xbf16>, tensor<1x4x4x2xui16>, tensor<1x1x4x2xui16>) -> tensor<2x2x4x8xbf16>
    %1 = "ttnn.all_to_all_combine"(%arg3, %0#1, %arg2) <{cluster_axis = 1 : i64, num_devices = 2 : i64, num_experts_per_tok = 2 : i64, output_shard_dim = 1 : i64}> : (tensor<2x4x4x8xbf16>, tensor<1x4x4x2xui16>, tensor<1x1x4x2xui16>) -> tensor<2x2x4x8xbf16>
    return %0#0, %1 : tensor<1x4x4x8xbf16>, tensor<2x2x4x8xbf16>
  }
}
