// Ops that pick or place elements by index: embeddings, gather, scatter, caches.
#pragma once

#include "ttnn-elementwise.hpp"
#include "ttnn-shapes.hpp"

namespace ttnn {
namespace prim {

enum class EmbeddingsType { GENERIC, PADDED, BINARY };

}  // namespace prim

// The weight as a matrix; leading dims are of size 1.
inline Array rows_of(const Array& weight) {
  require(weight.rank() >= 2 && weight.size() == weight.shape.back() * weight.shape[weight.rank() - 2],
          [&] { return "the weight of an embedding is a matrix, got " + show(weight.shape); });
  return weight.as({weight.shape[weight.rank() - 2], weight.shape.back()});
}

// An id out of range moves inside.
inline Tensor embedding(const Tensor& ids, const Tensor& weight, Unset, Layout, prim::EmbeddingsType,
                        const std::optional<DataType>& dtype = std::nullopt, const Memory& = std::nullopt) {
  return on_each("embedding", {ids, weight}, [&](const Arrays& held) {
    const Array places = cast(held[0], DataType::INT32), rows = rows_of(held[1]);
    const int64_t count = rows.shape[0], width = rows.shape[1];
    require(count > 0, "the weight of an embedding has no row");
    Dims shape = places.shape;
    shape.push_back(width);
    Array out(rows.dtype, shape);
    by_kind(rows.dtype, [&](auto zero) {
      using C = decltype(zero);
      for (int64_t i = 0; i < places.size(); ++i) {
        const int64_t row = std::clamp<int64_t>(places.data<int64_t>()[i], 0, count - 1);
        std::copy_n(rows.data<C>() + row * width, width, out.data<C>() + i * width);
      }
    });
    return cast(out, dtype.value_or(out.dtype));
  });
}

// `out[i, j] = x[.., index[i, j], ..]` along one dim; the index may be shorter in the others, and an index out of range
// moves inside.
inline Tensor gather(const Tensor& x, int64_t dim, const Tensor& index, bool = false, const Memory& = std::nullopt,
                     Unset = std::nullopt, Unset = std::nullopt) {
  const auto at = static_cast<std::size_t>(dim_in(dim, x.rank(), "gather"));
  require(index.rank() == x.rank(), "gather: the index has the rank of the input");
  return on_each("gather", {x, index}, [&](const Arrays& held) {
    const Array places = cast(held[1], DataType::INT32);
    const Dims strides = strides_of(held[0].shape), apart = strides_of(places.shape);
    const int64_t size = held[0].shape[at];
    Array out(held[0].dtype, places.shape);
    by_kind(out.dtype, [&](auto zero) {
      using C = decltype(zero);
      for (int64_t i = 0; i < places.size(); ++i) {
        const int64_t place = std::clamp<int64_t>(places.data<int64_t>()[i], 0, size - 1);
        int64_t from = 0;
        for (std::size_t d = 0; d < places.rank(); ++d)
          from += (d == at ? place : i / apart[d] % places.shape[d]) * strides[d];
        out.data<C>()[i] = held[0].data<C>()[from];
      }
    });
    return out;
  });
}

// A place counted from the end if negative; outside, nothing is written.
inline bool inside(int64_t& place, int64_t size) {
  if (place < 0) place += size;
  return 0 <= place && place < size;
}

inline Tensor embedding_bw(const Tensor& ids, const Tensor& weight, const Tensor& gradient,
                           const std::optional<DataType>& dtype = std::nullopt, const Memory& = std::nullopt) {
  return on_each("embedding_bw", {ids, weight, gradient}, [&](const Arrays& held) {
    const Array places = cast(held[0], DataType::INT32), rows = cast(held[2], held[1].dtype);
    const int64_t count = rows_of(held[1]).shape[0], width = held[1].shape.back();
    require(rows.size() == places.size() * width, "embedding_bw: the gradient has one row per id");
    // 16-bit floats add up in float32 and are rounded once.
    const Array wide = traits(rows.dtype).kind == Kind::FLOAT ? cast(rows, DataType::FLOAT32) : rows;
    Array out(wide.dtype, held[1].shape);
    by_kind(wide.dtype, [&](auto zero) {
      using C = decltype(zero);
      for (int64_t i = 0; i < places.size(); ++i) {
        int64_t row = places.data<int64_t>()[i];
        if (!inside(row, count)) continue;
        for (int64_t j = 0; j < width; ++j) {
          C& to = out.data<C>()[row * width + j];
          to = scalar::add(to, wide.data<C>()[i * width + j]);
        }
      }
    });
    return cast(finished(std::move(out)), dtype.value_or(rows.dtype));
  });
}

template <class C>
C scattered(C old, C source, const std::string& how) {
  if (how == "add") return scalar::add(old, source);
  if (how == "multiply") return scalar::multiply(old, source);
  if (how == "amax") return scalar::maximum(old, source);
  return how == "amin" ? scalar::minimum(old, source) : source;
}

// `x[.., index[i, j], ..] = source[i, j]` along one dim, or combined with what is there.
inline Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source,
                      const Memory& = std::nullopt, const std::optional<std::string>& how = std::nullopt,
                      Unset = std::nullopt) {
  const auto at = static_cast<std::size_t>(dim_in(dim, x.rank(), "scatter"));
  require(index.rank() == x.rank() && source.shape() == index.shape(),
          "scatter: index and source have the rank of the input and one shape");
  require(!how || *how == "add" || *how == "multiply" || *how == "amax" || *how == "amin",
          [&] { return "scatter: reduce " + *how + " is none of add, multiply, amax, amin"; });
  const std::string combine = how.value_or("");
  return on_each("scatter", {x, index, source}, [&](const Arrays& held) {
    const Array places = cast(held[1], DataType::INT32);
    const Dims strides = strides_of(held[0].shape), apart = strides_of(places.shape);
    const int64_t size = held[0].shape[at];
    Array out = picked(held[0], held[0].shape, 0, strides);
    by_kind(out.dtype, [&](auto zero) {
      using C = decltype(zero);
      for (int64_t i = 0; i < places.size(); ++i) {
        int64_t place = places.data<int64_t>()[i], to = 0;
        if (!inside(place, size)) continue;
        for (std::size_t d = 0; d < places.rank(); ++d)
          to += (d == at ? place : i / apart[d] % places.shape[d]) * strides[d];
        out.data<C>()[to] = scattered<C>(out.data<C>()[to], held[2].data<C>()[i], combine);
      }
    });
    return finished(std::move(out));
  });
}

