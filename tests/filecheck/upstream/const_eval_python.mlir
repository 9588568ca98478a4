// RUN: jaxmesh opt --ttir-to-emitpy-pipeline %s | filecheck %s

// The functions that are called once are a file of their own; the host's processor computes what it has functions for.
func.func @forward(%x: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<input>}, %w: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<parameter>}, %b: tensor<32x32xbf16> {ttcore.argument_type = #ttcore.argument_type<constant>}) -> tensor<32x32xbf16> {
  %0 = "ttir.add"(%x, %w) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %1 = "ttir.add"(%w, %b) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  %2 = "ttir.add"(%0, %1) : (tensor<32x32xbf16>, tensor<32x32xbf16>) -> tensor<32x32xbf16>
  return %2 : tensor<32x32xbf16>
}
// CHECK: # File: "main"
// CHECK-NEXT: import ttnn
// CHECK-NEXT: import utils
// CHECK-NEXT: from consteval import consteval_forward
// CHECK-NEXT: ce_cache_forward = {}
// CHECK-NEXT: def forward(activations, weights):
// CHECK-NEXT: global ce_cache_forward
// CHECK-NEXT: ce_cache_forward = consteval_forward(ce_cache_forward, weights)
// CHECK: ttnn.add({{.*}}, ce_cache_forward["forward_const_eval_0"][0],
// CHECK: def create_activations_for_forward():
// CHECK: return [
// CHECK: def create_weights_for_forward():
// CHECK: return {"weight_0": {{.*}}, "weight_1": {{.*}}}
// CHECK: # File: "consteval"
// CHECK-NEXT: import ttnn
// CHECK-NEXT: import utils
// CHECK-NEXT: import torch
// CHECK-NEXT: import ttir_cpu
// CHECK-NEXT: def cpu_hoisted_const_eval_0(input_0, input_1):
// CHECK-NEXT: def cpu_hoisted_const_eval_0_impl(input_0, input_1):
// CHECK-NEXT: input_0 = ttir_cpu.typecast(input_0, dtype=torch.float32)
// CHECK-NEXT: input_1 = ttir_cpu.typecast(input_1, dtype=torch.float32)
// CHECK-NEXT: ttir_cpu_0 = ttir_cpu.add(input_0, input_1)
// CHECK-NEXT: return ttir_cpu.typecast(ttir_cpu_0, dtype=torch.bfloat16)
// CHECK-NEXT: return utils.execute_cpu_hoisted_function([input_0, input_1], cpu_hoisted_const_eval_0_impl)
// CHECK: def forward_const_eval_0(arg):
// CHECK: {{^  }}[[HOST:\w+]] = ttnn.from_device(
// CHECK: cpu_hoisted_const_eval_0([[HOST]], arg[1])
// CHECK: def consteval_forward(ce_cache, weights):
// CHECK-NEXT: if not ce_cache:
// CHECK-NEXT: {{^    }}[[MADE:\w+]] = forward_const_eval_0([weights["weight_0"], weights["weight_1"]])
// CHECK-NEXT: ce_cache["forward_const_eval_0"] = [[MADE]]
// CHECK-NEXT: return ce_cache
