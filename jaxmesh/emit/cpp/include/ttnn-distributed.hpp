// distribute_tensor and aggregate_tensor, by the rules of tt-metal's ttnn/core/distributed.
#pragma once

#include "ttnn-tensor.hpp"

namespace ttnn::distributed {

struct MeshMapperConfig {
  struct Shard {
    int dim;
  };
  struct Replicate {};
  using Placement = std::variant<Replicate, Shard>;

  std::vector<Placement> placements;
  std::optional<MeshShape> mesh_shape_override = std::nullopt;
};

struct MeshComposerConfig {
  std::vector<int> dims;
  std::optional<MeshShape> mesh_shape_override = std::nullopt;
};

// The next coordinate in row-major order; false after the last.
inline bool advance(Dims& at, const Dims& shape) {
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (++at[d] < shape[d]) return true;
    at[d] = 0;
  }
  return false;
}

// A distribution shape laid on a mesh: at the same coordinates, in the leading corner, or row-major.
class Landing {
 public:
  Landing(const MeshDevice& device, const std::optional<MeshShape>& override)
      : shape(override.value_or(device.shape()).dims()) {
    const Dims& mesh = device.shape().dims();
    require(volume(shape) <= volume(mesh), [&] {
      return "the distribution shape " + show(shape) + " has more places than the mesh " + show(mesh) + " has devices";
    });
    bool corner = shape.size() == mesh.size();
    for (std::size_t a = 0; corner && a < shape.size(); ++a) corner = shape[a] <= mesh[a];
    Dims at(shape.size(), 0);
    int64_t place = 0;
    do {
      devices.push_back(static_cast<std::size_t>(corner ? device.device_at(at) : place));
      ++place;
    } while (advance(at, shape));
  }

  Dims shape;
  // Of each place, row-major over the distribution shape.
  std::vector<std::size_t> devices;
};

inline void check_unique(const Dims& dims, const char* who) {
  for (std::size_t i = 0; i < dims.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      require(dims[i] < 0 || dims[i] != dims[j], [&] {
        return std::string(who) + ": dims must be unique, but axes " + std::to_string(j) + " and " + std::to_string(i) +
               " both name tensor dim " + std::to_string(dims[i]);
      });
    }
  }
}

class TensorToMesh {
 public:
  TensorToMesh(MeshDevice& device, MeshMapperConfig config) : device_(device), config_(std::move(config)) {}

  Tensor operator()(const Tensor& x) const {
    require(x.place() == Place::HOST, "distribute_tensor takes a whole tensor in host memory; aggregate it first");
    const Array& full = x.whole();
    const Landing landing(device_, config_.mesh_shape_override);
    const Dims dims = shard_dims(landing, full.rank());
    Dims local = full.shape, chunks = landing.shape;
    for (std::size_t a = 0; a < dims.size(); ++a) {
      if (dims[a] >= 0) cut(landing, a, local[static_cast<std::size_t>(dims[a])], chunks[a]);
    }
    std::vector<std::optional<Array>> shards(device_.num_devices());
    Dims at(landing.shape.size(), 0);
    std::size_t place = 0;
    do {
      if (std::equal(at.begin(), at.end(), chunks.begin(), std::less<>{}))
        shards[landing.devices[place]] = shard(full, local, dims, at);
      ++place;
    } while (advance(at, landing.shape));
    return Tensor(Place::HOST_SHARDS, &device_, std::move(shards), x.layout());
  }

 private:
  // Per axis of the distribution the dim it cuts, or -1.
  Dims shard_dims(const Landing& landing, std::size_t rank) const {
    require(config_.placements.size() == landing.shape.size(), [&] {
      return "distribute_tensor needs one placement per axis of the distribution shape " + show(landing.shape) +
             ", got " + std::to_string(config_.placements.size());
    });
    Dims dims;
    for (const auto& placement : config_.placements) {
      const auto* shard = std::get_if<MeshMapperConfig::Shard>(&placement);
      dims.push_back(shard ? dim_in(shard->dim, rank, "distribute_tensor") : -1);
    }
    check_unique(dims, "distribute_tensor");
    return dims;
  }

