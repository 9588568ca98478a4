// Functions of one or two elements, in the type that computes them, with JAX's rules for NaN, signs and integers.
#pragma once

#include "ttnn-array.hpp"

namespace ttnn::scalar {

template <class C>
constexpr bool real = std::is_floating_point_v<C>;

template <class C>
C add(C a, C b) {
  if constexpr (real<C>)
    return a + b;
  else
    return static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

template <class C>
C subtract(C a, C b) {
  if constexpr (real<C>)
    return a - b;
  else
    return static_cast<C>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

template <class C>
C multiply(C a, C b) {
  if constexpr (real<C>)
    return a * b;
  else
    return static_cast<C>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// Integers towards zero; by zero minus one, as XLA has it.
template <class C>
C divide(C a, C b) {
  if constexpr (real<C>)
    return a / b;
  else if (b == 0)
    return static_cast<C>(-1);
  else if (b == static_cast<C>(-1) && std::is_signed_v<C>)
    return subtract(C{0}, a);
  else
    return a / b;
}

// With the sign of the divisor; by zero the dividend.
template <class C>
C remainder(C a, C b) {
  C rest = 0;
  if constexpr (real<C>)
    rest = std::fmod(a, b);
  else if (b == 0)
    rest = a;
  else if (b != static_cast<C>(-1) || !std::is_signed_v<C>)
    rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? add(rest, b) : rest;
}

template <class C>
bool is_nan(C a) {
  if constexpr (real<C>)
    return std::isnan(a);
  else
    return false;
}

template <class C>
C maximum(C a, C b) {
  if (is_nan(a) || is_nan(b)) return is_nan(a) ? a : b;
  return a > b ? a : b;
}

template <class C>
C minimum(C a, C b) {
  if (is_nan(a) || is_nan(b)) return is_nan(a) ? a : b;
  return a < b ? a : b;
}

template <class C>
C power(C a, C b) {
  if constexpr (real<C>) {
    return std::pow(a, b);
  } else {
    if (b < C{0}) return a == C{1} ? 1 : a == static_cast<C>(-1) ? (b & 1 ? a : 1) : 0;
    C out = 1;
    for (; b > 0; b >>= 1, a = multiply(a, a)) {
      if (b & 1) out = multiply(out, a);
    }
    return out;
  }
}

template <class C>
C sign(C a) {
  if (is_nan(a) || a == 0) return a;
  return a > 0 ? C{1} : static_cast<C>(-1);
}

template <class C>
C absolute(C a) {
  if constexpr (real<C>)
    return std::fabs(a);
  else
    return std::is_signed_v<C> && a < C{0} ? subtract(C{0}, a) : a;
}

template <class C>
C negative(C a) {
  if constexpr (real<C>)
    return -a;
  else
    return subtract(C{0}, a);
}

// Whole numbers stay as they are.
template <class C>
C floor(C a) {
  if constexpr (real<C>)
    return std::floor(a);
  else
    return a;
}

template <class C>
C ceil(C a) {
  if constexpr (real<C>)
    return std::ceil(a);
  else
    return a;
}

template <class C>
C trunc(C a) {
  if constexpr (real<C>)
    return std::trunc(a);
  else
    return a;
}

// Half to even.
template <class C>
C round(C a) {
  if constexpr (real<C>)
    return std::nearbyint(a);
  else
    return a;
}

template <class C>
C sigmoid(C a) {
  return static_cast<C>(1 / (1 + std::exp(-static_cast<double>(a))));
}

template <class C>
C softplus(C a) {
  const double x = static_cast<double>(a);
  if (std::isnan(x)) return a;
  return static_cast<C>(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))));
}

template <class C>
C relu(C a) {
  return maximum(a, C{0});
}

template <class C>
C relu6(C a) {
  return minimum(relu(a), C{6});
}

template <class C>
C hardsigmoid(C a) {
  return divide(relu6(add(a, C{3})), C{6});
}

template <class C>
C selu(C a) {
  const double x = static_cast<double>(a), scale = 1.0507009873554804934193349852946;
  return static_cast<C>(scale * (x > 0 ? x : 1.6732632423543772848170429916717 * std::expm1(x)));
}

template <class C>
C gelu(C a) {
  const double x = static_cast<double>(a);
  return static_cast<C>(x * std::erfc(-x * std::sqrt(0.5)) / 2);
}

inline double gelu_slope(double x, bool approximate) {
  if (!approximate) return 0.5 * std::erfc(-x * std::sqrt(0.5)) + x * std::exp(-0.5 * x * x) * 0.39894228040143267794;
  const double scale = 0.79788456080286535588, t = std::tanh(scale * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x);
}

// From zero to the number of bits; further out everything is shifted away.
template <class C>
C shifted_left(C a, C by, int bits) {
  if (static_cast<uint64_t>(by) >= static_cast<uint64_t>(bits)) return 0;
  return static_cast<C>(static_cast<uint64_t>(a) << static_cast<uint64_t>(by));
}

template <class C>
C shifted_right(C a, C by, int bits) {
  if (static_cast<uint64_t>(by) >= static_cast<uint64_t>(bits)) return 0;
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  return static_cast<C>((static_cast<uint64_t>(a) & mask) >> static_cast<uint64_t>(by));
}

}  // namespace ttnn::scalar
