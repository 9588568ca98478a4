// RUN: jaxmesh opt %s | filecheck %s
// Ops of earlier versions are read with a warning, and printed in upstream's present form.

module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2>]>} {
  // CHECK-LABEL: func.func @sinh(
  func.func @sinh(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK-NOT: "ttir.sinh"
    // expected-warning@+1 {{ttir.sinh is no op}}
    %0 = "ttir.sinh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @cosh(
  func.func @cosh(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK-NOT: "ttir.cosh"
    // expected-warning@+1 {{ttir.cosh is no op}}
    %0 = "ttir.cosh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @acosh(
  func.func @acosh(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK-NOT: "ttir.acosh"
    // expected-warning@+1 {{ttir.acosh is no op}}
    %0 = "ttir.acosh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @atanh(
  func.func @atanh(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK-NOT: "ttir.atanh"
    // expected-warning@+1 {{ttir.atanh is no op}}
    %0 = "ttir.atanh"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @round(
  func.func @round(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK-NOT: "ttir.round"
    %0 = "ttir.round"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @hardswish(
  func.func @hardswish(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK-NOT: "ttir.hardswish"
    // expected-warning@+1 {{ttir.hardswish is no op}}
    %0 = "ttir.hardswish"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @softplus(
  func.func @softplus(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK-NOT: "ttir.softplus"
    // expected-warning@+1 {{ttir.softplus is no op}}
    %0 = "ttir.softplus"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @divide(
  func.func @divide(%arg0: tensor<3x4xf32>, %arg1: tensor<3x1xf32>) -> tensor<3x4xf32> {
    // CHECK-NOT: "ttir.divide"
    // expected-warning@+1 {{ttir.divide is no op}}
    %0 = "ttir.divide"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x1xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @rows(
  func.func @rows(%arg0: tensor<1x6x4xf32>, %arg1: tensor<1x1x2xi32>) -> tensor<1x6x4xf32> {
    // CHECK-NOT: "ttir.rows
    %0 = "ttir.rows_gather"(%arg0, %arg1) <{column = false, fill_out_of_bounds = true, sizes = array<i64: 6>, windows = array<i64: 1>}> : (tensor<1x6x4xf32>, tensor<1x1x2xi32>) -> tensor<1x2x4xf32>
    %1 = "ttir.rows_scatter"(%arg0, %arg1, %0) <{column = false, reduce = #ttcore.reduce_type<sum>, sizes = array<i64: 6>, windows = array<i64: 1>}> : (tensor<1x6x4xf32>, tensor<1x1x2xi32>, tensor<1x2x4xf32>) -> tensor<1x6x4xf32>
    return %1 : tensor<1x6x4xf32>
  }

  // CHECK-LABEL: func.func @elu(
  func.func @elu(%arg0: tensor<9xf32>) -> tensor<9xf32> {
    // CHECK-NOT: "ttir.elu"
    // expected-warning@+1 {{ttir.elu is no op}}
    %0 = "ttir.elu"(%arg0) <{alpha = 5.000000e-01 : f32}> : (tensor<9xf32>) -> tensor<9xf32>
    return %0 : tensor<9xf32>
  }

  // CHECK-LABEL: func.func @gelu_backward(
  func.func @gelu_backward(%arg0: tensor<3x4xf32>, %arg1: tensor<3x4xf32>) -> tensor<3x4xf32> {
    // CHECK-NOT: "ttir.gelu_backward"
    // expected-warning@+1 {{ttir.gelu_backward is no op}}
    %0 = "ttir.gelu_backward"(%arg0, %arg1) : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @slice(
  func.func @slice(%arg0: tensor<2x3x4xf32>) -> tensor<2x2x2xf32> {
    // CHECK-NOT: "ttir.slice"
    // expected-warning@+1 {{ttir.slice is no op}}
    %0 = "ttir.slice"(%arg0) <{begins = [0 : i32, -3 : i32, 1 : i32], ends = [2 : i32, 3 : i32, -1 : i32], step = [1 : i32, 2 : i32, 1 : i32]}> : (tensor<2x3x4xf32>) -> tensor<2x2x2xf32>
    return %0 : tensor<2x2x2xf32>
  }

  // CHECK-LABEL: func.func @select(
  func.func @select(%arg0: tensor<3x8xf32>) -> tensor<3x4xf32> {
    // CHECK-NOT: "ttir.select"
    // expected-warning@+1 {{ttir.select is no op}}
    %0 = "ttir.select"(%arg0) <{begin = 1 : si32, dim = -1 : si32, length = 2 : si32, stride = 4 : si32}> : (tensor<3x8xf32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @gather(
  func.func @gather(%arg0: tensor<5x4xf32>, %arg1: tensor<3xi32>) -> tensor<3x4xf32> {
    // CHECK: "ttir.embedding"
    // expected-warning@+1 {{ttir.gather has no attribute 'collapsed_slice_dims'}}
    %0 = "ttir.gather"(%arg0, %arg1) <{collapsed_slice_dims = array<i64: 0>, index_vector_dim = 1 : si64, offset_dims = array<i64: 1>, slice_sizes = array<i64: 1, 4>, start_index_map = array<i64: 0>}> : (tensor<5x4xf32>, tensor<3xi32>) -> tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }

  // CHECK-LABEL: func.func @fill_cache(
  func.func @fill_cache(%arg0: tensor<3x2x6x4xf32>, %arg1: tensor<1x2x3x4xf32>) -> tensor<3x2x6x4xf32> {
    // CHECK: "ttir.fill_cache"({{.*}} -> ()
    // expected-warning@+1 {{ttir.fill_cache has no result}}
    %0 = "ttir.fill_cache"(%arg0, %arg1) <{batch_offset = 0 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x3x4xf32>) -> tensor<3x2x6x4xf32>
    return %0 : tensor<3x2x6x4xf32>
  }

  // CHECK-LABEL: func.func @update_cache(
  func.func @update_cache(%arg0: tensor<3x2x6x4xf32>, %arg1: tensor<1x2x1x4xf32>, %arg2: tensor<1xi32>) -> tensor<3x2x6x4xf32> {
    // CHECK: "ttir.update_cache"({{.*}} -> ()
    // expected-warning@+1 {{ttir.update_cache has no result}}
    %0 = "ttir.update_cache"(%arg0, %arg1, %arg2) <{batch_offset = 2 : i32}> : (tensor<3x2x6x4xf32>, tensor<1x2x1x4xf32>, tensor<1xi32>) -> tensor<3x2x6x4xf32>
    return %0 : tensor<3x2x6x4xf32>
  }

  // CHECK-LABEL: func.func @convolution(
  func.func @convolution(%arg0: tensor<2x4x5x6xf32>, %arg1: tensor<6x2x3x2xf32>) -> tensor<2x6x2x9xf32> {
    // CHECK-NOT: "ttir.convolution"
    // expected-warning@+1 {{ttir.convolution is no op}}
    %0 = "ttir.convolution"(%arg0, %arg1) <{batch_group_count = 1 : i64, convolution_layout = #ttir<convolution_layout input_batch = 0, input_feature = 1, input_spatial_dimensions = 2x3, kernel_output_feature = 0, kernel_input_feature = 1, kernel_spatial_dimensions = 2x3, output_batch = 0, output_feature = 1, output_spatial_dimensions = 2x3>, feature_group_count = 2 : i64, input_dilation = array<i64: 1, 1>, padding = array<i64: 1, 0, 2, 3>, weight_dilation = array<i64: 1, 2>, window_reversal = array<i1: false, false>, window_strides = array<i64: 2, 1>}> : (tensor<2x4x5x6xf32>, tensor<6x2x3x2xf32>) -> tensor<2x6x2x9xf32>
    return %0 : tensor<2x6x2x9xf32>
  }

  // CHECK-LABEL: func.func @rotary_embedding(
  func.func @rotary_embedding(%arg0: tensor<2x3x4x6xf32>, %arg1: tensor<1x1x4x6xf32>, %arg2: tensor<1x1x4x6xf32>) -> tensor<2x3x4x6xf32> {
    // CHECK-NOT: "ttir.rotary_embedding"
    // expected-warning@+1 {{ttir.rotary_embedding is no op}}
    %0 = "ttir.rotary_embedding"(%arg0, %arg1, %arg2) : (tensor<2x3x4x6xf32>, tensor<1x1x4x6xf32>, tensor<1x1x4x6xf32>) -> tensor<2x3x4x6xf32>
    return %0 : tensor<2x3x4x6xf32>
  }

  // CHECK-LABEL: func.func @rand(
  func.func @rand() -> (tensor<4x8xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    // CHECK: "ttir.rand"() <{high
    // expected-warning@+1 {{ttir.rand has no attribute 'dtype'}}
    %0 = "ttir.rand"() <{dtype = f32, high = 1.000000e+00 : f32, low = 0.000000e+00 : f32, seed = 3 : ui32, size = [4 : i32, 8 : i32]}> : () -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}
