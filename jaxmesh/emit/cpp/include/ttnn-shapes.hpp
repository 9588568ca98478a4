// Ops that move elements without computing: shapes, orders, slices, joins.
#pragma once

#include "ttnn-tensor.hpp"

namespace ttnn {

// On the host too, whole or in shards: it moves nothing.
inline Tensor reshape(const Tensor& x, const Ints& shape, const Memory& = std::nullopt) {
  std::vector<std::optional<Array>> shards;
  for (const auto& shard : x.shards()) shards.push_back(shard ? std::optional(shard->as(shape.values)) : std::nullopt);
  return x.with(std::move(shards));
}

inline Tensor permute(const Tensor& x, const Ints& order, const Memory& = std::nullopt, float = 0.0f) {
  return on_each("permute", {x}, [&](const Arrays& held) { return permuted(held[0], order.values); });
}

inline Tensor transpose(const Tensor& x, int64_t first, int64_t second, const Memory& = std::nullopt) {
  const auto a = static_cast<std::size_t>(dim_in(first, x.rank(), "transpose"));
  const auto b = static_cast<std::size_t>(dim_in(second, x.rank(), "transpose"));
  return on_each("transpose", {x}, [&](const Arrays& held) { return swapped(held[0], a, b); });
}

inline Tensor concat(const std::vector<Tensor>& parts, int64_t dim, const Memory& = std::nullopt) {
  require(!parts.empty(), "concat takes at least one tensor");
  const auto at = static_cast<std::size_t>(dim_in(dim, parts[0].rank(), "concat"));
  return on_each("concat", parts, [&](const Arrays& held) { return joined(held, at); });
}

// Every dim so many times, the copies one after the other.
inline Array repeated(const Array& x, const Dims& counts) {
  require(counts.size() == x.rank(), "repeat: one count per dim is needed");
  Dims apart, times, strides, shape;
  const Dims own = strides_of(x.shape);
  for (std::size_t d = 0; d < x.rank(); ++d) {
    apart.insert(apart.end(), {counts[d], x.shape[d]});
    strides.insert(strides.end(), {0, own[d]});
    shape.push_back(counts[d] * x.shape[d]);
  }
  return picked(x, apart, 0, strides).as(shape);
}

inline Tensor repeat(const Tensor& x, const Ints& counts, const Memory& = std::nullopt) {
  return on_each("repeat", {x}, [&](const Arrays& held) { return repeated(held[0], counts.values); });
}

// Every element of a dim so many times in a row.
inline Array repeated_elements(const Array& x, int64_t times, std::size_t dim) {
  Dims apart = x.shape, strides = strides_of(x.shape), shape = x.shape;
  apart.insert(apart.begin() + static_cast<std::ptrdiff_t>(dim) + 1, times);
  strides.insert(strides.begin() + static_cast<std::ptrdiff_t>(dim) + 1, 0);
  shape[dim] *= times;
  return picked(x, apart, 0, strides).as(shape);
}

inline Tensor repeat_interleave(const Tensor& x, int64_t repeats, int64_t dim, const Memory& = std::nullopt) {
  const auto at = static_cast<std::size_t>(dim_in(dim, x.rank(), "repeat_interleave"));
  return on_each("repeat_interleave", {x}, [&](const Arrays& held) { return repeated_elements(held[0], repeats, at); });
}

// Begins and ends count from the end if negative; a step may be negative, too.
inline Array sliced(const Array& x, const Dims& begins, const Dims& ends, const Dims& steps) {
  require(begins.size() == x.rank() && ends.size() == x.rank() && steps.size() == x.rank(),
          "slice: one entry per dim is needed");
  Dims shape, strides = strides_of(x.shape);
  int64_t offset = 0;
  for (std::size_t d = 0; d < x.rank(); ++d) {
    const int64_t size = x.shape[d], step = steps[d];
    const int64_t first = begins[d] < 0 ? begins[d] + size : begins[d], last = ends[d] < 0 ? ends[d] + size : ends[d];
    require(step != 0 && 0 <= first && first <= size && 0 <= last && last <= size && (last - first) * step >= 0, [&] {
      return "slice: " + std::to_string(begins[d]) + " to " + std::to_string(ends[d]) + " in steps of " +
             std::to_string(step) + " is impossible on a dim of size " + std::to_string(size);
    });
    const int64_t span = step > 0 ? last - first : first - last, stride = step > 0 ? step : -step;
    shape.push_back((span + stride - 1) / stride);
    offset += first * strides[d];
    strides[d] *= step;
  }
  return picked(x, shape, offset, strides);
}

inline Tensor slice(const Tensor& x, const Ints& begins, const Ints& ends, const Ints& steps,
                    const Memory& = std::nullopt) {
  return on_each("slice", {x},
                 [&](const Arrays& held) { return sliced(held[0], begins.values, ends.values, steps.values); });
}

// What is added before and after a dim.
namespace operations::data_movement {
struct PadSpecDim {
  int64_t before;
  int64_t after;
};
}  // namespace operations::data_movement

// Low and high per dim, by turns; negative ones cut off.
inline Array padded(const Array& x, const Dims& padding, const Scalar& value) {
  require(padding.size() == 2 * x.rank(), "pad: a low and a high one per dim are needed");
  Dims shape = x.shape, begins, ends, steps(x.rank(), 1), at;
  for (std::size_t d = 0; d < x.rank(); ++d) {
    const int64_t low = padding[2 * d], high = padding[2 * d + 1], size = x.shape[d];
    shape[d] = size + low + high;
    require(shape[d] >= 0, "pad: a dim is left with less than nothing");
    const int64_t begin = std::min(std::max<int64_t>(-low, 0), size);
    begins.push_back(begin);
    ends.push_back(std::max(begin, std::min(size, size + high)));
    at.push_back(std::max<int64_t>(low, 0));
  }
  Array out = filled(x.dtype, shape, value);
  if (out.size() == 0) return out;
  const Dims strides = strides_of(shape);
  const Array inner = sliced(x, begins, ends, steps);
  const int64_t offset = std::inner_product(at.begin(), at.end(), strides.begin(), int64_t{0});
  if (inner.size() > 0) placed(out, inner, offset, strides);
  return out;
}

inline Tensor pad(const Tensor& x, const std::vector<operations::data_movement::PadSpecDim>& padding, const Scalar& value, bool = true,
                  const Memory& = std::nullopt) {
  Dims both;
  for (const auto& p : padding) both.insert(both.end(), {p.before, p.after});
  return on_each("pad", {x}, [&](const Arrays& held) { return padded(held[0], both, value); });
}

}  // namespace ttnn
