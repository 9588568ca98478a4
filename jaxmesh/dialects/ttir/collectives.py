"""Sharding and communication: mesh_shard, the collectives, and the exchanges of a mixture of experts.

A `cluster_axis` is the index of a mesh axis. Results of gathers and reductions are equal along it, and typed so.

The exchanges bring tokens to the devices of their experts, and back. A token is a row of the last dim. Tokens are
numbered by device of the axis, and row-major on a device. Rows that upstream leaves unwritten (tt-metal:
ttnn/operations/ccl/all_to_all_dispatch, all_to_all_combine) are zeros here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from jaxmesh.dialects.op import Call, Shape, Trait, describe
from jaxmesh.dialects.ttir.helpers import (
    TtirOps,
    as_bool,
    convert,
    is_bool,
    is_integer,
    jnp,
    lax,
    vary,
    vary_together,
    varying_axes,
)
from jaxmesh.dialects.ttir.mesh_shard import mesh_shard
from jaxmesh.dialects.ttir.replica_groups import (
    Groups,
    axis_name,
    check_split,
    check_unique,
    read_groups,
    read_ids,
    row_major_index,
    show_mesh,
)
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.sharding.shard_attributes import position_of

OPS = TtirOps()

_EXCHANGES = (Trait.MOVES, Trait.COLLECTIVE, Trait.SENDS, Trait.DECOMPOSED)


@OPS.define("mesh_shard", traits=[Trait.COLLECTIVE, Trait.TRANSFERS, Trait.DECOMPOSED])
def _mesh_shard(call: Call) -> jax.Array:
    (x,) = call.operands
    names = ("shard_type", "shard_direction", "shard_shape", "shard_dims")
    return mesh_shard(x, **{name: call[name] for name in names})


# --- shared by all collectives ---------------------------------------------------------------------------------------


def apply_collective(x: jax.Array, axes: tuple[str, ...], collective: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Performs a collective over mesh axes, typing its operand as varying over them.

    Integers narrower than a byte are sent as bytes, because XLA's CPU collectives pack and garble them.
    """
    small = is_integer(x) and jnp.iinfo(x.dtype).bits < 8
    wide = convert(x, jnp.int8 if jnp.iinfo(x.dtype).min < 0 else jnp.uint8) if small else x
    return convert(collective(vary(wide, axes)), x.dtype)


def gather(x: jax.Array, axis: str, dim: int, *, tiled: bool) -> jax.Array:
    """Gathers the values along a mesh axis: joins them along a dim, or stacks them into a new one."""
    if not x.size:
        return _gather_empty(x, axis, dim, tiled)
    return apply_collective(x, (axis,), lambda y: lax.all_gather(y, axis, axis=dim, tiled=tiled, to="invarying"))


def _gather_empty(x: jax.Array, axis: str, dim: int, tiled: bool) -> jax.Array:
    # StableHLO cannot gather empty tensors.
    count = lax.axis_size(axis)
    whole = (*x.shape[:dim], x.shape[dim] * count, *x.shape[dim + 1 :])
    shape = whole if tiled else (*x.shape[:dim], count, *x.shape[dim:])
    return vary(jnp.zeros(shape, x.dtype), varying_axes(x) - {axis})


def sum_scatter(x: jax.Array, axis: str, dim: int) -> jax.Array:
    """Sums along a mesh axis, and keeps this device's part of a dim."""
    return apply_collective(x, (axis,), lambda y: lax.psum_scatter(y, axis, scatter_dimension=dim, tiled=True))


def exchange(x: jax.Array, axes: tuple[str, ...], split: int, join: int) -> jax.Array:
    """Moves mesh axes from the dim `join` to the dim `split`."""
    names = axes[0] if len(axes) == 1 else axes
    return apply_collective(x, axes, lambda y: lax.all_to_all(y, names, split, join, tiled=True))


