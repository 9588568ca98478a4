// Normalisations, whose statistics are taken in float32, and attention.
#pragma once

#include "ttnn-linear.hpp"
#include "ttnn-reductions.hpp"
#include "ttnn-shapes.hpp"

namespace ttnn {

inline Array times(const Array& a, const Array& b) {
  return combined(a, b, [](auto u, auto v) { return scalar::multiply(u, v); });
}

inline Array plus(const Array& a, const Array& b) {
  return combined(a, b, [](auto u, auto v) { return scalar::add(u, v); });
}

inline Array minus(const Array& a, const Array& b) {
  return combined(a, b, [](auto u, auto v) { return scalar::subtract(u, v); });
}

inline Array single(const Array& x) { return cast(x, DataType::FLOAT32); }

// One over the root of the variance.
inline Array steadied(const Array& variance, double epsilon) {
  return mapped(plus(variance, filled(variance.dtype, {}, epsilon)), [](auto v) { return 1 / std::sqrt(v); });
}

using Maybe = std::optional<Tensor>;

// The operands that are there, and the place of each among them, or -1.
struct Given {
  std::vector<Tensor> tensors;
  std::vector<int> places;

  explicit Given(std::initializer_list<Maybe> all) {
    for (const Maybe& x : all) {
      places.push_back(x ? static_cast<int>(tensors.size()) : -1);
      if (x) tensors.push_back(*x);
    }
  }
  const Array* of(const Arrays& held, std::size_t number) const {
    return places[number] < 0 ? nullptr : &held[static_cast<std::size_t>(places[number])];
  }
};

inline Tensor normalized(const char* who, const Tensor& x, double epsilon, const Maybe& weight, const Maybe& bias,
                         bool centred) {
  require(x.rank() > 0, [&] { return std::string(who) + ": a scalar has no dim to normalise"; });
  const Given given({x, weight, bias});
  const Ints last(-1);
  return on_each(who, given.tensors, [&](const Arrays& held) {
    const Array wide = single(held[0]);
    const Array at = centred ? minus(wide, averaged(wide, last, true)) : wide;
    Array out = times(at, steadied(averaged(times(at, at), last, true), epsilon));
    if (const Array* scale = given.of(held, 1)) out = times(out, single(*scale));
    if (const Array* shift = given.of(held, 2)) out = plus(out, single(*shift));
    return cast(out, x.dtype());
  });
}

inline Tensor layer_norm(const Tensor& x, double epsilon = 1e-12, const Maybe& weight = std::nullopt,
                         const Maybe& bias = std::nullopt, Unset = std::nullopt, const Memory& = std::nullopt,
                         Unset = std::nullopt) {
  return normalized("layer_norm", x, epsilon, weight, bias, true);
}

inline Tensor rms_norm(const Tensor& x, double epsilon = 1e-12, const Maybe& weight = std::nullopt,
                       const Maybe& bias = std::nullopt, Unset = std::nullopt, const Memory& = std::nullopt,
                       Unset = std::nullopt, const Compute& = std::nullopt) {
  return normalized("rms_norm", x, epsilon, weight, bias, false);
}

// Statistics, weight and bias are (1, channels, 1, 1).
inline Tensor batch_norm(const Tensor& x, const Tensor& mean, const Tensor& variance, bool training, double epsilon,
                         double, const Tensor& weight, const Tensor& bias, Unset = std::nullopt,
                         const Memory& = std::nullopt, const Compute& = std::nullopt) {
  require(!training, "batch_norm: training is not emulated");
  return on_each("batch_norm", {x, mean, variance, weight, bias}, [&](const Arrays& held) {
    const Array even = times(minus(single(held[0]), single(held[1])), steadied(single(held[2]), epsilon));
    return cast(plus(times(even, single(held[3])), single(held[4])), x.dtype());
  });
}

// --- attention -------------------------------------------------------------------------------------------------------

namespace transformer {

// Softmax of `query @ key^T * scale + mask`, times `value`; all are (batch, heads, sequence, head size).
inline Array attended(const Array& query, const Array& key, const Array& value, const Array* mask, bool causal,
                      double scale) {
  const int64_t shared = query.shape[1] / key.shape[1];
  const Array keys = repeated_elements(key, shared, 1), values = repeated_elements(value, shared, 1);
  Array scores = scaled_by(product(query, keys, false, true, DataType::FLOAT32), scale);
  if (mask) scores = plus(scores, *mask);
  if (causal) {
    const int64_t rows = scores.shape[2], columns = scores.shape[3];
    Array seen(DataType::BOOL, {rows, columns});
    for (int64_t i = 0; i < rows * columns; ++i) seen.data<int64_t>()[i] = i / columns >= i % columns;
    scores = selected(seen, scores, filled(scores.dtype, {}, -std::numeric_limits<double>::infinity()));
  }
  return product(cast(softened(scores, 3), query.dtype), values, false, false, joint(query.dtype, value.dtype));
}

inline Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                           const Maybe& mask, bool causal = true,
                                           const std::optional<double>& scale = std::nullopt,
                                           Unset = std::nullopt, const Memory& = std::nullopt) {
  require(query.rank() == 4 && key.rank() == 4 && value.shape() == key.shape(),
          "attention: query, key and value are of rank 4");
  require(!mask || !causal, "attention: a mask beside is_causal; one of them says it");
  require(key.shape()[1] > 0 && query.shape()[1] % key.shape()[1] == 0,
          "attention: the heads of query are no multiple of those of key");
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(query.shape()[3])));
  const Given given({query, key, value, mask});
  return on_each("scaled_dot_product_attention", given.tensors, [&](const Arrays& held) {
    return attended(held[0], held[1], held[2], given.of(held, 3), causal, factor);
  });
}

