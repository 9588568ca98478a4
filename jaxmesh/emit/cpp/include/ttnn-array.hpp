// What one device, or the host, holds of a tensor, and the loops over it that every op is made of.
#pragma once

#include <algorithm>
#include <numeric>

#include "ttnn-numbers.hpp"

namespace ttnn {

// Elements in the type that computes them; only the one that fits the element type is used.
struct Values {
  std::vector<float> floats;
  std::vector<double> doubles;
  std::vector<int64_t> integers;
};

template <class C>
auto& values_of(Values& v) {
  if constexpr (std::is_same_v<C, float>)
    return v.floats;
  else if constexpr (std::is_same_v<C, double>)
    return v.doubles;
  else
    return v.integers;
}

// Row-major elements. They are shared and never written to once an array is finished.
struct Array {
  DataType dtype;
  Dims shape;
  std::shared_ptr<Values> values;

  Array(DataType type, Dims dims) : dtype(type), shape(std::move(dims)), values(std::make_shared<Values>()) {
    const auto n = static_cast<std::size_t>(volume(shape));
    switch (traits(type).kind) {
      case Kind::FLOAT: values->floats.resize(n); break;
      case Kind::DOUBLE: values->doubles.resize(n); break;
      default: values->integers.resize(n);
    }
  }
  Array(DataType type, Dims dims, std::shared_ptr<Values> held)
      : dtype(type), shape(std::move(dims)), values(std::move(held)) {}

  int64_t size() const { return volume(shape); }
  std::size_t rank() const { return shape.size(); }
  template <class C>
  C* data() const {
    // Signed and unsigned integers of one width may stand for each other.
    return reinterpret_cast<C*>(values_of<C>(*values).data());
  }
  Array as(Dims dims) const {
    require(volume(dims) == size(),
            [&] { return "reshape: " + show(shape) + " does not hold as many elements as " + show(dims); });
    return Array(dtype, std::move(dims), values);
  }
};

// Calls a function with a zero of the type that computes an element type.
template <class F>
void by_kind(DataType type, F&& f) {
  switch (traits(type).kind) {
    case Kind::FLOAT: return f(float{});
    case Kind::DOUBLE: return f(double{});
    case Kind::INTEGER: return f(int64_t{});
    case Kind::UNSIGNED: return f(uint64_t{});
  }
}

// Rounds or wraps computed elements to what the element type can hold.
inline Array finished(Array x) {
  const Traits& t = traits(x.dtype);
  if (t.kind == Kind::FLOAT && x.dtype != DataType::FLOAT32) {
    const bool brain = x.dtype == DataType::BFLOAT16;
    for (float& v : x.values->floats) v = brain ? round_bfloat16(v) : round_small(v, t);
  } else if (t.kind == Kind::INTEGER && t.bits < 64) {
    for (int64_t& v : x.values->integers) v = wrap(v, t);
  }
  return x;
}

// --- elements one by one ---------------------------------------------------------------------------------------------

template <class C>
void map_loop(C* out, const C* in, int64_t n, C (*f)(C)) {
  for (int64_t i = 0; i < n; ++i) out[i] = f(in[i]);
}

template <class C>
void map_loop(C* out, const C* a, const C* b, int64_t n, C (*f)(C, C)) {
  for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
}

// `F` is a lambda without captures, for any of the computing types.
template <class F>
Array mapped(const Array& x, F) {
  Array out(x.dtype, x.shape);
  by_kind(x.dtype, [&](auto zero) {
    using C = decltype(zero);
    map_loop<C>(out.data<C>(), x.data<C>(), x.size(), [](C v) { return static_cast<C>(F{}(v)); });
  });
  return finished(std::move(out));
}

// Of two arrays of one shape and type.
template <class F>
Array mapped(const Array& a, const Array& b, F) {
  Array out(a.dtype, a.shape);
  by_kind(a.dtype, [&](auto zero) {
    using C = decltype(zero);
    map_loop<C>(out.data<C>(), a.data<C>(), b.data<C>(), a.size(), [](C u, C v) { return static_cast<C>(F{}(u, v)); });
  });
  return finished(std::move(out));
}

template <class From, class To>
To converted(From v, const Traits& to) {
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>)
    return static_cast<To>(integer_from(v, to));
  else
    return static_cast<To>(v);
}

// In another element type: to integers towards zero, to truth values by being other than zero.
inline Array cast(const Array& x, DataType type) {
  if (x.dtype == type) return x;
  Array out(type, x.shape);
  const Traits& to = traits(type);
  by_kind(x.dtype, [&](auto from) {
    by_kind(type, [&](auto zero) {
      using From = decltype(from);
      using To = decltype(zero);
      const From* in = x.data<From>();
      To* made = out.data<To>();
      const int64_t n = x.size();
      if (to.kind == Kind::FLOAT && to.bits < 32 && std::is_same_v<From, double>) {
        for (int64_t i = 0; i < n; ++i) made[i] = static_cast<To>(round_small(static_cast<double>(in[i]), to));
      } else {
        for (int64_t i = 0; i < n; ++i)
          made[i] = to.bits == 1 ? static_cast<To>(in[i] != 0) : converted<From, To>(in[i], to);
      }
    });
  });
  return finished(std::move(out));
}

// --- elements by place -----------------------------------------------------------------------------------------------

