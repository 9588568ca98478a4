// Elementwise ops. Operands broadcast to each other by NumPy's rules.
#pragma once

#include "ttnn-scalars.hpp"
#include "ttnn-tensor.hpp"

namespace ttnn {
namespace operations::unary {

enum class SigmoidMode { FAST_APPROXIMATE, ACCURATE, ACCURATE_FAST_EXP };
enum class GeluVariant { ACCURATE, TANH, FAST_LUT };

}  // namespace operations::unary

// --- one operand -----------------------------------------------------------------------------------------------------

template <class F>
struct Unary {
  const char* name;
  F function;
  Tensor apply(const Tensor& x) const {
    return on_each(name, {x}, [&](const Arrays& held) { return mapped(held[0], function); });
  }
  Tensor operator()(const Tensor& x, const Memory& = std::nullopt) const { return apply(x); }
};

// With the choice of a faster, less exact kernel, which a host has not.
template <class F>
struct FastUnary : Unary<F> {
  Tensor operator()(const Tensor& x, bool, const Memory& = std::nullopt) const { return this->apply(x); }
};

template <class F>
struct TanhUnary : Unary<F> {
  Tensor operator()(const Tensor& x, const Memory&, Unset, bool) const { return this->apply(x); }
};

template <class F>
struct SigmoidUnary : Unary<F> {
  Tensor operator()(const Tensor& x, int, operations::unary::SigmoidMode, const Memory& = std::nullopt) const {
    return this->apply(x);
  }
};

template <class F>
constexpr TanhUnary<F> tanh_unary(const char* name, F function) {
  return {{name, function}};
}

template <class F>
constexpr SigmoidUnary<F> sigmoid_unary(const char* name, F function) {
  return {{name, function}};
}

template <class F>
constexpr Unary<F> unary(const char* name, F function) {
  return {name, function};
}

template <class F>
constexpr FastUnary<F> fast_unary(const char* name, F function) {
  return {{name, function}};
}

inline constexpr auto abs = unary("abs", [](auto v) { return scalar::absolute(v); });
inline constexpr auto neg = unary("neg", [](auto v) { return scalar::negative(v); });
inline constexpr auto sign = unary("sign", [](auto v) { return scalar::sign(v); });
inline constexpr auto exp2 = unary("exp2", [](auto v) { return std::exp2(v); });
inline constexpr auto expm1 = unary("expm1", [](auto v) { return std::expm1(v); });
inline constexpr auto cbrt = unary("cbrt", [](auto v) { return std::cbrt(v); });
inline constexpr auto reciprocal = unary("reciprocal", [](auto v) { return 1 / v; });
inline constexpr auto sin = unary("sin", [](auto v) { return std::sin(v); });
inline constexpr auto cos = unary("cos", [](auto v) { return std::cos(v); });
inline constexpr auto tan = unary("tan", [](auto v) { return std::tan(v); });
inline constexpr auto asin = unary("asin", [](auto v) { return std::asin(v); });
inline constexpr auto acos = unary("acos", [](auto v) { return std::acos(v); });
inline constexpr auto atan = unary("atan", [](auto v) { return std::atan(v); });
inline constexpr auto sinh = unary("sinh", [](auto v) { return std::sinh(v); });
inline constexpr auto cosh = unary("cosh", [](auto v) { return std::cosh(v); });
inline constexpr auto asinh = unary("asinh", [](auto v) { return std::asinh(v); });
inline constexpr auto acosh = unary("acosh", [](auto v) { return std::acosh(v); });
inline constexpr auto atanh = unary("atanh", [](auto v) { return std::atanh(v); });
inline constexpr auto erfc = unary("erfc", [](auto v) { return std::erfc(v); });
inline constexpr auto floor = unary("floor", [](auto v) { return scalar::floor(v); });
inline constexpr auto ceil = unary("ceil", [](auto v) { return scalar::ceil(v); });
inline constexpr auto trunc = unary("trunc", [](auto v) { return scalar::trunc(v); });
inline constexpr auto round = unary("round", [](auto v) { return scalar::round(v); });
inline constexpr auto softplus = unary("softplus", [](auto v) { return scalar::softplus(v); });
inline constexpr auto selu = unary("selu", [](auto v) { return scalar::selu(v); });
inline constexpr auto relu = unary("relu", [](auto v) { return scalar::relu(v); });
inline constexpr auto relu6 = unary("relu6", [](auto v) { return scalar::relu6(v); });
inline constexpr auto silu = unary("silu", [](auto v) { return v * scalar::sigmoid(v); });
inline constexpr auto hardsigmoid = unary("hardsigmoid", [](auto v) { return scalar::hardsigmoid(v); });
inline constexpr auto hardswish = unary("hardswish", [](auto v) { return v * scalar::hardsigmoid(v); });
inline constexpr auto mish = fast_unary("mish", [](auto v) { return v * std::tanh(scalar::softplus(v)); });
inline constexpr auto softsign = unary("softsign", [](auto v) { return v / (scalar::absolute(v) + 1); });

inline constexpr auto exp = fast_unary("exp", [](auto v) { return std::exp(v); });
inline constexpr auto gelu = fast_unary("gelu", [](auto v) { return scalar::gelu(v); });
inline constexpr auto sqrt = fast_unary("sqrt", [](auto v) { return std::sqrt(v); });
inline constexpr auto rsqrt = fast_unary("rsqrt", [](auto v) { return 1 / std::sqrt(v); });
inline constexpr auto log = fast_unary("log", [](auto v) { return std::log(v); });
inline constexpr auto log1p = fast_unary("log1p", [](auto v) { return std::log1p(v); });
inline constexpr auto tanh = tanh_unary("tanh", [](auto v) { return std::tanh(v); });
inline constexpr auto sigmoid = sigmoid_unary("sigmoid", [](auto v) { return scalar::sigmoid(v); });
inline constexpr auto erf = fast_unary("erf", [](auto v) { return std::erf(v); });

inline Tensor tested(const char* name, const Tensor& x, Array (*test)(const Array&)) {
  return on_each(name, {x}, [&](const Arrays& held) { return test(held[0]); });
}

// The result is a truth value.
inline Tensor isfinite(const Tensor& x, const Memory& = std::nullopt) {
  return tested("isfinite", x, [](const Array& held) {
    const auto finite = [](auto v) {
      if constexpr (scalar::real<decltype(v)>)
        return std::isfinite(v);
      else
        return true;
    };
    return cast(mapped(held, finite), DataType::BOOL);
  });
}

inline Tensor logical_not(const Tensor& x, const Memory& = std::nullopt) {
  return tested("logical_not", x,
                [](const Array& held) { return cast(mapped(held, [](auto v) { return v == 0; }), DataType::BOOL); });
}

inline Tensor bitwise_not(const Tensor& x, const Memory& = std::nullopt) {
  return tested("bitwise_not", x, [](const Array& held) {
    if (is_bool(held.dtype)) return mapped(held, [](auto v) { return v == 0; });
    return mapped(held, [](auto v) {
      if constexpr (scalar::real<decltype(v)>)
        return v;
      else
        return static_cast<decltype(v)>(~v);
    });
  });
}

// --- two operands ----------------------------------------------------------------------------------------------------

// Both in their joint element type and shape.
inline std::pair<Array, Array> together(const Array& a, const Array& b) {
  const DataType type = joint(a.dtype, b.dtype);
  const Dims shape = broadcast_shape(a.shape, b.shape);
  return {broadcast(cast(a, type), shape), broadcast(cast(b, type), shape)};
}

template <class F>
Array combined(const Array& a, const Array& b, F function) {
  const auto [x, y] = together(a, b);
  return mapped(x, y, function);
}

template <class F>
struct Binary {
  const char* name;
  F function;
  Tensor operator()(const Tensor& a, const Tensor& b, const std::optional<DataType>& dtype = std::nullopt,
                    const Memory& = std::nullopt) const {
    return on_each(name, {a, b}, [&](const Arrays& held) {
      const Array out = combined(held[0], held[1], function);
      return dtype ? cast(out, *dtype) : out;
    });
  }
};

template <class F>
constexpr Binary<F> binary(const char* name, F function) {
  return {name, function};
}

inline constexpr auto add = binary("add", [](auto a, auto b) { return scalar::add(a, b); });
inline constexpr auto subtract = binary("subtract", [](auto a, auto b) { return scalar::subtract(a, b); });
inline constexpr auto multiply = binary("multiply", [](auto a, auto b) { return scalar::multiply(a, b); });
inline constexpr auto divide = binary("divide", [](auto a, auto b) { return scalar::divide(a, b); });
inline constexpr auto remainder = binary("remainder", [](auto a, auto b) { return scalar::remainder(a, b); });
inline constexpr auto maximum = binary("maximum", [](auto a, auto b) { return scalar::maximum(a, b); });
inline constexpr auto minimum = binary("minimum", [](auto a, auto b) { return scalar::minimum(a, b); });
inline constexpr auto pow = binary("pow", [](auto a, auto b) { return scalar::power(a, b); });

inline Tensor atan2(const Tensor& a, const Tensor& b, const Memory& = std::nullopt) {
  return on_each("atan2", {a, b}, [](const Arrays& held) {
    return combined(held[0], held[1], [](auto u, auto v) { return std::atan2(u, v); });
  });
}

// On the bits of integers and truth values.
template <class F>
struct Bitwise {
  const char* name;
  F function;
  Tensor operator()(const Tensor& a, const Tensor& b, const Memory& = std::nullopt) const {
    return on_each(name, {a, b}, [&](const Arrays& held) {
      const auto [x, y] = together(held[0], held[1]);
      require(!is_float(x.dtype), [&] { return std::string(name) + " works on the bits of integers"; });
      return mapped(x, y, [](auto u, auto v) {
        if constexpr (scalar::real<decltype(u)>)
          return u;
        else
          return F{}(u, v);
      });
    });
  }
};

template <class F>
constexpr Bitwise<F> bitwise(const char* name, F function) {
  return {name, function};
}

inline constexpr auto bitwise_and = bitwise("bitwise_and", [](auto a, auto b) { return a & b; });
inline constexpr auto bitwise_or = bitwise("bitwise_or", [](auto a, auto b) { return a | b; });
inline constexpr auto bitwise_xor = bitwise("bitwise_xor", [](auto a, auto b) { return a ^ b; });

template <class Shift>
Array shifted(const Array& a, const Array& b, Shift shift) {
  const auto [x, by] = together(a, b);
  require(!is_float(x.dtype), "a shift works on the bits of integers");
  const int bits = traits(x.dtype).bits;
  Array out(x.dtype, x.shape);
  for (int64_t i = 0; i < x.size(); ++i)
    out.data<int64_t>()[i] = shift(x.data<int64_t>()[i], by.template data<int64_t>()[i], bits);
  return finished(std::move(out));
}

inline Tensor logical_left_shift(const Tensor& a, const Tensor& b, const Memory& = std::nullopt) {
  return on_each("logical_left_shift", {a, b},
                 [](const Arrays& held) { return shifted(held[0], held[1], &scalar::shifted_left<int64_t>); });
}

inline Tensor logical_right_shift(const Tensor& a, const Tensor& b, const std::optional<DataType>& = std::nullopt,
                                  const Memory& = std::nullopt) {
  return on_each("logical_right_shift", {a, b},
                 [](const Arrays& held) { return shifted(held[0], held[1], &scalar::shifted_right<int64_t>); });
}

// The result is a truth value, in the element type that is asked for.
template <class F>
struct Comparison {
  const char* name;
  F function;
  Tensor operator()(const Tensor& a, const Tensor& b, const std::optional<DataType>& dtype = std::nullopt,
                    const Memory& = std::nullopt) const {
    return on_each(name, {a, b}, [&](const Arrays& held) {
      return cast(combined(held[0], held[1], function), dtype.value_or(DataType::BOOL));
    });
  }
};

template <class F>
constexpr Comparison<F> comparison(const char* name, F function) {
  return {name, function};
}

inline constexpr auto eq = comparison("eq", [](auto a, auto b) { return a == b; });
inline constexpr auto ne = comparison("ne", [](auto a, auto b) { return a != b; });
inline constexpr auto ge = comparison("ge", [](auto a, auto b) { return a >= b; });
inline constexpr auto gt = comparison("gt", [](auto a, auto b) { return a > b; });
inline constexpr auto le = comparison("le", [](auto a, auto b) { return a <= b; });
inline constexpr auto lt = comparison("lt", [](auto a, auto b) { return a < b; });
inline constexpr auto logical_and = comparison("logical_and", [](auto a, auto b) { return a != 0 && b != 0; });
inline constexpr auto logical_or = comparison("logical_or", [](auto a, auto b) { return a != 0 || b != 0; });
inline constexpr auto logical_xor = comparison("logical_xor", [](auto a, auto b) { return (a != 0) != (b != 0); });

// --- three operands, and element types -------------------------------------------------------------------------------

inline Array selected(const Array& condition, const Array& a, const Array& b) {
  const auto [x, y] = together(a, b);
  const Dims shape = broadcast_shape(condition.shape, x.shape);
  const Array truth = broadcast(cast(condition, DataType::BOOL), shape);
  const Array yes = broadcast(x, shape), no = broadcast(y, shape);
  Array out(x.dtype, shape);
  by_kind(x.dtype, [&](auto zero) {
    using C = decltype(zero);
    for (int64_t i = 0; i < out.size(); ++i)
      out.data<C>()[i] = truth.data<int64_t>()[i] ? yes.data<C>()[i] : no.data<C>()[i];
  });
  return out;
}

inline Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b, const Memory& = std::nullopt) {
  return on_each("where", {condition, a, b}, [](const Arrays& held) { return selected(held[0], held[1], held[2]); });
}

