// What emitted C++ includes: the real declarations of ttnn, from the files that Tenstorrent's compiler unpacks.
#pragma once
#include "standins.hpp"

#include "ttnn/core.hpp"
#include "ttnn/device.hpp"
#include "ttnn/distributed/api.hpp"
#include "ttnn/distributed/distributed_tensor.hpp"
#include "ttnn/operations/ccl/all_gather/all_gather.hpp"
#include "ttnn/operations/ccl/all_reduce/all_reduce.hpp"
#include "ttnn/operations/ccl/all_to_all_combine/all_to_all_combine.hpp"
#include "ttnn/operations/ccl/all_to_all_dispatch/all_to_all_dispatch.hpp"
#include "ttnn/operations/ccl/mesh_partition/mesh_partition.hpp"
#include "ttnn/operations/ccl/reduce_scatter/reduce_scatter.hpp"
#include "ttnn/operations/conv/conv1d/conv1d.hpp"
#include "ttnn/operations/conv/conv2d/conv2d.hpp"
#include "ttnn/operations/conv/conv2d/prepare_conv2d_weights.hpp"
#include "ttnn/operations/conv/conv_transpose2d/conv_transpose2d.hpp"
#include "ttnn/operations/copy/typecast/typecast.hpp"
#include "ttnn/operations/core/core.hpp"
#include "ttnn/operations/core/to_layout/to_layout_op.hpp"
#include "ttnn/operations/core/to_memory_config/to_memory_config_op.hpp"
#include "ttnn/operations/creation/creation.hpp"
#include "ttnn/operations/data_movement/concat/concat.hpp"
#include "ttnn/operations/data_movement/copy/copy.hpp"
#include "ttnn/operations/data_movement/gather/gather.hpp"
#include "ttnn/operations/data_movement/gather/tosa/gather_tosa.hpp"
#include "ttnn/operations/data_movement/moe_expert_token_remap/moe_expert_token_remap.hpp"
#include "ttnn/operations/data_movement/pad/pad.hpp"
#include "ttnn/operations/data_movement/permute/permute.hpp"
#include "ttnn/operations/data_movement/repeat/repeat.hpp"
#include "ttnn/operations/data_movement/repeat_interleave/repeat_interleave.hpp"
#include "ttnn/operations/data_movement/reshape_view/reshape.hpp"
#include "ttnn/operations/data_movement/scatter/scatter.hpp"
#include "ttnn/operations/data_movement/slice/slice.hpp"
#include "ttnn/operations/data_movement/sort/sort.hpp"
#include "ttnn/operations/data_movement/transpose/transpose.hpp"
#include "ttnn/operations/eltwise/binary/binary.hpp"
#include "ttnn/operations/eltwise/binary/binary_composite.hpp"
#include "ttnn/operations/eltwise/ternary/ternary.hpp"
#include "ttnn/operations/eltwise/unary/unary.hpp"
#include "ttnn/operations/eltwise/unary/unary_composite.hpp"
#include "ttnn/operations/eltwise/unary_backward/unary_backward.hpp"
#include "ttnn/operations/embedding/embedding.hpp"
#include "ttnn/operations/embedding_backward/embedding_backward.hpp"
#include "ttnn/operations/experimental/ccl/all_reduce_async/all_reduce_async.hpp"
#include "ttnn/operations/experimental/conv3d/conv3d.hpp"
#include "ttnn/operations/experimental/dropout/dropout.hpp"
#include "ttnn/operations/experimental/paged_cache/paged_cache.hpp"
#include "ttnn/operations/experimental/transformer/nlp_concat_heads_decode/nlp_concat_heads_decode.hpp"
#include "ttnn/operations/experimental/transformer/rotary_embedding/rotary_embedding.hpp"
#include "ttnn/operations/kv_cache/kv_cache.hpp"
#include "ttnn/operations/matmul/matmul.hpp"
#include "ttnn/operations/normalization/batch_norm/batch_norm.hpp"
#include "ttnn/operations/normalization/groupnorm/groupnorm.hpp"
#include "ttnn/operations/normalization/layernorm/layernorm.hpp"
#include "ttnn/operations/normalization/rmsnorm/rmsnorm.hpp"
#include "ttnn/operations/normalization/softmax/softmax.hpp"
#include "ttnn/operations/point_to_point/point_to_point.hpp"
#include "ttnn/operations/pool/generic/generic_pools.hpp"
#include "ttnn/operations/pool/upsample/upsample.hpp"
#include "ttnn/operations/rand/rand.hpp"
#include "ttnn/operations/reduction/accumulation/cumprod/cumprod.hpp"
#include "ttnn/operations/reduction/accumulation/cumsum/cumsum.hpp"
#include "ttnn/operations/reduction/argmax/argmax.hpp"
#include "ttnn/operations/reduction/generic/generic_reductions.hpp"
#include "ttnn/operations/reduction/prod/prod.hpp"
#include "ttnn/operations/reduction/sampling/sampling.hpp"
#include "ttnn/operations/reduction/topk/topk.hpp"
#include "ttnn/operations/transformer/concatenate_heads/concatenate_heads.hpp"
#include "ttnn/operations/transformer/sdpa/sdpa.hpp"
#include "ttnn/operations/transformer/sdpa_decode/sdpa_decode.hpp"
#include "ttnn/operations/transformer/split_query_key_value_and_split_heads/split_query_key_value_and_split_heads.hpp"

// What tt-mlir's own header adds.
namespace ttnn {
struct DeviceGetter {
  static distributed::MeshDevice* getInstance(const distributed::MeshShape&);
};
}  // namespace ttnn
template <class... T>
  requires(std::convertible_to<T, ttnn::Tensor> && ...)
std::vector<ttnn::Tensor> util_create_vec(T&&...);
ttnn::Tensor util_get_optional_value(const std::optional<ttnn::Tensor>&);

// What jaxmesh's own header adds: constants, whose values upstream's EmitC loses, and the files of an exported folder.
namespace ttnn {
using OptionalDevice = std::optional<std::reference_wrapper<distributed::MeshDevice>>;
template <class T>
Tensor constant(const std::vector<T>&, const Shape&, DataType, Layout, OptionalDevice, const MemoryConfig&);
template <class T>
std::vector<T> load_elements(const std::string&, const Shape&, DataType);
Tensor load_tensor(const std::string&, const Shape&, Layout, DataType, OptionalDevice, const MemoryConfig&);
void make_inputs(const std::string&);
template <class... A>
int run_and_check(int, char**, A&&...);
template <class... A>
int run_and_check(int, char**, std::vector<Tensor> (*)(), std::vector<Tensor> (*)(const std::vector<Tensor>&), A&&...);
}  // namespace ttnn
