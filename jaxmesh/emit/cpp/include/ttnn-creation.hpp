// Ops that make tensors from numbers alone: on the host, or the same on every device.
#pragma once

#include "ttnn-tensor.hpp"

namespace ttnn {

inline Tensor made(Array x, const Device& device, Layout layout) {
  if (!device) return Tensor(std::move(x)).laid(layout);
  distributed::MeshDevice& mesh = device->get();
  std::vector<std::optional<Array>> shards(mesh.num_devices(), x);
  return Tensor(Place::DEVICES, &mesh, std::move(shards), layout);
}

inline Tensor full(const Shape& shape, const Scalar& value, DataType dtype, Layout layout,
                   const Device& device = std::nullopt, const Memory& = std::nullopt) {
  return made(filled(dtype, shape.dims(), value), device, layout);
}

inline Tensor zeros(const Shape& shape, DataType dtype, Layout layout, const Device& device = std::nullopt,
                    const Memory& = std::nullopt) {
  return full(shape, 0, dtype, layout, device);
}

inline Tensor ones(const Shape& shape, DataType dtype, Layout layout, const Device& device = std::nullopt,
                   const Memory& = std::nullopt) {
  return full(shape, 1, dtype, layout, device);
}

inline Tensor empty(const Shape& shape, DataType dtype, Layout layout, distributed::MeshDevice* device,
                    const Memory&) {
  return full(shape, 0, dtype, layout, *device);
}

// The elements one by one; a single one fills the shape.
template <class T>
Tensor constant(const std::vector<T>& elements, const Shape& shape, DataType dtype, Layout layout,
                const Device& device = std::nullopt, const Memory& = std::nullopt) {
  Array x = filled(dtype, shape.dims(), 0);
  require(elements.size() == 1 || static_cast<int64_t>(elements.size()) == x.size(),
          [&] { return "constant: " + std::to_string(elements.size()) + " elements do not fill " + show(x.shape); });
  by_kind(dtype, [&](auto zero) {
    using C = decltype(zero);
    const int64_t step = elements.size() == 1 ? 0 : 1;
    for (int64_t i = 0; i < x.size(); ++i)
      x.data<C>()[i] = static_cast<C>(elements[static_cast<std::size_t>(i * step)]);
  });
  return made(finished(std::move(x)), device, layout);
}

inline Tensor arange(int64_t start, int64_t end, int64_t step, DataType dtype, const Device& device = std::nullopt,
                     const Memory& = std::nullopt, Layout layout = Layout::ROW_MAJOR) {
  require(step != 0, "arange: a step of 0 never ends");
  const int64_t span = step > 0 ? end - start : start - end, stride = step > 0 ? step : -step;
  Array x(DataType::INT32, {std::max<int64_t>((span + stride - 1) / stride, 0)});
  for (int64_t i = 0; i < x.size(); ++i) x.data<int64_t>()[i] = start + i * step;
  return made(cast(finished(std::move(x)), dtype), device, layout);
}

}  // namespace ttnn
