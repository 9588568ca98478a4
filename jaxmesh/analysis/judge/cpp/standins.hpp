// Stand-ins for what the headers of ttnn and tt-metal include from elsewhere: types and templates without meaning.
#pragma once
#include <bits/stdc++.h>

namespace fmt {
struct format_context {
  using iterator = char*;
  iterator out() const;
};
struct format_parse_context {
  using iterator = const char*;
  constexpr iterator begin() const { return nullptr; }
  constexpr iterator end() const { return nullptr; }
};
template <class T, class = char, class = void>
struct formatter {
  constexpr const char* parse(format_parse_context&);
  template <class U>
  char* format(const U&, format_context&) const;
};
template <class... A>
char* format_to(A&&...);
using string_view = std::string_view;
}  // namespace fmt

namespace nlohmann {
struct json {
  template <class T>
  const json& operator[](T&&) const;
};
}  // namespace nlohmann

namespace ttsl {
template <class T, std::size_t N = std::dynamic_extent>
struct Span : std::span<T, N> {
  using std::span<T, N>::span;
  constexpr Span(std::initializer_list<std::remove_const_t<T>>) requires std::is_const_v<T>;
  constexpr const T* cbegin() const;
  constexpr const T* cend() const;
};
template <class C>
Span<const typename C::value_type> make_const_span(const C&);
template <class T, std::size_t N = 8>
struct SmallVector : std::vector<T> {
  using std::vector<T>::vector;
};
template <class T, class Tag>
struct StrongType {
  using value_type = T;
  constexpr explicit StrongType(T) {}
  StrongType() = default;
  const T& operator*() const;
  const T& get() const;
  auto operator<=>(const StrongType&) const = default;
};
template <class T>
struct optional_reference {
  optional_reference(std::nullopt_t);
  optional_reference(T&);
  optional_reference(const std::optional<std::remove_const_t<T>>&);
  optional_reference(std::optional<std::remove_const_t<T>>&);
  T& value() const;
  T* operator->() const;
  T& operator*() const;
  bool has_value() const;
  explicit operator bool() const;
};
namespace hash {
using hash_t = std::uint64_t;
template <class... A>
hash_t hash_objects(A&&...);
template <class... A>
hash_t hash_objects_with_default_seed(A&&...);
template <class T>
inline constexpr hash_t type_hash = 0;
}  // namespace hash
}  // namespace ttsl
namespace tt { namespace stl = ttsl; }

namespace tt {
enum class ARCH { GRAYSKULL, WORMHOLE_B0, BLACKHOLE, QUASAR, Invalid };
namespace umd {
using ChipId = int;
}
using ChipId = int;
enum class CoreType { WORKER, DRAM, ETH };
}  // namespace tt
struct tt_xy_pair {
  std::size_t x = 0, y = 0;
  constexpr tt_xy_pair() = default;
  constexpr tt_xy_pair(std::size_t x, std::size_t y) : x(x), y(y) {}
  auto operator<=>(const tt_xy_pair&) const = default;
};
using tt::CoreType;
inline constexpr std::size_t DEFAULT_L1_SMALL_SIZE = 0, DEFAULT_TRACE_REGION_SIZE = 0, DEFAULT_WORKER_L1_SIZE = 0;
#define TT_FATAL(...) (void)0
#define TT_THROW(...) throw 0
#define TT_ASSERT(...) (void)0

namespace tt { enum LogCategory { LogOp, LogAlways, LogTest, LogMetal }; }
template <class... A>
void log_trace(A&&...);

template <class T>
T from_json(const nlohmann::json&);
enum eth_chan_directions { EAST, WEST, NORTH, SOUTH, Z };
namespace tt::tt_metal::operation {
template <class...>
struct OpPerformanceModelGeneral {};
}  // namespace tt::tt_metal::operation
namespace ttnn::device_operation {
template <class>
struct MeshDeviceOperationAdapter {
  template <class>
  struct DescriptorMeshWorkloadAdapter {
    struct cached_mesh_workload_t {};
  };
};
template <class...>
concept MeshWorkloadFactoryConcept = true;
}  // namespace ttnn::device_operation
