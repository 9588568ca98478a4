import ttnn
import utils
def lambda_0(arg): 
  arg_0 = arg[0]
  utils_DeviceGetter_get_device_0 = utils.DeviceGetter.get_device((2, 4), fabric_config=ttnn.FabricConfig.FABRIC_1D)
  ttnn_MeshMapperConfig_0 = ttnn.MeshMapperConfig([ttnn.PlacementShard(0), ttnn.PlacementReplicate()], ttnn.MeshShape([2, 4]))
  ttnn_create_mesh_mapper_0 = ttnn.create_mesh_mapper(utils_DeviceGetter_get_device_0, ttnn_MeshMapperConfig_0)
  ttnn_distribute_tensor_0 = ttnn.distribute_tensor(arg_0, mapper=ttnn_create_mesh_mapper_0)
  ttnn.deallocate(arg_0, False)
  ttnn_to_device_0 = ttnn.to_device(ttnn_distribute_tensor_0, device=utils_DeviceGetter_get_device_0, memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None))
  ttnn.deallocate(ttnn_distribute_tensor_0, False)
  ttnn_to_layout_0 = ttnn.to_layout(ttnn_to_device_0, ttnn.Layout.TILE, None, memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None))
  ttnn.deallocate(ttnn_to_device_0, False)
  ttnn_tanh_0 = ttnn.tanh(ttnn_to_layout_0, fast_and_approximate_mode=False, memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None))
  ttnn.deallocate(ttnn_to_layout_0, False)
  ttnn_sum_0 = ttnn.sum(ttnn_tanh_0, [0], False, memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None), compute_kernel_config=ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, fp32_dest_acc_en=True))
  ttnn.deallocate(ttnn_tanh_0, False)
  ttnn_reshape_0 = ttnn.reshape(ttnn_sum_0, [1, 1, 1, 16], memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None))
  ttnn_all_reduce_0 = ttnn.all_reduce(input_tensor=ttnn_reshape_0, cluster_axis=0, subdevice_id=None, memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None), num_links=None, topology=None)
  ttnn.deallocate(ttnn_reshape_0, True)
  ttnn_reshape_1 = ttnn.reshape(ttnn_all_reduce_0, [16], memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None))
  ttnn_to_layout_1 = ttnn.to_layout(ttnn_reshape_1, ttnn.Layout.ROW_MAJOR, None, memory_config=ttnn.MemoryConfig(ttnn.TensorMemoryLayout.INTERLEAVED, ttnn.BufferType.DRAM, None))
  ttnn.deallocate(ttnn_reshape_1, True)
  ttnn_from_device_0 = ttnn.from_device(ttnn_to_layout_1)
  ttnn.deallocate(ttnn_to_layout_1, False)
  ttnn_MeshComposerConfig_0 = ttnn.MeshComposerConfig([0], ttnn.MeshShape([1]))
  ttnn_create_mesh_composer_0 = ttnn.create_mesh_composer(utils_DeviceGetter_get_device_0, ttnn_MeshComposerConfig_0)
  ttnn_aggregate_tensor_0 = ttnn.aggregate_tensor(ttnn_from_device_0, composer=ttnn_create_mesh_composer_0)
  ttnn.deallocate(ttnn_from_device_0, False)
  return [ttnn_aggregate_tensor_0]

def load_inputs_for_lambda_0(): 
  utils_load_tensor_0 = utils.load_tensor("tensors/arg0.npy", ttnn.Layout.ROW_MAJOR, ttnn.DataType.FLOAT32, None, None, shape=ttnn.Shape([8, 16]))
  return [utils_load_tensor_0]

def main(): 
  utils_arguments_0 = utils.arguments()
  load_inputs_for_lambda_0_0 = load_inputs_for_lambda_0()
  lambda_0_0 = lambda_0(load_inputs_for_lambda_0_0)
  utils_Expected_0 = utils.Expected("tensors/expected0.npy", ttnn.DataType.FLOAT32, sharded=False, exact=False)
  return utils.report(lambda_0_0, [utils_Expected_0], utils_arguments_0)

if __name__ == '__main__':
  raise SystemExit(main())
