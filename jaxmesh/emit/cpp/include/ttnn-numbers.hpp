// Element types as numbers: which C++ type computes them, how they are rounded, wrapped and read from bits.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "ttnn-types.hpp"

namespace ttnn {

// What a type is computed in: float holds every float of 32 bits or less, int64_t all integers and truth values.
enum class Kind { FLOAT, DOUBLE, INTEGER, UNSIGNED };

// How the patterns with the largest exponent are used: infinities and NaNs, one NaN, or none (the NaN is minus zero).
enum class Specials { IEEE, FN, FNUZ };

struct Traits {
  const char* name;
  Kind kind;
  int bits;
  bool is_signed;
  int mantissa = 0;
  int bias = 0;
  Specials specials = Specials::IEEE;
};

inline const Traits& traits(DataType type) {
  static const std::array<Traits, 24> table = {{
      {"FLOAT64", Kind::DOUBLE, 64, true, 52, 1023},
      {"FLOAT32", Kind::FLOAT, 32, true, 23, 127},
      {"BFLOAT16", Kind::FLOAT, 16, true, 7, 127},
      {"FLOAT16", Kind::FLOAT, 16, true, 10, 15},
      {"FLOAT8_E3M4", Kind::FLOAT, 8, true, 4, 3},
      {"FLOAT8_E4M3", Kind::FLOAT, 8, true, 3, 7},
      {"FLOAT8_E4M3FN", Kind::FLOAT, 8, true, 3, 7, Specials::FN},
      {"FLOAT8_E4M3FNUZ", Kind::FLOAT, 8, true, 3, 8, Specials::FNUZ},
      {"FLOAT8_E4M3B11FNUZ", Kind::FLOAT, 8, true, 3, 11, Specials::FNUZ},
      {"FLOAT8_E5M2", Kind::FLOAT, 8, true, 2, 15},
      {"FLOAT8_E5M2FNUZ", Kind::FLOAT, 8, true, 2, 16, Specials::FNUZ},
      {"INT64", Kind::INTEGER, 64, true},
      {"INT32", Kind::INTEGER, 32, true},
      {"INT16", Kind::INTEGER, 16, true},
      {"INT8", Kind::INTEGER, 8, true},
      {"INT4", Kind::INTEGER, 4, true},
      {"INT2", Kind::INTEGER, 2, true},
      {"UINT64", Kind::UNSIGNED, 64, false},
      {"UINT32", Kind::INTEGER, 32, false},
      {"UINT16", Kind::INTEGER, 16, false},
      {"UINT8", Kind::INTEGER, 8, false},
      {"UINT4", Kind::INTEGER, 4, false},
      {"UINT2", Kind::INTEGER, 2, false},
      {"BOOL", Kind::INTEGER, 1, false},
  }};
  return table[static_cast<std::size_t>(type)];
}

inline bool is_float(DataType t) { return traits(t).mantissa > 0; }
inline bool is_bool(DataType t) { return t == DataType::BOOL; }

inline double largest(const Traits& t) {
  const int field = 1 << (t.bits - 1 - t.mantissa);
  const int top = (t.specials == Specials::IEEE ? field - 2 : field - 1) - t.bias;
  const double lost = t.specials == Specials::FN ? 2.0 : 1.0;
  return std::ldexp(2.0 - lost * std::ldexp(1.0, -t.mantissa), top);
}

inline float round_bfloat16(float x) {
  if (std::isnan(x)) return x;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

// To nearest, ties to even; above the largest an infinity, or NaN where the type has none.
inline float round_small(double x, const Traits& t) {
  if (x == 0 || std::isnan(x)) return t.specials == Specials::FNUZ && x == 0 ? 0.0f : static_cast<float>(x);
  const double overflow =
      t.specials == Specials::IEEE ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (std::isinf(x)) return static_cast<float>(std::copysign(overflow, x));
  const int unit = std::max(std::ilogb(x), 1 - t.bias) - t.mantissa;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  if (std::fabs(rounded) > largest(t)) return static_cast<float>(std::copysign(overflow, x));
  return static_cast<float>(t.specials == Specials::FNUZ && rounded == 0 ? 0.0 : rounded);
}

inline int64_t wrap(int64_t x, const Traits& t) {
  if (t.bits == 64) return x;
  if (t.bits == 1) return x != 0;
  const uint64_t low = static_cast<uint64_t>(x) & ((uint64_t{1} << t.bits) - 1);
  const uint64_t sign = uint64_t{1} << (t.bits - 1);
  return static_cast<int64_t>(t.is_signed ? (low ^ sign) - sign : low);
}

// A float or an integer from its bits.
inline double small_from_bits(uint64_t bits, const Traits& t) {
  const int exponent_bits = t.bits - 1 - t.mantissa;
  const uint64_t mantissa = bits & ((uint64_t{1} << t.mantissa) - 1);
  const int exponent = static_cast<int>((bits >> t.mantissa) & ((uint64_t{1} << exponent_bits) - 1));
  const bool negative = (bits >> (t.bits - 1)) & 1;
  const int top = (1 << exponent_bits) - 1;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (t.specials == Specials::FNUZ && negative && !exponent && !mantissa) return nan;
  if (t.specials == Specials::FN && exponent == top && mantissa == (uint64_t{1} << t.mantissa) - 1) return nan;
  double x = 0;
  if (t.specials == Specials::IEEE && exponent == top) {
    x = mantissa ? nan : std::numeric_limits<double>::infinity();
  } else {
    const double fraction = std::ldexp(static_cast<double>(mantissa), -t.mantissa) + (exponent ? 1 : 0);
    x = std::ldexp(fraction, std::max(exponent, 1) - t.bias);
  }
  return negative ? -x : x;
}

// Towards zero; out of range the nearest that there is; zero for NaN.
inline int64_t integer_from(double x, const Traits& t) {
  if (t.bits == 1) return x != 0;
  if (std::isnan(x)) return 0;
  const double above = std::ldexp(1.0, t.is_signed ? t.bits - 1 : t.bits);
  const double below = t.is_signed ? -above : 0;
  if (t.kind == Kind::UNSIGNED) {
    if (x >= above) return -1;
    return x <= 0 ? 0 : static_cast<int64_t>(static_cast<uint64_t>(x));
  }
  const int64_t most = static_cast<int64_t>((uint64_t{1} << (t.is_signed ? t.bits - 1 : t.bits)) - 1);
  if (x >= above) return most;
  return x <= below ? (t.is_signed ? -most - 1 : 0) : static_cast<int64_t>(x);
}

inline int64_t smallest_integer(DataType type) {
  const Traits& t = traits(type);
  return t.is_signed ? static_cast<int64_t>(~uint64_t{0} << (t.bits - 1)) : 0;
}

inline int64_t largest_integer(DataType type) {
  const Traits& t = traits(type);
  if (t.kind == Kind::UNSIGNED) return -1;
  return static_cast<int64_t>((uint64_t{1} << (t.is_signed ? t.bits - 1 : t.bits)) - 1);
}

// The type in which two are combined, as JAX joins them.
inline DataType joint(DataType a, DataType b) {
  if (a == b) return a;
  if (is_bool(a) || is_bool(b)) return is_bool(a) ? b : a;
  if (is_float(a) != is_float(b)) return is_float(a) ? a : b;
  const Traits &s = traits(a), &t = traits(b);
  if (is_float(a)) {
    if (s.bits == t.bits) return s.bits == 16 ? DataType::FLOAT32 : DataType::FLOAT16;
    return s.bits > t.bits ? a : b;
  }
  if (s.is_signed == t.is_signed) return s.bits > t.bits ? a : b;
  const int plain = s.is_signed ? t.bits : s.bits, with_sign = s.is_signed ? s.bits : t.bits;
  if (with_sign > plain) return s.is_signed ? a : b;
  switch (plain) {
    case 64: return DataType::FLOAT32;
    case 32: return DataType::INT64;
    case 16: return DataType::INT32;
    case 8: return DataType::INT16;
    default: return DataType::INT8;
  }
}

}  // namespace ttnn
