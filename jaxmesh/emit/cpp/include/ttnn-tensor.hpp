// Tensors: on the host whole, on the host as shards of a mesh, or on the devices of a mesh.
#pragma once

#include "ttnn-array.hpp"

namespace ttnn {
namespace distributed {

class MeshShape {
 public:
  MeshShape(std::initializer_list<int64_t> dims) : MeshShape(Dims(dims)) {}
  explicit MeshShape(Dims dims) : dims_(std::move(dims)) {
    require(!dims_.empty() && *std::min_element(dims_.begin(), dims_.end()) > 0,
            [this] { return "MeshShape needs at least one axis and every axis at least 1, got " + show(dims_); });
  }
  const Dims& dims() const { return dims_; }
  std::size_t rank() const { return dims_.size(); }
  int64_t mesh_size() const { return volume(dims_); }
  bool operator==(const MeshShape&) const = default;

 private:
  Dims dims_;
};

class MeshDevice {
 public:
  explicit MeshDevice(MeshShape shape) : shape_(std::move(shape)) {}
  const MeshShape& shape() const { return shape_; }
  std::size_t num_devices() const { return static_cast<std::size_t>(shape_.mesh_size()); }
  // Device ids are row-major over the mesh.
  int64_t device_at(const Dims& coordinate) const {
    require(coordinate.size() == shape_.rank(), "a coordinate has one entry per mesh axis");
    int64_t id = 0;
    for (std::size_t a = 0; a < coordinate.size(); ++a) {
      require(0 <= coordinate[a] && coordinate[a] < shape_.dims()[a],
              [&] { return "the coordinate " + show(coordinate) + " is not on the mesh " + show(shape_.dims()); });
      id = id * shape_.dims()[a] + coordinate[a];
    }
    return id;
  }

 private:
  MeshShape shape_;
};

}  // namespace distributed

using Device = std::optional<std::reference_wrapper<distributed::MeshDevice>>;

// The one mesh of a program.
class DeviceGetter {
 public:
  static distributed::MeshDevice* getInstance(const distributed::MeshShape& shape) {
    static distributed::MeshDevice device(shape);
    require(device.shape() == shape, [&] {
      return "the mesh " + show(device.shape().dims()) + " is open already; " + show(shape.dims()) + " is another";
    });
    return &device;
  }
};

enum class Place { HOST, HOST_SHARDS, DEVICES };

// Copies of a tensor are the same tensor: deallocating one deallocates all.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Array whole) : Tensor(Place::HOST, nullptr, {std::move(whole)}, Layout::ROW_MAJOR) {}
  Tensor(Place place, distributed::MeshDevice* mesh, std::vector<std::optional<Array>> shards, Layout layout)
      : state_(std::make_shared<State>(State{place, mesh, layout, std::move(shards), true})) {
    for (const auto& shard : state_->shards) {
      if (!shard) continue;
      dtype_ = shard->dtype;
      shape_ = shard->shape;
    }
  }

  DataType dtype() const { return dtype_; }
  // Of one device's piece, where it is spread over a mesh.
  const Dims& shape() const { return shape_; }
  std::size_t rank() const { return shape_.size(); }
  Layout layout() const { return state().layout; }
  Place place() const { return state().place; }
  StorageType storage_type() const { return place() == Place::DEVICES ? StorageType::DEVICE : StorageType::HOST; }
  distributed::MeshDevice* device() const { return state().mesh; }
  // One per device in row-major order of the mesh, empty where a device holds nothing; on the host the only one.
  const std::vector<std::optional<Array>>& shards() const { return state().shards; }
  const Array& whole() const {
    require(place() == Place::HOST, "a tensor that is spread over a mesh has no single value; aggregate it first");
    return *state().shards[0];
  }
  // The same tensor with other shards, or held otherwise.
  Tensor with(std::vector<std::optional<Array>> shards) const {
    return Tensor(place(), device(), std::move(shards), layout());
  }
  Tensor at(Place where) const { return Tensor(where, device(), shards(), layout()); }
  Tensor laid(Layout layout) const { return Tensor(place(), device(), shards(), layout); }
  void deallocate() const {
    state();
    state_->alive = false;
    state_->shards.clear();
  }

 private:
  struct State {
    Place place;
    distributed::MeshDevice* mesh;
    Layout layout;
    std::vector<std::optional<Array>> shards;
    bool alive;
  };
  const State& state() const {
    require(state_ != nullptr, "an empty tensor is used");
    require(state_->alive, [&] { return "a tensor of shape " + show(shape_) + " is used after it was deallocated"; });
    return *state_;
  }

