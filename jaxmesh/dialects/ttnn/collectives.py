"""Communication of TTNN."""

from __future__ import annotations

import jax

from jaxmesh.dialects.op import Call, Shape, Trait, describe
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

OPS.define("all_gather", accepts=forms(WIDE, casts=MODULAR))

_SUMMED = forms(FLOATS | {I32}, casts=MODULAR)
OPS.define("all_reduce", accepts=_SUMMED)

OPS.define("all_reduce_async", accepts=_SUMMED)

OPS.define("reduce_scatter", accepts=forms(WIDE, casts=MODULAR))

# Pieces of tiles are refused; tt-mlir partitions rows always.
OPS.define("mesh_partition", accepts=forms(ANY, "rows", casts=MODULAR))

# Tokens of bfloat16 and numbers of experts of 16 bits, in rows.
_NUMBERS = Takes(frozenset({U16}), "rows", dict.fromkeys((I32, U32, U8), (U16,)))
_EXPERTS = (Takes(frozenset({BF16}), "rows"), _NUMBERS)
OPS.define("all_to_all_dispatch", accepts=Forms(_EXPERTS, (Gives(), Gives(operand=1)), alike=False))
OPS.define("all_to_all_combine", accepts=Forms(_EXPERTS, alike=False))


# --- between two devices ---------------------------------------------------------------------------------------------


def _point_to_point(call: Call) -> jax.Array:
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
    meaning=_point_to_point,
    traits=[Trait.MOVES, Trait.COLLECTIVE, Trait.SENDS, Trait.DECOMPOSED],
    accepts=_along_one_axis,
)
