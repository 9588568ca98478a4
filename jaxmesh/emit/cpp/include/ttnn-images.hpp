// Convolutions, pooling and resizing. Images come and go as (1, 1, batch * height * width, channels).
#pragma once

#include "ttnn-neural.hpp"

namespace ttnn {

// Sizes of a window over height and width; paddings are (height, width) or (top, bottom, left, right).
struct Window {
  Dims kernel, stride, dilation;
  Dims low, high;

  Window(const Ints& kernel_, const Ints& stride_, const Ints& padding, const Ints& dilation_)
      : kernel(pair(kernel_)), stride(pair(stride_)), dilation(pair(dilation_)) {
    const Dims& p = padding.values;
    require(p.size() == 2 || p.size() == 4, "padding has 2 or 4 entries");
    low = p.size() == 4 ? Dims{p[0], p[2]} : p;
    high = p.size() == 4 ? Dims{p[1], p[3]} : p;
  }
  static Dims pair(const Ints& row) {
    require(row.values.size() == 1 || row.values.size() == 2, "a window has a height and a width");
    return {row.values.front(), row.values.back()};
  }
  int64_t reach(std::size_t d) const { return dilation[d] * (kernel[d] - 1) + 1; }
  int64_t outs(int64_t size, std::size_t d) const {
    const int64_t span = size + low[d] + high[d] - reach(d);
    require(span >= 0, [&] {
      return "a window of " + std::to_string(reach(d)) + " does not fit a padded size of " + std::to_string(size);
    });
    return span / stride[d] + 1;
  }
};

inline Array as_image(const Array& x, int64_t batch, int64_t height, int64_t width, int64_t channels) {
  return x.as({batch, height, width, channels});
}

inline Array as_pixels(const Array& x) { return x.as({1, 1, x.shape[0] * x.shape[1] * x.shape[2], x.shape[3]}); }

// Calls `at(batch, y, x, row)` for the pixels of the result, and for each `inside(pixel of the input, ky, kx)`.
template <class Begin, class Inside, class End>
void slide(const Dims& in, const Dims& out, const Window& w, Begin begin, Inside inside, End end) {
  int64_t pixel = 0;
  for (int64_t b = 0; b < out[0]; ++b) {
    for (int64_t y = 0; y < out[1]; ++y) {
      for (int64_t x = 0; x < out[2]; ++x, ++pixel) {
        begin(pixel);
        for (int64_t i = 0; i < w.kernel[0]; ++i) {
          for (int64_t j = 0; j < w.kernel[1]; ++j) {
            const int64_t row = y * w.stride[0] - w.low[0] + i * w.dilation[0],
                          column = x * w.stride[1] - w.low[1] + j * w.dilation[1];
            if (row < 0 || row >= in[1] || column < 0 || column >= in[2]) continue;
            inside((b * in[1] + row) * in[2] + column, i, j);
          }
        }
        end(pixel, y, x);
      }
    }
  }
}

// The weight is (outputs, inputs of a group, height, width); floats add up in double.
inline Array convolved(const Array& x, const Array& weight, const Window& w, int64_t groups, DataType dtype) {
  const int64_t channels = x.shape[3], outs = weight.shape[0], per_group = weight.shape[1];
  require(groups > 0 && channels == groups * per_group && outs % groups == 0,
          "convolution: the channels do not fit the groups");
  const Dims shape{x.shape[0], w.outs(x.shape[1], 0), w.outs(x.shape[2], 1), outs};
  const DataType type = joint(joint(x.dtype, weight.dtype), dtype);
  const Array in = cast(x, type), by = cast(weight, type);
  Array out(traits(type).kind == Kind::FLOAT ? DataType::FLOAT32 : type, shape);
  by_kind(type, [&](auto zero) {
    using C = decltype(zero);
    std::vector<Sum<C>> totals(static_cast<std::size_t>(outs));
    const int64_t area = w.kernel[0] * w.kernel[1];
    slide(
        x.shape, shape, w, [&](int64_t) { std::fill(totals.begin(), totals.end(), Sum<C>{}); },
        [&](int64_t pixel, int64_t i, int64_t j) {
          for (int64_t o = 0; o < outs; ++o) {
            const C* from = in.data<C>() + pixel * channels + o / (outs / groups) * per_group;
            const C* factor = by.data<C>() + o * per_group * area + i * w.kernel[1] + j;
            Sum<C>& total = totals[static_cast<std::size_t>(o)];
            for (int64_t c = 0; c < per_group; ++c) {
              total = scalar::add(
                  total, scalar::multiply(static_cast<Sum<C>>(from[c]), static_cast<Sum<C>>(factor[c * area])));
            }
          }
        },
        [&](int64_t pixel, int64_t, int64_t) {
          std::transform(totals.begin(), totals.end(), out.data<C>() + pixel * outs,
                         [](Sum<C> v) { return static_cast<C>(v); });
        });
  });
  return cast(finished(std::move(out)), dtype);
}

inline Tensor convolution(const char* who, const Tensor& x, const Tensor& weight, const Maybe& bias,
                          const std::optional<DataType>& dtype,
                          const std::function<Array(const Array&, const Array&, DataType)>& made) {
  const DataType type = dtype.value_or(joint(x.dtype(), weight.dtype()));
  const Given given({x, weight, bias});
  return on_each(who, given.tensors, [&](const Arrays& held) {
    const Array out = made(held[0], held[1], type);
    return as_pixels(held.size() < 3 ? out : plus(out, held[2]));
  });
}

inline std::variant<Tensor> conv2d(const Tensor& x, const Tensor& weight, distributed::MeshDevice*,
                     int64_t in_channels, int64_t out_channels, int64_t batch, int64_t height, int64_t width, const Ints& kernel, const Ints& stride,
                     const Ints& padding, const Ints& dilation, int64_t groups, const std::optional<DataType>& dtype,
                     const Maybe& bias, Unset = std::nullopt, const Compute& = std::nullopt,
                     const Memory& = std::nullopt, Unset = std::nullopt) {
  const Window window(kernel, stride, padding, dilation);
  require(weight.rank() == 4 && weight.shape()[0] == out_channels,
          "conv2d: the weight is (outputs, inputs of a group, height, width)");
  return convolution("conv2d", x, weight, bias, dtype, [&](const Array& in, const Array& by, DataType type) {
    return convolved(as_image(in, batch, height, width, in_channels), by, window, groups, type);
  });
}

// The image with `stride - 1` rows and columns of zeros between its own.
inline Array spread_out(const Array& x, const Dims& stride) {
  Dims shape = x.shape;
  for (std::size_t d = 0; d < 2; ++d) shape[1 + d] = shape[1 + d] ? (shape[1 + d] - 1) * stride[d] + 1 : 0;
  Array out = filled(x.dtype, shape, 0);
  Dims strides = strides_of(shape);
  for (std::size_t d = 0; d < 2; ++d) strides[1 + d] *= stride[d];
  placed(out, x, 0, strides);
  return out;
}

// A weight of (inputs, outputs of a group, height, width) as that of a convolution, every kernel turned round.
inline Array turned_weight(const Array& weight, int64_t groups) {
  const Dims& s = weight.shape;
  const Array apart = swapped(weight.as({groups, s[0] / groups, s[1], s[2], s[3]}), 1, 2);
  const Array flat = apart.as({groups * s[1], s[0] / groups, s[2], s[3]});
  Dims strides = strides_of(flat.shape);
  const int64_t offset = (s[2] - 1) * strides[2] + (s[3] - 1) * strides[3];
  strides[2] = -strides[2];
  strides[3] = -strides[3];
  return picked(flat, flat.shape, offset, strides);
}

inline std::variant<Tensor> conv_transpose2d(const Tensor& x, const Tensor& weight, distributed::MeshDevice*,
                               int64_t in_channels,
                               int64_t out_channels, int64_t batch, int64_t height, int64_t width, const Ints& kernel,
                               const Ints& stride, const Ints& padding, const Ints& output_padding,
                               const Ints& dilation, int64_t groups, const std::optional<DataType>& dtype,
                               const Maybe& bias, Unset = std::nullopt, const Compute& = std::nullopt,
                               const Memory& = std::nullopt, Unset = std::nullopt) {
  const Window asked(kernel, stride, padding, dilation);
  Window window = asked;
  const Dims extra = Window::pair(output_padding);
  for (std::size_t d = 0; d < 2; ++d) {
    window.low[d] = asked.reach(d) - 1 - asked.low[d];
    window.high[d] = asked.reach(d) - 1 - asked.high[d] + extra[d];
    window.stride[d] = 1;
  }
  require(weight.rank() == 4 && groups > 0 && weight.shape()[1] * groups == out_channels,
          "conv_transpose2d: the weight is (inputs, outputs of a group, height, width)");
  return convolution("conv_transpose2d", x, weight, bias, dtype, [&](const Array& in, const Array& by, DataType type) {
    const Array spread = spread_out(as_image(in, batch, height, width, in_channels), asked.stride);
    return convolved(spread, turned_weight(by, groups), window, groups, type);
  });
}

// --- pooling ---------------------------------------------------------------------------------------------------------

// As much more padding at the end as the last window needs; a window that would start in the padding is dropped.
inline Window reaching(Window w, const Dims& image, bool ceil_mode) {
  for (std::size_t d = 0; ceil_mode && d < 2; ++d) {
    const int64_t size = image[1 + d], span = size + w.low[d] + w.high[d] - w.reach(d);
    const int64_t more = (w.stride[d] - span % w.stride[d]) % w.stride[d];
    if (span + more < size + w.low[d]) w.high[d] += more;
  }
  return w;
}

inline Array pooled_largest(const Array& x, const Window& w) {
  const int64_t channels = x.shape[3];
  Array out(x.dtype, {x.shape[0], w.outs(x.shape[1], 0), w.outs(x.shape[2], 1), channels});
  by_kind(x.dtype, [&](auto zero) {
    using C = decltype(zero);
    C* to = out.data<C>();
    slide(
        x.shape, out.shape, w,
        [&](int64_t pixel) { to = out.data<C>() + pixel * channels, std::fill_n(to, channels, least<C>(x.dtype)); },
        [&](int64_t pixel, int64_t, int64_t) {
          for (int64_t c = 0; c < channels; ++c) to[c] = scalar::maximum(to[c], x.data<C>()[pixel * channels + c]);
        },
        [](int64_t, int64_t, int64_t) {});
  });
  return out;
}

// How many of a window's places along one dim lie in the image and the padding that was asked for.
inline int64_t counted(const Window& w, std::size_t d, int64_t at, int64_t size, const Window& asked,
                       bool with_padding) {
  int64_t count = 0;
  for (int64_t i = 0; i < w.kernel[d]; ++i) {
    const int64_t place = at * w.stride[d] - w.low[d] + i * w.dilation[d];
    const int64_t from = with_padding ? -asked.low[d] : 0, to = size + (with_padding ? asked.high[d] : 0);
    count += from <= place && place < to;
  }
  return count;
}

inline Array pooled_mean(const Array& given, const Window& w, const Window& asked, bool with_padding) {
  const Array x = cast(given, DataType::FLOAT32);
  const int64_t channels = x.shape[3];
  Array out(DataType::FLOAT32, {x.shape[0], w.outs(x.shape[1], 0), w.outs(x.shape[2], 1), channels});
  float* to = out.data<float>();
  slide(
      x.shape, out.shape, w, [&](int64_t pixel) { to = out.data<float>() + pixel * channels; },
      [&](int64_t pixel, int64_t, int64_t) {
        for (int64_t c = 0; c < channels; ++c) to[c] += x.data<float>()[pixel * channels + c];
      },
      [&](int64_t, int64_t row, int64_t column) {
        const int64_t count = counted(w, 0, row, x.shape[1], asked, with_padding) *
                              counted(w, 1, column, x.shape[2], asked, with_padding);
        for (int64_t c = 0; c < channels; ++c) to[c] /= static_cast<float>(count);
      });
  return cast(out, given.dtype);
}

inline std::vector<Tensor> max_pool2d(const Tensor& x, int64_t batch, int64_t height, int64_t width, int64_t channels,
                         const Ints& kernel, const Ints& stride, const Ints& padding, const Ints& dilation,
                         bool ceil_mode, const Memory& = std::nullopt, Unset = std::nullopt, Unset = std::nullopt,
                         bool = false, bool = true, bool = false, const std::optional<DataType>& = std::nullopt,
                         Layout = Layout::ROW_MAJOR, bool = false) {
  const Window asked(kernel, stride, padding, dilation);
  const Window w = reaching(asked, {batch, height, width, channels}, ceil_mode);
  return {on_each("max_pool2d", {x}, [&](const Arrays& held) {
    return as_pixels(pooled_largest(as_image(held[0], batch, height, width, channels), w));
  })};
}

inline Tensor avg_pool2d(const Tensor& x, int64_t batch, int64_t height, int64_t width, int64_t channels,
                         const Ints& kernel, const Ints& stride, const Ints& padding, bool ceil_mode, bool with_padding,
                         Unset = std::nullopt, const Memory& = std::nullopt, Unset = std::nullopt,
                         Unset = std::nullopt, Unset = std::nullopt, bool = false, bool = true) {
  const Window asked(kernel, stride, padding, Ints{1, 1});
  const Window w = reaching(asked, {batch, height, width, channels}, ceil_mode);
  return on_each("avg_pool2d", {x}, [&](const Arrays& held) {
    return as_pixels(pooled_mean(as_image(held[0], batch, height, width, channels), w, asked, with_padding));
  });
}

// (batch, height, width, channels) from here on.
inline Tensor global_avg_pool2d(const Tensor& x, const Memory& = std::nullopt,
                                const std::optional<DataType>& dtype = std::nullopt) {
  require(x.rank() == 4, "global_avg_pool2d takes (batch, height, width, channels)");
  return on_each("global_avg_pool2d", {x}, [&](const Arrays& held) {
    return cast(averaged(held[0], Ints{1, 2}, true), dtype.value_or(x.dtype()));
  });
}

inline Tensor upsample(const Tensor& x, const Ints& scale, const std::string& mode = "nearest",
                       const Memory& = std::nullopt) {
  require(x.rank() == 4 && mode == "nearest", "upsample takes (batch, height, width, channels), and the mode nearest");
  const Dims times = Window::pair(scale);
  return on_each("upsample", {x}, [&](const Arrays& held) {
    return repeated_elements(repeated_elements(held[0], times[0], 1), times[1], 2);
  });
}

}  // namespace ttnn
