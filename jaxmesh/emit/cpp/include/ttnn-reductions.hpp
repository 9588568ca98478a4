// Reductions, scans and orders along dims.
#pragma once

#include "ttnn-elementwise.hpp"
#include "ttnn-shapes.hpp"

namespace ttnn {

using Dim = std::optional<Ints>;

// Floats add up in double: the order then makes no difference that rounding would show.
template <class C>
using Sum = std::conditional_t<std::is_same_v<C, float>, double, C>;

// Dims that are reduced, moved to the end and made one.
struct Rows {
  Array held;
  Dims kept;
  int64_t count;
  int64_t length;

  Rows(const Array& x, const Dim& dims, bool keep, const char* who) : held(x), count(1), length(1) {
    std::vector<bool> reduced(x.rank(), !dims);
    for (int64_t d : dims ? dims->values : Dims{}) reduced[static_cast<std::size_t>(dim_in(d, x.rank(), who))] = true;
    Dims order, last;
    for (std::size_t d = 0; d < x.rank(); ++d) {
      (reduced[d] ? last : order).push_back(static_cast<int64_t>(d));
      (reduced[d] ? length : count) *= x.shape[d];
      if (keep || !reduced[d]) kept.push_back(reduced[d] ? 1 : x.shape[d]);
    }
    order.insert(order.end(), last.begin(), last.end());
    if (!std::is_sorted(order.begin(), order.end())) held = permuted(x, order);
  }
};

// `F{}(total, element)` over each row, from a start that depends on the type.
template <class Start, class F>
Array reduced(const Array& x, const Dim& dims, bool keep, const char* who, Start start, F function) {
  const Rows rows(x, dims, keep, who);
  Array out(x.dtype, rows.kept);
  by_kind(x.dtype, [&](auto zero) {
    using C = decltype(zero);
    const C* in = rows.held.template data<C>();
    for (int64_t r = 0; r < rows.count; ++r) {
      Sum<C> total = static_cast<Sum<C>>(start(zero));
      for (int64_t i = 0; i < rows.length; ++i) total = function(total, static_cast<Sum<C>>(*in++));
      out.data<C>()[r] = static_cast<C>(total);
    }
  });
  return finished(std::move(out));
}

inline Array summed(const Array& x, const Dim& dims, bool keep) {
  return reduced(x, dims, keep, "sum", [](auto) { return 0; }, [](auto a, auto b) { return scalar::add(a, b); });
}

// The result of one number by another that is the same everywhere.
inline Array divided(const Array& x, double by) {
  return combined(x, filled(x.dtype, {}, by), [](auto a, auto b) { return scalar::divide(a, b); });
}

inline Array averaged(const Array& x, const Dim& dims, bool keep) {
  const Array wide = is_float(x.dtype) && traits(x.dtype).kind == Kind::DOUBLE ? x : cast(x, DataType::FLOAT32);
  const double count = static_cast<double>(Rows(x, dims, keep, "mean").length);
  const Array out = divided(summed(wide, dims, keep), count);
  return is_float(x.dtype) ? cast(out, x.dtype) : out;
}

template <class C>
C least(DataType type) {
  if constexpr (scalar::real<C>)
    return -std::numeric_limits<C>::infinity();
  else
    return static_cast<C>(smallest_integer(type));
}

template <class C>
C most(DataType type) {
  if constexpr (scalar::real<C>)
    return std::numeric_limits<C>::infinity();
  else
    return static_cast<C>(largest_integer(type));
}

inline Array largest_of(const Array& x, const Dim& dims, bool keep) {
  const auto start = [&](auto zero) { return least<decltype(zero)>(x.dtype); };
  return reduced(x, dims, keep, "max", start, [](auto a, auto b) { return scalar::maximum(a, b); });
}

inline Array smallest_of(const Array& x, const Dim& dims, bool keep) {
  const auto start = [&](auto zero) { return most<decltype(zero)>(x.dtype); };
  return reduced(x, dims, keep, "min", start, [](auto a, auto b) { return scalar::minimum(a, b); });
}

inline Array product_of(const Array& x, const Dim& dims, bool keep) {
  return reduced(x, dims, keep, "prod", [](auto) { return 1; }, [](auto a, auto b) { return scalar::multiply(a, b); });
}

using Reduction = Array (*)(const Array&, const Dim&, bool);

struct Reduce {
  const char* name;
  Reduction function;
  Tensor operator()(const Tensor& x, const Dim& dims, bool keep, const Memory& = std::nullopt,
                    const Compute& = std::nullopt) const {
    return on_each(name, {x}, [&](const Arrays& held) { return function(held[0], dims, keep); });
  }
};

inline constexpr Reduce sum{"sum", &summed};
inline constexpr Reduce mean{"mean", &averaged};
inline constexpr Reduce max{"max", &largest_of};
inline constexpr Reduce min{"min", &smallest_of};

// --- along one dim ---------------------------------------------------------------------------------------------------

// Calls a function with the elements of each line along a dim and the line of the result.
template <class C, class F>
void by_lines(const Array& x, std::size_t dim, F function) {
  const int64_t length = x.shape[dim], step = strides_of(x.shape)[dim];
  const int64_t lines = length ? x.size() / length : 0;
  for (int64_t l = 0; l < lines; ++l) function(l / step * step * length + l % step, length, step);
}

inline Array accumulated(const Array& x, std::size_t dim) {
  Array out(x.dtype, x.shape);
  by_kind(x.dtype, [&](auto zero) {
    using C = decltype(zero);
    by_lines<C>(x, dim, [&](int64_t begin, int64_t length, int64_t step) {
      Sum<C> total = 0;
      for (int64_t i = 0; i < length; ++i) {
        total = scalar::add(total, static_cast<Sum<C>>(x.data<C>()[begin + i * step]));
        out.data<C>()[begin + i * step] = static_cast<C>(total);
      }
    });
  });
  return finished(std::move(out));
}

inline Array softened(const Array& x, std::size_t dim) {
  Array out(x.dtype, x.shape);
  by_kind(x.dtype, [&](auto zero) {
    using C = decltype(zero);
    if constexpr (scalar::real<C>) {
      by_lines<C>(x, dim, [&](int64_t begin, int64_t length, int64_t step) {
        const C* in = x.data<C>() + begin;
        C* to = out.data<C>() + begin;
        C top = -std::numeric_limits<C>::infinity();
        double total = 0;
        for (int64_t i = 0; i < length; ++i) top = scalar::maximum(top, in[i * step]);
        for (int64_t i = 0; i < length; ++i) total += to[i * step] = std::exp(in[i * step] - top);
        for (int64_t i = 0; i < length; ++i) to[i * step] = static_cast<C>(to[i * step] / total);
      });
    }
  });
  return finished(std::move(out));
}

inline Tensor softmax(const Tensor& x, int64_t dim, const Memory& = std::nullopt, const Compute& = std::nullopt,
                      bool = false) {
  const auto at = static_cast<std::size_t>(dim_in(dim, x.rank(), "softmax"));
  return on_each("softmax", {x}, [&](const Arrays& held) { return softened(held[0], at); });
}

// Whether a number comes before another: NaN is above all. With `signs`, which topk looks at as XLA's does, 0 is above
// -0, and a NaN with its sign below all.
template <class C>
bool comes_before(C u, C v, bool signs) {
  if constexpr (scalar::real<C>) {
    if (signs && (scalar::is_nan(u) || scalar::is_nan(v) || (u == 0 && v == 0))) {
      // Only NaNs are told from all others here, and the two zeros from each other.
      const auto place = [](C x) { return scalar::is_nan(x) ? (std::signbit(x) ? -2 : 2) : x == 0 && !std::signbit(x); };
      return static_cast<int>(place(u)) < static_cast<int>(place(v));
    }
  }
  return scalar::is_nan(v) ? !scalar::is_nan(u) : u < v;
}

// Places along a dim in the order of their elements; equal ones keep their order.
inline Array order_of(const Array& x, std::size_t dim, bool descending, bool signs = false) {
  Array out(DataType::INT32, x.shape);
  by_kind(x.dtype, [&](auto zero) {
    using C = decltype(zero);
    by_lines<C>(x, dim, [&](int64_t begin, int64_t length, int64_t step) {
      const C* in = x.data<C>() + begin;
      std::vector<int64_t> order(static_cast<std::size_t>(length));
      std::iota(order.begin(), order.end(), 0);
      const auto below = [&](int64_t a, int64_t b) { return comes_before<C>(in[a * step], in[b * step], signs); };
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return descending ? below(b, a) : below(a, b); });
      for (int64_t i = 0; i < length; ++i) out.data<int64_t>()[begin + i * step] = order[static_cast<std::size_t>(i)];
    });
  });
  return out;
}