inline Dims strides_of(const Dims& shape) {
  Dims strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Calls `row(position, n)` for the runs of `n` places along the last dim of a shape, with the position of the first.
template <class Row>
void by_rows(const Dims& shape, int64_t offset, const Dims& strides, Row row) {
  if (volume(shape) == 0) return;
  if (shape.empty()) return row(offset, int64_t{1});
  const std::size_t last = shape.size() - 1;
  Dims at(shape.size(), 0);
  int64_t position = offset;
  while (true) {
    row(position, shape[last]);
    std::size_t d = last;
    while (d > 0) {
      --d;
      position += strides[d];
      if (++at[d] < shape[d]) break;
      position -= strides[d] * shape[d];
      at[d] = 0;
      if (d == 0) return;
    }
    if (last == 0) return;
  }
}

// The elements of `x` at `offset + sum(index * stride)`, as an array of a shape: slices, permutations, broadcasts.
inline Array picked(const Array& x, const Dims& shape, int64_t offset, const Dims& strides) {
  Array out(x.dtype, shape);
  const int64_t step = strides.empty() ? 0 : strides.back();
  by_kind(x.dtype, [&](auto zero) {
    using C = decltype(zero);
    const C* in = x.data<C>();
    C* to = out.data<C>();
    by_rows(shape, offset, strides, [&](int64_t position, int64_t n) {
      for (int64_t i = 0; i < n; ++i) *to++ = in[position + i * step];
    });
  });
  return out;
}

// Writes an array into such places of another, which is still being made.
inline void placed(Array& out, const Array& x, int64_t offset, const Dims& strides) {
  const int64_t step = strides.empty() ? 0 : strides.back();
  by_kind(x.dtype, [&](auto zero) {
    using C = decltype(zero);
    const C* from = x.data<C>();
    C* to = out.data<C>();
    by_rows(x.shape, offset, strides, [&](int64_t position, int64_t n) {
      for (int64_t i = 0; i < n; ++i) to[position + i * step] = *from++;
    });
  });
}

// The shape to which two broadcast.
inline Dims broadcast_shape(const Dims& a, const Dims& b) {
  Dims out(std::max(a.size(), b.size()), 1);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int64_t m = i < a.size() ? a[a.size() - 1 - i] : 1, n = i < b.size() ? b[b.size() - 1 - i] : 1;
    require(m == n || m == 1 || n == 1,
            [&] { return "the shapes " + show(a) + " and " + show(b) + " do not broadcast"; });
    out[out.size() - 1 - i] = m == 1 ? n : m;
  }
  return out;
}

inline Array broadcast(const Array& x, const Dims& shape) {
  if (x.shape == shape) return x;
  require(broadcast_shape(x.shape, shape) == shape,
          [&] { return show(x.shape) + " does not broadcast to " + show(shape); });
  const Dims own = strides_of(x.shape);
  Dims strides(shape.size(), 0);
  const std::size_t lead = shape.size() - x.rank();
  for (std::size_t d = 0; d < x.rank(); ++d) strides[lead + d] = x.shape[d] == 1 ? 0 : own[d];
  return picked(x, shape, 0, strides);
}

inline Array permuted(const Array& x, const Dims& order) {
  require(order.size() == x.rank(), "permute: one entry per dim is needed");
  const Dims own = strides_of(x.shape);
  Dims shape, strides;
  for (int64_t d : order) {
    const auto from = static_cast<std::size_t>(dim_in(d, x.rank(), "permute"));
    shape.push_back(x.shape[from]);
    strides.push_back(own[from]);
  }
  return picked(x, shape, 0, strides);
}

// Dims `dim` and `last` exchanged.
inline Array swapped(const Array& x, std::size_t first, std::size_t second) {
  if (first == second) return x;
  Dims order(x.rank());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[first], order[second]);
  return permuted(x, order);
}

// A piece of one dim.
inline Array piece(const Array& x, std::size_t dim, int64_t begin, int64_t length) {
  Dims shape = x.shape;
  const Dims strides = strides_of(x.shape);
  shape[dim] = length;
  return picked(x, shape, begin * strides[dim], strides);
}

inline Array joined(const std::vector<Array>& parts, std::size_t dim) {
  Dims shape = parts.at(0).shape;
  shape[dim] = 0;
  for (const Array& p : parts) {
    require(p.rank() == shape.size() && p.dtype == parts[0].dtype, "concat: tensors of one rank and type are needed");
    for (std::size_t d = 0; d < shape.size(); ++d) {
      require(d == dim || p.shape[d] == shape[d], [&] {
        return "concat along dim " + std::to_string(dim) + ": " + show(p.shape) + " does not fit " +
               show(parts[0].shape);
      });
    }
    shape[dim] += p.shape[dim];
  }
  Array out(parts[0].dtype, shape);
  const Dims strides = strides_of(shape);
  int64_t at = 0;
  for (const Array& p : parts) {
    placed(out, p, at * strides[dim], strides);
    at += p.shape[dim];
  }
  return out;
}

inline Array filled(DataType type, const Dims& shape, const Scalar& value) {
  Array out(type, shape);
  by_kind(type, [&](auto zero) {
    using C = decltype(zero);
    const C v = value.whole ? static_cast<C>(value.integer) : converted<double, C>(value.real, traits(type));
    std::fill_n(out.data<C>(), out.size(), v);
  });
  return finished(std::move(out));
}

}  // namespace ttnn
