// Communication between the devices of a mesh.
#pragma once

#include "ttnn-elementwise.hpp"
#include "ttnn-shapes.hpp"

namespace ttnn {

// The devices that stand along a mesh axis with each device, itself included, in the axis' order.
class Ring {
 public:
  Ring(const Tensor& x, int64_t axis, const char* who) : mesh_(on_devices(x, who).device()->shape().dims()) {
    require(0 <= axis && axis < static_cast<int64_t>(mesh_.size()), [&] {
      return std::string(who) + ": cluster_axis " + std::to_string(axis) + " is no axis of the mesh " + show(mesh_);
    });
    step_ = strides_of(mesh_)[static_cast<std::size_t>(axis)];
    size = mesh_[static_cast<std::size_t>(axis)];
  }
  int64_t place(std::size_t device) const { return static_cast<int64_t>(device) / step_ % size; }
  Arrays members(const Tensor& x, std::size_t device, const char* who) const {
    Arrays held;
    const int64_t first = static_cast<int64_t>(device) - place(device) * step_;
    for (int64_t i = 0; i < size; ++i) {
      const auto& shard = x.shards()[static_cast<std::size_t>(first + i * step_)];
      require(shard.has_value(), [&] { return std::string(who) + ": a device holds nothing"; });
      held.push_back(*shard);
    }
    return held;
  }

  int64_t size;

 private:
  Dims mesh_;
  int64_t step_;
};

// A result for each device from those along its ring; computed once for all of a ring if it does not depend on the
// place.
template <class F>
Tensor along(const Tensor& x, const Ring& ring, const char* who, F function) {
  std::vector<std::optional<Array>> shards(x.shards().size());
  for (std::size_t device = 0; device < shards.size(); ++device) {
    shards[device] = function(ring.members(x, device, who), ring.place(device));
  }
  return x.with(std::move(shards));
}

inline Array added_up(const Arrays& members) {
  if (members[0].dtype == DataType::BOOL) {
    Array out = members[0];
    for (std::size_t i = 1; i < members.size(); ++i)
      out = combined(out, members[i], [](auto a, auto b) { return a != 0 || b != 0; });
    return out;
  }
  // 16-bit floats add up in float32 and are rounded once.
  const bool narrow = traits(members[0].dtype).kind == Kind::FLOAT;
  Array out = narrow ? cast(members[0], DataType::FLOAT32) : members[0];
  for (std::size_t i = 1; i < members.size(); ++i) {
    out = combined(out, cast(members[i], out.dtype), [](auto a, auto b) { return scalar::add(a, b); });
  }
  return cast(out, members[0].dtype);
}

inline Tensor all_gather(const Tensor& x, int64_t dim, int64_t axis, const Memory& = std::nullopt, Unset = std::nullopt,
                         Unset = std::nullopt, Unset = std::nullopt, Unset = std::nullopt, Unset = std::nullopt) {
  const auto at = static_cast<std::size_t>(dim_in(dim, x.rank(), "all_gather"));
  return along(x, Ring(x, axis, "all_gather"), "all_gather",
               [&](const Arrays& members, int64_t) { return joined(members, at); });
}

inline Tensor all_reduce(const Tensor& x, int64_t axis, Unset = std::nullopt, const Memory& = std::nullopt,
                         Unset = std::nullopt, Unset = std::nullopt) {
  return along(x, Ring(x, axis, "all_reduce"), "all_reduce",
               [&](const Arrays& members, int64_t) { return added_up(members); });
}

enum class ReduceType { Sum, Mean, Max, Min, Prod, Std, Var };

namespace experimental {

inline Tensor all_reduce_async(const Tensor& x, int64_t axis, ReduceType kind, Unset = std::nullopt,
                               const Memory& = std::nullopt, Unset = std::nullopt, Unset = std::nullopt) {
  require(kind == ReduceType::Sum, "all_reduce_async takes only sums");
  return all_reduce(x, axis);
}

}  // namespace experimental

// This place's piece of a dim.
inline Array share(const Array& x, std::size_t dim, int64_t place, int64_t count, const char* who) {
  require(x.shape[dim] % count == 0, [&] {
    return std::string(who) + ": dim " + std::to_string(dim) + " of " + show(x.shape) + " does not divide by " +
           std::to_string(count);
  });
  const int64_t length = x.shape[dim] / count;
  return piece(x, dim, place * length, length);
}

inline Tensor reduce_scatter(const Tensor& x, int64_t dim, int64_t axis, Unset = std::nullopt,
                             const Memory& = std::nullopt, Unset = std::nullopt, Unset = std::nullopt) {
  const auto at = static_cast<std::size_t>(dim_in(dim, x.rank(), "reduce_scatter"));
  const Ring ring(x, axis, "reduce_scatter");
  return along(x, ring, "reduce_scatter", [&](const Arrays& members, int64_t place) {
    return share(added_up(members), at, place, ring.size, "reduce_scatter");
  });
}

// Without an axis the pieces go to all devices, row-major.
inline Tensor mesh_partition(const Tensor& x, int64_t dim, const std::optional<int64_t>& axis,
                             const Memory& = std::nullopt) {
  const auto at = static_cast<std::size_t>(dim_in(dim, on_devices(x, "mesh_partition").rank(), "mesh_partition"));
  std::vector<std::optional<Array>> shards(x.shards().size());
  for (std::size_t device = 0; device < shards.size(); ++device) {
    const auto& held = x.shards()[device];
    require(held.has_value(), "mesh_partition: a device holds nothing");
    if (axis) {
      const Ring ring(x, *axis, "mesh_partition");
      shards[device] = share(*held, at, ring.place(device), ring.size, "mesh_partition");
    } else {
      shards[device] =
          share(*held, at, static_cast<int64_t>(device), static_cast<int64_t>(shards.size()), "mesh_partition");
    }
  }
  return x.with(std::move(shards));
}

namespace ccl {
enum class Topology { Linear, Ring };
}  // namespace ccl

// The receiver's copy of the output becomes the sender's piece; without an output the others have zeros.
inline Tensor point_to_point(const Tensor& x, const MeshCoordinate& receiver, const MeshCoordinate& sender,
                             ccl::Topology = ccl::Topology::Linear,
                             const std::optional<Tensor>& output = std::nullopt) {
  const distributed::MeshDevice& mesh = *on_devices(x, "point_to_point").device();
  const auto from = static_cast<std::size_t>(mesh.device_at(sender.values)),
             to = static_cast<std::size_t>(mesh.device_at(receiver.values));
  require(x.shards()[from].has_value(), "point_to_point: the sender holds nothing");
  std::vector<std::optional<Array>> shards;
  if (output) {
    require(on_devices(*output, "point_to_point").shape() == x.shape() && output->dtype() == x.dtype(), [&] {
      return "point_to_point: the output " + show(output->shape()) + " is not like the input " + show(x.shape());
    });
    shards = output->shards();
  } else {
    shards.assign(x.shards().size(), filled(x.dtype(), x.shape(), 0));
  }
  shards[to] = x.shards()[from];
  return x.with(std::move(shards));
}

}  // namespace ttnn
