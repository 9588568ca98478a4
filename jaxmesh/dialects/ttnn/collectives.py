"""Communication of TTNN."""

from __future__ import annotations

from typing import Any

from jaxmesh.dialects.op import Call, Shape, Trait, Write, describe
from jaxmesh.dialects.ttir.collectives import apply_collective
from jaxmesh.dialects.ttir.helpers import jnp, lax, vary, vary_together
from jaxmesh.dialects.ttir.replica_groups import row_major_index, show_mesh
from jaxmesh.dialects.ttnn.forms import (
    ANY,
    BF16,
    FLOATS,
    I32,
    MODULAR,
    U8,
    U16,
    U32,
    WIDE,
    Forms,
    Gives,
    Occurrence,
    Takes,
    forms,
    refused,
)
from jaxmesh.dialects.ttnn.op import TtnnOps
from jaxmesh.sharding.shard_attributes import position_of

OPS = TtnnOps()

_HOW = ("num_links", "sub_device_id", "topology")

OPS.define(
    "all_gather",
    python=(
        "(input_tensor=%0, dim=all_gather_dim, cluster_axis=, memory_config=@, subdevice_id=none, "
        "num_links=none, topology=none)"
    ),
    cpp="(%0, all_gather_dim, cluster_axis, @memory_config, none, none, none, none, none)",
    options=_HOW,
    accepts=forms(WIDE, casts=MODULAR),
)

_SUMMED = forms(FLOATS | {I32}, casts=MODULAR)
OPS.define(
    "all_reduce",
    python="(input_tensor=%0, cluster_axis=, subdevice_id=none, memory_config=@, num_links=none, topology=none)",
    options=_HOW,
    accepts=_SUMMED,
)

OPS.define(
    "all_reduce_async",
    python=(
        "ttnn.experimental.all_reduce_async(input_tensor=%0, cluster_axis=, mesh_device=@operand_device, "
        "math_op=reduce_type|enum:ttnn.ReduceType, subdevice_id=none, memory_config=@, num_links=none, "
        "topology=none)"
    ),
    cpp="(%0, cluster_axis, reduce_type|enum:::ttnn::ReduceType, none, @memory_config, none, none)",
    options=_HOW,
    accepts=_SUMMED,
)

OPS.define(
    "reduce_scatter",
    python=(
        "(input_tensor=%0, dim=scatter_dim, cluster_axis=, subdevice_id=none, memory_config=@, num_links=none, "
        "topology=none, "
        "compute_kernel_config=`ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, "
        "math_approx_mode=False, fp32_dest_acc_en=True, packer_l1_acc=False)`)"
    ),
    cpp="(%0, scatter_dim, cluster_axis, none, @memory_config, none, none)",
    options=[*_HOW, "compute_config"],
    accepts=forms(WIDE, casts=MODULAR),
)

# Pieces of tiles are refused; tt-mlir partitions rows always.
OPS.define(
    "mesh_partition",
    python="(input_tensor=%0, dim=, cluster_axis=, memory_config=@)",
    accepts=forms(ANY, "rows", casts=MODULAR),
)

# Tokens of bfloat16 and numbers of experts of 16 bits, in rows.
_NUMBERS = Takes(frozenset({U16}), "rows", dict.fromkeys((I32, U32, U8), (U16,)))
_EXPERTS = (Takes(frozenset({BF16}), "rows"), _NUMBERS)
OPS.define(
    "all_to_all_dispatch",
    python="(input_tensor=%0, expert_indices_tensor=%1, expert_mapping_tensor=%2, cluster_axis=, memory_config=@)",
    cpp="array (%0, %1, %2, cluster_axis, none, none, none, @memory_config)",
    accepts=Forms(_EXPERTS, (Gives(), Gives(operand=1)), alike=False),
)
OPS.define(
    "all_to_all_combine",
    python=(
        "(input_tensor=%0, expert_metadata_tensor=%1, expert_mapping_tensor=%2, cluster_axis=, output_shard_dim=, "
        "memory_config=@)"
    ),
    cpp="(%0, %2, %1, `false`, none, none, @memory_config, cluster_axis, output_shard_dim)",
    accepts=Forms(_EXPERTS, alike=False),
)


# --- between two devices ---------------------------------------------------------------------------------------------


def _point_to_point(call: Call) -> Any:
    """Returns the output, by default zeros, with the sender's input on the receiver."""
    x, out = call.optional_operands(("input", "output"))
    names, sizes = tuple(call.mesh), tuple(call.mesh.values())
    sender, receiver = (_device(call, name, sizes) for name in ("sender_coord", "receiver_coord"))
    call.require(sender != receiver, f"sender_coord and receiver_coord are one device, {list(call['sender_coord'])}")
    # An axis of one device numbers nothing.
    names = tuple(n for n in names if call.mesh[n] > 1)
    sizes = tuple(call.mesh[n] for n in names)
    if out is None:
        out = jnp.zeros(x.shape, x.dtype)
    alike = (out.shape, out.dtype) == (x.shape, x.dtype)
    call.require(alike, f"the output is like the input, {describe(x)}, but got {describe(out)}")
    if not x.size:
        return vary(out, names)
    x, out = vary(x, names), vary(out, names)
    received = apply_collective(x, names, lambda y: lax.ppermute(y, names, [(sender, receiver)]))
    here = row_major_index(names, sizes) == receiver
    return lax.select(*vary_together(jnp.broadcast_to(here, x.shape), received, out))


def _device(call: Call, name: str, sizes: Shape) -> int:
    """Returns a device's position in row-major order over the mesh."""
    coordinate = tuple(call[name])
    good = len(coordinate) == len(sizes) and all(0 <= c < n for c, n in zip(coordinate, sizes, strict=True))
    call.require(good, f"{name} = {list(coordinate)} is no device of the mesh {show_mesh(call)}")
    return position_of(coordinate, range(len(sizes)), sizes)


def _along_one_axis(op: Occurrence) -> Forms:
    """Returns the forms of a transfer along one mesh axis: the library routes no further."""
    crossed = sum(a != b for a, b in zip(op.attributes["sender_coord"], op.attributes["receiver_coord"], strict=True))
    if crossed > 1:
        return refused("point_to_point goes along one mesh axis there; send twice, over the device at the corner")
    return forms(ANY, casts=MODULAR)


OPS.define(
    "point_to_point",
    python=(
        "(input_tensor:%0, sender_coord=|coordinate, receiver_coord=|coordinate, "
        "topology=`ttnn.Topology.Linear`, output_tensor=%1)"
    ),
    cpp="(%0, receiver_coord|coordinate, sender_coord|coordinate, `::ttnn::ccl::Topology::Linear`, %1)",
    operands=(1, 2),
    attributes="sender_coord: i64s, receiver_coord: i64s",
    meaning=_point_to_point,
    traits=[Trait.MOVES, Trait.COLLECTIVE, Trait.SENDS, Trait.DECOMPOSED],
    writes={1: Write.HOLDS_RESULT},
    accepts=_along_one_axis,
)