// Positive elements stay, the others are what the second array has.
inline Array positive_or(const Array& x, const Array& other) {
  return selected(mapped(x, [](auto v) { return v > 0; }), x, other);
}

inline Array scaled_by(const Array& x, double factor) {
  return combined(x, filled(x.dtype, {}, factor), [](auto a, auto b) { return scalar::multiply(a, b); });
}

inline Tensor leaky_relu(const Tensor& x, double slope, const Memory& = std::nullopt) {
  return on_each("leaky_relu", {x},
                 [&](const Arrays& held) { return positive_or(held[0], scaled_by(held[0], slope)); });
}

inline Tensor elu(const Tensor& x, double alpha, const Memory& = std::nullopt) {
  return on_each("elu", {x}, [&](const Arrays& held) {
    return positive_or(held[0], scaled_by(mapped(held[0], [](auto v) { return std::expm1(v); }), alpha));
  });
}

// A bound as the element type can hold it; of integers rounded to the inside.
inline Array bound(DataType type, const Scalar& value, double (*inside)(double)) {
  if (is_float(type)) return filled(type, {}, value.real);
  if (!value.whole) return filled(type, {}, inside(value.real));
  const bool fits =
      wrap(value.integer, traits(type)) == value.integer && (traits(type).is_signed || value.integer >= 0);
  return filled(type, {}, fits ? value : Scalar(value.integer < 0 ? smallest_integer(type) : largest_integer(type)));
}