def _stack(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Concatenates the values of all devices along some mesh axes, row-major along a new first dim."""
    shape = x.shape
    for axis in reversed(axes):
        x = gather(x, axis, 0, tiled=False)
    return lax.reshape(x, (math.prod(x.shape[: x.ndim - len(shape)]), *shape))


# --- gather, reduce, partition ---------------------------------------------------------------------------------------


@OPS.define("all_gather", traits=_EXCHANGES)
def _all_gather(call: Call) -> jax.Array:
    (x,) = call.operands
    dim = call.check_dim(call["all_gather_dim"], x.ndim, "all_gather_dim")
    return gather(x, axis_name(call, call["cluster_axis"]), dim, tiled=True)


REDUCE_TYPES = ("sum", "mean", "max", "min", "prod")


def _reduce_type(call: Call) -> str:
    kind: str = call["reduce_type"]
    if kind not in REDUCE_TYPES:
        raise call.rule_error(f"reduce_type {kind!r} is not supported; allowed: {', '.join(REDUCE_TYPES)}")
    return kind


def all_reduce_sum(x: jax.Array, axis: str) -> jax.Array:
    """Returns the sum along a mesh axis."""
    return apply_collective(x, (axis,), lambda y: lax.psum(y, axis))


def _reduce(x: jax.Array, axis: str, kind: str, size: int) -> jax.Array:
    """Reduces along a mesh axis; equal values are added once per device, never folded."""
    if is_bool(x):
        count = all_reduce_sum(convert(x, jnp.int32), axis)
        return as_bool(count) if kind in ("sum", "max") else count == size
    match kind:
        case "sum":
            return all_reduce_sum(x, axis)
        case "mean":
            return lax.div(_reduce(x, axis, "sum", size), jnp.asarray(size, x.dtype))
        case "max":
            return apply_collective(x, (axis,), lambda y: lax.pmax(y, axis))
        case "min":
            return apply_collective(x, (axis,), lambda y: lax.pmin(y, axis))
        case _:
            return jnp.prod(gather(x, axis, 0, tiled=False), 0, dtype=x.dtype)


_REDUCES = (Trait.REDUCES, Trait.COLLECTIVE, Trait.SENDS, Trait.DECOMPOSED)


@OPS.define("all_reduce_async", traits=_REDUCES)
@OPS.define("all_reduce", traits=_REDUCES)
def _all_reduce(call: Call) -> jax.Array:
    (x,) = call.operands
    axis = axis_name(call, call["cluster_axis"])
    return _reduce(x, axis, _reduce_type(call), call.mesh[axis])


@OPS.define("reduce_scatter", traits=_REDUCES)
def _reduce_scatter(call: Call) -> jax.Array:
    (x,) = call.operands
    dim = call.check_dim(call["scatter_dim"], x.ndim, "scatter_dim")
    axis, kind = axis_name(call, call["cluster_axis"]), _reduce_type(call)
    size = call.mesh[axis]
    check_split(call, x.shape, dim, size, f"the size of mesh axis {axis!r}")
    if kind != "sum" or is_bool(x) or not x.size:
        return _take_piece(_reduce(x, axis, kind, size), dim, (axis,), (size,))
    return sum_scatter(x, axis, dim)


def _take_piece(x: jax.Array, dim: int, axes: tuple[str, ...], sizes: Shape) -> jax.Array:
    """Returns this device's piece of a dim that is split over mesh axes, row-major."""
    length = x.shape[dim] // math.prod(sizes)
    x, start = vary_together(vary(x, axes), row_major_index(axes, sizes) * length)
    return lax.dynamic_slice_in_dim(x, start, length, dim)


@OPS.define("mesh_partition", traits=[Trait.MOVES, Trait.COLLECTIVE, Trait.TRANSFERS, Trait.DECOMPOSED])
def _mesh_partition(call: Call) -> jax.Array:
    (x,) = call.operands
    dim = call.check_dim(call["dim"], x.ndim, "dim")
    index = call["cluster_axis"]
    # Without an axis the pieces go to all devices, row-major.
    axes = tuple(call.mesh) if index is None else (axis_name(call, index),)
    sizes = tuple(call.mesh[a] for a in axes)
    over = f"the size of mesh axis {', '.join(map(repr, axes))}"
    check_split(call, x.shape, dim, math.prod(sizes), over)
    return _take_piece(x, dim, axes, sizes)


# --- between single devices ------------------------------------------------------------------------------------------


@OPS.define("collective_permute", traits=_EXCHANGES)
def _collective_permute(call: Call) -> jax.Array:
    # A device that receives nothing has zeros.
    (x,) = call.operands
    pairs = read_ids(call, "source_target_pairs", 2)
    check_unique(call, "source_target_pairs (sources)", [s for s, _ in pairs])
    check_unique(call, "source_target_pairs (targets)", [t for _, t in pairs])
    axes, pattern = _minimal_pattern(pairs, call.mesh)
    if pairs and not axes:
        # Every device keeps its value: expressed along the varying axes, if any.
        axes = tuple(a for a in call.mesh if a in varying_axes(x))
        pattern = [(i, i) for i in range(math.prod(call.mesh[a] for a in axes))]
        if not axes:
            return x
    if not x.size or not pairs:
        # The zeros depend on the operand, so they are on the devices, too.
        nothing = lax.select(*vary_together(jnp.zeros(x.shape, jnp.bool_), x, jnp.zeros_like(x)))
        return vary(nothing, axes if pairs else ())
    return apply_collective(x, axes, lambda y: lax.ppermute(y, axes, pattern))


def _minimal_pattern(pairs: list[Shape], mesh: Mapping[str, int]) -> tuple[tuple[str, ...], list[Shape]]:
    """Returns the mesh axes along which devices receive from different places, and the transfers along them."""
    sizes = tuple(mesh.values())
    ends = np.array([np.unravel_index(d, sizes) for p in pairs for d in p], np.int64).reshape(-1, 2, len(sizes))
    axes = [a for a in range(len(sizes)) if not _is_uniform(ends, a, sizes[a])]
    moves = {(position_of(s, axes, sizes), position_of(t, axes, sizes)) for s, t in ends.tolist()}
    return tuple(n for a, n in enumerate(mesh) if a in axes), sorted(moves)


def _is_uniform(ends: Array, axis: int, size: int) -> bool:
    """Returns True if nothing moves along an axis and the other transfers happen at each of its coordinates."""
    if (ends[:, 0, axis] != ends[:, 1, axis]).any():
        return False
    others = Counter(map(str, np.delete(ends, axis, 2).tolist()))
    return set(others.values()) == {size}


@OPS.define("collective_broadcast", traits=[Trait.MOVES, Trait.COLLECTIVE, Trait.SENDS])
def _collective_broadcast(call: Call) -> jax.Array:
    # A device in no group has zeros: StableHLO's rule. Upstream's lowering keeps its input there.
    (x,) = call.operands
    groups = read_groups(call)
    enclosing = groups.enclosing
    sources = np.zeros(enclosing.count, np.int32)
    members = np.zeros(enclosing.count, np.bool_)
    for group in groups.rows:
        here = [enclosing.position(d) for d in group]
        sources[here], members[here] = groups.position(group[0]), True
    stacked = _stack(x, groups.active_axes)
    if groups.is_axis:
        return stacked[0]
    me = row_major_index(enclosing.active_axes, enclosing.active_sizes)
    stacked, source, member = vary_together(
        vary(stacked, enclosing.active_axes), jnp.asarray(sources)[me], jnp.asarray(members)[me]
    )
    received = lax.dynamic_index_in_dim(stacked, source, 0, keepdims=False)
    return lax.select(member, received, lax.full_like(received, 0))


@OPS.define("all_to_all", traits=_EXCHANGES)
def _all_to_all(call: Call) -> jax.Array:
    (x,) = call.operands
    split, join = (call.check_dim(call[name], x.ndim, name) for name in ("split_dim", "concat_dim"))
    groups = read_groups(call)
    _check_all_to_all(call, groups)
    check_split(call, x.shape, split, call["split_count"], "the split_count")
    if groups.is_axis and x.size:
        return exchange(x, groups.active_axes, split, join)
    return _exchange_in_groups(x, groups, split, join)


def _check_all_to_all(call: Call, groups: Groups) -> None:
    named, size = sum(map(len, groups.rows)), len(groups.rows[0])
    devices = math.prod(groups.sizes)
    rule = f"replica_groups name {named} devices, but the mesh {show_mesh(call)} has {devices}; each is in a group"
    call.require(named == devices, rule)
    rule = f"split_count = {call['split_count']}, but the groups have {size} devices each"
    call.require(call["split_count"] == size, rule)


def _exchange_in_groups(x: jax.Array, groups: Groups, split: int, join: int) -> jax.Array:
    """Performs an all_to_all among any groups: gathers everything, then each device selects its pieces."""
    size, enclosing = len(groups.rows[0]), groups.enclosing
    members = np.zeros((enclosing.count, size), np.int32)
    places = np.zeros(enclosing.count, np.int32)
    for group in groups.rows:
        for place, device in enumerate(group):
            members[enclosing.position(device)] = [groups.position(d) for d in group]
            places[enclosing.position(device)] = place
    me = row_major_index(enclosing.active_axes, enclosing.active_sizes)
    stacked, mine, place = vary_together(
        vary(_stack(x, groups.active_axes), enclosing.active_axes), jnp.asarray(members)[me], jnp.asarray(places)[me]
    )
    length = x.shape[split] // size
    pieces = lax.dynamic_slice_in_dim(jnp.take(stacked, mine, axis=0), place * length, length, split + 1)
    return lax.concatenate([pieces[i] for i in range(size)], join)


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