inline Tensor concatenate_heads(const Tensor& x, const Memory& = std::nullopt) {
  require(x.rank() == 4, "concatenate_heads takes (batch, heads, sequence, head size)");
  return on_each("concatenate_heads", {x}, [](const Arrays& held) {
    const Dims& s = held[0].shape;
    return permuted(held[0], {0, 2, 1, 3}).as({s[0], s[2], s[1] * s[3]});
  });
}

// (batch, sequence, hidden) as (batch, heads, sequence, head size), or its last two exchanged.
inline Array heads_of(const Array& x, int64_t begin, int64_t heads, int64_t width, bool turned) {
  const Array part = piece(x, 2, begin, heads * width);
  const Array apart = part.as({x.shape[0], x.shape[1], heads, width});
  return turned ? permuted(apart, {0, 2, 3, 1}) : permuted(apart, {0, 2, 1, 3});
}

// The input holds query, key and value side by side; or query alone, and a second one key and value.
inline std::tuple<Tensor, Tensor, Tensor> split_query_key_value_and_split_heads(const Tensor& x, const Maybe& pair, int64_t heads,
                                                                 const std::optional<int64_t>& kv_heads, bool turned,
                                                                 const Memory& = std::nullopt) {
  require(x.rank() == 3, "split_query_key_value_and_split_heads takes (batch, sequence, hidden)");
  const int64_t shared = kv_heads.value_or(heads), all = pair ? heads : heads + 2 * shared;
  require(all > 0 && x.shape()[2] % all == 0,
          "split_query_key_value_and_split_heads: the hidden size does not divide by the heads");
  const int64_t width = x.shape()[2] / all;
  const Given given({x, pair});
  const auto parts = on_each("split_query_key_value_and_split_heads", given.tensors, 3, [&](const Arrays& held) {
    const Array& joint = held[0];
    const Array& second = held.back();
    const int64_t begin = held.size() > 1 ? 0 : heads * width;
    return Arrays{heads_of(joint, 0, heads, width, false), heads_of(second, begin, shared, width, turned),
                  heads_of(second, begin + shared * width, shared, width, false)};
  });
  return {parts[0], parts[1], parts[2]};
}

}  // namespace transformer

namespace experimental {

// Each half of the last dim turned by the angles: x cos + (-second, first) sin. The rows fill their last tile.
inline Tensor rotary_embedding(const Tensor& x, const Tensor& cos, const Tensor& sin, Unset = std::nullopt,
                               const Memory& = std::nullopt) {
  require(x.rank() > 1 && x.shape().back() % 2 == 0, "rotary_embedding: the last of several dims is even");
  return on_each("rotary_embedding", {x, cos, sin}, [](const Arrays& held) {
    const Array& at = held[0];
    const std::size_t last = at.rank() - 1;
    const int64_t half = at.shape[last] / 2;
    const Array second = mapped(piece(at, last, half, half), [](auto v) { return scalar::negative(v); });
    const Array turned = joined({second, piece(at, last, 0, half)}, last);
    Dims behind(2 * at.rank(), 0);
    behind[2 * last - 1] = (32 - at.shape[last - 1] % 32) % 32;
    return padded(plus(times(at, held[1]), times(turned, held[2])), behind, 0.0f);
  });
}

}  // namespace experimental
}  // namespace ttnn
