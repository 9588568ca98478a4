// What emitted C++ includes: the real declarations of ttnn, from the files that Tenstorrent's compiler unpacks.
#pragma once
#include "standins.hpp"

#include "ttnn/device.hpp"
#include "ttnn/distributed/api.hpp"
#include "ttnn/distributed/distributed_tensor.hpp"
#include "ttnn/operations/conv/conv2d/prepare_conv2d_weights.hpp"
#include "ttnn/operations/data_movement/gather/tosa/gather_tosa.hpp"
#include "ttnn/operations/eltwise/binary/binary_composite.hpp"
#include "ttnn/operations/eltwise/unary/unary_composite.hpp"
#include "ttnn/operations/pool/generic/generic_pools.hpp"
#include "ttnn/operations/reduction/generic/generic_reductions.hpp"
#include "operations.hpp"  // those of operations.txt

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

// What jaxmesh's own header adds: constants, whose values upstream's EmitC loses, the truth value that ends a
// loop, and the files of an exported folder.
namespace ttnn {
using OptionalDevice = std::optional<std::reference_wrapper<distributed::MeshDevice>>;
template <class T>
Tensor constant(const std::vector<T>&, const Shape&, DataType, Layout, OptionalDevice, const MemoryConfig&);
template <class T>
std::vector<T> load_elements(const std::string&, const Shape&, DataType);
Tensor load_tensor(const std::string&, const Shape&, Layout, DataType, OptionalDevice, const MemoryConfig&);
void make_inputs(const std::string&);
bool is_true(const Tensor&);
template <class... A>
int run_and_check(int, char**, A&&...) { return 0; }
template <class... A>
int run_and_check(int, char**, std::vector<Tensor> (*)(), std::vector<Tensor> (*)(const std::vector<Tensor>&), A&&...) { return 0; }
}  // namespace ttnn