  std::shared_ptr<State> state_;
  DataType dtype_ = DataType::FLOAT32;
  Dims shape_;
};

// The truth value of a tensor of one element, which is the same on all devices.
inline bool is_true(const Tensor& tensor) {
  const auto& shards = tensor.shards();
  const auto held = std::find_if(shards.begin(), shards.end(), [](const auto& shard) { return shard.has_value(); });
  require(held != shards.end() && (*held)->size() == 1, "a condition is a tensor of one element");
  bool found = false;
  by_kind((*held)->dtype, [&](auto zero) { found = *(*held)->template data<decltype(zero)>() != zero; });
  return found;
}

// --- ops on every device ---------------------------------------------------------------------------------------------

using Arrays = std::vector<Array>;

inline const Tensor& on_devices(const Tensor& x, const char* who) {
  require(x.place() == Place::DEVICES, [&] {
    return std::string(who) + " computes on the devices, but got a tensor in host memory; move it with ttnn::to_device";
  });
  return x;
}

inline bool same_values(const Arrays& a, const Arrays& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Array& x, const Array& y) { return x.values == y.values; });
}

// The operands of one device; none where all of them hold nothing there.
inline std::optional<Arrays> gathered_operands(const std::vector<Tensor>& operands, std::size_t device,
                                               const char* who) {
  Arrays held;
  for (const Tensor& x : operands) {
    if (x.shards()[device]) held.push_back(*x.shards()[device]);
  }
  if (held.empty()) return std::nullopt;
  require(held.size() == operands.size(),
          [&] { return std::string(who) + ": device " + std::to_string(device) + " holds some of the operands only"; });
  return held;
}

// Every device's result rows; devices with the same operands share them, so replicated work is done once.
template <class Kernel>
std::vector<Tensor> on_each(const char* who, const std::vector<Tensor>& operands, std::size_t results, Kernel kernel) {
  const Tensor& first = on_devices(operands.at(0), who);
  for (const Tensor& x : operands) {
    require(on_devices(x, who).device() == first.device(), "tensors of two meshes meet in one op");
  }
  const std::size_t count = first.shards().size();
  std::vector<std::optional<Arrays>> given(count), made(count);
  for (std::size_t device = 0; device < count; ++device) {
    given[device] = gathered_operands(operands, device, who);
    if (!given[device]) continue;
    for (std::size_t earlier = 0; earlier < device && !made[device]; ++earlier) {
      if (given[earlier] && same_values(*given[earlier], *given[device])) made[device] = made[earlier];
    }
    if (!made[device]) made[device] = kernel(*given[device]);
  }
  std::vector<Tensor> out;
  for (std::size_t r = 0; r < results; ++r) {
    std::vector<std::optional<Array>> shards(count);
    for (std::size_t device = 0; device < count; ++device) {
      if (made[device]) shards[device] = made[device]->at(r);
    }
    out.push_back(first.with(std::move(shards)));
  }
  return out;
}

// An op with one result.
template <class Kernel>
Tensor on_each(const char* who, const std::vector<Tensor>& operands, Kernel kernel) {
  return on_each(who, operands, 1, [&](const Arrays& held) { return Arrays{kernel(held)}; })[0];
}

// --- memory ----------------------------------------------------------------------------------------------------------

inline Tensor to_device(const Tensor& x, distributed::MeshDevice* device, const Memory& = std::nullopt) {
  require(x.place() != Place::DEVICES, "to_device: the tensor is on the devices already");
  if (x.place() == Place::HOST) {
    std::vector<std::optional<Array>> copies(device->num_devices(), x.whole());
    return Tensor(Place::DEVICES, device, std::move(copies), x.layout());
  }
  require(x.device() == device, "to_device: the tensor was spread over another mesh");
  return x.at(Place::DEVICES);
}

inline Tensor from_device(const Tensor& x) { return on_devices(x, "from_device").at(Place::HOST_SHARDS); }

inline Tensor to_layout(const Tensor& x, Layout layout, const std::optional<DataType>& = std::nullopt,
                        const Memory& = std::nullopt) {
  return x.laid(layout);
}

inline Tensor to_memory_config(const Tensor& x, const Memory&) { return on_devices(x, "to_memory_config"); }

inline void deallocate(const Tensor& x, bool = true) { x.deallocate(); }

}  // namespace ttnn

inline ::ttnn::Tensor util_get_optional_value(const ::std::optional<::ttnn::Tensor>& tensor) {
  ::ttnn::require(tensor.has_value(), "a function did not return this result");
  return *tensor;
}

template <class... T>
::std::vector<::ttnn::Tensor> util_create_vec(const T&... tensors) {
  return {tensors...};
}
