// RUN: jaxmesh opt %s --ttir-to-ttnn --for-emulation | filecheck %s
// Ops of earlier versions are read with a warning, and printed in upstream's present form.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2>]>} {
  // CHECK-LABEL: func.func @exp2(
  func.func @exp2(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.exp2"
    // expected-warning@+1 {{ttnn.exp2 is no op}}
    %0 = "ttnn.exp2"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @sinh(
  func.func @sinh(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.sinh"
    // expected-warning@+1 {{ttnn.sinh is no op}}
    %0 = "ttnn.sinh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @cosh(
  func.func @cosh(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.cosh"
    // expected-warning@+1 {{ttnn.cosh is no op}}
    %0 = "ttnn.cosh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @acosh(
  func.func @acosh(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.acosh"
    // expected-warning@+1 {{ttnn.acosh is no op}}
    %0 = "ttnn.acosh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @atanh(
  func.func @atanh(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.atanh"
    // expected-warning@+1 {{ttnn.atanh is no op}}
    %0 = "ttnn.atanh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @trunc(
  func.func @trunc(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.trunc"
    // expected-warning@+1 {{ttnn.trunc is no op}}
    %0 = "ttnn.trunc"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @round(
  func.func @round(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.round"
    %0 = "ttnn.round"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @hardswish(
  func.func @hardswish(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.hardswish"
    // expected-warning@+1 {{ttnn.hardswish is no op}}
    %0 = "ttnn.hardswish"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @softplus(
  func.func @softplus(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.softplus"
    // expected-warning@+1 {{ttnn.softplus is no op}}
    %0 = "ttnn.softplus"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @softsign(
  func.func @softsign(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.softsign"
    // expected-warning@+1 {{ttnn.softsign is no op}}
    %0 = "ttnn.softsign"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @selu(
  func.func @selu(%arg0: tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.selu"
    // expected-warning@+1 {{ttnn.selu is no op}}
    %0 = "ttnn.selu"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @elu(
  func.func @elu(%arg0: tensor<9xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<9xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK-NOT: "ttnn.elu"
    // expected-warning@+1 {{ttnn.elu is no op}}
    %0 = "ttnn.elu"(%arg0) <{alpha = 5.000000e-01 : f32}> : (tensor<9xf32>) -> tensor<9xf32>
    return %0 : tensor<9xf32>
  }

  // CHECK-LABEL: func.func @fill_cache(
  func.func @fill_cache(%arg0: tensor<3x2x6x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<1x2x3x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x2x6x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.assign"(%arg0) : (tensor<3x2x6x4xf32>) -> tensor<3x2x6x4xf32>
    // CHECK: "ttnn.fill_cache"({{.*}} -> ()
    // expected-warning@+1 {{ttnn.fill_cache has no result}}
    %1 = "ttnn.fill_cache"(%0, %arg1) <{batch_offset = 0 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x3x4xf32>) -> tensor<3x2x6x4xf32>
    return %1 : tensor<3x2x6x4xf32>
  }

  // CHECK-LABEL: func.func @update_cache(
  func.func @update_cache(%arg0: tensor<3x2x6x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg1: tensor<1x2x1x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, %arg2: tensor<1xi32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> (tensor<3x2x6x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.assign"(%arg0) : (tensor<3x2x6x4xf32>) -> tensor<3x2x6x4xf32>
    // CHECK: "ttnn.where"
    // CHECK-NOT: "ttnn.update_cache"
    // expected-warning@+1 {{ttnn.update_cache has no result}}
    %1 = "ttnn.update_cache"(%0, %arg1, %arg2) <{batch_offset = 2 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x1x4xf32>, tensor<1xi32>) -> tensor<3x2x6x4xf32>
    return %1 : tensor<3x2x6x4xf32>
  }
}
