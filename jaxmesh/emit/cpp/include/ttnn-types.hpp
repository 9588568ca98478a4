// Names of the ttnn API that say how a tensor is held: element types, layouts, memory, shapes. Host emulation.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace ttsl {

template <class T>
using SmallVector = std::vector<T>;

// A row of numbers as an argument. It holds a copy, so that none outlives what it shows.
template <class T>
class Span {
 public:
  using Value = std::remove_const_t<T>;
  Span(std::initializer_list<Value> values) : values_(values) {}
  explicit Span(std::vector<Value> values) : values_(std::move(values)) {}
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  std::size_t size() const { return values_.size(); }

 private:
  std::vector<Value> values_;
};

template <class T>
Span<const T> make_const_span(const std::vector<T>& values) {
  return Span<const T>(values);
}

}  // namespace ttsl

namespace tt::tt_metal {

enum class MathFidelity { LoFi, HiFi2, HiFi3, HiFi4 };

}  // namespace tt::tt_metal

namespace ttnn {

using Dims = std::vector<int64_t>;

// An argument that is a row of integers, of whatever width and container.
class Ints {
 public:
  template <class R>
    requires requires(const R& r) { r.begin(), r.end(); }
  Ints(const R& row) : values(row.begin(), row.end()) {}
  Ints(std::initializer_list<int64_t> row) : values(row) {}
  template <class I>
    requires std::is_integral_v<I>
  Ints(I one) : values{static_cast<int64_t>(one)} {}

  Dims values;
};

class Shape {
 public:
  Shape(std::initializer_list<int64_t> dims) : dims_(dims) {}
  explicit Shape(Dims dims) : dims_(std::move(dims)) {}
  auto begin() const { return dims_.begin(); }
  auto end() const { return dims_.end(); }
  const Dims& dims() const { return dims_; }

 private:
  Dims dims_;
};

// A number as an argument: whole or not, as it is written.
struct Scalar {
  template <class T>
    requires std::is_arithmetic_v<T>
  Scalar(T value)
      : whole(std::is_integral_v<T>),
        real(static_cast<double>(value)),
        integer(std::is_integral_v<T> ? static_cast<int64_t>(value) : 0) {}

  bool whole;
  double real;
  int64_t integer;
};

enum class DataType {
  FLOAT64,
  FLOAT32,
  BFLOAT16,
  FLOAT16,
  FLOAT8_E3M4,
  FLOAT8_E4M3,
  FLOAT8_E4M3FN,
  FLOAT8_E4M3FNUZ,
  FLOAT8_E4M3B11FNUZ,
  FLOAT8_E5M2,
  FLOAT8_E5M2FNUZ,
  INT64,
  INT32,
  INT16,
  INT8,
  INT4,
  INT2,
  UINT64,
  UINT32,
  UINT16,
  UINT8,
  UINT4,
  UINT2,
  BOOL,
};

enum class Layout { ROW_MAJOR, TILE, INVALID };
enum class BufferType { DRAM, L1, SYSTEM_MEMORY, L1_SMALL, TRACE };
enum class TensorMemoryLayout { INTERLEAVED, HEIGHT_SHARDED, WIDTH_SHARDED, BLOCK_SHARDED };
enum class StorageType { HOST, DEVICE };

struct ShardSpec {};

struct MemoryConfig {
  TensorMemoryLayout memory_layout = TensorMemoryLayout::INTERLEAVED;
  BufferType buffer_type = BufferType::DRAM;
  std::optional<ShardSpec> shard_spec = std::nullopt;
};

struct WormholeComputeKernelConfig {
  tt::tt_metal::MathFidelity math_fidelity = tt::tt_metal::MathFidelity::LoFi;
  bool math_approx_mode = true;
  bool fp32_dest_acc_en = false;
  bool packer_l1_acc = false;
};

struct MeshCoordinate {
  explicit MeshCoordinate(const ttsl::Span<const uint32_t>& coordinates)
      : values(coordinates.begin(), coordinates.end()) {}
  Dims values;
};

// Arguments that choose a kernel or a place in memory, and mean nothing on a host.
using Memory = std::optional<MemoryConfig>;
using Compute = std::optional<WormholeComputeKernelConfig>;
using Unset = std::nullopt_t;

// What real ttnn refuses, and what this emulation cannot do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline std::string show(const Dims& dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

inline void require(bool holds, const char* rule) {
  if (!holds) throw Error(rule);
}

// The message is put together only when the rule is broken.
template <class Message>
  requires std::is_invocable_v<Message>
void require(bool holds, Message message) {
  if (!holds) throw Error(message());
}

inline int64_t volume(const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

// A dim counted from the front.
inline int64_t dim_in(int64_t dim, std::size_t rank, const char* who) {
  const int64_t n = static_cast<int64_t>(rank);
  require(-n <= dim && dim < n, [&] {
    return std::string(who) + ": dim " + std::to_string(dim) + " is out of range for rank " + std::to_string(n);
  });
  return dim < 0 ? dim + n : dim;
}

}  // namespace ttnn