// --- caches ----------------------------------------------------------------------------------------------------------

// A cache with a piece written over it; a begin out of range moves inside.
inline Array overwritten(const Array& cache, const Array& piece, Dims begin) {
  require(cache.rank() == 4 && piece.rank() == 4 && cache.dtype == piece.dtype,
          "a cache and what goes into it are of rank 4 and one type");
  const Dims strides = strides_of(cache.shape);
  int64_t offset = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    require(piece.shape[d] <= cache.shape[d],
            [&] { return show(piece.shape) + " does not fit the cache " + show(cache.shape); });
    if (begin[d] < 0) begin[d] += cache.shape[d];
    offset += std::clamp<int64_t>(begin[d], 0, cache.shape[d] - piece.shape[d]) * strides[d];
  }
  Array out = picked(cache, cache.shape, 0, strides);
  placed(out, piece, offset, strides);
  return out;
}

inline Tensor fill_cache(const Tensor& cache, const Tensor& input, int64_t batch) {
  return on_each("fill_cache", {cache, input},
                 [&](const Arrays& held) { return overwritten(held[0], held[1], {batch, 0, 0, 0}); });
}

// The input is (1, heads, batch, head size).
inline Tensor update_cache(const Tensor& cache, const Tensor& input, const Tensor& index, int64_t batch) {
  return on_each("update_cache", {cache, input, index}, [&](const Arrays& held) {
    const Dims& shape = held[1].shape;
    require(held[2].size() == 1, "update_cache: the index is one number");
    require(shape.size() == 4 && shape[0] == 1, "update_cache: the input is (1, heads, batch, head size)");
    const Dims strides = strides_of(shape);
    const Array turned = picked(held[1], {shape[2], shape[1], 1, shape[3]}, 0,
                                {strides[2], strides[1], strides[0], strides[3]});
    const int64_t at = cast(held[2], DataType::INT32).data<int64_t>()[0];
    return overwritten(held[0], turned, {batch, 0, std::max<int64_t>(at, 0), 0});
  });
}

}  // namespace ttnn
