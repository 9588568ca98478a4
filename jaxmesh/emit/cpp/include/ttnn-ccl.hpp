// Communication between the devices of a mesh.
#pragma once

#include <array>

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
  std::vector<std::size_t> devices(std::size_t device) const {
    std::vector<std::size_t> ids;
    const int64_t first = static_cast<int64_t>(device) - place(device) * step_;
    for (int64_t i = 0; i < size; ++i) ids.push_back(static_cast<std::size_t>(first + i * step_));
    return ids;
  }
  Arrays members(const Tensor& x, std::size_t device, const char* who) const {
    Arrays held;
    for (const std::size_t id : devices(device)) {
      const auto& shard = x.shards()[id];
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

// --- a mixture of experts --------------------------------------------------------------------------------------------

// The experts that a device has, in order, by a table of [1, 1, experts, devices].
inline std::vector<int64_t> experts_of(const Array& table, std::size_t device) {
  std::vector<int64_t> held;
  const Array marks = cast(table, DataType::INT32);
  const int64_t devices = marks.shape[3];
  for (int64_t e = 0; e < marks.shape[2]; ++e) {
    if (marks.data<int64_t>()[e * devices + static_cast<int64_t>(device)] == 1) held.push_back(e);
  }
  return held;
}

inline void copy_row(const Array& from, int64_t source, const Array& to, int64_t target) {
  const int64_t width = from.shape.back();
  by_kind(from.dtype, [&](auto zero) {
    using C = decltype(zero);
    std::copy_n(from.data<C>() + source * width, width, to.data<C>() + target * width);
  });
}

// Each device has the tokens of its ring that choose an expert which it holds, and zeros for the others.
inline std::array<Tensor, 2> all_to_all_dispatch(const Tensor& x, const Tensor& chosen, const Tensor& mapping,
                                                 int64_t axis, Unset = std::nullopt, Unset = std::nullopt,
                                                 Unset = std::nullopt, const Memory& = std::nullopt) {
  const char* who = "all_to_all_dispatch";
  const Ring ring(x, axis, who);
  std::vector<std::optional<Array>> tokens(x.shards().size()), numbers(x.shards().size());
  const auto gathered = [&](const Tensor& t, std::size_t device) {
    const Array all = joined(ring.members(t, device, who), 0);
    return all.as({1, all.shape[0], all.shape[1] * all.shape[2], all.shape[3]});
  };
  for (std::size_t device = 0; device < tokens.size(); ++device) {
    const Array all = gathered(x, device), experts = gathered(chosen, device);
    const std::vector<int64_t> held = experts_of(*mapping.shards()[device], device);
    const Array each = cast(experts, DataType::INT32);
    const int64_t places = each.shape.back();
    Array out(all.dtype, all.shape);
    for (int64_t token = 0; token < each.size() / places; ++token) {
      const int64_t* first = each.data<int64_t>() + token * places;
      if (std::find_first_of(first, first + places, held.begin(), held.end()) != first + places)
        copy_row(all, token, out, token);
    }
    tokens[device] = out;
    numbers[device] = experts;
  }
  return {x.with(std::move(tokens)), chosen.with(std::move(numbers))};
}

// Each token gets, at the place of each of its experts, the row of the first device of its ring that holds the expert.
inline Tensor all_to_all_combine(const Tensor& x, const Tensor& mapping, const Tensor& metadata, bool local_reduce,
                                 Unset, Unset, const Memory&, int64_t axis, int64_t dim) {
  const char* who = "all_to_all_combine";
  require(!local_reduce, "all_to_all_combine: local_reduce is not emulated");
  require(dim == 1 || dim == 2, "all_to_all_combine: output_shard_dim is 1 or 2");
  const Ring ring(x, axis, who);
  return along(x, ring, who, [&, device = std::size_t{0}](const Arrays& members, int64_t place) mutable {
    const Arrays tables = ring.members(mapping, device, who), chosen = ring.members(metadata, device, who);
    const std::vector<std::size_t> ids = ring.devices(device++);
    Dims shape = chosen[0].shape;
    const int64_t places = shape[3];
    shape[static_cast<std::size_t>(dim)] /= ring.size;
    Array out(members[0].dtype, {places, shape[1], shape[2], members[0].shape[3]});
    const int64_t tokens = shape[1] * shape[2];
    std::vector<bool> known(static_cast<std::size_t>(places * tokens));
    for (std::size_t i = 0; i < members.size(); ++i) {
      const std::vector<int64_t> held = experts_of(tables[i], ids[i]);
      const Array each = cast(chosen[i], DataType::INT32);
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t from = place * tokens + t, *first = each.data<int64_t>() + from * places;
        for (int64_t k = 0; k < places; ++k) {
          const auto at = std::find(held.begin(), held.end(), first[k]);
          const int64_t local = at - held.begin(), to = k * tokens + t;
          const bool earlier = std::find(first, first + k, first[k]) != first + k;
          if (at == held.end() || local >= members[i].shape[0] || earlier) continue;
          if (known[static_cast<std::size_t>(to)]) continue;
          copy_row(members[i], local * tokens * ring.size + from, out, to);
          known[static_cast<std::size_t>(to)] = true;
        }
      }
    }
    return out;
  });
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