inline Tensor clamp(const Tensor& x, const Scalar& low, const Scalar& high, const Memory& = std::nullopt) {
  return on_each("clamp", {x}, [&](const Arrays& held) {
    const Array above =
        combined(held[0], bound(x.dtype(), low, &std::ceil), [](auto a, auto b) { return scalar::maximum(a, b); });
    return combined(above, bound(x.dtype(), high, &std::floor), [](auto a, auto b) { return scalar::minimum(a, b); });
  });
}

inline Tensor typecast(const Tensor& x, DataType dtype, const Memory& = std::nullopt) {
  if (x.place() == Place::HOST) return Tensor(cast(x.whole(), dtype));
  return on_each("typecast", {x}, [&](const Arrays& held) { return cast(held[0], dtype); });
}

inline Tensor assign(const Tensor& x, const Memory& = std::nullopt,
                     const std::optional<DataType>& dtype = std::nullopt) {
  return on_each("assign", {x}, [&](const Arrays& held) { return cast(held[0], dtype.value_or(x.dtype())); });
}

inline std::vector<std::optional<Tensor>> gelu_bw(
    const Tensor& gradient, const Tensor& x,
    operations::unary::GeluVariant variant = operations::unary::GeluVariant::ACCURATE,
    const Memory& = std::nullopt) {
  const bool by_tanh = variant == operations::unary::GeluVariant::TANH;
  return {on_each("gelu_bw", {gradient, x}, [&](const Arrays& held) {
    const auto [g, at] = together(cast(held[0], DataType::FLOAT32), cast(held[1], DataType::FLOAT32));
    const Array slope = by_tanh
                            ? mapped(at, [](auto v) { return scalar::gelu_slope(static_cast<double>(v), true); })
                            : mapped(at, [](auto v) { return scalar::gelu_slope(static_cast<double>(v), false); });
    return cast(combined(g, slope, [](auto a, auto b) { return scalar::multiply(a, b); }),
                joint(gradient.dtype(), x.dtype()));
  })};
}

}  // namespace ttnn