  static void cut(const Landing& landing, std::size_t axis, int64_t& size, int64_t& chunks) {
    const int64_t count = landing.shape[axis];
    if (size == 0) return;
    const int64_t chunk = (size + count - 1) / count;
    chunks = (size + chunk - 1) / chunk;
    const auto place = [=] {
      return "a dim of size " + std::to_string(size) + " over " + std::to_string(count) + " places";
    };
    require(size % chunk == 0,
            [&] { return "distribute_tensor: all shards must have one shape, but not of " + place(); });
    require(chunks == count || landing.shape.size() == 1, [&] {
      return "distribute_tensor: the number of chunks must equal the sharded mesh axis, but not of " + place();
    });
    size = chunk;
  }

  static Array shard(const Array& full, const Dims& local, const Dims& dims, const Dims& at) {
    if (local == full.shape) return full;
    const Dims strides = strides_of(full.shape);
    int64_t offset = 0;
    for (std::size_t a = 0; a < dims.size(); ++a) {
      if (dims[a] < 0) continue;
      const auto d = static_cast<std::size_t>(dims[a]);
      offset += at[a] * local[d] * strides[d];
    }
    return picked(full, local, offset, strides);
  }

  MeshDevice& device_;
  MeshMapperConfig config_;
};

class MeshToTensor {
 public:
  MeshToTensor(MeshDevice& device, MeshComposerConfig config) : device_(device), config_(std::move(config)) {}

  Tensor operator()(const Tensor& x) const {
    require(x.place() == Place::HOST_SHARDS,
            "aggregate_tensor takes the shards of a mesh in host memory; use from_device first");
    require(x.device() == &device_, "aggregate_tensor: the tensor is spread over another mesh");
    const Landing landing(device_, config_.mesh_shape_override);
    require(config_.dims.size() == landing.shape.size(), [&] {
      return "aggregate_tensor needs one dim per axis of the distribution shape " + show(landing.shape) + ", got " +
             std::to_string(config_.dims.size());
    });
    if (landing.devices.size() == 1) return Tensor(held(x, landing.devices[0]));
    Dims dims, full = x.shape();
    for (int dim : config_.dims) dims.push_back(dim_in(dim, x.rank(), "aggregate_tensor"));
    check_unique(dims, "aggregate_tensor");
    for (std::size_t a = 0; a < dims.size(); ++a) full[static_cast<std::size_t>(dims[a])] *= landing.shape[a];
    return Tensor(composed(x, landing, dims, full));
  }

 private:
  static const Array& held(const Tensor& x, std::size_t device) {
    require(x.shards()[device].has_value(),
            [&] { return "aggregate_tensor: device " + std::to_string(device) + " holds nothing"; });
    return *x.shards()[device];
  }

  static Array composed(const Tensor& x, const Landing& landing, const Dims& dims, const Dims& full) {
    Array out(x.dtype(), full);
    const Dims strides = strides_of(full);
    Dims at(landing.shape.size(), 0);
    std::size_t place = 0;
    do {
      int64_t offset = 0;
      for (std::size_t a = 0; a < dims.size(); ++a) {
        const auto d = static_cast<std::size_t>(dims[a]);
        offset += at[a] * x.shape()[d] * strides[d];
      }
      placed(out, held(x, landing.devices[place++]), offset, strides);
    } while (advance(at, landing.shape));
    return out;
  }

  MeshDevice& device_;
  MeshComposerConfig config_;
};

inline std::unique_ptr<TensorToMesh> create_mesh_mapper(MeshDevice& device, const MeshMapperConfig& config) {
  return std::make_unique<TensorToMesh>(device, config);
}

inline std::unique_ptr<MeshToTensor> create_mesh_composer(MeshDevice& device, const MeshComposerConfig& config) {
  return std::make_unique<MeshToTensor>(device, config);
}

inline Tensor distribute_tensor(const Tensor& x, const TensorToMesh& mapper) { return mapper(x); }
inline Tensor aggregate_tensor(const Tensor& x, const MeshToTensor& composer) { return composer(x); }

}  // namespace ttnn::distributed
