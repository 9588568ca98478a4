sdy.mesh @mesh = <["x"=4]>
// expected-error@+1 {{would end the process}}
func.func public @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.data_flow_edge %a sharding=<@mesh, [{}, {}]> : tensor<8x8xf32>
  %1 = stablehlo.add %0, %0 : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
// -----
func.func public @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.add %a, %a : tensor<8x8xf32>
  // expected-error@+1 {{the meaning of the custom call @my.kernel is not known}}
  %1 = stablehlo.custom_call @my.kernel(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
// -----
// expected-error@+1 {{does not split over whole axes of the mesh}}
func.func public @main(%a: tensor<8x8xf32> {mhlo.sharding = "{devices=[3,1]<=[2]}"}) -> tensor<8x8xf32> {
  %0 = stablehlo.add %a, %a : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
// -----
// expected-error@+1 {{does not contain an op of StableHLO, which --stablehlo-to-ttir reads}}
func.func public @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "ttir.tanh"(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
// RUN: jaxmesh opt %s --stablehlo-to-ttir --verify-diagnostics
