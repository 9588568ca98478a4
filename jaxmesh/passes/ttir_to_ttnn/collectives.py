"""Patterns of communication.

TTNN reduces by sums only and sends from one device to another; every other exchange is a sequence of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxmesh.dialects.program import Value
from jaxmesh.jaxprs import remarks
from jaxmesh.passes.flat_builder import Rules
from jaxmesh.passes.ttir_to_ttnn.builder import BOOL, INDEX, Ops, Pattern, Site

PATTERNS: Rules[Pattern] = Rules()

_SUMS = "TTNN's all_reduce and reduce_scatter give sums only"
_SENDS = "TTNN's point_to_point has one sender and one receiver, along one mesh axis"


# --- along an axis ---------------------------------------------------------------------------------------------------


def _gather(o: Ops, x: Value, dim: int, axis: int) -> Value:
    shape = list(o.shape(x))
    shape[dim] *= o.mesh[axis]
    return o.op("all_gather", [x], shape, o.dtype(x), all_gather_dim=dim, cluster_axis=axis)


@PATTERNS.add("all_gather")
def _all_gather(o: Ops, site: Site) -> Value:
    x, axis = site.x, site["cluster_axis"]
    shape = o.shape(x)
    if len(shape) == 1:
        remarks.remark(
            o.line, "legalised", "the vector is gathered as a row of rank 2", "TTNN's all_gather takes rank 2 and more"
        )
        return o.reshape(_gather(o, o.reshape(x, (1, *shape)), 1, axis), site.result.shape)
    return _gather(o, x, site["all_gather_dim"] % len(shape), axis)


def _all_reduce(o: Ops, x: Value, axis: int) -> Value:
    """Sums along a mesh axis; TTNN does it for tensors of at least four dims."""
    shape = o.shape(x)
    wide = o.reshape(x, (1,) * (4 - len(shape)) + shape)
    return o.reshape(o.same("all_reduce", [wide], reduce_type="sum", cluster_axis=axis), shape)


PATTERNS.add("all_reduce")(lambda o, site: _all_reduce(o, site.x, site["cluster_axis"]))


@PATTERNS.add("reduce_scatter")
def _reduce_scatter(o: Ops, site: Site) -> Value:
    x, dim, axis, result = site.x, site["scatter_dim"], site["cluster_axis"], site.result
    if o.dtype(x) == BOOL:
        remarks.remark(o.line, "legalised", "reduced along the axis, then each device keeps its piece", _SUMS)
        remarks.remark(o.line, "legalised", "truth values are counted as int32 and compared", _SUMS)
        some = o.binary("ge", _all_reduce(o, o.cast(x, INDEX), axis), o.full((), 1, INDEX), BOOL)
        return o.op("mesh_partition", [some], result.shape, BOOL, dim=dim, cluster_axis=axis)
    more = max(4 - len(result.shape), 0)
    wide, shape = o.reshape(x, (1,) * more + o.shape(x)), (1,) * more + result.shape
    attributes = {"reduce_type": "sum", "scatter_dim": dim + more, "cluster_axis": axis}
    return o.reshape(o.op("reduce_scatter", [wide], shape, result.dtype, **attributes), result.shape)


@PATTERNS.add("mesh_partition")
def _mesh_partition(o: Ops, site: Site) -> Value:
    dim, axis = site["dim"], site["cluster_axis"]
    return o.op("mesh_partition", [site.x], site.result.shape, site.result.dtype, dim=dim, cluster_axis=axis)


# --- from one device to another --------------------------------------------------------------------------------------


def _coordinate(o: Ops, device: int) -> tuple[int, ...]:
    return tuple(int(c) for c in np.unravel_index(device, o.mesh))


def _send(o: Ops, x: Value, out: Value, source: int, target: int) -> Value:
    """Returns `out` with one device's `x` on another device.

    A transfer runs along one mesh axis. One that changes several coordinates goes through devices between, in separate
    tensors, so that nothing is overwritten on the way. The last axis is the first to change.
    """
    here, there = _coordinate(o, source), _coordinate(o, target)
    for axis in reversed(range(len(here))):
        if here[axis] == there[axis]:
            continue
        beyond = (*here[:axis], *there[axis:])
        attributes = {"sender_coord": here, "receiver_coord": beyond}
        last = beyond == there
        x = o.same("point_to_point", [x, out] if last else [x], **attributes)
        here = beyond
    return x


def _neighbour(o: Ops, device: int) -> int:
    """Returns a device one step away."""
    coordinate = _coordinate(o, device)
    axis = max(a for a, n in enumerate(o.mesh) if n > 1)
    moved = list(coordinate)
    moved[axis] = moved[axis] + 1 if moved[axis] == 0 else moved[axis] - 1
    return int(np.ravel_multi_index(moved, o.mesh))


def _send_zeros(o: Ops, out: Value, devices: Sequence[int]) -> Value:
    """Sends zeros to some devices. A clamp to 0 would keep NaN."""
    for device in devices:
        out = _send(o, o.zeros(o.shape(out), o.dtype(out)), out, _neighbour(o, device), device)
    return out


@PATTERNS.add("collective_permute")
def _collective_permute(o: Ops, site: Site) -> Value:
    """Sends to every target the value of its source; every other device has zeros."""
    x, pairs = site.x, np.asarray(site["source_target_pairs"]).tolist()
    remarks.remark(o.line, "legalised", "one point_to_point per pair, and per axis that a pair crosses", _SENDS)
    rest = sorted(set(range(math.prod(o.mesh))) - {t for _, t in pairs})
    if not pairs or not math.prod(o.shape(x)):
        return o.zeros(o.shape(x), o.dtype(x))
    stays = any(s == t for s, t in pairs)
    # Starting from zeros, devices without a source have them already.
    out = o.zeros(o.shape(x), o.dtype(x)) if rest and not stays else o.same("assign", [x])
    for source, target in pairs:
        if source != target:
            out = _send(o, x, out, source, target)
    return _send_zeros(o, out, rest) if stays else out


@PATTERNS.add("collective_broadcast")
def _collective_broadcast(o: Ops, site: Site) -> Value:
    """Sends to every member of a group the value of its first one; a device in no group has zeros."""
    x, groups = site.x, np.asarray(site["replica_groups"]).tolist()
    remarks.remark(o.line, "legalised", "one point_to_point from the first member of a group to each other one", _SENDS)
    out = o.same("assign", [x])
    for first, *others in groups:
        for other in others:
            out = _send(o, x, out, first, other)
    rest = sorted(set(range(math.prod(o.mesh))) - {d for group in groups for d in group})
    return _send_zeros(o, out, rest)


@PATTERNS.add("all_to_all")
def _all_to_all(o: Ops, site: Site) -> Value:
    """Sends a device's pieces to the members of its group, one each, and joins the received ones."""
    x, groups = site.x, np.asarray(site["replica_groups"]).tolist()
    remarks.remark(o.line, "legalised", "one point_to_point per piece and pair of members, then a concat", _SENDS)
    rank, count = len(o.shape(x)), len(groups[0])
    split: int = site["split_dim"] % rank
    join: int = site["concat_dim"] % rank
    length: int = o.shape(x)[split] // count
    pieces = [o.piece(x, split, i * length, (i + 1) * length) for i in range(count)]
    # The piece from the member at each position; on that member itself it is already in place.
    received = [o.same("assign", [piece]) for piece in pieces]
    for group in groups:
        for place, source in enumerate(group):
            for other, target in enumerate(group):
                if target != source:
                    received[place] = _send(o, pieces[other], received[place], source, target)
    return o.concat(received, join)