// The elements at places along a dim, which are in range.
inline Array taken_along(const Array& x, const Array& places, std::size_t dim) {
  Array out(x.dtype, places.shape);
  const int64_t length = places.shape[dim], from = x.shape[dim];
  by_kind(x.dtype, [&](auto zero) {
    using C = decltype(zero);
    by_lines<C>(places, dim, [&](int64_t begin, int64_t, int64_t step) {
      const int64_t base = length ? begin / (step * length) * step * from + begin % step : 0;
      for (int64_t i = 0; i < length; ++i) {
        out.data<C>()[begin + i * step] = x.data<C>()[base + places.data<int64_t>()[begin + i * step] * step];
      }
    });
  });
  return out;
}

inline Array place_of_largest(const Array& x, const Dim& dims, bool keep) {
  const Rows rows(x, dims, keep, "argmax");
  require(rows.length > 0, "argmax of nothing");
  Array out(DataType::INT32, rows.kept);
  by_kind(x.dtype, [&](auto zero) {
    using C = decltype(zero);
    const C* in = rows.held.template data<C>();
    for (int64_t r = 0; r < rows.count; ++r, in += rows.length) {
      int64_t best = 0;
      for (int64_t i = 1; i < rows.length && !scalar::is_nan(in[best]); ++i) {
        if (scalar::is_nan(in[i]) || in[i] > in[best]) best = i;
      }
      out.data<int64_t>()[r] = best;
    }
  });
  return out;
}

