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
std::string format(A&&...);
template <class... A>
char* format_to(A&&...);
template <class... A>
std::string join(A&&...);
template <class... A>
std::string to_string(A&&...);
using string_view = std::string_view;
}  // namespace fmt

namespace nlohmann {
struct json {
  template <class T>
  const json& operator[](T&&) const;
};
template <class T, class = void>
struct adl_serializer {};
}  // namespace nlohmann

namespace ttsl {
using std::as_bytes;
using std::as_writable_bytes;
template <class T, std::size_t N = std::dynamic_extent>
struct Span : std::span<T, N> {
  using std::span<T, N>::span;
  constexpr Span(std::initializer_list<std::remove_const_t<T>>) requires std::is_const_v<T>;
  constexpr const T* cbegin() const;
  constexpr const T* cend() const;
};
template <class C>
Span<typename C::value_type> make_span(C&);
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
template <class T>
struct Indestructible {
  T& get();
};
template <class... Ts>
struct overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
overloaded(Ts...) -> overloaded<Ts...>;
template <class T>
std::string get_type_name(const T&);
template <class T>
std::string get_type_name();
namespace hash {
using hash_t = std::uint64_t;
template <class... A>
hash_t hash_objects(A&&...);
template <class... A>
hash_t hash_objects_with_default_seed(A&&...);
template <class T>
inline constexpr hash_t type_hash = 0;
}  // namespace hash
namespace reflection {
struct Attribute {
  template <class T>
  Attribute(T&&);
};
using Attributes = std::vector<std::tuple<std::string, Attribute>>;
}  // namespace reflection
namespace json {
template <class T>
struct to_json_t;
template <class T>
struct from_json_t;
}  // namespace json
template <class T, template <class...> class U>
inline constexpr bool is_specialization_v = false;
namespace concepts {
template <class...>
inline constexpr bool always_false_v = false;
}
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

namespace reflect {
template <class T>
constexpr std::size_t size() { return 0; }
template <std::size_t N, class T>
constexpr std::string_view member_name(const T&) { return {}; }
template <std::size_t N, class T>
auto& get(T&);
template <class F, class T>
void for_each(F&&, T&&);
template <class T>
constexpr std::string_view type_name(const T&);
}  // namespace reflect
namespace tt { enum LogCategory { LogOp, LogAlways, LogTest, LogMetal }; }
template <class... A>
void log_trace(A&&...);
template <class... A>
void log_debug(A&&...);
template <class... A>
void log_info(A&&...);
template <class... A>
void log_warning(A&&...);

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
