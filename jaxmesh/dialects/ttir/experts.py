"""The exchanges of a mixture of experts: tokens to the devices of their experts, and back.

A token is a row of the last dim. Tokens are numbered by device of the axis, and row-major on a device. Rows that
upstream leaves unwritten (tt-metal: ttnn/operations/ccl/all_to_all_dispatch, all_to_all_combine) are zeros here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax

from jaxmesh.dialects.op import Call, Trait, describe
from jaxmesh.dialects.ttir.collectives import exchange, gather
from jaxmesh.dialects.ttir.helpers import TtirOps, convert, jnp, lax, vary, vary_together
from jaxmesh.dialects.ttir.replica_groups import axis_name, check_split, row_major_index, show_mesh

OPS = TtirOps()
_SENDS = (Trait.MOVES, Trait.COLLECTIVE, Trait.SENDS)


def _axis(call: Call) -> tuple[str, int]:
    """Checks what both operations have in common; returns the name and the size of the mesh axis."""
    ranks = [x.ndim for x in call.operands]
    call.require(ranks == [4, 4, 4], f"the operands have four dims each, got {', '.join(map(describe, call.operands))}")
    axis = axis_name(call, call["cluster_axis"])
    size, given, mapping = call.mesh[axis], call["num_devices"], call.operands[2]
    call.require(given == size, f"num_devices = {given}, but mesh axis {axis!r} has {size} devices")
    devices = math.prod(call.mesh.values())
    rule = f"expert_mapping is [1, 1, experts, {devices}] on the mesh {show_mesh(call)}, got {describe(mapping)}"
    call.require(mapping.shape[:2] == (1, 1) and mapping.shape[3] == devices, rule)
    return axis, size


def _experts_here(call: Call) -> jax.Array:
    """Returns for each expert whether this device holds it."""
    me, mapping = vary_together(row_major_index(tuple(call.mesh), tuple(call.mesh.values())), call.operands[2])
    return lax.dynamic_index_in_dim(mapping[0, 0], me, 1, keepdims=False) == 1


def _choose(table: jax.Array, numbers: jax.Array, fill: object) -> jax.Array:
    """Returns the entries of a table of experts; `fill` for numbers of no expert."""
    table, numbers = vary_together(table, convert(numbers, jnp.int32))
    return jnp.take(table, numbers, axis=0, mode="fill", fill_value=fill)


@OPS.define("all_to_all_dispatch", traits=_SENDS)
def _dispatch(call: Call) -> Sequence[jax.Array]:
    """Gathers tokens and their experts along a mesh axis; a device has those tokens that choose an expert it holds."""
    x, chosen, _ = call.operands
    axis, _ = _axis(call)
    alike = x.shape[:3] == chosen.shape[:3] and 1 in x.shape[1:3]
    rule = "input_tensor is [B, 1, S, H] or [B, S, 1, H] and expert_indices the same with K in place of H"
    call.require(alike, f"{rule}, got {describe(x)} and {describe(chosen)}")
    tokens, metadata = (
        gather(lax.reshape(y, (1, y.shape[0], y.shape[1] * y.shape[2], y.shape[3])), axis, 1, tiled=True)
        for y in (x, chosen)
    )
    wanted = jnp.any(_choose(_experts_here(call), metadata, False), -1, keepdims=True)
    tokens, wanted = vary_together(tokens, wanted)
    return [jnp.where(wanted, tokens, jnp.zeros_like(tokens)), metadata]


@OPS.define("all_to_all_combine", traits=_SENDS)
def _combine(call: Call) -> jax.Array:
    """Returns to each token, at the place of each of its experts, the row that the expert's device has for it.

    Of several devices that hold an expert it is the first one's row, of several equal experts the first place.
    """
    x, metadata, mapping = call.operands
    axis, size = _axis(call)
    _, batch, seq, places = metadata.shape
    devices, experts, dim = mapping.shape[3], mapping.shape[2], call["output_shard_dim"]
    given = call["num_experts_per_tok"]
    call.require(given == places, f"num_experts_per_tok = {given}, but expert_metadata has {places}")
    call.require(dim in (1, 2), f"output_shard_dim is 1 or 2, got {dim}")
    rule = f"input_tensor is [experts / devices, B, S, H] = [{experts} / {devices}, {batch}, {seq}, H]"
    good = metadata.shape[0] == 1 and x.shape[0] * devices == experts and x.shape[1:3] == (batch, seq)
    call.require(good, f"{rule} for expert_metadata {describe(metadata)}, got {describe(x)}")
    check_split(call, metadata.shape, dim, size, f"the size of mesh axis {axis!r}")
    here, numbers = _experts_here(call), convert(lax.reshape(metadata, (batch * seq, places)), jnp.int32)
    first = jnp.argmax(numbers[:, :, None] == numbers[:, None, :], -1) == jnp.arange(places)
    held, first = vary_together(_choose(here, numbers, False), first)
    rank = jnp.cumsum(here) - 1
    held = held & first & (_choose(rank, numbers, 0) < x.shape[0])
    rows, at, token = vary_together(
        lax.reshape(x, (x.shape[0], batch * seq, x.shape[3])),
        jnp.clip(_choose(rank, numbers, 0), 0, x.shape[0] - 1),
        jnp.arange(batch * seq)[:, None],
    )
    # [places, tokens, H]: a piece of the tokens goes to each device of the axis, the pieces of all come back.
    sent, marks = (jnp.moveaxis(y, 1, 0)[None] for y in (rows[at, token], convert(held, jnp.int8)))
    sent, marks = (exchange(vary(y, (axis,)), (axis,), 2, 0) for y in (sent, marks))
    source = jnp.argmax(marks, 0)[None, ..., None]
    found = jnp.take_along_axis(sent, source, 0)[0]
    found, known = vary_together(found, jnp.any(marks == 1, 0)[..., None])
    shape = (places, batch // size, seq, x.shape[3]) if dim == 1 else (places, batch, seq // size, x.shape[3])
    return lax.reshape(jnp.where(known, found, jnp.zeros_like(found)), shape)