// --- the calls -------------------------------------------------------------------------------------------------------

// One dim, or all.
inline Tensor prod(const Tensor& x, const Dim& dim, bool keep, const Memory& = std::nullopt) {
  return on_each("prod", {x}, [&](const Arrays& held) { return product_of(held[0], dim, keep); });
}

inline Tensor argmax(const Tensor& x, const Dim& dim, bool keep, Unset = std::nullopt, const Memory& = std::nullopt) {
  return on_each("argmax", {x}, [&](const Arrays& held) { return place_of_largest(held[0], dim, keep); });
}

inline Tensor cumsum(const Tensor& x, int64_t dim, const std::optional<DataType>& dtype = std::nullopt,
                     bool reversed = false, Unset = std::nullopt, const Memory& = std::nullopt) {
  require(!reversed, "cumsum: reverse_order is not emulated");
  const auto at = static_cast<std::size_t>(dim_in(dim, x.rank(), "cumsum"));
  return on_each("cumsum", {x},
                 [&](const Arrays& held) { return cast(accumulated(held[0], at), dtype.value_or(x.dtype())); });
}

// The first `count` elements of a dim in order, and their places.
inline std::vector<Tensor> ordered(const char* who, const Tensor& x, int64_t dim, bool descending,
                                   std::optional<int64_t> count, bool signs = false) {
  const auto at = static_cast<std::size_t>(dim_in(dim, x.rank(), who));
  return on_each(who, {x}, 2, [&](const Arrays& held) {
    const Array order = order_of(held[0], at, descending, signs);
    const Array first = count ? piece(order, at, 0, *count) : order;
    return Arrays{taken_along(held[0], first, at), first};
  });
}

inline std::vector<Tensor> sort(const Tensor& x, int64_t dim, bool descending, bool = false,
                                const Memory& = std::nullopt) {
  return ordered("sort", x, dim, descending, std::nullopt);
}

inline std::vector<Tensor> topk(const Tensor& x, int64_t k, int64_t dim, bool largest, bool = true,
                                const Memory& = std::nullopt) {
  const int64_t size = x.shape()[static_cast<std::size_t>(dim_in(dim, x.rank(), "topk"))];
  require(0 < k && k <= size,
          [&] { return "topk: k = " + std::to_string(k) + " is not in 1 to " + std::to_string(size); });
  return ordered("topk", x, dim, largest, k, largest);
}

}  // namespace ttnn
