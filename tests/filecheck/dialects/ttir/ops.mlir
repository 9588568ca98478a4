// RUN: jaxmesh opt %s | filecheck %s
// Every op of TTIR is read and printed again.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2>]>} {
  // CHECK-LABEL: func.func @abs(
  func.func @abs(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.abs"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.abs"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @neg(
  func.func @neg(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.neg"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.neg"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @sign(
  func.func @sign(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.sign"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.sign"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @exp(
  func.func @exp(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.exp"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.exp"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @exp2(
  func.func @exp2(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.exp2"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.exp2"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @expm1(
  func.func @expm1(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.expm1"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.expm1"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @log(
  func.func @log(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.log"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.log"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @log1p(
  func.func @log1p(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.log1p"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.log1p"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @sqrt(
  func.func @sqrt(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.sqrt"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.sqrt"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @rsqrt(
  func.func @rsqrt(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.rsqrt"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.rsqrt"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @cbrt(
  func.func @cbrt(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.cbrt"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.cbrt"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @reciprocal(
  func.func @reciprocal(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.reciprocal"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.reciprocal"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @sin(
  func.func @sin(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.sin"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.sin"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @cos(
  func.func @cos(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.cos"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.cos"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @tan(
  func.func @tan(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.tan"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.tan"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @asin(
  func.func @asin(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.asin"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.asin"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @acos(
  func.func @acos(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.acos"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.acos"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @atan(
  func.func @atan(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.atan"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.atan"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @tanh(
  func.func @tanh(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.tanh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.tanh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @asinh(
  func.func @asinh(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.asinh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.asinh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @erf(
  func.func @erf(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.erf"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.erf"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @erfc(
  func.func @erfc(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.erfc"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.erfc"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @floor(
  func.func @floor(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.floor"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.floor"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @ceil(
  func.func @ceil(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.ceil"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.ceil"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @trunc(
  func.func @trunc(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.trunc"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.trunc"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @relu(
  func.func @relu(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.relu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.relu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @relu6(
  func.func @relu6(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.relu6"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.relu6"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @gelu(
  func.func @gelu(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.gelu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.gelu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @silu(
  func.func @silu(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.silu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.silu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @sigmoid(
  func.func @sigmoid(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.sigmoid"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.sigmoid"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @hardsigmoid(
  func.func @hardsigmoid(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.hardsigmoid"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.hardsigmoid"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @frac(
  func.func @frac(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.frac"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.frac"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @square(
  func.func @square(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.square"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.square"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @signbit(
  func.func @signbit(%arg0: tensor<3x4xf32>) -> tensor<3x4xi1> {
    // CHECK: %0 = "ttir.signbit"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xi1>
    %0 = "ttir.signbit"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xi1>
    return %0 : tensor<3x4xi1>
  }

  // CHECK-LABEL: func.func @right_shift(
  func.func @right_shift(%arg0: tensor<3x4xi32>, %arg1: tensor<4xi32>) -> tensor<3x4xi32> {
    // CHECK: %0 = "ttir.right_shift"(%arg0, %arg1) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    %0 = "ttir.right_shift"(%arg0, %arg1) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    return %0 : tensor<3x4xi32>
  }

  // CHECK-LABEL: func.func @mish(
  func.func @mish(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.mish"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.mish"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @softsign(
  func.func @softsign(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.softsign"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.softsign"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @selu(
  func.func @selu(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.selu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.selu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @bitwise_not(
  func.func @bitwise_not(%arg0: tensor<7xi32>) -> tensor<7xi32> {
    // CHECK: %0 = "ttir.bitwise_not"(%arg0) : (tensor<7xi32>) -> tensor<7xi32>
    %0 = "ttir.bitwise_not"(%arg0) : (tensor<7xi32>) -> tensor<7xi32>
    return %0 : tensor<7xi32>
  }

  // CHECK-LABEL: func.func @bitwise_and(
  func.func @bitwise_and(%arg0: tensor<3x4xi32>, %arg1: tensor<4xi32>) -> tensor<3x4xi32> {
    // CHECK: %0 = "ttir.bitwise_and"(%arg0, %arg1) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    %0 = "ttir.bitwise_and"(%arg0, %arg1) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    return %0 : tensor<3x4xi32>
  }

  // CHECK-LABEL: func.func @bitwise_or(
  func.func @bitwise_or(%arg0: tensor<3x4xi32>, %arg1: tensor<4xi32>) -> tensor<3x4xi32> {
    // CHECK: %0 = "ttir.bitwise_or"(%arg0, %arg1) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    %0 = "ttir.bitwise_or"(%arg0, %arg1) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    return %0 : tensor<3x4xi32>
  }

  // CHECK-LABEL: func.func @bitwise_xor(
  func.func @bitwise_xor(%arg0: tensor<3x4xi32>, %arg1: tensor<4xi32>) -> tensor<3x4xi32> {
    // CHECK: %0 = "ttir.bitwise_xor"(%arg0, %arg1) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    %0 = "ttir.bitwise_xor"(%arg0, %arg1) : (tensor<3x4xi32>, tensor<4xi32>) -> tensor<3x4xi32>
    return %0 : tensor<3x4xi32>
  }

  // CHECK-LABEL: func.func @logical_left_shift(
  func.func @logical_left_shift(%arg0: tensor<8xui32>, %arg1: tensor<8xui32>) -> tensor<8xui32> {
    // CHECK: %0 = "ttir.logical_left_shift"(%arg0, %arg1) : (tensor<8xui32>, tensor<8xui32>) -> tensor<8xui32>
    %0 = "ttir.logical_left_shift"(%arg0, %arg1) : (tensor<8xui32>, tensor<8xui32>) -> tensor<8xui32>
    return %0 : tensor<8xui32>
  }

  // CHECK-LABEL: func.func @logical_right_shift(
  func.func @logical_right_shift(%arg0: tensor<8xui32>, %arg1: tensor<8xui32>) -> tensor<8xui32> {
    // CHECK: %0 = "ttir.logical_right_shift"(%arg0, %arg1) : (tensor<8xui32>, tensor<8xui32>) -> tensor<8xui32>
    %0 = "ttir.logical_right_shift"(%arg0, %arg1) : (tensor<8xui32>, tensor<8xui32>) -> tensor<8xui32>
    return %0 : tensor<8xui32>
  }

  // CHECK-LABEL: func.func @add(
  func.func @add(%arg0: tensor<3x4xf32>, %arg1: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.add"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.add"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @subtract(
  func.func @subtract(%arg0: tensor<3x4xf32>, %arg1: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.subtract"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.subtract"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @multiply(
  func.func @multiply(%arg0: tensor<3x4xf32>, %arg1: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.multiply"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.multiply"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @maximum(
  func.func @maximum(%arg0: tensor<3x4xf32>, %arg1: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.maximum"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.maximum"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @minimum(
  func.func @minimum(%arg0: tensor<3x4xf32>, %arg1: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.minimum"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.minimum"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @div(
  func.func @div(%arg0: tensor<3x4xf32>, %arg1: tensor<3x1xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.div"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
    %0 = "ttir.div"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @remainder(
  func.func @remainder(%arg0: tensor<3x4xf32>, %arg1: tensor<3x1xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.remainder"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
    %0 = "ttir.remainder"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @pow(
  func.func @pow(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.pow"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.pow"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @atan2(
  func.func @atan2(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.atan2"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.atan2"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @eq(
  func.func @eq(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.eq"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.eq"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @ne(
  func.func @ne(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.ne"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.ne"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @ge(
  func.func @ge(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.ge"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.ge"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @gt(
  func.func @gt(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.gt"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.gt"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @le(
  func.func @le(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.le"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.le"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @lt(
  func.func @lt(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.lt"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.lt"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @logical_and(
  func.func @logical_and(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.logical_and"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.logical_and"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @logical_or(
  func.func @logical_or(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.logical_or"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.logical_or"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @logical_xor(
  func.func @logical_xor(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.logical_xor"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.logical_xor"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @isfinite(
  func.func @isfinite(%arg0: tensor<3x4xf32>) -> tensor<3x4xi1> {
    // CHECK: %0 = "ttir.isfinite"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xi1>
    %0 = "ttir.isfinite"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xi1>
    return %0 : tensor<3x4xi1>
  }

  // CHECK-LABEL: func.func @logical_not(
  func.func @logical_not(%arg0: tensor<9xi32>) -> tensor<9xi32> {
    // CHECK: %0 = "ttir.logical_not"(%arg0) : (tensor<9xi32>) -> tensor<9xi32>
    %0 = "ttir.logical_not"(%arg0) : (tensor<9xi32>) -> tensor<9xi32>
    return %0 : tensor<9xi32>
  }

  // CHECK-LABEL: func.func @where(
  func.func @where(%arg0: tensor<3x4xi1>, %arg1: tensor<3x4xf32>, %arg2: tensor<4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.where"(%arg0, %arg1, %arg2) : (tensor<3x4xi1>, tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.where"(%arg0, %arg1, %arg2) : (tensor<3x4xi1>, tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @typecast(
  func.func @typecast(%arg0: tensor<40xf32>) -> tensor<40xi32> {
    // CHECK: %0 = "ttir.typecast"(%arg0) <{conservative_folding = false}> : (tensor<40xf32>) -> tensor<40xi32>
    %0 = "ttir.typecast"(%arg0) <{conservative_folding = false}> : (tensor<40xf32>) -> tensor<40xi32>
    return %0 : tensor<40xi32>
  }

  // CHECK-LABEL: func.func @leaky_relu(
  func.func @leaky_relu(%arg0: tensor<9xf32>) -> tensor<9xf32> {
    // CHECK: %0 = "ttir.leaky_relu"(%arg0) <{parameter = 2.000000e-01 : f32}> : (tensor<9xf32>) -> tensor<9xf32>
    %0 = "ttir.leaky_relu"(%arg0) <{parameter = 2.000000e-01 : f32}> : (tensor<9xf32>) -> tensor<9xf32>
    return %0 : tensor<9xf32>
  }

  // CHECK-LABEL: func.func @clamp_scalar(
  func.func @clamp_scalar(%arg0: tensor<9xf32>) -> tensor<9xf32> {
    // CHECK: %0 = "ttir.clamp_scalar"(%arg0) <{max = 2.000000e+00 : f32, min = -1.000000e+00 : f32}> : (tensor<9xf32>) -> tensor<9xf32>
    %0 = "ttir.clamp_scalar"(%arg0) <{max = 2.000000e+00 : f32, min = -1.000000e+00 : f32}> : (tensor<9xf32>) -> tensor<9xf32>
    return %0 : tensor<9xf32>
  }

  // CHECK-LABEL: func.func @clamp_tensor(
  func.func @clamp_tensor(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>, %arg2: tensor<3x1xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.clamp_tensor"(%arg0, %arg1, %arg2) : (tensor<3x4xf32>, tensor<4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
    %0 = "ttir.clamp_tensor"(%arg0, %arg1, %arg2) : (tensor<3x4xf32>, tensor<4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @matmul(
  func.func @matmul(%arg0: tensor<2x3x4xf32>, %arg1: tensor<4x5xf32>) -> tensor<2x3x5xf32> {
    // CHECK: %0 = "ttir.matmul"(%arg0, %arg1) <{transpose_a = false, transpose_b = false}> : (tensor<2x3x4xf32>, tensor<4x5xf32>) -> tensor<2x3x5xf32>
    %0 = "ttir.matmul"(%arg0, %arg1) <{transpose_a = false, transpose_b = false}> : (tensor<2x3x4xf32>, tensor<4x5xf32>) -> tensor<2x3x5xf32>
    return %0 : tensor<2x3x5xf32>
  }

  // CHECK-LABEL: func.func @linear(
  func.func @linear(%arg0: tensor<2x3x4xf32>, %arg1: tensor<4x5xf32>, %arg2: tensor<5xf32>) -> tensor<2x3x5xf32> {
    // CHECK: %0 = "ttir.linear"(%arg0, %arg1, %arg2) <{transpose_a = false, transpose_b = false}> : (tensor<2x3x4xf32>, tensor<4x5xf32>, tensor<5xf32>) -> tensor<2x3x5xf32>
    %0 = "ttir.linear"(%arg0, %arg1, %arg2) <{transpose_a = false, transpose_b = false}> : (tensor<2x3x4xf32>, tensor<4x5xf32>, tensor<5xf32>) -> tensor<2x3x5xf32>
    return %0 : tensor<2x3x5xf32>
  }

  // CHECK-LABEL: func.func @dot_general(
  func.func @dot_general(%arg0: tensor<2x3x4xf32>, %arg1: tensor<4x2x5xf32>) -> tensor<2x3x5xf32> {
    // CHECK: %0 = "ttir.dot_general"(%arg0, %arg1) <{batch_dims_lhs = array<i64: 0>, batch_dims_rhs = array<i64: 1>, contract_dims_lhs = array<i64: 2>, contract_dims_rhs = array<i64: 0>}> : (tensor<2x3x4xf32>, tensor<4x2x5xf32>) -> tensor<2x3x5xf32>
    %0 = "ttir.dot_general"(%arg0, %arg1) <{batch_dims_lhs = array<i64: 0>, batch_dims_rhs = array<i64: 1>, contract_dims_lhs = array<i64: 2>, contract_dims_rhs = array<i64: 0>}> : (tensor<2x3x4xf32>, tensor<4x2x5xf32>) -> tensor<2x3x5xf32>
    return %0 : tensor<2x3x5xf32>
  }

  // CHECK-LABEL: func.func @sum(
  func.func @sum(%arg0: tensor<2x3x4xf32>) -> tensor<2x4xf32> {
    // CHECK: %0 = "ttir.sum"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    %0 = "ttir.sum"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @mean(
  func.func @mean(%arg0: tensor<2x3x4xf32>) -> tensor<2x4xf32> {
    // CHECK: %0 = "ttir.mean"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    %0 = "ttir.mean"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @max(
  func.func @max(%arg0: tensor<2x3x4xf32>) -> tensor<2x4xf32> {
    // CHECK: %0 = "ttir.max"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    %0 = "ttir.max"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @min(
  func.func @min(%arg0: tensor<2x3x4xf32>) -> tensor<2x4xf32> {
    // CHECK: %0 = "ttir.min"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    %0 = "ttir.min"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @prod(
  func.func @prod(%arg0: tensor<2x3x4xf32>) -> tensor<2x4xf32> {
    // CHECK: %0 = "ttir.prod"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    %0 = "ttir.prod"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<2x3x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @reduce_and(
  func.func @reduce_and(%arg0: tensor<3x4xi1>) -> tensor<3xi1> {
    // CHECK: %0 = "ttir.reduce_and"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<3x4xi1>) -> tensor<3xi1>
    %0 = "ttir.reduce_and"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<3x4xi1>) -> tensor<3xi1>
    return %0 : tensor<3xi1>
  }

  // CHECK-LABEL: func.func @reduce_or(
  func.func @reduce_or(%arg0: tensor<3x4xi1>) -> tensor<3xi1> {
    // CHECK: %0 = "ttir.reduce_or"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<3x4xi1>) -> tensor<3xi1>
    %0 = "ttir.reduce_or"(%arg0) <{dim_arg = [1 : i32], keep_dim = false}> : (tensor<3x4xi1>) -> tensor<3xi1>
    return %0 : tensor<3xi1>
  }

  // CHECK-LABEL: func.func @argmax(
  func.func @argmax(%arg0: tensor<3x4xf32>) -> tensor<3x1xi32> {
    // CHECK: %0 = "ttir.argmax"(%arg0) <{dim_arg = [-1 : i32], keep_dim = true}> : (tensor<3x4xf32>) -> tensor<3x1xi32>
    %0 = "ttir.argmax"(%arg0) <{dim_arg = [-1 : i32], keep_dim = true}> : (tensor<3x4xf32>) -> tensor<3x1xi32>
    return %0 : tensor<3x1xi32>
  }

  // CHECK-LABEL: func.func @cumsum(
  func.func @cumsum(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.cumsum"(%arg0) <{dim = 0 : i64}> : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.cumsum"(%arg0) <{dim = 0 : i64}> : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @softmax(
  func.func @softmax(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.softmax"(%arg0) <{dimension = 0 : si32}> : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.softmax"(%arg0) <{dimension = 0 : si32}> : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @sort(
  func.func @sort(%arg0: tensor<3x5xf32>) -> (tensor<3x5xf32>, tensor<3x5xi32>) {
    // CHECK: %0:2 = "ttir.sort"(%arg0) <{descending = false, dim = 0 : si32, stable = true}> : (tensor<3x5xf32>) -> (tensor<3x5xf32>, tensor<3x5xi32>)
    %0:2 = "ttir.sort"(%arg0) <{descending = false, dim = 0 : si32, stable = true}> : (tensor<3x5xf32>) -> (tensor<3x5xf32>, tensor<3x5xi32>)
    return %0#0, %0#1 : tensor<3x5xf32>, tensor<3x5xi32>
  }

  // CHECK-LABEL: func.func @topk(
  func.func @topk(%arg0: tensor<3x5xf32>) -> (tensor<3x2xf32>, tensor<3x2xi32>) {
    // CHECK: %0:2 = "ttir.topk"(%arg0) <{dim = 1 : i32, k = 2 : i32, largest = false, sorted = true}> : (tensor<3x5xf32>) -> (tensor<3x2xf32>, tensor<3x2xi32>)
    %0:2 = "ttir.topk"(%arg0) <{dim = 1 : i32, k = 2 : i32, largest = false, sorted = true}> : (tensor<3x5xf32>) -> (tensor<3x2xf32>, tensor<3x2xi32>)
    return %0#0, %0#1 : tensor<3x2xf32>, tensor<3x2xi32>
  }

  // CHECK-LABEL: func.func @reshape(
  func.func @reshape(%arg0: tensor<2x3x4xf32>) -> tensor<4x6xf32> {
    // CHECK: %0 = "ttir.reshape"(%arg0) <{shape = [4 : i32, 6 : i32]}> : (tensor<2x3x4xf32>) -> tensor<4x6xf32>
    %0 = "ttir.reshape"(%arg0) <{shape = [4 : i32, 6 : i32]}> : (tensor<2x3x4xf32>) -> tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }

  // CHECK-LABEL: func.func @permute(
  func.func @permute(%arg0: tensor<2x3x4xf32>) -> tensor<4x2x3xf32> {
    // CHECK: %0 = "ttir.permute"(%arg0) <{permutation = array<i64: 2, 0, 1>}> : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
    %0 = "ttir.permute"(%arg0) <{permutation = array<i64: 2, 0, 1>}> : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
    return %0 : tensor<4x2x3xf32>
  }

  // CHECK-LABEL: func.func @transpose(
  func.func @transpose(%arg0: tensor<2x3x4xf32>) -> tensor<4x3x2xf32> {
    // CHECK: %0 = "ttir.transpose"(%arg0) <{dim0 = 0 : si32, dim1 = -1 : si32}> : (tensor<2x3x4xf32>) -> tensor<4x3x2xf32>
    %0 = "ttir.transpose"(%arg0) <{dim0 = 0 : si32, dim1 = -1 : si32}> : (tensor<2x3x4xf32>) -> tensor<4x3x2xf32>
    return %0 : tensor<4x3x2xf32>
  }

  // CHECK-LABEL: func.func @reverse(
  func.func @reverse(%arg0: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
    // CHECK: %0 = "ttir.reverse"(%arg0) <{dimensions = array<i64: 0, 2>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %0 = "ttir.reverse"(%arg0) <{dimensions = array<i64: 0, 2>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    return %0 : tensor<2x3x4xf32>
  }

  // CHECK-LABEL: func.func @repeat(
  func.func @repeat(%arg0: tensor<2x3x4xf32>) -> tensor<4x3x12xf32> {
    // CHECK: %0 = "ttir.repeat"(%arg0) <{repeat_dimensions = array<i64: 2, 1, 3>}> : (tensor<2x3x4xf32>) -> tensor<4x3x12xf32>
    %0 = "ttir.repeat"(%arg0) <{repeat_dimensions = array<i64: 2, 1, 3>}> : (tensor<2x3x4xf32>) -> tensor<4x3x12xf32>
    return %0 : tensor<4x3x12xf32>
  }

  // CHECK-LABEL: func.func @repeat_interleave(
  func.func @repeat_interleave(%arg0: tensor<2x3x4xf32>) -> tensor<2x9x4xf32> {
    // CHECK: %0 = "ttir.repeat_interleave"(%arg0) <{dim = -2 : si32, repeats = 3 : ui32}> : (tensor<2x3x4xf32>) -> tensor<2x9x4xf32>
    %0 = "ttir.repeat_interleave"(%arg0) <{dim = -2 : si32, repeats = 3 : ui32}> : (tensor<2x3x4xf32>) -> tensor<2x9x4xf32>
    return %0 : tensor<2x9x4xf32>
  }

  // CHECK-LABEL: func.func @unsqueeze(
  func.func @unsqueeze(%arg0: tensor<2x3x4xf32>) -> tensor<2x3x4x1xf32> {
    // CHECK: %0 = "ttir.unsqueeze"(%arg0) <{dim = -1 : si32}> : (tensor<2x3x4xf32>) -> tensor<2x3x4x1xf32>
    %0 = "ttir.unsqueeze"(%arg0) <{dim = -1 : si32}> : (tensor<2x3x4xf32>) -> tensor<2x3x4x1xf32>
    return %0 : tensor<2x3x4x1xf32>
  }

  // CHECK-LABEL: func.func @concat(
  func.func @concat(%arg0: tensor<2x3xf32>, %arg1: tensor<2x1xf32>, %arg2: tensor<2x2xf32>) -> tensor<2x6xf32> {
    // CHECK: %0 = "ttir.concat"(%arg0, %arg1, %arg2) <{dim = -1 : si32}> : (tensor<2x3xf32>, tensor<2x1xf32>, tensor<2x2xf32>) -> tensor<2x6xf32>
    %0 = "ttir.concat"(%arg0, %arg1, %arg2) <{dim = -1 : si32}> : (tensor<2x3xf32>, tensor<2x1xf32>, tensor<2x2xf32>) -> tensor<2x6xf32>
    return %0 : tensor<2x6xf32>
  }

  // CHECK-LABEL: func.func @squeeze(
  func.func @squeeze(%arg0: tensor<2x1x4xf32>) -> tensor<2x4xf32> {
    // CHECK: %0 = "ttir.squeeze"(%arg0) <{dim = -2 : si32}> : (tensor<2x1x4xf32>) -> tensor<2x4xf32>
    %0 = "ttir.squeeze"(%arg0) <{dim = -2 : si32}> : (tensor<2x1x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }

  // CHECK-LABEL: func.func @broadcast(
  func.func @broadcast(%arg0: tensor<1x4x1xf32>) -> tensor<3x4x2xf32> {
    // CHECK: %0 = "ttir.broadcast"(%arg0) <{broadcast_dimensions = array<i64: 3, 1, 2>}> : (tensor<1x4x1xf32>) -> tensor<3x4x2xf32>
    %0 = "ttir.broadcast"(%arg0) <{broadcast_dimensions = array<i64: 3, 1, 2>}> : (tensor<1x4x1xf32>) -> tensor<3x4x2xf32>
    return %0 : tensor<3x4x2xf32>
  }

  // CHECK-LABEL: func.func @slice_static(
  func.func @slice_static(%arg0: tensor<2x3x4xf32>) -> tensor<2x2x2xf32> {
    // CHECK: %0 = "ttir.slice_static"(%arg0) <{begins = [0 : i32, -3 : i32, 1 : i32], ends = [2 : i32, 3 : i32, -1 : i32], step = [1 : i32, 2 : i32, 1 : i32]}> : (tensor<2x3x4xf32>) -> tensor<2x2x2xf32>
    %0 = "ttir.slice_static"(%arg0) <{begins = [0 : i32, -3 : i32, 1 : i32], ends = [2 : i32, 3 : i32, -1 : i32], step = [1 : i32, 2 : i32, 1 : i32]}> : (tensor<2x3x4xf32>) -> tensor<2x2x2xf32>
    return %0 : tensor<2x2x2xf32>
  }

  // CHECK-LABEL: func.func @index(
  func.func @index(%arg0: tensor<2x3x4xf32>) -> tensor<2x3x2xf32> {
    // CHECK: %0 = "ttir.index"(%arg0) <{begin = 1 : i32, dim = 2 : i32, end = 4 : i32, step = 2 : i32}> : (tensor<2x3x4xf32>) -> tensor<2x3x2xf32>
    %0 = "ttir.index"(%arg0) <{begin = 1 : i32, dim = 2 : i32, end = 4 : i32, step = 2 : i32}> : (tensor<2x3x4xf32>) -> tensor<2x3x2xf32>
    return %0 : tensor<2x3x2xf32>
  }

  // CHECK-LABEL: func.func @index_select(
  func.func @index_select(%arg0: tensor<3x8xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.index_select"(%arg0) <{begin = 1 : si32, dim = -1 : si32, length = 2 : si32, stride = 4 : si32}> : (tensor<3x8xf32>) -> tensor<3x4xf32>
    %0 = "ttir.index_select"(%arg0) <{begin = 1 : si32, dim = -1 : si32, length = 2 : si32, stride = 4 : si32}> : (tensor<3x8xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @concatenate_heads(
  func.func @concatenate_heads(%arg0: tensor<2x3x4x5xf32>) -> tensor<2x4x15xf32> {
    // CHECK: %0 = "ttir.concatenate_heads"(%arg0) : (tensor<2x3x4x5xf32>) -> tensor<2x4x15xf32>
    %0 = "ttir.concatenate_heads"(%arg0) : (tensor<2x3x4x5xf32>) -> tensor<2x4x15xf32>
    return %0 : tensor<2x4x15xf32>
  }

  // CHECK-LABEL: func.func @pad(
  func.func @pad(%arg0: tensor<2x3x4xf32>) -> tensor<3x8x4xf32> {
    // CHECK: %0 = "ttir.pad"(%arg0) <{padding = array<i32: 1, 0, 2, 3, 0, 0>, value = 2.000000e+00 : f32}> : (tensor<2x3x4xf32>) -> tensor<3x8x4xf32>
    %0 = "ttir.pad"(%arg0) <{padding = array<i32: 1, 0, 2, 3, 0, 0>, value = 2.000000e+00 : f32}> : (tensor<2x3x4xf32>) -> tensor<3x8x4xf32>
    return %0 : tensor<3x8x4xf32>
  }

  // CHECK-LABEL: func.func @slice_dynamic(
  func.func @slice_dynamic(%arg0: tensor<4x5xf32>, %arg1: tensor<2xi32>, %arg2: tensor<2xi32>) -> tensor<2x2xf32> {
    // CHECK: %0 = "ttir.slice_dynamic"(%arg0, %arg1, %arg2) <{step = [1 : i32, 2 : i32]}> : (tensor<4x5xf32>, tensor<2xi32>, tensor<2xi32>) -> tensor<2x2xf32>
    %0 = "ttir.slice_dynamic"(%arg0, %arg1, %arg2) <{step = [1 : i32, 2 : i32]}> : (tensor<4x5xf32>, tensor<2xi32>, tensor<2xi32>) -> tensor<2x2xf32>
    return %0 : tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func @zeros(
  func.func @zeros() -> tensor<2x3xf32> {
    // CHECK: %0 = "ttir.zeros"() <{shape = array<i32: 2, 3>}> : () -> tensor<2x3xf32>
    %0 = "ttir.zeros"() <{shape = array<i32: 2, 3>}> : () -> tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func @ones(
  func.func @ones() -> tensor<2x3xf32> {
    // CHECK: %0 = "ttir.ones"() <{shape = array<i32: 2, 3>}> : () -> tensor<2x3xf32>
    %0 = "ttir.ones"() <{shape = array<i32: 2, 3>}> : () -> tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func @empty(
  func.func @empty() -> tensor<4xf32> {
    // CHECK: %0 = "ttir.empty"() : () -> tensor<4xf32>
    %0 = "ttir.empty"() : () -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }

  // CHECK-LABEL: func.func @constant(
  func.func @constant() -> tensor<2x2xf32> {
    // CHECK: %0 = "ttir.constant"() <{value = dense<1.000000e+00> : tensor<2x2xf32>}> : () -> tensor<2x2xf32>
    %0 = "ttir.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<2x2xf32>
    return %0 : tensor<2x2xf32>
  }

  // CHECK-LABEL: func.func @full(
  func.func @full() -> tensor<2x3xf32> {
    // CHECK: %0 = "ttir.full"() <{fill_value = 7 : i32, shape = array<i32: 2, 3>}> : () -> tensor<2x3xf32>
    %0 = "ttir.full"() <{fill_value = 7 : i32, shape = array<i32: 2, 3>}> : () -> tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func @arange(
  func.func @arange() -> tensor<2x3xf32> {
    // CHECK: %0 = "ttir.arange"() <{arange_dimension = 1 : i64, end = 12 : si64, start = 3 : si64, step = 4 : si64}> : () -> tensor<2x3xf32>
    %0 = "ttir.arange"() <{arange_dimension = 1 : i64, end = 12 : si64, start = 3 : si64, step = 4 : si64}> : () -> tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }

  // CHECK-LABEL: func.func @gather(
  func.func @gather(%arg0: tensor<5x4xf32>, %arg1: tensor<3x4xi32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.gather"(%arg0, %arg1) <{dim = 0 : i32}> : (tensor<5x4xf32>, tensor<3x4xi32>) -> tensor<3x4xf32>
    %0 = "ttir.gather"(%arg0, %arg1) <{dim = 0 : i32}> : (tensor<5x4xf32>, tensor<3x4xi32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @scatter(
  func.func @scatter(%arg0: tensor<4x3xf32>, %arg1: tensor<2x3xi32>, %arg2: tensor<2x3xf32>) -> tensor<4x3xf32> {
    // CHECK: %0 = "ttir.scatter"(%arg0, %arg1, %arg2) <{dim = 0 : i32, scatter_reduce_type = #ttcore.reduce_type<sum>}> : (tensor<4x3xf32>, tensor<2x3xi32>, tensor<2x3xf32>) -> tensor<4x3xf32>
    %0 = "ttir.scatter"(%arg0, %arg1, %arg2) <{dim = 0 : i32, scatter_reduce_type = #ttcore.reduce_type<sum>}> : (tensor<4x3xf32>, tensor<2x3xi32>, tensor<2x3xf32>) -> tensor<4x3xf32>
    return %0 : tensor<4x3xf32>
  }

  // CHECK-LABEL: func.func @embedding(
  func.func @embedding(%arg0: tensor<2x3xi32>, %arg1: tensor<5x4xf32>) -> tensor<2x3x4xf32> {
    // CHECK: %0 = "ttir.embedding"(%arg0, %arg1) : (tensor<2x3xi32>, tensor<5x4xf32>) -> tensor<2x3x4xf32>
    %0 = "ttir.embedding"(%arg0, %arg1) : (tensor<2x3xi32>, tensor<5x4xf32>) -> tensor<2x3x4xf32>
    return %0 : tensor<2x3x4xf32>
  }

  // CHECK-LABEL: func.func @embedding_backward(
  func.func @embedding_backward(%arg0: tensor<2x3xi32>, %arg1: tensor<5x4xf32>, %arg2: tensor<2x3x4xf32>) -> tensor<5x4xf32> {
    // CHECK: %0 = "ttir.embedding_backward"(%arg0, %arg1, %arg2) : (tensor<2x3xi32>, tensor<5x4xf32>, tensor<2x3x4xf32>) -> tensor<5x4xf32>
    %0 = "ttir.embedding_backward"(%arg0, %arg1, %arg2) : (tensor<2x3xi32>, tensor<5x4xf32>, tensor<2x3x4xf32>) -> tensor<5x4xf32>
    return %0 : tensor<5x4xf32>
  }

  // CHECK-LABEL: func.func @fill_cache(
  func.func @fill_cache(%arg0: tensor<3x2x6x4xf32>, %arg1: tensor<1x2x3x4xf32>) -> tensor<3x2x6x4xf32> {
    // CHECK: "ttir.fill_cache"(%arg0, %arg1) <{batch_offset = 0 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x3x4xf32>) -> ()
    "ttir.fill_cache"(%arg0, %arg1) <{batch_offset = 0 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x3x4xf32>) -> ()
    // CHECK-NEXT: return %arg0
    return %arg0 : tensor<3x2x6x4xf32>
  }

  // CHECK-LABEL: func.func @update_cache(
  func.func @update_cache(%arg0: tensor<3x2x6x4xf32>, %arg1: tensor<1x2x1x4xf32>, %arg2: tensor<1xi32>) -> tensor<3x2x6x4xf32> {
    // CHECK: "ttir.update_cache"(%arg0, %arg1, %arg2) <{batch_offset = 2 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x1x4xf32>, tensor<1xi32>) -> ()
    "ttir.update_cache"(%arg0, %arg1, %arg2) <{batch_offset = 2 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x1x4xf32>, tensor<1xi32>) -> ()
    // CHECK-NEXT: return %arg0
    return %arg0 : tensor<3x2x6x4xf32>
  }

  // CHECK-LABEL: func.func @layer_norm(
  func.func @layer_norm(%arg0: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
    // CHECK: %0 = "ttir.layer_norm"(%arg0) <{normalized_shape = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %0 = "ttir.layer_norm"(%arg0) <{normalized_shape = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    return %0 : tensor<2x3x4xf32>
  }

  // CHECK-LABEL: func.func @rms_norm(
  func.func @rms_norm(%arg0: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
    // CHECK: %0 = "ttir.rms_norm"(%arg0) <{normalized_shape = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %0 = "ttir.rms_norm"(%arg0) <{normalized_shape = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0, 0>}> : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    return %0 : tensor<2x3x4xf32>
  }

  // CHECK-LABEL: func.func @batch_norm_inference(
  func.func @batch_norm_inference(%arg0: tensor<2x3x2x3xf32>, %arg1: tensor<3xf32>, %arg2: tensor<3xf32>, %arg3: tensor<3xf32>, %arg4: tensor<3xf32>) -> tensor<2x3x2x3xf32> {
    // CHECK: %0 = "ttir.batch_norm_inference"(%arg0, %arg1, %arg2, %arg3, %arg4) <{dimension = 1 : i32, epsilon = 5.000000e-01 : f32}> : (tensor<2x3x2x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<2x3x2x3xf32>
    %0 = "ttir.batch_norm_inference"(%arg0, %arg1, %arg2, %arg3, %arg4) <{dimension = 1 : i32, epsilon = 5.000000e-01 : f32}> : (tensor<2x3x2x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<2x3x2x3xf32>
    return %0 : tensor<2x3x2x3xf32>
  }

  // CHECK-LABEL: func.func @conv2d(
  func.func @conv2d(%arg0: tensor<2x5x6x4xf32>, %arg1: tensor<6x4x3x2xf32>) -> tensor<2x3x5x6xf32> {
    // CHECK: %0 = "ttir.conv2d"(%arg0, %arg1) <{dilation = 1 : i32, groups = 1 : i32, padding = 0 : i32, stride = 1 : i32}> : (tensor<2x5x6x4xf32>, tensor<6x4x3x2xf32>) -> tensor<2x3x5x6xf32>
    %0 = "ttir.conv2d"(%arg0, %arg1) <{dilation = 1 : i32, groups = 1 : i32, padding = 0 : i32, stride = 1 : i32}> : (tensor<2x5x6x4xf32>, tensor<6x4x3x2xf32>) -> tensor<2x3x5x6xf32>
    return %0 : tensor<2x3x5x6xf32>
  }

  // CHECK-LABEL: func.func @conv_transpose2d(
  func.func @conv_transpose2d(%arg0: tensor<2x5x6x4xf32>, %arg1: tensor<4x3x3x2xf32>) -> tensor<2x7x7x3xf32> {
    // CHECK: %0 = "ttir.conv_transpose2d"(%arg0, %arg1) <{dilation = 1 : i32, groups = 1 : i32, output_padding = 0 : i32, padding = 0 : i32, stride = 1 : i32}> : (tensor<2x5x6x4xf32>, tensor<4x3x3x2xf32>) -> tensor<2x7x7x3xf32>
    %0 = "ttir.conv_transpose2d"(%arg0, %arg1) <{dilation = 1 : i32, groups = 1 : i32, output_padding = 0 : i32, padding = 0 : i32, stride = 1 : i32}> : (tensor<2x5x6x4xf32>, tensor<4x3x3x2xf32>) -> tensor<2x7x7x3xf32>
    return %0 : tensor<2x7x7x3xf32>
  }

  // CHECK-LABEL: func.func @max_pool2d(
  func.func @max_pool2d(%arg0: tensor<2x6x7x2xf32>) -> tensor<2x3x3x2xf32> {
    // CHECK: %0 = "ttir.max_pool2d"(%arg0) <{ceil_mode = false, dilation = 1 : i32, kernel = 2 : i32, padding = 0 : i32, stride = 2 : i32}> : (tensor<2x6x7x2xf32>) -> tensor<2x3x3x2xf32>
    %0 = "ttir.max_pool2d"(%arg0) <{ceil_mode = false, dilation = 1 : i32, kernel = 2 : i32, padding = 0 : i32, stride = 2 : i32}> : (tensor<2x6x7x2xf32>) -> tensor<2x3x3x2xf32>
    return %0 : tensor<2x3x3x2xf32>
  }

  // CHECK-LABEL: func.func @avg_pool2d(
  func.func @avg_pool2d(%arg0: tensor<2x6x7x2xf32>) -> tensor<2x3x3x2xf32> {
    // CHECK: %0 = "ttir.avg_pool2d"(%arg0) <{ceil_mode = false, dilation = 1 : i32, kernel = 2 : i32, padding = 0 : i32, stride = 2 : i32}> : (tensor<2x6x7x2xf32>) -> tensor<2x3x3x2xf32>
    %0 = "ttir.avg_pool2d"(%arg0) <{ceil_mode = false, dilation = 1 : i32, kernel = 2 : i32, padding = 0 : i32, stride = 2 : i32}> : (tensor<2x6x7x2xf32>) -> tensor<2x3x3x2xf32>
    return %0 : tensor<2x3x3x2xf32>
  }

  // CHECK-LABEL: func.func @global_avg_pool2d(
  func.func @global_avg_pool2d(%arg0: tensor<2x3x4x2xf32>) -> tensor<2x1x1x2xf32> {
    // CHECK: %0 = "ttir.global_avg_pool2d"(%arg0) : (tensor<2x3x4x2xf32>) -> tensor<2x1x1x2xf32>
    %0 = "ttir.global_avg_pool2d"(%arg0) : (tensor<2x3x4x2xf32>) -> tensor<2x1x1x2xf32>
    return %0 : tensor<2x1x1x2xf32>
  }

  // CHECK-LABEL: func.func @upsample2d(
  func.func @upsample2d(%arg0: tensor<2x3x4x2xf32>) -> tensor<2x6x12x2xf32> {
    // CHECK: %0 = "ttir.upsample2d"(%arg0) <{scale_factor = array<i32: 2, 3>}> : (tensor<2x3x4x2xf32>) -> tensor<2x6x12x2xf32>
    %0 = "ttir.upsample2d"(%arg0) <{scale_factor = array<i32: 2, 3>}> : (tensor<2x3x4x2xf32>) -> tensor<2x6x12x2xf32>
    return %0 : tensor<2x6x12x2xf32>
  }

  // CHECK-LABEL: func.func @scaled_dot_product_attention(
  func.func @scaled_dot_product_attention(%arg0: tensor<2x4x3x6xf32>, %arg1: tensor<2x2x5x6xf32>, %arg2: tensor<2x2x5x6xf32>) -> tensor<2x4x3x6xf32> {
    // CHECK: %0 = "ttir.scaled_dot_product_attention"(%arg0, %arg1, %arg2) <{is_causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>}> : (tensor<2x4x3x6xf32>, tensor<2x2x5x6xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x3x6xf32>
    %0 = "ttir.scaled_dot_product_attention"(%arg0, %arg1, %arg2) <{is_causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>}> : (tensor<2x4x3x6xf32>, tensor<2x2x5x6xf32>, tensor<2x2x5x6xf32>) -> tensor<2x4x3x6xf32>
    return %0 : tensor<2x4x3x6xf32>
  }

  // CHECK-LABEL: func.func @split_query_key_value_and_split_heads(
  func.func @split_query_key_value_and_split_heads(%arg0: tensor<2x3x30xf32>) -> (tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>) {
    // CHECK: %0:3 = "ttir.split_query_key_value_and_split_heads"(%arg0) <{num_heads = 2 : ui32, transpose_key = false}> : (tensor<2x3x30xf32>) -> (tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>)
    %0:3 = "ttir.split_query_key_value_and_split_heads"(%arg0) <{num_heads = 2 : ui32, transpose_key = false}> : (tensor<2x3x30xf32>) -> (tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>)
    return %0#0, %0#1, %0#2 : tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>, tensor<2x2x3x5xf32>
  }

  // CHECK-LABEL: func.func @all_gather(
  func.func @all_gather(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x16xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.all_gather"(%arg0) <{all_gather_dim = 1 : si32, cluster_axis = 0 : ui32}> : (tensor<4x8xf32>) -> tensor<4x16xf32>
    %0 = "ttir.all_gather"(%arg0) <{all_gather_dim = 1 : si32, cluster_axis = 0 : ui32}> : (tensor<4x8xf32>) -> tensor<4x16xf32>
    return %0 : tensor<4x16xf32>
  }

  // CHECK-LABEL: func.func @all_reduce(
  func.func @all_reduce(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.all_reduce"(%arg0) <{cluster_axis = 0 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %0 = "ttir.all_reduce"(%arg0) <{cluster_axis = 0 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @all_reduce_async(
  func.func @all_reduce_async(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.all_reduce_async"(%arg0) <{cluster_axis = 0 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %0 = "ttir.all_reduce_async"(%arg0) <{cluster_axis = 0 : ui32, reduce_type = #ttcore.reduce_type<sum>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @reduce_scatter(
  func.func @reduce_scatter(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.reduce_scatter"(%arg0) <{cluster_axis = 0 : ui32, reduce_type = #ttcore.reduce_type<sum>, scatter_dim = 1 : si32}> : (tensor<4x8xf32>) -> tensor<4x4xf32>
    %0 = "ttir.reduce_scatter"(%arg0) <{cluster_axis = 0 : ui32, reduce_type = #ttcore.reduce_type<sum>, scatter_dim = 1 : si32}> : (tensor<4x8xf32>) -> tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }

  // CHECK-LABEL: func.func @collective_permute(
  func.func @collective_permute(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.collective_permute"(%arg0) <{source_target_pairs = dense<{{\[\[}}0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %0 = "ttir.collective_permute"(%arg0) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @all_to_all(
  func.func @all_to_all(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<2x16xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.all_to_all"(%arg0) <{concat_dim = 1 : si32, replica_groups = dense<{{\[\[}}0, 1]]> : tensor<1x2xi64>, split_count = 2 : si32, split_dim = 0 : si32}> : (tensor<4x8xf32>) -> tensor<2x16xf32>
    %0 = "ttir.all_to_all"(%arg0) <{concat_dim = 1 : si32, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : si32, split_dim = 0 : si32}> : (tensor<4x8xf32>) -> tensor<2x16xf32>
    return %0 : tensor<2x16xf32>
  }

  // CHECK-LABEL: func.func @collective_broadcast(
  func.func @collective_broadcast(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.collective_broadcast"(%arg0) <{replica_groups = dense<{{\[\[}}0, 1]]> : tensor<1x2xi64>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %0 = "ttir.collective_broadcast"(%arg0) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @mesh_partition(
  func.func @mesh_partition(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.mesh_partition"(%arg0) <{cluster_axis = 0 : ui32, dim = 1 : si32}> : (tensor<4x8xf32>) -> tensor<4x4xf32>
    %0 = "ttir.mesh_partition"(%arg0) <{cluster_axis = 0 : ui32, dim = 1 : si32}> : (tensor<4x8xf32>) -> tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }

  // CHECK-LABEL: func.func @distributed_rms_norm(
  func.func @distributed_rms_norm(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.distributed_rms_norm"(%arg0, %arg1) <{cluster_axis = 0 : ui32, epsilon = 9.99999974E-6 : f32, operandSegmentSizes = array<i32: 1, 1, 0>}> : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
    %0 = "ttir.distributed_rms_norm"(%arg0, %arg1) <{cluster_axis = 0 : ui32, epsilon = 9.99999974E-6 : f32, operandSegmentSizes = array<i32: 1, 1, 0>}> : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @distributed_layer_norm(
  func.func @distributed_layer_norm(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.distributed_layer_norm"(%arg0, %arg1, %arg2) <{cluster_axis = 0 : ui32, epsilon = 9.99999974E-6 : f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>}> : (tensor<4x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
    %0 = "ttir.distributed_layer_norm"(%arg0, %arg1, %arg2) <{cluster_axis = 0 : ui32, epsilon = 9.99999974E-6 : f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>}> : (tensor<4x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @rand(
  func.func @rand() -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.rand"() <{high = 1.000000e+00 : f32, low = 0.000000e+00 : f32, seed = 3 : ui32, size = [4 : i32, 8 : i32]}> : () -> tensor<4x8xf32>
    %0 = "ttir.rand"() <{high = 1.000000e+00 : f32, low = 0.000000e+00 : f32, seed = 3 : ui32, size = [4 : i32, 8 : i32]}> : () -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }

  // CHECK-LABEL: func.func @get_dimension_size(
  func.func @get_dimension_size(%arg0: tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<1xui32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0 = "ttir.get_dimension_size"(%arg0) <{dimension = 1 : i32}> : (tensor<4x8xf32>) -> tensor<1xui32>
    %0 = "ttir.get_dimension_size"(%arg0) <{dimension = 1 : i32}> : (tensor<4x8xf32>) -> tensor<1xui32>
    return %0 : tensor<1xui32>
  }

  // CHECK-LABEL: func.func @gelu_bw(
  func.func @gelu_bw(%arg0: tensor<3x4xf32>, %arg1: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK: %0 = "ttir.gelu_bw"(%arg0, %arg1) <{approximate = "tanh"}> : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %0 = "ttir.gelu_bw"(%arg0, %arg1) <{approximate = "tanh"}> : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @exchanges_of_experts(
  func.func @exchanges_of_experts(%arg0: tensor<2x1x4x8xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<2x1x4x2xui16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<1x1x4x2xui16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg3: tensor<2x4x4x8xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<1x4x4x8xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}, tensor<2x2x4x8xbf16> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: %0:2 = "ttir.all_to_all_dispatch"(%arg0, %arg1, %arg2) <{cluster_axis = 0 : i64, num_devices = 2 : i64}> : (tensor<2x1x4x8xbf16>, tensor<2x1x4x2xui16>, tensor<1x1x4x2xui16>) -> (tensor<1x4x4x8xbf16>, tensor<1x4x4x2xui16>)
    %0:2 = "ttir.all_to_all_dispatch"(%arg0, %arg1, %arg2) <{cluster_axis = 0 : i64, num_devices = 2 : i64}> : (tensor<2x1x4x8xbf16>, tensor<2x1x4x2xui16>, tensor<1x1x4x2xui16>) -> (tensor<1x4x4x8xbf16>, tensor<1x4x4x2xui16>)
    // CHECK: %1 = "ttir.all_to_all_combine"(%arg3, %0#1, %arg2) <{cluster_axis = 0 : i64, num_devices = 2 : i64, num_experts_per_tok = 2 : i64, output_shard_dim = 1 : i64}> : (tensor<2x4x4x8xbf16>, tensor<1x4x4x2xui16>, tensor<1x1x4x2xui16>) -> tensor<2x2x4x8xbf16>
    %1 = "ttir.all_to_all_combine"(%arg3, %0#1, %arg2) <{cluster_axis = 0 : i64, num_devices = 2 : i64, num_experts_per_tok = 2 : i64, output_shard_dim = 1 : i64}> : (tensor<2x4x4x8xbf16>, tensor<1x4x4x2xui16>, tensor<1x1x4x2xui16>) -> tensor<2x2x4x8xbf16>
    return %0#0, %1 : tensor<1x4x4x8xbf16>, tensor<2x2x4x8xbf16>
  }
}
