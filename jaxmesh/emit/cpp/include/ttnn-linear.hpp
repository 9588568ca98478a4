// Products of matrices.
#pragma once

#include "ttnn-elementwise.hpp"
#include "ttnn-shapes.hpp"

namespace ttnn {

// One product; floats add up in their own type, as they come.
template <class C>
void multiply_into(C* out, const C* a, const C* b, int64_t rows, int64_t inner, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    C* to = out + i * columns;
    for (int64_t k = 0; k < inner; ++k) {
      const C factor = a[i * inner + k];
      const C* from = b + k * columns;
      if constexpr (scalar::real<C>) {
        for (int64_t j = 0; j < columns; ++j) to[j] += factor * from[j];
      } else {
        for (int64_t j = 0; j < columns; ++j) to[j] = scalar::add(to[j], scalar::multiply(factor, from[j]));
      }
    }
  }
}

inline DataType wider(DataType a, DataType b) { return is_bool(a) ? b : joint(a, b); }

// The batch dims of a product in front of a matrix.
inline Dims with_matrix(Dims batch, int64_t rows, int64_t columns) {
  batch.insert(batch.end(), {rows, columns});
  return batch;
}

// Batch dims broadcast; an operand of rank 1 is a row on the left and a column on the right, and its dim is dropped.
inline Array product(const Array& left, const Array& right, bool turn_left, bool turn_right, DataType dtype) {
  require(left.rank() > 0 && right.rank() > 0, "matmul: a scalar has no dim to contract");
  // The result's type says in which type they add up.
  const DataType type = wider(joint(left.dtype, right.dtype), dtype);
  Array a = cast(left, type), b = cast(right, type);
  if (turn_left && a.rank() > 1) a = swapped(a, a.rank() - 2, a.rank() - 1);
  if (turn_right && b.rank() > 1) b = swapped(b, b.rank() - 2, b.rank() - 1);
  const bool row = a.rank() == 1, column = b.rank() == 1;
  if (row) a = a.as({1, a.shape[0]});
  if (column) b = b.as({b.shape[0], 1});
  const int64_t rows = a.shape[a.rank() - 2], inner = a.shape.back(), columns = b.shape.back();
  require(b.shape[b.rank() - 2] == inner,
          [&] { return "matmul: the contracted dims differ: " + show(left.shape) + " and " + show(right.shape); });
  Dims batch = broadcast_shape(Dims(a.shape.begin(), a.shape.end() - 2), Dims(b.shape.begin(), b.shape.end() - 2));
  a = broadcast(a, with_matrix(batch, rows, inner));
  b = broadcast(b, with_matrix(batch, inner, columns));
  // Rounded once, at the end.
  Array out(traits(type).kind == Kind::FLOAT ? DataType::FLOAT32 : type, with_matrix(batch, rows, columns));
  by_kind(type, [&](auto zero) {
    using C = decltype(zero);
    for (int64_t n = 0; n < volume(batch); ++n) {
      multiply_into<C>(out.data<C>() + n * rows * columns, a.data<C>() + n * rows * inner,
                       b.data<C>() + n * inner * columns, rows, inner, columns);
    }
  });
  if (!row) batch.push_back(rows);
  if (!column) batch.push_back(columns);
  return cast(finished(std::move(out)), dtype).as(batch);
}

inline Tensor matmul(const Tensor& a, const Tensor& b, bool turn_a, bool turn_b, const Memory&,
                     const std::optional<DataType>& dtype, Unset = std::nullopt, Unset = std::nullopt,
                     const Compute& = std::nullopt) {
  const DataType type = dtype.value_or(joint(a.dtype(), b.dtype()));
  return on_each("matmul", {a, b}, [&](const Arrays& held) { return product(held[0], held[1], turn_a, turn_b, type); });
}

inline Tensor linear(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, bool turn_a, bool turn_b,
                     const Memory&, const std::optional<DataType>& dtype, Unset = std::nullopt, Unset = std::nullopt,
                     const Compute& = std::nullopt) {
  const DataType type = dtype.value_or(joint(a.dtype(), b.dtype()));
  std::vector<Tensor> operands{a, b};
  if (bias) operands.push_back(*bias);
  return on_each("linear", operands, [&](const Arrays& held) {
    const Array out = product(held[0], held[1], turn_a, turn_b, type);
    return held.size() < 3 ? out : combined(out, held[2], [](auto u, auto v) { return scalar::add(u, v); });
  });
}

}  // namespace ttnn
