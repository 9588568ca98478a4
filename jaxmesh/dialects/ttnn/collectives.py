"""Communication of TTNN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxmesh.dialects.op import Call, Shape, Trait, Write, describe, need
from jaxmesh.dialects.ttir.collectives import apply_collective
from jaxmesh.dialects.ttir.helpers import jnp, lax, optional_operands, require, vary, vary_together
from jaxmesh.dialects.ttir.replica_groups import row_major_index, show_mesh
from jaxmesh.dialects.ttnn.forms import ANY, FLOATS, I32, MODULAR, WIDE, Forms, Occurrence, forms, refused
from jaxmesh.dialects.ttnn.op import MEMORY, Param, TtnnOp, attribute, define, operand, positional, text, unset
from jaxmesh.sharding.shard_attributes import position_of

OPS: dict[str, TtnnOp] = {}
_X = operand("input_tensor", keyword=True)
_AXIS = attribute("cluster_axis", keyword=True, default=None)
_SUBDEVICE, _LINKS, _TOPOLOGY = unset("subdevice_id"), unset("num_links"), unset("topology")

_HOW = ("num_links", "sub_device_id", "topology")

_GATHERED = attribute("dim", "all_gather_dim")
define(
    OPS,
    "all_gather",
    options=_HOW,
    python=[_X, replace(_GATHERED, keyword=True), _AXIS, MEMORY, _SUBDEVICE, _LINKS, _TOPOLOGY],
    cpp=positional(
        _X, _GATHERED, _AXIS, MEMORY, unset("output_tensor"), _SUBDEVICE, unset("sub_core_grid"), _LINKS, _TOPOLOGY
    ),
    accepts=forms(WIDE, casts=MODULAR),
)

_REDUCED = (_SUBDEVICE, MEMORY, _LINKS, _TOPOLOGY)
_SUMMED = forms(FLOATS | {I32}, casts=MODULAR)
define(OPS, "all_reduce", options=_HOW, python=[_X, _AXIS, *_REDUCED], accepts=_SUMMED)

_KIND = attribute("math_op", "reduce_type", form="enum:ttnn.ReduceType", keyword=True)
define(
    OPS,
    "all_reduce_async",
    options=_HOW,
    callee="ttnn.experimental.all_reduce_async",
    python=[_X, _AXIS, Param("mesh_device", "operand_device", keyword=True), _KIND, *_REDUCED],
    cpp=positional(_X, _AXIS, replace(_KIND, form="enum:::ttnn::ReduceType"), *_REDUCED),
    accepts=_SUMMED,
)

_SCATTERED = attribute("dim", "scatter_dim", keyword=True)
_SCATTER_CONFIG = text(
    "compute_kernel_config",
    "ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, math_approx_mode=False, "
    "fp32_dest_acc_en=True, packer_l1_acc=False)",
    keyword=True,
)
define(
    OPS,
    "reduce_scatter",
    options=[*_HOW, "compute_config"],
    python=[_X, _SCATTERED, _AXIS, *_REDUCED, _SCATTER_CONFIG],
    cpp=positional(_X, _SCATTERED, _AXIS, *_REDUCED),
    accepts=forms(WIDE, casts=MODULAR),
)

# Pieces of tiles are refused; tt-mlir partitions rows always.
define(
    OPS,
    "mesh_partition",
    python=[_X, attribute("dim", keyword=True), _AXIS, MEMORY],
    accepts=forms(ANY, "rows", casts=MODULAR),
)


# --- between two devices ---------------------------------------------------------------------------------------------


def _point_to_point(call: Call) -> Any:
    """Returns the output, by default zeros, with the sender's input on the receiver."""
    x, out = optional_operands(call, ("input", "output"))
    names, sizes = tuple(call.mesh), tuple(call.mesh.values())
    sender, receiver = (_device(call, name, sizes) for name in ("sender_coord", "receiver_coord"))
    require(call, sender != receiver, f"sender_coord and receiver_coord are one device, {list(call['sender_coord'])}")
    # An axis of one device numbers nothing.
    names = tuple(n for n in names if call.mesh[n] > 1)
    sizes = tuple(call.mesh[n] for n in names)
    if out is None:
        out = jnp.zeros(x.shape, x.dtype)
    alike = (out.shape, out.dtype) == (x.shape, x.dtype)
    require(call, alike, f"the output is like the input, {describe(x)}, but got {describe(out)}")
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
    require(call, good, f"{name} = {list(coordinate)} is no device of the mesh {show_mesh(call)}")
    return position_of(coordinate, range(len(sizes)), sizes)


def _along_one_axis(op: Occurrence) -> Forms:
    """Returns the forms of a transfer along one mesh axis: the library routes no further."""
    crossed = sum(a != b for a, b in zip(op.attributes["sender_coord"], op.attributes["receiver_coord"], strict=True))
    if crossed > 1:
        return refused("point_to_point goes along one mesh axis there; send twice, over the device at the corner")
    return forms(ANY, casts=MODULAR)


_FROM = attribute("sender_coord", form="coordinate", keyword=True)
_TO = attribute("receiver_coord", form="coordinate", keyword=True)
_OUTPUT = operand("output_tensor", 1, keyword=True, default=None)
_LINEAR = text("topology", "ttnn.Topology.Linear", keyword=True)
define(
    OPS,
    "point_to_point",
    operands=(1, 2),
    attributes=[need("sender_coord", "ints", form="i64s"), need("receiver_coord", "ints", form="i64s")],
    meaning=_point_to_point,
    traits=[Trait.MOVES, Trait.COLLECTIVE, Trait.SENDS, Trait.DECOMPOSED],
    python=[*positional(_X), _FROM, _TO, _LINEAR, _OUTPUT],
    cpp=positional(_X, _FROM, _TO, _OUTPUT),
    writes={1: Write.HOLDS_RESULT},
    accepts=_along_one_axis,
)
