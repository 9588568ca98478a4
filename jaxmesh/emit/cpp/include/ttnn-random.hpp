// Random numbers, the same as JAX's for a seed: threefry2x32 over the places of a tensor.
#pragma once

#include "ttnn-creation.hpp"
#include "ttnn-elementwise.hpp"

namespace ttnn {

inline uint32_t rotated(uint32_t x, int by) { return x << by | x >> (32 - by); }

// The cipher's two words for a key and a counter, joined as JAX joins them to 32 bits.
inline uint32_t threefry(uint64_t key, uint64_t counter) {
  static constexpr int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t first = static_cast<uint32_t>(key >> 32), second = static_cast<uint32_t>(key);
  const uint32_t keys[3] = {first, second, first ^ second ^ 0x1BD11BDAu};
  uint32_t a = static_cast<uint32_t>(counter >> 32) + keys[0], b = static_cast<uint32_t>(counter) + keys[1];
  for (uint32_t round = 0; round < 5; ++round) {
    for (int by : rotations[round % 2]) {
      a += b;
      b = rotated(b, by) ^ a;
    }
    a += keys[(round + 1) % 3];
    b += keys[(round + 2) % 3] + round + 1;
  }
  return a ^ b;
}

// Evenly between two numbers, the same on every device.
inline Tensor rand(const Shape& shape, const Device& device, DataType dtype, Layout layout, float low = 0,
                   float high = 1, uint32_t seed = 0, const Memory& = std::nullopt) {
  Array x(DataType::FLOAT32, shape.dims());
  for (int64_t i = 0; i < x.size(); ++i) {
    const uint32_t bits = threefry(seed, static_cast<uint64_t>(i)) >> 9 | 0x3f800000u;
    const float unit = std::bit_cast<float>(bits) - 1.0f;
    x.data<float>()[i] = std::max(low, unit * (high - low) + low);
  }
  return made(cast(x, dtype), device, layout);
}

}  // namespace ttnn
